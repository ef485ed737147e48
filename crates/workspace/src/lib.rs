//! Repositories on the host: open a checkout, snapshot it into a bundle, take a run's bundle back
//! through a quarantine, compare, apply.
//!
//! The person's repository is only ever changed in two places: [`import`] adds objects and
//! `refs/cofferdam/…`, [`apply`] moves the current branch with the person's word for it. Everything
//! that came out of a sandbox is hostile, also after it came back: it is parsed once, bounded, and
//! escaped before it is shown.
//!
//! It must never open an agent's `.git`; run a hook, filter, driver or anything else that an agent
//! could have written or selected; recurse into submodules; push; lose a bundle that it refused.

mod apply;
mod bundle;
mod checkout;
mod diff;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod import;
mod locate;
mod note;
mod objects;
mod paths;
mod risk;
mod scratch;
mod snapshot;
mod stage;
mod stale;

pub use apply::{Applied, ApplyError, ApplyRequest, apply};
pub use bundle::{MAX_BUNDLE_HEADER_BYTES, MAX_BUNDLE_REFS};
pub use checkout::{Checkout, InProgress};
pub use diff::{
    Change, Diff, DiffForm, DiffRequest, FileChange, MAX_DIFF_FILES, MAX_PATCH_BYTES, diff,
};
pub use error::WorkspaceError;
pub use import::{
    ImportError, ImportReason, ImportRequest, Imported, MAX_IMPORT_BLOB_BYTES,
    MAX_IMPORT_BUNDLE_BYTES, MAX_IMPORT_COMMITS, MAX_IMPORT_INFLATED_BYTES, MAX_IMPORT_OBJECTS,
    MAX_SUBJECT_CHARS, MAX_SUBJECTS, SideRef, import, imported, is_part_of_base,
};
pub use note::SnapshotNote;
pub use paths::PathFault;
pub use risk::Risk;
pub use snapshot::{BUNDLE_REF, Snapshot};
pub use stale::{STALE_LOCK_AGE, stale};

use cofferdam_run::RunId;

/// The ref in the person's repository under which a run's base is kept, the snapshot that it began
/// with.
#[must_use]
pub fn base_reference(run: &RunId) -> String {
    format!("refs/cofferdam/bases/{run}")
}

/// The ref in the person's repository under which a run's commits are kept.
#[must_use]
pub fn run_reference(run: &RunId) -> String {
    format!("refs/cofferdam/runs/{run}")
}
