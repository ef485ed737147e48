//! A scripted model server: real HTTP/1.1 on loopback, real streaming, no model.
//!
//! It answers by turn number, which it reads from the conversation itself, so that a retry of a
//! request gets the same answer. It refuses malformed conversations as a provider would, so that a
//! client that passes here has a chance there. It must never bind anything but loopback.

mod anthropic;
mod chat;
mod conversation;
mod gemini;
mod responses;
mod script;
mod server;
mod stream;

pub use script::{Fault, Script, ScriptError, ToolUse, Turn, Usage};
pub use server::{Ended, MAX_REQUEST_BYTES, ModelServer, Recorded};
