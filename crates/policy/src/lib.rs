//! What may leave: egress rules, parsed authorities, destination vetting, permits.
//!
//! A destination goes through three values, each made only from the one before it:
//! [`Authority`] (what was asked for, parsed once) → [`NamePermit`] (a rule admits the name) →
//! [`DialPermit`] (each address was looked at). Only this room can make a permit, so code that
//! demands one cannot be reached around the rules.
//!
//! This room is pure: it must never do I/O, resolve a name, read a clock or know an engine, a
//! database or a protocol on the wire.

#![warn(clippy::wildcard_enum_match_arm)]

pub mod authority;
pub mod destination;
pub mod permit;
pub mod refusal;
pub mod rules;
pub mod services;

pub use authority::{Authority, AuthorityError, Host};
pub use destination::{Forbidden, forbidden};
pub use permit::{DialPermit, DialTarget, NamePermit};
pub use refusal::{Refusal, RefusalCode, Stage};
pub use rules::{EgressPolicy, Rule, RuleError};
pub use services::{Route, ServiceError, Services};
