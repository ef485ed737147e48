//! Tasks, projects, threads, schedules.

use std::collections::BTreeMap;

use cofferdam_daemon::wish::RunWish;
use cofferdam_ledger::store::work::Attempt;
use cofferdam_run::project::{Project, Switches, Thread};
use cofferdam_run::retry::RetryPolicy;
use cofferdam_run::schedule::{Missed, Overlap};
use cofferdam_run::spec::RunSpec;
use cofferdam_run::task::{Priority, Task};
use cofferdam_run::{ProjectId, RunId, ScheduleId, StateName, TaskId, ThreadId, TimestampMs};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A task to be made.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTask {
    /// What is wished for; what is left out comes from the service's configuration.
    pub wish: RunWish,
    /// One line for lists; made of the wish when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// For which project; its switches are asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<ProjectId>,
    /// On which thread; turns of one thread follow one another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<ThreadId>,
    /// Higher is taken first within its project, -100 to 100.
    #[serde(default)]
    pub priority: Priority,
    /// How failures of the machine and of the provider are treated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// Values of variables that the run needs (the provider's key, and those named in `env`), instead
    /// of the service's own environment. Kept in memory only. Taken over the local socket alone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
}

impl std::fmt::Debug for NewTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&String> = self.secrets.keys().collect();
        f.debug_struct("NewTask")
            .field("wish", &self.wish)
            .field("secrets", &names)
            .finish_non_exhaustive()
    }
}

/// A task that was made, or was before under the same key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StartedTask {
    /// The task.
    pub task: TaskId,
    /// Its current attempt.
    pub run: RunId,
    /// What will be reachable, one line.
    pub reach: String,
    /// The same request had made it before.
    pub repeated: bool,
}

/// Which tasks to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListTasks {
    /// Only tasks in these states (`open`, `completed`, `failed`, `dead_letter`, `cancelled`), separated
    /// by commas.
    #[serde(default)]
    pub state: Option<String>,
    /// Only of this project.
    #[serde(default)]
    pub project: Option<ProjectId>,
    /// Only of this thread.
    #[serde(default)]
    pub thread: Option<ThreadId>,
    /// Only what this task delegated.
    #[serde(default)]
    pub parent: Option<TaskId>,
    /// Without what was delegated.
    #[serde(default)]
    pub roots_only: bool,
    /// Only what is older: `next` of the page before.
    #[serde(default)]
    pub before: Option<u64>,
    /// Most of them, 1 to 1000; 50 when not given.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// Tasks, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskList {
    /// The tasks.
    pub tasks: Vec<Task>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<u64>,
}

/// A task with its attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskDetail {
    /// The task.
    pub task: Task,
    /// Its attempts, oldest first.
    pub attempts: Vec<AttemptView>,
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptView {
    /// The run.
    pub run: RunId,
    /// Counts from 1.
    pub number: u32,
    /// The attempt before.
    pub retried_from: Option<RunId>,
    /// Where it stands.
    pub state: StateName,
    /// It waits until then.
    pub due_at_ms: Option<TimestampMs>,
}

impl AttemptView {
    pub(crate) fn of(attempt: Attempt) -> Self {
        let Attempt { run, number, retried_from, state, due_at } = attempt;
        Self { run, number, retried_from, state, due_at_ms: due_at }
    }
}

/// How to try again.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryTask {
    /// Something else than before; as it was when not given.
    #[serde(default)]
    pub wish: Option<RunWish>,
}

/// What a cancelled tree comes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TreeCancelled {
    /// Runs that are being stopped.
    pub requested: Vec<RunId>,
    /// Runs that had not begun and are over.
    pub over: Vec<RunId>,
}

/// Projects, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectList {
    /// The projects.
    pub projects: Vec<Project>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<u64>,
}

/// A project to be made.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewProject {
    /// For people; unique.
    pub name: String,
    /// Absolute path of the checkout.
    pub checkout: String,
    /// What may happen by itself; nothing when not given.
    #[serde(default)]
    pub switches: Switches,
    /// Runs at once; the service's bound when not given.
    #[serde(default)]
    pub max_parallel: Option<u32>,
}

/// What is to change of a project; what is not given stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeProject {
    /// Its name.
    #[serde(default)]
    pub name: Option<String>,
    /// Its switches, all of them.
    #[serde(default)]
    pub switches: Option<Switches>,
    /// Runs at once; 0 for the service's bound.
    #[serde(default)]
    pub max_parallel: Option<u32>,
    /// Nothing new is made for it from now on.
    #[serde(default)]
    pub archive: bool,
}

/// Which threads or schedules to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListThreads {
    /// Only of this project.
    #[serde(default)]
    pub project: Option<ProjectId>,
    /// Only what is older: `next` of the page before.
    #[serde(default)]
    pub before: Option<u64>,
    /// Most of them, 1 to 1000; 50 when not given.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// Threads, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadList {
    /// The threads.
    pub threads: Vec<Thread>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<u64>,
}

/// A thread to be opened.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewThread {
    /// One line for people.
    pub title: String,
    /// Its project.
    #[serde(default)]
    pub project: Option<ProjectId>,
}

/// A schedule to be made. It is off until it is switched on.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSchedule {
    /// Its project, whose checkout is worked on and whose switch `scheduled` is asked at each slot.
    pub project: ProjectId,
    /// A cron expression of five fields, or `@hourly` and the like.
    pub cron: String,
    /// IANA name of the zone that it is read in, such as `Europe/Berlin`.
    pub zone: String,
    /// One line for people; made of the wish when not given.
    #[serde(default)]
    pub title: Option<String>,
    /// What each task is given; its `checkout` is the project's.
    pub wish: RunWish,
    /// Slots that came while no service was up.
    #[serde(default)]
    pub missed: Missed,
    /// Slots that come while the task of an earlier one is not over.
    #[serde(default)]
    pub overlap: Overlap,
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleView {
    /// Its id.
    pub schedule: ScheduleId,
    /// Its project.
    pub project: ProjectId,
    /// One line for people.
    pub title: String,
    /// The expression.
    pub cron: String,
    /// The zone.
    pub zone: String,
    /// Slots without a service.
    pub missed: Missed,
    /// Slots during an earlier task.
    pub overlap: Overlap,
    /// Whether it is on.
    pub enabled: bool,
    /// The next slot.
    pub next_at_ms: Option<TimestampMs>,
    /// What each task is given.
    pub spec: RunSpec,
}

/// Schedules, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleList {
    /// The schedules.
    pub schedules: Vec<ScheduleView>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<u64>,
}

/// A schedule with its latest slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleDetail {
    /// The schedule.
    pub schedule: ScheduleView,
    /// Its slots, newest first.
    pub slots: Vec<SlotView>,
}

/// One slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlotView {
    /// Its instant.
    pub at_ms: TimestampMs,
    /// `fired`, `missed`, `overlap`, `refused`.
    pub outcome: String,
    /// The task that it made.
    pub task: Option<TaskId>,
    /// Why it was refused.
    pub reason: Option<String>,
}

/// On or off.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnableSchedule {
    /// Whether it is to be on.
    pub enabled: bool,
}
