//! Host processes by identity: a process id together with its start time.
//!
//! It never signals a process by its number alone: numbers are reused.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// One process, for as long as the machine is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    /// Its number in our process-id namespace.
    pub(crate) pid: i32,
    /// When it started, clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub(crate) start_time: u64,
}

impl ProcessId {
    /// The process that has this number now.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let start_time = parse_start_time(&text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable stat"))?;
        Ok(Self { pid, start_time })
    }

    /// The calling process.
    pub(crate) fn current() -> io::Result<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// A handle on exactly this process; `None` when it has gone.
    pub(crate) fn open(self) -> Option<OwnedFd> {
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // The handle is bound before the start time is compared, so that no reuse fits between.
        (Self::of(self.pid).ok()? == self).then_some(fd)
    }

    /// True while it exists and has not ended (a zombie has).
    pub(crate) fn is_running(self) -> bool {
        let Ok(text) = fs::read_to_string(format!("/proc/{}/stat", self.pid)) else { return false };
        parse_start_time(&text) == Some(self.start_time)
            && !matches!(parse_state(&text), Some('Z' | 'X'))
    }

    /// Kills exactly this process, if it is still there.
    pub(crate) fn kill(self) {
        if let Some(fd) = self.open() {
            // Already gone is what was wanted; nothing else can be done about a refusal here, and
            // the caller proves the end by looking again.
            let _gone = pidfd_send_signal(fd, Signal::KILL);
        }
    }
}

/// The fields after the command name, which may itself hold spaces and parentheses.
fn fields(stat: &str) -> Option<std::str::SplitAsciiWhitespace<'_>> {
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace())
}

fn parse_state(stat: &str) -> Option<char> {
    fields(stat)?.next()?.chars().next()
}

fn parse_start_time(stat: &str) -> Option<u64> {
    // Field 3 (state) comes first after the name, so field 22 is at index 19.
    fields(stat)?.nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 11 12";
        assert_eq!(parse_start_time(stat), Some(987_654));
        assert_eq!(parse_state(stat), Some('S'));
    }

    #[test]
    fn same_number_with_another_start_is_another_process() {
        let me = ProcessId::current().unwrap();
        assert!(me.is_running());
        assert!(me.open().is_some());
        let other = ProcessId { start_time: me.start_time + 1, ..me };
        assert!(!other.is_running());
        assert!(other.open().is_none());
    }
}
