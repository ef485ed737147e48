//! Tasks: what somebody wants done. Each attempt at it is a run.
//!
//! Pure. A task is open as long as one attempt of it is not over, and never has two of those. What
//! earlier attempts spent is not given again; only a person's retry grants anew.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::actor::Actor;
use crate::ids::{AgentId, Digest, ProjectId, RunId, TaskId, ThreadId, TimestampMs};
use crate::limits::{Budgets, Spend};
use crate::record::canonical_json;
use crate::retry::{Class, Exhausted, RetryPolicy, Ruling, Tally};
use crate::spec::{AgentSpec, RunSpec};
use crate::state::{CancelRequest, Due};
use crate::verdict::{Outcome, Verdict};

/// Which task is taken first. A waiting task rises by one step per [`AGEING_MS`], so none starves.
pub type Priority = i32;

/// Lowest and highest priority. Others are moved to the nearest.
pub const PRIORITIES: std::ops::RangeInclusive<Priority> = -100..=100;

/// Milliseconds of waiting that count as one step of priority.
pub const AGEING_MS: u64 = 60_000;

/// The run that delegated a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Parent {
    /// Its task.
    pub task: TaskId,
    /// The attempt that delegated. When it is over, so is this task.
    pub run: RunId,
    /// The task at the top of the tree.
    pub root: TaskId,
    /// 1 for a child of the root.
    pub depth: u32,
}

/// Where a task stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TaskState {
    /// An attempt is queued, waits or runs.
    Open {
        /// The attempt.
        run: RunId,
    },
    /// Done.
    Completed {
        /// The attempt that did it.
        run: RunId,
    },
    /// Not done, and the same would fail again.
    Failed {
        /// The last attempt.
        run: RunId,
    },
    /// Not done, and nothing is left to try it with.
    DeadLetter {
        /// The last attempt.
        run: RunId,
        /// What is used up.
        exhausted: Exhausted,
    },
    /// A person stopped it.
    Cancelled {
        /// The last attempt.
        run: RunId,
    },
}

impl TaskState {
    /// Every name, in storage and output.
    pub const NAMES: &'static [&'static str] =
        &["open", "completed", "failed", "dead_letter", "cancelled"];

    /// The name in storage and output.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Open { .. } => "open",
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::DeadLetter { .. } => "dead_letter",
            Self::Cancelled { .. } => "cancelled",
        }
    }

    /// The current or last attempt.
    #[must_use]
    pub fn run(&self) -> &RunId {
        match self {
            Self::Open { run }
            | Self::Completed { run }
            | Self::Failed { run }
            | Self::DeadLetter { run, .. }
            | Self::Cancelled { run } => run,
        }
    }

    /// True while an attempt is not over.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Open { .. })
    }
}

/// A task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// One line for people.
    pub title: String,
    /// Who wants it.
    pub origin: Actor,
    /// For which project.
    pub project: Option<ProjectId>,
    /// On which thread. Turns of one thread follow one another.
    pub thread: Option<ThreadId>,
    /// By which agent profile.
    pub agent: Option<AgentId>,
    /// Who delegated it.
    pub parent: Option<Parent>,
    /// What it is about, to notice that it delegates itself.
    pub intent: Digest,
    /// Higher is taken first.
    pub priority: Priority,
    /// What the first attempt was given; an edited retry replaces it.
    pub spec: RunSpec,
    /// How failures are treated.
    pub retry: RetryPolicy,
    /// What is used up of that.
    pub tally: Tally,
    /// Attempts made, the current one included.
    pub attempts: u32,
    /// What all attempts that are over spent.
    pub spent: Spend,
    /// Somebody wishes to stop it: no further attempt is made.
    pub cancel: Option<CancelRequest>,
    /// Where it stands.
    pub state: TaskState,
    /// When it was made.
    pub created_at: TimestampMs,
    /// When it last changed.
    pub updated_at: TimestampMs,
}

/// An attempt to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextAttempt {
    /// Counts from 1 over the whole life of the task.
    pub number: u32,
    /// The attempt before; `None` for the first.
    pub retried_from: Option<RunId>,
    /// What it is given.
    pub spec: RunSpec,
    /// When; `None`: as soon as there is room.
    pub due: Option<Due>,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy)]
pub struct AttemptEnd<'a> {
    /// What it had been given, extensions included.
    pub spec: &'a RunSpec,
    /// The judgement.
    pub verdict: &'a Verdict,
    /// Of which kind the failure is; not looked at otherwise.
    pub class: Class,
    /// What it spent.
    pub spend: &'a Spend,
    /// When.
    pub at: TimestampMs,
}

/// What follows from an attempt's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum After {
    /// Another attempt.
    Again {
        /// Which.
        next: Box<NextAttempt>,
        /// The tally from now on.
        tally: Tally,
    },
    /// The run is a dead letter.
    GivenUp {
        /// What is used up.
        exhausted: Exhausted,
        /// The final tally.
        tally: Tally,
    },
    /// The task ends as the run did.
    Over,
}

/// Why a task is not tried again. A result, not a fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RetryRefusal {
    /// An attempt is not over.
    #[error("the attempt {run} is not over")]
    Lives {
        /// Which.
        run: RunId,
    },
    /// It is done.
    #[error("it is completed; go on with a further turn on its thread")]
    Completed,
    /// The thread has moved on.
    #[error("the task {task} is open on the same thread")]
    ThreadBusy {
        /// What lives there.
        task: TaskId,
    },
    /// A delegated task is tried again by the run that delegated it, never by itself.
    #[error("the run {run} delegated it; only that run can do so again")]
    Delegated {
        /// The run.
        run: RunId,
    },
}

/// What a task is about: its words without case and spacing, who does it, and where.
#[must_use]
pub fn intent(spec: &RunSpec, agent: Option<&AgentId>) -> Digest {
    let words: Vec<String> = spec.task.split_whitespace().map(str::to_lowercase).collect();
    let argv: &[String] = match &spec.agent {
        AgentSpec::Builtin { .. } => &[],
        AgentSpec::Command { argv } => argv,
    };
    let meaning = serde_json::json!({
        "words": words.join(" "),
        "argv": argv,
        "agent": agent,
        "checkout": spec.checkout,
    });
    Digest::of(canonical_json(&meaning).as_bytes())
}

/// What is left of budgets; `None` when tokens, money or calls are used up.
#[must_use]
pub fn remaining(budgets: &Budgets, spend: &Spend) -> Option<Budgets> {
    let left = |budget: u64, used: u64| budget.checked_sub(used).filter(|left| *left > 0);
    Some(Budgets {
        tokens: left(budgets.tokens, spend.tokens())?,
        model_calls: left(budgets.model_calls, spend.model_calls)?,
        micro_usd: match budgets.micro_usd {
            Some(budget) => Some(left(budget, spend.micro_usd.unwrap_or(0))?),
            None => None,
        },
        ..budgets.clone()
    })
}

impl Task {
    /// What follows from the end of the current attempt. The same task and end give the same answer.
    #[must_use]
    pub fn after(&self, end: AttemptEnd<'_>) -> After {
        if end.verdict.outcome != Outcome::Failed || self.cancel.is_some() {
            return After::Over;
        }
        match self.retry.rule(end.class, self.tally, self.seed(), end.at) {
            Ruling::Final => After::Over,
            Ruling::GiveUp { exhausted, tally } => After::GivenUp { exhausted, tally },
            Ruling::Again { due, tally } => {
                let Some(budgets) = remaining(&end.spec.budgets, end.spend) else {
                    return After::GivenUp { exhausted: Exhausted::Spend, tally };
                };
                let spec = RunSpec { budgets, ..end.spec.clone() };
                After::Again {
                    next: Box::new(NextAttempt {
                        number: self.attempts.saturating_add(1),
                        retried_from: Some(self.state.run().clone()),
                        spec,
                        due: Some(due),
                    }),
                    tally,
                }
            }
        }
    }

    /// Spreads the pauses of different tasks and attempts.
    fn seed(&self) -> u64 {
        let text = format!("{} {}", self.id, self.attempts);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    /// An operator tries it again, as it was or edited, with fresh budgets and a fresh tally.
    ///
    /// # Errors
    /// When an attempt lives, it is done, or another run delegated it. Whether its thread admits it,
    /// the caller asks in the same transaction.
    pub fn retried(&self, edited: Option<RunSpec>) -> Result<NextAttempt, RetryRefusal> {
        match &self.state {
            TaskState::Open { run } => return Err(RetryRefusal::Lives { run: run.clone() }),
            TaskState::Completed { .. } => return Err(RetryRefusal::Completed),
            TaskState::Failed { .. }
            | TaskState::DeadLetter { .. }
            | TaskState::Cancelled { .. } => {}
        }
        if let Some(parent) = &self.parent {
            return Err(RetryRefusal::Delegated { run: parent.run.clone() });
        }
        Ok(NextAttempt {
            number: self.attempts.saturating_add(1),
            retried_from: Some(self.state.run().clone()),
            spec: edited.unwrap_or_else(|| self.spec.clone()),
            due: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{run_id, spec};
    use crate::spec::Mode;
    use crate::verdict::Cause;

    fn task() -> Task {
        let spec = spec(Mode::Unattended);
        Task {
            id: TaskId::from_entropy([1; 5]),
            title: "t".into(),
            origin: Actor::Person("ada".into()),
            project: None,
            thread: None,
            agent: None,
            parent: None,
            intent: intent(&spec, None),
            priority: 0,
            spec,
            retry: RetryPolicy::default(),
            tally: Tally::default(),
            attempts: 1,
            spent: Spend::default(),
            cancel: None,
            state: TaskState::Open { run: run_id() },
            created_at: TimestampMs(0),
            updated_at: TimestampMs(0),
        }
    }

    fn failed() -> Verdict {
        Verdict {
            outcome: Outcome::Failed,
            cause: Some(Cause::HostLost),
            warnings: vec![],
            summary: String::new(),
        }
    }

    fn after(task: &Task, spend: &Spend, verdict: &Verdict) -> After {
        let at = TimestampMs(0);
        task.after(AttemptEnd { spec: &task.spec, verdict, class: Class::Transient, spend, at })
    }

    #[test]
    fn a_further_attempt_gets_what_is_left() {
        let spend = Spend { input_tokens: 500_000, model_calls: 10, ..Spend::default() };
        let After::Again { next, tally } = after(&task(), &spend, &failed()) else { panic!() };
        assert_eq!(next.spec.budgets.tokens, 1_500_000);
        assert_eq!(next.spec.budgets.model_calls, 1_990);
        assert_eq!((next.number, tally.failures), (2, 1));
        assert_eq!(next.retried_from, Some(run_id()));
    }

    #[test]
    fn without_anything_left_it_is_a_dead_letter() {
        let spend = Spend { input_tokens: 2_000_000, ..Spend::default() };
        let given_up = after(&task(), &spend, &failed());
        assert!(matches!(given_up, After::GivenUp { exhausted: Exhausted::Spend, .. }));
    }

    #[test]
    fn a_wish_to_cancel_ends_the_attempts() {
        let by = CancelRequest { by: "ada".into(), at: TimestampMs(0) };
        let task = Task { cancel: Some(by), ..task() };
        assert_eq!(after(&task, &Spend::default(), &failed()), After::Over);
    }

    #[test]
    fn an_operator_retries_what_is_over_and_not_done() {
        let open = task();
        assert!(matches!(open.retried(None), Err(RetryRefusal::Lives { .. })));
        let done = Task { state: TaskState::Completed { run: run_id() }, ..task() };
        assert_eq!(done.retried(None), Err(RetryRefusal::Completed));
        let failed = Task { state: TaskState::Failed { run: run_id() }, attempts: 3, ..task() };
        let mut edited = spec(Mode::Supervised);
        edited.task = "differently".into();
        let next = failed.retried(Some(edited.clone())).unwrap();
        assert_eq!((next.number, next.spec), (4, edited));
        assert_eq!(failed.retried(None).unwrap().spec, failed.spec);
    }

    #[test]
    fn intents_are_the_same_whatever_the_spacing() {
        let mut one = spec(Mode::Unattended);
        let mut two = one.clone();
        one.task = "Fix the  parser".into();
        two.task = " fix THE parser\n".into();
        assert_eq!(intent(&one, None), intent(&two, None));
        let agent = AgentId::from_entropy([1; 5]);
        assert_ne!(intent(&one, None), intent(&one, Some(&agent)));
    }
}
