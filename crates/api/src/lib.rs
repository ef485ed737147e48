//! The local service: one process that owns the runs of a data directory and offers them over HTTP.
//!
//! Every route comes from one definition (`endpoint`), which is at once the handler, the
//! authorisation row and the entry of the OpenAPI document. It must never serve a request whose host,
//! origin, content type and token it has not checked, never put a lasting secret into a URL, and
//! never be reachable from a sandbox.

mod access;
mod client;
mod dispatch;
mod endpoint;
mod error;
mod guard;
mod lock;
mod openapi;
mod place;
mod problem;
mod routes;
mod secrets;
mod server;
mod service;
mod stream;
mod types;

#[cfg(test)]
mod tests;

pub use access::Role;
pub use client::{Client, ClientError, Events, Told};
pub use error::ServeError;
pub use lock::ServiceLock;
pub use openapi::document;
pub use place::Place;
pub use server::{Bound, DEFAULT_PORT, ServeOptions, Server};
pub use service::Environment;
pub use types::*;
