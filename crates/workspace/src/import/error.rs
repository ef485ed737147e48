//! Why a run's commits were not taken. Whatever the reason, the bundle stays where it is.

use std::path::PathBuf;

use cofferdam_git::{GitError, escape};

use crate::error::WorkspaceError;
use crate::paths::PathFault;

/// A refused import. `Display` is the whole reason, git's own words included; it does not name the
/// bundle, since the caller may keep it elsewhere.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct ImportError {
    /// Why.
    pub reason: ImportReason,
    /// The bundle, untouched.
    pub salvage: PathBuf,
}

/// Why. Texts from the bundle are escaped.
#[derive(Debug, thiserror::Error)]
pub enum ImportReason {
    /// Git itself.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The checkout.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// Beyond a limit.
    #[error("{what}: {found} is more than {limit}")]
    TooLarge {
        /// What.
        what: &'static str,
        /// As found.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// Not a bundle, or one that is not accepted.
    #[error("the bundle is not acceptable: {0}")]
    Bundle(String),
    /// Bundle and manifest differ.
    #[error("the bundle is not what the manifest says: {0}")]
    Manifest(String),
    /// It builds on commits that are not in the snapshot.
    #[error("the bundle builds on {0}, which the snapshot does not have")]
    Prerequisite(String),
    /// Git found its objects broken or malicious.
    #[error("the bundle's objects are damaged or refused: {0}")]
    Objects(GitError),
    /// A path.
    #[error("path {path} {fault}")]
    Path {
        /// Which, escaped.
        path: String,
        /// Why.
        fault: PathFault,
    },
    /// The snapshot's bundle cannot be read.
    #[error(
        "the snapshot that the run began with cannot be read from {}: {error}",
        escape::path(path)
    )]
    Base {
        /// Where it should be.
        path: PathBuf,
        /// Why.
        error: GitError,
    },
    /// The ref exists and holds something else.
    #[error("{reference} exists already, at {found}")]
    Taken {
        /// The ref.
        reference: String,
        /// Its object.
        found: String,
    },
    /// The person's repository did not take the objects.
    #[error("the checkout's repository did not take the objects: {0}")]
    HandOver(GitError),
}

impl ImportReason {
    pub(super) fn io(what: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Workspace(WorkspaceError::io(what, path, source))
    }
}

impl ImportError {
    /// Stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match &self.reason {
            ImportReason::Git(error) => error.code(),
            ImportReason::Workspace(error) => error.code(),
            ImportReason::TooLarge { .. } => "WORK-101",
            ImportReason::Bundle(_) => "WORK-102",
            ImportReason::Manifest(_) => "WORK-103",
            ImportReason::Prerequisite(_) => "WORK-104",
            ImportReason::Objects(_) => "WORK-105",
            ImportReason::Path { .. } => "WORK-106",
            ImportReason::Base { .. } => "WORK-107",
            ImportReason::Taken { .. } => "WORK-108",
            ImportReason::HandOver(_) => "WORK-109",
        }
    }

    /// The way out, one sentence.
    #[must_use]
    pub fn hint(&self) -> String {
        let bundle = escape::path(&self.salvage);
        match &self.reason {
            ImportReason::Git(error) => error.hint().to_owned(),
            ImportReason::Workspace(error) => error.hint(),
            ImportReason::HandOver(_) => {
                format!(
                    "check permissions and free space of the checkout's .git; the work is in {bundle}"
                )
            }
            ImportReason::Taken { reference, .. } => {
                format!(
                    "look at it with git log {reference}, and rename or delete it; the work is in {bundle}"
                )
            }
            ImportReason::TooLarge { .. }
            | ImportReason::Bundle(_)
            | ImportReason::Manifest(_)
            | ImportReason::Prerequisite(_)
            | ImportReason::Objects(_)
            | ImportReason::Path { .. }
            | ImportReason::Base { .. } => format!(
                "treat {bundle} as hostile: open it only in a sandbox, for example with git bundle \
                 list-heads"
            ),
        }
    }
}
