//! The built-in agent against the scripted model server: real sockets, real git, real commands.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod fixture;
mod limits;
mod task;
