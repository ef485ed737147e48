//! The state machine: its ordinary lives by hand, and what holds for every sequence of events.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{StepError, step};
use crate::event::{Action, RunEvent};
use crate::fact::StopCause;
use crate::fixtures::{good_facts, lease, run_id, spec};
use crate::ids::TimestampMs;
use crate::judge::judge;
use crate::limits::Budgets;
use crate::spec::{AgentSpec, Mode};
use crate::state::{Ask, Due, Exit, Run, State, StateName, Wait};
use crate::verdict::{Cause, Outcome, Verdict};

fn run(mode: Mode) -> Run {
    Run::new(run_id(), spec(mode), TimestampMs(0))
}

fn good_verdict() -> Verdict {
    judge(&good_facts(Mode::Unattended))
}

fn bad_verdict() -> Verdict {
    judge(&[])
}

fn ask(id: &str) -> Ask {
    Ask { id: id.into(), text: "may I?".into() }
}

fn budget(name: &str) -> RunEvent {
    RunEvent::BudgetReached { budget: name.into() }
}

fn stop(cause: StopCause) -> RunEvent {
    RunEvent::StopRequested { cause }
}

fn cancel() -> RunEvent {
    RunEvent::CancelRequested { by: "ada".into() }
}

fn decided(id: &str) -> RunEvent {
    RunEvent::ApprovalDecided { ask: id.into(), approved: true, by: "ada".into() }
}

fn claimed(epoch: u64) -> RunEvent {
    RunEvent::Claimed { lease: lease(epoch, 1_000) }
}

fn identified() -> RunEvent {
    RunEvent::SandboxIdentified { sandbox: "box".into() }
}

/// Applies events one after the other; each must be legal.
fn live(mut run: Run, events: impl IntoIterator<Item = RunEvent>) -> (Run, Vec<Action>) {
    let mut actions = Vec::new();
    for event in events {
        let name = event.name();
        (run, actions) =
            step(run, event, TimestampMs(10)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    (run, actions)
}

fn to_executing() -> Vec<RunEvent> {
    vec![claimed(1), identified(), RunEvent::GuestReady, RunEvent::AgentStarted, RunEvent::PlanMade]
}

/// A run in each non-terminal state (supervised, because only that reaches all).
fn one_of_each() -> Vec<Run> {
    let mut runs: Vec<Run> = (0..=5)
        .map(|n| live(run(Mode::Supervised), to_executing().into_iter().take(n)).0)
        .collect();
    let (executing, _) = live(run(Mode::Supervised), to_executing());
    let more = [
        vec![RunEvent::ApprovalAsked { ask: ask("a") }],
        vec![budget("tokens")],
        vec![RunEvent::ApprovalAsked { ask: ask("a") }, budget("tokens")],
        vec![RunEvent::AgentEnded],
        vec![stop(StopCause::LinkLost)],
        vec![RunEvent::AgentEnded, RunEvent::CollectStarted],
    ];
    runs.extend(more.into_iter().map(|events| live(executing.clone(), events).0));
    runs.push(Run { spec: spec(Mode::Supervised), ..waiting(10) });
    runs
}

#[test]
fn the_ordinary_life() {
    let (run, actions) = live(run(Mode::Unattended), [claimed(1)]);
    assert_eq!(actions[0], Action::Prepare);
    let (run, actions) = live(run, [identified()]);
    assert_eq!(actions, [Action::StartSandbox { sandbox: "box".into() }]);
    let (run, actions) = live(run, [RunEvent::GuestReady]);
    assert_eq!(actions, [Action::StartAgent]);
    let (run, _) = live(run, [RunEvent::AgentStarted]);
    assert_eq!(run.state.name(), StateName::Planning);
    let (run, _) = live(run, [RunEvent::PlanMade]);
    assert_eq!(run.state.name(), StateName::Executing);
    let (run, actions) = live(run, [RunEvent::AgentEnded]);
    let teardown = Action::Teardown { sandbox: Some("box".into()) };
    assert_eq!(actions, [Action::CutEgress, Action::Collect, teardown, Action::Judge]);
    let settled = RunEvent::Settled { verdict: good_verdict() };
    let (run, actions) = live(run, [RunEvent::CollectStarted, settled]);
    assert_eq!(run.state, State::Completed { verdict: good_verdict() });
    assert_eq!(actions, []);
}

#[test]
fn a_command_has_no_planning() {
    let mut command = run(Mode::Unattended);
    command.spec.agent = AgentSpec::Command { argv: vec!["true".into()] };
    let (command, _) = live(command, to_executing().into_iter().take(4));
    assert_eq!(command.state.name(), StateName::Executing);
}

#[test]
fn an_agent_is_not_started_before_the_guest_is_ready_nor_a_sandbox_twice() {
    let (starting, _) = live(run(Mode::Unattended), [claimed(1), identified()]);
    for event in [RunEvent::AgentStarted, identified(), RunEvent::PlanMade, RunEvent::AgentEnded] {
        let error = step(starting.clone(), event.clone(), TimestampMs(10)).unwrap_err();
        let expected = StepError::Illegal { state: StateName::Preparing, event: event.name() };
        assert_eq!(error, expected);
    }
}

#[test]
fn an_unattended_run_waits_for_nobody() {
    let (executing, _) = live(run(Mode::Unattended), to_executing());
    let asked = RunEvent::ApprovalAsked { ask: ask("a") };
    assert_eq!(step(executing.clone(), asked, TimestampMs(10)), Err(StepError::NobodyThere));
    let (stopped, actions) = live(executing, [budget("tokens")]);
    assert_eq!(stopped.state.name(), StateName::Collecting);
    assert_eq!(actions[..3], [Action::CutEgress, Action::CancelAgent, Action::Collect]);
}

#[test]
fn a_supervised_run_pauses_at_its_budget_and_goes_on_where_it_was() {
    let (executing, _) = live(run(Mode::Supervised), to_executing());
    let (paused, actions) = live(executing.clone(), [budget("tokens"), budget("money")]);
    assert!(matches!(&paused.state, State::Paused { budget, .. } if budget == "tokens"));
    assert_eq!(actions, []);
    let budgets = Budgets { tokens: 9_000_000, ..Budgets::default() };
    let extended = RunEvent::Extended { by: "ada".into(), budgets: budgets.clone() };
    let (on, actions) = live(paused, [extended]);
    assert_eq!(on.state, executing.state);
    assert_eq!(on.spec.budgets, budgets);
    assert_eq!(actions, [Action::ResumeAgent]);
}

#[test]
fn a_decision_counts_once_and_for_its_own_question() {
    let (executing, _) = live(run(Mode::Supervised), to_executing());
    let (asking, actions) = live(executing.clone(), [RunEvent::ApprovalAsked { ask: ask("a") }]);
    assert_eq!(actions, [Action::AskPerson { ask: ask("a") }]);
    let wrong = step(asking.clone(), decided("b"), TimestampMs(10));
    assert_eq!(wrong, Err(StepError::NotAsked { asked: "b".into() }));
    let (on, actions) = live(asking.clone(), [decided("a")]);
    assert_eq!(on.state, executing.state);
    assert_eq!(actions, [Action::TellAgent { ask: "a".into(), approved: true }]);
    step(on, decided("a"), TimestampMs(10)).unwrap_err();
    // Also when a budget ran out while the person thought.
    let (paused, _) = live(asking, [budget("tokens")]);
    let (open, _) = live(paused.clone(), [RunEvent::Resumed { by: "ada".into() }]);
    assert_eq!(open.state.name(), StateName::AwaitingApproval);
    let (decided_first, _) = live(paused, [decided("a"), RunEvent::Resumed { by: "ada".into() }]);
    assert_eq!(decided_first.state, executing.state);
}

#[test]
fn a_lease_is_taken_over_only_after_it_expired_and_with_a_fresh_epoch() {
    let (held, _) = live(run(Mode::Unattended), to_executing());
    let take = |epoch, at| step(held.clone(), claimed(epoch), TimestampMs(at));
    assert!(matches!(take(2, 999), Err(StepError::LeaseHeld { .. })));
    assert_eq!(take(1, 1_000), Err(StepError::StaleEpoch { current: 1, offered: 1 }));
    let (taken, actions) = take(2, 1_000).unwrap();
    assert_eq!(taken.state.lease().unwrap().epoch, 2);
    assert_eq!(actions, [Action::Reconcile]);
    let (lost, actions) = live(taken, [RunEvent::HostLost]);
    assert_eq!(lost.state.name(), StateName::Collecting);
    assert!(actions.contains(&Action::Salvage) && !actions.contains(&Action::Collect));
}

#[test]
fn a_queued_run_is_cancelled_on_the_spot() {
    let (over, actions) = live(run(Mode::Unattended), [cancel()]);
    assert_eq!(over.state.name(), StateName::Cancelled);
    assert_eq!(over.state.verdict().unwrap().cause, Some(Cause::Cancelled));
    assert_eq!(actions, []);
}

#[test]
fn the_owners_next_word_after_a_wish_to_cancel_becomes_the_stop() {
    let (creating, _) = live(run(Mode::Unattended), [claimed(1), cancel()]);
    assert_eq!(creating.state.name(), StateName::Preparing);
    let (stopped, actions) = live(creating, [identified()]);
    // The identity is kept, the sandbox is not started.
    assert_eq!(stopped.state.sandbox(), Some("box"));
    assert_eq!(stopped.state.name(), StateName::Collecting);
    assert!(!actions.iter().any(|a| matches!(a, Action::StartSandbox { .. })));
    assert!(actions.contains(&Action::Teardown { sandbox: Some("box".into()) }));
}

#[test]
fn a_decision_after_a_wish_to_cancel_does_not_resume() {
    let (asking, _) = live(
        run(Mode::Supervised),
        to_executing().into_iter().chain([RunEvent::ApprovalAsked { ask: ask("a") }, cancel()]),
    );
    let (stopped, actions) = live(asking, [decided("a")]);
    assert_eq!(stopped.state.name(), StateName::Collecting);
    assert!(!actions.iter().any(|a| matches!(a, Action::TellAgent { .. })));
}

#[test]
fn a_sandbox_that_appears_after_the_stop_is_still_removed() {
    let (stopped, _) = live(run(Mode::Unattended), [claimed(1), stop(StopCause::Cancelled)]);
    assert_eq!(stopped.state.sandbox(), None);
    let (known, actions) = live(stopped, [identified()]);
    assert_eq!(known.state.sandbox(), Some("box"));
    assert_eq!(actions[0], Action::Teardown { sandbox: Some("box".into()) });
}

#[test]
fn a_stopped_run_is_never_completed() {
    let (stopped, _) =
        live(run(Mode::Unattended), to_executing().into_iter().chain([stop(StopCause::LinkLost)]));
    let settled = RunEvent::Settled { verdict: good_verdict() };
    let error = step(stopped, settled, TimestampMs(10)).unwrap_err();
    assert!(matches!(error, StepError::Contradiction { .. }));
}

#[test]
fn a_wish_to_cancel_at_the_last_moment_blocks_success() {
    let (collecting, _) =
        live(run(Mode::Unattended), to_executing().into_iter().chain([RunEvent::AgentEnded]));
    let (over, _) = live(collecting, [cancel(), RunEvent::Settled { verdict: good_verdict() }]);
    assert_eq!(over.state.name(), StateName::Cancelled);
    assert!(over.restored().is_ok());
}

#[test]
fn the_first_wish_to_cancel_stands() {
    let (held, _) = live(run(Mode::Unattended), [claimed(1), cancel()]);
    let again = RunEvent::CancelRequested { by: "bob".into() };
    let (run, _) = step(held, again, TimestampMs(99)).unwrap();
    let request = run.cancel.unwrap();
    assert_eq!((request.by.as_str(), request.at), ("ada", TimestampMs(10)));
}

#[test]
fn a_failed_run_can_be_given_up() {
    let (collecting, _) =
        live(run(Mode::Unattended), to_executing().into_iter().chain([RunEvent::AgentEnded]));
    let good = RunEvent::GivenUp { verdict: good_verdict() };
    assert!(matches!(
        step(collecting.clone(), good, TimestampMs(10)),
        Err(StepError::Contradiction { .. })
    ));
    let (dead, _) = live(collecting, [RunEvent::GivenUp { verdict: bad_verdict() }]);
    assert_eq!(dead.state.name(), StateName::DeadLetter);
}

#[test]
fn every_state_that_is_not_terminal_can_be_cancelled_and_then_settled() {
    for run in one_of_each() {
        let from = run.state.name();
        let (run, _) = live(run, [cancel()]);
        if run.state.is_terminal() {
            assert_eq!(from, StateName::Queued);
            continue;
        }
        let settled = RunEvent::Settled { verdict: bad_verdict() };
        let (run, _) = live(run, [stop(StopCause::Cancelled), settled]);
        assert!(run.state.is_terminal(), "from {from}");
    }
}

/// A run whose attempt before failed.
fn waiting(until: u64) -> Run {
    let due = Due { at: TimestampMs(until), why: Wait::Backoff };
    Run { state: State::Queued { due: Some(due) }, ..run(Mode::Unattended) }
}

#[test]
fn a_waiting_attempt_is_claimed_when_it_is_due_or_when_a_person_says_so() {
    let early = step(waiting(11), claimed(1), TimestampMs(10));
    assert_eq!(early, Err(StepError::NotDue { until: TimestampMs(11) }));
    assert!(step(waiting(10), claimed(1), TimestampMs(10)).is_ok());
    let (now, _) = live(waiting(11), [RunEvent::Hastened { by: "ada".into() }, claimed(1)]);
    assert_eq!(now.state.name(), StateName::Preparing);
}

#[test]
fn every_exit_of_every_state_leads_somewhere() {
    for run in one_of_each() {
        let from = run.state.clone();
        assert!(from.exits().contains(&Exit::Cancel), "{}", from.name());
        for exit in from.exits() {
            let event = match exit {
                Exit::Cancel => cancel(),
                Exit::Hasten => RunEvent::Hastened { by: "ada".into() },
                Exit::Decide { ask } => decided(&ask),
                Exit::Extend { .. } => {
                    RunEvent::Extended { by: "ada".into(), budgets: Budgets::default() }
                }
            };
            assert!(!event.needs_owner(), "{} needs a lease", event.name());
            let (after, _) = live(run.clone(), [event]);
            assert!(after.state != from || after.cancel.is_some(), "{}", from.name());
        }
    }
    let over = live(run(Mode::Unattended), [cancel()]).0;
    assert_eq!(over.state.exits(), []);
}

#[test]
fn every_state_that_is_not_terminal_names_its_waker() {
    let runs = one_of_each();
    for run in &runs {
        assert!(run.state.waker().is_some(), "{}", run.state.name());
    }
    for name in StateName::ALL.iter().filter(|n| !n.is_terminal()) {
        assert!(runs.iter().any(|r| r.state.name() == *name), "{name} is not covered");
    }
}

#[test]
fn states_survive_storage() {
    for run in one_of_each() {
        let text = serde_json::to_string(&run.state).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), run.state, "{text}");
        let stored: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(stored["state"], run.state.name().as_str());
    }
    serde_json::from_str::<State>(r#"{"state":"sleeping"}"#).unwrap_err();
}

#[test]
fn stored_states_that_contradict_themselves_are_refused() {
    let (mut paused, _) =
        live(run(Mode::Supervised), to_executing().into_iter().chain([budget("tokens")]));
    paused.spec.mode = Mode::Unattended;
    paused.restored().unwrap_err();
    let mut lying = run(Mode::Unattended);
    lying.state = State::Completed { verdict: bad_verdict() };
    lying.restored().unwrap_err();
}

fn any_event() -> impl Strategy<Value = RunEvent> {
    let name = prop_oneof![Just("a"), Just("b")];
    prop_oneof![
        3 => (0u64..6).prop_map(claimed),
        3 => Just(identified()),
        3 => Just(RunEvent::GuestReady),
        3 => Just(RunEvent::AgentStarted),
        3 => Just(RunEvent::PlanMade),
        2 => name.clone().prop_map(|n| RunEvent::ApprovalAsked { ask: ask(n) }),
        2 => name.prop_map(decided),
        1 => Just(budget("tokens")),
        1 => Just(RunEvent::Resumed { by: "ada".into() }),
        1 => Just(RunEvent::Extended { by: "ada".into(), budgets: Budgets::default() }),
        1 => Just(RunEvent::Hastened { by: "ada".into() }),
        1 => Just(RunEvent::AgentEnded),
        1 => any_cause().prop_map(stop),
        1 => Just(cancel()),
        2 => Just(RunEvent::CollectStarted),
        1 => Just(RunEvent::HostLost),
        1 => prop_oneof![Just(good_verdict()), Just(bad_verdict())]
            .prop_map(|verdict| RunEvent::Settled { verdict }),
        1 => Just(RunEvent::GivenUp { verdict: bad_verdict() }),
    ]
}

fn any_cause() -> impl Strategy<Value = StopCause> {
    prop_oneof![
        Just(StopCause::Cancelled),
        Just(StopCause::Budget { budget: "tokens".into() }),
        Just(StopCause::LinkLost),
        Just(StopCause::NoHello),
        Just(StopCause::PostureRefused { layer: "seccomp".into(), detail: "off".into() }),
        Just(StopCause::Protocol { detail: "x".into() }),
        Just(StopCause::GuestFailed { detail_claim: "x".into() }),
        Just(StopCause::HostError { detail: "x".into() }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn whatever_happens_the_rules_hold(
        supervised in any::<bool>(),
        events in vec((any_event(), 0u64..3_000), 1..60),
    ) {
        let mode = if supervised { Mode::Supervised } else { Mode::Unattended };
        let mut run = run(mode);
        let mut now = 0;
        for (event, later) in events {
            now += later;
            let before = run.clone();
            let name = event.name();
            match step(run.clone(), event, TimestampMs(now)) {
                Ok((next, actions)) => {
                    prop_assert!(!before.state.is_terminal(), "{} left by {}", before.state.name(), name);
                    if before.cancel.is_some() {
                        prop_assert!(next.cancel == before.cancel);
                        prop_assert_ne!(next.state.name(), StateName::Completed);
                        // Nothing is started any more.
                        let starts = actions.iter().any(|a| matches!(a,
                            Action::Prepare | Action::StartSandbox { .. } | Action::StartAgent | Action::ResumeAgent));
                        prop_assert!(!starts, "{:?}", actions);
                    }
                    let epoch = |r: &Run| r.state.lease().map_or(0, |l| l.epoch);
                    if !next.state.is_terminal() {
                        prop_assert!(epoch(&next) >= epoch(&before));
                    }
                    if before.state.sandbox().is_some() && !next.state.is_terminal() {
                        prop_assert_eq!(next.state.sandbox(), before.state.sandbox());
                    }
                    run = next;
                }
                Err(_) if before.state.is_terminal() => {}
                Err(error) => prop_assert_ne!(name, "cancel_requested", "{}", error),
            }
            prop_assert_eq!(run.state.waker().is_none(), run.state.is_terminal());
            prop_assert_eq!(run.state.verdict().is_some(), run.state.is_terminal());
            prop_assert!(run.clone().restored().is_ok());
            if let Some(verdict) = run.state.verdict() && run.cancel.is_some() {
                prop_assert_ne!(verdict.outcome, Outcome::Completed);
            }
        }
    }
}
