//! The egress door: a strict HTTP/1.1 proxy front for one run.
//!
//! It takes byte streams from the guest and opens connections for what the run's rules admit. It
//! must never be asked for anything else: it keeps no cache, follows no redirect, adds no
//! credential and speaks no TLS of its own.

mod account;
mod body;
pub mod check;
mod connection;
mod door;
mod forward;
#[doc(hidden)]
pub mod fuzzing;
mod head;
mod hello;
pub mod limits;
mod net;
mod relay;
mod reply;
mod request;
mod response;
pub mod review;
mod wall;

pub use account::BYTES_OUT_BUDGET;
pub use door::{EgressConfig, EgressDoor};
pub use limits::Limits;
pub use net::{BoxStream, Dialler, ResolveError, Resolver, Stream, SystemResolver, TcpDialler};
pub use reply::REFUSAL_HEADER;
pub use wall::WallSeen;
