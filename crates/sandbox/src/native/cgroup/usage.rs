//! What a run used of its limits, from the counters of its cgroups.
//!
//! It only reads, and gives no number that the kernel does not show: a missing file is `None`. To be
//! asked before the cgroup is removed, which takes the counters with it.

use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_run::fact::ResourceUse;

/// Counters of all the run's directories together; each kernel file is in one of them at most.
pub(crate) fn read(directories: &[PathBuf]) -> ResourceUse {
    directories.iter().fold(ResourceUse::default(), |so_far, directory| {
        let here = read_one(directory);
        ResourceUse {
            cpu_ms: so_far.cpu_ms.or(here.cpu_ms),
            memory_peak_bytes: so_far.memory_peak_bytes.or(here.memory_peak_bytes),
            oom_kills: so_far.oom_kills.or(here.oom_kills),
            pids_peak: so_far.pids_peak.or(here.pids_peak),
            pids_refused: so_far.pids_refused.or(here.pids_refused),
            cpu_throttled_ms: so_far.cpu_throttled_ms.or(here.cpu_throttled_ms),
            ..so_far
        }
    })
}

fn read_one(directory: &Path) -> ResourceUse {
    let text = |file: &str| fs::read_to_string(directory.join(file)).ok();
    let number = |file: &str| text(file)?.trim().parse::<u64>().ok();
    let line = |file: &str, name: &str| {
        text(file)?
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
    };
    ResourceUse {
        // Version 2 counts in `cpu.stat`; version 1 in a hierarchy of its own, in nanoseconds.
        cpu_ms: line("cpu.stat", "usage_usec")
            .map(|us| us / 1_000)
            .or_else(|| number("cpuacct.usage").map(|ns| ns / 1_000_000)),
        memory_peak_bytes: number("memory.peak").or_else(|| number("memory.max_usage_in_bytes")),
        oom_kills: line("memory.events", "oom_kill")
            .or_else(|| line("memory.oom_control", "oom_kill")),
        pids_peak: number("pids.peak"),
        pids_refused: line("pids.events", "max"),
        cpu_throttled_ms: line("cpu.stat", "throttled_usec")
            .map(|us| us / 1_000)
            .or_else(|| line("cpu.stat", "throttled_time").map(|ns| ns / 1_000_000)),
        work_bytes: None,
        work_files: None,
    }
}
