//! What can happen to a run, and what the state machine asks for in answer.
//!
//! Events and actions are data. Nothing here acts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fact::StopCause;
use crate::ids::TimestampMs;
use crate::limits::Budgets;
use crate::state::{Ask, Lease};
use crate::verdict::Verdict;

/// Something happened to a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RunEvent {
    /// Somebody took it: queued, or left behind under an expired lease.
    Claimed {
        /// The new lease; its epoch is larger than any before.
        lease: Lease,
    },
    /// The sandbox was created and not started yet.
    SandboxIdentified {
        /// Name or id under which the engine knows it.
        sandbox: String,
    },
    /// The guest said hello and its posture was accepted.
    GuestReady,
    /// The agent started.
    AgentStarted,
    /// The built-in agent has its plan.
    PlanMade,
    /// The agent wants a decision (supervised runs only).
    ApprovalAsked {
        /// The question.
        ask: Ask,
    },
    /// A person decided.
    ApprovalDecided {
        /// Id of the question.
        ask: String,
        /// Yes or no.
        approved: bool,
        /// Who decided.
        by: String,
    },
    /// A budget ran out: a supervised run pauses, an unattended one stops.
    BudgetReached {
        /// Which: `wall_clock`, `tokens`, `money`, `model_calls`, `egress_bytes_out`.
        budget: String,
    },
    /// A person lets a paused run go on as it is.
    Resumed {
        /// Who.
        by: String,
    },
    /// A person gives a paused run more, and it goes on.
    Extended {
        /// Who.
        by: String,
        /// The budgets from now on.
        budgets: Budgets,
    },
    /// A person lets a waiting attempt begin now.
    Hastened {
        /// Who.
        by: String,
    },
    /// The agent ended by itself.
    AgentEnded,
    /// The host stops it.
    StopRequested {
        /// Why.
        #[serde(rename = "why")]
        cause: StopCause,
    },
    /// Somebody wishes to stop it. Needs no lease.
    CancelRequested {
        /// Who.
        by: String,
    },
    /// Commits are being carried out.
    CollectStarted,
    /// The new owner found that the former one is gone.
    HostLost,
    /// All is collected, removed and judged.
    Settled {
        /// The judgement.
        verdict: Verdict,
    },
    /// All is judged, it failed, and it is not tried again.
    GivenUp {
        /// The judgement.
        verdict: Verdict,
    },
}

impl RunEvent {
    /// The event's name, as stored.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Claimed { .. } => "claimed",
            Self::SandboxIdentified { .. } => "sandbox_identified",
            Self::GuestReady => "guest_ready",
            Self::AgentStarted => "agent_started",
            Self::PlanMade => "plan_made",
            Self::ApprovalAsked { .. } => "approval_asked",
            Self::ApprovalDecided { .. } => "approval_decided",
            Self::BudgetReached { .. } => "budget_reached",
            Self::Resumed { .. } => "resumed",
            Self::Extended { .. } => "extended",
            Self::Hastened { .. } => "hastened",
            Self::AgentEnded => "agent_ended",
            Self::StopRequested { .. } => "stop_requested",
            Self::CancelRequested { .. } => "cancel_requested",
            Self::CollectStarted => "collect_started",
            Self::HostLost => "host_lost",
            Self::Settled { .. } => "settled",
            Self::GivenUp { .. } => "given_up",
        }
    }

    /// True when only the holder of the lease may say so. The others are a person's, from any process.
    #[must_use]
    pub fn needs_owner(&self) -> bool {
        match self {
            Self::ApprovalDecided { .. }
            | Self::Resumed { .. }
            | Self::Extended { .. }
            | Self::Hastened { .. }
            | Self::CancelRequested { .. } => false,
            Self::Claimed { .. }
            | Self::SandboxIdentified { .. }
            | Self::GuestReady
            | Self::AgentStarted
            | Self::PlanMade
            | Self::ApprovalAsked { .. }
            | Self::BudgetReached { .. }
            | Self::AgentEnded
            | Self::StopRequested { .. }
            | Self::CollectStarted
            | Self::HostLost
            | Self::Settled { .. }
            | Self::GivenUp { .. } => true,
        }
    }
}

/// What the state machine asks the owner to do, in this order. An action may be repeated after a
/// crash, so each must be harmless the second time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make the snapshot and create the sandbox, without starting it.
    Prepare,
    /// Compare with what the engine has before anything else: the former owner is gone.
    Reconcile,
    /// Start the sandbox whose identity is now stored.
    StartSandbox {
        /// Its name or id.
        sandbox: String,
    },
    /// Start the agent in it.
    StartAgent,
    /// Show a person the question.
    AskPerson {
        /// The question.
        ask: Ask,
    },
    /// Give the agent the decision.
    TellAgent {
        /// Id of the question.
        ask: String,
        /// Yes or no.
        approved: bool,
    },
    /// Let nothing of the agent go on; its work stays.
    PauseAgent,
    /// Let it go on.
    ResumeAgent,
    /// Make the owner look: somebody wishes to cancel.
    NotifyOwner,
    /// End every connection of the guest and admit none; the link itself stays for collecting.
    CutEgress,
    /// Ask the guest to end the agent and commit what there is, within a short grace.
    CancelAgent,
    /// Close the link: nothing is heard or served any more.
    CutLink,
    /// Fetch the commits over the link.
    Collect,
    /// Save whatever of the work can be reached without the guest.
    Salvage,
    /// Remove the sandbox and prove it; without a name: whatever carries this run's label.
    Teardown {
        /// Its name or id, when known.
        sandbox: Option<String>,
    },
    /// Judge the facts and settle.
    Judge,
    /// Come back at that time, if the run still stands.
    WakeAt {
        /// When.
        at: TimestampMs,
        /// What to say then.
        event: Box<RunEvent>,
    },
}
