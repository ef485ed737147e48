//! Following a run: nothing is missed over a reconnect, and the end is told.

use cofferdam_ledger::{Appended, Applied, NewRun, OutputStream, Settlement};
use cofferdam_run::fact::{Fact, StopCause};
use cofferdam_run::{RunEvent, RunId, StateName, TimestampMs};

use super::*;
use crate::client::{Client, Told};
use crate::types::EventKind;

/// A run in the ledger, claimed, with nothing of it running.
async fn run(lab: &Lab) -> (RunId, u64) {
    let wish = cofferdam_daemon::wish::RunWish {
        checkout: "/somewhere".to_owned(),
        command: vec!["true".to_owned()],
        ..Default::default()
    };
    let spec = wish.request(Config::default(), &|_| None).unwrap().spec;
    let id = RunId::from_entropy([7; 5]);
    let new = NewRun { id: id.clone(), spec, created_at: TimestampMs(1), title: "t".to_owned() };
    lab.host.ledger().create_run(new).await.unwrap();
    let now = lab.host.now();
    let lease = lab.host.ledger().claim(&id, "test", now, 600_000).await.unwrap().unwrap();
    (id, lease.epoch)
}

async fn note(lab: &Lab, run: &(RunId, u64), text: &str) {
    let fact = Fact::Note { text: text.to_owned() };
    let kept = lab.host.ledger().append_fact(&run.0, run.1, lab.host.now(), fact).await.unwrap();
    assert!(matches!(kept, Appended::Kept { .. }));
}

fn noted(told: &Told) -> Option<String> {
    let Told::Event(event) = told else { return None };
    let EventKind::Fact { fact } = &event.body else { return None };
    let Fact::Note { text } = fact.as_ref() else { return None };
    Some(text.clone())
}

fn seq(told: &Told) -> u64 {
    match told {
        Told::Event(event) => event.seq,
        Told::End => 0,
    }
}

#[tokio::test]
async fn a_reader_that_comes_back_with_its_last_id_misses_nothing() {
    let lab = Lab::new().await;
    let run = run(&lab).await;
    let client = Client::find(&lab.place()).await.unwrap();
    note(&lab, &run, "one").await;
    let mut events = client.events(&run.0, 0).await.unwrap();
    let mut last = 0;
    loop {
        let told = events.next().await.unwrap().unwrap();
        last = seq(&told).max(last);
        if noted(&told).as_deref() == Some("one") {
            break;
        }
    }
    drop(events);
    // While nobody reads.
    note(&lab, &run, "two").await;
    note(&lab, &run, "three").await;
    let mut events = client.events(&run.0, last).await.unwrap();
    for (n, expected) in (1u64..).zip(["two", "three"]) {
        let told = events.next().await.unwrap().unwrap();
        assert_eq!(noted(&told).as_deref(), Some(expected));
        assert_eq!(seq(&told), last + n);
    }
    // And while it waits.
    note(&lab, &run, "four").await;
    let told = events.next().await.unwrap().unwrap();
    assert_eq!(noted(&told).as_deref(), Some("four"));
    lab.end().await;
}

#[tokio::test]
async fn output_is_told_byte_for_byte_and_the_end_is_told() {
    use base64::Engine as _;
    let lab = Lab::new().await;
    let (id, epoch) = run(&lab).await;
    // The first half of a character, then the second: no chunk is text by itself.
    let ledger = lab.host.ledger();
    for half in [vec![0xe2, 0x82], vec![0xac, 0x00, 0xff]] {
        let now = lab.host.now();
        let kept = ledger.append_output(&id, epoch, now, OutputStream::Stdout, half).await.unwrap();
        assert!(matches!(kept, Appended::Kept { .. }));
    }
    let stopped = RunEvent::StopRequested { cause: StopCause::Cancelled };
    let applied = ledger.apply(&id, Some(epoch), stopped, lab.host.now()).await.unwrap();
    assert!(matches!(applied, Applied::Done { .. }), "{applied:?}");
    let settled = ledger.settle(&id, epoch, lab.host.now()).await.unwrap();
    assert!(matches!(settled, Settlement::Done { .. }), "{settled:?}");
    let client = Client::find(&lab.place()).await.unwrap();
    let mut events = client.events(&id, 0).await.unwrap();
    let mut bytes = Vec::new();
    let mut last_state = None;
    loop {
        match events.next().await.unwrap().expect("the end is told before the stream ends") {
            Told::End => break,
            Told::Event(event) => match event.body {
                EventKind::Output { base64, .. } => {
                    let engine = base64::engine::general_purpose::STANDARD;
                    bytes.extend(engine.decode(base64).unwrap());
                }
                EventKind::Transition { state, .. } => last_state = Some(state),
                EventKind::Fact { .. } => {}
            },
        }
    }
    assert_eq!(bytes, [0xe2, 0x82, 0xac, 0x00, 0xff]);
    assert!(last_state.is_some_and(StateName::is_terminal), "{last_state:?}");
    assert_eq!(events.next().await.unwrap(), None);
    let record = lab.honest(&format!("GET /api/v1/runs/{id}/record"), "").await;
    cofferdam_run::verify(&record.body).unwrap();
    let cancel = lab.honest(&format!("POST /api/v1/runs/{id}/cancel"), "{}").await;
    assert_eq!((cancel.status, cancel.code().as_str()), (409, "API-012"));
    lab.end().await;
}

#[tokio::test]
async fn a_page_says_where_the_next_one_begins() {
    let lab = Lab::new().await;
    let run = run(&lab).await;
    for text in ["one", "two", "three"] {
        note(&lab, &run, text).await;
    }
    let mut seen = Vec::new();
    let mut after = 0;
    loop {
        let line = format!("GET /api/v1/runs/{}/events?after={after}&limit=2", run.0);
        let page = lab.honest(&line, "").await.json();
        assert_eq!(page["complete"], false);
        let events = page["events"].as_array().unwrap().clone();
        if events.is_empty() {
            break;
        }
        seen.extend(events.iter().map(|e| e["seq"].as_u64().unwrap()));
        after = page["after"].as_u64().unwrap();
    }
    let expected: Vec<u64> = (1..=u64::try_from(seen.len()).unwrap()).collect();
    assert_eq!(seen, expected);
    assert!(seen.len() >= 4);
    lab.end().await;
}

#[tokio::test]
async fn a_prefix_names_a_run_and_a_stranger_none() {
    let lab = Lab::new().await;
    let run = run(&lab).await;
    let line = format!("GET /api/v1/runs/{}", &run.0.as_str()[..3]);
    let found = lab.honest(&line, "").await.json();
    assert_eq!(found["run"], run.0.as_str());
    assert_eq!(found["spec"]["agent"]["argv"][0], "true");
    let bad = lab.honest(&format!("GET /api/v1/runs/{}/stream", "zzzzzzzz"), "").await;
    assert_eq!(bad.status, 404, "{bad:?}");
    lab.end().await;
}
