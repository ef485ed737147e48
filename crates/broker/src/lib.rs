//! Host end of the link: egress decisions, dialling, model gateway with metering.
//!
//! Everything that arrives here comes from a hostile guest. This room decides by the policy that
//! it was given, dials only what a permit names, and adds credentials on the way out. It must never
//! touch the ledger (facts go through [`log::BrokerLog`]), never log a secret, and never hand a
//! credential to the guest.

pub mod egress;
pub mod gateway;
pub mod log;
pub mod secret;
pub mod token;

pub use log::BrokerLog;
pub use secret::Secret;
pub use token::{RunToken, ShellWay, Tokens};
