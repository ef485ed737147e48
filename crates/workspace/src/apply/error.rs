//! Why a run's commits were not applied. In every case but [`ApplyError::Interrupted`] the checkout is
//! as it was.

use std::path::PathBuf;

use cofferdam_git::{GitError, escape};

use crate::error::WorkspaceError;

/// A refused or failed apply. Paths and subjects are escaped.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The checkout, the run's ref, or git.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// Another apply works on this repository.
    #[error("another apply is working on this repository")]
    Busy,
    /// Git's own lock of the index is taken.
    #[error("another git command holds {}", escape::path(.0))]
    IndexLocked(PathBuf),
    /// In the middle of something.
    #[error("a {0} is in progress in this checkout")]
    InProgress(&'static str),
    /// Unmerged paths in the index.
    #[error("the index has unmerged paths")]
    Unmerged,
    /// A commit does not fit.
    #[error("{commit} does not apply: conflicts in {}", files.join(", "))]
    Conflict {
        /// Its subject.
        commit: String,
        /// At most 20 files.
        files: Vec<String>,
    },
    /// The person's uncommitted changes and the run's are at odds.
    #[error("uncommitted changes are in the way in {}", files.join(", "))]
    Dirty {
        /// At most 20 files.
        files: Vec<String>,
    },
    /// Files that git ignores or does not know would be overwritten.
    #[error("files that are not in git would be overwritten: {}", files.join(", "))]
    WouldOverwrite {
        /// At most 20 files.
        files: Vec<String>,
    },
    /// Something changed the checkout meanwhile.
    #[error("the checkout changed while the commits were being applied")]
    Moved,
    /// The branch exists or its name is not acceptable.
    #[error("branch {name}: {why}")]
    Branch {
        /// Its name.
        name: String,
        /// Why not.
        why: &'static str,
    },
    /// Files were partly changed and could not be put back.
    #[error("files could not be written, and not all could be put back: {}", files.join(", "))]
    Interrupted {
        /// At most 20 files.
        files: Vec<String>,
        /// The first failure.
        #[source]
        source: GitError,
    },
    /// Files could not be written; all were put back.
    #[error("files could not be written; the checkout is as it was")]
    NotWritten(#[source] GitError),
}

impl From<GitError> for ApplyError {
    fn from(error: GitError) -> Self {
        Self::Workspace(error.into())
    }
}

impl ApplyError {
    /// Stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Workspace(error) => error.code(),
            Self::Busy => "WORK-201",
            Self::IndexLocked(_) => "WORK-202",
            Self::InProgress(_) => "WORK-203",
            Self::Unmerged => "WORK-204",
            Self::Conflict { .. } => "WORK-205",
            Self::Dirty { .. } => "WORK-206",
            Self::WouldOverwrite { .. } => "WORK-207",
            Self::Moved => "WORK-208",
            Self::Branch { .. } => "WORK-209",
            Self::Interrupted { .. } => "WORK-210",
            Self::NotWritten(_) => "WORK-211",
        }
    }

    /// The way out, one sentence.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Workspace(error) => error.hint(),
            Self::Busy | Self::Moved => "try again".to_owned(),
            Self::IndexLocked(path) => format!(
                "wait for it, or remove {} when no git command runs in this checkout",
                escape::path(path)
            ),
            Self::InProgress(what) => {
                format!("finish or abort it first: git {what} --continue or --abort")
            }
            Self::Unmerged => "resolve and git add them first".to_owned(),
            Self::Conflict { .. } => "commit your own uncommitted changes first, if the files named \
                have any; else take the commits as a branch (cofferdam apply RUN --as-branch NAME) and merge"
                .to_owned(),
            Self::Dirty { .. } => {
                "commit these files (git add FILE…; git commit), or move them away, then apply again"
                    .to_owned()
            }
            Self::WouldOverwrite { .. } => "move or rename these files, then apply again".to_owned(),
            Self::Branch { .. } => "choose another name".to_owned(),
            Self::Interrupted { .. } => {
                "compare with git status; your HEAD and index are as before".to_owned()
            }
            Self::NotWritten(_) => "check permissions and free space, then apply again".to_owned(),
        }
    }
}
