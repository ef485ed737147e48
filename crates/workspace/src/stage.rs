//! Turns a working tree into a tree object through a copy of the index.
//!
//! It must never write the person's index, enter a submodule or a nested repository, or run a filter.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cofferdam_git::call::MAX_LONG_CALL;
use cofferdam_git::{Git, GitVar, escape};
use cofferdam_run::ObjectId;

use crate::checkout::Checkout;
use crate::error::WorkspaceError;
use crate::note::SnapshotNote;
use crate::objects;
use crate::scratch::ScratchDir;

/// Most bytes of a listing of the index or of untracked files; past it the operation fails.
pub(crate) const MAX_LISTING_BYTES: usize = 512 << 20;

/// Most remarks of one kind; the rest is counted.
pub(crate) const MAX_NOTES: usize = 64;

/// How often staging is tried while files change under it.
const STAGE_ATTEMPTS: u32 = 3;

/// A tree and the temporary index that it was written from.
#[derive(Debug)]
pub(crate) struct Staged {
    /// The index; its entries match the files.
    pub(crate) index: PathBuf,
    /// Its tree, in the scratch repository.
    pub(crate) tree: ObjectId,
}

/// Copies the index to `to`, with its modification time: git tells entries that may have changed in
/// the very moment of writing the index by that time, and a younger copy would hide such a change.
pub(crate) fn copy_index(checkout: &Checkout, to: &Path) -> Result<(), WorkspaceError> {
    let from = checkout.git_dir().join("index");
    let copy = || -> std::io::Result<()> {
        let mut source = match std::fs::File::open(&from) {
            Ok(file) => file,
            // Nothing staged at all: git reads a missing index as an empty one.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let modified = source.metadata()?.modified()?;
        let mut target = std::fs::File::create(to)?;
        std::io::copy(&mut source, &mut target)?;
        target.set_modified(modified)
    };
    copy().map_err(|e| WorkspaceError::io("copied", &from, e))
}

/// The tree of what is staged, without the working tree; `None` when paths are unmerged.
pub(crate) async fn staged_tree(
    checkout: &Checkout,
    scratch: &ScratchDir,
    index: &Path,
) -> Result<Option<ObjectId>, WorkspaceError> {
    let unmerged = checkout
        .git()
        .call("ls-files")
        .args(["--unmerged", "-z"])
        .var(GitVar::IndexFile, index)
        .limit(MAX_LISTING_BYTES)
        .run()
        .await?;
    if !unmerged.stdout.is_empty() {
        return Ok(None);
    }
    let call = checkout.git().call("write-tree").var(GitVar::IndexFile, index);
    let output = scratch.catching(call).run().await?;
    Ok(Some(objects::id_in("write-tree", &output)?))
}

/// Stages everything (changed, deleted, untracked; ignore rules honoured) into a copy of the index.
/// Submodules stay at the commit that the index names; nested repositories stay out.
pub(crate) async fn stage_all(
    checkout: &Checkout,
    scratch: &ScratchDir,
    notes: &mut Vec<SnapshotNote>,
) -> Result<Staged, WorkspaceError> {
    let index = scratch.file("worktree.index");
    let mut attempt = 1;
    let (submodules, nested) = loop {
        match add_all(checkout, scratch, &index).await {
            Ok(found) => break found,
            // Files come and go while something builds in the checkout.
            Err(WorkspaceError::Stage(error)) if attempt < STAGE_ATTEMPTS => {
                tracing::debug!(%error, attempt, "staging again");
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    };
    let call = checkout.git().call("write-tree").var(GitVar::IndexFile, &index);
    let output = scratch.catching(call).run().await?;
    let tree = objects::id_in("write-tree", &output)?;
    note_submodules(checkout, &submodules, notes).await;
    note_nested(&nested, notes);
    Ok(Staged { index, tree })
}

/// Paths as git stores them.
type Paths = Vec<Vec<u8>>;

/// Stages into a fresh copy of the index; returns submodules and nested repositories.
async fn add_all(
    checkout: &Checkout,
    scratch: &ScratchDir,
    index: &Path,
) -> Result<(Paths, Paths), WorkspaceError> {
    let _ = std::fs::remove_file(index);
    copy_index(checkout, index)?;
    let submodules = submodules(checkout, index).await?;
    let nested = nested_repositories(checkout, index).await?;
    let mut call =
        checkout.git().call("add").arg("--all").var(GitVar::IndexFile, index).within(MAX_LONG_CALL);
    if !submodules.is_empty() || !nested.is_empty() {
        let mut pathspecs = b":(top)\0".to_vec();
        for path in submodules.iter().chain(&nested) {
            pathspecs.extend(b":(top,exclude,literal)");
            pathspecs.extend(path);
            pathspecs.push(0);
        }
        call = call.args(["--pathspec-from-file=-", "--pathspec-file-nul"]).stdin(pathspecs);
    }
    scratch.catching(call).run().await.map_err(WorkspaceError::Stage)?;
    Ok((submodules, nested))
}

async fn submodules(checkout: &Checkout, index: &Path) -> Result<Vec<Vec<u8>>, WorkspaceError> {
    let listed = checkout
        .git()
        .call("ls-files")
        .args(["--stage", "-z"])
        .var(GitVar::IndexFile, index)
        .limit(MAX_LISTING_BYTES)
        .run()
        .await?;
    Ok(listed
        .records()
        .filter(|record| record.starts_with(b"160000 "))
        .filter_map(|record| record.iter().position(|b| *b == b'\t').map(|t| &record[t + 1..]))
        .map(<[u8]>::to_vec)
        .collect())
}

/// Git lists an untracked repository as one directory, with a slash at its end.
async fn nested_repositories(
    checkout: &Checkout,
    index: &Path,
) -> Result<Vec<Vec<u8>>, WorkspaceError> {
    let listed = checkout
        .git()
        .call("ls-files")
        .args(["--others", "--exclude-standard", "-z"])
        .var(GitVar::IndexFile, index)
        .limit(MAX_LISTING_BYTES)
        .within(MAX_LONG_CALL)
        .run()
        .await?;
    Ok(listed.records().filter_map(|r| r.strip_suffix(b"/")).map(<[u8]>::to_vec).collect())
}

async fn note_submodules(
    checkout: &Checkout,
    submodules: &[Vec<u8>],
    notes: &mut Vec<SnapshotNote>,
) {
    for path in submodules.iter().take(MAX_NOTES) {
        let changed = is_changed(checkout, &checkout.top().join(OsStr::from_bytes(path))).await;
        let path = escape::line(path, 200);
        notes.push(SnapshotNote::Submodule { path, changed });
    }
    note_more(submodules.len(), notes);
}

/// Whether a submodule has uncommitted changes. One that cannot be asked counts as unchanged unless
/// it has files: the note says that its files do not travel in any case.
async fn is_changed(checkout: &Checkout, directory: &Path) -> bool {
    if directory.join(".git").symlink_metadata().is_err() {
        return false;
    }
    let Ok(git) = Git::for_person_in(checkout.git().environment(), directory).await else {
        return true;
    };
    let status = git
        .call("status")
        .args(["--porcelain=v2", "-z", "--ignore-submodules=all"])
        .cut_at(1)
        .run()
        .await;
    status.map_or(true, |output| !output.stdout.is_empty())
}

fn note_nested(nested: &[Vec<u8>], notes: &mut Vec<SnapshotNote>) {
    for path in nested.iter().take(MAX_NOTES) {
        notes.push(SnapshotNote::NestedRepository { path: escape::line(path, 200) });
    }
    note_more(nested.len(), notes);
}

fn note_more(total: usize, notes: &mut Vec<SnapshotNote>) {
    if let Some(more) = total.checked_sub(MAX_NOTES).filter(|n| *n > 0) {
        notes.push(SnapshotNote::More { count: u64::try_from(more).unwrap_or(u64::MAX) });
    }
}
