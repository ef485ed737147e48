//! Facts: the typed entries of a run's record, in the order in which the host learned them.
//!
//! What the guest said is kept in variants and fields named *claim*; everything else is what the
//! host itself saw. No fact holds a secret.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::EngineKind;
use crate::ids::{Digest, ObjectId};
use crate::limits::Spend;
use crate::posture::{LayerReport, Probe};
use crate::spec::{Principal, RunSpec};

/// One entry of the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Fact {
    /// The run was armed with this specification.
    Armed {
        /// Version of Cofferdam.
        version: String,
        /// Everything decided beforehand.
        spec: RunSpec,
    },
    /// The checkout was snapshotted.
    Snapshot {
        /// `HEAD` of the checkout.
        head: ObjectId,
        /// The commit that travels: `head` itself for a clean tree, else its child.
        base: ObjectId,
        /// Branch of the checkout; `None` when detached.
        branch: Option<String>,
        /// Paths that differ from `head`, staged, unstaged and untracked together.
        uncommitted_paths: u64,
        /// Digest of the bundle that went in.
        bundle: Digest,
        /// Its size.
        bundle_bytes: u64,
    },
    /// The sandbox was created, configured and read back, and has not started yet.
    SandboxPrepared {
        /// Engine.
        engine: EngineKind,
        /// Engine version text, cut at 200 characters.
        engine_version: String,
        /// Name or id under which the engine knows it.
        sandbox: String,
        /// Digest of the hardening specification that configured the engine.
        hardening: Digest,
        /// Image id, or fingerprint of the native root.
        root: String,
        /// Digest of the guest binary.
        guest: Digest,
        /// Layer by layer, as the engine shows it after configuration.
        read_back: Vec<LayerReport>,
    },
    /// The guest said hello and what it saw of itself.
    Posture {
        /// The raw observations. A claim of code that ran before any agent.
        probe_claim: Probe,
        /// The host's evaluation, layer by layer.
        layers: Vec<LayerReport>,
    },
    /// Workspace imported; the guest says at which commit.
    WorkspaceIn {
        /// Commit that the guest checked out.
        head_claim: ObjectId,
    },
    /// The agent started.
    AgentStarted {
        /// Program, as started.
        program: String,
    },
    /// A state of the agent's own work, told by the guest (plan, tool call, message).
    AgentClaim {
        /// Short kind, for example `plan`, `tool`, `message`.
        kind: String,
        /// One line for people, cut at 2,000 characters.
        text: String,
    },
    /// The broker decided about a connection.
    Egress {
        /// What was asked for, as parsed; escaped text when it could not be parsed.
        target: String,
        /// Admitted or refused.
        admitted: bool,
        /// The rule or the refusal code.
        reason: String,
        /// The address dialled.
        address: Option<String>,
        /// Bytes from the guest.
        bytes_out: u64,
        /// Bytes to the guest.
        bytes_in: u64,
        /// How it ended, for admitted ones.
        outcome: String,
        /// Whose token it carried. Absent when it carried none of this run's, and in records from
        /// before there were two.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        principal: Option<Principal>,
    },
    /// The broker carried (or refused) a call to the model.
    ModelCall {
        /// Method and path.
        request: String,
        /// Model named by the client.
        model: String,
        /// Status answered to the guest.
        status: u16,
        /// Refusal code when the gateway refused it.
        refusal: Option<String>,
        /// Tokens of this call.
        usage: Spend,
        /// Bytes of the request body.
        bytes_out: u64,
        /// Bytes of the answer.
        bytes_in: u64,
        /// How long the provider asked to wait before another call, milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// More facts of one kind happened than the record keeps; the rest was counted.
    Truncated {
        /// The kind, for example `egress`.
        kind: String,
        /// How many were not kept.
        count: u64,
    },
    /// The agent asked for a decision and none was given.
    PromptUnanswered {
        /// One line for people.
        text: String,
    },
    /// The host stopped the run.
    Stopped {
        /// Why.
        cause: StopCause,
    },
    /// The guest reports how the agent ended.
    AgentEnded {
        /// Exit code, when it exited.
        code_claim: Option<i32>,
        /// Signal, when it was killed.
        signal_claim: Option<i32>,
        /// The agent's own last words, cut at 8,000 characters.
        report_claim: String,
        /// Bytes of output that were cut.
        output_cut_bytes: u64,
    },
    /// The guest reports an error of its own.
    GuestError {
        /// Its message, cut at 2,000 characters.
        message_claim: String,
    },
    /// What came back.
    Collected {
        /// Object id that the guest says `HEAD` has.
        head_claim: Option<ObjectId>,
        /// Commits over the base that the guest says there are.
        commits_claim: u64,
        /// Result of fetching them.
        outcome: CollectOutcome,
        /// What the guest says that it could not take from the work tree; empty when nothing.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        not_taken_claim: Vec<String>,
    },
    /// The guest tried a target that no rule admits, and the way around the door, before any agent
    /// ran.
    EgressTest {
        /// The target.
        target: String,
        /// The door on the host saw the attempt and refused it.
        refused: bool,
        /// Status that the guest says it was answered.
        status_claim: Option<u16>,
        /// Ways around the door that the guest says are open; empty when there is none.
        open_claim: Vec<String>,
    },
    /// What the sandbox used of its limits, as the host counted it before removal. A value that the
    /// host cannot see is absent, not zero.
    Resources {
        /// What.
        usage: ResourceUse,
    },
    /// The sandbox ended, as the engine saw it.
    SandboxEnded {
        /// Exit code of its first process.
        exit: Option<i32>,
        /// The memory limit killed something in it.
        oom_killed: bool,
    },
    /// The sandbox was removed.
    Teardown {
        /// Result, proven by asking the engine again.
        outcome: TeardownOutcome,
    },
    /// The planted secret was searched for.
    Canary {
        /// Where it was found; empty when nowhere.
        found_in: Vec<String>,
        /// What was searched.
        searched: Vec<String>,
        /// What should have been searched and could not be. Then nobody can say that it is clean.
        #[serde(default)]
        unsearched: Vec<String>,
    },
    /// Final spend.
    Spent {
        /// Sum over the run.
        spend: Spend,
    },
    /// Something was kept on purpose after the run.
    Retained {
        /// What, for example `bundle`.
        kind: String,
        /// Where.
        place: String,
        /// Until when, Unix milliseconds.
        until_ms: u64,
    },
    /// Something that the person should know.
    Note {
        /// One line for people.
        text: String,
    },
}

impl Fact {
    /// The fact's kind, as in its `type` field.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Armed { .. } => "armed",
            Self::Snapshot { .. } => "snapshot",
            Self::SandboxPrepared { .. } => "sandbox_prepared",
            Self::Posture { .. } => "posture",
            Self::WorkspaceIn { .. } => "workspace_in",
            Self::AgentStarted { .. } => "agent_started",
            Self::AgentClaim { .. } => "agent_claim",
            Self::Egress { .. } => "egress",
            Self::ModelCall { .. } => "model_call",
            Self::Truncated { .. } => "truncated",
            Self::PromptUnanswered { .. } => "prompt_unanswered",
            Self::Stopped { .. } => "stopped",
            Self::AgentEnded { .. } => "agent_ended",
            Self::GuestError { .. } => "guest_error",
            Self::Collected { .. } => "collected",
            Self::EgressTest { .. } => "egress_test",
            Self::Resources { .. } => "resources",
            Self::SandboxEnded { .. } => "sandbox_ended",
            Self::Teardown { .. } => "teardown",
            Self::Canary { .. } => "canary",
            Self::Spent { .. } => "spent",
            Self::Retained { .. } => "retained",
            Self::Note { .. } => "note",
        }
    }

    /// True for kinds that a guest can cause without end. Past a bound they are counted, not kept;
    /// what the verdict needs of them survives that.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        match self {
            Self::AgentClaim { .. }
            | Self::Egress { .. }
            | Self::ModelCall { .. }
            | Self::PromptUnanswered { .. }
            | Self::GuestError { .. } => true,
            Self::Armed { .. }
            | Self::Snapshot { .. }
            | Self::SandboxPrepared { .. }
            | Self::Posture { .. }
            | Self::WorkspaceIn { .. }
            | Self::AgentStarted { .. }
            | Self::Truncated { .. }
            | Self::Stopped { .. }
            | Self::AgentEnded { .. }
            | Self::Collected { .. }
            | Self::EgressTest { .. }
            | Self::Resources { .. }
            | Self::SandboxEnded { .. }
            | Self::Teardown { .. }
            | Self::Canary { .. }
            | Self::Spent { .. }
            | Self::Retained { .. }
            | Self::Note { .. } => false,
        }
    }
}

/// What a sandbox used of its limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceUse {
    /// Processor time, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Most memory at once, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    /// Processes that the memory limit killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// Most processes and threads at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids_peak: Option<u64>,
    /// How often the process limit refused a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids_refused: Option<u64>,
    /// Time in which processes waited for the processor limit, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_throttled_ms: Option<u64>,
    /// Bytes that the work volume took on the disk when it was last counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_bytes: Option<u64>,
    /// Files and directories in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_files: Option<u64>,
}

/// Why the host stopped a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum StopCause {
    /// The person cancelled it.
    Cancelled,
    /// A budget ran out.
    Budget {
        /// Which: `wall_clock`, `tokens`, `money`, `model_calls`, `egress_bytes_out`, `cpu_time`,
        /// `silence`, `work_bytes`, `work_files`, `host_disk`.
        budget: String,
    },
    /// Something got out that no rule admits: found by the test before the agent.
    EgressOpen {
        /// What.
        detail: String,
    },
    /// The link closed before the guest had finished.
    LinkLost,
    /// The guest did not say hello in time.
    NoHello,
    /// A required layer does not hold.
    PostureRefused {
        /// The layer's name.
        layer: String,
        /// What was seen.
        detail: String,
    },
    /// The guest broke the protocol.
    Protocol {
        /// How.
        detail: String,
    },
    /// The guest reported that it cannot go on.
    GuestFailed {
        /// Its message.
        detail_claim: String,
    },
    /// The host itself failed.
    HostError {
        /// How.
        detail: String,
    },
    /// The process that supervised the run is gone; found at reconciliation.
    HostLost,
}

/// What became of the run's commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum CollectOutcome {
    /// The agent made nothing.
    NoCommits,
    /// Fetched, checked and stored.
    Fetched {
        /// The ref in the person's repository.
        reference: String,
        /// Its object id, as the host's git reports it.
        head: ObjectId,
        /// Commits over the base, counted by the host.
        commits: u64,
        /// Subjects of the newest commits, at most 50, escaped.
        subjects: Vec<String>,
        /// Further branches and tags whose commits the head does not have.
        #[serde(default)]
        sides: Vec<SideRef>,
        /// Commits that only the sides have over the base, counted by the host.
        #[serde(default, skip_serializing_if = "is_zero")]
        side_commits: u64,
    },
    /// It could not be fetched; what there is was kept.
    Failed {
        /// Why.
        reason: String,
        /// Where the bundle or volume was kept.
        salvage: Option<String>,
    },
}

/// Left out of the record, so that records from before the field stay byte for byte what they were.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A branch or tag of the sandbox beside its head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SideRef {
    /// Its name in the sandbox, escaped. A claim.
    pub name_claim: String,
    /// The ref in the person's repository.
    pub reference: String,
    /// Its object id, as the host's git reports it.
    pub id: ObjectId,
}

/// What became of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum TeardownOutcome {
    /// Removed, and the engine says that it is gone.
    Removed,
    /// It had gone already.
    AlreadyGone,
    /// Something is left.
    Failed {
        /// What and why.
        detail: String,
    },
}
