//! Orphans: reaping those that end, and ending all that are left.
//!
//! Never takes the exit status of a process that someone here waits for, and never signals a
//! process that is not of the sandbox: see [`look_around`].

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::limits::{KILL, PROC_FILE};
use crate::log;
use crate::probe::read_bounded;

/// Processes that someone here waits for.
static OURS: Mutex<Option<HashSet<i32>>> = Mutex::new(None);

fn ours() -> MutexGuard<'static, Option<HashSet<i32>>> {
    // Whole at any point: one call on a set.
    OURS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the reaper away from one process.
#[derive(Debug)]
pub(crate) struct Ours(Pid);

impl Ours {
    /// The process.
    pub(crate) fn pid(&self) -> Pid {
        self.0
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(set) = ours().as_mut() {
            set.remove(&self.0.as_raw_pid());
        }
    }
}

/// Starts a process so that the reaper knows it before it can end.
pub(crate) fn start(spawn: impl FnOnce() -> io::Result<Child>) -> io::Result<(Child, Ours)> {
    let mut guard = ours();
    let child = spawn()?;
    let pid = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("a started process has no id"))?;
    guard.get_or_insert_default().insert(pid.as_raw_pid());
    Ok((child, Ours(pid)))
}

/// Reaps orphans for as long as the process lives.
pub(crate) async fn forever() {
    let Ok(mut child_ended) = signal(SignalKind::child()) else { return };
    while child_ended.recv().await.is_some() {
        // Many ends become one look.
        sleep(Duration::from_millis(200)).await;
        reap(&processes());
    }
}

/// One process as `/proc` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    pid: Pid,
    parent: i32,
    zombie: bool,
}

fn processes() -> Vec<Seen> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
            let stat = read_bounded(entry.path().join("stat"), PROC_FILE).ok()?;
            let (zombie, parent) = parse_stat(&stat)?;
            Some(Seen { pid, parent, zombie })
        })
        .collect()
}

/// State and parent. The name before them is the process's own choice and may hold anything.
fn parse_stat(stat: &str) -> Option<(bool, i32)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    Some((matches!(state, "Z" | "X"), fields.next()?.parse().ok()?))
}

fn reap(seen: &[Seen]) {
    let me = getpid().as_raw_pid();
    for process in seen.iter().filter(|p| p.zombie && p.parent == me) {
        let guard = ours();
        if !guard.as_ref().is_some_and(|set| set.contains(&process.pid.as_raw_pid())) {
            let _ = waitpid(Some(process.pid), WaitOptions::NOHANG);
        }
    }
}

/// All living descendants of `root`.
fn descendants(seen: &[Seen], root: i32) -> Vec<Pid> {
    let mut found: HashSet<i32> = HashSet::from([root]);
    loop {
        let before = found.len();
        for process in seen {
            if found.contains(&process.parent) {
                found.insert(process.pid.as_raw_pid());
            }
        }
        if found.len() == before {
            break;
        }
    }
    seen.iter()
        .filter(|p| !p.zombie && p.pid.as_raw_pid() != root && found.contains(&p.pid.as_raw_pid()))
        .map(|p| p.pid)
        .collect()
}

/// The pid namespace that every machine starts with, as `/proc/self/ns/pid` names it.
const INITIAL_NAMESPACE: &str = "pid:[4026531836]";

/// True when every process that this one can see belongs to the sandbox, so that all of them can be
/// ended in one call. Never true in the namespace of a whole machine.
static ALONE: AtomicBool = AtomicBool::new(false);

/// Finds out whether all that can be seen is the sandbox: in a pid namespace that is not the
/// machine's, as its first process, or as the supervisor of a sandbox (`in_sandbox`) behind the
/// engine's own first process, which the kernel spares.
pub(crate) fn look_around(in_sandbox: bool) {
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let private = namespace.as_os_str().as_encoded_bytes().starts_with(b"pid:[")
        && namespace.as_os_str() != INITIAL_NAMESPACE;
    ALONE.store(private && (getpid().is_init() || in_sandbox), Ordering::Relaxed);
}

/// Ends every process that descends from this one, within [`KILL`].
///
/// Alone in a pid namespace one call of the kernel does it, atomically, so that nothing outruns it
/// by forking. Otherwise (a guest outside of any sandbox, in tests) all are stopped first: a stopped
/// process does not fork, but one that forks all the time can slip through.
pub(crate) async fn kill_all() {
    let alone = ALONE.load(Ordering::Relaxed);
    let me = getpid();
    let until = Instant::now() + KILL;
    let mut quiet = 0;
    while quiet < QUIET_LOOKS {
        if alone {
            // Linux spares the caller and process 1 of the namespace. Fails when nobody is left.
            let _ = kill_everybody_else();
        }
        let seen = processes();
        reap(&seen);
        let alive = descendants(&seen, me.as_raw_pid());
        if alive.is_empty() {
            quiet += 1;
        } else {
            quiet = 0;
            if Instant::now() >= until {
                log::line(&format!("{} processes could not be ended", alive.len()));
                return;
            }
            for signal in [Signal::STOP, Signal::KILL] {
                for pid in &alive {
                    let _ = kill_process(*pid, signal);
                }
            }
        }
        sleep(Duration::from_millis(3)).await;
    }
}

/// A look takes a moment, and what forks meanwhile can be missed by one.
const QUIET_LOOKS: u32 = 3;

#[expect(unsafe_code, reason = "no safe wrapper signals every process")]
fn kill_everybody_else() -> io::Result<()> {
    // SAFETY: takes two integers and touches no memory of this process.
    match unsafe { libc::kill(-1, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pid: i32, parent: i32, zombie: bool) -> Seen {
        Seen { pid: Pid::from_raw(pid).unwrap(), parent, zombie }
    }

    #[test]
    fn name_of_a_process_cannot_fake_its_parent() {
        assert_eq!(parse_stat("7 (a) Z 1 (b) S 42 7 7 0"), Some((false, 42)));
        assert_eq!(parse_stat("7 (x) Z 3 7"), Some((true, 3)));
        assert_eq!(parse_stat("7 x S 3"), None);
    }

    #[test]
    fn only_living_descendants_are_found() {
        let all = [
            seen(1, 0, false),
            seen(10, 1, false),
            seen(12, 11, false),
            seen(11, 10, false),
            seen(13, 10, true),
            seen(20, 1, false),
        ];
        let mut found: Vec<i32> = descendants(&all, 10).iter().map(|p| p.as_raw_pid()).collect();
        found.sort_unstable();
        assert_eq!(found, [11, 12]);
    }
}
