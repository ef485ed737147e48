//! What a run is: typed ids, specification, states, events, budgets, record and verdict.
//!
//! This room is pure. It never does I/O, never reads a clock, never draws a random number and
//! never waits: time arrives inside events, ids are minted by the caller from bytes it drew.

#![warn(clippy::wildcard_enum_match_arm)]

pub mod actor;
pub mod approval;
pub mod cron;
pub mod delegate;
pub mod engine;
pub mod event;
pub mod fact;
#[cfg(test)]
mod fixtures;
pub mod ids;
pub mod judge;
pub mod limits;
pub mod posture;
pub mod project;
pub mod record;
pub mod retry;
pub mod schedule;
pub mod spec;
pub mod state;
pub mod step;
pub mod task;
pub mod trigger;
pub mod verdict;

pub use actor::{Actor, Decider};
pub use engine::EngineKind;
pub use event::{Action, RunEvent};
pub use fact::{Fact, StopCause};
pub use ids::{
    AgentId, ApprovalId, Digest, InstanceId, ObjectId, PolicyId, ProjectId, RunId, ScheduleId,
    TaskId, ThreadId, TimestampMs,
};
pub use judge::judge;
pub use limits::Budgets;
pub use record::{Record, record_schema, seal, verify};
pub use spec::RunSpec;
pub use state::{Ask, CancelRequest, Due, Exit, Lease, Run, State, StateName, Wait, Waker};
pub use step::{StepError, step};
pub use task::Task;
pub use verdict::{Cause, Outcome, Verdict, Warning};
