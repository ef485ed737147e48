//! What only this backend has: files, formats, SQL typed by hand, groups of writes, full disks.

#[path = "../../tests/suite/fixtures.rs"]
pub(super) mod fixtures;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cofferdam_run::fact::Fact;
use cofferdam_run::spec::Mode;
use cofferdam_run::{RunEvent, RunId};
use rusqlite::Connection;
use tempfile::TempDir;

use super::Ledger;
use super::open::Options;
use crate::error::LedgerError;
use crate::store::{Appended, Applied, ListFilter, Settlement, Store};
use fixtures::{TTL_MS, at, good_facts, new_run, run_id, to_executing};

async fn open(dir: &TempDir) -> Ledger {
    Ledger::open(dir.path()).await.unwrap()
}

/// SQL typed by hand, as with the `sqlite3` command, which checks no foreign keys.
fn by_hand(dir: &Path) -> Connection {
    let connection = Connection::open(dir.join("ledger.db")).unwrap();
    connection.pragma_update(None, "foreign_keys", false).unwrap();
    connection
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

async fn executing(ledger: &Ledger, n: u32) -> (RunId, u64) {
    ledger.create_run(new_run(n, Mode::Unattended)).await.unwrap();
    let lease = ledger.claim(&run_id(n), "owner", at(0), TTL_MS).await.unwrap().unwrap();
    for event in to_executing() {
        let applied = ledger.apply(&run_id(n), Some(lease.epoch), event, at(1)).await.unwrap();
        assert!(matches!(applied, Applied::Done { .. }), "{applied:?}");
    }
    (run_id(n), lease.epoch)
}

async fn completed(ledger: &Ledger, n: u32) -> RunId {
    let (id, epoch) = executing(ledger, n).await;
    for fact in good_facts(Mode::Unattended) {
        let _ = ledger.append_fact(&id, epoch, at(2), fact).await.unwrap();
    }
    let _ = ledger.apply(&id, Some(epoch), RunEvent::AgentEnded, at(3)).await.unwrap();
    let settled = ledger.settle(&id, epoch, at(4)).await.unwrap();
    assert!(matches!(settled, Settlement::Done { .. }), "{settled:?}");
    id
}

#[tokio::test]
async fn directory_and_files_are_private() {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("a/b");
    let ledger = Ledger::open(&dir).await.unwrap();
    ledger.create_run(new_run(1, Mode::Unattended)).await.unwrap();
    assert_eq!(mode(&dir), 0o700);
    for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.lock"] {
        assert_eq!(mode(&dir.join(name)), 0o600, "{name}");
    }
}

#[tokio::test]
async fn open_permissions_are_closed_again() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir).await);
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set(dir.path(), 0o755);
    set(&dir.path().join("ledger.db"), 0o644);
    let _ledger = open(&dir).await;
    assert_eq!(mode(dir.path()), 0o700);
    assert_eq!(mode(&dir.path().join("ledger.db")), 0o600);
}

#[tokio::test]
async fn a_link_in_place_of_the_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = dir.path().join("elsewhere");
    std::fs::write(&elsewhere, "").unwrap();
    std::os::unix::fs::symlink(&elsewhere, dir.path().join("ledger.db")).unwrap();
    let error = Ledger::open(dir.path()).await.unwrap_err();
    assert_eq!(error.code(), "LEDGER-001");
    assert_eq!(std::fs::read(&elsewhere).unwrap(), b"");
}

#[tokio::test]
async fn what_was_stored_is_there_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(&dir).await;
    let id = completed(&ledger, 1).await;
    let (run, instance) = (ledger.run(&id).await.unwrap(), ledger.instance_id().await.unwrap());
    drop(ledger);
    let ledger = open(&dir).await;
    assert_eq!(ledger.run(&id).await.unwrap(), run);
    assert_eq!(ledger.instance_id().await.unwrap(), instance);
}

#[tokio::test]
async fn two_data_directories_have_two_instance_ids() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ids = (open(&a).await.instance_id().await, open(&b).await.instance_id().await);
    assert_ne!(ids.0.unwrap(), ids.1.unwrap());
}

#[tokio::test]
async fn many_may_open_a_new_directory_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut opening = Vec::new();
    for n in 0..16 {
        let path = dir.path().join("new");
        opening.push(tokio::spawn(async move {
            let ledger = Ledger::open(path).await.unwrap();
            ledger.create_run(new_run(n, Mode::Unattended)).await.unwrap();
            ledger.instance_id().await.unwrap()
        }));
    }
    let mut ids = Vec::new();
    for task in opening {
        ids.push(task.await.unwrap());
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    let ledger = Ledger::open(dir.path().join("new")).await.unwrap();
    assert_eq!(ledger.list(ListFilter::default(), 100).await.unwrap().len(), 16);
}

#[tokio::test]
async fn a_newer_database_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir).await);
    by_hand(dir.path()).pragma_update(None, "user_version", 99).unwrap();
    let error = Ledger::open(dir.path()).await.unwrap_err();
    assert!(matches!(error, LedgerError::Newer { found: 99, .. }), "{error:?}");
    assert_eq!(error.code(), "LEDGER-002");
}

#[tokio::test]
async fn a_database_of_something_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    by_hand(dir.path()).execute_batch("CREATE TABLE notes (text)").unwrap();
    assert_eq!(Ledger::open(dir.path()).await.unwrap_err().code(), "LEDGER-001");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ledger.db"), "hello ".repeat(1000)).unwrap();
    assert_eq!(Ledger::open(dir.path()).await.unwrap_err().code(), "LEDGER-003");
}

#[tokio::test]
async fn an_unknown_or_contradictory_state_is_a_load_error() {
    for change in [
        r#"state_json = '{"state":"sleeping"}'"#,
        r#"state_json = '{"state":"queued"}'"#,
        "state = 'collecting'",
        "state = 'queued', owner = NULL, lease_expires = NULL, epoch = 0",
        "owner = 'mallory'",
        "epoch = epoch + 1",
        "updated_at = -1",
        "mode = 'supervised'",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let ledger = open(&dir).await;
        let (id, epoch) = executing(&ledger, 1).await;
        let hand = by_hand(dir.path());
        hand.execute_batch(
            "PRAGMA ignore_check_constraints = on; DROP TRIGGER runs_keep_their_identity;",
        )
        .unwrap();
        hand.execute_batch(&format!("UPDATE runs SET {change}")).unwrap();
        assert_eq!(ledger.run(&id).await.unwrap_err().code(), "LEDGER-003", "{change}");
        let applied = ledger.apply(&id, Some(epoch), RunEvent::AgentEnded, at(2)).await;
        assert_eq!(applied.unwrap_err().code(), "LEDGER-003", "{change}");
    }
}

#[tokio::test]
async fn a_specification_that_is_gone_or_not_one_is_a_load_error() {
    for change in ["UPDATE specs SET body = '{}'", "DELETE FROM specs"] {
        let dir = tempfile::tempdir().unwrap();
        let ledger = open(&dir).await;
        let (id, _) = executing(&ledger, 1).await;
        by_hand(dir.path())
            .execute_batch(&format!("DROP TRIGGER specs_are_not_deleted; {change}"))
            .unwrap();
        assert_eq!(ledger.run(&id).await.unwrap_err().code(), "LEDGER-003", "{change}");
    }
}

#[tokio::test]
async fn sql_typed_by_hand_cannot_break_the_rules() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(&dir).await;
    let done = completed(&ledger, 1).await;
    let (live, _) = executing(&ledger, 2).await;
    let hand = by_hand(dir.path());
    let refused = |sql: &str| {
        let sql = sql.replace("$done", &format!("'{done}'")).replace("$live", &format!("'{live}'"));
        let error = hand.execute_batch(&sql).expect_err(&sql);
        let code = error.sqlite_error_code();
        assert_eq!(code, Some(rusqlite::ErrorCode::ConstraintViolation), "{sql}: {error}");
    };
    for sql in [
        // A terminal run is never revived, changed, replaced or removed.
        "UPDATE runs SET state = 'queued', state_json = '{\"state\":\"queued\"}', verdict = NULL, epoch = 0 WHERE id = $done",
        "UPDATE runs SET title = 'x' WHERE id = $done",
        "UPDATE OR REPLACE runs SET state = 'executing' WHERE id = $done",
        "INSERT OR REPLACE INTO runs SELECT * FROM runs WHERE id = $done",
        "DELETE FROM runs WHERE id = $done",
        "UPDATE runs SET ordinal = 1 WHERE id = $live",
        "UPDATE runs SET id = '00000000' WHERE id = $live",
        "INSERT INTO events SELECT NULL, run, 999, at, epoch, kind, state, body FROM events WHERE run = 1 LIMIT 1",
        "INSERT INTO events (run, seq, at, kind, body) SELECT ordinal, last_seq + 1, 0, 'fact', '{}' FROM runs WHERE id = $done",
        // A run does not end without a verdict, nor without a record.
        "UPDATE runs SET state = 'completed' WHERE id = $live",
        "UPDATE runs SET state = 'completed', owner = NULL, lease_expires = NULL, verdict = '{}' WHERE id = $live",
        "UPDATE runs SET verdict = '{}' WHERE id = $live",
        // States that do not exist, or not like this.
        "UPDATE runs SET state = 'sleeping' WHERE id = $live",
        "UPDATE runs SET state = 'paused' WHERE id = $live",
        "UPDATE runs SET owner = NULL WHERE id = $live",
        "UPDATE runs SET owner = NULL, lease_expires = NULL WHERE id = $live",
        "UPDATE runs SET epoch = 0 WHERE id = $live",
        "UPDATE runs SET cancel_by = 'x' WHERE id = $live",
        // The log only grows, by one.
        "UPDATE events SET at = 0",
        "DELETE FROM events",
        "INSERT INTO events (run, seq, at, kind, body) SELECT ordinal, last_seq + 2, 0, 'fact', '{}' FROM runs WHERE id = $live",
        "INSERT INTO events (run, seq, at, kind, body) SELECT ordinal, last_seq, 0, 'fact', '{}' FROM runs WHERE id = $live",
        "INSERT OR REPLACE INTO events (run, seq, at, kind, body) VALUES (2, 1, 0, 'fact', '{}')",
        "UPDATE runs SET last_seq = last_seq + 1 WHERE id = $live",
        "UPDATE runs SET last_seq = 0 WHERE id = $live",
        "INSERT INTO events (run, seq, at, kind, body) VALUES (77, 1, 0, 'fact', '{}')",
        "UPDATE specs SET body = '{}' WHERE run = 1",
        "UPDATE specs SET run = 3 WHERE run = 2",
        "DELETE FROM specs",
        "INSERT OR REPLACE INTO specs SELECT * FROM specs",
        // Records stay.
        "UPDATE records SET body = '{}'",
        "DELETE FROM records",
        "INSERT OR REPLACE INTO records SELECT * FROM records",
    ] {
        refused(sql);
    }
    assert_eq!(ledger.run(&done).await.unwrap().state.name().as_str(), "completed");
    assert_eq!(ledger.run(&live).await.unwrap().state.name().as_str(), "executing");
}

#[tokio::test]
async fn a_wish_to_cancel_cannot_be_taken_back_nor_end_in_success() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(&dir).await;
    let (id, _) = executing(&ledger, 1).await;
    let _ = ledger.request_cancel(&id, "ada", at(2)).await.unwrap();
    let hand = by_hand(dir.path());
    hand.execute_batch("UPDATE runs SET cancel_by = NULL, cancel_at = NULL").unwrap_err();
    // Even with a record in place.
    let head = format!("sha256:{}", "0".repeat(64));
    hand.execute("INSERT INTO records (run, head, body) VALUES (1, ?1, '{}')", [head]).unwrap();
    hand.execute_batch(
        "UPDATE runs SET state = 'completed', owner = NULL, lease_expires = NULL, verdict = '{}'",
    )
    .unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_named_and_costs_nothing_that_was_confirmed() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir).await);
    let options = Options { max_pages: Some(200), ..Options::default() };
    let ledger = Ledger::open_with(dir.path().to_owned(), options).await.unwrap();
    let (id, epoch) = executing(&ledger, 1).await;

    // Together, so that full and fitting writes share groups.
    let mut writes = Vec::new();
    for n in 0..200u64 {
        let (ledger, id) = (ledger.clone(), id.clone());
        writes.push(tokio::spawn(async move {
            let fact = Fact::Note { text: format!("{n} {}", "x".repeat(10_000)) };
            (n, ledger.append_fact(&id, epoch, at(2), fact).await)
        }));
    }
    let (mut kept, mut full) = (Vec::new(), 0);
    for write in writes {
        let (n, result) = write.await.unwrap();
        match result {
            Ok(Appended::Kept { .. }) => kept.push(n),
            Err(LedgerError::DiskFull) => full += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(!kept.is_empty() && full > 0, "{} kept, {full} refused", kept.len());
    let mut stored: Vec<u64> = ledger
        .facts(&id)
        .await
        .unwrap()
        .into_iter()
        .map(|(_, fact)| match fact {
            Fact::Note { text } => text.split(' ').next().unwrap().parse().unwrap(),
            other => panic!("{other:?}"),
        })
        .collect();
    stored.sort_unstable();
    kept.sort_unstable();
    assert_eq!(stored, kept);
    drop(ledger);

    // With room again it goes on.
    let ledger = open(&dir).await;
    let note = Fact::Note { text: "on".into() };
    let kept = ledger.append_fact(&id, epoch, at(3), note).await.unwrap();
    assert_eq!(kept, Appended::Kept { seq: 5 + stored.len() as u64 + 1 });
}

#[tokio::test(flavor = "multi_thread")]
async fn one_failing_write_does_not_spoil_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(&dir).await;
    ledger.create_run(new_run(1, Mode::Unattended)).await.unwrap();
    let release = hold_writer(&ledger).await;
    let mut writes = Vec::new();
    for n in 0..300u32 {
        let ledger = ledger.clone();
        writes.push(tokio::spawn(async move {
            let write = ledger.write(move |c| {
                c.execute("INSERT INTO counted_facts VALUES (1, ?1, 1)", [n.to_string()])?;
                if n % 3 == 0 { Err(LedgerError::Misuse { what: "on purpose" }) } else { Ok(()) }
            });
            (n, write.await)
        }));
    }
    while ledger.inner.writer.as_ref().unwrap().waiting() < 300 {
        tokio::task::yield_now().await;
    }
    drop(release);
    let mut good = Vec::new();
    for write in writes {
        let (n, result) = write.await.unwrap();
        assert_eq!(result.is_ok(), n % 3 != 0);
        good.extend(result.is_ok().then_some(n));
    }
    let mut stored: Vec<u32> = ledger
        .read(|c| {
            let mut statement = c.prepare("SELECT kind FROM counted_facts")?;
            let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
            Ok(rows.map(|kind| kind.unwrap().parse().unwrap()).collect())
        })
        .await
        .unwrap();
    stored.sort_unstable();
    good.sort_unstable();
    assert_eq!(stored, good);
}

/// Everything written until the sender is dropped waits, and then shares one transaction.
async fn hold_writer(ledger: &Ledger) -> std::sync::mpsc::Sender<()> {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (begun, waiting) = tokio::sync::oneshot::channel();
    let (ledger, mut begun) = (ledger.clone(), Some(begun));
    tokio::spawn(async move {
        let hold = ledger.write(move |_| {
            if let Some(begun) = begun.take() {
                let _ = begun.send(());
                // Ends with an error when the sender is dropped, which is what is meant.
                let _ = held.recv();
            }
            Ok(())
        });
        hold.await
    });
    waiting.await.unwrap();
    release
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_loses_the_whole_transaction_costs_the_others_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(&dir).await;
    let release = hold_writer(&ledger).await;
    let mut writes = tokio::task::JoinSet::new();
    for n in 0..10u32 {
        let ledger = ledger.clone();
        writes.spawn(async move {
            if n == 5 {
                // As SQLite does by itself on some errors of the disk.
                let lost = ledger.write(|c| {
                    c.execute_batch("ROLLBACK")?;
                    Err::<(), _>(LedgerError::Misuse { what: "on purpose" })
                });
                assert_eq!(lost.await.unwrap_err().code(), "LEDGER-012");
            } else {
                ledger.create_run(new_run(n, Mode::Unattended)).await.unwrap();
            }
        });
    }
    // All are in the queue once the spawned tasks have nothing left to do but wait.
    while ledger.inner.writer.as_ref().unwrap().waiting() < 10 {
        tokio::task::yield_now().await;
    }
    drop(release);
    while let Some(write) = writes.join_next().await {
        write.unwrap();
    }
    assert_eq!(ledger.list(ListFilter::default(), 100).await.unwrap().len(), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_carried_out_though_its_caller_stops_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(&dir).await;
    ledger.create_run(new_run(1, Mode::Unattended)).await.unwrap();
    let (id, waiting) = (run_id(1), ledger.clone());
    let task = tokio::spawn(async move {
        // Polled once, which queues the write, then dropped.
        let mut cancel = Box::pin(waiting.request_cancel(&id, "ada", at(1)));
        let _ = futures_poll_once(cancel.as_mut()).await;
    });
    task.await.unwrap();
    // The queue is in order: this one comes after.
    ledger.create_run(new_run(2, Mode::Unattended)).await.unwrap();
    assert!(ledger.run(&run_id(1)).await.unwrap().state.is_terminal());
}

async fn futures_poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(out) => std::task::Poll::Ready(Some(out)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_waits_for_another_processes_lock() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(&dir).await;
    let hand = by_hand(dir.path());
    hand.execute_batch("BEGIN IMMEDIATE").unwrap();
    let writing = {
        let ledger = ledger.clone();
        tokio::spawn(async move { ledger.create_run(new_run(1, Mode::Unattended)).await })
    };
    // Readers do not wait.
    assert_eq!(ledger.list(ListFilter::default(), 1).await.unwrap(), []);
    assert!(!writing.is_finished());
    hand.execute_batch("COMMIT").unwrap();
    writing.await.unwrap().unwrap();
}
