//! Why a run could not be armed, or an operation not be done: code, words, way out.

use cofferdam_run::RunId;

/// An error with a stable code.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The configuration or a wish of the person's makes no sense.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The checkout cannot be used.
    #[error(transparent)]
    Workspace(#[from] cofferdam_workspace::WorkspaceError),
    /// The engine cannot be used.
    #[error(transparent)]
    Sandbox(#[from] cofferdam_sandbox::SandboxError),
    /// The ledger cannot be used.
    #[error(transparent)]
    Ledger(#[from] cofferdam_ledger::LedgerError),
    /// An egress rule is wrong.
    #[error(transparent)]
    Rule(#[from] cofferdam_policy::RuleError),
    /// A local service is wrong.
    #[error(transparent)]
    Service(#[from] cofferdam_policy::ServiceError),
    /// The model gateway cannot be set up.
    #[error(transparent)]
    Gateway(#[from] cofferdam_broker::gateway::GatewayError),
    /// The key of the model's provider is missing.
    #[error("no key for {provider}: the environment variable {variable} is not set")]
    NoKey {
        /// Provider.
        provider: String,
        /// Variable.
        variable: String,
    },
    /// The built-in agent needs a task.
    #[error("the task is empty")]
    NoTask,
    /// A part of Cofferdam itself is missing.
    #[error("{what} is missing: looked in {looked}")]
    PartMissing {
        /// Which binary.
        what: &'static str,
        /// Where it was looked for.
        looked: String,
    },
    /// A file operation of the host failed.
    #[error("cannot {attempt} {place}")]
    Io {
        /// What was tried.
        attempt: &'static str,
        /// On what.
        place: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The run is not over yet.
    #[error("run {0} is not over yet")]
    NotOver(RunId),
    /// The run brought nothing back.
    #[error("run {0} brought no commits back")]
    NoCommits(RunId),
    /// Another process took the run over.
    #[error("run {0} was taken over by another process")]
    TakenOver(RunId),
    /// The data directory would travel into the sandbox.
    #[error("the data directory {0} lies in the checkout and would travel into the sandbox")]
    DataInCheckout(String),
    /// A variable that is to be passed in is not there.
    #[error("the variable {0} is to be passed in and is not set")]
    NoVariable(String),
    /// Agent and shell have to be kept apart, and would not be.
    #[error("agent and shell cannot be kept apart, as this run requires: {why}")]
    ShellShared {
        /// What stands in the way.
        why: String,
    },
    /// A mistake of Cofferdam's own.
    #[error("{0}")]
    Internal(String),
}

impl HostError {
    pub(crate) fn io(
        attempt: &'static str,
        place: &std::path::Path,
        source: std::io::Error,
    ) -> Self {
        Self::Io { attempt, place: place.display().to_string(), source }
    }

    /// Stable code; each has a section in `docs/errors/`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Config(e) => e.code(),
            Self::Workspace(e) => e.code(),
            Self::Sandbox(e) => e.code(),
            Self::Ledger(e) => e.code(),
            Self::Rule(_) => "CONFIG-003",
            Self::Service(_) => "CONFIG-004",
            Self::Gateway(e) => e.code(),
            Self::NoKey { .. } => "HOST-001",
            Self::NoTask => "HOST-002",
            Self::PartMissing { .. } => "HOST-003",
            Self::Io { .. } => "HOST-004",
            Self::NotOver(_) => "HOST-005",
            Self::NoCommits(_) => "HOST-006",
            Self::TakenOver(_) => "HOST-007",
            Self::Internal(_) => "HOST-008",
            Self::DataInCheckout(_) => "HOST-009",
            Self::NoVariable(_) => "HOST-010",
            Self::ShellShared { .. } => "HOST-011",
        }
    }

    /// What the person can do, where there is something to say.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Config(crate::config::ConfigError::Syntax { nearest: Some(n), .. }) => {
                Some(format!("did you mean {n:?}?"))
            }
            Self::Workspace(e) => Some(e.hint()),
            Self::Sandbox(e) => Some(e.hint()),
            Self::Ledger(e) => Some(e.hint().to_owned()),
            Self::Gateway(cofferdam_broker::gateway::GatewayError::NoPrice { .. }) => Some(
                "name a table with the price in [gateway] prices, or leave the money budget out"
                    .to_owned(),
            ),
            Self::Gateway(_) => Some("see the provider in: cofferdam config show".to_owned()),
            Self::NoKey { variable, .. } => Some(format!(
                "export {variable}=… (it stays on the host), or choose another model with --model PROVIDER/MODEL"
            )),
            Self::NoTask => {
                Some("say what to do: cofferdam run \"Make the tests pass\"".to_owned())
            }
            Self::PartMissing { .. } => Some(
                "build it with ./dev build, or keep the three binaries of a release in one folder"
                    .to_owned(),
            ),
            Self::NotOver(id) => Some(format!("watch it with: cofferdam logs -f {id}")),
            Self::NoCommits(id) => Some(format!("see what happened: cofferdam show {id}")),
            Self::DataInCheckout(_) => {
                Some("put it elsewhere with --data-dir or COFFERDAM_DATA_DIR".to_owned())
            }
            Self::ShellShared { .. } => Some(
                "use the built-in agent with --engine native, or leave the requirement out"
                    .to_owned(),
            ),
            Self::Internal(_) => {
                Some("this is a mistake in cofferdam: please report it".to_owned())
            }
            _ => None,
        }
    }
}
