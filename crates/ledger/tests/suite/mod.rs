//! What every store must do. Written against the trait; each backend runs all of it.

pub(crate) mod approvals;
pub(crate) mod bounds;
pub(crate) mod catalogue;
pub(crate) mod fixtures;
pub(crate) mod lists;
pub(crate) mod queue;
pub(crate) mod races;
pub(crate) mod runs;
pub(crate) mod stream;
pub(crate) mod tasks;
pub(crate) mod trees;
pub(crate) mod triggers;

/// Makes one test per fact, each on a fresh store that `$open` gives.
macro_rules! store_suite {
    ($open:path: $($module:ident :: $fact:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $fact() {
                let (store, _keep) = $open().await;
                suite::$module::$fact(store).await;
            }
        )*
    };
}
pub(crate) use store_suite;

use std::sync::Arc;

use cofferdam_ledger::{Appended, Applied, Durable};
use cofferdam_run::spec::Mode;
use cofferdam_run::{Action, Lease, Run, RunEvent, RunId};

use fixtures::{TTL_MS, at, good_facts, new_run, run_id, to_executing};

pub(crate) type AnyStore = Arc<dyn Durable>;

/// Applies an event that must succeed.
pub(crate) async fn done(
    store: &AnyStore,
    id: &RunId,
    epoch: Option<u64>,
    event: RunEvent,
    ms: u64,
) -> (Run, Vec<Action>) {
    match store.apply(id, epoch, event, at(ms)).await.unwrap() {
        Applied::Done { run, actions, .. } => (*run, actions),
        other => panic!("not done: {other:?}"),
    }
}

/// A run that is claimed at 0 until `TTL_MS`.
pub(crate) async fn claimed(store: &AnyStore, n: u32, mode: Mode) -> (RunId, Lease) {
    store.create_run(new_run(n, mode)).await.unwrap();
    let lease = store.claim(&run_id(n), "owner", at(0), TTL_MS).await.unwrap().unwrap();
    (run_id(n), lease)
}

pub(crate) async fn executing(store: &AnyStore, n: u32, mode: Mode) -> (RunId, u64) {
    let (id, lease) = claimed(store, n, mode).await;
    for event in to_executing() {
        done(store, &id, Some(lease.epoch), event, 1).await;
    }
    (id, lease.epoch)
}

/// A run with every good fact, ready to be settled as completed.
pub(crate) async fn collected(store: &AnyStore, n: u32) -> (RunId, u64) {
    let (id, epoch) = executing(store, n, Mode::Unattended).await;
    for fact in good_facts(Mode::Unattended) {
        let kept = store.append_fact(&id, epoch, at(2), fact).await.unwrap();
        assert!(matches!(kept, Appended::Kept { .. }));
    }
    done(store, &id, Some(epoch), RunEvent::AgentEnded, 3).await;
    (id, epoch)
}

/// Sequence numbers of all events: 1, 2, 3, … without a gap.
pub(crate) async fn assert_gapless(store: &AnyStore, id: &RunId) -> u64 {
    let events = store.events(id, 0, u32::MAX).await.unwrap();
    for (place, event) in (1u64..).zip(&events) {
        assert_eq!(event.seq, place);
    }
    events.len() as u64
}
