//! Moving a run's work out of its volume before the volume goes.
//!
//! It never follows a link that the guest put there, never moves while something of the guest still
//! runs, and never hands over a repository that git would take for one.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cofferdam_run::engine::EngineKind;
use cofferdam_run::ids::{InstanceId, RunId};

use super::handoff::files;
use super::{io_error, sweep};
use crate::disarm;
use crate::error::SandboxError;

/// Name of the repository in the volume: the last part of [`cofferdam_wire::layout::REPO`].
const REPO_NAME: &str = "repo";

/// Ends what is left of the sandbox and moves its repository to `to`, which must not exist and must
/// be on the same file system. Where the repository should be and there is none, all of the work is
/// moved. `false` when there is no sandbox of that label or nothing but empty directories in it. On
/// an error the work stays where it is.
pub(super) async fn take(
    runs_root: &Path,
    instance: &InstanceId,
    run: &RunId,
    to: &Path,
) -> Result<bool, SandboxError> {
    let run_dir = runs_root.join(run.as_str());
    let failed = |detail| SandboxError::Engine {
        engine: EngineKind::Native,
        attempt: "end the sandbox before saving its work",
        detail,
    };
    if !sweep::end_all(&run_dir, instance, run).await.map_err(failed)? {
        return Ok(false);
    }
    let (work, to) = (run_dir.join(files::WORK), to.to_owned());
    tokio::task::spawn_blocking(move || hand_over(&work, &to))
        .await
        .map_err(|error| failed(error.to_string()))?
}

fn hand_over(work: &Path, to: &Path) -> Result<bool, SandboxError> {
    // Opened up first: an ordinary user cannot look into the repository otherwise.
    let from = match with_content(work)? {
        None => return Ok(false),
        Some(work) => with_content(&work.join(REPO_NAME))?.unwrap_or(work),
    };
    // Before the move: at its new place it is harmless from the first moment.
    disarm::disarm(&from).map_err(io_error("make harmless", &from))?;
    fs::rename(&from, to).map_err(io_error("move the work to", to))?;
    disarm::explain(to);
    Ok(true)
}

/// The path, when it is a real directory with more below it than empty directories.
fn with_content(path: &Path) -> Result<Option<PathBuf>, SandboxError> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => {}
        // A link leads nowhere that is the run's own.
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error("look at", path)(error)),
    }
    // A directory without these can be neither read nor moved by an ordinary user.
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(io_error("open", path))?;
    let content = disarm::has_content(path).map_err(io_error("look into", path))?;
    Ok(content.then(|| path.to_owned()))
}
