//! The versioned protocol between host and guest. Shapes only, no behaviour.
//!
//! The link carries typed streams. Each stream opens with one [`StreamOpen`] and then carries what
//! its variant says: JSON messages in length-delimited frames, or raw bytes.

pub mod guest;
pub mod layout;

pub use guest::{
    AgentEnd, AgentStart, Down, ErrorCode, GitIdentity, Manifest, ManifestRef, NOT_TAKEN,
    NOT_TAKEN_CHARS, OutputStream, PROTOCOL_VERSION, ShellStart, StartSpec, StreamOpen, Up,
    WallTest, WorkspaceSpec,
};
