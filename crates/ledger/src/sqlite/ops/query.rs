//! Reading. Nothing here writes.

use cofferdam_run::fact::Fact;
use cofferdam_run::spec::Mode;
use cofferdam_run::{Record, Run, RunId, StateName, TimestampMs};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::ids::stored;
use crate::error::LedgerError;
use crate::limits::MAX_LIST;
use crate::sqlite::blobs::Blobs;
use crate::sqlite::error::{at_to_sql, from_sql, to_sql};
use crate::sqlite::row::{COLUMNS, head, json, parse, text};
use crate::store::{EventBody, ListFilter, OutputStream, Result, RunRow, StoredEvent};

/// How many candidates an ambiguous prefix shows.
const CANDIDATES: usize = 5;

pub(in crate::sqlite) fn resolve_prefix(connection: &Connection, prefix: &str) -> Result<RunId> {
    let unknown = || LedgerError::NoSuchRun { id: prefix.chars().take(80).collect() };
    let typed = prefix.to_ascii_lowercase();
    if typed.is_empty() || typed.len() > 8 || !typed.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(unknown());
    }
    // Every character of an id sorts before `{`.
    let mut statement = connection.prepare_cached(
        "SELECT id FROM runs WHERE id >= ?1 AND id < ?1 || '{' ORDER BY ordinal DESC LIMIT ?2",
    )?;
    let limit = i64::try_from(CANDIDATES + 1).unwrap_or(i64::MAX);
    let mut ids = statement
        .query_map(params![typed, limit], |row| row.get::<_, String>(0))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    match ids.as_slice() {
        [] => Err(unknown()),
        [id] => id.parse().map_err(|_| LedgerError::Corrupt { what: format!("the run id {id:?}") }),
        _ => {
            if ids.len() > CANDIDATES {
                ids.truncate(CANDIDATES);
                ids.push("…".to_owned());
            }
            Err(LedgerError::Ambiguous { prefix: typed, candidates: ids })
        }
    }
}

/// What [`run_row`] reads, from `runs`.
pub(super) const ROW_COLUMNS: &str = "id, title, checkout, mode, state, cancel_by IS NOT NULL, \
     created_at, updated_at, commits, reference, verdict, spend";

pub(in crate::sqlite) fn list(
    connection: &Connection,
    filter: &ListFilter,
    limit: u32,
) -> Result<Vec<RunRow>> {
    let states: Vec<&str> = filter.states.iter().map(|s| s.as_str()).collect();
    let states = if states.is_empty() { None } else { Some(text(&states)?) };
    let sql = format!(
        "SELECT {ROW_COLUMNS} FROM runs
         WHERE (?1 IS NULL OR state IN (SELECT value FROM json_each(?1)))
           AND (NOT ?2 OR verdict IS NULL)
           AND (?3 IS NULL OR checkout = ?3)
         ORDER BY ordinal DESC LIMIT ?4"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows =
        statement.query(params![states, filter.live_only, filter.checkout, limit.min(MAX_LIST)])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        out.push(run_row(row)?);
    }
    Ok(out)
}

pub(super) fn run_row(row: &Row<'_>) -> Result<RunRow> {
    let id: String = row.get(0)?;
    let corrupt = |what: String| LedgerError::Corrupt { what: format!("run {id}: {what}") };
    let mode: String = row.get(3)?;
    let state: String = row.get(4)?;
    let commits: Option<i64> = row.get(8)?;
    let verdict: Option<String> = row.get(10)?;
    Ok(RunRow {
        id: id.parse().map_err(|_| corrupt("its id is not one".to_owned()))?,
        title: row.get(1)?,
        checkout: row.get(2)?,
        mode: match mode.as_str() {
            "unattended" => Mode::Unattended,
            "supervised" => Mode::Supervised,
            _ => return Err(corrupt(format!("mode is {mode}"))),
        },
        state: state.parse().map_err(corrupt)?,
        cancel_requested: row.get(5)?,
        created_at: TimestampMs(from_sql("created_at", row.get(6)?)?),
        updated_at: TimestampMs(from_sql("updated_at", row.get(7)?)?),
        commits: commits.map(|c| from_sql("commits", c)).transpose()?,
        reference: row.get(9)?,
        verdict: verdict
            .map(|v| json(&v))
            .transpose()
            .map_err(|e| corrupt(format!("verdict: {e}")))?,
        spend: json(&row.get::<_, String>(11)?).map_err(|e| corrupt(format!("spend: {e}")))?,
    })
}

/// What [`event`] reads, from `events AS e`.
pub(super) const EVENT_COLUMNS: &str = "e.seq, e.at, e.kind, e.state, e.body";

pub(in crate::sqlite) fn events(
    connection: &Connection,
    id: &RunId,
    after_seq: u64,
    limit: u32,
) -> Result<Vec<StoredEvent>> {
    let head = head(connection, id)?;
    // A cursor past everything shows nothing.
    let after = to_sql("a cursor", after_seq).unwrap_or(i64::MAX);
    let sql = format!(
        "SELECT {EVENT_COLUMNS} FROM events AS e WHERE e.run = ?1 AND e.seq > ?2
         ORDER BY e.seq LIMIT ?3"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![head.ordinal, after, limit.min(MAX_LIST)])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        out.push(event(row, id)?);
    }
    Ok(out)
}

pub(super) fn event(row: &Row<'_>, id: &RunId) -> Result<StoredEvent> {
    let seq = from_sql("seq", row.get(0)?)?;
    let corrupt =
        |what: String| LedgerError::Corrupt { what: format!("run {id}, event {seq}: {what}") };
    let at = TimestampMs(from_sql("at", row.get(1)?)?);
    let kind: String = row.get(2)?;
    let body = match kind.as_str() {
        "transition" => EventBody::Transition {
            event: json(&row.get::<_, String>(4)?).map_err(|e| corrupt(e.to_string()))?,
            state: row.get::<_, String>(3)?.parse::<StateName>().map_err(corrupt)?,
        },
        "fact" => EventBody::Fact(Box::new(
            json(&row.get::<_, String>(4)?).map_err(|e| corrupt(e.to_string()))?,
        )),
        "stdout" => EventBody::Output { stream: OutputStream::Stdout, bytes: row.get(4)? },
        "stderr" => EventBody::Output { stream: OutputStream::Stderr, bytes: row.get(4)? },
        _ => return Err(corrupt(format!("its kind is {kind}"))),
    };
    Ok(StoredEvent { seq, at, body })
}

pub(in crate::sqlite) fn facts(
    connection: &Connection,
    blobs: &Blobs,
    id: &RunId,
) -> Result<Vec<(TimestampMs, Fact)>> {
    let head = head(connection, id)?;
    let compacted = connection
        .prepare_cached("SELECT 1 FROM compactions WHERE run = ?1")?
        .exists([head.ordinal])?;
    if !compacted {
        return facts_of(connection, head.ordinal);
    }
    // Its log is gone; the record has every fact.
    let corrupt = |what: String| LedgerError::Corrupt { what: format!("run {id}: {what}") };
    let body = record(connection, blobs, id)?
        .ok_or_else(|| corrupt("compacted without a record".to_owned()))?;
    let record: Record = json(&body).map_err(|e| corrupt(format!("record: {e}")))?;
    Ok(record.entries.into_iter().map(|entry| (entry.at, entry.fact)).collect())
}

pub(super) fn facts_of(connection: &Connection, ordinal: i64) -> Result<Vec<(TimestampMs, Fact)>> {
    let mut statement = connection.prepare_cached(
        "SELECT seq, at, body FROM events WHERE run = ?1 AND kind = 'fact' ORDER BY seq",
    )?;
    let mut rows = statement.query([ordinal])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        let seq: i64 = row.get(0)?;
        let at = TimestampMs(from_sql("at", row.get(1)?)?);
        let fact = json(&row.get::<_, String>(2)?)
            .map_err(|e| LedgerError::Corrupt { what: format!("fact {seq}: {e}") })?;
        out.push((at, fact));
    }
    Ok(out)
}

pub(in crate::sqlite) fn record(
    connection: &Connection,
    blobs: &Blobs,
    id: &RunId,
) -> Result<Option<String>> {
    let head = head(connection, id)?;
    let found: Option<(String, Option<String>)> = connection
        .prepare_cached("SELECT body, blob FROM records WHERE run = ?1")?
        .query_row([head.ordinal], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((body, blob)) = found else { return Ok(None) };
    let Some(blob) = blob else { return Ok(Some(body)) };
    let bytes = blobs.get(&stored("digest", &blob)?)?;
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| LedgerError::Corrupt { what: format!("run {id}: its record is not text") })
}

pub(in crate::sqlite) fn expired(connection: &Connection, now: TimestampMs) -> Result<Vec<Run>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM runs
         WHERE owner IS NOT NULL AND lease_expires <= ?1 ORDER BY ordinal"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([at_to_sql(now)?])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        out.push(parse(row)?.run);
    }
    Ok(out)
}

pub(in crate::sqlite) fn queued(connection: &Connection, limit: u32) -> Result<Vec<RunId>> {
    let mut statement = connection
        .prepare_cached("SELECT id FROM runs WHERE state = 'queued' ORDER BY ordinal LIMIT ?1")?;
    let ids = statement
        .query_map([limit.min(MAX_LIST)], |row| row.get::<_, String>(0))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    ids.into_iter()
        .map(|id| id.parse().map_err(|_| LedgerError::Corrupt { what: format!("the id {id:?}") }))
        .collect()
}
