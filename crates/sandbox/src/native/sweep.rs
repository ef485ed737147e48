//! Finding and removing native sandboxes by their labels.
//!
//! It never touches what another instance's label or cgroup path names, never signals a process
//! whose start time differs from the recorded one, and never follows a link in the run's volume.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::ids::{InstanceId, RunId, TimestampMs};

use super::cgroup::{self, Hierarchies, removal::LEAVE_MS};
use super::handoff::files;
use super::io_error;
use super::label::{self, Label};
use super::process::ProcessId;
use crate::engine::Found;
use crate::error::SandboxError;
use crate::tree;

const STEP_MS: u64 = 2;

/// All sandboxes of the instance: those with a label, and those of which only a cgroup is left.
pub(super) fn list(runs_root: &Path, instance: &InstanceId) -> Result<Vec<Found>, SandboxError> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(runs_root) {
        Ok(entries) => Some(entries),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io_error("list", runs_root)(error)),
    };
    let hierarchies = Hierarchies::detect();
    for entry in entries.into_iter().flatten() {
        let entry = entry.map_err(io_error("list", runs_root))?;
        let run_dir = entry.path();
        let Some(run) = run_of(&run_dir) else { continue };
        let label = match Label::read(&run_dir) {
            Ok(Some(label)) if label.instance == *instance && label.run == run => label,
            Ok(_) => continue,
            // A label that cannot be read is a sandbox that cannot be removed: say so, loudly.
            Err(error) => return Err(io_error("read the label in", &run_dir)(error)),
        };
        let directories = cgroup::directories_of(&hierarchies, instance, &run);
        found.push(Found {
            sandbox: label.identity(),
            running: processes(&run_dir, &label).iter().any(|p| p.is_running())
                || directories.iter().any(|d| !cgroup::members(d).is_empty()),
            run,
            instance: label.instance,
            expires_at: label.expires_at,
        });
    }
    for run in cgroup::runs_of(&hierarchies, instance) {
        if found.iter().all(|f| f.run != run) {
            let directories = cgroup::directories_of(&hierarchies, instance, &run);
            found.push(Found {
                sandbox: label::identity(&run),
                running: directories.iter().any(|d| !cgroup::members(d).is_empty()),
                run,
                instance: instance.clone(),
                // Nothing says how long it was meant to live, and nothing owns it any more.
                expires_at: TimestampMs(0),
            });
        }
    }
    Ok(found)
}

fn run_of(run_dir: &Path) -> Option<RunId> {
    run_dir.file_name()?.to_str()?.parse().ok()
}

/// Launcher and first process, as far as they were recorded.
fn processes(run_dir: &Path, label: &Label) -> Vec<ProcessId> {
    let first = label::read_json::<ProcessId>(&run_dir.join(files::CHILD)).ok().flatten();
    label.launcher.into_iter().chain(first).collect()
}

/// Removes everything of a sandbox and proves it.
pub(super) async fn remove(
    runs_root: &Path,
    instance: &InstanceId,
    run: &RunId,
) -> TeardownOutcome {
    let run_dir = runs_root.join(run.as_str());
    match try_remove(&run_dir, instance, run).await {
        Ok(true) => TeardownOutcome::Removed,
        Ok(false) => TeardownOutcome::AlreadyGone,
        Err(detail) => TeardownOutcome::Failed { detail },
    }
}

async fn try_remove(run_dir: &Path, instance: &InstanceId, run: &RunId) -> Result<bool, String> {
    let label = Label::read(run_dir).map_err(|e| format!("label in {}: {e}", run_dir.display()))?;
    let label = label.filter(|label| label.instance == *instance && label.run == *run);
    let directories = cgroup::directories_of(&Hierarchies::detect(), instance, run);
    if label.is_none() && directories.is_empty() {
        return Ok(false);
    }
    if let Some(label) = &label {
        end(&processes(run_dir, label)).await?;
    }
    cgroup::remove(&directories).await?;
    if label.is_some() {
        let run_dir = run_dir.to_owned();
        tokio::task::spawn_blocking(move || remove_files(&run_dir))
            .await
            .map_err(|error| error.to_string())??;
    }
    Ok(true)
}

/// Ends everything that a sandbox still runs, and removes nothing. `false` when there is no label of
/// it.
pub(super) async fn end_all(
    run_dir: &Path,
    instance: &InstanceId,
    run: &RunId,
) -> Result<bool, String> {
    let label = Label::read(run_dir).map_err(|e| format!("label in {}: {e}", run_dir.display()))?;
    let Some(label) = label.filter(|label| label.instance == *instance && label.run == *run) else {
        return Ok(false);
    };
    end(&processes(run_dir, &label)).await?;
    cgroup::empty(&cgroup::directories_of(&Hierarchies::detect(), instance, run)).await?;
    Ok(true)
}

/// Kills the recorded processes and waits until they have ended.
async fn end(processes: &[ProcessId]) -> Result<(), String> {
    let mut waited = 0;
    // First process last in the list, first to be killed: its parent then reports and ends itself.
    for process in processes.iter().rev() {
        process.kill();
    }
    while let Some(left) = processes.iter().find(|p| p.is_running()) {
        if waited >= LEAVE_MS {
            return Err(format!("process {} does not end after SIGKILL", left.pid));
        }
        tokio::time::sleep(Duration::from_millis(STEP_MS)).await;
        waited += STEP_MS;
    }
    Ok(())
}

/// The label goes last: until then the sandbox is found again.
fn remove_files(run_dir: &Path) -> Result<(), String> {
    let gone = |path: PathBuf, result: io::Result<()>| match result {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("{} stays: {error}", path.display())),
    };
    let work = run_dir.join(files::WORK);
    gone(work.clone(), tree::remove(&work))?;
    let root = run_dir.join(files::ROOT);
    gone(root.clone(), fs::remove_dir(&root))?;
    let partial = ["child.json.part", "child.part", "label.part", "launch.part"];
    for name in [files::LAUNCH, files::CHILD].into_iter().chain(partial).chain([files::LABEL]) {
        let path = run_dir.join(name);
        gone(path.clone(), fs::remove_file(&path))?;
    }
    // Others may keep their own files beside ours; then the directory stays.
    let _others_files = fs::remove_dir(run_dir);
    Ok(())
}
