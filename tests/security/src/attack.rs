//! The attempts, by what they go against.

pub mod broker;
pub mod calls;
pub mod files;
pub mod identity;
pub mod limits;
pub mod network;
pub mod planted;
pub mod processes;
pub mod sockets;
pub mod supervisor;
mod twins;
