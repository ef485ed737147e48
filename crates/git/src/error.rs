//! What can go wrong with git itself, in words that carry subcommand, exit code and git's own reason.

use std::path::PathBuf;

use crate::environment::MIN_VERSION;

/// Why a git operation gave no result. `Display` never contains an unescaped byte of git's output.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// There is no `git` in any absolute directory of `PATH`.
    #[error("git is not installed, or not on PATH")]
    Missing,
    /// It is there, and older than what is needed.
    #[error("git {found} is too old: {}.{} or newer is needed", MIN_VERSION.0, MIN_VERSION.1)]
    TooOld {
        /// Version found.
        found: String,
    },
    /// The process could not be started or talked to.
    #[error("git {subcommand} could not be run in {}", crate::escape::path(directory))]
    Spawn {
        /// Which.
        subcommand: &'static str,
        /// Where.
        directory: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It ran longer than its bound and was killed with all that it had started.
    #[error("git {subcommand} was stopped after {seconds} s")]
    TimedOut {
        /// Which.
        subcommand: &'static str,
        /// The bound.
        seconds: u64,
    },
    /// It printed more than its bound and was killed.
    #[error("git {subcommand} printed more than {limit} bytes")]
    Overflow {
        /// Which.
        subcommand: &'static str,
        /// The bound.
        limit: usize,
    },
    /// It ended with an exit code that says failure, or by a signal.
    #[error("git {subcommand} failed ({}){}", ended(*code), reason(stderr))]
    Failed {
        /// Which.
        subcommand: &'static str,
        /// Exit code; `None` when a signal ended it.
        code: Option<i32>,
        /// First lines of its standard error, escaped.
        stderr: String,
    },
    /// It printed something that it never should.
    #[error("git {subcommand} answered something unexpected: {what}")]
    Unexpected {
        /// Which.
        subcommand: &'static str,
        /// What, escaped.
        what: String,
    },
    /// A repository given as a quarantine borrows objects from elsewhere.
    #[error("{} borrows objects from another repository", crate::escape::path(.0))]
    Alternates(PathBuf),
}

fn ended(code: Option<i32>) -> String {
    code.map_or_else(|| "by a signal".to_owned(), |c| format!("exit code {c}"))
}

fn reason(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!(": {stderr}") }
}

impl GitError {
    /// Stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing => "GIT-001",
            Self::TooOld { .. } => "GIT-002",
            Self::Spawn { .. } => "GIT-003",
            Self::TimedOut { .. } => "GIT-004",
            Self::Overflow { .. } => "GIT-005",
            Self::Failed { .. } => "GIT-006",
            Self::Unexpected { .. } => "GIT-007",
            Self::Alternates(_) => "GIT-008",
        }
    }

    /// The way out, one sentence.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Missing => "install git, for example with: apt-get install git",
            Self::TooOld { .. } => {
                "install a newer git, for example from your distribution's backports"
            }
            Self::Spawn { .. } => "check that the directory exists and that processes can start",
            Self::TimedOut { .. } => "check disk and load, then try again",
            Self::Overflow { .. } => "the repository is larger than what is supported here",
            Self::Failed { .. } => {
                "read git's own reason above; git fsck tells whether the repository is whole"
            }
            Self::Unexpected { .. } => "check which git is first on PATH",
            Self::Alternates(_) => "remove the directory: it was not made by Cofferdam",
        }
    }

    /// Git's own words, escaped, when it failed with some.
    #[must_use]
    pub fn stderr(&self) -> &str {
        match self {
            Self::Failed { stderr, .. } => stderr,
            Self::Missing
            | Self::TooOld { .. }
            | Self::Spawn { .. }
            | Self::TimedOut { .. }
            | Self::Overflow { .. }
            | Self::Unexpected { .. }
            | Self::Alternates(_) => "",
        }
    }
}
