//! Many at once: exactly one wins, and numbers have no gaps.

use cofferdam_ledger::{Appended, Applied, CancelOutcome, Settlement};
use cofferdam_run::fact::Fact;
use cofferdam_run::spec::Mode;
use cofferdam_run::{RunEvent, StateName};

use super::fixtures::{TTL_MS, at, new_run, run_id};
use super::{AnyStore, assert_gapless, collected, done, executing};

pub(crate) async fn of_a_thousand_appliers_one_wins(store: AnyStore) {
    let (id, epoch) = executing(&store, 1, Mode::Supervised).await;
    done(&store, &id, Some(epoch), RunEvent::BudgetReached { budget: "tokens".into() }, 2).await;
    let before = assert_gapless(&store, &id).await;
    let mut tasks = Vec::new();
    for n in 0..1_000 {
        let (store, id) = (store.clone(), id.clone());
        let event = RunEvent::Resumed { by: format!("person {n}") };
        tasks
            .push(tokio::spawn(async move { store.apply(&id, None, event, at(3)).await.unwrap() }));
    }
    let mut winners = 0;
    for task in tasks {
        match task.await.unwrap() {
            Applied::Done { .. } => winners += 1,
            Applied::Illegal(_) => {}
            Applied::Lost(lost) => panic!("{lost:?}"),
        }
    }
    assert_eq!(winners, 1);
    assert_eq!(assert_gapless(&store, &id).await, before + 1);
}

pub(crate) async fn of_a_hundred_claimants_one_wins(store: AnyStore) {
    store.create_run(new_run(1, Mode::Unattended)).await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..100 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            store.claim(&run_id(1), &format!("owner {n}"), at(0), TTL_MS).await.unwrap()
        }));
    }
    let mut leases = Vec::new();
    for task in tasks {
        leases.extend(task.await.unwrap());
    }
    assert_eq!(leases.len(), 1);
    assert_eq!(store.run(&run_id(1)).await.unwrap().state.lease(), leases.first());
}

pub(crate) async fn sequences_have_no_gaps_under_concurrency(store: AnyStore) {
    let (first, epoch) = executing(&store, 1, Mode::Unattended).await;
    let (second, other) = executing(&store, 2, Mode::Unattended).await;
    let mut tasks = Vec::new();
    for n in 0..400u32 {
        let store = store.clone();
        let (id, epoch) = if n % 2 == 0 { (first.clone(), epoch) } else { (second.clone(), other) };
        tasks.push(tokio::spawn(async move {
            // Every eighth is refused, inside the same groups as the others.
            if n % 8 == 7 {
                let refused = store.apply(&id, Some(epoch), RunEvent::GuestReady, at(2)).await;
                assert!(matches!(refused, Ok(Applied::Illegal(_))));
                return None;
            }
            let note = Fact::Note { text: n.to_string() };
            match store.append_fact(&id, epoch, at(2), note).await.unwrap() {
                Appended::Kept { seq } => Some((id, seq)),
                other => panic!("{other:?}"),
            }
        }));
    }
    let mut kept = Vec::new();
    for task in tasks {
        kept.extend(task.await.unwrap());
    }
    for id in [first, second] {
        let mut seqs: Vec<u64> =
            kept.iter().filter(|(of, _)| *of == id).map(|(_, seq)| *seq).collect();
        seqs.sort_unstable();
        let expected: Vec<u64> = (6..6 + seqs.len() as u64).collect();
        assert_eq!(seqs, expected);
        assert_eq!(assert_gapless(&store, &id).await, 5 + seqs.len() as u64);
    }
}

pub(crate) async fn cancel_and_settle_at_once_agree(store: AnyStore) {
    for n in 0..20 {
        let (id, epoch) = collected(&store, n).await;
        let (a, b) = (store.clone(), store.clone());
        let (for_cancel, for_settle) = (id.clone(), id.clone());
        let cancel =
            tokio::spawn(async move { a.request_cancel(&for_cancel, "ada", at(4)).await.unwrap() });
        let settle =
            tokio::spawn(async move { b.settle(&for_settle, epoch, at(4)).await.unwrap() });
        let (cancel, settle) = (cancel.await.unwrap(), settle.await.unwrap());
        let Settlement::Done { run, .. } = settle else { panic!("{settle:?}") };
        match cancel {
            CancelOutcome::Requested(_) => assert_eq!(run.state.name(), StateName::Cancelled),
            CancelOutcome::AlreadyOver(state) => {
                assert_eq!((state, run.state.name()), (StateName::Completed, StateName::Completed));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(store.run(&id).await.unwrap(), *run);
    }
}
