//! Transitions up to the agent's start: claim, sandbox, guest.
//!
//! A sandbox is never started before its identity is stored, an agent never before the guest's
//! posture was accepted.

use super::{Context, Next, StepError};
use crate::event::{Action, RunEvent};
use crate::spec::AgentSpec;
use crate::state::{Lease, Preparation, State};

pub(super) fn claimed(context: &Context<'_>, state: State, lease: Lease) -> Next {
    let current = state.lease().map_or(0, |l| l.epoch);
    if lease.epoch <= current {
        return Err(StepError::StaleEpoch { current, offered: lease.epoch });
    }
    if let State::Queued { due: Some(due) } = &state
        && context.at < due.at
    {
        return Err(StepError::NotDue { until: due.at });
    }
    match state.lease() {
        None => {
            // Terminal states never get here, so no lease means queued.
            let deadline = context.at.plus_ms(context.run.spec.budgets.wall_clock_ms);
            let event = RunEvent::BudgetReached { budget: "wall_clock".to_owned() };
            let wake = Action::WakeAt { at: deadline, event: Box::new(event) };
            let state = State::Preparing { lease, stage: Preparation::Creating };
            Ok((state, vec![Action::Prepare, wake]))
        }
        Some(held) if !held.is_expired(context.at) => {
            Err(StepError::LeaseHeld { owner: held.owner.clone(), until: held.expires_at })
        }
        Some(_) => Ok((state.with_lease(lease), vec![Action::Reconcile])),
    }
}

pub(super) fn sandbox_identified(context: &Context<'_>, state: State, sandbox: String) -> Next {
    match state {
        State::Preparing { lease, stage: Preparation::Creating } => {
            let stage = Preparation::Starting { sandbox: sandbox.clone() };
            Ok((State::Preparing { lease, stage }, vec![Action::StartSandbox { sandbox }]))
        }
        // A stop overtook the creation. The identity must still be stored, or nobody removes it.
        State::Collecting { lease, sandbox: None, ending, carrying_since } => {
            let actions = vec![Action::Teardown { sandbox: Some(sandbox.clone()) }, Action::Judge];
            let sandbox = Some(sandbox);
            Ok((State::Collecting { lease, sandbox, ending, carrying_since }, actions))
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

pub(super) fn guest_ready(context: &Context<'_>, state: State) -> Next {
    match state {
        State::Preparing { lease, stage: Preparation::Starting { sandbox } } => {
            let stage = Preparation::Ready { sandbox };
            Ok((State::Preparing { lease, stage }, vec![Action::StartAgent]))
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

pub(super) fn agent_started(context: &Context<'_>, state: State) -> Next {
    match state {
        State::Preparing { lease, stage: Preparation::Ready { sandbox } } => {
            // Only the built-in agent makes a plan that we can see.
            let state = match context.run.spec.agent {
                AgentSpec::Builtin { .. } => State::Planning { lease, sandbox },
                AgentSpec::Command { .. } => State::Executing { lease, sandbox },
            };
            Ok((state, Vec::new()))
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
