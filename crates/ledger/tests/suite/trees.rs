//! Delegation: shares, rules, and trees that end together.

use cofferdam_ledger::Lost;
use cofferdam_ledger::store::work::{Claimed, Delegated, NewChild, Retried};
use cofferdam_run::delegate::{DelegationLimits, DelegationRefusal};
use cofferdam_run::fact::Fact;
use cofferdam_run::limits::Spend;
use cofferdam_run::retry::RetryPolicy;
use cofferdam_run::spec::Mode;
use cofferdam_run::task::RetryRefusal;
use cofferdam_run::{Actor, Budgets, RunEvent, StateName, StepError, Task};

use super::fixtures::{at, spec};
use super::tasks::{complete, created, executing, lose, new_task, next, task_id};
use super::{AnyStore, done};

fn child(n: u32, tokens: u64, turn: u64) -> NewChild {
    let mut spec = spec(Mode::Unattended);
    spec.task = format!("child {n}");
    spec.budgets = Budgets { tokens, model_calls: 100, ..Budgets::default() };
    NewChild {
        id: task_id(1_000 + n),
        title: format!("child {n}"),
        agent: None,
        spec,
        retry: RetryPolicy { jitter_permille: 0, ..RetryPolicy::default() },
        turn,
    }
}

async fn delegate(store: &AnyStore, parent: &Claimed, child: NewChild) -> Delegated {
    let limits = DelegationLimits::default();
    store.delegate(&parent.run.id, parent.lease.epoch, child, limits, at(2)).await.unwrap()
}

async fn delegated(store: &AnyStore, parent: &Claimed, child: NewChild) -> Task {
    match delegate(store, parent, child).await {
        Delegated::Queued { task, .. } => *task,
        other => panic!("{other:?}"),
    }
}

async fn refused(store: &AnyStore, parent: &Claimed, child: NewChild) -> DelegationRefusal {
    match delegate(store, parent, child).await {
        Delegated::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// A task whose run works.
async fn working(store: &AnyStore, n: u32) -> Claimed {
    created(store, new_task(n, Mode::Unattended)).await;
    let claimed = next(store, 1).await.unwrap();
    executing(store, &claimed, 1).await;
    claimed
}

async fn tokens_left(store: &AnyStore, parent: &Claimed) -> u64 {
    store.allowance(&parent.run.id).await.unwrap().tokens
}

pub(crate) async fn a_child_spends_what_was_taken_from_its_parent(store: AnyStore) {
    let parent = working(&store, 1).await;
    let spend = Spend { input_tokens: 100_000, ..Spend::default() };
    let _ = store.append_fact(&parent.run.id, 1, at(2), Fact::Spent { spend }).await.unwrap();
    assert_eq!(tokens_left(&store, &parent).await, 1_900_000);
    // Reserved before any of it is spent.
    let task = delegated(&store, &parent, child(1, 1_000_000, 1)).await;
    assert_eq!(tokens_left(&store, &parent).await, 900_000);
    assert_eq!(task.parent.as_ref().unwrap().depth, 1);
    let too_much = refused(&store, &parent, child(2, 900_001, 2)).await;
    assert_eq!(too_much, DelegationRefusal::Budget { budget: "tokens" });
    // A failed attempt of the child uses up its share, and its next one has the rest.
    let first = next(&store, 3).await.unwrap();
    assert_eq!(first.task.as_ref(), Some(&task.id));
    lose(&store, &first, 300_000, 3).await;
    assert_eq!(tokens_left(&store, &parent).await, 900_000);
    let second = next(&store, 10_003).await.unwrap();
    assert_eq!(second.run.spec.budgets.tokens, 700_000);
    complete(&store, &second, 10_004).await;
    // What it did not need goes back.
    assert_eq!(tokens_left(&store, &parent).await, 1_600_000);
}

pub(crate) async fn the_rules_of_delegation_hold(store: AnyStore) {
    let parent = working(&store, 1).await;
    let mut own = child(1, 10, 1);
    own.spec.task = " TASK   1".into();
    let cycle = refused(&store, &parent, own).await;
    assert_eq!(cycle, DelegationRefusal::Cycle { task: task_id(1) });
    let first = delegated(&store, &parent, child(2, 10, 1)).await;
    let same = NewChild { id: task_id(77), ..child(2, 10, 1) };
    let twice = refused(&store, &parent, same).await;
    assert_eq!(twice, DelegationRefusal::SameIntent { task: first.id });
    for n in 3..6 {
        delegated(&store, &parent, child(n, 10, 1)).await;
    }
    let turn = refused(&store, &parent, child(6, 10, 1)).await;
    assert_eq!(turn, DelegationRefusal::Turn { max: 4 });
    // Grandchildren are the second level; there is no third.
    let child_run = next(&store, 3).await.unwrap();
    executing(&store, &child_run, 3).await;
    let mut above = child(7, 5, 1);
    above.spec.task = "task 1".into();
    let cycle = refused(&store, &child_run, above).await;
    assert_eq!(cycle, DelegationRefusal::Cycle { task: task_id(1) });
    let grandchild = delegated(&store, &child_run, child(8, 5, 1)).await;
    let place = grandchild.parent.clone().unwrap();
    assert_eq!((place.depth, place.root), (2, task_id(1)));
    let run = loop {
        let claimed = next(&store, 4).await.unwrap();
        if claimed.task.as_ref() == Some(&grandchild.id) {
            break claimed;
        }
    };
    executing(&store, &run, 4).await;
    let deep = refused(&store, &run, child(9, 1, 1)).await;
    assert_eq!(deep, DelegationRefusal::Depth { max: 2 });
    // The whole tree is bounded, whatever the turn.
    let mut turn = 2;
    for n in 10..21 {
        delegated(&store, &parent, child(n, 10, turn)).await;
        turn += 1;
    }
    let full = refused(&store, &parent, child(30, 10, turn)).await;
    assert_eq!(full, DelegationRefusal::TreeFull { max: 16 });
}

pub(crate) async fn a_child_is_not_extended_beyond_its_share(store: AnyStore) {
    let mut new = new_task(1, Mode::Supervised);
    new.spec.task = "above".into();
    created(&store, new).await;
    let parent = next(&store, 1).await.unwrap();
    executing(&store, &parent, 1).await;
    let mut wanted = child(1, 1_000, 1);
    wanted.spec.mode = Mode::Supervised;
    delegated(&store, &parent, wanted).await;
    let run = next(&store, 2).await.unwrap();
    executing(&store, &run, 2).await;
    let reached = RunEvent::BudgetReached { budget: "tokens".into() };
    done(&store, &run.run.id, Some(1), reached, 3).await;
    let extended = |tokens| {
        let budgets = Budgets { tokens, model_calls: 100, ..Budgets::default() };
        RunEvent::Extended { by: "ada".into(), budgets }
    };
    let more = store.apply(&run.run.id, None, extended(1_001), at(4)).await.unwrap();
    let beyond = StepError::BeyondShare { budget: "tokens" };
    assert_eq!(more, cofferdam_ledger::Applied::Illegal(beyond));
    done(&store, &run.run.id, None, extended(1_000), 4).await;
}

pub(crate) async fn a_tree_is_cancelled_in_one_transaction(store: AnyStore) {
    let parent = working(&store, 1).await;
    let running = delegated(&store, &parent, child(1, 1_000, 1)).await;
    let run = next(&store, 3).await.unwrap();
    executing(&store, &run, 3).await;
    let below = delegated(&store, &run, child(2, 10, 1)).await;
    let queued = delegated(&store, &parent, child(3, 10, 1)).await;
    let cancelled = store.cancel_task(&task_id(1), "ada", at(4)).await.unwrap();
    assert_eq!(cancelled.over.len(), 2);
    assert_eq!(cancelled.requested.len(), 2);
    for task in [&below, &queued] {
        assert_eq!(store.task(&task.id).await.unwrap().state.name(), "cancelled");
    }
    assert!(store.task(&running.id).await.unwrap().cancel.is_some());
    assert_eq!(next(&store, 1_000_000).await, None);
    // A second wish changes nothing.
    let again = store.cancel_task(&task_id(1), "bob", at(5)).await.unwrap();
    assert_eq!(again, Default::default());
    // The command that cancels a run does the same.
    let other = working(&store, 2).await;
    let child = delegated(&store, &other, child(4, 10, 1)).await;
    let _ = store.request_cancel(&other.run.id, "ada", at(6)).await.unwrap();
    assert_eq!(store.task(&child.id).await.unwrap().state.name(), "cancelled");
    // A child is not tried again by itself.
    let by = Actor::Person("ada".into());
    let retried = store.retry_task(&child.id, &by, None, at(7)).await.unwrap();
    let delegated = RetryRefusal::Delegated { run: other.run.id };
    assert_eq!(retried, Retried::Refused(delegated));
}

pub(crate) async fn children_end_with_their_parent(store: AnyStore) {
    let parent = working(&store, 1).await;
    let queued = delegated(&store, &parent, child(1, 10, 1)).await;
    let run = next(&store, 3).await.unwrap();
    executing(&store, &run, 3).await;
    let below = delegated(&store, &run, child(2, 5, 1)).await;
    // The parent's host is lost: its children are its attempt's, not its task's.
    done(&store, &parent.run.id, Some(1), RunEvent::HostLost, 4).await;
    let _ = store.settle(&parent.run.id, 1, at(5)).await.unwrap();
    assert!(store.run(&run.run.id).await.unwrap().cancel.is_some());
    assert!(store.task(&queued.id).await.unwrap().cancel.is_some());
    assert_eq!(store.task(&below.id).await.unwrap().state.name(), "cancelled");
    assert_eq!(store.run(below.state.run()).await.unwrap().state.name(), StateName::Cancelled);
}

pub(crate) async fn a_stopping_parent_delegates_nothing(store: AnyStore) {
    let parent = working(&store, 1).await;
    let _ = store.request_cancel(&parent.run.id, "ada", at(2)).await.unwrap();
    let late = delegate(&store, &parent, child(1, 10, 1)).await;
    assert_eq!(late, Delegated::Lost(Lost::Stopping));
    let limits = DelegationLimits::default();
    let stale = store.delegate(&parent.run.id, 7, child(2, 10, 1), limits, at(2)).await.unwrap();
    assert_eq!(stale, Delegated::Lost(Lost::Epoch { current: 1 }));
}
