//! Transitions that a person makes, from any process and without a lease.
//!
//! A wish to cancel is noted at once and carried out by the owner; only a run that nobody holds
//! ends on the spot.

use super::{Context, Next, StepError};
use crate::event::Action;
use crate::fact::{Fact, StopCause};
use crate::judge::judge;
use crate::state::{CancelRequest, Phase, State};

pub(super) fn decided(context: &Context<'_>, state: State, asked: String, approved: bool) -> Next {
    match state {
        State::AwaitingApproval { lease, sandbox, ask, then, .. } if ask.id == asked => {
            let state = match then {
                Phase::Planning => State::Planning { lease, sandbox },
                Phase::Executing => State::Executing { lease, sandbox },
            };
            Ok((state, vec![Action::TellAgent { ask: asked, approved }]))
        }
        State::Paused { lease, sandbox, budget, ask: Some(ask), then, supervised }
            if ask.id == asked =>
        {
            let state = State::Paused { lease, sandbox, budget, ask: None, then, supervised };
            Ok((state, vec![Action::TellAgent { ask: asked, approved }]))
        }
        State::AwaitingApproval { .. } | State::Paused { .. } => Err(StepError::NotAsked { asked }),
        State::Queued { .. }
        | State::Preparing { .. }
        | State::Planning { .. }
        | State::Executing { .. }
        | State::Collecting { .. }
        | State::Completed { .. }
        | State::Failed { .. }
        | State::DeadLetter { .. }
        | State::Cancelled { .. } => Err(context.illegal(&state)),
    }
}

pub(super) fn resumed(context: &Context<'_>, state: State) -> Next {
    match state {
        State::Paused { lease, sandbox, ask: Some(ask), then, supervised, .. } => {
            let state = State::AwaitingApproval { lease, sandbox, ask, then, supervised };
            Ok((state, vec![Action::ResumeAgent]))
        }
        State::Paused { lease, sandbox, ask: None, then, .. } => {
            let state = match then {
                Phase::Planning => State::Planning { lease, sandbox },
                Phase::Executing => State::Executing { lease, sandbox },
            };
            Ok((state, vec![Action::ResumeAgent]))
        }
        State::Queued { .. }
        | State::Preparing { .. }
        | State::Planning { .. }
        | State::Executing { .. }
        | State::AwaitingApproval { .. }
        | State::Collecting { .. }
        | State::Completed { .. }
        | State::Failed { .. }
        | State::DeadLetter { .. }
        | State::Cancelled { .. } => Err(context.illegal(&state)),
    }
}

pub(super) fn hastened(context: &Context<'_>, state: State) -> Next {
    match state {
        State::Queued { .. } => Ok((State::Queued { due: None }, Vec::new())),
        State::Preparing { .. }
        | State::Planning { .. }
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

/// Never fails: every non-terminal state can be cancelled.
pub(super) fn cancel_requested(
    context: &Context<'_>,
    state: State,
    by: String,
) -> (State, CancelRequest, Vec<Action>) {
    let request = CancelRequest { by, at: context.at };
    match state {
        State::Queued { .. } => {
            // Nothing exists yet that would have to be wound up.
            let verdict = judge(&[Fact::Stopped { cause: StopCause::Cancelled }]);
            (State::Cancelled { verdict }, request, Vec::new())
        }
        State::Preparing { .. }
        | State::Planning { .. }
        | State::Executing { .. }
        | State::AwaitingApproval { .. }
        | State::Paused { .. }
        | State::Collecting { .. }
        | State::Completed { .. }
        | State::Failed { .. }
        | State::DeadLetter { .. }
        | State::Cancelled { .. } => (state, request, vec![Action::NotifyOwner]),
    }
}
