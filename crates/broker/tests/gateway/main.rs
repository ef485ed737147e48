//! The model gateway over real sockets, against the scripted model server in every dialect.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod budgets;
mod carry;
mod cases;
mod ending;
mod faults;
mod refuse;
mod secrecy;
mod support;
mod tls;
