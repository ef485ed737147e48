//! The workspace comes in: a bundle becomes a repository with the base checked out.
//!
//! Never takes more bytes than were announced, and never reports a workspace whose `HEAD` is not
//! the base.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use cofferdam_link::{Incoming, LinkStream};
use cofferdam_run::ids::ObjectId;
use cofferdam_wire::{StreamOpen, WorkspaceSpec};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::git::{Git, GitError};
use crate::limits::GIT_LONG_CALL;
use crate::places::Places;

/// Why the workspace did not come in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    #[error("the host opened no bundle stream")]
    NoStream,
    #[error("the host opened another stream than the bundle's")]
    OtherStream,
    #[error("{what} could not be made: {source}")]
    Make { what: String, source: std::io::Error },
    #[error("the bundle could not be received: {0}")]
    Receive(std::io::Error),
    #[error("the bundle has {got} bytes, {announced} were announced")]
    Size { announced: u64, got: u64 },
    #[error(transparent)]
    Git(#[from] GitError),
    #[error("HEAD is {head} and not the base {base}")]
    Head { head: String, base: ObjectId },
}

/// Waits for the bundle and imports it. Returns the commit at `HEAD`.
pub(crate) async fn workspace(
    places: &Places,
    incoming: &mut Incoming,
    git: &Git,
    spec: &WorkspaceSpec,
) -> Result<ObjectId, ImportError> {
    directory(&places.home)?;
    directory(&places.repo)?;
    let (header, stream) = incoming.next().await.ok_or(ImportError::NoStream)?;
    let announced = match serde_json::from_slice(&header) {
        Ok(StreamOpen::BundleIn { bytes }) => bytes,
        _ => return Err(ImportError::OtherStream),
    };
    let bundle = places.bundle_in();
    receive(stream, announced, &bundle).await?;
    let result = check_out(git, spec, &bundle).await;
    // Needed no longer either way; what cannot be removed only takes room.
    let _ = tokio::fs::remove_file(&bundle).await;
    result
}

/// Makes a private directory unless it is there.
fn directory(path: &Path) -> Result<(), ImportError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| ImportError::Make { what: path.display().to_string(), source })
}

async fn receive(stream: LinkStream, announced: u64, path: &Path) -> Result<(), ImportError> {
    let make = |source| ImportError::Make { what: path.display().to_string(), source };
    let mut file = File::create_new(path).await.map_err(make)?;
    // One byte more shows a host that sends too much.
    let mut stream = stream.take(announced.saturating_add(1));
    let got = tokio::io::copy(&mut stream, &mut file).await.map_err(ImportError::Receive)?;
    file.flush().await.map_err(ImportError::Receive)?;
    // Says to the host that the guest has nothing to say here.
    let _ = stream.into_inner().shutdown().await;
    if got == announced { Ok(()) } else { Err(ImportError::Size { announced, got }) }
}

async fn check_out(
    git: &Git,
    spec: &WorkspaceSpec,
    bundle: &Path,
) -> Result<ObjectId, ImportError> {
    let base = spec.base.as_str();
    let format = format!("--object-format={}", spec.object_format);
    let initial = format!("--initial-branch={}", spec.branch);
    let branch = format!("refs/heads/{}", spec.branch);
    git.run(&["init", "--quiet", "--template=", &format, &initial, "."]).await?;
    let bundle = bundle.to_string_lossy();
    let fetch =
        ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", &bundle, &spec.bundle_ref];
    git.run_within(&fetch, GIT_LONG_CALL).await?;
    git.run(&["update-ref", "--", &branch, base]).await?;
    git.run_within(&["reset", "--quiet", "--hard"], GIT_LONG_CALL).await?;
    git.run(&["config", "user.name", &spec.identity.name]).await?;
    git.run(&["config", "user.email", &spec.identity.email]).await?;
    let head = git.run(&["rev-parse", "--verify", "HEAD^{commit}"]).await?;
    match head.trim().parse::<ObjectId>() {
        Ok(head) if head == spec.base => Ok(head),
        _ => Err(ImportError::Head { head: head.trim().to_owned(), base: spec.base.clone() }),
    }
}
