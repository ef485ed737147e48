//! The built-in agent (model loop, tools, plan) and the drivers that say how agents are started.
//!
//! This room runs inside the sandbox, next to text from models and repositories. It must never hold
//! a real credential, never widen what the sandbox allows, and never trust a byte of what a model, a
//! tool or a file says: every such input is bounded (see [`limits`]) and parsed once.

pub mod builtin;
pub mod driver;
pub mod limits;

mod model;
mod process;
pub mod shell_host;
mod text;
mod tools;

pub use builtin::{AgentOutcome, BuiltinConfig, Event, EventKind, Sink, run, run_stdio};
