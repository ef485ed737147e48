//! What this host sees of a running container by itself: its cgroups and its first process.
//!
//! Only for a container whose processes are on this machine, which its cgroup proves: it carries the
//! container's id. An engine in a virtual machine gives process ids too, and they mean nothing here. It
//! only reads, and must never take a file that it cannot read for a limit that holds.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use cofferdam_run::posture::{Layer, LayerReport, LayerStatus};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::spec::Limits;

/// A container of this machine.
#[derive(Debug)]
pub(crate) struct HostView {
    /// Its first process.
    pub(crate) pid: i32,
    /// Readable once that process has ended. Bound to the process, whatever becomes of its number.
    pub(crate) ended: OwnedFd,
    /// Its cgroups, one directory per hierarchy.
    pub(crate) cgroups: Vec<PathBuf>,
}

impl HostView {
    /// The view of the container `id` whose first process the engine says is `pid`; `None` when it
    /// does not run on this machine, has no cgroup of its own, or has ended.
    pub(crate) fn of(pid: i64, id: &str) -> Option<Self> {
        let pid = i32::try_from(pid).ok().filter(|pid| *pid > 1)?;
        // Before the cgroup is looked at, so that both are of the same process.
        let ended = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let cgroups = directories(&own, &mounts, id);
        (!cgroups.is_empty()).then_some(Self { pid, ended, cgroups })
    }

    /// The limits as the kernel has them.
    pub(crate) fn limits(&self, asked: &Limits) -> Vec<LayerReport> {
        let seen = Seen::read(&self.cgroups);
        vec![
            report(Layer::MemoryLimit, seen.memory(asked.memory_bytes)),
            report(Layer::PidsLimit, at_most("process", seen.pids, asked.pids)),
            report(Layer::CpuLimit, at_most("processor", seen.cpu_millis, asked.cpu_millis)),
        ]
    }
}

fn report(layer: Layer, status: LayerStatus) -> LayerReport {
    LayerReport { layer, status }
}

fn absent(reason: String) -> LayerStatus {
    LayerStatus::Absent { reason }
}

fn at_most(what: &str, seen: Option<u64>, asked: u64) -> LayerStatus {
    match seen {
        Some(value) if value <= asked => LayerStatus::Enforced,
        Some(value) => {
            absent(format!("the kernel's {what} limit is {value}, asked for was {asked}"))
        }
        None => absent(format!("the kernel has no {what} limit for it")),
    }
}

/// Directories of the cgroups in `own` (a `/proc/PID/cgroup`) whose path names the container.
fn directories(own: &str, mountinfo: &str, id: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        // Engines name the group or its parent after the container, some with more around the id.
        if id.len() < 32 || !path.contains(id) {
            continue;
        }
        for mount in mountinfo.lines().filter_map(Mount::parse) {
            let same = match mount.kind {
                "cgroup2" => controllers.is_empty(),
                "cgroup" => {
                    !controllers.is_empty()
                        && controllers
                            .split(',')
                            .all(|c| mount.options.split(',').any(|option| option == c))
                }
                _ => false,
            };
            let Some(below) = same.then(|| path.strip_prefix(mount.root)).flatten() else {
                continue;
            };
            let directory = Path::new(mount.point).join(below.trim_start_matches('/'));
            if directory.is_dir() && !found.contains(&directory) {
                found.push(directory);
            }
        }
    }
    found
}

/// A line of `mountinfo`: fields, ` - `, type, source, options of the file system.
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let kind = right.next()?;
        let options = right.nth(1)?;
        Some(Self { root: root.trim_end_matches('/'), point, kind, options })
    }
}

/// Limits in force, as far as they can be read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    memory: Option<u64>,
    /// Memory and swap together (version 1), or swap alone (version 2).
    with_swap: Option<Swap>,
    pids: Option<u64>,
    cpu_millis: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
enum Swap {
    Together(u64),
    Alone(u64),
}

/// Values from here on mean "no limit" in version 1 (the largest page-aligned integer).
const V1_UNLIMITED: u64 = 1 << 60;

impl Seen {
    fn read(directories: &[PathBuf]) -> Self {
        let mut seen = Self::default();
        for dir in directories {
            let text = |file: &str| fs::read_to_string(dir.join(file)).ok();
            let number = |file: &str| text(file)?.trim().parse::<u64>().ok();
            let limited = |file: &str| number(file).filter(|value| *value < V1_UNLIMITED);
            seen.memory = seen
                .memory
                .or_else(|| limited("memory.limit_in_bytes"))
                .or_else(|| number("memory.max"));
            seen.with_swap = seen
                .with_swap
                .take()
                .or_else(|| limited("memory.memsw.limit_in_bytes").map(Swap::Together))
                .or_else(|| number("memory.swap.max").map(Swap::Alone));
            seen.pids = seen.pids.or_else(|| number("pids.max"));
            seen.cpu_millis = seen.cpu_millis.or_else(|| {
                let (quota, period) = match text("cpu.max") {
                    Some(both) => {
                        let (quota, period) = both.trim().split_once(' ')?;
                        (quota.parse().ok()?, period.parse().ok()?)
                    }
                    None => (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?),
                };
                let quota: u64 = quota;
                quota.checked_mul(1000)?.checked_div(period)
            });
        }
        seen
    }

    fn memory(&self, asked: u64) -> LayerStatus {
        let status = at_most("memory", self.memory, asked);
        if !status.is_enforced() {
            return status;
        }
        match self.with_swap {
            Some(Swap::Together(bytes)) if bytes <= asked => LayerStatus::Enforced,
            Some(Swap::Alone(0)) => LayerStatus::Enforced,
            Some(Swap::Together(bytes) | Swap::Alone(bytes)) => LayerStatus::Degraded {
                reason: format!("swap comes on top of the memory limit: {bytes} bytes"),
            },
            // Not counted by this kernel; the engine's own information says whether it is.
            None => LayerStatus::Enforced,
        }
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
