//! A private directory with a bare repository of ours that borrows the person's objects: new objects
//! go there, the person's store stays as it is.
//!
//! It must never outlive its use: it is removed on drop, and what a killed process left is swept by
//! the next one. Each directory holds a file that its owner keeps locked, so that a sweep tells the
//! living from the dead.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use cofferdam_git::{Authority, Call, Git, GitVar, Person, Scratch, authority::quoted};
use tempfile::TempDir;

use crate::checkout::Checkout;
use crate::error::WorkspaceError;

/// The directory, the repository in it, and room for temporary indexes.
#[derive(Debug)]
pub(crate) struct ScratchDir {
    // Dropped in this order: the directory goes before its lock.
    dir: TempDir,
    _alive: File,
    git: Git<Scratch>,
    borrowed: OsString,
}

impl ScratchDir {
    /// Makes one in `parent`, under a name that begins with `prefix`.
    pub(crate) async fn create(
        checkout: &Checkout,
        parent: &Path,
        prefix: &str,
    ) -> Result<Self, WorkspaceError> {
        Self::sweep(parent, prefix);
        let (dir, alive) =
            claim(parent, prefix).map_err(|e| WorkspaceError::io("created", parent, e))?;
        let bare = dir.path().join("repo.git");
        std::fs::create_dir(&bare).map_err(|e| WorkspaceError::io("created", &bare, e))?;
        let git = checkout.scratch_at(&bare).await?;
        Ok(Self { dir, _alive: alive, git, borrowed: quoted(checkout.objects_dir().as_os_str()) })
    }

    /// Removes what killed processes left in `parent`.
    fn sweep(parent: &Path, prefix: &str) {
        let Ok(entries) = std::fs::read_dir(parent) else { return };
        for entry in entries.flatten() {
            let ours = entry.file_name().to_string_lossy().starts_with(prefix);
            if !ours || !entry.file_type().is_ok_and(|t| t.is_dir()) {
                continue;
            }
            // Without the file its owner has just begun, or was killed within that instant.
            let Ok(alive) = File::open(entry.path().join(ALIVE)) else { continue };
            if alive.try_lock().is_ok() {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    pub(crate) fn git(&self) -> &Git<Scratch> {
        &self.git
    }

    /// The bare repository.
    pub(crate) fn repository(&self) -> &Path {
        self.git.directory()
    }

    /// A path for a temporary index.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Lets a call in the person's repository write its objects here.
    pub(crate) fn catching<'g>(&self, call: Call<'g, Person>) -> Call<'g, Person> {
        catching(call, self.repository(), &self.borrowed)
    }
}

/// True for a directory of ours whose owner is gone.
pub(crate) fn is_abandoned(place: &Path) -> bool {
    crate::stale::is_free(&place.join(ALIVE))
}

/// File in each directory that its owner keeps locked.
const ALIVE: &str = "alive";

/// Tries at a directory that a sweep did not take in the instant before it was locked.
const CLAIMS: u32 = 10;

fn claim(parent: &Path, prefix: &str) -> std::io::Result<(TempDir, File)> {
    for _ in 0..CLAIMS {
        let dir = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        let alive = File::create_new(dir.path().join(ALIVE))?;
        if alive.try_lock().is_ok() && dir.path().join(ALIVE).exists() {
            return Ok((dir, alive));
        }
    }
    Err(std::io::ErrorKind::ResourceBusy.into())
}

fn catching<'g, A: Authority>(
    call: Call<'g, A>,
    repository: &Path,
    borrowed: &OsString,
) -> Call<'g, A> {
    call.var(GitVar::ObjectDirectory, repository.join("objects"))
        .var(GitVar::AlternateObjectDirectories, borrowed)
        .config("core.fsync", "none")
}
