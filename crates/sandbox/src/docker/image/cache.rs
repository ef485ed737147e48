//! What is remembered between runs about the host's files, and the lock between processes.
//!
//! The memory saves reading a hundred megabytes to learn a digest. It is keyed by size, times and
//! inode of every file, and must never be believed when the key differs.

use std::fs::{self, File};
use std::io;
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
pub(super) fn remember(state_dir: &Path, key: &Digest, layer: &LayerDigest) -> io::Result<()> {
    let known = Known { key: key.clone(), digest: layer.digest.clone(), len: layer.len };
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
