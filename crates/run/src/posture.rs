//! Hardening as evidence: what the host applied, what the engine says it has, what the guest saw.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A hardening layer. One list for the spec, the read-back, the probe and the record.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Unprivileged uid and gid, no supplementary groups.
    User,
    /// All five capability sets are empty.
    Capabilities,
    /// `no_new_privs` is set.
    NoNewPrivileges,
    /// A seccomp filter is active and denies a sample of calls.
    Seccomp,
    /// Landlock restricts the file system.
    Landlock,
    /// The root file system is read-only.
    ReadOnlyRoot,
    /// No interface but loopback.
    Network,
    /// Own pid, mount, ipc, uts and network namespaces.
    Namespaces,
    /// The memory limit is in force.
    MemoryLimit,
    /// The process limit is in force.
    PidsLimit,
    /// The processor limit is in force.
    CpuLimit,
    /// Nothing of the host is mounted writable but the run's own directory.
    Mounts,
}

impl Layer {
    /// Every layer.
    pub const ALL: [Self; 12] = [
        Self::User,
        Self::Capabilities,
        Self::NoNewPrivileges,
        Self::Seccomp,
        Self::Landlock,
        Self::ReadOnlyRoot,
        Self::Network,
        Self::Namespaces,
        Self::MemoryLimit,
        Self::PidsLimit,
        Self::CpuLimit,
        Self::Mounts,
    ];

    /// The name used in configuration, errors and output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Capabilities => "capabilities",
            Self::NoNewPrivileges => "no_new_privileges",
            Self::Seccomp => "seccomp",
            Self::Landlock => "landlock",
            Self::ReadOnlyRoot => "read_only_root",
            Self::Network => "network",
            Self::Namespaces => "namespaces",
            Self::MemoryLimit => "memory_limit",
            Self::PidsLimit => "pids_limit",
            Self::CpuLimit => "cpu_limit",
            Self::Mounts => "mounts",
        }
    }

    /// The layer of that name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|l| l.as_str() == text)
    }
}

/// How far a layer holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum LayerStatus {
    /// It holds in full.
    Enforced,
    /// It holds in part.
    Degraded {
        /// What is missing.
        reason: String,
    },
    /// It does not hold.
    Absent {
        /// Why not.
        reason: String,
    },
}

impl LayerStatus {
    /// True for [`LayerStatus::Enforced`].
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        matches!(self, Self::Enforced)
    }
}

/// A layer and how far it holds, according to one observer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LayerReport {
    /// The layer.
    pub layer: Layer,
    /// How far it holds.
    #[serde(flatten)]
    pub status: LayerStatus,
}

/// What came of something that should not work, and was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Attempt {
    /// It worked.
    Done,
    /// The file system is read-only.
    ReadOnly,
    /// The kernel refused it for another reason: a mode, a filter, Landlock.
    Refused,
    /// There is nothing of that name.
    Missing,
    /// It could be read and holds nothing.
    Empty,
    /// It failed otherwise, which shows nothing.
    Failed,
}

/// Something that was tried, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tried {
    /// On what: a path.
    pub what: String,
    /// What came of it.
    pub result: Attempt,
}

/// A mount, as in `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MountSeen {
    /// Mount point.
    pub point: String,
    /// Type of the file system.
    pub kind: String,
    /// Options of the mount itself, such as `ro,nosuid,nodev`.
    pub options: String,
}

/// A per-process limit in force; `None` for no limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RlimitSeen {
    /// Its name, for example `nofile`.
    pub name: String,
    /// Soft limit.
    pub soft: Option<u64>,
    /// Hard limit.
    pub hard: Option<u64>,
}

/// A namespace by its kernel's number: equal numbers are one namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamespaceSeen {
    /// Its kind, for example `net`.
    pub kind: String,
    /// Inode number.
    pub id: u64,
}

/// What the guest's supervisor saw of itself before any agent ran. A claim: labelled as such.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// Real user id.
    pub uid: u32,
    /// Real group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Inheritable, permitted, effective, bounding, ambient, as hex text from the kernel.
    pub capabilities: [String; 5],
    /// `NoNewPrivs` of `/proc/self/status`.
    pub no_new_privs: bool,
    /// `Seccomp` of `/proc/self/status`: 0 off, 1 strict, 2 filter.
    pub seccomp_mode: u32,
    /// Names of sampled calls that the kernel let through although they should be denied.
    pub seccomp_admitted: Vec<String>,
    /// Names of sampled calls that were denied.
    pub seccomp_denied: Vec<String>,
    /// The Landlock version that the kernel says it has, when the guest could restrict itself.
    pub landlock_abi: Option<i32>,
    /// The root mount is read-only.
    pub root_read_only: bool,
    /// Names of network interfaces that are up, loopback included.
    pub interfaces_up: Vec<String>,
    /// Mount points that are writable, as in `/proc/self/mountinfo`.
    pub writable_mounts: Vec<String>,
    /// Memory limit that is in force, bytes.
    pub memory_limit: Option<u64>,
    /// Process limit that is in force.
    pub pids_limit: Option<u64>,
    /// Processor limit that is in force, thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Own process id in its namespace.
    pub pid: u32,
    /// Open descriptors beyond 0, 1, 2, with what they point to.
    pub extra_descriptors: Vec<String>,
    /// Real, effective, saved and file-system user id.
    #[serde(default)]
    pub uids: Option<[u32; 4]>,
    /// The same of the group.
    #[serde(default)]
    pub gids: Option<[u32; 4]>,
    /// System-call filters in force, where the kernel counts them.
    #[serde(default)]
    pub seccomp_filters: Option<u32>,
    /// Places where a file was made, and files that were opened for writing, or not.
    #[serde(default)]
    pub writes: Vec<Tried>,
    /// What should be hidden, and what reading it gave.
    #[serde(default)]
    pub masks: Vec<Tried>,
    /// Every mount.
    #[serde(default)]
    pub mounts: Vec<MountSeen>,
    /// Network interfaces, those that are down included.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// Addresses that are this sandbox's own, as far as the kernel shows them.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Routes over another interface than loopback: interface and target, as the kernel writes them.
    #[serde(default)]
    pub routes: Vec<String>,
    /// Per-process limits.
    #[serde(default)]
    pub rlimits: Vec<RlimitSeen>,
    /// Namespaces.
    #[serde(default)]
    pub namespaces: Vec<NamespaceSeen>,
}
