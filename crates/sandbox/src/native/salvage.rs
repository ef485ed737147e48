//! Moving a run's repository out of its volume before the volume goes.
//!
//! It never follows a link that the guest put there, and never moves while something of the guest
//! still runs.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use cofferdam_run::engine::EngineKind;
use cofferdam_run::ids::{InstanceId, RunId};

use super::handoff::files;
use super::{io_error, sweep};
use crate::error::SandboxError;

/// Name of the repository in the volume: the last part of [`cofferdam_wire::layout::REPO`].
const REPO_NAME: &str = "repo";

/// Ends what is left of the sandbox and moves its repository to `to`, which must not exist and must
/// be on the same file system. `false` when there is no sandbox of that label or no repository.
pub(super) async fn take(
    runs_root: &Path,
    instance: &InstanceId,
    run: &RunId,
    to: &Path,
) -> Result<bool, SandboxError> {
    let run_dir = runs_root.join(run.as_str());
    let ended =
        sweep::end_all(&run_dir, instance, run).await.map_err(|detail| SandboxError::Engine {
            engine: EngineKind::Native,
            attempt: "end the sandbox before saving its work",
            detail,
        })?;
    if !ended {
        return Ok(false);
    }
    let repository = run_dir.join(files::WORK).join(REPO_NAME);
    match fs::symlink_metadata(&repository) {
        Ok(meta) if meta.is_dir() => {}
        // A link leads nowhere that is the run's own.
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io_error("look at", &repository)(error)),
    }
    // A directory without write permission cannot be moved by an ordinary user.
    fs::set_permissions(&repository, fs::Permissions::from_mode(0o700))
        .map_err(io_error("open", &repository))?;
    fs::rename(&repository, to).map_err(io_error("move the repository to", to))?;
    Ok(true)
}
