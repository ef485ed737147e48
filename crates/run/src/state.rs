//! The states of a run. Each variant carries exactly what is true in it.
//!
//! This module never moves a run from one state to another: only [`crate::step::step`] does.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fact::StopCause;
use crate::ids::{RunId, TimestampMs};
use crate::spec::{Mode, RunSpec};
use crate::verdict::{Outcome, Verdict};

/// The right to act for a run until it expires. Each claim starts a fresh, larger epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lease {
    /// Who holds it: free text that names a process, for people.
    pub owner: String,
    /// Counts the claims of this run, from 1. Every write of the owner carries it.
    pub epoch: u64,
    /// From this instant on the lease gives no right any more.
    pub expires_at: TimestampMs,
}

impl Lease {
    /// True from `expires_at` on.
    #[must_use]
    pub fn is_expired(&self, now: TimestampMs) -> bool {
        now >= self.expires_at
    }
}

/// Proof that a run has a person at hand. States that wait for a person carry it, so an unattended
/// run cannot be in one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Supervised(());

impl Supervised {
    /// The proof, when the specification says that a person is there.
    #[must_use]
    pub fn of(spec: &RunSpec) -> Option<Self> {
        match spec.mode {
            Mode::Supervised => Some(Self(())),
            Mode::Unattended => None,
        }
    }
}

/// A question that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ask {
    /// Names the question within the run; a decision must name it back.
    pub id: String,
    /// The question, one line for people.
    pub text: String,
}

/// Why a queued run is not to be taken yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Due {
    /// From this instant on it may be claimed.
    pub at: TimestampMs,
    /// Why not before.
    pub why: Wait,
}

/// What a queued run waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// The attempt before failed; the pause grows with each failure.
    Backoff,
    /// The model's provider asked for patience. Not a failure.
    RateLimit,
}

/// How far the agent had come when a run began to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its plan is not made yet.
    Planning,
    /// It works.
    Executing,
}

/// How far preparing has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum Preparation {
    /// Snapshot and sandbox are being made; no sandbox is known yet.
    Creating,
    /// The sandbox's identity is stored; only now may it be started.
    Starting {
        /// Name or id under which the engine knows it.
        sandbox: String,
    },
    /// The guest said hello and its posture was accepted; only now may an agent be started.
    Ready {
        /// Name or id under which the engine knows it.
        sandbox: String,
    },
}

impl Preparation {
    fn sandbox(&self) -> Option<&str> {
        match self {
            Self::Creating => None,
            Self::Starting { sandbox } | Self::Ready { sandbox } => Some(sandbox),
        }
    }
}

/// Why a run is being wound up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "ending", rename_all = "snake_case")]
pub enum Ending {
    /// The agent ended by itself, well or badly.
    AgentEnded,
    /// The host stopped it.
    Stopped {
        /// Why.
        #[serde(rename = "why")]
        cause: StopCause,
    },
}

/// Where a run stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// Armed and durable; nobody works on it.
    Queued {
        /// Not before this; `None`: as soon as somebody has room for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        due: Option<Due>,
    },
    /// Somebody makes the snapshot and the sandbox.
    Preparing {
        /// Who.
        lease: Lease,
        /// How far.
        stage: Preparation,
    },
    /// The built-in agent makes its plan.
    Planning {
        /// Who supervises.
        lease: Lease,
        /// The sandbox.
        sandbox: String,
    },
    /// The agent works.
    Executing {
        /// Who supervises.
        lease: Lease,
        /// The sandbox.
        sandbox: String,
    },
    /// The agent waits for a person's decision.
    AwaitingApproval {
        /// Who supervises.
        lease: Lease,
        /// The sandbox.
        sandbox: String,
        /// The question.
        ask: Ask,
        /// Where the run goes on.
        then: Phase,
        /// A person is there.
        supervised: Supervised,
    },
    /// A budget is used up and a person may extend it.
    Paused {
        /// Who supervises.
        lease: Lease,
        /// The sandbox.
        sandbox: String,
        /// The budget that was reached first.
        budget: String,
        /// A question that was open when the run paused and still is.
        ask: Option<Ask>,
        /// Where the run goes on.
        then: Phase,
        /// A person is there.
        supervised: Supervised,
    },
    /// Nothing of the agent runs any more: commits are fetched, the sandbox is removed, all is judged.
    Collecting {
        /// Who supervises.
        lease: Lease,
        /// The sandbox, when one was ever identified.
        sandbox: Option<String>,
        /// Why it is being wound up.
        ending: Ending,
        /// Since when commits are being carried out; `None` before that.
        carrying_since: Option<TimestampMs>,
    },
    /// Terminal: it did what a run must do.
    Completed {
        /// The verdict.
        verdict: Verdict,
    },
    /// Terminal: it did not.
    Failed {
        /// The verdict.
        verdict: Verdict,
    },
    /// Terminal: it failed and whoever retried it gave up.
    DeadLetter {
        /// The verdict of the last attempt.
        verdict: Verdict,
    },
    /// Terminal: a person stopped it, and nothing worse was found.
    Cancelled {
        /// The verdict.
        verdict: Verdict,
    },
}

macro_rules! state_names {
    ($($variant:ident $text:literal),* $(,)?) => {
        /// The name of a state, without what it carries.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum StateName {
            $(
                #[doc = concat!("`", $text, "`")]
                $variant,
            )*
        }

        impl StateName {
            /// Every name, in the order of a run's life.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name used in storage and output.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }

        impl State {
            /// The state's name.
            #[must_use]
            pub fn name(&self) -> StateName {
                match self { $(Self::$variant { .. } => StateName::$variant),* }
            }
        }
    };
}

state_names! {
    Queued "queued",
    Preparing "preparing",
    Planning "planning",
    Executing "executing",
    AwaitingApproval "awaiting_approval",
    Paused "paused",
    Collecting "collecting",
    Completed "completed",
    Failed "failed",
    DeadLetter "dead_letter",
    Cancelled "cancelled",
}

impl StateName {
    /// True for states that nothing leaves.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::DeadLetter | Self::Cancelled => true,
            Self::Queued
            | Self::Preparing
            | Self::Planning
            | Self::Executing
            | Self::AwaitingApproval
            | Self::Paused
            | Self::Collecting => false,
        }
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for StateName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .iter()
            .copied()
            .find(|n| n.as_str() == text)
            .ok_or_else(|| format!("unknown run state {text:?}"))
    }
}

/// What makes a run go on. Every non-terminal state names one; a wait without a waker would be a
/// run that hangs for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waker {
    /// Whoever claims it next.
    Claim,
    /// Whoever claims it first from this instant on. It is stored, so no timer can be lost.
    Clock {
        /// When.
        at: TimestampMs,
    },
    /// Its owner; past the deadline whoever reconciles expired leases.
    Owner {
        /// Expiry of the lease.
        deadline: TimestampMs,
    },
    /// A person who decides; cancel and the owner's own clock as well.
    Decision {
        /// The question.
        ask: String,
        /// Expiry of the lease.
        deadline: TimestampMs,
    },
    /// A person who extends a budget; cancel and the owner's own clock as well.
    Extension {
        /// The budget.
        budget: String,
        /// Expiry of the lease.
        deadline: TimestampMs,
    },
}

/// What a person can always do about a run that is not over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// Stop it.
    Cancel,
    /// Let a waiting attempt begin now.
    Hasten,
    /// Answer its question.
    Decide {
        /// The question.
        ask: String,
    },
    /// Let it go on, with more or as it is.
    Extend {
        /// The budget that was reached.
        budget: String,
    },
}

impl State {
    /// What a person can do; empty exactly for terminal states.
    #[must_use]
    pub fn exits(&self) -> Vec<Exit> {
        match self {
            Self::Queued { due: None }
            | Self::Preparing { .. }
            | Self::Planning { .. }
            | Self::Executing { .. }
            | Self::Collecting { .. } => vec![Exit::Cancel],
            Self::Queued { due: Some(_) } => vec![Exit::Cancel, Exit::Hasten],
            Self::AwaitingApproval { ask, .. } => {
                vec![Exit::Cancel, Exit::Decide { ask: ask.id.clone() }]
            }
            Self::Paused { budget, ask, .. } => {
                let mut exits = vec![Exit::Cancel, Exit::Extend { budget: budget.clone() }];
                exits.extend(ask.as_ref().map(|ask| Exit::Decide { ask: ask.id.clone() }));
                exits
            }
            Self::Completed { .. }
            | Self::Failed { .. }
            | Self::DeadLetter { .. }
            | Self::Cancelled { .. } => Vec::new(),
        }
    }

    /// True for states that nothing leaves.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.name().is_terminal()
    }

    /// The terminal state that `verdict` leads to.
    pub(crate) fn settled(verdict: Verdict) -> Self {
        match verdict.outcome {
            Outcome::Completed => Self::Completed { verdict },
            Outcome::Failed => Self::Failed { verdict },
            Outcome::Cancelled => Self::Cancelled { verdict },
        }
    }

    /// Who holds the run; `None` when queued or terminal.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Preparing { lease, .. }
            | Self::Planning { lease, .. }
            | Self::Executing { lease, .. }
            | Self::AwaitingApproval { lease, .. }
            | Self::Paused { lease, .. }
            | Self::Collecting { lease, .. } => Some(lease),
            Self::Queued { .. }
            | Self::Completed { .. }
            | Self::Failed { .. }
            | Self::DeadLetter { .. }
            | Self::Cancelled { .. } => None,
        }
    }

    /// The same state under another lease; unchanged where no lease is carried.
    #[must_use]
    pub fn with_lease(mut self, new: Lease) -> Self {
        match &mut self {
            Self::Preparing { lease, .. }
            | Self::Planning { lease, .. }
            | Self::Executing { lease, .. }
            | Self::AwaitingApproval { lease, .. }
            | Self::Paused { lease, .. }
            | Self::Collecting { lease, .. } => *lease = new,
            Self::Queued { .. }
            | Self::Completed { .. }
            | Self::Failed { .. }
            | Self::DeadLetter { .. }
            | Self::Cancelled { .. } => {}
        }
        self
    }

    /// The sandbox, once identified and until the run is terminal.
    #[must_use]
    pub fn sandbox(&self) -> Option<&str> {
        match self {
            Self::Preparing { stage, .. } => stage.sandbox(),
            Self::Planning { sandbox, .. }
            | Self::Executing { sandbox, .. }
            | Self::AwaitingApproval { sandbox, .. }
            | Self::Paused { sandbox, .. } => Some(sandbox),
            Self::Collecting { sandbox, .. } => sandbox.as_deref(),
            Self::Queued { .. }
            | Self::Completed { .. }
            | Self::Failed { .. }
            | Self::DeadLetter { .. }
            | Self::Cancelled { .. } => None,
        }
    }

    /// The verdict; present exactly in terminal states.
    #[must_use]
    pub fn verdict(&self) -> Option<&Verdict> {
        match self {
            Self::Completed { verdict }
            | Self::Failed { verdict }
            | Self::DeadLetter { verdict }
            | Self::Cancelled { verdict } => Some(verdict),
            Self::Queued { .. }
            | Self::Preparing { .. }
            | Self::Planning { .. }
            | Self::Executing { .. }
            | Self::AwaitingApproval { .. }
            | Self::Paused { .. }
            | Self::Collecting { .. } => None,
        }
    }

    /// What makes it go on; `None` exactly for terminal states.
    #[must_use]
    pub fn waker(&self) -> Option<Waker> {
        match self {
            Self::Queued { due: None } => Some(Waker::Claim),
            Self::Queued { due: Some(due) } => Some(Waker::Clock { at: due.at }),
            Self::Preparing { lease, .. }
            | Self::Planning { lease, .. }
            | Self::Executing { lease, .. }
            | Self::Collecting { lease, .. } => Some(Waker::Owner { deadline: lease.expires_at }),
            Self::AwaitingApproval { lease, ask, .. } => {
                Some(Waker::Decision { ask: ask.id.clone(), deadline: lease.expires_at })
            }
            Self::Paused { lease, budget, .. } => {
                Some(Waker::Extension { budget: budget.clone(), deadline: lease.expires_at })
            }
            Self::Completed { .. }
            | Self::Failed { .. }
            | Self::DeadLetter { .. }
            | Self::Cancelled { .. } => None,
        }
    }
}

/// A wish to stop a run. It can come from any process and needs no lease; the owner carries it out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CancelRequest {
    /// Who asked, for people.
    pub by: String,
    /// When.
    pub at: TimestampMs,
}

/// A run as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// What was decided beforehand; budgets may have been extended since.
    pub spec: RunSpec,
    /// Where it stands.
    pub state: State,
    /// The first wish to cancel it.
    pub cancel: Option<CancelRequest>,
    /// When it was armed.
    pub created_at: TimestampMs,
    /// When it last changed.
    pub updated_at: TimestampMs,
}

/// A stored run contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// A state that waits for a person in a run without one.
    #[error("an unattended run cannot be {state}")]
    NobodyThere {
        /// The stored state.
        state: StateName,
    },
    /// A terminal state whose verdict says something else.
    #[error("a {state} run cannot have the verdict {outcome}")]
    VerdictDiffers {
        /// The stored state.
        state: StateName,
        /// Its verdict's outcome.
        outcome: Outcome,
    },
    /// A lease without an epoch.
    #[error("a lease must have an epoch of at least 1")]
    NoEpoch,
}

impl Run {
    /// A run that was just armed.
    #[must_use]
    pub fn new(id: RunId, spec: RunSpec, created_at: TimestampMs) -> Self {
        Self {
            id,
            spec,
            state: State::Queued { due: None },
            cancel: None,
            created_at,
            updated_at: created_at,
        }
    }

    /// Checks what storage gave back, because a decoded state has not come through `step`.
    ///
    /// # Errors
    /// When the parts contradict one another.
    pub fn restored(self) -> Result<Self, RestoreError> {
        let state = self.state.name();
        match &self.state {
            State::AwaitingApproval { .. } | State::Paused { .. } => {
                if Supervised::of(&self.spec).is_none() {
                    return Err(RestoreError::NobodyThere { state });
                }
            }
            State::Completed { verdict } => agree(state, verdict, Outcome::Completed)?,
            State::Failed { verdict } | State::DeadLetter { verdict } => {
                agree(state, verdict, Outcome::Failed)?;
            }
            State::Cancelled { verdict } => agree(state, verdict, Outcome::Cancelled)?,
            State::Queued { .. }
            | State::Preparing { .. }
            | State::Planning { .. }
            | State::Executing { .. }
            | State::Collecting { .. } => {}
        }
        if self.state.lease().is_some_and(|l| l.epoch == 0) {
            return Err(RestoreError::NoEpoch);
        }
        Ok(self)
    }
}

fn agree(state: StateName, verdict: &Verdict, expected: Outcome) -> Result<(), RestoreError> {
    if verdict.outcome == expected {
        Ok(())
    } else {
        Err(RestoreError::VerdictDiffers { state, outcome: verdict.outcome })
    }
}
