//! Creating a run's cgroups, writing its limits and reading them back.

use std::fs;
use std::io;
use std::path::Path;

use cofferdam_run::ids::{InstanceId, RunId};
use cofferdam_run::posture::{Layer, LayerReport, LayerStatus};

use super::hierarchy::Base;
use super::{Controller, HOST_LEAF, Hierarchies, RunCgroups, TOP, Version, members, run_directory};
use crate::native::handoff::CgroupView;
use crate::spec::{CPU_PERIOD_US, Limits};

/// How often creation starts again because another run's teardown took a common parent away.
const CREATE_ATTEMPTS: u32 = 8;

impl RunCgroups {
    /// Creates the cgroups of a run. What cannot be had is reported as absent, with the reason; it
    /// is the caller who decides whether that will do.
    pub(crate) fn create(
        hierarchies: &Hierarchies,
        instance: &InstanceId,
        run: &RunId,
        limits: &Limits,
    ) -> Self {
        Self::create_with(hierarchies, instance, run, limits, |path| fs::create_dir(path))
    }

    /// As [`RunCgroups::create`], with directories made by `mkdir`, which in a test also makes the
    /// files that a kernel would.
    pub(super) fn create_with(
        hierarchies: &Hierarchies,
        instance: &InstanceId,
        run: &RunId,
        limits: &Limits,
        mkdir: impl Fn(&Path) -> io::Result<()>,
    ) -> Self {
        let mut made = Self { directories: Vec::new(), views: Vec::new(), read_back: Vec::new() };
        let mut statuses: Vec<(Controller, LayerStatus)> = Vec::new();
        for base in &hierarchies.list {
            let directory = run_directory(&base.path, instance, run);
            match make(base, instance, &directory, &mkdir) {
                Ok(()) => {
                    for &controller in &base.controllers {
                        let status = apply(base.version, controller, &directory, limits);
                        statuses.push((controller, status));
                    }
                    made.views.extend(views(base, &directory));
                    made.directories.push(directory);
                }
                Err(error) => {
                    let reason = format!("{} cannot be made: {error}", directory.display());
                    for &controller in &base.controllers {
                        let reason = reason.clone();
                        statuses.push((controller, LayerStatus::Absent { reason }));
                    }
                }
            }
        }
        for controller in Controller::ALL {
            let status = statuses.iter().find(|(c, _)| *c == controller).map_or_else(
                || LayerStatus::Absent {
                    reason: format!(
                        "no {} controller is available to this user",
                        controller.name()
                    ),
                },
                |(_, status)| status.clone(),
            );
            made.read_back.push(LayerReport { layer: layer_of(controller), status });
        }
        made
    }
}

fn layer_of(controller: Controller) -> Layer {
    match controller {
        Controller::Memory => Layer::MemoryLimit,
        Controller::Pids => Layer::PidsLimit,
        Controller::Cpu => Layer::CpuLimit,
    }
}

/// What is shown inside, at the place where programs look for it.
fn views(base: &Base, directory: &Path) -> Vec<CgroupView> {
    let view = |inside: &str| CgroupView { host: directory.to_owned(), inside: inside.to_owned() };
    match base.version {
        Version::V1 => base.controllers.iter().map(|c| view(c.name())).collect(),
        Version::V2 => vec![view("")],
    }
}

fn make(
    base: &Base,
    instance: &InstanceId,
    directory: &Path,
    mkdir: &impl Fn(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let top = base.path.join(TOP);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for _ in 0..CREATE_ATTEMPTS {
        let chain = [base.path.clone(), top.clone(), top.join(instance.as_str())];
        let attempt = chain
            .iter()
            .try_for_each(|parent| {
                if parent != &base.path {
                    exists_or(mkdir(parent))?;
                }
                match base.version {
                    Version::V1 => Ok(()),
                    Version::V2 => match enable(parent, &base.controllers) {
                        Err(error)
                            if error.kind() == io::ErrorKind::ResourceBusy
                                && parent == &base.path
                                && is_alone_in(parent) =>
                        {
                            step_aside(parent, mkdir)?;
                            enable(parent, &base.controllers)
                        }
                        other => other,
                    },
                }
            })
            // The run's own directory must be new: an old one may hold processes.
            .and_then(|()| mkdir(directory));
        match attempt {
            Err(error) if error.kind() == io::ErrorKind::NotFound => last = error,
            done => return done,
        }
    }
    Err(last)
}

fn exists_or(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// True when this process is the only one in the cgroup.
fn is_alone_in(directory: &Path) -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    members(directory) == [own]
}

/// Version 2 hands controllers down only from a cgroup without processes of its own. A delegated
/// cgroup holds this process: it moves to a leaf beside the runs.
pub(super) fn step_aside(
    directory: &Path,
    mkdir: &impl Fn(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let leaf = directory.join(HOST_LEAF);
    exists_or(mkdir(&leaf))?;
    // Zero names the writer itself.
    write(&leaf.join("cgroup.procs"), "0")
}

/// Hands controllers down to the children of a version 2 directory.
fn enable(parent: &Path, controllers: &[Controller]) -> io::Result<()> {
    let file = parent.join("cgroup.subtree_control");
    let now = fs::read_to_string(&file)?;
    let missing: Vec<String> = controllers
        .iter()
        .filter(|c| !now.split_ascii_whitespace().any(|word| word == c.name()))
        .map(|c| format!("+{}", c.name()))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    write(&file, &missing.join(" "))
}

/// Writes to an existing file; never creates one.
fn write(file: &Path, content: &str) -> io::Result<()> {
    use io::Write as _;
    fs::OpenOptions::new().write(true).truncate(true).open(file)?.write_all(content.as_bytes())
}

fn apply(
    version: Version,
    controller: Controller,
    directory: &Path,
    limits: &Limits,
) -> LayerStatus {
    let outcome = match (version, controller) {
        (Version::V1, Controller::Memory) => memory_v1(directory, limits.memory_bytes),
        (Version::V2, Controller::Memory) => memory_v2(directory, limits.memory_bytes),
        (_, Controller::Pids) => pids(directory, limits.pids),
        (Version::V1, Controller::Cpu) => cpu_v1(directory, limits),
        (Version::V2, Controller::Cpu) => cpu_v2(directory, limits),
    };
    outcome.unwrap_or_else(|error| LayerStatus::Absent {
        reason: format!("{} could not be limited: {error}", controller.name()),
    })
}

fn read_number(directory: &Path, file: &str) -> io::Result<u64> {
    let text = fs::read_to_string(directory.join(file))?;
    text.trim()
        .parse()
        .map_err(|_not_a_number| io::Error::other(format!("{file} reads {:?}", text.trim())))
}

/// In force when the kernel shows a limit that is not above what was asked for.
fn at_most(file: &str, seen: u64, asked: u64) -> LayerStatus {
    if seen <= asked {
        LayerStatus::Enforced
    } else {
        LayerStatus::Absent { reason: format!("{file} reads {seen}, asked for was {asked}") }
    }
}

fn memory_v1(directory: &Path, bytes: u64) -> io::Result<LayerStatus> {
    let file = "memory.limit_in_bytes";
    write(&directory.join(file), &bytes.to_string())?;
    let status = at_most(file, read_number(directory, file)?, bytes);
    let swap = "memory.memsw.limit_in_bytes";
    if directory.join(swap).exists() {
        write(&directory.join(swap), &bytes.to_string())?;
        let with_swap = at_most(swap, read_number(directory, swap)?, bytes);
        return Ok(if status.is_enforced() { with_swap } else { status });
    }
    Ok(without_swap_control(status))
}

fn memory_v2(directory: &Path, bytes: u64) -> io::Result<LayerStatus> {
    let file = "memory.max";
    write(&directory.join(file), &bytes.to_string())?;
    let status = at_most(file, read_number(directory, file)?, bytes);
    let swap = "memory.swap.max";
    if directory.join(swap).exists() {
        write(&directory.join(swap), "0")?;
        let no_swap = at_most(swap, read_number(directory, swap)?, 0);
        return Ok(if status.is_enforced() { no_swap } else { status });
    }
    Ok(without_swap_control(status))
}

/// Where swap cannot be limited, the limit holds in full only when the machine has none.
fn without_swap_control(status: LayerStatus) -> LayerStatus {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if status.is_enforced() && swaps.lines().count() > 1 {
        LayerStatus::Degraded { reason: "this kernel does not limit swap".to_owned() }
    } else {
        status
    }
}

fn pids(directory: &Path, most: u64) -> io::Result<LayerStatus> {
    let file = "pids.max";
    write(&directory.join(file), &most.to_string())?;
    Ok(at_most(file, read_number(directory, file)?, most))
}

fn cpu_v1(directory: &Path, limits: &Limits) -> io::Result<LayerStatus> {
    let (period, quota) = ("cpu.cfs_period_us", "cpu.cfs_quota_us");
    write(&directory.join(period), &CPU_PERIOD_US.to_string())?;
    write(&directory.join(quota), &limits.cpu_quota_us().to_string())?;
    // An unlimited quota reads -1, which is no number here and so an error.
    Ok(cpu(read_number(directory, quota)?, read_number(directory, period)?, limits))
}

fn cpu_v2(directory: &Path, limits: &Limits) -> io::Result<LayerStatus> {
    let file = directory.join("cpu.max");
    write(&file, &format!("{} {CPU_PERIOD_US}", limits.cpu_quota_us()))?;
    let text = fs::read_to_string(file)?;
    let mut words = text.split_ascii_whitespace().map(str::parse::<u64>);
    match (words.next(), words.next()) {
        (Some(Ok(quota)), Some(Ok(period))) => Ok(cpu(quota, period, limits)),
        _ => Err(io::Error::other(format!("cpu.max reads {:?}", text.trim()))),
    }
}

fn cpu(quota: u64, period: u64, limits: &Limits) -> LayerStatus {
    at_most(
        "processor time",
        quota.saturating_mul(CPU_PERIOD_US) / period.max(1),
        limits.cpu_quota_us(),
    )
}
