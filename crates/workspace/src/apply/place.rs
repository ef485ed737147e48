//! Moves a finished plan into the checkout: objects, files, index, `HEAD`, in this order, under git's
//! own lock of the index.
//!
//! It must never overwrite a file that is not in the plan's picture of the working tree.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cofferdam_git::GitVar;
use cofferdam_git::call::MAX_LONG_CALL;
use cofferdam_run::ObjectId;

use super::error::ApplyError;
use super::lock::IndexLock;
use super::picks::carrier;
use super::restore::{Touched, restore};
use super::{Plan, Work, named};
use crate::checkout::Checkout;
use crate::error::WorkspaceError;
use crate::stage::MAX_LISTING_BYTES;

/// Ref in the scratch repository from which objects are fetched.
const CARRIER: &str = "refs/cofferdam/apply";

/// The person's index as it is; `None` when there is none.
pub(super) fn index_bytes(checkout: &Checkout) -> Result<Option<Vec<u8>>, WorkspaceError> {
    let path = checkout.git_dir().join("index");
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(WorkspaceError::io("read", path, e)),
    }
}

/// Carries the plan out.
pub(super) async fn place(work: &Work<'_>, plan: &Plan) -> Result<(), ApplyError> {
    let checkout = work.checkout;
    let touched = touched(work, plan).await?;
    refuse_to_overwrite(checkout.top(), &touched)?;
    hand_over(work, plan).await?;
    let mut lock = IndexLock::take(checkout.git_dir(), &checkout.room()?)?;
    if checkout.head().await? != *work.head || index_bytes(checkout)? != plan.index_bytes {
        return Err(ApplyError::Moved);
    }
    let moved = read_tree(work, &plan.worktree_index, &["-u"], &plan.worktree, &plan.new_worktree);
    if let Err(error) = moved.await {
        return Err(restore(work, plan, &touched, error).await);
    }
    let finished = async {
        if plan.staged != plan.new_staged {
            read_tree(work, &plan.index, &["-i"], &plan.staged, &plan.new_staged).await?;
        }
        checkout
            .git()
            .call("update-index")
            .args(["-q", "--refresh"])
            .var(GitVar::IndexFile, &plan.index)
            .accept(&[0, 1])
            .within(MAX_LONG_CALL)
            .run()
            .await?;
        lock.fill(&plan.index).map_err(|source| cofferdam_git::GitError::Spawn {
            subcommand: "update-index",
            directory: checkout.git_dir().to_owned(),
            source,
        })?;
        checkout
            .git()
            .call("update-ref")
            .args(["-m", &format!("cofferdam: apply run {}", work.run), "HEAD"])
            .args([plan.new_head.as_str(), work.head.as_str()])
            .run()
            .await
            .map(drop)
    };
    if let Err(error) = finished.await {
        return Err(restore(work, plan, &touched, error).await);
    }
    lock.commit().map_err(|e| WorkspaceError::io("renamed", checkout.git_dir(), e).into())
}

/// Two-tree merge of an index that is exactly `from`: with `-u` also of the files, which git first
/// compares with the index, all of them, before it writes the first.
async fn read_tree(
    work: &Work<'_>,
    index: &Path,
    options: &[&str],
    from: &ObjectId,
    to: &ObjectId,
) -> Result<(), cofferdam_git::GitError> {
    let call = work
        .checkout
        .git()
        .call("read-tree")
        .arg("-m")
        .args(options)
        .args([from.as_str(), to.as_str()])
        .var(GitVar::IndexFile, index)
        .within(MAX_LONG_CALL);
    work.scratch.catching(call).run().await.map(drop)
}

/// Brings the new head, and what the new index needs, into the person's object store.
async fn hand_over(work: &Work<'_>, plan: &Plan) -> Result<(), ApplyError> {
    let scratch = work.scratch.git();
    let index_only = carrier(scratch, &plan.new_staged, None).await?;
    for (name, id) in
        [(format!("{CARRIER}/head"), &plan.new_head), (format!("{CARRIER}/index"), &index_only)]
    {
        scratch.call("update-ref").args([name.as_str(), id.as_str()]).run().await?;
    }
    work.checkout
        .git()
        .call("fetch")
        .args(["--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance"])
        .args(["--no-recurse-submodules", "--end-of-options"])
        .arg(work.scratch.repository())
        .args([format!("{CARRIER}/head"), format!("{CARRIER}/index")])
        // The person's own files are theirs; the run's were checked when they came in.
        .config("fetch.fsckObjects", "false")
        .config("transfer.fsckObjects", "false")
        .without_persons_config()
        .from_local_files()
        .within(MAX_LONG_CALL)
        .run()
        .await?;
    Ok(())
}

async fn touched(work: &Work<'_>, plan: &Plan) -> Result<Vec<Touched>, ApplyError> {
    let listed = work
        .scratch
        .git()
        .call("diff-tree")
        .args(["-r", "-z", "--name-status", "--no-renames"])
        .args([plan.worktree.as_str(), plan.new_worktree.as_str()])
        .limit(MAX_LISTING_BYTES)
        .run()
        .await?;
    let mut records = listed.records();
    let mut touched = Vec::new();
    while let (Some(status), Some(path)) = (records.next(), records.next()) {
        touched.push(Touched {
            path: path.to_vec(),
            was_there: status != b"A",
            stays: status != b"D",
        });
    }
    Ok(touched)
}

/// Files that git ignores are not in the picture, and git would overwrite them: a run that adds a
/// file where the person has an ignored one is refused.
fn refuse_to_overwrite(top: &Path, touched: &[Touched]) -> Result<(), ApplyError> {
    let leaving: BTreeSet<&[u8]> =
        touched.iter().filter(|t| !t.stays).map(|t| t.path.as_slice()).collect();
    let in_the_way = |t: &&Touched| !t.was_there && is_in_the_way(top, &t.path, &leaving);
    let files = named(touched.iter().filter(in_the_way).map(|t| t.path.as_slice()));
    if files.is_empty() { Ok(()) } else { Err(ApplyError::WouldOverwrite { files }) }
}

fn is_in_the_way(top: &Path, path: &[u8], leaving: &BTreeSet<&[u8]>) -> bool {
    for (at, _) in path.iter().enumerate().filter(|(_, b)| **b == b'/') {
        match top.join(OsStr::from_bytes(&path[..at])).symlink_metadata() {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return !leaving.contains(&path[..at]),
            Err(_) => return false,
        }
    }
    let place = top.join(OsStr::from_bytes(path));
    match place.symlink_metadata() {
        Ok(found) if found.is_dir() => holds_others(&place, path, leaving),
        Ok(_) => true,
        Err(_) => false,
    }
}

/// Whether a directory that a file is to replace holds anything that does not leave with the plan.
fn holds_others(directory: &Path, path: &[u8], leaving: &BTreeSet<&[u8]>) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return true };
    entries.into_iter().any(|entry| {
        let Ok(entry) = entry else { return true };
        let inner = [path, b"/", entry.file_name().as_bytes()].concat();
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            holds_others(&entry.path(), &inner, leaving)
        } else {
            !leaving.contains(inner.as_slice())
        }
    })
}
