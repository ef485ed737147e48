//! The verdict on a run: outcome, the one cause that outranks all others, and everything else that
//! was wrong.
//!
//! Shapes only: [`crate::judge`] decides. A code, once given, never changes its meaning.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything that must be so is so, and the host saw it.
    Completed,
    /// Something is not.
    Failed,
    /// A person stopped it, and nothing worse was found.
    Cancelled,
}

impl Outcome {
    /// The name used in storage and output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! causes {
    ($( $(#[$doc:meta])* $variant:ident $code:literal $({ $( $(#[$fdoc:meta])* $field:ident : $ty:ty ),* $(,)? })? ),* $(,)?) => {
        /// Why a run is not `completed`. In the order of their rank: an earlier one outranks a later
        /// one, whatever the order in which they happened.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "code")]
        pub enum Cause {
            $(
                $(#[$doc])*
                #[serde(rename = $code)]
                $variant $({ $( $(#[$fdoc])* $field: $ty ),* })?,
            )*
        }

        impl Cause {
            /// Every code, highest rank first.
            pub const CODES: &[&str] = &[$($code),*];

            /// The stable code, for example `RUN-010`.
            #[must_use]
            pub fn code(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $code),* }
            }
        }
    };
}

causes! {
    /// The planted secret was found where the run could have put it.
    Leak "RUN-001" {
        /// Where.
        found_in: Vec<String>,
    },
    /// The run's commits could not be fetched.
    CollectFailed "RUN-010" {
        /// Why.
        reason: String,
        /// Where what there is was kept.
        salvage: Option<String>,
    },
    /// An agent ran and nothing says what became of its work.
    CollectMissing "RUN-011",
    /// The guest speaks of work that the host did not get.
    WorkMissing "RUN-012" {
        /// What is missing.
        detail: String,
    },
    /// An agent ran although a required layer did not hold.
    LayerNotHeld "RUN-020" {
        /// The layer.
        layer: String,
        /// What was seen, and by whom.
        detail: String,
    },
    /// An agent ran although nothing is known of the sandbox's posture.
    PostureMissing "RUN-021",
    /// A required layer does not hold; no agent was started.
    PostureRefused "RUN-022" {
        /// The layer.
        layer: String,
        /// What was seen.
        detail: String,
    },
    /// An agent ran and nobody searched for the planted secret.
    CanaryUnsearched "RUN-023",
    /// Something got out that no rule admits; no agent was started.
    EgressOpen "RUN-024" {
        /// What.
        detail: String,
    },
    /// An agent ran and nobody tried whether the wall holds.
    EgressUntested "RUN-025",
    /// Something of the sandbox is left.
    TeardownFailed "RUN-030" {
        /// What and why.
        detail: String,
    },
    /// Nothing says that the sandbox is gone.
    TeardownMissing "RUN-031",
    /// The agent of an unattended run waited for decisions that nobody gave.
    PromptsUnanswered "RUN-040" {
        /// How many.
        count: u64,
    },
    /// A person stopped it.
    Cancelled "RUN-050",
    /// A budget ran out.
    BudgetReached "RUN-051" {
        /// Which.
        budget: String,
    },
    /// The memory limit killed a process of the run.
    OutOfMemory "RUN-052",
    /// The process that supervised the run was lost.
    HostLost "RUN-053",
    /// The host itself failed.
    HostError "RUN-054" {
        /// How.
        detail: String,
    },
    /// The guest broke the protocol.
    Protocol "RUN-055" {
        /// How.
        detail: String,
    },
    /// The guest did not say hello in time.
    NoHello "RUN-056",
    /// The link closed before the guest had finished.
    LinkLost "RUN-057",
    /// The guest reported an error of its own.
    GuestError "RUN-058" {
        /// Its message. A claim.
        message: String,
    },
    /// The process limit refused new processes, and the agent did not end well.
    ProcessLimit "RUN-059" {
        /// How often.
        refused: u64,
    },
    /// The agent ended with an exit code other than zero.
    ExitCode "RUN-060" {
        /// The code. A claim.
        exit_code: i32,
    },
    /// The agent was killed.
    ExitSignal "RUN-061" {
        /// The signal. A claim.
        signal: i32,
    },
    /// An agent ran and nothing says how it ended.
    ExitUnknown "RUN-062",
    /// The guest says that it started from another commit than the one sent in.
    WrongBase "RUN-070" {
        /// The commit that was sent.
        sent: String,
        /// The commit that the guest named.
        claimed: String,
    },
    /// A fact that a completed run must have is not there.
    Incomplete "RUN-071" {
        /// The kind of the missing fact.
        missing: String,
    },
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leak { found_in } => {
                write!(f, "a secret of the host was found in {}", found_in.join(", "))
            }
            Self::CollectFailed { reason, salvage } => {
                write!(f, "the commits could not be fetched: {reason}")?;
                match salvage {
                    Some(place) => write!(f, " (kept at {place})"),
                    None => f.write_str(" (nothing was kept)"),
                }
            }
            Self::CollectMissing => f.write_str("nothing says what became of the agent's work"),
            Self::WorkMissing { detail } => write!(f, "work is missing: {detail}"),
            Self::LayerNotHeld { layer, detail } => {
                write!(f, "the agent ran although the layer {layer} did not hold: {detail}")
            }
            Self::PostureMissing => {
                f.write_str("the agent ran although the sandbox's posture is not known")
            }
            Self::PostureRefused { layer, detail } => {
                write!(f, "the layer {layer} does not hold, no agent was started: {detail}")
            }
            Self::CanaryUnsearched => f.write_str("nobody searched for the planted secret"),
            Self::EgressOpen { detail } => {
                write!(f, "something got out that no rule admits, no agent was started: {detail}")
            }
            Self::EgressUntested => f.write_str("nobody tried whether the wall holds"),
            Self::TeardownFailed { detail } => {
                write!(f, "something of the sandbox is left: {detail}")
            }
            Self::TeardownMissing => f.write_str("nothing says that the sandbox is gone"),
            Self::PromptsUnanswered { count: 1 } => {
                f.write_str("the agent asked for a decision and nobody answered")
            }
            Self::PromptsUnanswered { count } => {
                write!(f, "the agent asked for {count} decisions and nobody answered")
            }
            Self::Cancelled => f.write_str("a person stopped it"),
            Self::BudgetReached { budget } => write!(f, "the budget {budget} ran out"),
            Self::OutOfMemory => f.write_str("the memory limit killed a process of the run"),
            Self::HostLost => f.write_str("the process that supervised it was lost"),
            Self::HostError { detail } => write!(f, "the host failed: {detail}"),
            Self::Protocol { detail } => write!(f, "the guest broke the protocol: {detail}"),
            Self::NoHello => f.write_str("the guest did not say hello in time"),
            Self::LinkLost => f.write_str("the link closed before the guest had finished"),
            Self::GuestError { message } => write!(f, "the guest reported: {message}"),
            Self::ProcessLimit { refused } => {
                write!(f, "the process limit refused {refused} new processes and the agent failed")
            }
            Self::ExitCode { exit_code } => write!(f, "the agent ended with exit code {exit_code}"),
            Self::ExitSignal { signal } => write!(f, "the agent was killed by signal {signal}"),
            Self::ExitUnknown => f.write_str("nothing says how the agent ended"),
            Self::WrongBase { sent, claimed } => {
                write!(f, "the guest started from {claimed}, not from {sent}")
            }
            Self::Incomplete { missing } => write!(f, "the record has no {missing} entry"),
        }
    }
}

/// Something else that was wrong or worth knowing; it did not decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Warning {
    /// A [`Cause`] code when it was outranked, else a code from `RUN-100` on.
    pub code: String,
    /// One line for people.
    pub text: String,
}

/// The judgement on one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// How it ended.
    pub outcome: Outcome,
    /// Why; `None` exactly when completed.
    pub cause: Option<Cause>,
    /// Everything else, highest rank first.
    pub warnings: Vec<Warning>,
    /// One line for people.
    pub summary: String,
}

impl Verdict {
    /// The same findings for a run that somebody had wished to cancel before it was settled.
    pub(crate) fn overtaken_by_cancel(self) -> Self {
        Self {
            outcome: Outcome::Cancelled,
            cause: Some(Cause::Cancelled),
            summary: format!("cancelled (RUN-050): {}", Cause::Cancelled),
            warnings: self.warnings,
        }
    }
}
