//! What engine and launcher tell one another. Both are ours and of one build: the launcher refuses
//! a hardening that it does not read as the engine wrote it.

use std::path::PathBuf;

use cofferdam_run::ids::Digest;
use serde::{Deserialize, Serialize};

use super::process::ProcessId;
use crate::spec::Hardening;

/// Most bytes of the launcher's report line. A longer one is a failed launch.
pub const REPORT_BYTES: usize = 64 * 1024;
/// What the engine writes to the guest's standard input to let it go. The launcher takes this byte.
pub(crate) const GO: u8 = b'\n';
/// Exit code of a launcher that could not bring the sandbox up.
pub(crate) const EXIT_SETUP: u8 = 120;
/// Exit code when the host let go of the sandbox before it gave the word.
pub(crate) const EXIT_NO_WORD: u8 = 121;
/// Exit code when the guest's program could not be executed.
pub(crate) const EXIT_EXEC: u8 = 126;

/// File names in the run's private directory.
pub(crate) mod files {
    /// [`super::LaunchSpec`].
    pub(crate) const LAUNCH: &str = "launch.json";
    /// The first process's [`super::ProcessId`], written before it does anything.
    pub(crate) const CHILD: &str = "child.json";
    /// Labels.
    pub(crate) const LABEL: &str = "label.json";
    /// Mount point on which the root is staged, in the sandbox's own mount namespace only.
    pub(crate) const ROOT: &str = "root";
    /// The run's own volume.
    pub(crate) const WORK: &str = "work";
}

/// The root file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LaunchRoot {
    HostUserland,
    Directory(PathBuf),
}

/// A directory of the run's cgroup, shown read-only inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CgroupView {
    /// On the host.
    pub(crate) host: PathBuf,
    /// Inside, below `/sys/fs/cgroup`; empty for that directory itself.
    pub(crate) inside: String,
}

/// An ordinary user's identity, mapped to the guest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UserMap {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A second process of the sandbox, in a network namespace of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SecondNet {
    /// Program and arguments, as seen inside.
    pub(crate) command: Vec<String>,
    /// It stays in the first process's network namespace: for the test that the second namespace is
    /// what keeps the shell from the agent's ports. Never set otherwise.
    pub(crate) shared: bool,
}

/// Everything that the launcher is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LaunchSpec {
    /// The engine's process: when it ends, so does the sandbox.
    pub(crate) host: ProcessId,
    /// Milliseconds that the guest gets after that.
    pub(crate) grace_ms: u64,
    /// The run's private directory.
    pub(crate) run_dir: PathBuf,
    /// The guest's program on the host.
    pub(crate) guest: PathBuf,
    /// Root file system.
    pub(crate) root: LaunchRoot,
    /// What is applied, all of it by the launcher.
    pub(crate) hardening: Hardening,
    /// Its digest, as the engine computed it.
    pub(crate) digest: Digest,
    /// Directories of the run's cgroups, joined before anything else.
    pub(crate) cgroups: Vec<PathBuf>,
    /// What of them is shown inside.
    pub(crate) cgroup_views: Vec<CgroupView>,
    /// Set when the host is not root.
    pub(crate) user_map: Option<UserMap>,
    /// Program and arguments, as seen inside.
    pub(crate) command: Vec<String>,
    /// Set when the shell is kept apart.
    pub(crate) second_net: Option<SecondNet>,
    /// A directory shown writable as `/dev/extra`: for the test that Landlock refuses what mounts and
    /// modes allow. Never set otherwise.
    pub(crate) extra: Option<PathBuf>,
}

/// How far Landlock holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LandlockOutcome {
    Full,
    /// The kernel knows only some of the rights.
    Partial,
    None,
}

/// The launcher's one line, written with everything applied and nothing executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LaunchReport {
    Ready { landlock: LandlockOutcome, seccomp_filters: usize, groups_dropped: bool },
    Failed { stage: String, detail: String },
}
