//! Repositories on the host, with real git in temporary directories and an isolated home.

mod apply;
mod checkout;
mod diff;
mod hostile;
mod import;
mod snapshot;
mod support;
