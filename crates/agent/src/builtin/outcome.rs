//! How a run of the built-in agent ends. Each way to fail has a code and a way out.

use crate::model::ModelError;

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentOutcome {
    /// The model called `finish`, or answered without calling a tool.
    Finished {
        /// Its report.
        report: String,
    },
    /// It used up its steps.
    StepLimit {
        /// How many there were.
        steps: u32,
    },
    /// It could not go on.
    Failed(Failure),
}

/// Why it could not go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message} ({hint})")]
pub struct Failure {
    /// `AGENT-0xx`, or the gateway's own `MODEL-0xx`.
    pub code: String,
    /// What happened, one line.
    pub message: String,
    /// What to do about it, one line.
    pub hint: &'static str,
}

impl Failure {
    pub(crate) fn new(code: &str, message: impl Into<String>, hint: &'static str) -> Self {
        Self { code: code.to_owned(), message: message.into(), hint }
    }
}

impl AgentOutcome {
    /// Exit code of the process: 0 finished, 1 failed, 2 out of steps.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Finished { .. } => 0,
            Self::Failed(_) => 1,
            Self::StepLimit { .. } => 2,
        }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        let message = error.to_string();
        match error {
            ModelError::Gateway { code, .. } => Self::new(
                &code,
                message,
                "the model gateway on the host refused; its page says why",
            ),
            ModelError::Refused { .. } => Self::new(
                "AGENT-003",
                message,
                "check the model's name, the key and the account with the provider; its own words are above",
            ),
            ModelError::Unreachable { .. } => Self::new(
                "AGENT-004",
                message,
                "check the provider's status and the model's base URL, then run again; commits made so far are kept",
            ),
            ModelError::RateLimited { .. } => Self::new(
                "AGENT-005",
                message,
                "wait, lower the number of runs that share the key, or raise the limit with the provider",
            ),
            ModelError::TooLong(_) => Self::new(
                "AGENT-009",
                message,
                "give a smaller task, or a model with a larger context window",
            ),
        }
    }
}
