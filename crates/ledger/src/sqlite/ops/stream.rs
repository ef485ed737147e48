//! The whole log in one order, and what is dropped from it.

use cofferdam_run::{RunId, TimestampMs};
use rusqlite::{Connection, OptionalExtension, params};

use super::ids::stored;
use super::query::{EVENT_COLUMNS, event};
use crate::limits::MAX_LIST;
use crate::sqlite::error::{at_to_sql, from_sql, to_sql};
use crate::sqlite::row::head;
use crate::store::Result;
use crate::store::stream::{Compacted, EventFilter, EventPage, LoggedEvent, Rebase, Retention};

pub(in crate::sqlite) fn events_after(
    connection: &Connection,
    after: u64,
    filter: &EventFilter,
    limit: u32,
) -> Result<EventPage> {
    // A cursor past everything shows nothing.
    let cursor = to_sql("a cursor", after).unwrap_or(i64::MAX);
    let limit = limit.clamp(1, MAX_LIST);
    let newest = last_event(connection)?;
    let run = filter.run.as_ref().map(|id| head(connection, id)).transpose()?;
    let (run, first) = match &run {
        // Within a run ids grow with the sequence, so the place is found without reading on the way.
        Some(head) => {
            (Some(head.ordinal), first_seq_after(connection, head.ordinal, head.last_seq, cursor)?)
        }
        None => (None, 0),
    };
    let place = match run {
        Some(_) => "e.run = ?1 AND e.seq >= ?2 AND e.id > ?3",
        None => "?1 IS NULL AND ?2 = 0 AND e.id > ?3",
    };
    let kind = if filter.transitions_only { "AND e.kind = 'transition'" } else { "" };
    let order = if run.is_some() { "e.seq" } else { "e.id" };
    let sql = format!(
        "SELECT {EVENT_COLUMNS}, e.id, r.id FROM events AS e JOIN runs AS r ON r.ordinal = e.run
         WHERE {place} {kind} ORDER BY {order} LIMIT ?4"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![run, first, cursor, limit])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        let run: RunId = stored("run id", &row.get::<_, String>(6)?)?;
        let id = from_sql("an event id", row.get(5)?)?;
        events.push(LoggedEvent { id, event: event(row, &run)?, run });
    }
    let more = events.len() == usize::try_from(limit).unwrap_or(usize::MAX);
    let cursor = match events.last() {
        Some(last) if more => last.id,
        // All up to the newest was looked at in this one view of the database.
        _ => newest.max(after),
    };
    let rebase = gone_after(connection, after, run)?;
    Ok(EventPage { events, cursor, more, rebase })
}

/// The first sequence number of a run whose event has an id above `after`.
fn first_seq_after(connection: &Connection, run: i64, last_seq: u64, after: i64) -> Result<i64> {
    let mut statement =
        connection.prepare_cached("SELECT id FROM events WHERE run = ?1 AND seq = ?2")?;
    let (mut low, mut high) = (1, to_sql("a sequence number", last_seq)? + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        let id: Option<i64> = statement.query_row([run, middle], |row| row.get(0)).optional()?;
        match id {
            Some(id) if id > after => high = middle,
            // What was compacted lies before whatever is asked for.
            _ => low = middle + 1,
        }
    }
    Ok(low)
}

fn gone_after(connection: &Connection, after: u64, run: Option<i64>) -> Result<Option<Rebase>> {
    let through: Option<i64> = match run {
        Some(run) => connection
            .prepare_cached("SELECT last_id FROM compactions WHERE run = ?1")?
            .query_row([run], |row| row.get(0))
            .optional()?,
        None => Some(
            connection
                .prepare_cached("SELECT compacted_through FROM meta")?
                .query_row([], |row| row.get(0))?,
        ),
    };
    let through = through.map(|t| from_sql("compacted_through", t)).transpose()?.unwrap_or(0);
    Ok((through > after).then_some(Rebase { through }))
}

/// Also when the newest events are compacted away: ids are not given twice.
pub(in crate::sqlite) fn last_event(connection: &Connection) -> Result<u64> {
    let id: Option<i64> = connection
        .prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = 'events'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    from_sql("an event id", id.unwrap_or(0))
}

pub(in crate::sqlite) fn compact(
    connection: &Connection,
    retention: &Retention,
    now: TimestampMs,
) -> Result<Compacted> {
    let mut out = Compacted::default();
    let before = |age_ms: u64| at_to_sql(TimestampMs(now.0.saturating_sub(age_ms)));
    let batch = i64::from(retention.batch.max(1));
    let mut statement = connection.prepare_cached(
        "SELECT ordinal, id, last_seq FROM runs
         WHERE verdict IS NOT NULL AND updated_at <= ?1
           AND NOT EXISTS (SELECT 1 FROM compactions WHERE run = runs.ordinal)
         ORDER BY ordinal LIMIT ?2",
    )?;
    let mut rows = statement.query(params![before(retention.events_ms)?, batch + 1])?;
    let mut old: Vec<(i64, String)> = Vec::new();
    while let Some(row) = rows.next()? {
        old.push((row.get(0)?, row.get(1)?));
    }
    out.more = old.len() > usize::try_from(batch).unwrap_or(usize::MAX);
    for (run, id) in old.into_iter().take(usize::try_from(batch).unwrap_or(usize::MAX)) {
        let (count, last): (i64, Option<i64>) = connection
            .prepare_cached("SELECT count(*), max(id) FROM events WHERE run = ?1")?
            .query_row([run], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let last = last.unwrap_or(0);
        connection
            .prepare_cached(
                "INSERT INTO compactions (run, at, events, last_id) VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute(params![run, at_to_sql(now)?, count, last])?;
        connection.prepare_cached("DELETE FROM events WHERE run = ?1")?.execute([run])?;
        connection
            .prepare_cached("UPDATE meta SET compacted_through = max(compacted_through, ?1)")?
            .execute([last])?;
        out.events += from_sql("a count", count)?;
        out.runs.push(stored("run id", &id)?);
    }
    let keys = before(retention.keys_ms)?;
    for sql in ["DELETE FROM idempotency WHERE at <= ?1", "DELETE FROM deliveries WHERE at <= ?1"] {
        let gone = connection.prepare_cached(sql)?.execute([keys])?;
        out.keys += gone as u64;
    }
    Ok(out)
}
