//! What the conformance suite stands on: the engine under test, a bed to run sandboxes in, what each
//! engine is known to give, and notes of what was seen.
//!
//! The suite speaks to `dyn Engine` only. A missing engine is a failure, never a skip; what an engine is
//! known not to give is said in [`under`], in one place, and never in a test.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

pub mod bed;
pub mod note;
pub mod under;

pub use bed::{Bed, PATIENCE, Ran, small};
pub use under::Under;
