//! What the engines behind Docker's API are known to differ in.
//!
//! One value per engine, consulted at the few places where they differ: asking (`create`), reading the
//! answer (`words`), and reaching the sandbox from this host (`view`). It must never make up for what
//! an engine does not show: such a layer is left out of the read-back, for the probe and the look from
//! outside to tell.

use std::fmt;

use cofferdam_run::engine::EngineKind;

use crate::error::SandboxError;
use crate::seccomp::SeccompProfile;
use crate::spec::Limits;

/// Which engine is behind the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Behind {
    /// Docker with its default runtime.
    Docker,
    /// Podman's `system service`, rootful or rootless.
    Podman,
    /// Docker with gVisor as runtime.
    Gvisor {
        /// The name that the daemon's configuration gives to `runsc`.
        runtime: String,
    },
}

/// How an engine takes the system-call profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeccompForm {
    /// As text in the request.
    Text,
    /// As the path of a file that the engine reads.
    File,
}

/// How an engine is told which paths to hide, and whether it says which it hides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Masking {
    /// Lists in the request, shown afterwards.
    Listed,
    /// Options beside the engine's own list; neither is shown.
    Options,
}

/// Fewest processes and threads that gVisor's own kernel process works with; the limit counts these
/// as well. A run that asks for fewer is refused with `SANDBOX-009`.
pub const GVISOR_LEAST_PIDS: u64 = 256;

/// Known differences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flavour {
    /// The engine, as in the record.
    pub(crate) kind: EngineKind,
    /// Runtime that is asked for; `None` for the engine's default.
    pub(crate) runtime: Option<String>,
    pub(crate) seccomp: SeccompForm,
    pub(crate) masking: Masking,
    /// A tmpfs takes a bound on its inodes. Without one, they are bounded by the memory limit alone.
    pub(crate) tmpfs_inodes: bool,
    /// Places where the engine puts a writable tmpfs without a size unless something is asked for there.
    pub(crate) covered: &'static [&'static str],
    /// What is asked for to get an ipc namespace of its own.
    pub(crate) ipc: &'static str,
    /// Asks for a process limit per user: without one the engine raises it, which needs a capability.
    pub(crate) nproc: bool,
    /// Fewest processes that it works with.
    pub(crate) least_pids: u64,
    /// The sandbox's processes are processes of this host, so that its kernel shows how they are
    /// confined. Under gVisor they are not.
    pub(crate) host_processes: bool,
    /// Its filter answers with the error that a rule names. gVisor answers `EPERM` to everything, and
    /// a C library that gets that from `clone3` starts no thread: rules that say `ENOSYS` are left to
    /// the guest's own filter there.
    pub(crate) answers: bool,
    /// The engine says itself when the memory limit killed something.
    pub(crate) tells_oom: bool,
}

impl Flavour {
    pub(crate) fn of(behind: &Behind) -> Self {
        let docker = Self {
            kind: EngineKind::Docker,
            runtime: None,
            seccomp: SeccompForm::Text,
            masking: Masking::Listed,
            tmpfs_inodes: true,
            covered: &[],
            // Its own namespace and no shared-memory mount of the engine's: ours is a tmpfs.
            ipc: "none",
            nproc: false,
            least_pids: 1,
            host_processes: true,
            answers: true,
            tells_oom: true,
        };
        match behind {
            Behind::Docker => docker,
            Behind::Podman => Self {
                kind: EngineKind::Podman,
                seccomp: SeccompForm::File,
                masking: Masking::Options,
                tmpfs_inodes: false,
                covered: &["/run", "/var/tmp"],
                ipc: "private",
                nproc: true,
                // Seen: killed by the memory limit, and the flag says no.
                tells_oom: false,
                ..docker
            },
            Behind::Gvisor { runtime } => Self {
                kind: EngineKind::Gvisor,
                runtime: Some(runtime.clone()),
                least_pids: GVISOR_LEAST_PIDS,
                host_processes: false,
                answers: false,
                ..docker
            },
        }
    }

    /// The system-call profile in the form that the engine takes.
    pub(crate) fn profile(&self, whole: &SeccompProfile) -> String {
        if self.answers {
            return whole.to_docker_json();
        }
        let mut profile = whole.clone();
        profile.rules.retain(|rule| rule.errno != libc::ENOSYS);
        profile.to_docker_json()
    }

    /// The sandbox has a kernel of its own.
    pub(crate) fn own_kernel(&self) -> bool {
        !self.host_processes
    }

    pub(crate) fn is_podman(&self) -> bool {
        self.kind == EngineKind::Podman
    }

    /// Refuses limits under which the engine cannot work.
    pub(crate) fn fits(&self, limits: &Limits) -> Result<(), SandboxError> {
        if limits.pids >= self.least_pids {
            return Ok(());
        }
        Err(SandboxError::Limits {
            engine: self.kind,
            reason: format!(
                "{} processes are too few: its kernel's own threads count as well, and it needs {}",
                limits.pids, self.least_pids
            ),
            fix: format!("set [run] pids to {} or more", self.least_pids),
        })
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            EngineKind::Podman => "Podman",
            EngineKind::Gvisor => "gVisor on Docker",
            EngineKind::Docker | EngineKind::Native => "Docker",
        })
    }
}
