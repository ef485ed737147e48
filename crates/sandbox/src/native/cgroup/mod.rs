//! The run's cgroups: created, limited, read back, emptied and removed by the host process.
//!
//! Everything lies under `cofferdam/INSTANCE/RUN` of each hierarchy. It never writes to a cgroup of
//! another instance, and never reports a limit that it has not read back from the kernel.

mod hierarchy;
pub(crate) mod removal;
mod setup;
pub(crate) mod usage;

use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_run::ids::{InstanceId, RunId};
use cofferdam_run::posture::LayerReport;

pub(crate) use hierarchy::Hierarchies;
pub(crate) use removal::{empty, remove};

use super::handoff::CgroupView;

/// Name of the directory under which all of ours lie.
pub(crate) const TOP: &str = "cofferdam";

/// Leaf to which the host process itself moves where version 2 asks for it.
pub(crate) const HOST_LEAF: &str = "cofferdam-host";

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }
}

/// Which interface a hierarchy speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

/// The run's cgroups, after setting up.
#[derive(Debug)]
pub(crate) struct RunCgroups {
    /// Directories that exist now, one per hierarchy.
    pub(crate) directories: Vec<PathBuf>,
    /// What is shown of them inside.
    pub(crate) views: Vec<CgroupView>,
    /// Memory, processes and processor, as read back.
    pub(crate) read_back: Vec<LayerReport>,
}

/// Directory of a run below the base of a hierarchy.
pub(crate) fn run_directory(base: &Path, instance: &InstanceId, run: &RunId) -> PathBuf {
    base.join(TOP).join(instance.as_str()).join(run.as_str())
}

/// Runs of the instance that have a cgroup, whether or not anything else of them is left.
pub(crate) fn runs_of(hierarchies: &Hierarchies, instance: &InstanceId) -> Vec<RunId> {
    let mut runs: Vec<RunId> = hierarchies
        .bases()
        .filter_map(|base| fs::read_dir(base.join(TOP).join(instance.as_str())).ok())
        .flatten()
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    runs.sort();
    runs.dedup();
    runs
}

/// The directories of a run that exist.
pub(crate) fn directories_of(
    hierarchies: &Hierarchies,
    instance: &InstanceId,
    run: &RunId,
) -> Vec<PathBuf> {
    hierarchies
        .bases()
        .map(|base| run_directory(base, instance, run))
        .filter(|path| path.is_dir())
        .collect()
}

/// Processes in a cgroup. Empty when it has gone.
pub(crate) fn members(directory: &Path) -> Vec<i32> {
    fs::read_to_string(directory.join("cgroup.procs"))
        .map(|text| text.lines().filter_map(|line| line.parse().ok()).collect())
        .unwrap_or_default()
}

/// True when the memory limit killed something. Must be asked before the directory goes.
pub(crate) fn oom_killed(directories: &[PathBuf]) -> bool {
    usage::read(directories).oom_kills.is_some_and(|kills| kills > 0)
}

#[cfg(test)]
mod tests;
