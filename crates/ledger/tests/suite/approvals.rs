//! Approvals: one answer, one use.

use cofferdam_ledger::store::approvals::{ApprovalFilter, Asked, Decided, NewApproval, Used};
use cofferdam_ledger::{EventBody, Lost};
use cofferdam_run::approval::{Approval, ApprovalState, Decision, Refusal, Subject};
use cofferdam_run::spec::Mode;
use cofferdam_run::state::Ask;
use cofferdam_run::{Action, Actor, ApprovalId, Decider, RunEvent, RunId, StateName};
use tokio::task::JoinSet;

use super::fixtures::at;
use super::{AnyStore, done, executing};

fn id(n: u8) -> ApprovalId {
    ApprovalId::from_entropy([n; 5])
}

fn person(name: &str) -> Decider {
    Decider::person(name).unwrap()
}

fn subject(path: &str) -> Subject {
    Subject::new("file_delete", serde_json::json!({ "path": path }), &format!("delete {path}?"))
}

async fn ask(store: &AnyStore, run: &RunId, epoch: u64, n: u8) -> Approval {
    let new =
        NewApproval { id: id(n), ask: format!("a{n}"), subject: subject("x"), expires_at: at(500) };
    match store.ask(run, epoch, new, at(2)).await.unwrap() {
        Asked::Waiting { approval, actions } => {
            assert!(matches!(actions[..], [Action::AskPerson { .. }]));
            *approval
        }
        other => panic!("{other:?}"),
    }
}

async fn decide(store: &AnyStore, n: u8, by: &str, decision: Decision, ms: u64) -> Decided {
    store.decide(&id(n), &person(by), decision, "because", at(ms)).await.unwrap()
}

fn state_of(decided: Decided) -> ApprovalState {
    match decided {
        Decided::Counts { approval, .. } => approval.state,
        other => panic!("{other:?}"),
    }
}

async fn consume(store: &AnyStore, n: u8, run: &RunId, epoch: u64, path: &str) -> Used {
    store.consume(&id(n), run, epoch, &subject(path).digest, at(4)).await.unwrap()
}

pub(crate) async fn a_question_is_stored_decided_and_used_once(store: AnyStore) {
    let (run, epoch) = executing(&store, 1, Mode::Supervised).await;
    let asked = ask(&store, &run, epoch, 1).await;
    assert_eq!(store.approval(&id(1)).await.unwrap(), asked);
    assert_eq!(store.approvals_pending().await.unwrap(), 1);
    assert_eq!(store.run(&run).await.unwrap().state.name(), StateName::AwaitingApproval);
    let early = consume(&store, 1, &run, epoch, "x").await;
    assert_eq!(early, Used::Lost(Lost::Stopping));
    let state = state_of(decide(&store, 1, "ada", Decision::Approve, 3).await);
    assert_eq!(state.decided_by(), Some(&Actor::Person("ada".into())));
    assert_eq!(store.run(&run).await.unwrap().state.name(), StateName::Executing);
    // Only for what was asked, and once.
    let other = consume(&store, 1, &run, epoch, "y").await;
    assert_eq!(other, Used::Refused(Refusal::OtherSubject));
    let stale = consume(&store, 1, &run, epoch + 1, "x").await;
    assert_eq!(stale, Used::Lost(Lost::Epoch { current: epoch }));
    assert!(matches!(consume(&store, 1, &run, epoch, "x").await, Used::Granted(_)));
    let twice = consume(&store, 1, &run, epoch, "x").await;
    assert_eq!(twice, Used::Refused(Refusal::NotApproved { state: "consumed" }));
    assert_eq!(store.approvals_pending().await.unwrap(), 0);
    let filter = ApprovalFilter { state: Some("consumed".into()), run: Some(run) };
    assert_eq!(store.approvals(filter, Default::default()).await.unwrap().items.len(), 1);
}

pub(crate) async fn of_a_thousand_decisions_one_counts(store: AnyStore) {
    let (run, epoch) = executing(&store, 1, Mode::Supervised).await;
    ask(&store, &run, epoch, 1).await;
    let mut deciding = JoinSet::new();
    for n in 0..1_000 {
        let store = store.clone();
        deciding.spawn(async move {
            let decision = if n % 2 == 0 { Decision::Approve } else { Decision::Reject };
            let by = format!("person {n}");
            (by.clone(), store.decide(&id(1), &person(&by), decision, "", at(3)).await.unwrap())
        });
    }
    let mut winner = None;
    let mut losers = Vec::new();
    while let Some(answer) = deciding.join_next().await {
        match answer.unwrap() {
            (by, Decided::Counts { approval, .. }) => {
                assert!(winner.replace((by, approval.state)).is_none(), "two decisions count");
            }
            (_, Decided::Refused { refusal: Refusal::Decided { state }, .. }) => losers.push(state),
            (_, other) => panic!("{other:?}"),
        }
    }
    let (by, state) = winner.unwrap();
    assert_eq!(state.decided_by(), Some(&Actor::Person(by)));
    assert_eq!(losers.len(), 999);
    assert!(losers.iter().all(|known| **known == state), "each loser learns who decided");
    let events = store.events(&run, 0, 10_000).await.unwrap();
    let decided = |e: &&cofferdam_ledger::StoredEvent| {
        matches!(&e.body, EventBody::Transition { event: RunEvent::ApprovalDecided { .. }, .. })
    };
    assert_eq!(events.iter().filter(decided).count(), 1);
}

pub(crate) async fn silence_is_no_and_lets_the_run_go_on(store: AnyStore) {
    let (run, epoch) = executing(&store, 1, Mode::Supervised).await;
    ask(&store, &run, epoch, 1).await;
    assert_eq!(store.expire_approvals(at(499)).await.unwrap(), []);
    let late = decide(&store, 1, "ada", Decision::Approve, 500).await;
    assert!(matches!(late, Decided::Refused { refusal: Refusal::Expired { .. }, .. }));
    let expired = store.expire_approvals(at(500)).await.unwrap();
    assert_eq!(expired[0].state, ApprovalState::Expired { at: at(500) });
    assert_eq!(store.run(&run).await.unwrap().state.name(), StateName::Executing);
    assert_eq!(store.expire_approvals(at(501)).await.unwrap(), []);
    let unused = store.consume(&id(1), &run, epoch, &subject("x").digest, at(501)).await.unwrap();
    assert_eq!(unused, Used::Refused(Refusal::NotApproved { state: "expired" }));
}

pub(crate) async fn a_question_closes_with_its_run(store: AnyStore) {
    let (run, epoch) = executing(&store, 1, Mode::Supervised).await;
    ask(&store, &run, epoch, 1).await;
    done(&store, &run, Some(epoch), RunEvent::AgentEnded, 3).await;
    // In between nobody can answer any more, and the trail says why.
    let late = decide(&store, 1, "ada", Decision::Approve, 4).await;
    assert!(matches!(late, Decided::Refused { refusal: Refusal::Withdrawn { .. }, .. }));
    // A yes that was not used goes with the run; who said it stays.
    let (other, epoch) = executing(&store, 2, Mode::Supervised).await;
    ask(&store, &other, epoch, 2).await;
    state_of(decide(&store, 2, "ada", Decision::Approve, 3).await);
    done(&store, &other, Some(epoch), RunEvent::AgentEnded, 4).await;
    let _ = store.settle(&other, epoch, at(5)).await.unwrap();
    assert_eq!(store.approval(&id(2)).await.unwrap().state.name(), "withdrawn");
    let used = consume(&store, 2, &other, epoch, "x").await;
    assert!(matches!(used, Used::Lost(Lost::Over { .. })));
}

pub(crate) async fn a_yes_is_not_used_by_a_run_that_is_being_stopped(store: AnyStore) {
    let (run, epoch) = executing(&store, 1, Mode::Supervised).await;
    ask(&store, &run, epoch, 1).await;
    state_of(decide(&store, 1, "ada", Decision::Approve, 3).await);
    let _ = store.request_cancel(&run, "ada", at(3)).await.unwrap();
    assert_eq!(consume(&store, 1, &run, epoch, "x").await, Used::Lost(Lost::Stopping));
    // And a decision after the wish to cancel resumes nothing.
    let (other, epoch) = executing(&store, 2, Mode::Supervised).await;
    ask(&store, &other, epoch, 2).await;
    let _ = store.request_cancel(&other, "ada", at(3)).await.unwrap();
    let _ = decide(&store, 2, "ada", Decision::Approve, 3).await;
    assert_eq!(store.run(&other).await.unwrap().state.name(), StateName::Collecting);
    assert!(matches!(consume(&store, 2, &other, epoch, "x").await, Used::Lost(_)));
}

pub(crate) async fn approvals_have_their_own_door(store: AnyStore) {
    let (run, epoch) = executing(&store, 1, Mode::Supervised).await;
    let ask = Ask { id: "a".into(), text: "?".into() };
    let asked = RunEvent::ApprovalAsked { ask };
    let error = store.apply(&run, Some(epoch), asked, at(2)).await.unwrap_err();
    assert_eq!(error.code(), "LEDGER-012");
    let decided =
        RunEvent::ApprovalDecided { ask: "a".into(), approved: true, by: "agent:x".into() };
    assert_eq!(store.apply(&run, None, decided, at(2)).await.unwrap_err().code(), "LEDGER-012");
    // An unattended run cannot ask at all.
    let (run, epoch) = executing(&store, 2, Mode::Unattended).await;
    let new =
        NewApproval { id: id(3), ask: "a".into(), subject: subject("x"), expires_at: at(500) };
    let asked = store.ask(&run, epoch, new, at(2)).await.unwrap();
    assert_eq!(asked, Asked::Illegal(cofferdam_run::StepError::NobodyThere));
    assert_eq!(store.approval(&id(3)).await.unwrap_err().code(), "LEDGER-013");
}

pub(crate) async fn two_runs_cannot_spend_one_approval(store: AnyStore) {
    let (run, epoch) = executing(&store, 1, Mode::Supervised).await;
    let (other, other_epoch) = executing(&store, 2, Mode::Supervised).await;
    ask(&store, &run, epoch, 1).await;
    state_of(decide(&store, 1, "ada", Decision::Approve, 3).await);
    let mut using = JoinSet::new();
    for n in 0..200 {
        let store = store.clone();
        let (run, epoch) =
            if n % 2 == 0 { (run.clone(), epoch) } else { (other.clone(), other_epoch) };
        using.spawn(async move { consume(&store, 1, &run, epoch, "x").await });
    }
    let mut granted = 0;
    while let Some(used) = using.join_next().await {
        granted += usize::from(matches!(used.unwrap(), Used::Granted(_)));
    }
    assert_eq!(granted, 1);
}
