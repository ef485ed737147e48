//! Judges what is new in the quarantine: how much, how large, and under which paths.
//!
//! It must never check out a file; paths are read from trees only.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use cofferdam_git::call::MAX_LONG_CALL;
use cofferdam_git::{Git, Quarantine, escape};
use cofferdam_run::ObjectId;

use super::error::ImportReason;
use super::quarantine::{Fetched, within};
use super::{ImportRequest, MAX_IMPORT_BLOB_BYTES, MAX_IMPORT_COMMITS, MAX_IMPORT_INFLATED_BYTES};
use crate::paths::{self, PathFault};

/// Most bytes of a listing in the quarantine; past it the bundle is refused and kept.
const MAX_IMPORT_LISTING_BYTES: usize = 192 << 20;

/// Limits and paths over everything that is new.
pub(super) async fn inspect(
    git: &Git<Quarantine>,
    request: &ImportRequest<'_>,
    fetched: &[Fetched],
) -> Result<(), ImportReason> {
    let tips: Vec<&str> = fetched.iter().map(|f| f.id.as_str()).collect();
    let base = format!("^{}", request.base);
    let commits = git
        .call("rev-list")
        .args(["--max-count", &(MAX_IMPORT_COMMITS + 1).to_string()])
        .args(&tips)
        .arg(&base)
        .within(MAX_LONG_CALL)
        .run()
        .await?;
    let count = commits.stdout.iter().filter(|b| **b == b'\n').count();
    within("commits", u64::try_from(count).unwrap_or(u64::MAX), MAX_IMPORT_COMMITS)?;
    sizes(git, &tips, &base).await?;
    changed_paths(git, &request.base, commits.stdout).await?;
    for f in fetched {
        submodule_paths(git, &f.id, &request.base).await?;
    }
    Ok(())
}

async fn sizes(git: &Git<Quarantine>, tips: &[&str], base: &str) -> Result<(), ImportReason> {
    let listed = git
        .call("rev-list")
        .args(["--objects", "--no-object-names"])
        .args(tips)
        .arg(base)
        .limit(MAX_IMPORT_LISTING_BYTES)
        .within(MAX_LONG_CALL)
        .run()
        .await?;
    let sizes = git
        .call("cat-file")
        .args(["--batch-check=%(objectsize)", "--buffer"])
        .stdin(listed.stdout)
        .limit(MAX_IMPORT_LISTING_BYTES)
        .within(MAX_LONG_CALL)
        .run()
        .await?;
    let mut total = 0u64;
    for line in sizes.stdout.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
        // "missing" is for commits of submodules, which are never fetched.
        let size = std::str::from_utf8(line).ok().and_then(|l| l.parse().ok()).unwrap_or(0u64);
        within("bytes of one object", size, MAX_IMPORT_BLOB_BYTES)?;
        total = total.saturating_add(size);
    }
    within("bytes of all objects", total, MAX_IMPORT_INFLATED_BYTES)
}

/// Every path that any new commit adds or changes, against each of its parents.
async fn changed_paths(
    git: &Git<Quarantine>,
    base: &ObjectId,
    commits: Vec<u8>,
) -> Result<(), ImportReason> {
    let listed = git
        .call("diff-tree")
        .args(["--stdin", "--root", "-m", "-r", "-z", "--raw", "--no-renames", "--no-commit-id"])
        .arg("--no-ext-diff")
        .stdin(commits)
        .limit(MAX_IMPORT_LISTING_BYTES)
        .within(MAX_LONG_CALL)
        .run()
        .await?;
    // Records alternate: `:modes ids status`, then the path.
    let mut records = listed.records();
    while let Some(meta) = records.next() {
        let path = records.next().unwrap_or_default();
        if meta.ends_with(b" D") {
            continue;
        }
        match paths::check(path) {
            // The person's own repository may have such files, and a run may change them.
            Err(PathFault::Control) if is_in(git, base, path).await? => {}
            _ => checked(path)?,
        }
    }
    Ok(())
}

async fn is_in(
    git: &Git<Quarantine>,
    commit: &ObjectId,
    path: &[u8],
) -> Result<bool, ImportReason> {
    let listed = git
        .call("ls-tree")
        .args(["-z", "--name-only", "--full-tree", commit.as_str(), "--"])
        .arg(OsStr::from_bytes(path))
        .run()
        .await?;
    Ok(listed.records().any(|found| found == path))
}

fn checked(path: &[u8]) -> Result<(), ImportReason> {
    paths::check(path).map_err(|fault| ImportReason::Path { path: escape::line(path, 300), fault })
}

/// `.gitmodules` may name any path, and git's own check lets absolute ones and `..` pass.
async fn submodule_paths(
    git: &Git<Quarantine>,
    tip: &ObjectId,
    base: &ObjectId,
) -> Result<(), ImportReason> {
    let Some(blob) = modules_of(git, tip).await? else { return Ok(()) };
    // What the person has already is theirs.
    if modules_of(git, base).await?.as_ref() == Some(&blob) {
        return Ok(());
    }
    let listed = git
        .call("config")
        .args(["-z", "--blob", blob.as_str(), "--get-regexp", r"^submodule\..*\.path$"])
        .accept(&[0, 1])
        .run()
        .await
        .map_err(ImportReason::Objects)?;
    for record in listed.records() {
        let value =
            record.iter().position(|b| *b == b'\n').map_or(&b""[..], |at| &record[at + 1..]);
        checked(value.strip_suffix(b"/").unwrap_or(value))?;
    }
    Ok(())
}

pub(super) async fn modules_of(
    git: &Git<Quarantine>,
    commit: &ObjectId,
) -> Result<Option<ObjectId>, ImportReason> {
    let output = git
        .call("rev-parse")
        .args(["--verify", "--quiet"])
        .arg(format!("{commit}:.gitmodules"))
        .accept(&[0, 1, 128])
        .run()
        .await?;
    if output.code != 0 {
        return Ok(None);
    }
    Ok(Some(crate::objects::id_in("rev-parse", &output)?))
}
