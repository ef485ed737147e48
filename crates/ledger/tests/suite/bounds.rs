//! Bounds: what a guest can cause without end is counted, and nothing is dropped silently.

use cofferdam_ledger::limits::{
    MAX_BATCH, MAX_FACT_BYTES, MAX_OUTPUT_CHUNK_BYTES, MAX_SINGLE_FACTS, MAX_TITLE_CHARS,
};
use cofferdam_ledger::{
    Appended, EventBody, Item, ListFilter, Lost, NewRun, OutputStream, Settlement,
};
use cofferdam_run::fact::Fact;
use cofferdam_run::spec::Mode;
use cofferdam_run::{Cause, verify};

use super::fixtures::{at, new_run, run_id};
use super::{AnyStore, assert_gapless, claimed, collected, done};

pub(crate) async fn output_is_kept_up_to_the_budget_and_counted_past_it(store: AnyStore) {
    let mut new = new_run(1, Mode::Unattended);
    new.spec.budgets.output_bytes = 10;
    store.create_run(new).await.unwrap();
    let id = run_id(1);
    let epoch = store.claim(&id, "owner", at(0), 1_000).await.unwrap().unwrap().epoch;
    let write = |text: &'static str, stream| {
        let (store, id) = (store.clone(), id.clone());
        async move { store.append_output(&id, epoch, at(1), stream, text.into()).await.unwrap() }
    };
    assert!(matches!(write("hello ", OutputStream::Stdout).await, Appended::Kept { .. }));
    assert_eq!(write("world", OutputStream::Stderr).await, Appended::Counted);
    assert_eq!(write("more", OutputStream::Stdout).await, Appended::Counted);
    assert_eq!(store.output_cut_bytes(&id).await.unwrap(), 5);
    let kept: Vec<_> = store
        .events(&id, 0, 100)
        .await
        .unwrap()
        .into_iter()
        .filter_map(|e| match e.body {
            EventBody::Output { stream, bytes } => {
                Some((stream, String::from_utf8(bytes).unwrap()))
            }
            EventBody::Transition { .. } | EventBody::Fact(_) => None,
        })
        .collect();
    assert_eq!(
        kept,
        [(OutputStream::Stdout, "hello ".to_owned()), (OutputStream::Stderr, "worl".to_owned())]
    );
    assert_gapless(&store, &id).await;
}

pub(crate) async fn a_large_chunk_of_output_becomes_several_events(store: AnyStore) {
    let (id, lease) = claimed(&store, 1, Mode::Unattended).await;
    let bytes: Vec<u8> = (0..=250).cycle().take(MAX_OUTPUT_CHUNK_BYTES * 2 + 5).collect();
    let kept = store
        .append_output(&id, lease.epoch, at(1), OutputStream::Stdout, bytes.clone())
        .await
        .unwrap();
    assert_eq!(kept, Appended::Kept { seq: 4 });
    let joined: Vec<u8> = store
        .events(&id, 0, 100)
        .await
        .unwrap()
        .into_iter()
        .filter_map(|e| match e.body {
            EventBody::Output { bytes, .. } => Some(bytes),
            EventBody::Transition { .. } | EventBody::Fact(_) => None,
        })
        .flatten()
        .collect();
    assert_eq!(joined, bytes);
}

pub(crate) async fn an_oversized_repeatable_fact_is_counted_and_still_judged(store: AnyStore) {
    let (id, epoch) = collected(&store, 1).await;
    let question = Fact::PromptUnanswered { text: "x".repeat(MAX_FACT_BYTES) };
    for _ in 0..3 {
        let appended = store.append_fact(&id, epoch, at(4), question.clone()).await.unwrap();
        assert_eq!(appended, Appended::Counted);
    }
    let Settlement::Done { record, .. } = store.settle(&id, epoch, at(5)).await.unwrap() else {
        panic!("not settled");
    };
    assert_eq!(record.verdict.cause, Some(Cause::PromptsUnanswered { count: 3 }));
    verify(&store.record(&id).await.unwrap().unwrap()).unwrap();
}

pub(crate) async fn other_facts_past_their_bounds_are_refused(store: AnyStore) {
    let (id, lease) = claimed(&store, 1, Mode::Unattended).await;
    let large = Fact::Note { text: "x".repeat(MAX_FACT_BYTES) };
    let error = store.append_fact(&id, lease.epoch, at(1), large).await.unwrap_err();
    assert_eq!(error.code(), "LEDGER-010");
    let mut writes = Vec::new();
    for _ in 0..=MAX_SINGLE_FACTS {
        let (store, id) = (store.clone(), id.clone());
        let note = Fact::Note { text: "x".into() };
        writes.push(tokio::spawn(async move {
            store.append_fact(&id, lease.epoch, at(1), note).await.map_err(|e| e.code())
        }));
    }
    let mut refused = 0;
    for write in writes {
        match write.await.unwrap() {
            Ok(appended) => assert!(matches!(appended, Appended::Kept { .. })),
            Err(code) => {
                assert_eq!(code, "LEDGER-010");
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 1);
    assert_eq!(assert_gapless(&store, &id).await, 1 + MAX_SINGLE_FACTS);
    // And the run can still end.
    let stop = cofferdam_run::RunEvent::StopRequested {
        cause: cofferdam_run::StopCause::HostError { detail: "too many facts".into() },
    };
    done(&store, &id, Some(lease.epoch), stop, 2).await;
    let settled = store.settle(&id, lease.epoch, at(3)).await.unwrap();
    assert!(matches!(settled, Settlement::Done { .. }), "{settled:?}");
}

pub(crate) async fn a_batch_answers_for_each_item(store: AnyStore) {
    let (id, lease) = claimed(&store, 1, Mode::Unattended).await;
    let note = |text: String| (at(1), Item::Fact(Box::new(Fact::Note { text })));
    let question = Fact::PromptUnanswered { text: "x".repeat(MAX_FACT_BYTES) };
    let items = vec![
        note("first".into()),
        note("x".repeat(MAX_FACT_BYTES)),
        (at(2), Item::Fact(Box::new(question))),
        (at(3), Item::Output { stream: OutputStream::Stdout, bytes: b"hello".to_vec() }),
        note("last".into()),
    ];
    let answers = store.append_batch(&id, lease.epoch, items.clone()).await.unwrap();
    assert_eq!(answers.len(), 5);
    assert!(matches!(answers[0], Ok(Appended::Kept { seq: 2 })));
    assert!(matches!(&answers[1], Err(e) if e.code() == "LEDGER-010"));
    assert!(matches!(answers[2], Ok(Appended::Counted)));
    assert!(matches!(answers[3], Ok(Appended::Kept { seq: 3 })));
    assert!(matches!(answers[4], Ok(Appended::Kept { seq: 4 })));
    assert_eq!(assert_gapless(&store, &id).await, 4);

    let late = store.append_batch(&id, lease.epoch + 1, items).await.unwrap();
    for answer in late {
        let lost = Lost::Epoch { current: lease.epoch };
        assert_eq!(answer.unwrap(), Appended::Lost(lost));
    }
    assert_eq!(assert_gapless(&store, &id).await, 4);
}

pub(crate) async fn a_batch_without_bound_is_refused(store: AnyStore) {
    let (id, lease) = claimed(&store, 1, Mode::Unattended).await;
    let item = (at(1), Item::Output { stream: OutputStream::Stdout, bytes: vec![b'x'] });
    let batch = store.append_batch(&id, lease.epoch, vec![item; MAX_BATCH + 1]).await;
    assert_eq!(batch.unwrap_err().code(), "LEDGER-010");
    assert_eq!(assert_gapless(&store, &id).await, 1);
}

pub(crate) async fn titles_are_cut_by_characters(store: AnyStore) {
    let title = "é".repeat(MAX_TITLE_CHARS + 50);
    store.create_run(NewRun { title, ..new_run(1, Mode::Unattended) }).await.unwrap();
    let row = store.list(ListFilter::default(), 1).await.unwrap().remove(0);
    assert_eq!(row.title.chars().count(), MAX_TITLE_CHARS);
}

pub(crate) async fn a_specification_without_bound_is_refused(store: AnyStore) {
    let mut new = new_run(1, Mode::Unattended);
    new.spec.task = "x".repeat(2 << 20);
    assert_eq!(store.create_run(new).await.unwrap_err().code(), "LEDGER-010");
    assert_eq!(store.list(ListFilter::default(), 1).await.unwrap(), []);
}
