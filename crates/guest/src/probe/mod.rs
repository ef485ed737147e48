//! What the supervisor sees of its own confinement, before any agent runs.
//!
//! Observes only: no step changes anything when it succeeds. What cannot be read is left empty or
//! named as unreadable, and never taken for fine.

mod attempts;
mod identity;
mod limits;
mod mounts;
mod network;
mod syscalls;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use cofferdam_run::posture::Probe;

use crate::limits::{PROBE_ENTRIES, PROC_FILE};

/// Reads at most `limit` bytes of a text file; a longer one is cut, bytes that are no text are
/// replaced.
pub(crate) fn read_bounded(path: impl AsRef<Path>, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Descriptors beyond the standard ones, with what they point to. Must run before this process
/// opens any of its own.
pub(crate) fn extra_descriptors() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return vec!["unreadable: /proc/self/fd".to_owned()];
    };
    let own = format!("/proc/{}/fd", std::process::id());
    entries
        .flatten()
        .filter_map(|entry| {
            let number: u32 = entry.file_name().to_str()?.parse().ok()?;
            let target = std::fs::read_link(entry.path())
                .map_or_else(|_| "?".to_owned(), |t| t.to_string_lossy().into_owned());
            // The one that lists them.
            (number > 2 && target != own).then(|| format!("{number}: {target}"))
        })
        .take(PROBE_ENTRIES)
        .collect()
}

/// Everything else.
pub(crate) fn observe(landlock_abi: Option<i32>, extra_descriptors: Vec<String>) -> Probe {
    let status = read_bounded("/proc/self/status", PROC_FILE).unwrap_or_default();
    let field = |name: &str| field(&status, name);
    let mounts = mounts::read();
    let sampled = syscalls::sample();
    let limits = limits::read();
    Probe {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        groups: rustix::process::getgroups()
            .map(|groups| groups.into_iter().map(rustix::process::Gid::as_raw).collect())
            // The overflow id belongs to no sandbox: the host sees that this could not be read.
            .unwrap_or_else(|_| vec![u32::MAX]),
        capabilities: ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].map(field),
        // gVisor's kernel has it, and no such line.
        no_new_privs: field("NoNewPrivs") == "1" || rustix::thread::no_new_privs().unwrap_or(false),
        seccomp_mode: field("Seccomp").parse().unwrap_or(0),
        seccomp_admitted: sampled.admitted,
        seccomp_denied: sampled.denied,
        landlock_abi,
        root_read_only: mounts.root_read_only,
        interfaces_up: network::interfaces_up(),
        writable_mounts: mounts.writable,
        memory_limit: limits.memory_bytes,
        pids_limit: limits.pids,
        cpu_millis: limits.cpu_millis,
        pid: std::process::id(),
        extra_descriptors,
        uids: identity::four(&field("Uid")),
        gids: identity::four(&field("Gid")),
        seccomp_filters: field("Seccomp_filters").parse().ok(),
        writes: attempts::writes(),
        masks: attempts::reads(),
        mounts: mounts.all,
        interfaces: network::interfaces(),
        addresses: network::addresses(),
        routes: network::routes(),
        rlimits: identity::rlimits(),
        namespaces: identity::namespaces(),
    }
}

/// The value of a `Name:\tvalue` line, empty when there is none.
fn field(status: &str, name: &str) -> String {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_fields_are_found_by_whole_name() {
        let status = "Name:\tx\nSeccomp_filters:\t3\nSeccomp:\t2\nCapInh:\t0000\n";
        assert_eq!(field(status, "Seccomp"), "2");
        assert_eq!(field(status, "CapInh"), "0000");
        assert_eq!(field(status, "CapEff"), "");
    }

    #[test]
    fn this_process_can_be_observed() {
        let probe = observe(None, extra_descriptors());
        assert_eq!(probe.pid, std::process::id());
        assert!(probe.capabilities.iter().all(|set| u64::from_str_radix(set, 16).is_ok()));
        assert!(!probe.writable_mounts.is_empty());
        let sampled = probe.seccomp_admitted.len() + probe.seccomp_denied.len();
        assert_eq!(sampled, syscalls::SAMPLES);
        assert_eq!(probe.uids.map(|ids| ids[0]), Some(probe.uid));
        assert!(probe.namespaces.iter().any(|ns| ns.kind == "net"));
        assert!(probe.mounts.iter().any(|mount| mount.point == "/"));
        assert!(probe.interfaces.iter().any(|name| name == "lo"));
        assert!(probe.rlimits.iter().any(|limit| limit.name == "nofile"));
        assert!(!probe.writes.is_empty() && !probe.masks.is_empty());
    }

    #[test]
    fn leaked_descriptor_is_named() {
        let file = File::open("/dev/zero").unwrap();
        assert!(extra_descriptors().iter().any(|d| d.ends_with(": /dev/zero")));
        drop(file);
    }
}
