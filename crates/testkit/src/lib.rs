//! Test tools: a scripted model server that speaks the four provider dialects over real sockets.
//!
//! Never shipped, never a dependency of a shipped crate, and never reachable from another machine:
//! everything binds loopback.

pub mod model;
