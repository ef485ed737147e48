//! The egress door from outside: vectors, attacks on its parser, its clocks, caps and accounts.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod accounts;
mod cases;
mod destinations;
mod forwarding;
mod link;
mod noise;
mod parsing;
mod principals;
mod support;
mod timers;
mod vectors;
mod wall;
