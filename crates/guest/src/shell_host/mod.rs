//! The shell host: a second process of the sandbox, in a network namespace of its own, that starts
//! the commands of the built-in agent. It is made by the launcher together with the supervisor, and
//! everything but the network is the same for both.
//!
//! Never starts a command before the supervisor has given it the agent's channel, never listens unless
//! told to, and keeps no way to the supervisor once it serves the agent.

pub(crate) mod meet;

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;

use cofferdam_agent::shell_host::fds::{self, Channel};
use cofferdam_agent::shell_host::serve;
use cofferdam_wire::layout;

use crate::harden;
use crate::log;
use crate::places::Places;
use crate::untouchable::{self, Untouchable};

/// The supervisor's word: whether to listen, on which port in two bytes, little-endian, and which
/// threads are not a command's to touch. It comes with the shell host's end of the agent's channel.
const WORD_BYTES: usize = 3 + untouchable::BYTES;
const LISTEN: u8 = b'l';
const QUIET: u8 = b'q';

/// The shell host's answer: it serves the agent. It comes with the listening socket where one was
/// asked for.
const SERVING: u8 = b's';

/// The shell host's whole life.
pub(crate) fn main(places: &Places) -> ExitCode {
    let outcome = fds::inherited(layout::SHELL_FD)
        .map_err(|error| format!("no supervisor at descriptor {}: {error}", layout::SHELL_FD))
        .and_then(|supervisor| {
            harden::shell_host(&places.writable);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(|e| format!("no runtime: {e}"))?.block_on(run(supervisor))
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::line(&format!("shell host: {error}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(supervisor: OwnedFd) -> Result<(), String> {
    let told = |error: std::io::Error| format!("the supervisor: {error}");
    let supervisor = Channel::new(supervisor).map_err(told)?;
    let mut word = [0; WORD_BYTES];
    let Some((WORD_BYTES, descriptors)) = supervisor.receive(&mut word).await.map_err(told)? else {
        // A run without an agent that needs it.
        return Ok(());
    };
    let Ok([agent]) = <[OwnedFd; 1]>::try_from(descriptors) else {
        return Err("the supervisor gave no channel".to_owned());
    };
    let (head, others) = word.split_first_chunk::<3>().ok_or("the supervisor's word is short")?;
    // One thread until here; those that come later, and all commands, get it from this one.
    let others = others.try_into().map_err(|_| "the supervisor's word is short")?;
    let installed = Untouchable::from_bytes(others).filter().install();
    installed.map_err(|e| format!("the filter of commands: {e}"))?;
    let listener = match *head {
        [LISTEN, port @ ..] => {
            let address = (Ipv4Addr::LOCALHOST, u16::from_le_bytes(port));
            Some(TcpListener::bind(address).map_err(|e| format!("the proxy port: {e}"))?)
        }
        _ => None,
    };
    let descriptors: Vec<_> = listener.iter().map(|listener| listener.as_fd()).collect();
    supervisor.send(&[SERVING], &descriptors).await.map_err(told)?;
    // Connections are the supervisor's to accept from here on.
    drop((listener, supervisor));
    serve(agent).await.map_err(|e| format!("the agent's channel: {e}"))
}
