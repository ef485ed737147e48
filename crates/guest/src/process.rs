//! Where the guest starts processes: git and the agent.
//!
//! Never hands down the guest's own environment.

use std::ffi::OsStr;
use std::process::Stdio;

use tokio::process::{Child, Command};

use crate::reap;

/// A command with an empty environment, null input, in a process group of its own.
#[expect(clippy::disallowed_methods, reason = "the guest supervisor is a starter of processes")]
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    command
}

/// A started process. The reaper of orphans leaves it alone while this lives.
#[derive(Debug)]
pub(crate) struct Started {
    /// The process.
    pub(crate) child: Child,
    /// Holds its id, which is that of its group as well. Dropped after `child`.
    ours: reap::Ours,
}

/// Starts it.
pub(crate) fn start(command: &mut Command) -> std::io::Result<Started> {
    let (child, ours) = reap::start(|| command.spawn())?;
    Ok(Started { child, ours })
}

impl Started {
    /// Sends a signal to its group. A group that is gone is no error.
    pub(crate) fn signal_group(&self, signal: rustix::process::Signal) {
        let _ = rustix::process::kill_process_group(self.ours.pid(), signal);
    }
}
