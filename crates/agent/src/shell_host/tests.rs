//! Both ends against one another, and each against an end that does not behave.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, test_kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::fds::{Channel, pair};
use super::*;
use crate::limits::{HOSTED_COMMANDS_MAX, HOSTED_REQUEST_BYTES_MAX};
use crate::process::{Ended, Finished, Flow, Invocation, run};

fn serving() -> (OwnedFd, JoinHandle<io::Result<()>>) {
    let (near, far) = pair().unwrap();
    (near, tokio::spawn(serve(far)))
}

async fn sh(host: &ShellHost, script: &str) -> io::Result<(String, Finished)> {
    let env = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
    let invocation = Invocation {
        program: "sh",
        args: ["-c", script].map(OsStr::new).into(),
        cwd: Path::new("/"),
        env: &env,
        timeout: Duration::from_secs(60),
        with_stderr: true,
        host: Some(host),
    };
    let mut text = Vec::new();
    let finished = run(&invocation, &mut |bytes| {
        text.extend_from_slice(bytes);
        Flow::More
    })
    .await?;
    Ok((String::from_utf8(text).unwrap(), finished))
}

#[tokio::test]
async fn a_command_is_no_child_of_the_askers_and_holds_none_of_its_descriptors() {
    let (near, _server) = serving();
    let host = ShellHost::new(near).unwrap();
    let (text, finished) =
        sh(&host, "ls -l /proc/self/fd | grep -c socket; echo $?").await.unwrap();
    assert_eq!(text, "0\n1\n");
    assert!(matches!(finished.ended, Ended::Exited(status) if status.success()));
}

#[tokio::test]
async fn a_shell_host_that_has_ended_fails_the_call_and_says_so() {
    let (near, server) = serving();
    let host = ShellHost::new(near).unwrap();
    server.abort();
    let _ = server.await;
    let error = sh(&host, "echo x").await.unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
    assert_ne!(error.kind(), io::ErrorKind::NotFound, "no other shell is tried");
}

#[tokio::test]
async fn a_shell_host_that_ends_during_a_command_fails_the_call() {
    let (near, server) = serving();
    let host = ShellHost::new(near).unwrap();
    let call = sh(&host, "sleep 1000");
    tokio::pin!(call);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut call).await;
    assert!(early.is_err());
    server.abort();
    let error = call.await.unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
}

#[tokio::test]
async fn commands_end_with_the_channel() {
    let (near, server) = serving();
    let host = ShellHost::new(near).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let script = format!("echo $$ > {0}.part; mv {0}.part {0}; sleep 1000", file.display());
    let call = tokio::spawn(async move { sh(&host, &script).await });
    let pid = loop {
        if let Ok(text) = std::fs::read_to_string(&file) {
            break Pid::from_raw(text.trim().parse().unwrap()).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    call.abort();
    let _ = call.await;
    server.await.unwrap().unwrap();
    // Reaped by the server's runtime or on its way to be; a group that was signalled is gone soon.
    let gone = async {
        while test_kill_process(pid).is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("the command is gone");
}

/// A raw asker: the socket and the reading end of the output.
async fn ask(channel: &Channel, word: u8) -> (UnixStream, io::PipeReader) {
    let (ours, theirs) = StdUnixStream::pair().unwrap();
    let (reader, writer) = io::pipe().unwrap();
    channel.send(&[word], &[theirs.as_fd(), writer.as_fd()]).await.unwrap();
    ours.set_nonblocking(true).unwrap();
    (UnixStream::from_std(ours).unwrap(), reader)
}

/// What is answered until the end.
async fn answer(socket: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _reset = socket.read_to_end(&mut bytes).await;
    bytes
}

#[tokio::test]
async fn nonsense_is_dropped_and_the_next_command_runs() {
    let (near, server) = serving();
    let channel = Channel::new(near.try_clone().unwrap()).unwrap();
    let host = ShellHost::new(near).unwrap();
    // Another word, none or too few descriptors, an overlong message.
    assert_eq!(answer(&mut ask(&channel, b'?').await.0).await, b"");
    channel.send(&[COMMAND], &[]).await.unwrap();
    channel.send(&[COMMAND; 100], &[]).await.unwrap();
    // A length over the bound, a request that is none, one that ends early.
    for bytes in [
        u32::try_from(HOSTED_REQUEST_BYTES_MAX + 1).unwrap().to_le_bytes().to_vec(),
        [&4u32.to_le_bytes()[..], b"nope"].concat(),
        100u32.to_le_bytes().to_vec(),
    ] {
        let (mut socket, _output) = ask(&channel, COMMAND).await;
        socket.write_all(&bytes).await.unwrap();
        socket.shutdown().await.unwrap();
        assert_eq!(answer(&mut socket).await, b"", "{bytes:?}");
    }
    assert_eq!(sh(&host, "echo on").await.unwrap().0, "on\n");
    drop((channel, host));
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn commands_over_the_bound_are_dropped_and_the_rest_goes_on() {
    let (near, _server) = serving();
    let channel = Channel::new(near.try_clone().unwrap()).unwrap();
    let host = ShellHost::new(near).unwrap();
    // Askers that never say what they want.
    let mut silent = Vec::new();
    for _ in 0..HOSTED_COMMANDS_MAX {
        silent.push(ask(&channel, COMMAND).await);
    }
    assert_eq!(answer(&mut ask(&channel, COMMAND).await.0).await, b"");
    let error = sh(&host, "echo x").await.unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
    drop(silent.pop());
    while sh(&host, "echo x").await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
