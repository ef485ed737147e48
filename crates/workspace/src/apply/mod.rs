//! Puts a run's commits onto the person's current branch.
//!
//! **The rule.** Three trees are computed before anything is touched, each a three-way merge without
//! any configuration, driver or filter:
//!
//! 1. the new `HEAD`: the run's commits picked onto `HEAD` one after the other;
//! 2. the new index: what is staged, merged with what the picks changed;
//! 3. the new working tree: what is there (tracked and untracked), merged with what the picks changed.
//!    Where the working tree is still exactly the snapshot that the run began with, this is exactly
//!    the run's result.
//!
//! Any conflict in any of the three refuses the whole apply and leaves everything as it was. So the
//! person's uncommitted edits stay uncommitted, also when the run built on them: a run that changed
//! other lines than they did applies; one that changed the same lines, or a file that was untracked at
//! the start, is refused with the way out, which is to commit the edits first: then the picks meet
//! exactly what they were made on.
//!
//! Picks follow the first parents from the base to the run's head. A merge lands as one commit that
//! holds what it brought in. Where `HEAD` *is* the base, the run's commits are taken as they are,
//! merges and object ids included. Where the agent rewrote history so that the base is not on that
//! line, all its changes land as one commit. Commits that are there already (by patch id, or because
//! nothing is left of them) are passed over; so are empty ones.
//!
//! It must never run a hook, filter or driver, overwrite a file that is not in git, or leave conflict
//! markers in the working tree.

mod branch;
mod error;
mod lock;
mod picks;
mod place;
mod restore;

use cofferdam_git::escape;
use cofferdam_run::{ObjectId, RunId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use error::ApplyError;
pub(crate) use lock::abandoned_index_lock;

use crate::checkout::Checkout;
use crate::diff::run_head;
use crate::error::WorkspaceError;
use crate::objects;
use crate::scratch::ScratchDir;
use crate::stage;
use picks::{Merged, Picked};

/// Files named in an error; the rest is left out.
const MAX_NAMED_FILES: usize = 20;

/// Prefix of scratch directories in `.git/cofferdam`.
const PREFIX: &str = "apply-";

/// What to apply, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyRequest {
    /// The snapshot's commit.
    pub base: ObjectId,
    /// Only make this branch at the run's head. It contains the snapshot's commit as well.
    pub as_branch: Option<String>,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Applied {
    /// Commits were put onto the current branch.
    Picked {
        /// The new `HEAD`.
        head: ObjectId,
        /// Commits put there.
        commits: u64,
        /// Commits passed over, since their changes were there already.
        already: u64,
        /// Merges that became ordinary commits.
        flattened_merges: u64,
        /// The run's own commits were taken, with their ids.
        fast_forward: bool,
        /// The run had rewritten history: all its changes became one commit.
        squashed: bool,
    },
    /// All its changes are there already.
    AlreadyApplied,
    /// The run changed nothing.
    Nothing,
    /// A branch was made.
    Branch {
        /// Its name.
        name: String,
    },
}

/// Applies a run's commits. See the module's rule.
///
/// # Errors
/// A coded error; but for [`ApplyError::Interrupted`] the checkout is then as it was.
pub async fn apply(
    checkout: &Checkout,
    run: &RunId,
    request: ApplyRequest,
) -> Result<Applied, ApplyError> {
    let run_head = run_head(checkout, run).await?;
    if let Some(name) = request.as_branch {
        return branch::create(checkout, run, name, &run_head).await;
    }
    let base = request.base;
    if !objects::is_present(checkout.git(), &base).await? {
        return Err(WorkspaceError::NoSuchCommit(base.to_string()).into());
    }
    if let Some(what) = checkout.in_progress() {
        return Err(ApplyError::InProgress(what.as_str()));
    }
    let room = checkout.room()?;
    let _lock = lock::ApplyLock::take(&room).await?;
    let scratch = ScratchDir::create(checkout, &room, PREFIX).await?;
    let head = checkout.head().await?;
    let work =
        Work { checkout, scratch: &scratch, run, head: &head, base: &base, run_head: &run_head };
    let picked = match picks::pick(&work).await? {
        Picked::Nothing => return Ok(Applied::Nothing),
        Picked::AlreadyApplied => return Ok(Applied::AlreadyApplied),
        Picked::Onto(onto) => onto,
    };
    let plan = plan(&work, &picked).await?;
    place::place(&work, &plan).await?;
    Ok(Applied::Picked {
        head: picked.head,
        commits: picked.commits,
        already: picked.already,
        flattened_merges: picked.flattened_merges,
        fast_forward: picked.fast_forward,
        squashed: picked.squashed,
    })
}

/// What every step needs.
#[derive(Clone, Copy)]
struct Work<'w> {
    checkout: &'w Checkout,
    scratch: &'w ScratchDir,
    run: &'w RunId,
    head: &'w ObjectId,
    base: &'w ObjectId,
    run_head: &'w ObjectId,
}

/// Everything computed, nothing touched.
struct Plan {
    new_head: ObjectId,
    /// Index whose entries are the working tree, untracked files included.
    worktree_index: std::path::PathBuf,
    worktree: ObjectId,
    new_worktree: ObjectId,
    /// A copy of the person's index.
    index: std::path::PathBuf,
    /// Its bytes, to tell whether somebody changed it meanwhile.
    index_bytes: Option<Vec<u8>>,
    staged: ObjectId,
    new_staged: ObjectId,
}

async fn plan(work: &Work<'_>, picked: &picks::Onto) -> Result<Plan, ApplyError> {
    let Work { checkout, scratch, head, base, run_head, .. } = *work;
    let index = scratch.file("staged.index");
    let index_bytes = place::index_bytes(checkout)?;
    stage::copy_index(checkout, &index)?;
    let staged =
        stage::staged_tree(checkout, scratch, &index).await?.ok_or(ApplyError::Unmerged)?;
    let worktree = stage::stage_all(checkout, scratch, &mut Vec::new()).await?;
    let new_staged = merged_with_picks(work, &staged, &picked.head).await?;
    let base_tree = objects::tree_of(scratch.git(), base).await?;
    let new_worktree = if worktree.tree == base_tree && picked.already == 0 {
        objects::tree_of(scratch.git(), run_head).await?
    } else if worktree.tree == staged {
        new_staged.clone()
    } else {
        merged_with_picks(work, &worktree.tree, &picked.head).await?
    };
    tracing::debug!(%head, new_head = %picked.head, "apply planned");
    Ok(Plan {
        new_head: picked.head.clone(),
        worktree_index: worktree.index,
        worktree: worktree.tree,
        new_worktree,
        index,
        index_bytes,
        staged,
        new_staged,
    })
}

/// `tree` (a change of `HEAD`'s) merged with what the picks changed.
async fn merged_with_picks(
    work: &Work<'_>,
    tree: &ObjectId,
    new_head: &ObjectId,
) -> Result<ObjectId, ApplyError> {
    let git = work.scratch.git();
    let new_tree = objects::tree_of(git, new_head).await?;
    if *tree == objects::tree_of(git, work.head).await? {
        return Ok(new_tree);
    }
    match picks::merge(git, work.head, tree, &new_tree).await? {
        Merged::Clean(tree) => Ok(tree),
        Merged::Conflict(files) => Err(ApplyError::Dirty { files }),
    }
}

/// Paths for an error.
fn named<'p>(paths: impl Iterator<Item = &'p [u8]>) -> Vec<String> {
    let mut files: Vec<String> = paths.map(|p| escape::line(p, 300)).collect();
    files.sort();
    files.dedup();
    files.truncate(MAX_NAMED_FILES);
    files
}
