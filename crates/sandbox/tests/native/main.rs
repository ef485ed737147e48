//! The native engine on the real kernel. Needs: root, cgroups, `/bin/sh` and `perl`.
//!
//! Everything hostile here runs inside a sandbox, and every sandbox is bounded and removed.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod harness;
mod isolation;
mod lifecycle;
mod limits;
mod ordinary_user;
mod second_net;
#[path = "../trap/mod.rs"]
mod trap;
