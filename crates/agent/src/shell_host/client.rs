//! The agent's end: a command that runs in the shell host looks like one that runs here.
//!
//! Never waits for the shell host without a bound: what it starts could stop or kill it.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::fds::Channel;
use super::{COMMAND, ENDED, FRAME_BYTES, NOT_STARTED, Request, STARTED, TERMINATE};
use crate::limits::SHELL_HOST_ANSWER_MS;
use crate::process::Invocation;

/// The channel to the shell host.
#[derive(Debug)]
pub(crate) struct ShellHost(Channel);

/// A command that runs there. Dropping it ends the command and its group.
#[derive(Debug)]
pub(crate) struct Hosted {
    socket: UnixStream,
    frame: [u8; FRAME_BYTES],
    filled: usize,
    ended: Option<ExitStatus>,
}

fn gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::BrokenPipe,
        "the process that runs commands in this sandbox has ended, so no more can be run",
    )
}

fn stuck() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "the process that runs commands in this sandbox does not answer",
    )
}

/// Within the bound on answers.
async fn bounded<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let limit = Duration::from_millis(SHELL_HOST_ANSWER_MS);
    timeout(limit, work).await.unwrap_or_else(|_| Err(stuck()))
}

impl ShellHost {
    /// Over that socket. Needs a runtime.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        Channel::new(socket).map(Self)
    }

    /// Starts a command; gives what it prints.
    ///
    /// # Errors
    /// The command's own, as if it were started here; or the shell host has ended or does not answer.
    pub(crate) async fn start(
        &self,
        invocation: &Invocation<'_>,
    ) -> io::Result<(Hosted, pipe::Receiver)> {
        let request = serde_json::to_vec(&Request {
            program: invocation.program.to_owned(),
            args: invocation.args.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
            cwd: invocation.cwd.as_os_str().as_bytes().to_vec(),
            env: invocation.env.clone(),
            with_stderr: invocation.with_stderr,
        })?;
        let length = u32::try_from(request.len()).map_err(io::Error::other)?.to_le_bytes();
        bounded(async {
            let (ours, theirs) = StdUnixStream::pair()?;
            let (reader, writer) = io::pipe()?;
            ours.set_nonblocking(true)?;
            let sent = self.0.send(&[COMMAND], &[theirs.as_fd(), writer.as_fd()]).await;
            sent.map_err(|_| gone())?;
            drop((theirs, writer));
            let mut hosted = Hosted {
                socket: UnixStream::from_std(ours)?,
                frame: [0; FRAME_BYTES],
                filled: 0,
                ended: None,
            };
            let written = async {
                hosted.socket.write_all(&length).await?;
                hosted.socket.write_all(&request).await
            };
            written.await.map_err(|_| gone())?;
            match hosted.next().await? {
                (STARTED, _) => Ok((hosted, pipe::Receiver::from_owned_fd(reader.into())?)),
                (NOT_STARTED, number) => Err(io::Error::from_raw_os_error(number)),
                _ => Err(gone()),
            }
        })
        .await
    }
}

impl Hosted {
    /// Waits for its end, and that of its group. Safe to cancel and to call again.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        match self.next().await? {
            (ENDED, status) => {
                let status = ExitStatus::from_raw(status);
                self.ended = Some(status);
                Ok(status)
            }
            _ => Err(gone()),
        }
    }

    /// Sends SIGTERM to its group.
    pub(crate) fn terminate(&self) {
        // One byte into a socket that carries nothing else this way; an end that is gone needs none.
        let _ = self.socket.try_write(&[TERMINATE]);
    }

    /// Ends its group and waits for that.
    pub(crate) async fn kill(&mut self) -> io::Result<ExitStatus> {
        // The end of what is read there; what comes from there can still be read here.
        let _ = self.socket.shutdown().await;
        bounded(self.wait()).await
    }

    async fn next(&mut self) -> io::Result<(u8, i32)> {
        while self.filled < FRAME_BYTES {
            match self.socket.read(&mut self.frame[self.filled..]).await {
                Ok(0) | Err(_) => return Err(gone()),
                Ok(n) => self.filled += n,
            }
        }
        self.filled = 0;
        let [tag, number @ ..] = self.frame;
        Ok((tag, i32::from_le_bytes(number)))
    }
}
