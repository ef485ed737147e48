//! The hardening specification: the one value from which every engine's configuration comes, and
//! the digest by which a record names it.
//!
//! It never looks at the machine: what a kernel cannot give is found by read-back and by the guest's
//! probe, not left out here.

use cofferdam_run::ids::Digest;
use cofferdam_run::spec::Resources;
use cofferdam_wire::layout;
use serde::Serialize;

use crate::seccomp::SeccompProfile;

/// Size of `/dev/shm`, bytes. Past it a write fails with `ENOSPC`; it counts as memory of the run.
pub const SHM_BYTES: u64 = 256 << 20;
/// Files and directories that `/tmp` and `/dev/shm` may each hold. Past it creation fails with
/// `ENOSPC`.
pub const TMPFS_INODES: u64 = 1 << 20;
/// Period over which the processor limit is counted, microseconds.
pub const CPU_PERIOD_US: u64 = 100_000;
/// Host name inside.
pub const HOSTNAME: &str = "cofferdam";

/// A per-process limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rlimit {
    /// `nofile` or `core`, the name that Docker's API uses too.
    pub name: &'static str,
    /// Soft limit.
    pub soft: u64,
    /// Hard limit.
    pub hard: u64,
}

/// A private tmpfs. Always `nosuid` and `nodev`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tmpfs {
    /// Mount point.
    pub path: &'static str,
    /// Most bytes.
    pub size_bytes: u64,
    /// Most inodes.
    pub inodes: u64,
    /// Mode of its root.
    pub mode: u32,
    /// Whether programs may be started from it.
    pub exec: bool,
}

impl Tmpfs {
    /// Mount options in the text form that Docker's `Tmpfs` map takes.
    #[must_use]
    pub fn docker_options(&self) -> String {
        let exec = if self.exec { "exec" } else { "noexec" };
        format!(
            "rw,nosuid,nodev,{exec},size={},nr_inodes={},mode={:o}",
            self.size_bytes, self.inodes, self.mode
        )
    }
}

/// What Landlock leaves possible in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Writing {
    /// Everything: making, changing, renaming and removing.
    All,
    /// Writing to what is there, devices included; nothing is made or removed.
    Existing,
}

/// A tree in which Landlock leaves writing possible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LandlockRule {
    /// Its top.
    pub path: &'static str,
    /// What is possible there.
    pub writing: Writing,
}

/// Limits that hold for all processes together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Memory, bytes; swap is not added to it.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Thousandths of a core.
    pub cpu_millis: u64,
}

impl Limits {
    /// Processor time per [`CPU_PERIOD_US`], microseconds.
    #[must_use]
    pub fn cpu_quota_us(&self) -> u64 {
        (self.cpu_millis.saturating_mul(CPU_PERIOD_US / 1000)).max(1000)
    }
}

/// Everything that hardens a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hardening {
    /// Version of this shape; part of the digest.
    pub version: u32,
    /// User id inside, and outside where the engine runs as root.
    pub uid: u32,
    /// Group id, likewise. There are no supplementary groups.
    pub gid: u32,
    /// Host name.
    pub hostname: &'static str,
    /// All capability sets are emptied, the bounding set included. Always true.
    pub drop_all_capabilities: bool,
    /// `no_new_privs` is set. Always true.
    pub no_new_privileges: bool,
    /// The root file system is read-only. Always true.
    pub read_only_root: bool,
    /// The only writable mount that comes from the host.
    pub work: &'static str,
    /// Per-process limits.
    pub rlimits: Vec<Rlimit>,
    /// Private file systems.
    pub tmpfs: Vec<Tmpfs>,
    /// Paths hidden behind an empty file or directory.
    pub masked_paths: Vec<&'static str>,
    /// Paths made read-only where they exist.
    pub read_only_paths: Vec<&'static str>,
    /// Trees in which Landlock leaves writing possible; everywhere else it is refused, whatever the
    /// mounts and modes say. Reading and executing are not restricted by it.
    pub landlock: Vec<LandlockRule>,
    /// System calls.
    pub seccomp: SeccompProfile,
    /// Limits over all processes.
    pub limits: Limits,
}

impl Hardening {
    /// The hardening of a run with these resources.
    #[must_use]
    pub fn for_run(resources: &Resources) -> Self {
        Self {
            version: 1,
            uid: layout::UID,
            gid: layout::UID,
            hostname: HOSTNAME,
            drop_all_capabilities: true,
            no_new_privileges: true,
            read_only_root: true,
            work: layout::WORK,
            rlimits: vec![
                Rlimit { name: "nofile", soft: resources.open_files, hard: resources.open_files },
                // One byte, not none: with a `core_pattern` that starts a program on the host the kernel
                // ignores every limit but this value (coredump.c), and a crash would leave the agent's
                // memory there.
                Rlimit { name: "core", soft: 1, hard: 1 },
            ],
            tmpfs: vec![
                Tmpfs {
                    path: layout::TMP,
                    size_bytes: resources.tmp_bytes,
                    inodes: TMPFS_INODES,
                    mode: 0o1777,
                    exec: true,
                },
                Tmpfs {
                    path: "/dev/shm",
                    size_bytes: SHM_BYTES,
                    inodes: TMPFS_INODES,
                    mode: 0o1777,
                    exec: false,
                },
            ],
            // The lists of the OCI runtime's defaults (runtime-tools, runc), plus interrupts.
            masked_paths: vec![
                "/proc/acpi",
                "/proc/asound",
                "/proc/interrupts",
                "/proc/kcore",
                "/proc/keys",
                "/proc/latency_stats",
                "/proc/sched_debug",
                "/proc/scsi",
                "/proc/timer_list",
                "/proc/timer_stats",
                "/sys/devices/virtual/powercap",
                "/sys/firmware",
            ],
            read_only_paths: vec![
                "/proc/bus",
                "/proc/fs",
                "/proc/irq",
                "/proc/sys",
                "/proc/sysrq-trigger",
            ],
            landlock: vec![
                LandlockRule { path: layout::WORK, writing: Writing::All },
                LandlockRule { path: layout::TMP, writing: Writing::All },
                LandlockRule { path: "/dev/shm", writing: Writing::All },
                LandlockRule { path: "/dev", writing: Writing::Existing },
                LandlockRule { path: "/proc", writing: Writing::Existing },
            ],
            seccomp: SeccompProfile::standard(),
            limits: Limits {
                memory_bytes: resources.memory_bytes,
                pids: resources.pids,
                cpu_millis: resources.cpu_millis,
            },
        }
    }

    /// The value as canonical JSON: fixed field order, no floats, no maps.
    #[must_use]
    pub fn canonical_json(&self) -> Vec<u8> {
        // Invariant: plain structs, integers and strings always serialise.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// SHA-256 over [`Hardening::canonical_json`].
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&self.canonical_json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_resource_changes_the_digest() {
        let base = Resources::default();
        let digest = Hardening::for_run(&base).digest();
        assert_eq!(digest, Hardening::for_run(&base.clone()).digest());
        for changed in [
            Resources { memory_bytes: base.memory_bytes - 1, ..base.clone() },
            Resources { pids: base.pids - 1, ..base.clone() },
            Resources { cpu_millis: base.cpu_millis - 1, ..base.clone() },
            Resources { tmp_bytes: base.tmp_bytes - 1, ..base.clone() },
            Resources { open_files: base.open_files - 1, ..base.clone() },
        ] {
            assert_ne!(digest, Hardening::for_run(&changed).digest());
        }
    }

    #[test]
    fn canonical_json_is_not_empty_and_holds_the_limits() {
        let value: serde_json::Value =
            serde_json::from_slice(&Hardening::for_run(&Resources::default()).canonical_json())
                .unwrap();
        assert_eq!(value["limits"]["pids"], 512);
        assert_eq!(value["uid"], 10001);
    }

    #[test]
    fn two_cores_are_two_periods() {
        let limits = Hardening::for_run(&Resources::default()).limits;
        assert_eq!(limits.cpu_quota_us(), 2 * CPU_PERIOD_US);
    }
}
