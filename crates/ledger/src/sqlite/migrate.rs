//! Numbered migrations: each once, in order, in one transaction, after a copy was made.
//!
//! Never goes back, and never touches a database of a newer format.

use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_run::approval::{DEFAULT_EXPIRY_MS, Subject};
use cofferdam_run::{Actor, ApprovalId, InstanceId, State, TimestampMs};
use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use super::error::{at_to_sql, from_sql};
use super::row::{json, text};
use crate::error::LedgerError;
use crate::store::Result;

/// Migrations in order; the database's `user_version` counts how many were applied.
const MIGRATIONS: &[&str] = &[include_str!("schema/001.sql"), include_str!("schema/002.sql")];

/// Marks the file as a ledger: "CFDM".
pub(super) const APPLICATION_ID: i64 = 0x4346_444d;

/// The newest format that is known here.
pub(super) fn known_format() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// The database's format.
pub(super) fn format(connection: &Connection) -> Result<i64> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

/// Brings the database to the newest format. Before an existing one is changed, a copy of it is put
/// into `backups/` beside it.
///
/// # Errors
/// `LEDGER-016` when a step fails; the database then has the format that it had.
pub(super) fn migrate(connection: &Connection, data_dir: &Path) -> Result<()> {
    let found = format(connection)?;
    let done = usize::try_from(found)
        .map_err(|_| LedgerError::Corrupt { what: format!("user_version is {found}") })?;
    if done >= MIGRATIONS.len() {
        return Ok(());
    }
    let to = known_format();
    let failed = |detail: String| LedgerError::Migration { from: found, to, detail };
    if done > 0 {
        back_up(connection, data_dir, found)
            .map_err(|e| failed(format!("no copy could be made: {e}")))?;
    }
    // All steps together: there is no format in between that another process could meet.
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    for (index, sql) in MIGRATIONS.iter().enumerate().skip(done) {
        transaction.execute_batch(sql).map_err(|e| failed(e.to_string()))?;
        match index {
            0 => first(&transaction)?,
            1 => second(&transaction)?,
            _ => {}
        }
    }
    let dangling = transaction.prepare("PRAGMA foreign_key_check")?.exists([])?;
    if dangling {
        return Err(failed("a row would point to nothing".to_owned()));
    }
    transaction.pragma_update(None, "user_version", to)?;
    transaction.commit().map_err(|e| failed(e.to_string()))?;
    Ok(())
}

fn first(transaction: &Transaction<'_>) -> Result<()> {
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    let entropy: [u8; 10] = transaction.query_row("SELECT randomblob(10)", [], |row| row.get(0))?;
    let instance = InstanceId::from_entropy(entropy);
    transaction
        .execute("INSERT INTO meta (only_row, instance_id) VALUES (1, ?1)", [instance.as_str()])?;
    Ok(())
}

/// Questions that were open before there was a table for them.
fn second(transaction: &Transaction<'_>) -> Result<()> {
    let mut statement = transaction.prepare(
        "SELECT ordinal, id, state_json, updated_at, randomblob(5) FROM runs
         WHERE state IN ('awaiting_approval', 'paused')",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let run: String = row.get(1)?;
        let corrupt = |what: String| LedgerError::Corrupt { what: format!("run {run}: {what}") };
        let state: State = json(&row.get::<_, String>(2)?).map_err(|e| corrupt(e.to_string()))?;
        let (State::AwaitingApproval { ask, .. } | State::Paused { ask: Some(ask), .. }) = state
        else {
            continue;
        };
        let asked_at = TimestampMs(from_sql("updated_at", row.get(3)?)?);
        let subject = Subject::new("ask", serde_json::json!({ "ask": ask.id }), &ask.text);
        let asker = Actor::Agent(run.parse().map_err(|_| corrupt("its id is not one".to_owned()))?);
        transaction.execute(
            "INSERT INTO approvals (id, run, ask, subject, digest, asked_by, asked_at, expires_at, state)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'pending')",
            params![
                ApprovalId::from_entropy(row.get(4)?).as_str(),
                row.get::<_, i64>(0)?,
                ask.id,
                text(&subject)?,
                subject.digest.as_str(),
                asker.to_string(),
                at_to_sql(asked_at)?,
                at_to_sql(asked_at.plus_ms(DEFAULT_EXPIRY_MS))?,
            ],
        )?;
    }
    Ok(())
}

/// A whole, consistent copy, on the disk before anything is changed.
fn back_up(connection: &Connection, data_dir: &Path, format: i64) -> std::io::Result<PathBuf> {
    let dir = data_dir.join("backups");
    DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    // One that is there already is of an attempt that failed; it is kept, whatever it holds.
    let place = (0..)
        .map(|n: u32| match n {
            0 => dir.join(format!("ledger-format-{format}.db")),
            n => dir.join(format!("ledger-format-{format}.{n}.db")),
        })
        .find(|place| !place.exists())
        .unwrap_or_else(|| dir.join("ledger.db"));
    let name = place.to_str().ok_or_else(|| std::io::Error::other("the path is not UTF-8"))?;
    connection.execute("VACUUM INTO ?1", [name]).map_err(std::io::Error::other)?;
    let file = File::open(&place)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.sync_all()?;
    File::open(&dir)?.sync_all()?;
    Ok(place)
}
