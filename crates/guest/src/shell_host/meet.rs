//! The supervisor's side: one exchange with the shell host before the agent starts.
//!
//! Never goes on without an answer, and never takes more from the shell host than one listening
//! socket.

use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::fd::{AsFd as _, OwnedFd};

use cofferdam_agent::shell_host::fds::{self, Channel};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::{LISTEN, QUIET, SERVING, WORD_BYTES};
use crate::limits::MEET_SHELL_HOST;
use crate::untouchable::Untouchable;

/// What came of it.
#[derive(Debug)]
pub(crate) struct Met {
    /// The agent's end of its channel.
    pub(crate) agent: OwnedFd,
    /// The proxy port in the shell's network namespace.
    pub(crate) proxy: Option<TcpListener>,
    /// Kept so that its number, which the agent's channel gets in the agent, is nothing else's here.
    number: Channel,
}

impl Met {
    /// The agent's end, and what is to be kept until the agent has it.
    pub(crate) fn into_channel(self) -> (OwnedFd, Channel) {
        (self.agent, self.number)
    }
}

/// Gives the shell host its end of the agent's channel, and asks it to listen on `port` (zero lets the
/// kernel choose) unless that is `None`.
pub(crate) async fn meet(shell_host: OwnedFd, port: Option<u16>) -> Result<Met, String> {
    let exchange = async {
        let channel = Channel::new(shell_host)?;
        let (agent, theirs) = fds::pair()?;
        let [low, high] = port.unwrap_or(0).to_le_bytes();
        let mut word = [0; WORD_BYTES];
        let (head, others) = word.split_at_mut(3);
        head.copy_from_slice(&[if port.is_some() { LISTEN } else { QUIET }, low, high]);
        others.copy_from_slice(&Untouchable::here()?.to_bytes());
        channel.send(&word, &[theirs.as_fd()]).await?;
        drop(theirs);
        let mut answer = [0; 1];
        let got = channel.receive(&mut answer).await?;
        let Some((_, descriptors)) = got.filter(|_| answer == [SERVING]) else {
            return Err(io::Error::other("it has ended"));
        };
        let proxy = match (port, <[OwnedFd; 1]>::try_from(descriptors)) {
            (Some(_), Ok([listener])) => Some(listen(listener)?),
            (None, Err(none)) if none.is_empty() => None,
            _ => return Err(io::Error::other("it does not listen as it should")),
        };
        Ok(Met { agent, proxy, number: channel })
    };
    match timeout(MEET_SHELL_HOST, exchange).await {
        Ok(met) => met.map_err(|error| format!("the shell host: {error}")),
        Err(_) => Err("the shell host does not answer".to_owned()),
    }
}

fn listen(socket: OwnedFd) -> io::Result<TcpListener> {
    let listener = StdTcpListener::from(socket);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}
