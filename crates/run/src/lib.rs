//! What a run is: typed ids, specification, states, events, budgets, record and verdict.
//!
//! This room is pure. It never does I/O, never reads a clock, never draws a random number and
//! never waits: time arrives inside events, ids are minted by the caller from bytes it drew.

pub mod engine;
pub mod fact;
pub mod ids;
pub mod limits;
pub mod posture;
pub mod spec;

pub use engine::EngineKind;
pub use fact::{Fact, StopCause};
pub use ids::{Digest, InstanceId, ObjectId, RunId, TimestampMs};
pub use limits::Budgets;
pub use spec::RunSpec;
