//! The shell host: a process that starts the agent's commands in its stead, in a network namespace of
//! their own.
//!
//! The agent holds one end of a channel. For each command it sends the ends of a socket and of an
//! output pipe over it; the socket carries the request, then what becomes of the command, and its end
//! is the command's end. So nothing of a call outlives the call, whoever of the two dies first. The
//! shell host must never start anything that the channel did not ask for, nor hand its channel down to
//! what it starts.

mod client;
pub mod fds;
mod server;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(crate) use client::{Hosted, ShellHost};
pub use server::serve;

/// What travels over the channel, beside the two descriptors.
const COMMAND: u8 = b'c';

/// Asks for SIGTERM to the command's group. Its SIGKILL is the end of the socket.
const TERMINATE: u8 = b't';

/// The command runs; the value has no meaning.
const STARTED: u8 = b's';
/// The command could not be started; the value is an error number.
const NOT_STARTED: u8 = b'e';
/// The command has ended and its group with it; the value is the status as `wait` gives it.
const ENDED: u8 = b'x';

/// A tag and a number, little-endian.
const FRAME_BYTES: usize = 5;

/// One command, as JSON behind its length in four bytes, little-endian. Texts of the operating system
/// are bytes.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    program: String,
    args: Vec<Vec<u8>>,
    cwd: Vec<u8>,
    env: BTreeMap<String, String>,
    with_stderr: bool,
}
