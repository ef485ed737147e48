//! Starts processes for tools: each in its own group, with exactly the given environment; here, or in
//! the shell host where there is one.
//!
//! Must never leave a process of a finished call behind in its group, wait for a pipe that somebody
//! else holds open, or keep more output than its bound.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::limits;
use crate::shell_host::{Hosted, ShellHost};

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
    /// Where it runs; `None` for a child of this process.
    pub(crate) host: Option<&'a ShellHost>,
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
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) child: Child,
    pid: Option<Pid>,
}

impl Group {
    /// Signals the whole group; no group left is fine. The number cannot have been given to a
    /// stranger in the meantime as long as any member lives, and pids are not reused at once.
    pub(crate) fn signal(&self, signal: Signal) {
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

/// The leader of a group, wherever it runs. Its group dies with this value.
enum Leader {
    Here(Group),
    There(Hosted),
}

impl Leader {
    /// Waits for its end. Safe to cancel.
    async fn wait(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::Here(group) => group.child.wait().await,
            Self::There(hosted) => hosted.wait().await,
        }
    }

    /// Asks the whole group to end.
    fn terminate(&self) {
        match self {
            Self::Here(group) => group.signal(Signal::TERM),
            Self::There(hosted) => hosted.terminate(),
        }
    }

    /// Ends what is left of the group, and waits for the leader.
    async fn kill(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::Here(group) => {
                group.signal(Signal::KILL);
                group.child.wait().await
            }
            Self::There(hosted) => hosted.kill().await,
        }
    }
}

/// Runs it to its end, handing output to `consume` in pieces. Dropping the future ends the group.
pub(crate) async fn run(
    invocation: &Invocation<'_>,
    consume: &mut (dyn FnMut(&[u8]) -> Flow + Send),
) -> io::Result<Finished> {
    let (mut leader, mut output) = start(invocation).await?;
    let deadline = Instant::now() + invocation.timeout;
    let mut buffer = vec![0; 64 << 10];
    let mut open = true;
    let ended = loop {
        tokio::select! {
            biased;
            status = leader.wait() => break Ended::Exited(status?),
            () = tokio::time::sleep_until(deadline) => break Ended::TimedOut,
            read = output.read(&mut buffer), if open => match read? {
                0 => open = false,
                n => if consume(&buffer[..n]) == Flow::Enough { break Ended::Stopped },
            },
        }
    };
    if ended == Ended::TimedOut {
        leader.terminate();
        let grace = Instant::now() + Duration::from_millis(limits::SHELL_GRACE_MS);
        drain(&mut output, &mut buffer, consume, &mut open, grace, Some(&mut leader)).await?;
    }
    leader.kill().await?;
    if ended != Ended::Stopped {
        let until = Instant::now() + Duration::from_millis(limits::SHELL_DRAIN_MS);
        drain(&mut output, &mut buffer, consume, &mut open, until, None).await?;
    }
    Ok(Finished { ended, pipe_left_open: open && ended != Ended::Stopped })
}

/// Reads until the pipe closes, `until` passes, or `leader` ends.
async fn drain(
    output: &mut pipe::Receiver,
    buffer: &mut [u8],
    consume: &mut (dyn FnMut(&[u8]) -> Flow + Send),
    open: &mut bool,
    until: Instant,
    mut leader: Option<&mut Leader>,
) -> io::Result<()> {
    while *open {
        let exit = async {
            match leader.as_mut() {
                Some(leader) => drop(leader.wait().await),
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

async fn start(invocation: &Invocation<'_>) -> io::Result<(Leader, pipe::Receiver)> {
    if let Some(host) = invocation.host {
        let (hosted, output) = host.start(invocation).await?;
        return Ok((Leader::There(hosted), output));
    }
    let (reader, writer) = io::pipe()?;
    let group = spawn(Start {
        program: invocation.program,
        args: &invocation.args,
        cwd: invocation.cwd,
        env: invocation.env,
        with_stderr: invocation.with_stderr,
        output: writer.into(),
    })?;
    Ok((Leader::Here(group), pipe::Receiver::from_owned_fd(reader.into())?))
}

/// A child of this process.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) program: &'a str,
    pub(crate) args: &'a [&'a OsStr],
    pub(crate) cwd: &'a Path,
    pub(crate) env: &'a BTreeMap<String, String>,
    /// False drops standard error.
    pub(crate) with_stderr: bool,
    /// Where its output goes. Only the child holds it afterwards.
    pub(crate) output: OwnedFd,
}

/// Starts it.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the agent's tools start processes"
)]
pub(crate) fn spawn(start: Start<'_>) -> io::Result<Group> {
    let mut command = Command::new(start.program);
    command
        .args(start.args)
        .current_dir(start.cwd)
        .env_clear()
        .envs(start.env)
        .stdin(Stdio::null())
        .stderr(if start.with_stderr {
            Stdio::from(start.output.try_clone()?)
        } else {
            Stdio::null()
        })
        .stdout(start.output)
        .process_group(0)
        .kill_on_drop(true);
    let child = command.spawn()?;
    // `command` holds our copies of the writing end; only the child may.
    drop(command);
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    Ok(Group { child, pid })
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
