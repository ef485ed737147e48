//! The two locks of an apply: ours, one per repository, and git's own of the index.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::ApplyError;
use crate::error::WorkspaceError;

/// How often, and how long apart, the lock is tried before the apply gives up with `Busy`.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// Held for a whole apply; released by the kernel however the process ends.
#[derive(Debug)]
pub(super) struct ApplyLock(#[expect(dead_code, reason = "held for its lock")] File);

impl ApplyLock {
    /// Takes the lock file in `directory`.
    pub(super) async fn take(directory: &Path) -> Result<Self, ApplyError> {
        let path = directory.join("apply.lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|e| WorkspaceError::io("opened", &path, e))?;
        for _ in 0..ATTEMPTS {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::WouldBlock) => tokio::time::sleep(PAUSE).await,
                Err(TryLockError::Error(e)) => {
                    return Err(WorkspaceError::io("locked", &path, e).into());
                }
            }
        }
        Err(ApplyError::Busy)
    }
}

/// `index.lock`, by git's own protocol: while it exists no other git writes the index, and renaming
/// it puts its content in place at once.
#[derive(Debug)]
pub(super) struct IndexLock {
    file: File,
    path: PathBuf,
    /// Says in `.git/cofferdam` which lock is ours, for the next apply when this one is killed.
    owned: PathBuf,
    done: bool,
}

impl IndexLock {
    /// Takes it. The caller holds the [`ApplyLock`] of `room`.
    pub(super) fn take(git_dir: &Path, room: &Path) -> Result<Self, ApplyError> {
        let path = git_dir.join("index.lock");
        let owned = room.join("index.lock.owned");
        // Whoever wrote this note had the apply lock, and is dead: we hold it now.
        let ours = std::fs::read_to_string(&owned).ok();
        if ours.is_some() && ours == identity(&path) {
            let _ = std::fs::remove_file(&path);
        }
        let lock = Self::create(path, owned)?;
        if let Some(identity) = identity(&lock.path) {
            std::fs::write(&lock.owned, identity)
                .map_err(|e| WorkspaceError::io("written", &lock.owned, e))?;
        }
        Ok(lock)
    }

    fn create(path: PathBuf, owned: PathBuf) -> Result<Self, ApplyError> {
        match OpenOptions::new().create_new(true).write(true).open(&path) {
            Ok(file) => Ok(Self { file, path, owned, done: false }),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                Err(ApplyError::IndexLocked(path))
            }
            Err(e) => Err(WorkspaceError::io("created", path, e).into()),
        }
    }

    /// Writes the new index into the lock, ready to be put in place.
    pub(super) fn fill(&mut self, index: &Path) -> std::io::Result<()> {
        let bytes = std::fs::read(index)?;
        self.file.write_all(&bytes)?;
        // As in `stage::copy_index`: git judges by this time which entries may have changed unseen.
        self.file.set_modified(index.metadata()?.modified()?)?;
        self.file.sync_all()
    }

    /// Puts it in place.
    pub(super) fn commit(mut self) -> std::io::Result<()> {
        std::fs::rename(&self.path, self.path.with_extension(""))?;
        self.done = true;
        Ok(())
    }
}

impl Drop for IndexLock {
    fn drop(&mut self) {
        if !self.done {
            let _ = std::fs::remove_file(&self.path);
        }
        let _ = std::fs::remove_file(&self.owned);
    }
}

/// The index lock and the note beside it, when a killed apply of ours left them.
pub(crate) fn abandoned_index_lock(git_dir: &Path, room: &Path) -> Vec<PathBuf> {
    let (path, owned) = (git_dir.join("index.lock"), room.join("index.lock.owned"));
    let Ok(note) = std::fs::read_to_string(&owned) else { return Vec::new() };
    // Whoever holds the apply lock wrote the note; a free one means that its writer is dead.
    if !crate::stale::is_free(&room.join("apply.lock")) {
        return Vec::new();
    }
    if identity(&path).is_some_and(|identity| identity == note) {
        vec![path, owned]
    } else {
        vec![owned]
    }
}

/// Place, inode and time of birth: together no other file ever has them. `None` where the file system
/// does not tell, and then a lock is never taken for ours.
fn identity(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = path.symlink_metadata().ok()?;
    let born = metadata.created().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(format!("{} {} {}", path.display(), metadata.ino(), born.as_nanos()))
}
