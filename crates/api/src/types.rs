//! What travels over the API, version 1. A field, once given, keeps its name and meaning.
//!
//! Types of `run` (states, facts, verdicts, records) are used as they are. Nothing here holds a
//! secret but [`NewTask::secrets`], which is taken and never given.

use cofferdam_ledger::store::work::BoardRow;
use cofferdam_ledger::{EventBody, OutputStream, StoredEvent};
use cofferdam_run::fact::Fact;
use cofferdam_run::limits::Spend;
use cofferdam_run::posture::LayerReport;
use cofferdam_run::spec::{Mode, RunSpec};
use cofferdam_run::{
    ProjectId, RunEvent, RunId, StateName, TaskId, ThreadId, TimestampMs, Verdict,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access::Role;
mod work;

pub use work::*;

pub use crate::endpoint::Nothing;
pub use crate::problem::Problem;

/// What answers here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceInfo {
    /// Version of Cofferdam.
    pub version: String,
    /// The data directory's id.
    pub instance: String,
    /// Runs that this process supervises now.
    pub live: u64,
    /// What the caller may do.
    pub role: Role,
    /// Where the TCP door is, `127.0.0.1:PORT`; `None` when there is only the socket.
    pub address: Option<String>,
}

/// The service is up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Always `true`.
    pub up: bool,
}

/// A code, to be exchanged once for a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NewCode {
    /// The code.
    pub code: String,
    /// How long it may be exchanged, milliseconds.
    pub expires_in_ms: u64,
    /// The page's address with the code in its fragment, which no server or log gets to see.
    pub url: Option<String>,
}

/// An exchange of a code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CodeExchange {
    /// The code.
    pub code: String,
}

/// A browser session: sent as `Authorization: Bearer`, kept by the page's own origin, never a cookie
/// (cookies of one port are sent to every other port of the machine).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NewSession {
    /// Its bearer text.
    pub session: String,
    /// What it may do.
    pub role: Role,
    /// How long it lasts without a request, milliseconds.
    pub idle_ms: u64,
}

impl std::fmt::Debug for NewSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewSession").field("role", &self.role).finish_non_exhaustive()
    }
}

/// A part of a list.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// Only what is older: `next` of the page before.
    #[serde(default)]
    pub before: Option<u64>,
    /// Most of them, 1 to 1000; 50 when not given.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// Which runs to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListRuns {
    /// Only runs in these states, separated by commas.
    #[serde(default)]
    pub state: Option<String>,
    /// Only runs that are not over.
    #[serde(default)]
    pub live: bool,
    /// Only of this project.
    #[serde(default)]
    pub project: Option<ProjectId>,
    /// Only of this thread.
    #[serde(default)]
    pub thread: Option<ThreadId>,
    /// Only attempts of this task.
    #[serde(default)]
    pub task: Option<TaskId>,
    /// Only what is older: `next` of the page before.
    #[serde(default)]
    pub before: Option<u64>,
    /// Most of them, 1 to 1000; 50 when not given.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// Runs, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunList {
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<u64>,
}

/// A run as lists show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunSummary {
    /// Its id.
    pub run: RunId,
    /// The task that it is an attempt of; `None` for a command that ran in its own process.
    pub task: Option<TaskId>,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// Its project.
    pub project: Option<ProjectId>,
    /// Its thread.
    pub thread: Option<ThreadId>,
    /// One line for people.
    pub title: String,
    /// Absolute path of the checkout.
    pub checkout: String,
    /// Unattended or supervised.
    pub mode: Mode,
    /// Where it stands.
    pub state: StateName,
    /// Nothing will change any more.
    pub over: bool,
    /// Its process is gone; it is settled soon.
    pub lost: bool,
    /// Somebody wishes to cancel it, or did.
    pub cancel_requested: bool,
    /// When it was armed.
    pub created_at_ms: TimestampMs,
    /// When it last changed.
    pub updated_at_ms: TimestampMs,
    /// It waits until then.
    pub due_at_ms: Option<TimestampMs>,
    /// Commits fetched; `None` before collecting.
    pub commits: Option<u64>,
    /// The ref that holds them.
    pub reference: Option<String>,
    /// The verdict, once it is over.
    pub verdict: Option<Verdict>,
    /// Spend so far.
    pub spend: Spend,
}

impl RunSummary {
    pub(crate) fn of(row: BoardRow, lost: bool) -> Self {
        let BoardRow { run, task, project, thread, attempt, due_at } = row;
        Self {
            run: run.id,
            task,
            attempt,
            project,
            thread,
            title: run.title,
            checkout: run.checkout,
            mode: run.mode,
            state: run.state,
            over: run.state.is_terminal(),
            lost,
            cancel_requested: run.cancel_requested,
            created_at_ms: run.created_at,
            updated_at_ms: run.updated_at,
            due_at_ms: due_at,
            commits: run.commits,
            reference: run.reference,
            verdict: run.verdict,
            spend: run.spend,
        }
    }
}

/// One run in full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunDetail {
    /// As lists show it.
    #[serde(flatten)]
    pub summary: RunSummary,
    /// Everything that was decided beforehand.
    pub spec: RunSpec,
}

/// What became of a wish to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelResult {
    /// Noted; the run is being stopped.
    Requested,
    /// Somebody had asked before.
    AlreadyRequested,
    /// It had not begun and is over now.
    Cancelled,
}

/// Answer to a wish to cancel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cancelled {
    /// The run.
    pub run: RunId,
    /// What became of it.
    pub cancel: CancelResult,
}

/// Which events to give.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct After {
    /// Only events with a larger sequence number.
    #[serde(default)]
    pub after: u64,
    /// Most of them, 1 to 1000; 200 when not given.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// Where a stream begins.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct From {
    /// Only events with a larger sequence number; the header `Last-Event-ID` beats it.
    #[serde(default)]
    pub after: u64,
}

/// Where the stream of all runs begins.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FromLog {
    /// Only events with a larger id; from now on when not given. `Last-Event-ID` beats it.
    #[serde(default)]
    pub after: Option<u64>,
    /// Only changes of state.
    #[serde(default)]
    pub transitions_only: bool,
}

/// An event with its place in the whole log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoggedEvent {
    /// Grows over the whole data directory.
    pub id: u64,
    /// Whose.
    pub run: RunId,
    /// What.
    pub event: Event,
}

/// Events of a run, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventPage {
    /// The events.
    pub events: Vec<Event>,
    /// Ask with this `after` for the next page.
    pub after: u64,
    /// The run was over and the page holds its last event.
    pub complete: bool,
}

/// Which stream of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One event of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Counts from 1 per run, without gaps.
    pub seq: u64,
    /// When it happened.
    pub at_ms: TimestampMs,
    /// What it is.
    #[serde(flatten)]
    pub body: EventKind,
}

/// What an event is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// The run moved, or was asked to.
    Transition {
        /// The state after it.
        state: StateName,
        /// By what.
        transition: RunEvent,
    },
    /// The host learned something. What the guest said is in fields named `claim`.
    Fact {
        /// What.
        fact: Box<Fact>,
    },
    /// The agent wrote something. Hostile bytes: a chunk may end inside a character.
    Output {
        /// Where.
        stream: Stream,
        /// The bytes, Base64.
        base64: String,
    },
}

impl Event {
    pub(crate) fn of(event: StoredEvent) -> Self {
        use base64::Engine as _;
        let body = match event.body {
            EventBody::Transition { event, state } => {
                EventKind::Transition { state, transition: event }
            }
            EventBody::Fact(fact) => EventKind::Fact { fact },
            EventBody::Output { stream, bytes } => EventKind::Output {
                stream: match stream {
                    OutputStream::Stdout => Stream::Stdout,
                    OutputStream::Stderr => Stream::Stderr,
                },
                base64: base64::engine::general_purpose::STANDARD.encode(bytes),
            },
        };
        Self { seq: event.seq, at_ms: event.at, body }
    }

    /// The name of the server-sent event.
    pub(crate) fn name(&self) -> &'static str {
        match self.body {
            EventKind::Transition { .. } => "transition",
            EventKind::Fact { .. } => "fact",
            EventKind::Output { .. } => "output",
        }
    }
}

/// What to show of a change.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiffQuery {
    /// Only the files with their counts, without the patch.
    #[serde(default)]
    pub files_only: bool,
}

/// What an engine can do on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Engine {
    /// `native`, `docker`, `podman`, `gvisor`.
    pub engine: String,
    /// Its version, for people.
    pub version: String,
    /// A sandbox can be made at all.
    pub usable: bool,
    /// What it would give, layer by layer.
    pub layers: Vec<LayerReport>,
    /// What is in the way.
    pub problems: Vec<EngineProblem>,
}

/// Something in the way of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineProblem {
    /// What, one sentence.
    pub what: String,
    /// What mends it.
    pub fix: String,
}

/// The engines of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineList {
    /// The engines.
    pub engines: Vec<Engine>,
}
