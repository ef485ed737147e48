//! Transitions that wind a run up: stop, collect, settle.
//!
//! A wish to cancel never ends in `completed`, and neither does a run that the host stopped.

use super::{Context, Next, StepError};
use crate::event::Action;
use crate::fact::StopCause;
use crate::state::{Ending, State};
use crate::verdict::{Outcome, Verdict};

/// True when something of the agent may still run or start.
pub(super) fn can_still_be_stopped(state: &State) -> bool {
    match state {
        State::Preparing { .. }
        | State::Planning { .. }
        | State::Executing { .. }
        | State::AwaitingApproval { .. }
        | State::Paused { .. } => true,
        State::Queued { .. }
        | State::Collecting { .. }
        | State::Completed { .. }
        | State::Failed { .. }
        | State::DeadLetter { .. }
        | State::Cancelled { .. } => false,
    }
}

pub(super) fn stopped(context: &Context<'_>, state: State, cause: StopCause) -> Next {
    match state {
        State::Preparing { lease, stage } => {
            // No agent ran, so there is no work to fetch.
            let sandbox = match stage {
                crate::state::Preparation::Creating => None,
                crate::state::Preparation::Starting { sandbox }
                | crate::state::Preparation::Ready { sandbox } => Some(sandbox),
            };
            let actions = vec![
                Action::CutEgress,
                Action::CutLink,
                Action::Teardown { sandbox: sandbox.clone() },
                Action::Judge,
            ];
            let ending = Ending::Stopped { cause };
            Ok((State::Collecting { lease, sandbox, ending, carrying_since: None }, actions))
        }
        State::Planning { lease, sandbox }
        | State::Executing { lease, sandbox }
        | State::AwaitingApproval { lease, sandbox, .. }
        | State::Paused { lease, sandbox, .. } => {
            let mut actions = vec![Action::CutEgress];
            if link_is_usable(&cause) {
                actions.extend([Action::CancelAgent, Action::Collect]);
            } else {
                actions.extend([Action::CutLink, Action::Salvage]);
            }
            actions.extend([Action::Teardown { sandbox: Some(sandbox.clone()) }, Action::Judge]);
            let ending = Ending::Stopped { cause };
            let sandbox = Some(sandbox);
            Ok((State::Collecting { lease, sandbox, ending, carrying_since: None }, actions))
        }
        State::Collecting { lease, sandbox, ending: Ending::AgentEnded, carrying_since } => {
            let actions = if link_is_usable(&cause) {
                Vec::new()
            } else {
                vec![
                    Action::CutLink,
                    Action::Salvage,
                    Action::Teardown { sandbox: sandbox.clone() },
                    Action::Judge,
                ]
            };
            let ending = Ending::Stopped { cause };
            Ok((State::Collecting { lease, sandbox, ending, carrying_since }, actions))
        }
        State::Collecting {
            lease,
            sandbox,
            ending: Ending::Stopped { cause: first },
            carrying_since,
        } => {
            // The first cause stands. A lost link or host still changes what can be done.
            let actions = if link_is_usable(&cause) {
                Vec::new()
            } else {
                vec![
                    Action::CutLink,
                    Action::Salvage,
                    Action::Teardown { sandbox: sandbox.clone() },
                    Action::Judge,
                ]
            };
            let ending = Ending::Stopped { cause: first };
            Ok((State::Collecting { lease, sandbox, ending, carrying_since }, actions))
        }
        State::Queued { .. }
        | State::Completed { .. }
        | State::Failed { .. }
        | State::DeadLetter { .. }
        | State::Cancelled { .. } => Err(context.illegal(&state)),
    }
}

/// Whether the guest can still be asked to commit and hand over what there is.
fn link_is_usable(cause: &StopCause) -> bool {
    match cause {
        StopCause::Cancelled | StopCause::Budget { .. } | StopCause::HostError { .. } => true,
        StopCause::LinkLost
        | StopCause::NoHello
        | StopCause::PostureRefused { .. }
        | StopCause::EgressOpen { .. }
        | StopCause::Protocol { .. }
        | StopCause::GuestFailed { .. }
        | StopCause::HostLost => false,
    }
}

pub(super) fn collect_started(context: &Context<'_>, state: State) -> Next {
    match state {
        State::Collecting { lease, sandbox, ending, carrying_since: None } => {
            let carrying_since = Some(context.at);
            Ok((State::Collecting { lease, sandbox, ending, carrying_since }, Vec::new()))
        }
        State::Queued { .. }
        | State::Preparing { .. }
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

pub(super) fn settled(context: &Context<'_>, state: State, verdict: Verdict) -> Next {
    let ending = match &state {
        State::Collecting { ending, .. } => ending,
        State::Queued { .. }
        | State::Preparing { .. }
        | State::Planning { .. }
        | State::Executing { .. }
        | State::AwaitingApproval { .. }
        | State::Paused { .. }
        | State::Completed { .. }
        | State::Failed { .. }
        | State::DeadLetter { .. }
        | State::Cancelled { .. } => return Err(context.illegal(&state)),
    };
    if verdict.outcome != Outcome::Completed {
        return Ok((State::settled(verdict), Vec::new()));
    }
    if context.run.cancel.is_some() {
        return Ok((State::settled(verdict.overtaken_by_cancel()), Vec::new()));
    }
    match ending {
        Ending::AgentEnded => Ok((State::settled(verdict), Vec::new())),
        Ending::Stopped { .. } => {
            Err(StepError::Contradiction { detail: "completed, though the host had stopped it" })
        }
    }
}

pub(super) fn given_up(context: &Context<'_>, state: State, verdict: Verdict) -> Next {
    match &state {
        State::Collecting { .. } => {}
        State::Queued { .. }
        | State::Preparing { .. }
        | State::Planning { .. }
        | State::Executing { .. }
        | State::AwaitingApproval { .. }
        | State::Paused { .. }
        | State::Completed { .. }
        | State::Failed { .. }
        | State::DeadLetter { .. }
        | State::Cancelled { .. } => return Err(context.illegal(&state)),
    }
    if verdict.outcome == Outcome::Failed {
        Ok((State::DeadLetter { verdict }, Vec::new()))
    } else {
        Err(StepError::Contradiction { detail: "given up, though it did not fail" })
    }
}
