//! The native engine: Linux namespaces, Landlock, seccomp and cgroups, set up by Cofferdam itself.
//!
//! As root the guest is a real unprivileged user of the host; as an ordinary user it is mapped in
//! a user namespace, and limits exist only where a cgroup was delegated. What is missing is
//! reported, never papered over. No daemon is needed, and nothing outlives the run but what
//! `list` finds.

pub(crate) mod cgroup;
mod handoff;
mod label;
pub mod launcher;
mod outside;
mod prepare;
mod probe;
mod process;
mod running;
mod salvage;
mod shell_host;
mod sweep;
pub(crate) mod unlinked;

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use cofferdam_run::engine::EngineKind;
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::ids::InstanceId;

use crate::engine::{Engine, EngineReport, Found, Prepared, SandboxSpec};
use crate::error::SandboxError;

pub use cgroup::removal::LEAVE_MS;
pub use handoff::REPORT_BYTES;
pub use label::LABEL_BYTES;
pub use running::LAUNCH_MS;
pub use unlinked::{UNLINKED_DESCRIPTORS, UNLINKED_PROCESSES};

/// Milliseconds that a guest gets to end by itself once the host process is gone. Then everything
/// in the sandbox is killed.
pub const HOST_GONE_GRACE_MS: u64 = 5_000;
/// File name of the launcher.
pub const LAUNCHER: &str = "cofferdam-launch";

/// Where the engine finds and puts things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeConfig {
    /// The launcher program; `None` for the one beside the current executable.
    pub launcher: Option<PathBuf>,
    /// Directory whose children are the runs' private directories. It belongs to one instance's
    /// data; a run's `run_dir` must be `RUNS_ROOT/RUN_ID`.
    pub runs_root: PathBuf,
}

/// The native engine.
#[derive(Debug, Clone)]
pub struct NativeEngine {
    config: NativeConfig,
    /// What runs inside instead of the guest; for tests and the probe.
    command: Vec<String>,
    /// The same for the shell host.
    shell_host: Vec<String>,
    shared_net: bool,
    grace_ms: u64,
    extra: Option<PathBuf>,
}

impl NativeEngine {
    /// An engine on this machine. Touches nothing yet.
    #[must_use]
    pub fn new(config: NativeConfig) -> Self {
        Self {
            config,
            command: vec![cofferdam_wire::layout::GUEST_BIN.to_owned()],
            shell_host: [cofferdam_wire::layout::GUEST_BIN, "shell-host"].map(str::to_owned).into(),
            shared_net: false,
            grace_ms: HOST_GONE_GRACE_MS,
            extra: None,
        }
    }

    /// Runs another command inside. Not reachable from any configuration: the engine's own tests and
    /// its probe use it.
    #[doc(hidden)]
    #[must_use]
    pub fn with_command(mut self, command: &[&str]) -> Self {
        self.command = command.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Runs another command as the shell host, for the engine's own tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_shell_host(mut self, command: &[&str]) -> Self {
        self.shell_host = command.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Leaves the second network namespace out, so that tests see what it is there for. Not reachable
    /// from any configuration.
    #[doc(hidden)]
    #[must_use]
    pub fn with_shared_net(mut self) -> Self {
        self.shared_net = true;
        self
    }

    /// Another grace than [`HOST_GONE_GRACE_MS`], for the engine's own tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_grace_ms(mut self, grace_ms: u64) -> Self {
        self.grace_ms = grace_ms;
        self
    }

    /// Shows `directory` writable as `/dev/extra`, for the engine's own tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_extra(mut self, directory: &Path) -> Self {
        self.extra = Some(directory.to_owned());
        self
    }

    /// The launcher program.
    fn launcher(&self) -> Result<PathBuf, SandboxError> {
        let path = match &self.config.launcher {
            Some(path) => path.clone(),
            None => std::env::current_exe()
                .map_err(|source| SandboxError::Io {
                    attempt: "find",
                    path: PathBuf::from(LAUNCHER),
                    source,
                })?
                .with_file_name(LAUNCHER),
        };
        if path.is_file() {
            return Ok(path);
        }
        Err(SandboxError::Unavailable {
            engine: EngineKind::Native,
            reason: format!("its launcher is not at {}", path.display()),
            fix: format!("put {LAUNCHER} from the same build beside the cofferdam program"),
        })
    }
}

/// An I/O error with its attempt and place.
fn io_error(attempt: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> SandboxError {
    let path = path.to_owned();
    move |source| SandboxError::Io { attempt, path, source }
}

#[async_trait]
impl Engine for NativeEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Native
    }

    fn separates_shell(&self) -> bool {
        true
    }

    async fn probe(&self) -> EngineReport {
        probe::probe(self).await
    }

    async fn prepare(&self, spec: &SandboxSpec) -> Result<Box<dyn Prepared>, SandboxError> {
        Ok(Box::new(prepare::prepare(self, spec).await?))
    }

    async fn list(&self, instance: &InstanceId) -> Result<Vec<Found>, SandboxError> {
        sweep::list(&self.config.runs_root, instance)
    }

    async fn salvage(&self, found: &Found, to: &Path) -> Result<bool, SandboxError> {
        salvage::take(&self.config.runs_root, &found.instance, &found.run, to).await
    }

    async fn remove(&self, found: &Found) -> TeardownOutcome {
        sweep::remove(&self.config.runs_root, &found.instance, &found.run).await
    }
}
