//! Schedules and deliveries: nothing happens twice.

use cofferdam_ledger::store::triggers::{Received, Schedule, SlotOutcome};
use cofferdam_ledger::store::work::{ClaimLimits, CreateRefusal, NewTask};
use cofferdam_run::project::Switches;
use cofferdam_run::schedule::{Missed, Overlap, Timing};
use cofferdam_run::spec::Mode;
use cofferdam_run::trigger::Delivery;
use cofferdam_run::{Actor, ProjectId, ScheduleId};
use tokio::task::JoinSet;

use super::AnyStore;
use super::fixtures::{TTL_MS, at, spec};
use super::tasks::{complete, new_task, project};

const HOUR: u64 = 3_600_000;
const ALL: Switches = Switches { unattended: true, scheduled: true, remote: true };

async fn schedule(
    store: &AnyStore,
    project: &ProjectId,
    n: u8,
    missed: Missed,
    overlap: Overlap,
) -> Schedule {
    let mut spec = spec(Mode::Unattended);
    spec.task = "look after it".into();
    let timing = Timing {
        cron: "@hourly".parse().unwrap(),
        zone: "Europe/Berlin".parse().unwrap(),
        missed,
        overlap,
    };
    let new = Schedule {
        id: ScheduleId::from_entropy([n; 5]),
        project: project.clone(),
        title: "hourly".into(),
        timing,
        spec,
        retry: Default::default(),
        agent: None,
        priority: 0,
        enabled: true,
        created_at: at(1),
        next_at: None,
    };
    store.create_schedule(new).await.unwrap()
}

async fn fire(store: &AnyStore, ms: u64) -> Vec<(u64, SlotOutcome)> {
    let slots = store.fire_due(at(ms), 100).await.unwrap();
    slots.into_iter().map(|s| (s.at.0, s.outcome)).collect()
}

pub(crate) async fn of_many_schedulers_a_slot_fires_once(store: AnyStore) {
    let project = project(&store, 1, ALL).await;
    let made = schedule(&store, &project, 1, Missed::Skip, Overlap::Queue).await;
    assert_eq!(made.next_at, Some(at(HOUR)));
    assert_eq!(store.next_slot().await.unwrap(), Some(at(HOUR)));
    assert_eq!(fire(&store, HOUR - 1).await, []);
    let mut firing = JoinSet::new();
    for _ in 0..50 {
        let store = store.clone();
        firing.spawn(async move { fire(&store, HOUR + 5).await });
    }
    let mut fired = Vec::new();
    while let Some(slots) = firing.join_next().await {
        fired.extend(slots.unwrap());
    }
    assert_eq!(fired.len(), 1);
    let (slot, SlotOutcome::Fired { task }) = fired.remove(0) else { panic!() };
    assert_eq!(slot, HOUR);
    let task = store.task(&task).await.unwrap();
    assert_eq!(task.origin, Actor::Schedule(made.id.clone()));
    assert_eq!(store.next_slot().await.unwrap(), Some(at(2 * HOUR)));
    assert_eq!(store.slots(&made.id, 10).await.unwrap().len(), 1);
}

pub(crate) async fn a_slot_during_an_earlier_task_is_skipped(store: AnyStore) {
    let project = project(&store, 1, ALL).await;
    schedule(&store, &project, 1, Missed::Skip, Overlap::Skip).await;
    assert!(matches!(fire(&store, HOUR).await[..], [(_, SlotOutcome::Fired { .. })]));
    assert_eq!(fire(&store, 2 * HOUR).await, [(2 * HOUR, SlotOutcome::Overlap)]);
    let limits = ClaimLimits::default();
    let claimed = store.claim_next("o", limits, at(2 * HOUR), TTL_MS).await.unwrap().unwrap();
    complete(&store, &claimed, 2 * HOUR).await;
    assert!(matches!(fire(&store, 3 * HOUR).await[..], [(_, SlotOutcome::Fired { .. })]));
}

pub(crate) async fn slots_that_nobody_was_there_for_are_noted(store: AnyStore) {
    let project = project(&store, 1, ALL).await;
    let skip = schedule(&store, &project, 1, Missed::Skip, Overlap::Queue).await;
    schedule(&store, &project, 2, Missed::Latest, Overlap::Queue).await;
    schedule(&store, &project, 3, Missed::All { max: 3 }, Overlap::Queue).await;
    let fired = fire(&store, 10 * HOUR + HOUR / 2).await;
    assert_eq!(fired[0], (10 * HOUR, SlotOutcome::Missed));
    let made = |slots: &[(u64, SlotOutcome)]| {
        slots.iter().filter(|(_, o)| matches!(o, SlotOutcome::Fired { .. })).count()
    };
    assert_eq!((fired.len(), made(&fired)), (5, 4));
    assert_eq!(fire(&store, 10 * HOUR + HOUR / 2 + 1).await, []);
    assert_eq!(store.schedule(&skip.id).await.unwrap().next_at, Some(at(11 * HOUR)));
}

pub(crate) async fn a_project_without_the_switch_fires_nothing(store: AnyStore) {
    let off = Switches { scheduled: false, ..ALL };
    let project = project(&store, 1, off).await;
    schedule(&store, &project, 1, Missed::Skip, Overlap::Queue).await;
    let fired = fire(&store, HOUR).await;
    let (_, SlotOutcome::Refused(CreateRefusal::SwitchedOff(off))) = &fired[0] else {
        panic!("{fired:?}")
    };
    assert_eq!(off.switch, "scheduled");
}

pub(crate) async fn a_schedule_that_is_off_makes_up_for_nothing(store: AnyStore) {
    let project = project(&store, 1, ALL).await;
    let made = schedule(&store, &project, 1, Missed::All { max: 9 }, Overlap::Queue).await;
    let off = store.enable_schedule(&made.id, false, at(2)).await.unwrap();
    assert_eq!((off.enabled, off.next_at), (false, None));
    assert_eq!(fire(&store, 5 * HOUR).await, []);
    let on = store.enable_schedule(&made.id, true, at(5 * HOUR + 1)).await.unwrap();
    assert_eq!(on.next_at, Some(at(6 * HOUR)));
    assert_eq!(fire(&store, 6 * HOUR).await.len(), 1);
    let all = store.schedules(Some(project), Default::default()).await.unwrap();
    assert_eq!(all.items.len(), 1);
}

pub(crate) async fn a_delivery_makes_one_task(store: AnyStore) {
    let project = project(&store, 1, ALL).await;
    let new = |n| NewTask {
        project: Some(project.clone()),
        origin: Actor::Webhook("github/acme".into()),
        ..new_task(n, Mode::Unattended)
    };
    let delivery = |id: &str, version: &str| {
        Delivery::new("github/acme", id, Some(("issue/42", version))).unwrap()
    };
    let mut receiving = JoinSet::new();
    for n in 0..50 {
        let (store, delivery, new) = (store.clone(), delivery("d1", "v1"), new(n));
        receiving.spawn(async move { store.receive(delivery, new).await.unwrap() });
    }
    let (mut made, mut again) = (Vec::new(), 0);
    while let Some(received) = receiving.join_next().await {
        match received.unwrap() {
            Received::New(task) => made.push(task.id),
            Received::Again { .. } => again += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((made.len(), again), (1, 49));
    let task = made.remove(0);
    let same = store.receive(delivery("d2", "v1"), new(100)).await.unwrap();
    assert_eq!(same, Received::SameVersion { task: task.clone() });
    let same = store.receive(delivery("d2", "v1"), new(101)).await.unwrap();
    assert_eq!(same, Received::Again { task });
    let newer = store.receive(delivery("d3", "v2"), new(102)).await.unwrap();
    assert!(matches!(newer, Received::New(_)));
}
