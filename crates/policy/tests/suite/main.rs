//! Facts about the policy room: tables of inputs with their expected readings, and properties.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod authority;
mod destination;
mod properties;
mod rules;
mod services;
