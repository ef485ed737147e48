//! Repositories on the host, with real git in temporary directories and an isolated home.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test where it breaks")]

mod apply;
mod checkout;
mod diff;
mod hostile;
mod import;
mod snapshot;
mod support;
