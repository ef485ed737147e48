//! The log over all runs, and what is dropped from it.

use std::collections::BTreeSet;

use cofferdam_ledger::store::stream::{EventFilter, Rebase, Retention};
use cofferdam_ledger::{EventBody, OutputStream};
use cofferdam_run::fact::Fact;
use cofferdam_run::spec::Mode;
use cofferdam_run::{StateName, verify};
use tokio::task::JoinSet;

use super::fixtures::{at, run_id};
use super::{AnyStore, collected, executing};

const DAY: u64 = 24 * 60 * 60 * 1000;

pub(crate) async fn ids_grow_over_all_runs_in_the_order_of_commits(store: AnyStore) {
    let mut writing = JoinSet::new();
    for n in 0..8 {
        let store = store.clone();
        writing.spawn(async move {
            let (id, epoch) = executing(&store, n, Mode::Unattended).await;
            for text in 0..20 {
                let fact = Fact::Note { text: text.to_string() };
                let _ = store.append_fact(&id, epoch, at(2), fact).await.unwrap();
            }
        });
    }
    // Read while it is written: nothing appears behind the cursor.
    let (mut cursor, mut seen) = (0, Vec::new());
    while writing.join_next().await.is_some() {
        let page = store.events_after(cursor, EventFilter::default(), 7).await.unwrap();
        assert_eq!(page.rebase, None);
        cursor = page.cursor;
        seen.extend(page.events);
    }
    loop {
        let page = store.events_after(cursor, EventFilter::default(), 1_000).await.unwrap();
        cursor = page.cursor;
        let more = page.more;
        seen.extend(page.events);
        if !more {
            break;
        }
    }
    assert_eq!(seen.len(), 8 * 25);
    assert!(seen.windows(2).all(|w| w[0].id < w[1].id));
    let each: BTreeSet<_> = seen.iter().map(|e| (e.run.clone(), e.event.seq)).collect();
    assert_eq!(each.len(), seen.len());
    assert_eq!(store.last_event().await.unwrap(), seen.last().unwrap().id);
}

pub(crate) async fn a_stream_is_taken_up_where_it_was(store: AnyStore) {
    let (first, epoch) = executing(&store, 1, Mode::Unattended).await;
    executing(&store, 2, Mode::Unattended).await;
    let _ = store
        .append_output(&first, epoch, at(2), OutputStream::Stdout, b"hello".to_vec())
        .await
        .unwrap();
    let all = store.events_after(0, EventFilter::default(), 100).await.unwrap().events;
    for (place, event) in all.iter().enumerate() {
        let rest = store.events_after(event.id, EventFilter::default(), 100).await.unwrap();
        assert_eq!(rest.events, all[place + 1..]);
        assert!(!rest.more);
    }
    let of_first = EventFilter { run: Some(first.clone()), ..Default::default() };
    let whole = store.events_after(0, of_first.clone(), 100).await.unwrap().events;
    let expected: Vec<_> = all.iter().filter(|e| e.run == first).cloned().collect();
    assert_eq!(whole, expected);
    for (place, event) in whole.iter().enumerate() {
        let rest = store.events_after(event.id, of_first.clone(), 100).await.unwrap();
        assert_eq!(rest.events, whole[place + 1..]);
    }
    let transitions = EventFilter { transitions_only: true, ..Default::default() };
    let page = store.events_after(0, transitions, 100).await.unwrap();
    assert!(page.events.iter().all(|e| matches!(e.event.body, EventBody::Transition { .. })));
    // The cursor passes what does not match, too.
    assert_eq!(page.cursor, all.last().unwrap().id);
    let past = store.events_after(u64::MAX, EventFilter::default(), 100).await.unwrap();
    assert_eq!((past.events.len(), past.cursor), (0, u64::MAX));
}

pub(crate) async fn compaction_says_so_and_keeps_the_record(store: AnyStore) {
    let (id, epoch) = collected(&store, 1).await;
    let _ = store.settle(&id, epoch, at(4)).await.unwrap();
    let (facts, record) = (store.facts(&id).await.unwrap(), store.record(&id).await.unwrap());
    let last = store.last_event().await.unwrap();
    let retention = Retention { events_ms: DAY, ..Retention::default() };
    let early = store.compact(retention, at(DAY)).await.unwrap();
    assert_eq!(early.runs, []);
    let compacted = store.compact(retention, at(DAY + 5)).await.unwrap();
    assert_eq!((compacted.runs, compacted.events), (vec![id.clone()], last));
    // Once.
    assert_eq!(store.compact(retention, at(DAY + 6)).await.unwrap().runs, []);
    assert_eq!(store.events(&id, 0, 100).await.unwrap(), []);
    assert_eq!(store.facts(&id).await.unwrap(), facts);
    assert_eq!(store.record(&id).await.unwrap(), record);
    verify(&record.unwrap()).unwrap();
    assert_eq!(store.run(&id).await.unwrap().state.name(), StateName::Completed);
    // Who had seen less than all is told, whoever had seen all is not.
    let of_run = EventFilter { run: Some(id), ..Default::default() };
    for filter in [EventFilter::default(), of_run] {
        let page = store.events_after(last - 1, filter.clone(), 100).await.unwrap();
        assert_eq!(page.rebase, Some(Rebase { through: last }));
        assert_eq!(store.events_after(last, filter, 100).await.unwrap().rebase, None);
    }
    // Ids are not given a second time.
    executing(&store, 2, Mode::Unattended).await;
    let page = store.events_after(last, EventFilter::default(), 100).await.unwrap();
    assert_eq!((page.events[0].id, page.rebase), (last + 1, None));
}

pub(crate) async fn what_is_not_over_is_not_compacted(store: AnyStore) {
    executing(&store, 1, Mode::Unattended).await;
    for n in 2..5 {
        store.create_run(super::fixtures::new_run(n, Mode::Unattended)).await.unwrap();
        let _ = store.request_cancel(&run_id(n), "ada", at(1)).await.unwrap();
    }
    let retention = Retention { batch: 2, ..Retention::default() };
    let far = at(1_000 * DAY);
    let first = store.compact(retention, far).await.unwrap();
    assert_eq!((first.runs.len(), first.more), (2, true));
    let second = store.compact(retention, far).await.unwrap();
    assert_eq!((second.runs.len(), second.more), (1, false));
    assert_eq!(store.events(&run_id(1), 0, 100).await.unwrap().len(), 5);
}
