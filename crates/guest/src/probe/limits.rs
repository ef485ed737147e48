//! Resource limits in force, as far as they can be seen from inside.
//!
//! Reads cgroup files where `/sys/fs/cgroup` is mounted (Docker mounts it, the native engine does
//! not) and, for processes, the resource limit of the uid. A limit that cannot be seen is `None`.
//! The memory limit of a single process is no limit of the sandbox and is not reported as one.

use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::limits::PROC_FILE;
use crate::probe::read_bounded;

const CGROUP: &str = "/sys/fs/cgroup";

/// Values from here on mean "no limit" in version 1 (the largest page-aligned integer).
const V1_UNLIMITED: u64 = 1 << 60;

/// The limits.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) memory_bytes: Option<u64>,
    pub(super) pids: Option<u64>,
    pub(super) cpu_millis: Option<u64>,
}

pub(super) fn read() -> Limits {
    let membership = read_bounded("/proc/self/cgroup", PROC_FILE).unwrap_or_default();
    let mut limits = read_under(Path::new(CGROUP), &membership);
    limits.pids = least(limits.pids, getrlimit(Resource::Nproc).current);
    limits
}

fn read_under(root: &Path, membership: &str) -> Limits {
    let mut limits = Limits::default();
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if controllers.is_empty() {
            for dir in ancestry(root.to_owned(), path) {
                limits.memory_bytes = least(limits.memory_bytes, number(&dir, "memory.max"));
                limits.pids = least(limits.pids, number(&dir, "pids.max"));
                limits.cpu_millis = least(limits.cpu_millis, cpu_max(&dir));
            }
        }
        for controller in controllers.split(',') {
            for dir in ancestry(root.join(controller), path) {
                match controller {
                    "memory" => {
                        let value = number(&dir, "memory.limit_in_bytes");
                        let value = value.filter(|v| *v < V1_UNLIMITED);
                        limits.memory_bytes = least(limits.memory_bytes, value);
                    }
                    "pids" => limits.pids = least(limits.pids, number(&dir, "pids.max")),
                    "cpu" => limits.cpu_millis = least(limits.cpu_millis, cfs(&dir)),
                    _ => {}
                }
            }
        }
    }
    limits
}

/// The mount itself (inside a container it often is the own group) and each group down to the own.
fn ancestry(mount: PathBuf, path: &str) -> Vec<PathBuf> {
    let mut dirs = vec![mount.clone()];
    let mut dir = mount;
    for part in path.split('/').filter(|p| !p.is_empty() && *p != "..").take(64) {
        dir.push(part);
        dirs.push(dir.clone());
    }
    dirs
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A file with one number; `max` is none.
fn number(dir: &Path, name: &str) -> Option<u64> {
    read_bounded(dir.join(name), 100).ok()?.trim().parse().ok()
}

/// `QUOTA PERIOD` in microseconds.
fn cpu_max(dir: &Path) -> Option<u64> {
    let text = read_bounded(dir.join("cpu.max"), 100).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    millis(quota.parse().ok()?, period.parse().ok()?)
}

fn cfs(dir: &Path) -> Option<u64> {
    millis(number(dir, "cpu.cfs_quota_us")?, number(dir, "cpu.cfs_period_us")?)
}

fn millis(quota: u64, period: u64) -> Option<u64> {
    quota.checked_mul(1000)?.checked_div(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn version_2_takes_the_tightest_of_own_group_and_parents() {
        let root = tree(&[
            ("memory.max", "max\n"),
            ("a/memory.max", "1000000\n"),
            ("a/b/memory.max", "2000000\n"),
            ("a/b/pids.max", "64\n"),
            ("a/b/cpu.max", "150000 100000\n"),
        ]);
        let limits = read_under(root.path(), "0::/a/b\n");
        let expected =
            Limits { memory_bytes: Some(1_000_000), pids: Some(64), cpu_millis: Some(1500) };
        assert_eq!(limits, expected);
    }

    #[test]
    fn version_1_reads_each_controller_and_knows_its_unlimited() {
        let root = tree(&[
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("pids/pids.max", "100\n"),
            ("cpu/cpu.cfs_quota_us", "-1\n"),
            ("cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        let membership = "3:pids:/docker/x\n2:memory:/docker/x\n1:cpu,cpuacct:/docker/x\n";
        let limits = read_under(root.path(), membership);
        assert_eq!(limits, Limits { memory_bytes: None, pids: Some(100), cpu_millis: None });
    }

    #[test]
    fn nothing_mounted_is_nothing_seen() {
        let root = tree(&[]);
        assert_eq!(read_under(root.path(), "0::/a\n"), Limits::default());
    }
}
