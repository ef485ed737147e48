//! Emptying and removing a run's cgroups, and proving it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::members;
use crate::native::process::ProcessId;

/// How long teardown waits for killed processes to leave, milliseconds. Past it the teardown is
/// reported as failed, with the processes named; a later sweep tries again.
pub const LEAVE_MS: u64 = 10_000;
const STEP_MS: u64 = 2;

/// Kills what is in the directories, waits until they are empty, removes them and then their empty
/// parents. On success none of the directories exists any more.
pub(crate) async fn remove(directories: &[PathBuf]) -> Result<(), String> {
    remove_with(directories, |path| fs::remove_dir(path)).await
}

/// As [`remove`], with directories taken away by `rmdir`.
pub(super) async fn remove_with(
    directories: &[PathBuf],
    rmdir: impl Fn(&Path) -> io::Result<()>,
) -> Result<(), String> {
    empty(directories).await?;
    for directory in directories {
        let mut waited = 0;
        loop {
            match rmdir(directory) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                // A process that was just killed may still be on its way out.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && waited < LEAVE_MS => {
                    tokio::time::sleep(Duration::from_millis(STEP_MS)).await;
                    waited += STEP_MS;
                }
                Err(error) => {
                    return Err(format!("{} stays: {error}", directory.display()));
                }
            }
        }
        if directory.exists() {
            return Err(format!("{} is still there after its removal", directory.display()));
        }
        // `INSTANCE` and `cofferdam`: taken away when nothing else is in them.
        for parent in directory.ancestors().skip(1).take(2) {
            if rmdir_empty(parent, &rmdir).is_err() {
                break;
            }
        }
    }
    Ok(())
}

fn rmdir_empty(parent: &Path, rmdir: &impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    // The kernel refuses by itself when there are children; the look before is for file systems
    // that would not.
    for entry in fs::read_dir(parent)? {
        if entry?.file_type()?.is_dir() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
    }
    rmdir(parent)
}

/// Kills until nothing is left.
pub(crate) async fn empty(directories: &[PathBuf]) -> Result<(), String> {
    let mut waited = 0;
    loop {
        let mut left = Vec::new();
        for directory in directories {
            let pids = members(directory);
            if !pids.is_empty() {
                kill(directory, &pids);
                left.extend(pids);
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        if waited >= LEAVE_MS {
            left.sort_unstable();
            left.dedup();
            return Err(format!("processes do not end after SIGKILL: {left:?}"));
        }
        tokio::time::sleep(Duration::from_millis(STEP_MS)).await;
        waited += STEP_MS;
    }
}

fn kill(directory: &Path, pids: &[i32]) {
    // Version 2 kills all at once, forks in flight included. Elsewhere the file is missing.
    let whole = directory.join("cgroup.kill");
    if whole.exists() && fs::write(whole, "1").is_ok() {
        return;
    }
    for &pid in pids {
        // Bound first, then checked to be a member still, so that a reused number is not hit.
        let Ok(process) = ProcessId::of(pid) else { continue };
        if members(directory).contains(&pid) {
            process.kill();
        }
    }
}
