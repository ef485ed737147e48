//! The hardening specification: the one value from which every engine's configuration comes, and
//! the digest by which a record names it.
//!
//! It never looks at the machine: what a kernel cannot give is found by read-back and by the guest's
//! probe, not left out here. Runs have what [`Hardening::for_run`] makes and nothing else: no setting
//! reaches the fields. They can be edited so that a test weakens one layer, sees the attack that the
//! layer is there for succeed, and so knows that it is this layer that holds.

use std::borrow::Cow;

use cofferdam_run::ids::Digest;
use cofferdam_run::posture::Layer;
use cofferdam_run::spec::Resources;
use cofferdam_wire::layout;
use serde::{Deserialize, Serialize};

use crate::seccomp::SeccompProfile;

/// Size of `/dev/shm`, bytes. Past it a write fails with `ENOSPC`; it counts as memory of the run.
pub const SHM_BYTES: u64 = 256 << 20;
/// Files and directories that `/tmp` and `/dev/shm` may each hold. Past it creation fails with
/// `ENOSPC`.
pub const TMPFS_INODES: u64 = 1 << 20;
/// Size of the file system at [`layout::TRIPWIRE`], bytes: a page. Without Landlock, past it a write
/// fails with `ENOSPC`.
pub const TRIPWIRE_BYTES: u64 = 4 << 10;
/// Inodes of it: its root and the one file that is tried.
pub const TRIPWIRE_INODES: u64 = 2;
/// Period over which the processor limit is counted, microseconds.
pub const CPU_PERIOD_US: u64 = 100_000;
/// Version of the shape of [`Hardening`].
pub const VERSION: u32 = 2;
/// Device nodes of every sandbox.
pub const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Host name inside.
pub const HOSTNAME: &str = "cofferdam";

fn texts(list: &[&'static str]) -> Vec<Cow<'static, str>> {
    list.iter().map(|text| Cow::Borrowed(*text)).collect()
}

/// A per-process limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    /// `nofile` or `core`, the name that Docker's API uses too.
    pub name: Cow<'static, str>,
    /// Soft limit.
    pub soft: u64,
    /// Hard limit.
    pub hard: u64,
}

/// A private tmpfs. Always `nosuid` and `nodev`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tmpfs {
    /// Mount point.
    pub path: Cow<'static, str>,
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
    pub fn docker_options(&self, with_inodes: bool) -> String {
        let exec = if self.exec { "exec" } else { "noexec" };
        let inodes =
            if with_inodes { format!("nr_inodes={},", self.inodes) } else { String::new() };
        format!("rw,nosuid,nodev,{exec},size={},{inodes}mode={:o}", self.size_bytes, self.mode)
    }
}

/// What Landlock leaves possible in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writing {
    /// Everything: making, changing, renaming and removing.
    All,
    /// Writing to what is there, devices included; nothing is made or removed.
    Existing,
}

/// A tree in which Landlock leaves writing possible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandlockRule {
    /// Its top.
    pub path: Cow<'static, str>,
    /// What is possible there.
    pub writing: Writing,
}

/// What Landlock restricts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landlock {
    /// Trees in which it leaves writing possible; everywhere else it is refused, whatever the mounts
    /// and modes say. Reading and executing are not restricted by it.
    pub writable: Vec<LandlockRule>,
    /// Signals and abstract sockets reach no process outside. Always true.
    pub scoped: bool,
}

/// Which namespaces are the sandbox's own. All always true; that of mounts is not even a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// Interfaces, ports, abstract sockets: nothing but loopback.
    pub network: bool,
    /// Process ids: no process of the host has one inside.
    pub pid: bool,
    /// System V objects and message queues.
    pub ipc: bool,
    /// Host name.
    pub uts: bool,
    /// Paths of control groups.
    pub cgroup: bool,
}

impl Namespaces {
    /// Every one of them.
    pub const OWN: Self = Self { network: true, pid: true, ipc: true, uts: true, cgroup: true };
}

/// The run's own volume. It is the only writable mount that comes from the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkMount {
    /// Mount point.
    pub path: Cow<'static, str>,
    /// Programs in it get no other user's rights. Always true; the native engine's mount only: on
    /// the other engines `no_new_privileges` stands alone.
    pub no_setuid: bool,
    /// Device nodes in it are dead. Always true; the native engine's mount only: on the other engines
    /// their device control groups stand in its place.
    pub no_devices: bool,
}

/// Limits that hold for all processes together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory, bytes; swap is not added to it.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Thousandths of a core.
    pub cpu_millis: u64,
    /// Most bytes in the work volume.
    pub work_bytes: u64,
    /// Most files and directories in the work volume.
    pub work_files: u64,
}

impl Limits {
    /// Processor time per [`CPU_PERIOD_US`], microseconds.
    #[must_use]
    pub fn cpu_quota_us(&self) -> u64 {
        (self.cpu_millis.saturating_mul(CPU_PERIOD_US / 1000)).max(1000)
    }
}

/// Everything that hardens a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardening {
    /// Version of this shape; part of the digest.
    pub version: u32,
    /// User id inside, and outside where the engine runs as root.
    pub uid: u32,
    /// Group id, likewise. There are no supplementary groups.
    pub gid: u32,
    /// Host name.
    pub hostname: Cow<'static, str>,
    /// All capability sets are emptied, the bounding set included. Always true.
    pub drop_all_capabilities: bool,
    /// `no_new_privs` is set. Always true.
    pub no_new_privileges: bool,
    /// The root file system is read-only. Always true.
    pub read_only_root: bool,
    /// The run's own volume.
    pub work: WorkMount,
    /// Namespaces of its own.
    pub namespaces: Namespaces,
    /// Device nodes of the host that are shown, by their name in `/dev`. The other engines show those
    /// of the OCI runtime specification in any case, which are the same.
    pub devices: Vec<Cow<'static, str>>,
    /// Per-process limits.
    pub rlimits: Vec<Rlimit>,
    /// Private file systems.
    pub tmpfs: Vec<Tmpfs>,
    /// Paths hidden behind an empty file or directory.
    pub masked_paths: Vec<Cow<'static, str>>,
    /// Paths made read-only where they exist.
    pub read_only_paths: Vec<Cow<'static, str>>,
    /// Landlock; always there. The native launcher applies it. On the other engines the guest
    /// restricts itself, in the same way on every run.
    pub landlock: Option<Landlock>,
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
            version: VERSION,
            uid: layout::UID,
            gid: layout::UID,
            hostname: HOSTNAME.into(),
            drop_all_capabilities: true,
            no_new_privileges: true,
            read_only_root: true,
            work: WorkMount { path: layout::WORK.into(), no_setuid: true, no_devices: true },
            namespaces: Namespaces::OWN,
            devices: texts(&DEVICES),
            rlimits: vec![
                Rlimit {
                    name: "nofile".into(),
                    soft: resources.open_files,
                    hard: resources.open_files,
                },
                // One byte, not none: with a `core_pattern` that starts a program on the host the kernel
                // ignores every limit but this value (coredump.c), and a crash would leave the agent's
                // memory there.
                Rlimit { name: "core".into(), soft: 1, hard: 1 },
            ],
            tmpfs: vec![
                Tmpfs {
                    path: layout::TMP.into(),
                    size_bytes: resources.tmp_bytes,
                    inodes: TMPFS_INODES,
                    mode: 0o1777,
                    exec: true,
                },
                Tmpfs {
                    path: "/dev/shm".into(),
                    size_bytes: SHM_BYTES,
                    inodes: TMPFS_INODES,
                    mode: 0o1777,
                    exec: false,
                },
                // Nobody writes here: that Landlock refuses it is how the guest knows of Landlock.
                Tmpfs {
                    path: layout::TRIPWIRE.into(),
                    size_bytes: TRIPWIRE_BYTES,
                    inodes: TRIPWIRE_INODES,
                    mode: 0o1777,
                    exec: false,
                },
            ],
            // The lists of the OCI runtime's defaults (runtime-tools, runc), plus interrupts.
            masked_paths: texts(&[
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
            ]),
            read_only_paths: texts(&[
                "/proc/bus",
                "/proc/fs",
                "/proc/irq",
                "/proc/sys",
                "/proc/sysrq-trigger",
            ]),
            landlock: Some(Landlock {
                writable: vec![
                    LandlockRule { path: layout::WORK.into(), writing: Writing::All },
                    LandlockRule { path: layout::TMP.into(), writing: Writing::All },
                    LandlockRule { path: "/dev/shm".into(), writing: Writing::All },
                    LandlockRule { path: "/dev".into(), writing: Writing::Existing },
                    LandlockRule { path: "/proc".into(), writing: Writing::Existing },
                ],
                scoped: true,
            }),
            seccomp: SeccompProfile::standard(),
            limits: Limits {
                memory_bytes: resources.memory_bytes,
                pids: resources.pids,
                cpu_millis: resources.cpu_millis,
                work_bytes: resources.work_bytes,
                work_files: resources.work_files,
            },
        }
    }

    /// Whether this value asks for the layer at all. It does for each of them but in a test that
    /// weakened it.
    #[must_use]
    pub fn asks_for(&self, layer: Layer) -> bool {
        match layer {
            Layer::User => self.uid == layout::UID && self.gid == layout::UID,
            Layer::Capabilities => self.drop_all_capabilities,
            Layer::NoNewPrivileges => self.no_new_privileges,
            Layer::Seccomp => !self.seccomp.is_empty(),
            Layer::Landlock => self.landlock.is_some(),
            // A writable root shows as a writable mount too.
            Layer::ReadOnlyRoot | Layer::Mounts => self.read_only_root,
            Layer::Network => self.namespaces.network,
            Layer::Namespaces => self.namespaces == Namespaces::OWN,
            Layer::MemoryLimit | Layer::PidsLimit | Layer::CpuLimit => true,
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
            Resources { work_bytes: base.work_bytes - 1, ..base.clone() },
            Resources { work_files: base.work_files - 1, ..base.clone() },
        ] {
            assert_ne!(digest, Hardening::for_run(&changed).digest());
        }
    }

    #[test]
    fn a_run_has_every_layer_and_a_weakened_one_has_another_digest() {
        let whole = Hardening::for_run(&Resources::default());
        assert!(Layer::ALL.into_iter().all(|layer| whole.asks_for(layer)));
        type Weaken = fn(&mut Hardening);
        let weaken: [(Layer, Weaken); 8] = [
            (Layer::User, |h| h.uid = 0),
            (Layer::Capabilities, |h| h.drop_all_capabilities = false),
            (Layer::NoNewPrivileges, |h| h.no_new_privileges = false),
            (Layer::Seccomp, |h| h.seccomp = crate::seccomp::SeccompProfile::none()),
            (Layer::Landlock, |h| h.landlock = None),
            (Layer::ReadOnlyRoot, |h| h.read_only_root = false),
            (Layer::Network, |h| h.namespaces.network = false),
            (Layer::Namespaces, |h| h.namespaces.pid = false),
        ];
        for (layer, off) in weaken {
            let mut weak = whole.clone();
            off(&mut weak);
            assert!(!weak.asks_for(layer), "{layer:?}");
            assert_ne!(whole.digest(), weak.digest(), "{layer:?}");
        }
    }

    #[test]
    fn the_value_survives_its_way_to_the_launcher() {
        let value = Hardening::for_run(&Resources::default());
        let back: Hardening = serde_json::from_slice(&value.canonical_json()).unwrap();
        assert_eq!(back, value);
        assert_eq!(back.digest(), value.digest());
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
