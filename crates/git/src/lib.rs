//! The one launcher of git: scrubbed environment, safe configuration, bounds.
//!
//! Every git process of the host starts here. Three authorities exist as types, and an operation
//! asks for the one that it needs: [`Person`] (the person's own repository, with their own
//! configuration less everything that names a program), [`Quarantine`] (objects from a sandbox, with
//! nobody's configuration and no alternates) and [`Scratch`] (a bare repository of ours that borrows
//! the person's objects, with nobody's configuration).
//!
//! It must never run a shell, a hook, a filter, a driver, an editor, a pager or a prompt; never reach
//! the network; never be given a `.git` directory that an agent could have written; never wait
//! without a bound; never hold output without a bound.

pub mod authority;
pub mod call;
pub mod environment;
pub mod error;
pub mod escape;
mod process;

pub use authority::{Authority, Git, Person, Quarantine, Scratch};
pub use call::{Call, GitVar, Output};
pub use environment::{GitEnv, MIN_VERSION};
pub use error::GitError;
pub use process::{MAX_QUARANTINE_FILE_BYTES, MAX_QUARANTINE_MEMORY_BYTES};
