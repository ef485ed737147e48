//! The queue: one claim per run, limits, fairness, priorities.

use std::collections::BTreeSet;

use cofferdam_ledger::store::work::{ClaimLimits, NewTask};
use cofferdam_run::project::Switches;
use cofferdam_run::spec::Mode;
use tokio::task::JoinSet;

use super::AnyStore;
use super::fixtures::{TTL_MS, at};
use super::tasks::{complete, created, new_task, project, thread};

const ALL: Switches = Switches { unattended: true, scheduled: true, remote: true };

async fn claim(store: &AnyStore, limits: ClaimLimits, ms: u64) -> Option<String> {
    let claimed = store.claim_next("owner", limits, at(ms), TTL_MS).await.unwrap()?;
    Some(claimed.run.spec.task)
}

fn limits(daemon: u32, project: u32) -> ClaimLimits {
    ClaimLimits { daemon, project, agent: 1_000, tasks_only: false }
}

pub(crate) async fn of_two_hundred_claimants_each_gets_another_run(store: AnyStore) {
    for n in 0..150 {
        created(&store, new_task(n, Mode::Unattended)).await;
    }
    let mut claimants = JoinSet::new();
    for n in 0..200 {
        let store = store.clone();
        claimants.spawn(async move {
            let owner = format!("claimant {n}");
            store.claim_next(&owner, limits(1_000, 1_000), at(1), TTL_MS).await.unwrap()
        });
    }
    let mut runs = BTreeSet::new();
    let mut nothing = 0;
    while let Some(claimed) = claimants.join_next().await {
        match claimed.unwrap() {
            Some(claimed) => {
                assert_eq!(claimed.lease.epoch, 1);
                assert!(runs.insert(claimed.run.id), "claimed twice");
            }
            None => nothing += 1,
        }
    }
    assert_eq!((runs.len(), nothing), (150, 50));
}

pub(crate) async fn limits_hold_and_free_again(store: AnyStore) {
    let id = project(&store, 1, ALL).await;
    for n in 0..4 {
        created(&store, NewTask { project: Some(id.clone()), ..new_task(n, Mode::Unattended) })
            .await;
    }
    for n in 4..6 {
        created(&store, new_task(n, Mode::Unattended)).await;
    }
    let tight = ClaimLimits { daemon: 3, project: 2, agent: 1, tasks_only: false };
    let first = store.claim_next("owner", tight, at(1), TTL_MS).await.unwrap().unwrap();
    assert!(claim(&store, tight, 1).await.is_some());
    assert!(claim(&store, tight, 1).await.is_some());
    // The daemon is full.
    assert_eq!(claim(&store, tight, 1).await, None);
    complete(&store, &first, 2).await;
    assert!(claim(&store, tight, 3).await.is_some());
    assert_eq!(claim(&store, tight, 3).await, None);
    // With more room each project is still bounded by itself: two of each at once.
    let live = limits(100, 2);
    while claim(&store, live, 4).await.is_some() {}
    let live = store
        .list(cofferdam_ledger::ListFilter { live_only: true, ..Default::default() }, 100)
        .await
        .unwrap();
    let held = live.iter().filter(|r| r.state.as_str() == "preparing").count();
    assert!((3..=4).contains(&held), "{held}");
    // A project may say so itself.
    let change = cofferdam_ledger::store::catalogue::ProjectChange {
        max_parallel: Some(Some(4)),
        ..Default::default()
    };
    let _ = store.change_project(&id, change).await.unwrap();
    assert!(claim(&store, limits(100, 2), 5).await.is_some());
}

pub(crate) async fn projects_take_turns_and_priority_orders_within(store: AnyStore) {
    let (a, b) = (project(&store, 1, ALL).await, project(&store, 2, ALL).await);
    for n in 0..6 {
        let priority = if n == 5 { 10 } else { 0 };
        let new = NewTask { priority, project: Some(a.clone()), ..new_task(n, Mode::Unattended) };
        created(&store, new).await;
    }
    for n in 10..12 {
        created(&store, NewTask { project: Some(b.clone()), ..new_task(n, Mode::Unattended) })
            .await;
    }
    let mut order = Vec::new();
    while let Some(task) = claim(&store, limits(100, 100), 1).await {
        order.push(task.trim_start_matches("task ").to_owned());
    }
    // The flood of one project does not keep the other waiting; its urgent task is its first.
    assert_eq!(order, ["5", "10", "0", "11", "1", "2", "3", "4"]);
}

pub(crate) async fn waiting_raises_a_task(store: AnyStore) {
    created(&store, new_task(1, Mode::Unattended)).await;
    let later = NewTask { priority: 5, created_at: at(600_000), ..new_task(2, Mode::Unattended) };
    created(&store, later).await;
    // After ten minutes the first has risen by ten steps.
    assert_eq!(claim(&store, limits(9, 9), 600_001).await.as_deref(), Some("task 1"));
}

pub(crate) async fn of_many_claimants_one_gets_the_thread(store: AnyStore) {
    let thread = thread(&store, None).await;
    for n in 0..20 {
        created(&store, NewTask { thread: Some(thread.clone()), ..new_task(n, Mode::Unattended) })
            .await;
    }
    let mut claimants = JoinSet::new();
    for _ in 0..50 {
        let store = store.clone();
        claimants.spawn(async move {
            store.claim_next("owner", limits(1_000, 1_000), at(1), TTL_MS).await.unwrap()
        });
    }
    let mut claimed = Vec::new();
    while let Some(answer) = claimants.join_next().await {
        claimed.extend(answer.unwrap());
    }
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].run.spec.task, "task 0");
}
