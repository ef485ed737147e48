//! Schedules and webhook deliveries: tasks that nobody makes by hand.

use async_trait::async_trait;
use cofferdam_run::retry::RetryPolicy;
use cofferdam_run::schedule::Timing;
use cofferdam_run::task::{Priority, Task};
use cofferdam_run::trigger::Delivery;
use cofferdam_run::{AgentId, ProjectId, RunSpec, ScheduleId, TaskId, TimestampMs};

use super::work::{CreateRefusal, NewTask, Page, Paged};
use super::{Result, Store};

/// A schedule, as it is made and as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Its id.
    pub id: ScheduleId,
    /// Its project, whose switch `scheduled` is asked at each slot.
    pub project: ProjectId,
    /// One line for people; the title of its tasks.
    pub title: String,
    /// When.
    pub timing: Timing,
    /// What each task is given.
    pub spec: RunSpec,
    /// How its failures are treated.
    pub retry: RetryPolicy,
    /// By which agent profile.
    pub agent: Option<AgentId>,
    /// Priority of its tasks.
    pub priority: Priority,
    /// Off until switched on.
    pub enabled: bool,
    /// When it was made.
    pub created_at: TimestampMs,
    /// The next slot; `None` when off or when none follows.
    pub next_at: Option<TimestampMs>,
}

/// What became of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotOutcome {
    /// A task was made.
    Fired {
        /// The task.
        task: TaskId,
    },
    /// Nobody was there in time.
    Missed,
    /// The task of an earlier slot is not over.
    Overlap,
    /// The project does not admit it.
    Refused(CreateRefusal),
}

/// One slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Of which schedule.
    pub schedule: ScheduleId,
    /// Its instant.
    pub at: TimestampMs,
    /// What became of it.
    pub outcome: SlotOutcome,
}

/// Result of [`Triggers::receive`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Received {
    /// A task was made.
    New(Box<Task>),
    /// The same delivery came before.
    Again {
        /// What it made.
        task: TaskId,
    },
    /// Another delivery told of the same version of the same object.
    SameVersion {
        /// What that one made.
        task: TaskId,
    },
    /// The project does not admit it. The delivery is not remembered: it may be sent again.
    Refused(CreateRefusal),
}

/// Triggers. Every method either is durable when it returns or changed nothing.
#[async_trait]
pub trait Triggers: Store {
    /// Makes a schedule. Slots before `created_at` are not its own.
    async fn create_schedule(&self, new: Schedule) -> Result<Schedule>;

    /// Switches it on or off. Slots while it was off are not made up for.
    async fn enable_schedule(
        &self,
        id: &ScheduleId,
        enabled: bool,
        at: TimestampMs,
    ) -> Result<Schedule>;

    /// The schedule as it stands.
    async fn schedule(&self, id: &ScheduleId) -> Result<Schedule>;

    /// Schedules, newest first.
    async fn schedules(&self, project: Option<ProjectId>, page: Page) -> Result<Paged<Schedule>>;

    /// The latest slots of a schedule, newest first. Why a slot was refused is not kept: it shows as
    /// missed.
    async fn slots(&self, id: &ScheduleId, limit: u32) -> Result<Vec<Slot>>;

    /// Deals with every slot that is due, of at most `limit` schedules, in one transaction: whoever
    /// calls at the same time, each slot happens once.
    async fn fire_due(&self, now: TimestampMs, limit: u32) -> Result<Vec<Slot>>;

    /// When the next slot of any schedule is due.
    async fn next_slot(&self) -> Result<Option<TimestampMs>>;

    /// Takes a delivery whose signature was checked; makes its task once.
    async fn receive(&self, delivery: Delivery, new: NewTask) -> Result<Received>;
}
