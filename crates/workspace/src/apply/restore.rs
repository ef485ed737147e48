//! Puts files back after a failure in the middle.
//!
//! It must never overwrite what it cannot account for: only files that are now exactly what the plan
//! would have written, or that are gone, are put back; any other is named.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cofferdam_git::call::MAX_LONG_CALL;
use cofferdam_git::{GitError, GitVar};
use cofferdam_run::ObjectId;

use super::error::ApplyError;
use super::{Plan, Work, named};
use crate::stage::MAX_LISTING_BYTES;

/// A path that differs between the working tree as it was and as it should become.
pub(super) struct Touched {
    pub(super) path: Vec<u8>,
    pub(super) was_there: bool,
    pub(super) stays: bool,
}

/// Restores and returns the error to give.
pub(super) async fn restore(
    work: &Work<'_>,
    plan: &Plan,
    touched: &[Touched],
    cause: GitError,
) -> ApplyError {
    match put_back(work, plan, touched).await {
        Ok(State::Untouched) => {
            // Git compared the files with the picture first and found one that had changed since.
            if cause.stderr().contains("not uptodate") || cause.stderr().contains("overwritten") {
                ApplyError::Moved
            } else {
                ApplyError::NotWritten(cause)
            }
        }
        Ok(State::PutBack) => ApplyError::NotWritten(cause),
        Ok(State::Left(files)) => ApplyError::Interrupted { files, source: cause },
        Err(error) => {
            tracing::warn!(%error, "files could not be put back");
            let files = named(touched.iter().map(|t| t.path.as_slice()));
            ApplyError::Interrupted { files, source: cause }
        }
    }
}

enum State {
    Untouched,
    PutBack,
    Left(Vec<String>),
}

async fn put_back(work: &Work<'_>, plan: &Plan, touched: &[Touched]) -> Result<State, GitError> {
    let differs_from_old = differing(work, &plan.worktree, "old.index").await?;
    let differs_from_new = differing(work, &plan.new_worktree, "new.index").await?;
    let top = work.checkout.top();
    let mut again = Vec::new();
    let mut gone = Vec::new();
    let mut left: Vec<&[u8]> = Vec::new();
    for t in touched {
        let path = t.path.as_slice();
        let exists = top.join(OsStr::from_bytes(path)).symlink_metadata().is_ok();
        let is_new = t.stays && exists && !differs_from_new.contains(path);
        if t.was_there {
            if exists && !differs_from_old.contains(path) {
                continue;
            }
            if !exists || is_new { again.push(path) } else { left.push(path) }
        } else if exists {
            if is_new { gone.push(path) } else { left.push(path) }
        }
    }
    if again.is_empty() && gone.is_empty() && left.is_empty() {
        return Ok(State::Untouched);
    }
    for path in &gone {
        if std::fs::remove_file(top.join(OsStr::from_bytes(path))).is_err() {
            left.push(path);
        }
        remove_empty_parents(top, path);
    }
    if !again.is_empty() {
        let call = work
            .checkout
            .git()
            .call("checkout-index")
            .args(["--force", "--quiet", "-z", "--stdin"])
            .var(GitVar::IndexFile, work.scratch.file("old.index"))
            .stdin(again.iter().flat_map(|p| [*p, b"\0"].concat()).collect())
            .within(MAX_LONG_CALL);
        work.scratch.catching(call).run().await?;
    }
    Ok(if left.is_empty() { State::PutBack } else { State::Left(named(left.into_iter())) })
}

fn remove_empty_parents(top: &Path, path: &[u8]) {
    let mut path = path;
    while let Some(at) = path.iter().rposition(|b| *b == b'/') {
        path = &path[..at];
        // Fails, and ends this, where something else is inside.
        if std::fs::remove_dir(top.join(OsStr::from_bytes(path))).is_err() {
            return;
        }
    }
}

/// Paths of `tree` whose files differ from it, by content.
async fn differing(
    work: &Work<'_>,
    tree: &ObjectId,
    name: &str,
) -> Result<BTreeSet<Vec<u8>>, GitError> {
    let index = work.scratch.file(name);
    let git = work.checkout.git();
    let call =
        git.call("read-tree").arg("--reset").arg(tree.as_str()).var(GitVar::IndexFile, &index);
    work.scratch.catching(call).run().await?;
    let call = git
        .call("update-index")
        .args(["-q", "--refresh"])
        .var(GitVar::IndexFile, &index)
        .accept(&[0, 1])
        .within(MAX_LONG_CALL);
    work.scratch.catching(call).run().await?;
    let call = git
        .call("diff-files")
        .args(["--name-only", "-z", "--ignore-submodules=all"])
        .var(GitVar::IndexFile, &index)
        .limit(MAX_LISTING_BYTES)
        .accept(&[0, 1]);
    let listed = work.scratch.catching(call).run().await?;
    Ok(listed.records().map(<[u8]>::to_vec).collect())
}
