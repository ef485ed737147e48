//! The real guest binary as a process, with real git and the host's end of the link in the test.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failed step fails the test")]

mod endings;
mod exchange;
mod leftovers;
mod support;
