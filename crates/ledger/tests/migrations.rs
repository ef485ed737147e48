//! Every earlier format is brought up, with its rows, after a copy was made.
//!
//! `data/format-N.db` was made by the code that wrote format N, and is never made anew.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a step that fails is a test that fails"
)]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cofferdam_ledger::store::approvals::{ApprovalFilter, Approvals as _, Decided};
use cofferdam_ledger::store::stream::{EventFilter, Stream as _};
use cofferdam_ledger::store::work::{ClaimLimits, Work as _};
use cofferdam_ledger::{Applied, EventBody, Ledger, ListFilter, Store as _};
use cofferdam_run::approval::Decision;
use cofferdam_run::{Decider, RunEvent, RunId, StateName, TimestampMs, verify};
use rusqlite::Connection;

const TTL_MS: u64 = 1_000;

fn at(ms: u64) -> TimestampMs {
    TimestampMs(ms)
}

/// The runs of the fixture are numbered.
fn run_id(n: u8) -> RunId {
    RunId::from_entropy([0, 0, 0, n, 7])
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/format-1.db")
}

fn old() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(fixture(), dir.path().join("ledger.db")).unwrap();
    dir
}

fn format(path: &Path) -> i64 {
    let connection = Connection::open(path).unwrap();
    connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

/// Every table, index and trigger, without white space.
fn schema(path: &Path) -> BTreeMap<String, String> {
    let connection = Connection::open(path).unwrap();
    let mut statement = connection
        .prepare("SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_schema")
        .unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?))).unwrap();
    rows.map(|row| {
        let (name, sql) = row.unwrap();
        (name, sql.split_whitespace().collect::<Vec<_>>().join(" "))
    })
    .collect()
}

#[tokio::test]
async fn format_1_is_brought_up_with_every_row() {
    let dir = old();
    let ledger = Ledger::open(dir.path()).await.unwrap();
    let rows = ledger.list(ListFilter::default(), 100).await.unwrap();
    let states: Vec<_> = rows.iter().rev().map(|r| r.state.as_str()).collect();
    assert_eq!(
        states,
        [
            "completed",
            "failed",
            "cancelled",
            "queued",
            "preparing",
            "executing",
            "awaiting_approval",
            "paused",
            "collecting",
            "executing",
        ]
    );
    for row in &rows {
        let run = ledger.run(&row.id).await.unwrap();
        assert_eq!(ledger.task_of(&row.id).await.unwrap(), None);
        let events = ledger.events(&row.id, 0, 10_000).await.unwrap();
        assert!((1..).zip(&events).all(|(n, e)| e.seq == n));
        if let Some(record) = ledger.record(&row.id).await.unwrap() {
            let record = verify(&record).unwrap().record;
            assert_eq!(Some(&record.verdict), run.state.verdict());
            let facts: Vec<_> =
                ledger.facts(&row.id).await.unwrap().into_iter().map(|f| f.1).collect();
            assert!(record.facts().eq(facts.iter()));
        }
    }
    // Output too, byte for byte.
    let failed = ledger.events(&run_id(2), 0, 1_000).await.unwrap();
    let bytes: usize = failed
        .iter()
        .map(|e| if let EventBody::Output { bytes, .. } = &e.body { bytes.len() } else { 0 })
        .sum();
    assert_eq!(bytes, 100_000);
    let page = ledger.events_after(0, EventFilter::default(), 1_000).await.unwrap();
    assert_eq!((page.events.len(), page.rebase), (85, None));
    // A question that was open can be answered, and what was queued can be taken.
    let open = ledger.approvals(ApprovalFilter::default(), Default::default()).await.unwrap();
    let [approval] = &open.items[..] else { panic!("{open:?}") };
    assert_eq!((approval.run.clone(), approval.ask.as_str()), (run_id(7), "a1"));
    let ada = Decider::person("ada").unwrap();
    let decided = ledger.decide(&approval.id, &ada, Decision::Approve, "", at(10)).await.unwrap();
    assert!(matches!(decided, Decided::Counts { .. }));
    let claimed = ledger.claim_next("o", ClaimLimits::default(), at(10), TTL_MS).await.unwrap();
    assert_eq!(claimed.unwrap().run.id, run_id(4));
    let resumed = RunEvent::Resumed { by: "ada".into() };
    let applied = ledger.apply(&run_id(8), None, resumed, at(11)).await.unwrap();
    assert!(matches!(applied, Applied::Done { .. }));
    assert_eq!(ledger.expired(at(TTL_MS + 10)).await.unwrap().len(), 7);
}

#[tokio::test]
async fn a_copy_is_made_first_and_once() {
    let dir = old();
    drop(Ledger::open(dir.path()).await.unwrap());
    drop(Ledger::open(dir.path()).await.unwrap());
    let copies: Vec<_> =
        std::fs::read_dir(dir.path().join("backups")).unwrap().map(|e| e.unwrap().path()).collect();
    let [copy] = &copies[..] else { panic!("{copies:?}") };
    assert_eq!(copy.file_name().unwrap(), "ledger-format-1.db");
    assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(format(copy), 1);
    let rows: i64 = Connection::open(copy)
        .unwrap()
        .query_row("SELECT count(*) FROM events", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, 85);
    // The copy is a whole ledger.
    let again = tempfile::tempdir().unwrap();
    std::fs::copy(copy, again.path().join("ledger.db")).unwrap();
    let ledger = Ledger::open(again.path()).await.unwrap();
    assert_eq!(ledger.run(&run_id(1)).await.unwrap().state.name(), StateName::Completed);
}

#[tokio::test]
async fn an_old_database_ends_with_the_schema_of_a_new_one() {
    let (dir, new) = (old(), tempfile::tempdir().unwrap());
    drop(Ledger::open(dir.path()).await.unwrap());
    drop(Ledger::open(new.path()).await.unwrap());
    assert_eq!(schema(&dir.path().join("ledger.db")), schema(&new.path().join("ledger.db")));
    assert!(!new.path().join("backups").exists(), "a new database needs no copy");
}

#[tokio::test]
async fn a_migration_that_fails_changes_nothing() {
    let dir = old();
    let path = dir.path().join("ledger.db");
    let hand = Connection::open(&path).unwrap();
    // A table that format 2 wants to make.
    hand.execute_batch("CREATE TABLE approvals (x TEXT)").unwrap();
    drop(hand);
    let before = schema(&path);
    let error = Ledger::open(dir.path()).await.unwrap_err();
    assert_eq!(error.code(), "LEDGER-016", "{error}");
    assert_eq!((format(&path), schema(&path)), (1, before));
    // Once what stood in the way is gone it goes on; the copy of the first attempt is kept.
    Connection::open(&path).unwrap().execute_batch("DROP TABLE approvals").unwrap();
    drop(Ledger::open(dir.path()).await.unwrap());
    assert_eq!(format(&path), 2);
    assert_eq!(std::fs::read_dir(dir.path().join("backups")).unwrap().count(), 2);
}

#[tokio::test]
async fn many_processes_bring_it_up_once() {
    let dir = old();
    let mut opening = Vec::new();
    for _ in 0..8 {
        let path = dir.path().to_owned();
        opening.push(tokio::spawn(async move { Ledger::open(path).await.unwrap() }));
    }
    for task in opening {
        task.await.unwrap();
    }
    assert_eq!(std::fs::read_dir(dir.path().join("backups")).unwrap().count(), 1);
}

#[tokio::test]
async fn a_newer_database_is_read_when_it_says_that_it_can_be() {
    let dir = old();
    drop(Ledger::open(dir.path()).await.unwrap());
    let path = dir.path().join("ledger.db");
    let hand = Connection::open(&path).unwrap();
    hand.execute_batch("CREATE TABLE from_the_future (x TEXT); PRAGMA user_version = 3").unwrap();
    assert_eq!(Ledger::open(dir.path()).await.unwrap_err().code(), "LEDGER-002");
    let ledger = Ledger::open_read_only(dir.path()).await.unwrap();
    assert_eq!(ledger.list(ListFilter::default(), 100).await.unwrap().len(), 10);
    verify(&ledger.record(&run_id(1)).await.unwrap().unwrap()).unwrap();
    let refused = ledger.request_cancel(&run_id(4), "ada", at(20)).await.unwrap_err();
    assert_eq!(refused.code(), "LEDGER-015");
    let claim = ledger.claim(&run_id(4), "o", at(20), TTL_MS).await.unwrap_err();
    assert_eq!(claim.code(), "LEDGER-015");
    drop(ledger);
    hand.execute_batch("UPDATE meta SET readable_by = 3").unwrap();
    assert_eq!(Ledger::open_read_only(dir.path()).await.unwrap_err().code(), "LEDGER-002");
    assert_eq!(format(&path), 3);
    // An older one is not read as if it were new, and nothing is made where nothing is.
    assert_eq!(Ledger::open_read_only(old().path()).await.unwrap_err().code(), "LEDGER-001");
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(Ledger::open_read_only(empty.path()).await.unwrap_err().code(), "LEDGER-001");
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
}
