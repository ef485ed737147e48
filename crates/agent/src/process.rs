//! Starts processes for tools: each in its own group, with exactly the given environment.
//!
//! Must never leave a process of a finished call behind in its group, wait for a pipe that somebody
//! else holds open, or keep more output than its bound.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::limits;

/// What to start.
#[derive(Debug)]
pub(crate) struct Invocation<'a> {
    pub(crate) program: &'a str,
    pub(crate) args: Vec<&'a OsStr>,
    pub(crate) cwd: &'a Path,
    pub(crate) env: &'a BTreeMap<String, String>,
    pub(crate) timeout: Duration,
    /// False drops standard error.
    pub(crate) with_stderr: bool,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself.
    Exited(ExitStatus),
    /// It ran out of time and was ended.
    TimedOut,
    /// The consumer had enough and it was ended.
    Stopped,
}

/// How it ended, and whether something still held its output open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finished {
    pub(crate) ended: Ended,
    pub(crate) pipe_left_open: bool,
}

/// What the consumer of output wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    More,
    Enough,
}

/// A child that leads a process group, which dies with this value.
struct Group {
    child: Child,
    pid: Option<Pid>,
}

impl Group {
    /// Signals the whole group; no group left is fine. The number cannot have been given to a
    /// stranger in the meantime as long as any member lives, and pids are not reused at once.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            let _ = kill_process_group(pid, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Runs it to its end, handing output to `consume` in pieces. Dropping the future ends the group.
pub(crate) async fn run(
    invocation: &Invocation<'_>,
    consume: &mut (dyn FnMut(&[u8]) -> Flow + Send),
) -> io::Result<Finished> {
    let (mut group, mut output) = start(invocation)?;
    let deadline = Instant::now() + invocation.timeout;
    let mut buffer = vec![0; 64 << 10];
    let mut open = true;
    let ended = loop {
        tokio::select! {
            biased;
            status = group.child.wait() => break Ended::Exited(status?),
            () = tokio::time::sleep_until(deadline) => break Ended::TimedOut,
            read = output.read(&mut buffer), if open => match read? {
                0 => open = false,
                n => if consume(&buffer[..n]) == Flow::Enough { break Ended::Stopped },
            },
        }
    };
    if ended == Ended::TimedOut {
        group.signal(Signal::TERM);
        let grace = Instant::now() + Duration::from_millis(limits::SHELL_GRACE_MS);
        drain(&mut output, &mut buffer, consume, &mut open, grace, Some(&mut group.child)).await?;
    }
    group.signal(Signal::KILL);
    if !matches!(ended, Ended::Exited(_)) {
        group.child.wait().await?;
    }
    if ended != Ended::Stopped {
        let until = Instant::now() + Duration::from_millis(limits::SHELL_DRAIN_MS);
        drain(&mut output, &mut buffer, consume, &mut open, until, None).await?;
    }
    Ok(Finished { ended, pipe_left_open: open && ended != Ended::Stopped })
}

/// Reads until the pipe closes, `until` passes, or `child` ends.
async fn drain(
    output: &mut pipe::Receiver,
    buffer: &mut [u8],
    consume: &mut (dyn FnMut(&[u8]) -> Flow + Send),
    open: &mut bool,
    until: Instant,
    mut child: Option<&mut Child>,
) -> io::Result<()> {
    while *open {
        let exit = async {
            match child.as_mut() {
                Some(child) => drop(child.wait().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(until) => break,
            () = exit => break,
            read = output.read(buffer) => match read? {
                0 => *open = false,
                n => { consume(&buffer[..n]); }
            },
        }
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the agent's tools start processes"
)]
fn start(invocation: &Invocation<'_>) -> io::Result<(Group, pipe::Receiver)> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(invocation.program);
    command
        .args(&invocation.args)
        .current_dir(invocation.cwd)
        .env_clear()
        .envs(invocation.env)
        .stdin(Stdio::null())
        .stderr(if invocation.with_stderr {
            Stdio::from(writer.try_clone()?)
        } else {
            Stdio::null()
        })
        .stdout(writer)
        .process_group(0)
        .kill_on_drop(true);
    let child = command.spawn()?;
    // `command` holds our copies of the writing end; only the child may.
    drop(command);
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let output = pipe::Receiver::from_owned_fd(reader.into())?;
    Ok((Group { child, pid }, output))
}

/// Runs a helper program and keeps its standard output, at most
/// [`limits::HELPER_OUTPUT_BYTES_MAX`] bytes. The flag says whether it is complete.
pub(crate) async fn output(invocation: &Invocation<'_>) -> io::Result<(Vec<u8>, Ended, bool)> {
    let mut kept = Vec::new();
    let mut complete = true;
    let finished = run(invocation, &mut |bytes| {
        let room = limits::HELPER_OUTPUT_BYTES_MAX - kept.len();
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            complete = false;
            return Flow::Enough;
        }
        Flow::More
    })
    .await?;
    let complete = complete && matches!(finished.ended, Ended::Exited(_));
    Ok((kept, finished.ended, complete))
}
