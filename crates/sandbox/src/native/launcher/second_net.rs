//! The shell host's half: a second process of the sandbox, the same as the first in everything but the
//! network namespace, made while there is still the right to make one.
//!
//! It shares the first's Landlock domain, so that either can signal the other and neither anybody else.
//! It never executes anything before the host has looked at both and given the word, and never holds a
//! stream of the first's.

use std::fs::File;
use std::os::fd::OwnedFd;

use cofferdam_wire::layout;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::thread::UnshareFlags;
use seccompiler::BpfProgram;

use super::sys::{self, Forked};
use super::{Failure, Stage as _, child};
use crate::native::handoff::{
    EXIT_EXEC, EXIT_NO_WORD, EXIT_SETUP, GO, LaunchSpec, REPORT_BYTES, SecondNet,
};

/// The first process's end of the socket between the two.
#[derive(Debug)]
pub(super) struct ShellHost(OwnedFd);

/// Forks it off. The caller goes on as the first process.
pub(super) fn fork(
    spec: &LaunchSpec,
    second: &SecondNet,
    filters: &[BpfProgram],
) -> Result<ShellHost, Failure> {
    let (near, far) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .stage("make the shell host's socket")?;
    match sys::fork().stage("fork the shell host")? {
        Forked::Child => {
            drop(near);
            run(spec, second, filters, far)
        }
        Forked::Parent { .. } => Ok(ShellHost(near)),
    }
}

impl ShellHost {
    /// Waits until it is as far as this process. An end without a word is a failure.
    pub(super) fn await_ready(&self) -> Result<(), Failure> {
        let mut word = vec![0; REPORT_BYTES];
        let (length, _) = loop {
            match recv(&self.0, word.as_mut_slice(), RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                got => break got.stage("hear from the shell host")?,
            }
        };
        let said: Result<(), (String, String)> =
            serde_json::from_slice(&word[..length]).stage("understand the shell host")?;
        said.map_err(|(stage, detail)| Failure { stage: format!("shell host: {stage}"), detail })
    }

    /// Lets it go, and gives the socket to the program that this process executes next.
    pub(super) fn release(self) -> Result<(), Failure> {
        send(&self.0, &[GO], SendFlags::NOSIGNAL).stage("let the shell host go")?;
        sys::give(self.0, layout::SHELL_FD).stage("keep the shell host's socket")
    }
}

fn run(spec: &LaunchSpec, second: &SecondNet, filters: &[BpfProgram], socket: OwnedFd) -> ! {
    let prepared =
        prepare(spec, second, filters).map_err(|failure| (failure.stage, failure.detail));
    let word = serde_json::to_vec(&prepared).unwrap_or_default();
    if send(&socket, &word, SendFlags::NOSIGNAL).is_err() || prepared.is_err() {
        sys::exit_now(EXIT_SETUP);
    }
    let mut go = [0u8; 1];
    let told = loop {
        match recv(&socket, go.as_mut_slice(), RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            got => break matches!(got, Ok((1, _))) && go == [GO],
        }
    };
    if !told {
        sys::exit_now(EXIT_NO_WORD);
    }
    let error = match detach(socket) {
        Ok(()) => child::execute(&second.command).to_string(),
        Err(failure) => format!("{}: {}", failure.stage, failure.detail),
    };
    let text = format!("cofferdam-launch: no shell host: {error}\n");
    let _unread = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
    sys::exit_now(EXIT_EXEC)
}

fn prepare(spec: &LaunchSpec, second: &SecondNet, filters: &[BpfProgram]) -> Result<(), Failure> {
    rustix::process::setsid().stage("start a session")?;
    if !second.shared {
        sys::unshare(UnshareFlags::NEWNET).stage("make a network namespace")?;
        sys::loopback_up().stage("bring loopback up")?;
    }
    child::give_up(spec, filters, None).map(|_groups| ())
}

/// Lets go of the link, which is the first process's.
fn detach(socket: OwnedFd) -> Result<(), Failure> {
    let null = File::open("/dev/null").stage("open /dev/null")?;
    rustix::stdio::dup2_stdin(&null).stage("let go of standard input")?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr()).stage("let go of standard output")?;
    sys::give(socket, layout::SHELL_FD).stage("keep the socket")
}
