//! Attempts to break out of a sandbox: one table, which an attacker program walks inside, the test
//! suite judges from outside, and `cargo xtask security-table` writes into `SECURITY.md`.
//!
//! An attempt never harms the machine when it gets through: it opens and does not write, asks and
//! does not act, and is bounded in time and count. It runs inside sandboxes that a test made.
#![expect(
    unsafe_code,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an attacker makes raw system calls, prints what came of them, and uses what it finds"
)]

pub mod attack;
pub mod outcome;
pub mod promise;
pub mod runner;
pub mod table;

pub use outcome::{Outcome, Twin};
pub use promise::Promise;
pub use table::{Attempt, Place, all};
