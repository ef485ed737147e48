//! The native engine's work directory is put aside, so that the verdict does not wait for the removal
//! of a million files; it is removed when the verdict is durable.
//!
//! It must never be put where anything takes it for work that was kept.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_run::EngineKind;

use crate::paths::create_private_dir;
use crate::supervise::Ctx;

/// How long a run's end waits for that removal. What is left then goes with the next sweep.
pub(crate) const REMOVAL_WAIT: Duration = Duration::from_secs(60);

/// Moves the work directory aside; everything in the sandbox has ended. Gives its place. Where it
/// cannot be moved (a volume of its own, say) the teardown removes it.
pub(super) fn put(ctx: &Ctx<'_>) -> Option<PathBuf> {
    if ctx.spec.engine != EngineKind::Native {
        return None;
    }
    let work = ctx.paths.work();
    let place = ctx.host.paths.trash(&ctx.id);
    let moved = move_aside(&work, &place);
    if let Err(error) = &moved {
        tracing::debug!(run = %ctx.id, error = %error, "work directory not put aside");
    }
    moved.ok().map(|()| place)
}

fn move_aside(work: &Path, place: &Path) -> std::io::Result<()> {
    if !std::fs::symlink_metadata(work)?.is_dir() {
        return Err(std::io::ErrorKind::NotADirectory.into());
    }
    if let Some(parent) = place.parent() {
        create_private_dir(parent)?;
    }
    // A directory that its owner may not write cannot be moved by an ordinary user.
    std::fs::set_permissions(work, std::fs::Permissions::from_mode(0o700))?;
    std::fs::rename(work, place)
}

/// Removes it, as far as that goes in time.
pub(super) async fn remove(ctx: &Ctx<'_>, place: PathBuf) {
    let shown = place.display().to_string();
    let removing = tokio::task::spawn_blocking(move || cofferdam_sandbox::remove_tree(&place));
    match tokio::time::timeout(REMOVAL_WAIT, removing).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => {
            tracing::warn!(run = %ctx.id, place = shown, error = %error, "not removed; sweep will")
        }
        Ok(Err(_)) | Err(_) => {
            tracing::warn!(run = %ctx.id, place = shown, "not removed in time; sweep will")
        }
    }
}
