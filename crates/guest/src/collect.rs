//! What the agent made goes into one bundle.
//!
//! The repository may be in any state by now. Never fails because of that: what cannot be read is
//! missing from the manifest. Everything in it is a claim that the host checks.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use cofferdam_run::ids::ObjectId;
use cofferdam_wire::{Manifest, ManifestRef, WorkspaceSpec};

use crate::git::{Git, GitError};
use crate::limits::{GIT_CALL, GIT_LONG_CALL, MANIFEST_BYTES, MANIFEST_REFS};
use crate::places::Places;
use crate::{leftovers, log, lost};

/// Why there is no bundle although there is something to bring back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectError {
    #[error("the bundle file could not be made: {0}")]
    File(std::io::Error),
    #[error(transparent)]
    Git(#[from] GitError),
}

/// Commits leftovers and packs all branches, tags, `HEAD` and what only reflogs know. The bundle lies at
/// [`Places::bundle_out`] when the manifest announces bytes.
pub(crate) async fn pack(
    places: &Places,
    git: &Git,
    spec: &WorkspaceSpec,
) -> Result<Manifest, CollectError> {
    let git = &git.pinned();
    let leftovers = leftovers::commit(places, git).await;
    let mut not_taken = leftovers.not_taken;
    let mut manifest = Manifest {
        leftovers_committed: leftovers.commit.is_some(),
        leftovers_error: leftovers.error,
        ..Manifest::default()
    };
    manifest.head = match leftovers.commit {
        Some(commit) if leftovers.beside_head => Some(commit),
        _ => commit_of(git, "HEAD").await,
    };
    // Without the base (the agent can have thrown the repository away) everything goes.
    let base = commit_of(git, spec.base.as_str()).await;
    let lost = lost::keep(git, base.as_ref(), &mut not_taken).await;
    manifest.not_taken_count = not_taken.count;
    manifest.not_taken = not_taken.names;
    let not_base = base.map(|base| format!("^{base}"));
    let mut what = Vec::new();
    if leftovers.beside_head {
        what.push(leftovers::FALLBACK_REF);
    } else if manifest.head.is_some() {
        what.push("HEAD");
    }
    what.extend(["--branches", "--tags"]);
    what.extend(lost.iter().map(String::as_str));
    what.extend(not_base.as_deref());
    let mut count = vec!["rev-list", "--count"];
    count.extend(&what);
    manifest.commits = match git.run_within(&count, GIT_LONG_CALL).await {
        Ok(printed) => printed.trim().parse().unwrap_or(0),
        // Without a head the host knows that the repository cannot be read.
        Err(error) if manifest.head.is_none() => {
            log::line(&error.to_string());
            0
        }
        Err(error) => return Err(error.into()),
    };
    if manifest.commits == 0 {
        return Ok(manifest);
    }
    let path = places.bundle_out();
    let file = fresh_file(&path).map_err(CollectError::File)?;
    let size = file.try_clone().map_err(CollectError::File)?;
    let mut bundle = vec!["bundle", "create", "--quiet", "-"];
    bundle.extend(&what);
    git.run_into(&bundle, file, GIT_LONG_CALL).await?;
    manifest.bundle_bytes = size.metadata().map_err(CollectError::File)?.len();
    // The bundle itself says what is in it: git leaves out refs that the base covers.
    let path = path.to_string_lossy();
    let heads = git.run(&["bundle", "list-heads", &path]).await?;
    manifest.refs = parse_refs(&heads);
    Ok(manifest)
}

fn parse_refs(heads: &str) -> Vec<ManifestRef> {
    let mut bytes = 0;
    heads
        .lines()
        .take(MANIFEST_REFS)
        .take_while(|line| {
            bytes += line.len();
            bytes <= MANIFEST_BYTES
        })
        .filter_map(parse_ref)
        .collect()
}

fn parse_ref(line: &str) -> Option<ManifestRef> {
    let (oid, name) = line.split_once(' ')?;
    Some(ManifestRef { name: name.to_owned(), oid: oid.parse().ok()? })
}

pub(crate) async fn commit_of(git: &Git, name: &str) -> Option<ObjectId> {
    let commit = format!("{name}^{{commit}}");
    let output = git.ask(&["rev-parse", "--verify", "--quiet", &commit], GIT_CALL).await.ok()?;
    output.stdout.trim().parse().ok()
}

/// A new file, whatever the agent has put in its place.
fn fresh_file(path: &Path) -> std::io::Result<File> {
    if let Ok(there) = path.symlink_metadata() {
        if there.is_dir() {
            std::fs::remove_dir_all(path)?;
        } else {
            std::fs::remove_file(path)?;
        }
    }
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_fits_into_one_message_whatever_the_refs_are_called() {
        let oid = "0123456789012345678901234567890123456789";
        let long = format!("{oid} refs/heads/{}\n", "x".repeat(4000)).repeat(1000);
        let refs = parse_refs(&long);
        assert!(!refs.is_empty());
        let manifest = Manifest { refs, ..Manifest::default() };
        let message = serde_json::to_vec(&manifest).unwrap();
        assert!(message.len() < cofferdam_link::limits::MAX_JSON_FRAME);
        let many = format!("{oid} refs/heads/x\n").repeat(MANIFEST_REFS + 5);
        assert_eq!(parse_refs(&many).len(), MANIFEST_REFS);
    }
}
