//! What can go wrong with the ledger, with a stable code and a way out for each.
//!
//! Losing a race is not here: see [`crate::store::Lost`].

use std::path::PathBuf;

use cofferdam_run::RunId;

/// A failure of the ledger. Unless it says otherwise nothing was changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LedgerError {
    /// The data directory or the database file cannot be made, opened or protected.
    #[error("cannot open the ledger at {path}: {detail}")]
    Open {
        /// Directory or file.
        path: PathBuf,
        /// What the system says.
        detail: String,
    },
    /// Written by a newer version.
    #[error("the ledger at {path} has format {found}; this version knows formats up to {known}")]
    Newer {
        /// The database file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest format known here.
        known: i64,
    },
    /// A stored value cannot be what it is.
    #[error("the ledger holds a value that it cannot hold: {what}")]
    Corrupt {
        /// Which value of what, and why not.
        what: String,
    },
    /// The disk is full.
    #[error("the disk that holds the ledger is full")]
    DiskFull,
    /// Another process holds the write lock and does not let go.
    #[error("another process has held the ledger's write lock for two minutes")]
    Stuck,
    /// No such run.
    #[error("there is no run {id}")]
    NoSuchRun {
        /// The id or prefix.
        id: String,
    },
    /// Nothing of that kind has that id.
    #[error("there is no {kind} {id}")]
    NotFound {
        /// What was looked for.
        kind: &'static str,
        /// Its id.
        id: String,
    },
    /// The disk is another machine's, or is not kept by the kernel.
    #[error("the data directory {path} is on {kind}, where SQLite cannot keep its promises")]
    NotLocal {
        /// The directory.
        path: PathBuf,
        /// What it is on.
        kind: &'static str,
    },
    /// Opened for reading only.
    #[error("the ledger was opened for reading only")]
    ReadOnly,
    /// The format could not be changed.
    #[error("the ledger could not be brought from format {from} to {to}: {detail}")]
    Migration {
        /// The format that it still has.
        from: i64,
        /// The format that it should have got.
        to: i64,
        /// Why not.
        detail: String,
    },
    /// More than one run begins like that.
    #[error("{prefix} names several runs: {}", candidates.join(", "))]
    Ambiguous {
        /// The prefix.
        prefix: String,
        /// Some of them, newest first.
        candidates: Vec<String>,
    },
    /// The id is taken.
    #[error("there is a run {id} already")]
    Exists {
        /// The id.
        id: RunId,
    },
    /// A bound is passed.
    #[error("{what} is {size}; at most {limit} fit")]
    TooLarge {
        /// What.
        what: &'static str,
        /// Its size.
        size: u64,
        /// The bound, in the same unit.
        limit: u64,
    },
    /// The database refused for another reason.
    #[error("the ledger's database failed: {detail}")]
    Database {
        /// What it says.
        detail: String,
    },
    /// The ledger was closed, or its writer ended.
    #[error("the ledger is closed")]
    Closed,
    /// A caller's mistake.
    #[error("the ledger was asked for something it does not do: {what}")]
    Misuse {
        /// What.
        what: &'static str,
    },
}

impl LedgerError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Open { .. } => "LEDGER-001",
            Self::Newer { .. } => "LEDGER-002",
            Self::Corrupt { .. } => "LEDGER-003",
            Self::DiskFull => "LEDGER-004",
            Self::Stuck => "LEDGER-005",
            Self::NoSuchRun { .. } => "LEDGER-006",
            Self::Ambiguous { .. } => "LEDGER-007",
            Self::Exists { .. } => "LEDGER-008",
            Self::Database { .. } => "LEDGER-009",
            Self::TooLarge { .. } => "LEDGER-010",
            Self::Closed => "LEDGER-011",
            Self::Misuse { .. } => "LEDGER-012",
            Self::NotFound { .. } => "LEDGER-013",
            Self::NotLocal { .. } => "LEDGER-014",
            Self::ReadOnly => "LEDGER-015",
            Self::Migration { .. } => "LEDGER-016",
        }
    }

    /// What a person can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Open { .. } => {
                "check that the data directory belongs to you and is on a local, writable disk"
            }
            Self::Newer { .. } => "use the version of cofferdam that wrote it, or a newer one",
            Self::Corrupt { .. } => {
                "keep a copy of the data directory, restore a backup, and report this"
            }
            Self::DiskFull => "free some space; nothing that was confirmed is lost",
            Self::Stuck => "look for a stopped cofferdam process (`ps`), and end it",
            Self::NoSuchRun { .. } => "`cofferdam ps -n 100` lists the runs of this data directory",
            Self::Ambiguous { .. } => "give more characters of the id",
            Self::Exists { .. } => "try again",
            Self::TooLarge { .. } => "make it smaller; docs/limits.md lists the bounds",
            Self::Database { .. } => "check the disk and the file system's mount state",
            Self::Closed => "start the command again",
            Self::NotFound { .. } => "look at the list; nothing with an id is ever deleted",
            Self::NotLocal { .. } => "use a directory on a local disk: `--data-dir DIR`",
            Self::ReadOnly => "use the version of cofferdam that wrote it, or a newer one",
            Self::Migration { .. } => {
                "nothing was changed; free some space and check the disk, then start it again"
            }
            Self::Misuse { .. } => "this is a mistake in cofferdam: please report it",
        }
    }
}
