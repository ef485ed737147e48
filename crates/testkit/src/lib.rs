//! Test tools: a scripted model server that speaks the four provider dialects over real sockets, and a
//! proxy that makes an engine fail call by call.
//!
//! Never shipped, never a dependency of a shipped crate, and never reachable from another machine:
//! everything binds loopback.

pub mod engine_proxy;
pub mod model;
#[cfg(feature = "simulation")]
pub mod simulation;
