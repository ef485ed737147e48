//! What is remembered between runs about the host's files, and the lock between processes.
//!
//! The memory saves reading a hundred megabytes to learn a digest, and finding out anew which libraries
//! some two hundred programs need. It is keyed by size, times and inode of every file, directory and
//! link that was looked at, and must never be believed when one of them differs.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_run::engine::EngineKind;
use cofferdam_run::ids::Digest;
use serde::{Deserialize, Serialize};

use super::tree::LayerDigest;
use crate::docker::call::IMAGE_TIMEOUT;
use crate::error::SandboxError;

/// Pause between two tries for the lock.
const LOCK_POLL: Duration = Duration::from_millis(50);

#[derive(Serialize, Deserialize)]
struct Known {
    key: Digest,
    digest: Digest,
    len: u64,
    /// What was looked at, and how all of it looked. Absent in what an older version wrote.
    #[serde(default)]
    seen: Option<Seen>,
}

/// Everything that a plan depends on.
#[derive(Serialize, Deserialize)]
struct Seen {
    places: Vec<PathBuf>,
    stamp: Digest,
}

/// A moment by the clock of a file system: seconds and nanoseconds.
pub(super) type Moment = (i64, i64);

/// Now, as the clock of the state directory's file system has it.
pub(super) fn now(state_dir: &Path) -> io::Result<Moment> {
    fs::create_dir_all(state_dir)?;
    let meta = tempfile::tempfile_in(state_dir)?.metadata()?;
    Ok((meta.ctime(), meta.ctime_nsec()))
}

/// A digest over how these places look, links as links, and when the last of them changed. One that is
/// not there looks like that.
fn stamp(places: &[PathBuf]) -> io::Result<(Digest, Moment)> {
    use sha2::Digest as _;
    let mut hash = sha2::Sha256::new();
    let mut last = (0, 0);
    for place in places {
        let line = match fs::symlink_metadata(place) {
            Ok(meta) => {
                last = last.max((meta.ctime(), meta.ctime_nsec()));
                format!(
                    "{place:?} {} {} {:o} {} {}.{} {}.{}\n",
                    meta.dev(),
                    meta.ino(),
                    meta.mode(),
                    meta.len(),
                    meta.mtime(),
                    meta.mtime_nsec(),
                    meta.ctime(),
                    meta.ctime_nsec(),
                )
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => format!("{place:?} none\n"),
            Err(error) => return Err(error),
        };
        hash.update(line.as_bytes());
    }
    Ok((Digest::from_sha256(hash.finalize().into()), last))
}

/// The base layer's digest without a plan, when nothing that the last plan looked at was touched.
pub(super) fn recall_unplanned(state_dir: &Path) -> Option<LayerDigest> {
    let known: Known = serde_json::from_slice(&fs::read(place(state_dir)).ok()?).ok()?;
    let seen = known.seen?;
    (stamp(&seen.places).ok()?.0 == seen.stamp)
        .then_some(LayerDigest { digest: known.digest, len: known.len })
}

fn place(state_dir: &Path) -> PathBuf {
    state_dir.join("docker-base.json")
}

/// The base layer's digest, when nothing was touched since it was taken.
pub(super) fn recall(state_dir: &Path, key: &Digest) -> Option<LayerDigest> {
    let known: Known = serde_json::from_slice(&fs::read(place(state_dir)).ok()?).ok()?;
    (known.key == *key).then_some(LayerDigest { digest: known.digest, len: known.len })
}

/// Remembers it. Written beside and renamed, so that a reader never sees half of it.
///
/// `places` is what a plan that began at `planned` depends on. They are remembered only when all of them
/// are older: what changed while it was planned may be in the plan or not.
pub(super) fn remember(
    state_dir: &Path,
    key: &Digest,
    layer: &LayerDigest,
    places: Vec<PathBuf>,
    planned: Moment,
) -> io::Result<()> {
    let seen = match stamp(&places) {
        Ok((stamp, last)) if last < planned => Some(Seen { places, stamp }),
        Ok(_) | Err(_) => None,
    };
    let known = Known { key: key.clone(), digest: layer.digest.clone(), len: layer.len, seen };
    let mut file = tempfile::NamedTempFile::new_in(state_dir)?;
    serde_json::to_writer(&mut file, &known)?;
    file.persist(place(state_dir)).map_err(|error| error.error)?;
    Ok(())
}

/// Held while an image is built.
#[derive(Debug)]
pub(super) struct BuildLock {
    _file: File,
}

impl BuildLock {
    /// Waits for other processes that build on the same state directory.
    pub(super) async fn take(state_dir: &Path) -> Result<Self, SandboxError> {
        let path = state_dir.join("docker-image.lock");
        let io = |source| SandboxError::Io { attempt: "lock", path: path.clone(), source };
        fs::create_dir_all(state_dir).map_err(io)?;
        let file = File::create(&path).map_err(io)?;
        let wait = async {
            loop {
                match file.try_lock() {
                    Ok(()) => return Ok(()),
                    Err(fs::TryLockError::WouldBlock) => tokio::time::sleep(LOCK_POLL).await,
                    Err(fs::TryLockError::Error(error)) => return Err(io(error)),
                }
            }
        };
        match tokio::time::timeout(IMAGE_TIMEOUT, wait).await {
            Ok(Ok(())) => Ok(Self { _file: file }),
            Ok(Err(error)) => Err(error),
            Err(_elapsed) => Err(SandboxError::Timeout {
                engine: EngineKind::Docker,
                attempt: "let another process finish its image",
                limit_ms: u64::try_from(IMAGE_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer() -> LayerDigest {
        LayerDigest { digest: Digest::of(b"layer"), len: 7 }
    }

    #[test]
    fn what_is_remembered_holds_until_something_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let (state, host) = (dir.path().join("state"), dir.path().join("host"));
        fs::create_dir_all(&state).unwrap();
        fs::create_dir_all(&host).unwrap();
        fs::write(host.join("file"), "1").unwrap();
        std::os::unix::fs::symlink("file", host.join("link")).unwrap();
        let remember_all = |planned| {
            let places = ["", "file", "link", "not-there"].map(|name| host.join(name)).to_vec();
            remember(&state, &Digest::of(b"key"), &layer(), places, planned).unwrap();
            recall_unplanned(&state)
        };
        let later = (i64::MAX, 0);
        assert_eq!(remember_all(later), Some(layer()));
        fs::write(host.join("file"), "22").unwrap();
        assert_eq!(recall_unplanned(&state), None, "a file has changed");
        remember_all(later);
        fs::remove_file(host.join("link")).unwrap();
        std::os::unix::fs::symlink("elsewhere", host.join("link")).unwrap();
        assert_eq!(recall_unplanned(&state), None, "a link leads elsewhere");
        remember_all(later);
        fs::write(host.join("new"), "").unwrap();
        assert_eq!(recall_unplanned(&state), None, "a directory has one more entry");
        remember_all(later);
        fs::write(host.join("not-there"), "").unwrap();
        assert_eq!(recall_unplanned(&state), None, "something is there now");
        assert_eq!(remember_all((0, 0)), None, "it changed after the plan was begun");
    }

    #[test]
    fn memory_of_an_older_version_is_no_memory() {
        let dir = tempfile::tempdir().unwrap();
        let (key, layer) = (Digest::of(b"key"), layer());
        let old = format!(r#"{{"key":"{key}","digest":"{}","len":7}}"#, layer.digest);
        fs::write(place(dir.path()), old).unwrap();
        assert_eq!(recall_unplanned(dir.path()), None);
        assert_eq!(recall(dir.path(), &key), Some(layer));
    }
}
