//! The shell host's end: starts what it is asked for, and ends it with the socket that asked.
//!
//! Never trusts a request to be whole or small, never waits for one without a bound, and never keeps
//! a command whose asker is gone.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::fds::Channel;
use super::{COMMAND, ENDED, FRAME_BYTES, NOT_STARTED, Request, STARTED, TERMINATE};
use crate::limits::{HOSTED_COMMANDS_MAX, HOSTED_REQUEST_BYTES_MAX, SHELL_HOST_ANSWER_MS};
use crate::process::{Group, Start, spawn};

/// Serves commands until the other end of the channel is closed, then ends those that run.
///
/// # Errors
/// The channel cannot be used.
pub async fn serve(channel: OwnedFd) -> io::Result<()> {
    let channel = Channel::new(channel)?;
    let mut commands = JoinSet::new();
    loop {
        while commands.try_join_next().is_some() {}
        let mut word = [0; 1];
        let descriptors = match channel.receive(&mut word).await {
            Ok(None) => break,
            Ok(Some((_, descriptors))) => descriptors,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
            Err(error) => return Err(error),
        };
        let Ok([socket, output]) = <[OwnedFd; 2]>::try_from(descriptors) else { continue };
        // What is dropped here is seen as an end by whoever asked.
        if word == [COMMAND] && commands.len() < HOSTED_COMMANDS_MAX {
            commands.spawn(async move {
                // Nobody is left to tell when the socket fails.
                let _ = command(socket, output).await;
            });
        }
    }
    commands.shutdown().await;
    Ok(())
}

async fn command(socket: OwnedFd, output: OwnedFd) -> io::Result<()> {
    let socket = StdUnixStream::from(socket);
    socket.set_nonblocking(true)?;
    let mut socket = UnixStream::from_std(socket)?;
    let limit = Duration::from_millis(SHELL_HOST_ANSWER_MS);
    let request = timeout(limit, read(&mut socket)).await.map_err(io::Error::other)??;
    let group = {
        let args: Vec<&OsStr> = request.args.iter().map(|arg| OsStr::from_bytes(arg)).collect();
        spawn(Start {
            program: &request.program,
            args: &args,
            cwd: Path::new(OsStr::from_bytes(&request.cwd)),
            env: &request.env,
            with_stderr: request.with_stderr,
            output,
        })
    };
    match group {
        Ok(group) => {
            tell(&mut socket, STARTED, 0).await?;
            attend(group, socket).await
        }
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(rustix::io::Errno::INVAL.raw_os_error());
            tell(&mut socket, NOT_STARTED, number).await
        }
    }
}

/// Stays with the command to its end.
async fn attend(mut group: Group, mut socket: UnixStream) -> io::Result<()> {
    let status = loop {
        tokio::select! {
            biased;
            status = group.child.wait() => break status?,
            wish = socket.read_u8() => match wish {
                Ok(TERMINATE) => group.signal(Signal::TERM),
                // Whoever asked has had enough of it, or is gone.
                _ => {
                    group.signal(Signal::KILL);
                    break group.child.wait().await?;
                }
            },
        }
    };
    // What it left in its group goes with it.
    group.signal(Signal::KILL);
    tell(&mut socket, ENDED, status.into_raw()).await
}

async fn read(socket: &mut UnixStream) -> io::Result<Request> {
    let length = socket.read_u32_le().await?;
    let length = usize::try_from(length).map_err(io::Error::other)?;
    if length > HOSTED_REQUEST_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    socket.read_exact(&mut bytes).await?;
    Ok(serde_json::from_slice(&bytes)?)
}

async fn tell(socket: &mut UnixStream, tag: u8, number: i32) -> io::Result<()> {
    let mut frame = [tag; FRAME_BYTES];
    frame[1..].copy_from_slice(&number.to_le_bytes());
    socket.write_all(&frame).await
}
