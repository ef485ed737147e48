//! A checkout, dirty as it is, as one commit in one bundle.
//!
//! It must never change the person's repository: no ref, no object, no index, no reflog. Everything
//! is made in a scratch repository beside the bundle.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use cofferdam_git::GitVar;
use cofferdam_git::call::MAX_LONG_CALL;
use cofferdam_run::{Digest, ObjectId, RunId};
use sha2::Digest as _;

use crate::checkout::Checkout;
use crate::error::WorkspaceError;
use crate::note::SnapshotNote;
use crate::objects;
use crate::scratch::ScratchDir;
use crate::stage::{self, Staged};

/// Name of the one ref in the bundle.
pub const BUNDLE_REF: &str = "refs/cofferdam/base";

/// Prefix of scratch directories beside the bundle.
const PREFIX: &str = ".snapshot-";

/// What was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// `HEAD` of the checkout.
    pub head: ObjectId,
    /// The commit in the bundle: `head` for a clean tree, else its child. In a shallow clone a commit
    /// without parents.
    pub base: ObjectId,
    /// Current branch; `None` when detached.
    pub branch: Option<String>,
    /// Paths that differ from `head`, staged, unstaged and untracked together.
    pub uncommitted_paths: u64,
    /// `sha1` or `sha256`.
    pub object_format: String,
    /// [`BUNDLE_REF`].
    pub bundle_ref: String,
    /// Digest of the bundle file.
    pub bundle: Digest,
    /// Its size.
    pub bundle_bytes: u64,
    /// Name and address for commits.
    pub identity: (String, String),
    /// What the person should know.
    pub notes: Vec<SnapshotNote>,
}

impl Checkout {
    /// Takes a snapshot into the file `bundle_out`, which lies in a directory private to the run and
    /// is replaced when it exists. The bundle holds the whole reachable history, so that nothing that
    /// happens to the person's repository later can take the base away.
    ///
    /// # Errors
    /// Files cannot be read, git fails, or the history is not complete.
    pub async fn snapshot(
        &self,
        run: &RunId,
        bundle_out: &Path,
    ) -> Result<Snapshot, WorkspaceError> {
        let parent = bundle_out.parent().unwrap_or(Path::new("."));
        let parent = &parent.canonicalize().map_err(|e| WorkspaceError::io("found", parent, e))?;
        let name = bundle_out.file_name().ok_or_else(|| {
            WorkspaceError::io("used", bundle_out, std::io::ErrorKind::InvalidInput.into())
        })?;
        let bundle_out = &parent.join(name);
        let scratch = ScratchDir::create(self, parent, PREFIX).await?;
        let mut notes = Vec::new();
        if let Some(what) = self.in_progress() {
            notes.push(SnapshotNote::InProgress { what: what.as_str().to_owned() });
        }
        if !self.git().filters_switched_off().is_empty() {
            let names = self.git().filters_switched_off().to_vec();
            notes.push(SnapshotNote::FiltersOff { names });
        }
        let head = self.head().await?;
        let branch = self.branch().await?;
        let identity = self.identity().await?;
        let Staged { tree, .. } = stage::stage_all(self, &scratch, &mut notes).await?;
        let head_tree = objects::tree_of(self.git(), &head).await?;
        if self.is_shallow() {
            notes.push(SnapshotNote::Shallow);
        }
        let base = if tree == head_tree && !self.is_shallow() {
            head.clone()
        } else {
            let parent = (!self.is_shallow()).then_some(&head);
            commit_snapshot(&scratch, run, &tree, parent, &identity).await?
        };
        let uncommitted_paths = self.differing_paths(&scratch, &head_tree, &tree).await?;
        let bundled = self.bundle(&scratch, &base, bundle_out).await;
        let (bundle, bundle_bytes) = match bundled {
            Ok(done) => done,
            Err(error) => {
                let _ = std::fs::remove_file(bundle_out);
                return Err(error);
            }
        };
        Ok(Snapshot {
            head,
            base,
            branch,
            uncommitted_paths,
            object_format: self.object_format().to_owned(),
            bundle_ref: BUNDLE_REF.to_owned(),
            bundle,
            bundle_bytes,
            identity,
            notes,
        })
    }

    async fn differing_paths(
        &self,
        scratch: &ScratchDir,
        head_tree: &ObjectId,
        tree: &ObjectId,
    ) -> Result<u64, WorkspaceError> {
        let listed = scratch
            .git()
            .call("diff-tree")
            .args(["-r", "-z", "--name-only", "--no-renames"])
            .args([head_tree.as_str(), tree.as_str()])
            .limit(stage::MAX_LISTING_BYTES)
            .run()
            .await?;
        Ok(u64::try_from(listed.records().count()).unwrap_or(u64::MAX))
    }

    async fn bundle(
        &self,
        scratch: &ScratchDir,
        base: &ObjectId,
        out: &Path,
    ) -> Result<(Digest, u64), WorkspaceError> {
        scratch.git().call("update-ref").args([BUNDLE_REF, base.as_str()]).run().await?;
        let created = scratch
            .git()
            .call("bundle")
            .args(["create", "--quiet"])
            .arg(out)
            .arg(BUNDLE_REF)
            .within(MAX_LONG_CALL)
            .run()
            .await;
        if let Err(error) = created {
            return Err(if self.is_partial_clone().await {
                WorkspaceError::PartialClone(error)
            } else {
                error.into()
            });
        }
        let path = out.to_owned();
        tokio::task::spawn_blocking(move || digest_of(&path))
            .await
            .map_err(std::io::Error::other)
            .and_then(|digest| digest)
            .map_err(|e| WorkspaceError::io("read", out, e))
    }

    async fn is_partial_clone(&self) -> bool {
        let asked = self
            .git()
            .call("config")
            .args(["--get-regexp", r"^(remote\..*\.promisor|extensions\.partialclone)$"])
            .run()
            .await;
        asked.is_ok()
    }
}

async fn commit_snapshot(
    scratch: &ScratchDir,
    run: &RunId,
    tree: &ObjectId,
    parent: Option<&ObjectId>,
    identity: &(String, String),
) -> Result<ObjectId, WorkspaceError> {
    let mut call = scratch
        .git()
        .call("commit-tree")
        .args(["-m", &format!("Uncommitted state at the start of run {run}")])
        .var(GitVar::AuthorName, &identity.0)
        .var(GitVar::AuthorEmail, &identity.1)
        .var(GitVar::CommitterName, &identity.0)
        .var(GitVar::CommitterEmail, &identity.1);
    if let Some(parent) = parent {
        call = call.args(["-p", parent.as_str()]);
    }
    let output = call.arg(tree.as_str()).run().await?;
    Ok(objects::id_in("commit-tree", &output)?)
}

/// SHA-256 and size, streamed.
fn digest_of(path: &Path) -> std::io::Result<(Digest, u64)> {
    let mut file = File::open(path)?;
    let mut hash = sha2::Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    let mut bytes = 0u64;
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok((Digest::from_sha256(hash.finalize().into()), bytes));
        }
        hash.update(&buffer[..n]);
        bytes = bytes.saturating_add(u64::try_from(n).unwrap_or(u64::MAX));
    }
}
