//! Why an engine could not do what it was asked. Each error has a code and a way out.

use std::io;
use std::path::PathBuf;

use cofferdam_run::engine::EngineKind;

/// An engine's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The engine does not work here at all.
    #[error("the {engine} engine cannot be used: {reason}")]
    Unavailable {
        /// Which.
        engine: EngineKind,
        /// Why not.
        reason: String,
        /// What to do about it.
        fix: String,
    },
    /// The root source does not fit the engine or cannot be used.
    #[error("the {engine} engine cannot use this root file system: {reason}")]
    Root {
        /// Which.
        engine: EngineKind,
        /// Why not.
        reason: String,
    },
    /// A file or directory of the host could not be handled.
    #[error("cannot {attempt} {}", path.display())]
    Io {
        /// What was tried, for example `create`.
        attempt: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A sandbox of that run exists already.
    #[error("a sandbox for this run exists already: {sandbox}")]
    Exists {
        /// Its name.
        sandbox: String,
    },
    /// The engine answered with an error.
    #[error("the {engine} engine failed to {attempt}: {detail}")]
    Engine {
        /// Which.
        engine: EngineKind,
        /// What was tried, for example `create the container`.
        attempt: &'static str,
        /// Its answer, cut at 2,000 characters.
        detail: String,
    },
    /// The engine did not answer in time.
    #[error("the {engine} engine did not {attempt} within {limit_ms} ms")]
    Timeout {
        /// Which.
        engine: EngineKind,
        /// What was tried.
        attempt: &'static str,
        /// The limit, milliseconds.
        limit_ms: u64,
    },
    /// The engine made something else than it was asked for, and it was not started.
    #[error("the {engine} engine did not make the sandbox as it was asked to: {detail}")]
    Differs {
        /// Which.
        engine: EngineKind,
        /// Each setting that differs, with what was asked for; cut at 2,000 characters.
        detail: String,
    },
    /// The engine cannot work within these limits.
    #[error("the {engine} engine cannot work within these limits: {reason}")]
    Limits {
        /// Which.
        engine: EngineKind,
        /// Which limit, and why.
        reason: String,
        /// What to set.
        fix: String,
    },
    /// The sandbox was made, but its first process could not be brought up.
    #[error("the sandbox did not start: {stage}: {detail}")]
    Launch {
        /// Which step failed.
        stage: String,
        /// How.
        detail: String,
    },
}

impl SandboxError {
    /// The same error of another engine: those behind Docker's API share code, and their errors get
    /// their own name where they leave it.
    #[must_use]
    pub(crate) fn on(mut self, kind: EngineKind) -> Self {
        match &mut self {
            Self::Unavailable { engine, .. }
            | Self::Root { engine, .. }
            | Self::Engine { engine, .. }
            | Self::Timeout { engine, .. }
            | Self::Differs { engine, .. }
            | Self::Limits { engine, .. } => *engine = kind,
            Self::Io { .. } | Self::Exists { .. } | Self::Launch { .. } => {}
        }
        self
    }

    /// The stable code, with a page in `docs/errors/`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "SANDBOX-001",
            Self::Root { .. } => "SANDBOX-002",
            Self::Io { .. } => "SANDBOX-003",
            Self::Exists { .. } => "SANDBOX-004",
            Self::Engine { .. } => "SANDBOX-005",
            Self::Timeout { .. } => "SANDBOX-006",
            Self::Launch { .. } => "SANDBOX-007",
            Self::Differs { .. } => "SANDBOX-008",
            Self::Limits { .. } => "SANDBOX-009",
        }
    }

    /// One line that says what to do.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Unavailable { fix, .. } | Self::Limits { fix, .. } => fix.clone(),
            Self::Root { .. } => {
                "set another root for this engine, or use the other engine; `cofferdam doctor` shows both".to_owned()
            }
            Self::Io { .. } => "check the owner, the mode and the free space of that place".to_owned(),
            Self::Exists { .. } => {
                "`cofferdam sweep` removes sandboxes whose run has ended".to_owned()
            }
            Self::Engine { .. } => "`cofferdam doctor` shows what the engine offers".to_owned(),
            Self::Differs { .. } => {
                "look for what changes containers on that engine (its configuration, a plugin, a proxy before its \
                 socket), or use another engine"
                    .to_owned()
            }
            Self::Timeout { .. } => {
                "see whether the machine is overloaded or the engine hangs, then run `cofferdam sweep`".to_owned()
            }
            Self::Launch { .. } => {
                "`cofferdam doctor` shows which layer this kernel lacks".to_owned()
            }
        }
    }
}
