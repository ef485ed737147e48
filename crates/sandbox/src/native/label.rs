//! Labels: what a run's private directory says about its sandbox, so that a later process finds and
//! removes it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use cofferdam_run::ids::{InstanceId, RunId, TimestampMs};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::handoff::files;
use super::process::ProcessId;

/// Largest label or hand-off file that is read, bytes. A larger one counts as unreadable.
pub const LABEL_BYTES: u64 = 64 * 1024;

/// The label of one sandbox. Written before anything of it exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Label {
    pub(crate) run: RunId,
    pub(crate) instance: InstanceId,
    pub(crate) expires_at: TimestampMs,
    /// The launcher, once it was started.
    pub(crate) launcher: Option<ProcessId>,
}

impl Label {
    /// The sandbox's name.
    pub(crate) fn identity(&self) -> String {
        identity(&self.run)
    }

    /// The label in `run_dir`; `None` when there is none.
    pub(crate) fn read(run_dir: &Path) -> io::Result<Option<Self>> {
        read_json(&run_dir.join(files::LABEL))
    }

    /// Writes it, whole or not at all.
    pub(crate) fn write(&self, run_dir: &Path) -> io::Result<()> {
        write_json(&run_dir.join(files::LABEL), self)
    }
}

/// The name of a run's sandbox.
pub(crate) fn identity(run: &RunId) -> String {
    format!("cofferdam-{run}")
}

/// Reads a small JSON file; `None` when it does not exist.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    use io::Read as _;
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(LABEL_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LABEL_BYTES {
        return Err(io::Error::other("larger than any of ours"));
    }
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// Writes a JSON file beside its place, then moves it there.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let partial = path.with_extension("part");
    let mut file = File::create(&partial)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_all()?;
    fs::rename(partial, path)
}
