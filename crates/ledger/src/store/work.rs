//! Tasks, their attempts, the queue, trees of delegation.

use async_trait::async_trait;
use cofferdam_run::delegate::{DelegationLimits, DelegationRefusal, Share};
use cofferdam_run::project::SwitchedOff;
use cofferdam_run::retry::RetryPolicy;
use cofferdam_run::task::{Priority, RetryRefusal, Task};
use cofferdam_run::trigger::IdempotencyKey;
use cofferdam_run::{
    Actor, AgentId, Lease, ProjectId, Run, RunId, RunSpec, StateName, TaskId, ThreadId, TimestampMs,
};

use super::{Lost, Result, RunRow, Store};

/// A task to be made. Its first attempt is queued in the same transaction.
#[derive(Debug, Clone)]
pub struct NewTask {
    /// Its id, minted by the caller.
    pub id: TaskId,
    /// One line for lists; cut at [`crate::limits::MAX_TITLE_CHARS`].
    pub title: String,
    /// Who wants it.
    pub origin: Actor,
    /// For which project; its switches are asked.
    pub project: Option<ProjectId>,
    /// On which thread.
    pub thread: Option<ThreadId>,
    /// By which agent profile.
    pub agent: Option<AgentId>,
    /// Higher is taken first within its project.
    pub priority: Priority,
    /// What the first attempt is given.
    pub spec: RunSpec,
    /// How failures are treated.
    pub retry: RetryPolicy,
    /// Now.
    pub created_at: TimestampMs,
}

/// Result of [`Work::create_task`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Created {
    /// It is durable and its first attempt is queued.
    New(Box<Task>),
    /// The same request came before; this is what it made.
    Same(Box<Task>),
    /// Another request came before under the same key. Nothing was made.
    Conflict {
        /// What that one made.
        task: TaskId,
    },
    /// It may not be. Nothing was made.
    Refused(CreateRefusal),
}

/// Why a task is not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateRefusal {
    /// A switch of the project is off.
    #[error(transparent)]
    SwitchedOff(#[from] SwitchedOff),
    /// The project is archived.
    #[error("the project {0} is archived")]
    ProjectArchived(ProjectId),
    /// The thread is closed.
    #[error("the thread {0} is closed")]
    ThreadClosed(ThreadId),
    /// The thread belongs to another project.
    #[error("the thread {0} belongs to another project")]
    OtherProject(ThreadId),
}

/// Bounds of what runs at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimLimits {
    /// In the whole data directory.
    pub daemon: u32,
    /// For one project, unless it says otherwise; runs without one count together.
    pub project: u32,
    /// Of one agent profile, unless it says otherwise.
    pub agent: u32,
    /// Only attempts of tasks: a run that was armed by itself is left to whoever armed it.
    pub tasks_only: bool,
}

impl Default for ClaimLimits {
    fn default() -> Self {
        Self { daemon: 16, project: 8, agent: 8, tasks_only: false }
    }
}

/// A run that was taken from the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// As it stands now.
    pub run: Box<Run>,
    /// The lease.
    pub lease: Lease,
    /// Its task; `None` for a run that was armed by itself.
    pub task: Option<TaskId>,
    /// Which attempt it is.
    pub attempt: u32,
}

/// Result of [`Work::retry_task`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Retried {
    /// A new attempt is queued.
    Queued {
        /// The task.
        task: Box<Task>,
        /// The attempt.
        run: RunId,
    },
    /// It is not tried again. Of several askers one wins and the others get this.
    Refused(RetryRefusal),
}

/// What a cancelled tree comes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TreeCancelled {
    /// Runs whose owner owes a stop now.
    pub requested: Vec<RunId>,
    /// Runs that nobody held and that are over.
    pub over: Vec<RunId>,
}

/// A task that a run wants to hand down.
#[derive(Debug, Clone)]
pub struct NewChild {
    /// Its id, minted by the caller.
    pub id: TaskId,
    /// One line for lists.
    pub title: String,
    /// By which agent profile.
    pub agent: Option<AgentId>,
    /// What it is given; its budgets are taken from the parent's.
    pub spec: RunSpec,
    /// How its failures are treated.
    pub retry: RetryPolicy,
    /// The turn of the parent's agent, for the bound per turn.
    pub turn: u64,
}

/// Result of [`Work::delegate`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Delegated {
    /// Reserved, durable and queued.
    Queued {
        /// The child.
        task: Box<Task>,
        /// What the parent may still spend itself.
        left: Share,
    },
    /// The tree's rules do not admit it.
    Refused(DelegationRefusal),
    /// The parent is not the caller's any more, or is being stopped.
    Lost(Lost),
}

/// One attempt of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The run.
    pub run: RunId,
    /// Counts from 1.
    pub number: u32,
    /// The attempt before.
    pub retried_from: Option<RunId>,
    /// Where it stands.
    pub state: StateName,
    /// Not claimed before this.
    pub due_at: Option<TimestampMs>,
}

/// Part of a list: newest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Page {
    /// Only what is older than this cursor, from an earlier [`Paged::next`].
    pub before: Option<u64>,
    /// At most this many; 0 and more than [`crate::limits::MAX_LIST`] mean that.
    pub limit: u32,
}

/// Some items, and where the rest begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paged<T> {
    /// Newest first.
    pub items: Vec<T>,
    /// Cursor of the next page; `None` at the end.
    pub next: Option<u64>,
}

/// Which tasks a list shows. The default shows all.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// Only in one of these states, by [`cofferdam_run::task::TaskState::NAMES`]; empty for all.
    pub states: Vec<String>,
    /// Only of this project.
    pub project: Option<ProjectId>,
    /// Only of this thread.
    pub thread: Option<ThreadId>,
    /// Only children of this task.
    pub parent: Option<TaskId>,
    /// Without what was delegated.
    pub roots_only: bool,
}

/// Which runs a list shows. The default shows all.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Only in one of these states; empty for all.
    pub states: Vec<StateName>,
    /// Only what is not over.
    pub live_only: bool,
    /// Only of this project.
    pub project: Option<ProjectId>,
    /// Only of this thread.
    pub thread: Option<ThreadId>,
    /// Only attempts of this task.
    pub task: Option<TaskId>,
    /// Only this run.
    pub run: Option<RunId>,
}

/// A run as the board shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoardRow {
    /// What every list shows.
    pub run: RunRow,
    /// Its task.
    pub task: Option<TaskId>,
    /// Its project.
    pub project: Option<ProjectId>,
    /// Its thread.
    pub thread: Option<ThreadId>,
    /// Which attempt it is.
    pub attempt: u32,
    /// Not claimed before this.
    pub due_at: Option<TimestampMs>,
}

/// Tasks and the queue. Every method either is durable when it returns or changed nothing.
#[async_trait]
pub trait Work: Store {
    /// Makes a task and queues its first attempt. With a key, the same request twice makes one task,
    /// and another request under the same key is a conflict.
    async fn create_task(&self, new: NewTask, key: Option<IdempotencyKey>) -> Result<Created>;

    /// The task as it stands.
    async fn task(&self, id: &TaskId) -> Result<Task>;

    /// The task that a run is an attempt of.
    async fn task_of(&self, run: &RunId) -> Result<Option<TaskId>>;

    /// All attempts, oldest first.
    async fn attempts(&self, id: &TaskId) -> Result<Vec<Attempt>>;

    /// Tasks, newest first.
    async fn tasks(&self, filter: TaskFilter, page: Page) -> Result<Paged<Task>>;

    /// Runs, newest first.
    async fn runs(&self, filter: RunFilter, page: Page) -> Result<Paged<BoardRow>>;

    /// Takes the next run that is due and has room, in one transaction: projects with fewer live runs
    /// first, then priority and waiting, then age. Turns of one thread are taken one after the other.
    async fn claim_next(
        &self,
        owner: &str,
        limits: ClaimLimits,
        now: TimestampMs,
        ttl_ms: u64,
    ) -> Result<Option<Claimed>>;

    /// When the next waiting attempt becomes due; `None` when none waits.
    async fn next_due(&self) -> Result<Option<TimestampMs>>;

    /// An operator tries a task again, as it was or edited. Exactly one of several askers wins.
    async fn retry_task(
        &self,
        id: &TaskId,
        by: &Actor,
        edited: Option<RunSpec>,
        at: TimestampMs,
    ) -> Result<Retried>;

    /// Cancels a task and everything below it in one transaction. No further attempt is made.
    async fn cancel_task(&self, id: &TaskId, by: &str, at: TimestampMs) -> Result<TreeCancelled>;

    /// Hands part of a run's task to a child, whose budget is taken from the run's first.
    async fn delegate(
        &self,
        parent: &RunId,
        epoch: u64,
        child: NewChild,
        limits: DelegationLimits,
        at: TimestampMs,
    ) -> Result<Delegated>;

    /// What a run may still spend itself: its budget without what it spent and what is reserved for
    /// or was spent by its children.
    async fn allowance(&self, run: &RunId) -> Result<Share>;
}
