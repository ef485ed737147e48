//! What format 2 keeps by itself: SQL typed by hand, network disks, files beside the database.

use std::path::{Path, PathBuf};

use cofferdam_run::approval::{Decision, Subject};
use cofferdam_run::fact::Fact;
use cofferdam_run::spec::Mode;
use cofferdam_run::{Actor, ApprovalId, Decider, RunEvent, RunId, TaskId, verify};
use rusqlite::Connection;

use super::Ledger;
use super::open::Options;
use super::tests::fixtures::{TTL_MS, at, good_facts, new_run, run_id, spec, to_executing};
use crate::limits::{BLOB_GRACE_MS, RECORD_INLINE_BYTES};
use crate::store::approvals::{Approvals as _, NewApproval};
use crate::store::stream::{Retention, Stream as _};
use crate::store::work::{Created, NewTask, Work as _};
use crate::store::{Settlement, Store as _};

async fn executing(ledger: &Ledger, n: u32, mode: Mode) -> (RunId, u64) {
    ledger.create_run(new_run(n, mode)).await.unwrap();
    let lease = ledger.claim(&run_id(n), "owner", at(0), TTL_MS).await.unwrap().unwrap();
    for event in to_executing() {
        let _ = ledger.apply(&run_id(n), Some(lease.epoch), event, at(1)).await.unwrap();
    }
    (run_id(n), lease.epoch)
}

async fn completed(ledger: &Ledger, n: u32, more: Vec<Fact>) -> RunId {
    let (id, epoch) = executing(ledger, n, Mode::Unattended).await;
    for fact in good_facts(Mode::Unattended).into_iter().chain(more) {
        let _ = ledger.append_fact(&id, epoch, at(2), fact).await.unwrap();
    }
    let _ = ledger.apply(&id, Some(epoch), RunEvent::AgentEnded, at(3)).await.unwrap();
    let settled = ledger.settle(&id, epoch, at(4)).await.unwrap();
    assert!(matches!(settled, Settlement::Done { .. }), "{settled:?}");
    id
}

fn by_hand(dir: &Path) -> Connection {
    let connection = Connection::open(dir.join("ledger.db")).unwrap();
    connection.pragma_update(None, "foreign_keys", false).unwrap();
    connection
}

fn new_task(n: u8) -> NewTask {
    NewTask {
        id: TaskId::from_entropy([n; 5]),
        title: "t".into(),
        origin: Actor::Person("ada".into()),
        project: None,
        thread: None,
        agent: None,
        priority: 0,
        spec: spec(Mode::Unattended),
        retry: Default::default(),
        created_at: at(0),
    }
}

async fn approved(ledger: &Ledger, n: u8, run: &RunId, epoch: u64) {
    let subject = Subject::new("file_delete", serde_json::json!({ "path": n }), "delete it?");
    let id = ApprovalId::from_entropy([n; 5]);
    let new = NewApproval { id: id.clone(), ask: n.to_string(), subject, expires_at: at(500) };
    let _ = ledger.ask(run, epoch, new, at(2)).await.unwrap();
    let ada = Decider::person("ada").unwrap();
    let _ = ledger.decide(&id, &ada, Decision::Approve, "", at(3)).await.unwrap();
}

#[tokio::test]
async fn sql_typed_by_hand_cannot_break_the_rules_of_format_2() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).await.unwrap();
    let Created::New(task) = ledger.create_task(new_task(1), None).await.unwrap() else { panic!() };
    let (run, epoch) = executing(&ledger, 1, Mode::Supervised).await;
    approved(&ledger, 1, &run, epoch).await;
    let done = completed(&ledger, 2, vec![]).await;
    let hand = by_hand(dir.path());
    for sql in [
        // A decision is made once, by a person who did not ask, and used once.
        "UPDATE approvals SET state = 'pending', decided_by = NULL, decided_at = NULL",
        "UPDATE approvals SET decided_by = 'person:bob'",
        "UPDATE approvals SET decided_by = 'agent:7k2m9qxc'",
        "UPDATE approvals SET asked_by = 'person:ada'",
        "UPDATE approvals SET state = 'rejected'",
        "UPDATE approvals SET state = 'consumed'",
        "UPDATE approvals SET digest = 'sha256:' || hex(zeroblob(32))",
        "UPDATE approvals SET run = 77",
        "DELETE FROM approvals",
        "INSERT OR REPLACE INTO approvals SELECT * FROM approvals",
        // A task keeps its place, and is over once it is done.
        "DELETE FROM tasks",
        "UPDATE tasks SET depth = 1",
        "UPDATE tasks SET state = 'dead_letter'",
        "UPDATE tasks SET attempts = 0",
        "UPDATE tasks SET id = 'tsk-00000000'",
        "UPDATE tasks SET state = 'completed', cancel_by = 'x', cancel_at = 1",
        // An attempt belongs to its task, and there is one that is not over.
        "UPDATE runs SET task = NULL WHERE task IS NOT NULL",
        "UPDATE runs SET attempt = 2 WHERE task IS NOT NULL",
        "UPDATE runs SET due_at = 5 WHERE state = 'executing'",
        "INSERT INTO runs (id, title, checkout, mode, state, state_json, created_at, updated_at,
             output_budget, spend, task, attempt)
         SELECT 'zzzzzzzz', title, checkout, mode, state, state_json, 0, 0, 0, '{}', task, 2
         FROM runs WHERE task IS NOT NULL",
        // Only the log of what is over goes, and only when that is written down.
        "DELETE FROM events",
        "INSERT INTO compactions SELECT ordinal, 0, 0, 999 FROM runs WHERE state = 'executing'",
        // A slot and a delivery happen once, a project has one checkout.
        "INSERT INTO slots VALUES (1, 1, 'fired', NULL, 0)",
        "INSERT INTO deliveries VALUES ('a', 'b', 'c', NULL, 1, 0)",
        "INSERT INTO projects (id, name, checkout, created_at) VALUES
             ('prj-00000000', 'a', '/x', 0), ('prj-00000001', 'b', '/x', 0)",
        "INSERT INTO projects (id, name, checkout, created_at) VALUES ('nonsense', 'a', '/x', 0)",
    ] {
        let error = hand.execute_batch(sql).expect_err(sql);
        let code = error.sqlite_error_code();
        assert_eq!(code, Some(rusqlite::ErrorCode::ConstraintViolation), "{sql}: {error}");
    }
    assert!(ledger.task(&task.id).await.unwrap().state.is_open());
    assert_eq!(ledger.run(&done).await.unwrap().state.name().as_str(), "completed");
}

#[tokio::test]
async fn two_runs_of_a_thread_cannot_be_held_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).await.unwrap();
    executing(&ledger, 1, Mode::Unattended).await;
    executing(&ledger, 2, Mode::Unattended).await;
    let hand = by_hand(dir.path());
    hand.execute_batch("DROP TRIGGER runs_keep_their_place").unwrap();
    let error = hand.execute_batch("UPDATE runs SET thread = 1").unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::ConstraintViolation));
}

#[tokio::test]
async fn a_disk_of_another_machine_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { pretend_disk: Some(0x6969), ..Options::default() };
    let error = Ledger::open_with(dir.path().to_owned(), options).await.unwrap_err();
    assert_eq!(error.code(), "LEDGER-014");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

fn blobs(dir: &Path) -> Vec<PathBuf> {
    let outer = std::fs::read_dir(dir.join("blobs")).into_iter().flatten().flatten();
    outer.flat_map(|d| std::fs::read_dir(d.path()).unwrap().flatten().map(|e| e.path())).collect()
}

fn notes(bytes: usize) -> Vec<Fact> {
    vec![Fact::Note { text: "x".repeat(bytes) }]
}

#[tokio::test]
async fn a_big_record_is_a_file_and_a_changed_one_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).await.unwrap();
    let small = completed(&ledger, 1, vec![]).await;
    assert_eq!(blobs(dir.path()), Vec::<PathBuf>::new());
    let big = completed(&ledger, 2, notes(RECORD_INLINE_BYTES)).await;
    let [file] = &blobs(dir.path())[..] else { panic!() };
    for id in [&small, &big] {
        verify(&ledger.record(id).await.unwrap().unwrap()).unwrap();
    }
    // Also once the log is gone.
    let facts = ledger.facts(&big).await.unwrap();
    let far = at(1_000 * 24 * 60 * 60 * 1000);
    ledger.compact(Retention::default(), far).await.unwrap();
    assert_eq!(ledger.facts(&big).await.unwrap(), facts);
    let mut bytes = std::fs::read(file).unwrap();
    bytes[100] ^= 1;
    std::fs::write(file, bytes).unwrap();
    assert_eq!(ledger.record(&big).await.unwrap_err().code(), "LEDGER-003");
    std::fs::remove_file(file).unwrap();
    assert_eq!(ledger.record(&big).await.unwrap_err().code(), "LEDGER-003");
    verify(&ledger.record(&small).await.unwrap().unwrap()).unwrap();
}

#[tokio::test]
async fn files_that_nothing_names_are_swept_after_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).await.unwrap();
    completed(&ledger, 1, notes(RECORD_INLINE_BYTES)).await;
    let stray = dir.path().join("blobs/00").join("0".repeat(64));
    std::fs::create_dir_all(stray.parent().unwrap()).unwrap();
    std::fs::write(&stray, "left by a crash").unwrap();
    let modified = stray.metadata().unwrap().modified().unwrap();
    let modified = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let modified = u64::try_from(modified).unwrap();
    let keep = Retention { events_ms: u64::MAX, keys_ms: u64::MAX, batch: 1 };
    let young = ledger.compact(keep, at(modified + BLOB_GRACE_MS)).await.unwrap();
    assert_eq!((young.blobs, stray.exists()), (0, true));
    let old = ledger.compact(keep, at(modified + BLOB_GRACE_MS + 60_000)).await.unwrap();
    assert_eq!((old.blobs, stray.exists()), (1, false));
    assert_eq!(blobs(dir.path()).len(), 1);
}
