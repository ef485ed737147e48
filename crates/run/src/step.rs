//! The state machine: one pure function from a run and an event to the next run and what to do.
//!
//! One file per group of transitions. None of them reads a clock or acts; a terminal state refuses
//! everything, so the first terminal write wins.

mod person;
mod prepare;
mod wind_up;
mod work;

#[cfg(test)]
mod tests;

use crate::event::{Action, RunEvent};
use crate::fact::StopCause;
use crate::ids::TimestampMs;
use crate::state::{Run, State, StateName};

/// Why an event does not apply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The state knows no such event.
    #[error("a run that is {state} cannot take the event {event}")]
    Illegal {
        /// The state.
        state: StateName,
        /// The event's name.
        event: &'static str,
    },
    /// Somebody else still holds the run.
    #[error("the run is held by {owner} until {until}", until = .until.0)]
    LeaseHeld {
        /// Who.
        owner: String,
        /// Until when.
        until: TimestampMs,
    },
    /// It waits.
    #[error("the run waits until {until}", until = .until.0)]
    NotDue {
        /// Until when.
        until: TimestampMs,
    },
    /// A claim must start a fresh epoch.
    #[error("a claim needs an epoch above {current}, not {offered}")]
    StaleEpoch {
        /// The run's epoch.
        current: u64,
        /// The claim's.
        offered: u64,
    },
    /// A decision for a question that is not open.
    #[error("the question {asked:?} is not open")]
    NotAsked {
        /// The question named.
        asked: String,
    },
    /// An unattended run waits for nobody.
    #[error("nobody is there to ask: the run is unattended")]
    NobodyThere,
    /// More than was reserved for a delegated run.
    #[error("only what was reserved for it is left of the budget {budget}")]
    BeyondShare {
        /// Which.
        budget: &'static str,
    },
    /// `completed` for a run that the host had stopped, or `given_up` without a failure.
    #[error("the verdict contradicts how the run ended: {detail}")]
    Contradiction {
        /// How.
        detail: &'static str,
    },
}

/// The next state and what to do.
type Next = Result<(State, Vec<Action>), StepError>;

/// What a transition may look at besides the state.
struct Context<'a> {
    run: &'a Run,
    at: TimestampMs,
    event: &'static str,
}

impl Context<'_> {
    fn illegal(&self, state: &State) -> StepError {
        StepError::Illegal { state: state.name(), event: self.event }
    }
}

/// Moves `run` on. Consumes it: after an error the caller's copy, if any, still stands.
///
/// # Errors
/// When the event does not apply; nothing changed then.
pub fn step(run: Run, event: RunEvent, at: TimestampMs) -> Result<(Run, Vec<Action>), StepError> {
    let context = Context { run: &run, at, event: event.name() };
    if run.state.is_terminal() {
        return Err(context.illegal(&run.state));
    }
    let state = run.state.clone();
    let mut cancel = run.cancel.clone();
    let mut budgets = None;
    let asked_to_cancel = matches!(event, RunEvent::CancelRequested { .. });

    let (mut state, mut actions) = match event {
        RunEvent::Claimed { lease } => prepare::claimed(&context, state, lease)?,
        RunEvent::SandboxIdentified { sandbox } => {
            prepare::sandbox_identified(&context, state, sandbox)?
        }
        RunEvent::GuestReady => prepare::guest_ready(&context, state)?,
        RunEvent::AgentStarted => prepare::agent_started(&context, state)?,
        RunEvent::PlanMade => work::plan_made(&context, state)?,
        RunEvent::ApprovalAsked { ask } => work::approval_asked(&context, state, ask)?,
        RunEvent::BudgetReached { budget } => work::budget_reached(&context, state, budget)?,
        RunEvent::AgentEnded => work::agent_ended(&context, state)?,
        RunEvent::ApprovalDecided { ask, approved, by: _ } => {
            person::decided(&context, state, ask, approved)?
        }
        RunEvent::Resumed { by: _ } => person::resumed(&context, state)?,
        RunEvent::Extended { by: _, budgets: extended } => {
            budgets = Some(extended);
            person::resumed(&context, state)?
        }
        RunEvent::Hastened { by: _ } => person::hastened(&context, state)?,
        RunEvent::CancelRequested { by } => {
            let (state, first, actions) = person::cancel_requested(&context, state, by);
            cancel = cancel.or(Some(first));
            (state, actions)
        }
        RunEvent::StopRequested { cause } => wind_up::stopped(&context, state, cause)?,
        RunEvent::HostLost => wind_up::stopped(&context, state, StopCause::HostLost)?,
        RunEvent::CollectStarted => wind_up::collect_started(&context, state)?,
        RunEvent::Settled { verdict } => wind_up::settled(&context, state, verdict)?,
        RunEvent::GivenUp { verdict } => wind_up::given_up(&context, state, verdict)?,
    };

    // The owner's next word after a wish to cancel is turned into the stop that it owes: what the
    // word told (a sandbox's identity, a new lease) is kept, what it would have started is not.
    if cancel.is_some() && !asked_to_cancel && wind_up::can_still_be_stopped(&state) {
        (state, actions) = wind_up::stopped(&context, state, StopCause::Cancelled)?;
    }

    let updated_at = run.updated_at.max(at);
    let mut run = Run { state, cancel, updated_at, ..run };
    if let Some(budgets) = budgets {
        run.spec.budgets = budgets;
    }
    Ok((run, actions))
}
