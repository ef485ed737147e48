//! What a person should know about a snapshot although it succeeded.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One remark. Paths are escaped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum SnapshotNote {
    /// A merge, rebase or the like was going on; its state does not travel, conflicted files travel
    /// as they are.
    InProgress {
        /// `merge`, `rebase`, …
        what: String,
    },
    /// The history is cut (a shallow clone): the snapshot travels as a commit without parents.
    Shallow,
    /// A submodule travels as the commit that the index names, without its files.
    Submodule {
        /// Where.
        path: String,
        /// It has uncommitted changes, or stands on another commit than the index names: these do
        /// not travel.
        changed: bool,
    },
    /// A repository inside the checkout that is no submodule does not travel.
    NestedRepository {
        /// Where.
        path: String,
    },
    /// Content filters that the person's configuration defines were not run.
    FiltersOff {
        /// Their names.
        names: Vec<String>,
    },
    /// More remarks of a kind than are kept.
    More {
        /// How many.
        count: u64,
    },
}

impl fmt::Display for SnapshotNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InProgress { what } => {
                write!(
                    f,
                    "a {what} is in progress: its files travel as they are, its state does not"
                )
            }
            Self::Shallow => f.write_str("shallow clone: the snapshot travels without its history"),
            Self::Submodule { path, changed: false } => {
                write!(f, "submodule {path}: its files do not travel")
            }
            Self::Submodule { path, changed: true } => {
                write!(f, "submodule {path}: its files and its uncommitted changes do not travel")
            }
            Self::NestedRepository { path } => {
                write!(f, "{path} is a repository of its own and does not travel")
            }
            Self::FiltersOff { names } => {
                write!(f, "content filters were not run: {}", names.join(", "))
            }
            Self::More { count } => write!(f, "and {count} more remarks of this kind"),
        }
    }
}
