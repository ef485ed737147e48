//! Sandboxes: one hardening specification and the engines that apply it, read it back and remove it.
//!
//! The order is fixed by types: an [`Engine`] prepares, [`Prepared`] can only be started or torn
//! down, and only a [`Running`] sandbox has streams. This room never decides policy: it reports layer
//! by layer what holds, and the caller decides whether that is enough.

mod disarm;
pub mod docker;
pub mod engine;
pub mod error;
pub mod native;
pub mod posture;
pub mod seccomp;
pub mod spec;
mod syscalls;
mod tree;
pub mod volume;

pub use disarm::{GIT_RENAMED, MAX_DISARM_ENTRIES};
pub use engine::{
    Control, Engine, EngineReport, Evidence, Found, Prepared, Problem, RootSource, Running,
    SandboxExit, SandboxSpec,
};
pub use error::SandboxError;
pub use posture::evaluate;
pub use tree::{WALK_DEPTH, remove as remove_tree};
pub use volume::{Stop, WorkUse};
