//! Transitions while the agent works: plan, questions, budgets, end.
//!
//! A run never waits for a person who is not there.

use super::{Context, Next, StepError, wind_up};
use crate::event::Action;
use crate::fact::StopCause;
use crate::state::{Ask, Ending, Phase, State, Supervised};

pub(super) fn plan_made(context: &Context<'_>, state: State) -> Next {
    match state {
        State::Planning { lease, sandbox } => Ok((State::Executing { lease, sandbox }, Vec::new())),
        State::Queued { .. }
        | State::Preparing { .. }
        | State::Executing { .. }
        | State::AwaitingApproval { .. }
        | State::Paused { .. }
        | State::Collecting { .. }
        | State::Completed { .. }
        | State::Failed { .. }
        | State::DeadLetter { .. }
        | State::Cancelled { .. } => Err(context.illegal(&state)),
    }
}

pub(super) fn approval_asked(context: &Context<'_>, state: State, ask: Ask) -> Next {
    let (lease, sandbox, then) = match state {
        State::Planning { lease, sandbox } => (lease, sandbox, Phase::Planning),
        State::Executing { lease, sandbox } => (lease, sandbox, Phase::Executing),
        State::Queued { .. }
        | State::Preparing { .. }
        | State::AwaitingApproval { .. }
        | State::Paused { .. }
        | State::Collecting { .. }
        | State::Completed { .. }
        | State::Failed { .. }
        | State::DeadLetter { .. }
        | State::Cancelled { .. } => return Err(context.illegal(&state)),
    };
    let supervised = Supervised::of(&context.run.spec).ok_or(StepError::NobodyThere)?;
    let actions = vec![Action::AskPerson { ask: ask.clone() }];
    Ok((State::AwaitingApproval { lease, sandbox, ask, then, supervised }, actions))
}

pub(super) fn budget_reached(context: &Context<'_>, state: State, budget: String) -> Next {
    let Some(supervised) = Supervised::of(&context.run.spec) else {
        return wind_up::stopped(context, state, StopCause::Budget { budget });
    };
    let (lease, sandbox, ask, then) = match state {
        State::Planning { lease, sandbox } => (lease, sandbox, None, Phase::Planning),
        State::Executing { lease, sandbox } => (lease, sandbox, None, Phase::Executing),
        State::AwaitingApproval { lease, sandbox, ask, then, supervised: _ } => {
            (lease, sandbox, Some(ask), then)
        }
        // A second budget ran out while a person thinks about the first: it already waits.
        State::Paused { .. } => return Ok((state, Vec::new())),
        // Before the agent there is nothing to extend, after it nothing to pause.
        State::Queued { .. }
        | State::Preparing { .. }
        | State::Collecting { .. }
        | State::Completed { .. }
        | State::Failed { .. }
        | State::DeadLetter { .. }
        | State::Cancelled { .. } => {
            return wind_up::stopped(context, state, StopCause::Budget { budget });
        }
    };
    let state = State::Paused { lease, sandbox, budget, ask, then, supervised };
    Ok((state, vec![Action::PauseAgent]))
}

pub(super) fn agent_ended(context: &Context<'_>, state: State) -> Next {
    match state {
        State::Planning { lease, sandbox }
        | State::Executing { lease, sandbox }
        | State::AwaitingApproval { lease, sandbox, .. }
        | State::Paused { lease, sandbox, .. } => {
            let actions = vec![
                Action::CutEgress,
                Action::Collect,
                Action::Teardown { sandbox: Some(sandbox.clone()) },
                Action::Judge,
            ];
            let ending = Ending::AgentEnded;
            let sandbox = Some(sandbox);
            Ok((State::Collecting { lease, sandbox, ending, carrying_since: None }, actions))
        }
        // The agent that was asked to stop has stopped.
        State::Collecting { .. } => Ok((state, Vec::new())),
        State::Queued { .. }
        | State::Preparing { .. }
        | State::Completed { .. }
        | State::Failed { .. }
        | State::DeadLetter { .. }
        | State::Cancelled { .. } => Err(context.illegal(&state)),
    }
}
