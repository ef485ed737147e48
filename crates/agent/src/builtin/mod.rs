//! The built-in agent: one model, one loop, a handful of tools.
//!
//! [`run`] is the whole agent as a function; [`run_stdio`] is it as a process. Must never end well
//! without the model having said so, nor lose the reason why it ended otherwise.

mod config;
mod event;
mod outcome;
mod progress;
mod prompt;
mod run;
mod stdio;
mod tuning;

pub use config::BuiltinConfig;
pub use event::{Event, EventKind, Sink};
pub use outcome::{AgentOutcome, Failure};
pub use run::{run, run_with};
pub use stdio::run_stdio;
pub use tuning::Tuning;
