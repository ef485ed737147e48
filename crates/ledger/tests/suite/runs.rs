//! A run's life in the store: arming, leases, transitions, cancel, settling.

use cofferdam_ledger::{
    Appended, Applied, Beat, CancelOutcome, EventBody, LedgerError, Lost, Settlement,
};
use cofferdam_run::fact::{Fact, StopCause};
use cofferdam_run::spec::Mode;
use cofferdam_run::{Cause, Outcome, RunEvent, StateName, StepError, verify};

use super::fixtures::{TTL_MS, at, new_run, run_id};
use super::{AnyStore, assert_gapless, claimed, collected, done, executing};

pub(crate) async fn an_armed_run_is_queued_and_found_again(store: AnyStore) {
    let made = store.create_run(new_run(1, Mode::Unattended)).await.unwrap();
    assert_eq!(made.state.name(), StateName::Queued);
    assert_eq!(store.run(&made.id).await.unwrap(), made);
    assert_eq!(store.queued(10).await.unwrap(), [made.id]);
}

pub(crate) async fn an_id_is_given_once(store: AnyStore) {
    store.create_run(new_run(1, Mode::Unattended)).await.unwrap();
    let again = store.create_run(new_run(1, Mode::Supervised)).await;
    assert!(matches!(again, Err(LedgerError::Exists { .. })), "{again:?}");
}

pub(crate) async fn a_run_that_is_not_there_is_a_coded_error(store: AnyStore) {
    assert_eq!(store.run(&run_id(9)).await.unwrap_err().code(), "LEDGER-006");
    let applied = store.apply(&run_id(9), None, RunEvent::GuestReady, at(0)).await;
    assert_eq!(applied.unwrap_err().code(), "LEDGER-006");
}

pub(crate) async fn a_whole_life_ends_with_a_record_that_verifies(store: AnyStore) {
    let (id, epoch) = collected(&store, 1).await;
    let Settlement::Done { run, record } = store.settle(&id, epoch, at(4)).await.unwrap() else {
        panic!("not settled");
    };
    assert_eq!(run.state.name(), StateName::Completed);
    assert_eq!(store.run(&id).await.unwrap(), *run);
    let json = store.record(&id).await.unwrap().unwrap();
    let verified = verify(&json).unwrap();
    assert_eq!(verified.record, *record);
    assert_eq!(run.state.verdict(), Some(&record.verdict));
    let facts: Vec<Fact> =
        store.facts(&id).await.unwrap().into_iter().map(|(_, fact)| fact).collect();
    assert_eq!(facts, record.facts().cloned().collect::<Vec<_>>());
    assert_gapless(&store, &id).await;
}

pub(crate) async fn every_transition_is_an_event(store: AnyStore) {
    let (id, _) = collected(&store, 1).await;
    let events = store.events(&id, 0, 100).await.unwrap();
    let names: Vec<&str> = events
        .iter()
        .filter_map(|e| match &e.body {
            EventBody::Transition { event, .. } => Some(event.name()),
            EventBody::Fact(_) | EventBody::Output { .. } => None,
        })
        .collect();
    let expected = [
        "claimed",
        "sandbox_identified",
        "guest_ready",
        "agent_started",
        "plan_made",
        "agent_ended",
    ];
    assert_eq!(names, expected);
    // A cursor shows what came after it.
    let later = store.events(&id, events[2].seq, 2).await.unwrap();
    assert_eq!(later, events[3..5]);
}

pub(crate) async fn an_illegal_event_changes_nothing(store: AnyStore) {
    let (id, lease) = claimed(&store, 1, Mode::Unattended).await;
    let before = (store.run(&id).await.unwrap(), assert_gapless(&store, &id).await);
    let applied = store.apply(&id, Some(lease.epoch), RunEvent::PlanMade, at(1)).await.unwrap();
    let illegal = StepError::Illegal { state: StateName::Preparing, event: "plan_made" };
    assert_eq!(applied, Applied::Illegal(illegal));
    assert_eq!((store.run(&id).await.unwrap(), assert_gapless(&store, &id).await), before);
}

pub(crate) async fn expired_lease_cannot_commit(store: AnyStore) {
    let (id, lease) = claimed(&store, 1, Mode::Unattended).await;
    let event = RunEvent::SandboxIdentified { sandbox: "box".into() };
    let late = store.apply(&id, Some(lease.epoch), event.clone(), at(TTL_MS)).await.unwrap();
    assert_eq!(late, Applied::Lost(Lost::Expired { at: at(TTL_MS) }));
    // A heartbeat brings it back as long as nobody else was faster.
    let beat = store.heartbeat(&id, lease.epoch, at(TTL_MS), TTL_MS).await.unwrap();
    assert!(matches!(beat, Beat::Held { lease, .. } if lease.expires_at == at(2 * TTL_MS)));
    done(&store, &id, Some(lease.epoch), event, TTL_MS).await;
}

pub(crate) async fn expired_lease_cannot_settle(store: AnyStore) {
    let (id, epoch) = collected(&store, 1).await;
    let late = store.settle(&id, epoch, at(TTL_MS)).await.unwrap();
    assert_eq!(late, Settlement::Lost(Lost::Expired { at: at(TTL_MS) }));
    assert_eq!(store.record(&id).await.unwrap(), None);
}

pub(crate) async fn a_new_claim_shuts_the_old_owner_out(store: AnyStore) {
    let (id, old) = claimed(&store, 1, Mode::Unattended).await;
    assert_eq!(store.claim(&id, "other", at(TTL_MS - 1), TTL_MS).await.unwrap(), None);
    let new = store.claim(&id, "other", at(TTL_MS), TTL_MS).await.unwrap().unwrap();
    assert_eq!(new.epoch, old.epoch + 1);

    let lost = Lost::Epoch { current: new.epoch };
    let stale = Some(old.epoch);
    let applied = store.apply(&id, stale, RunEvent::AgentEnded, at(TTL_MS)).await.unwrap();
    assert_eq!(applied, Applied::Lost(lost.clone()));
    let note = Fact::Note { text: "late".into() };
    let appended = store.append_fact(&id, old.epoch, at(TTL_MS), note).await.unwrap();
    assert_eq!(appended, Appended::Lost(lost.clone()));
    let beat = store.heartbeat(&id, old.epoch, at(TTL_MS), TTL_MS).await.unwrap();
    assert_eq!(beat, Beat::Lost(lost.clone()));
    let settled = store.settle(&id, old.epoch, at(TTL_MS)).await.unwrap();
    assert_eq!(settled, Settlement::Lost(lost));
}

pub(crate) async fn the_owners_events_need_its_epoch(store: AnyStore) {
    let (id, lease) = claimed(&store, 1, Mode::Unattended).await;
    let applied = store.apply(&id, None, RunEvent::GuestReady, at(1)).await.unwrap();
    assert_eq!(applied, Applied::Lost(Lost::NoLease));
    let wrong = store.apply(&id, Some(lease.epoch + 1), RunEvent::GuestReady, at(1)).await.unwrap();
    assert_eq!(wrong, Applied::Lost(Lost::Epoch { current: lease.epoch }));
}

pub(crate) async fn ending_and_claiming_have_their_own_doors(store: AnyStore) {
    let (id, lease) = claimed(&store, 1, Mode::Unattended).await;
    let epoch = Some(lease.epoch);
    let claim = store.apply(&id, epoch, RunEvent::Claimed { lease: lease.clone() }, at(1)).await;
    assert_eq!(claim.unwrap_err().code(), "LEDGER-012");
    let verdict = cofferdam_run::judge(&[]);
    let settle = store.apply(&id, epoch, RunEvent::Settled { verdict }, at(1)).await;
    assert_eq!(settle.unwrap_err().code(), "LEDGER-012");
}

pub(crate) async fn a_run_is_not_settled_before_it_was_wound_up(store: AnyStore) {
    let (id, epoch) = executing(&store, 1, Mode::Unattended).await;
    let settled = store.settle(&id, epoch, at(2)).await.unwrap();
    assert!(matches!(settled, Settlement::Illegal(StepError::Illegal { .. })), "{settled:?}");
    assert_eq!(store.run(&id).await.unwrap().state.name(), StateName::Executing);
}

pub(crate) async fn a_queued_run_is_cancelled_at_once_and_has_a_record(store: AnyStore) {
    store.create_run(new_run(1, Mode::Unattended)).await.unwrap();
    let outcome = store.request_cancel(&run_id(1), "ada", at(5)).await.unwrap();
    assert_eq!(outcome, CancelOutcome::CancelledAtOnce);
    let run = store.run(&run_id(1)).await.unwrap();
    assert_eq!(run.state.name(), StateName::Cancelled);
    let record = verify(&store.record(&run_id(1)).await.unwrap().unwrap()).unwrap().record;
    assert_eq!(Some(&record.verdict), run.state.verdict());
    assert_eq!(store.claim(&run_id(1), "late", at(6), TTL_MS).await.unwrap(), None);
    let again = store.request_cancel(&run_id(1), "bob", at(7)).await.unwrap();
    assert_eq!(again, CancelOutcome::AlreadyOver(StateName::Cancelled));
    assert_gapless(&store, &run_id(1)).await;
}

pub(crate) async fn a_wish_to_cancel_reaches_the_owner(store: AnyStore) {
    let (id, epoch) = executing(&store, 1, Mode::Unattended).await;
    assert_eq!(store.cancel_requested(&id).await.unwrap(), None);
    let outcome = store.request_cancel(&id, "ada", at(2)).await.unwrap();
    let CancelOutcome::Requested(request) = outcome else { panic!("{outcome:?}") };
    let again = store.request_cancel(&id, "bob", at(3)).await.unwrap();
    assert_eq!(again, CancelOutcome::AlreadyRequested(request.clone()));
    assert_eq!(store.cancel_requested(&id).await.unwrap(), Some(request.clone()));
    let beat = store.heartbeat(&id, epoch, at(4), TTL_MS).await.unwrap();
    assert!(matches!(beat, Beat::Held { cancel: Some(by), .. } if by == request));
}

pub(crate) async fn a_wish_to_cancel_blocks_success_even_at_the_last_moment(store: AnyStore) {
    let (id, epoch) = collected(&store, 1).await;
    let _ = store.request_cancel(&id, "ada", at(4)).await.unwrap();
    let Settlement::Done { run, record } = store.settle(&id, epoch, at(5)).await.unwrap() else {
        panic!("not settled");
    };
    assert_eq!(run.state.name(), StateName::Cancelled);
    assert_eq!(record.verdict.cause, Some(Cause::Cancelled));
    let json = store.record(&id).await.unwrap().unwrap();
    assert_eq!(verify(&json).unwrap().record.verdict.outcome, Outcome::Cancelled);
}

pub(crate) async fn a_stop_is_in_the_record_though_nobody_noted_it(store: AnyStore) {
    let (id, epoch) = executing(&store, 1, Mode::Unattended).await;
    let stop = RunEvent::StopRequested { cause: StopCause::LinkLost };
    done(&store, &id, Some(epoch), stop, 2).await;
    for fact in super::fixtures::good_facts(Mode::Unattended) {
        let _ = store.append_fact(&id, epoch, at(3), fact).await.unwrap();
    }
    let Settlement::Done { record, .. } = store.settle(&id, epoch, at(4)).await.unwrap() else {
        panic!("not settled");
    };
    assert_eq!(record.verdict.cause, Some(Cause::LinkLost));
}

/// The process died between storing the identity and telling the facts.
pub(crate) async fn a_sandbox_known_only_to_the_state_is_not_forgotten(store: AnyStore) {
    let (id, lease) = claimed(&store, 1, Mode::Unattended).await;
    let identified = RunEvent::SandboxIdentified { sandbox: "box".into() };
    done(&store, &id, Some(lease.epoch), identified, 1).await;
    done(&store, &id, Some(lease.epoch), RunEvent::HostLost, 2).await;
    let Settlement::Done { record, .. } = store.settle(&id, lease.epoch, at(3)).await.unwrap()
    else {
        panic!("not settled");
    };
    assert_eq!(record.verdict.cause.unwrap().code(), "RUN-030");
}

pub(crate) async fn the_first_terminal_state_stands(store: AnyStore) {
    let (id, epoch) = collected(&store, 1).await;
    let _ = store.settle(&id, epoch, at(4)).await.unwrap();
    let over = Lost::Over { state: StateName::Completed };
    let applied = store.apply(&id, Some(epoch), RunEvent::HostLost, at(5)).await.unwrap();
    assert_eq!(applied, Applied::Lost(over.clone()));
    let again = store.settle(&id, epoch, at(5)).await.unwrap();
    assert_eq!(again, Settlement::Lost(over.clone()));
    let note = Fact::Note { text: "late".into() };
    let appended = store.append_fact(&id, epoch, at(5), note).await.unwrap();
    assert_eq!(appended, Appended::Lost(over.clone()));
    assert_eq!(store.heartbeat(&id, epoch, at(5), TTL_MS).await.unwrap(), Beat::Lost(over));
    let cancel = store.request_cancel(&id, "ada", at(5)).await.unwrap();
    assert_eq!(cancel, CancelOutcome::AlreadyOver(StateName::Completed));
    assert_eq!(store.claim(&id, "late", at(u32::MAX.into()), TTL_MS).await.unwrap(), None);
}

pub(crate) async fn a_person_decides_without_a_lease_and_after_it_expired(store: AnyStore) {
    let (id, epoch) = executing(&store, 1, Mode::Supervised).await;
    let reached = RunEvent::BudgetReached { budget: "tokens".into() };
    done(&store, &id, Some(epoch), reached, 2).await;
    let resumed = RunEvent::Resumed { by: "ada".into() };
    let (run, _) = done(&store, &id, None, resumed, 10 * TTL_MS).await;
    assert_eq!(run.state.name(), StateName::Executing);
}

pub(crate) async fn extended_budgets_are_stored(store: AnyStore) {
    let (id, epoch) = executing(&store, 1, Mode::Supervised).await;
    done(&store, &id, Some(epoch), RunEvent::BudgetReached { budget: "tokens".into() }, 2).await;
    let budgets = cofferdam_run::Budgets { tokens: 77, ..Default::default() };
    let extended = RunEvent::Extended { by: "ada".into(), budgets: budgets.clone() };
    done(&store, &id, None, extended, 3).await;
    assert_eq!(store.run(&id).await.unwrap().spec.budgets, budgets);
}

pub(crate) async fn expired_runs_are_found_for_reconciliation(store: AnyStore) {
    let (first, _) = claimed(&store, 1, Mode::Unattended).await;
    let (second, lease) = claimed(&store, 2, Mode::Unattended).await;
    store.create_run(new_run(3, Mode::Unattended)).await.unwrap();
    assert_eq!(store.expired(at(TTL_MS - 1)).await.unwrap(), []);
    let _ = store.heartbeat(&second, lease.epoch, at(500), TTL_MS).await.unwrap();
    let expired = store.expired(at(TTL_MS)).await.unwrap();
    assert_eq!(expired.iter().map(|r| r.id.clone()).collect::<Vec<_>>(), [first]);
}
