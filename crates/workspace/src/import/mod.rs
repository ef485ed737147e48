//! Takes a run's bundle into the person's repository, through a quarantine repository in which it is
//! checked first: against the manifest, against limits, by git's fsck, and path by path.
//!
//! It must never move `HEAD` or a branch, fetch a tag, run anything, follow an alternate, or delete
//! the bundle. Histories that the agent rewrote are legal: the run's head need not descend from the
//! base.

mod again;
mod error;
mod hand_over;
mod inspect;
mod quarantine;

use std::path::{Path, PathBuf};

use cofferdam_git::{Authority, Git, GitError};
use cofferdam_run::{ObjectId, RunId};

pub use again::imported;
pub use error::{ImportError, ImportReason};

use crate::checkout::Checkout;
use crate::objects;

/// Largest bundle of a run, bytes. A larger one is refused and kept.
pub const MAX_IMPORT_BUNDLE_BYTES: u64 = 4 << 30;

/// Most objects in it. One with more is refused and kept.
pub const MAX_IMPORT_OBJECTS: u64 = 2_000_000;

/// Most commits over the base. A bundle with more is refused and kept.
pub const MAX_IMPORT_COMMITS: u64 = 20_000;

/// Largest single new object, bytes, uncompressed. A bundle with a larger one is refused and kept.
pub const MAX_IMPORT_BLOB_BYTES: u64 = 1 << 30;

/// All new objects together, bytes, uncompressed. A bundle with more is refused and kept.
pub const MAX_IMPORT_INFLATED_BYTES: u64 = 32 << 30;

/// Subjects of the newest commits that are returned; the rest is left out.
pub const MAX_SUBJECTS: usize = 50;

/// Characters of one subject; the rest is cut with an ellipsis.
pub const MAX_SUBJECT_CHARS: usize = 200;

/// What to import, and what it should be.
#[derive(Debug, Clone)]
pub struct ImportRequest<'c> {
    /// Where to.
    pub checkout: &'c Checkout,
    /// Whose.
    pub run: RunId,
    /// The snapshot's commit.
    pub base: ObjectId,
    /// The bundle that [`Checkout::snapshot`] wrote: the quarantine gets the base from there, so that
    /// nothing that happened to the person's repository since then matters.
    pub base_bundle: PathBuf,
    /// The run's bundle.
    pub bundle: PathBuf,
    /// `HEAD` according to the manifest.
    pub expected_head: ObjectId,
    /// Refs according to the manifest: exactly these must be in the bundle.
    pub expected_refs: Vec<(String, ObjectId)>,
    /// Path for the quarantine repository; made here, removed at the end.
    pub quarantine: PathBuf,
}

/// A further ref of the bundle whose commits the run's head does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideRef {
    /// Its name in the sandbox, escaped.
    pub name: String,
    /// Where it is kept in the person's repository.
    pub reference: String,
    /// Its object.
    pub id: ObjectId,
}

/// What was imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// `refs/cofferdam/runs/<id>`.
    pub reference: String,
    /// Its commit.
    pub head: ObjectId,
    /// Commits that the head has and the base has not.
    pub commits: u64,
    /// Commits that only the sides have over the base.
    pub side_commits: u64,
    /// Subjects of the newest, newest first, at most [`MAX_SUBJECTS`], escaped.
    pub subjects: Vec<String>,
    /// Branches beside the head, so that no commit of the run is lost.
    pub sides: Vec<SideRef>,
}

/// Imports a run's commits. Repeating a finished import gives the same answer.
///
/// # Errors
/// One coded error for each reason; the bundle is kept in every case.
pub async fn import(request: ImportRequest<'_>) -> Result<Imported, ImportError> {
    let result = attempt(&request).await;
    quarantine::remove(&request.quarantine);
    result.map_err(|reason| ImportError { reason, salvage: request.bundle.clone() })
}

async fn attempt(request: &ImportRequest<'_>) -> Result<Imported, ImportReason> {
    let bundle = canonical(&request.bundle)?;
    let base_bundle = canonical(&request.base_bundle)?;
    let header = quarantine::admit(request, &bundle)?;
    let git = quarantine::create(request).await?;
    quarantine::take_base(&git, request, &base_bundle).await?;
    let fetched = quarantine::take_bundle(&git, request, &bundle, &header).await?;
    inspect::inspect(&git, request, &fetched).await?;
    let heads = [request.expected_head.clone()];
    let commits = quarantine::count(&git, request, &heads).await?;
    let all: Vec<ObjectId> = fetched.iter().map(|f| f.id.clone()).chain(heads).collect();
    let side_commits = quarantine::count(&git, request, &all).await?.saturating_sub(commits);
    let subjects = quarantine::subjects(&git, request).await?;
    let sides = hand_over::hand_over(&git, request, fetched).await?;
    Ok(Imported {
        reference: crate::run_reference(&request.run),
        head: request.expected_head.clone(),
        commits,
        side_commits,
        subjects,
        sides,
    })
}

/// Whether `head` is `base` or one of its ancestors, as the checkout's own repository tells.
///
/// # Errors
/// Git itself; a commit that is not there is a plain no.
pub async fn is_part_of_base(
    checkout: &Checkout,
    base: &ObjectId,
    head: &ObjectId,
) -> Result<bool, GitError> {
    part_of(checkout.git(), head, base).await
}

async fn part_of<A: Authority>(
    git: &Git<A>,
    head: &ObjectId,
    base: &ObjectId,
) -> Result<bool, GitError> {
    for id in [head, base] {
        if objects::commit_named(git, id.as_str()).await?.as_ref() != Some(id) {
            return Ok(false);
        }
    }
    objects::is_ancestor(git, head, base).await
}

fn canonical(path: &Path) -> Result<PathBuf, ImportReason> {
    path.canonicalize().map_err(|e| ImportReason::io("found", path, e))
}
