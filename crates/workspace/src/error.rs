//! Why a checkout cannot be used, snapshotted or compared: with codes and ways out.

use std::path::PathBuf;

use cofferdam_git::{GitError, escape};

/// Errors of opening, snapshotting and diffing a checkout.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// Git itself.
    #[error(transparent)]
    Git(#[from] GitError),
    /// An address of another machine.
    #[error("{0} is on another machine")]
    Remote(String),
    /// Nothing there.
    #[error("{} does not exist", escape::path(.0))]
    NotFound(PathBuf),
    /// A file.
    #[error("{} is not a directory", escape::path(.0))]
    NotADirectory(PathBuf),
    /// No repository around it.
    #[error("{} is not in a git repository", escape::path(.0))]
    NotARepository(PathBuf),
    /// A repository without a working tree.
    #[error("{} is a bare repository: it has no files to work on", escape::path(.0))]
    Bare(PathBuf),
    /// Inside `.git`.
    #[error("{} is inside a .git directory", escape::path(.0))]
    InsideGitDir(PathBuf),
    /// Owned by somebody else.
    #[error("{} belongs to another user, and git does not trust it", escape::path(.0))]
    DubiousOwnership(PathBuf),
    /// No commit yet.
    #[error("{} has no commit yet", escape::path(.0))]
    Unborn(PathBuf),
    /// Files could not be read into the snapshot.
    #[error("the uncommitted files could not be read")]
    Stage(#[source] GitError),
    /// History cannot be packed, since objects are not there.
    #[error("the repository lacks objects of its own history (a partial clone)")]
    PartialClone(#[source] GitError),
    /// A temporary place could not be used.
    #[error("{} could not be {what}", escape::path(path))]
    Io {
        /// `created`, `read`, …
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The run has no commits here.
    #[error("run {0} has brought no commits back to this repository")]
    NoSuchRun(String),
    /// The base that the caller named is not here.
    #[error("commit {0} is not in this repository")]
    NoSuchCommit(String),
}

impl WorkspaceError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { what, path: path.into(), source }
    }

    /// Stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Git(error) => error.code(),
            Self::Remote(_) => "WORK-001",
            Self::NotFound(_) => "WORK-002",
            Self::NotADirectory(_) => "WORK-003",
            Self::NotARepository(_) => "WORK-004",
            Self::Bare(_) => "WORK-005",
            Self::InsideGitDir(_) => "WORK-006",
            Self::DubiousOwnership(_) => "WORK-007",
            Self::Unborn(_) => "WORK-008",
            Self::Stage(_) => "WORK-009",
            Self::PartialClone(_) => "WORK-010",
            Self::Io { .. } => "WORK-011",
            Self::NoSuchRun(_) => "WORK-012",
            Self::NoSuchCommit(_) => "WORK-013",
        }
    }

    /// The way out, one sentence.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Git(error) => error.hint().to_owned(),
            Self::Remote(_) => "run Cofferdam on the machine that has the checkout, or clone it \
                here first; write a local directory with a colon in its name as ./NAME"
                .to_owned(),
            Self::NotFound(_) | Self::NotADirectory(_) => {
                "name the directory of a git checkout on this machine".to_owned()
            }
            Self::NotARepository(path) => format!(
                "make it one: git init && git add -A && git commit -m start (in {})",
                escape::path(path)
            ),
            Self::Bare(_) => "name a checkout of it: git worktree add DIRECTORY".to_owned(),
            Self::InsideGitDir(_) => "name the directory above .git".to_owned(),
            Self::DubiousOwnership(path) => format!(
                "when you trust its owner: git config --global --add safe.directory {}",
                escape::path(path)
            ),
            Self::Unborn(_) => "make a first commit: git add -A && git commit -m start".to_owned(),
            Self::Stage(_) => {
                "make the named files readable, or list them in .gitignore".to_owned()
            }
            Self::PartialClone(_) => "fetch the rest: git fetch --refetch --no-filter".to_owned(),
            Self::Io { .. } => "check permissions and free space there".to_owned(),
            Self::NoSuchRun(_) => "cofferdam show RUN tells what became of its commits".to_owned(),
            Self::NoSuchCommit(_) => "fetch or restore that commit first".to_owned(),
        }
    }
}
