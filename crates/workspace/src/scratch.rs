//! A private directory with a bare repository of ours that borrows the person's objects: new objects
//! go there, the person's store stays as it is.
//!
//! It must never outlive its use: it is removed on drop, and what a killed process left is swept by
//! the next one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cofferdam_git::{Authority, Call, Git, GitVar, Person, Scratch, authority::quoted};
use tempfile::TempDir;

use crate::checkout::Checkout;
use crate::error::WorkspaceError;

/// The directory, the repository in it, and room for temporary indexes.
#[derive(Debug)]
pub(crate) struct ScratchDir {
    dir: TempDir,
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
        let dir = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(parent)
            .map_err(|e| WorkspaceError::io("created", parent, e))?;
        let bare = dir.path().join("repo.git");
        std::fs::create_dir(&bare).map_err(|e| WorkspaceError::io("created", &bare, e))?;
        let git = checkout.scratch_at(&bare).await?;
        Ok(Self { dir, git, borrowed: quoted(checkout.objects_dir().as_os_str()) })
    }

    /// Removes what killed processes left in `parent`. Only for callers that hold the lock of
    /// `parent`, or own it.
    pub(crate) fn sweep(parent: &Path, prefix: &str) {
        let Ok(entries) = std::fs::read_dir(parent) else { return };
        for entry in entries.flatten() {
            let ours = entry.file_name().to_string_lossy().starts_with(prefix);
            if ours && entry.file_type().is_ok_and(|t| t.is_dir()) {
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

fn catching<'g, A: Authority>(
    call: Call<'g, A>,
    repository: &Path,
    borrowed: &OsString,
) -> Call<'g, A> {
    call.var(GitVar::ObjectDirectory, repository.join("objects"))
        .var(GitVar::AlternateObjectDirectories, borrowed)
        .config("core.fsync", "none")
}
