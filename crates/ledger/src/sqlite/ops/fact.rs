//! Facts: entries of the record-to-be, bounded, with the columns that lists derive from them.

use cofferdam_run::TimestampMs;
use cofferdam_run::fact::{CollectOutcome, Fact};
use cofferdam_run::limits::Spend;
use rusqlite::{Connection, params};

use crate::error::LedgerError;
use crate::limits::{
    MAX_FACT_BYTES, MAX_REPEATABLE_FACT_BYTES, MAX_REPEATABLE_FACTS, MAX_SINGLE_FACT_BYTES,
    MAX_SINGLE_FACTS,
};
use crate::sqlite::error::{from_sql, to_sql};
use crate::sqlite::row::{Head, json, text};
use crate::store::{Appended, Result};

/// Keeps the fact, or counts it. The caller has asked whose run it is. Refuses before it writes.
pub(super) fn append(
    connection: &Connection,
    head: &mut Head,
    at: TimestampMs,
    fact: &Fact,
) -> Result<Appended> {
    let body = text(fact)?;
    let size = body.len() as u64;
    let (repeatable, single) = tallies(connection, head)?;
    if fact.is_repeatable() {
        if body.len() > MAX_FACT_BYTES
            || repeatable.count >= MAX_REPEATABLE_FACTS
            || repeatable.bytes + size > MAX_REPEATABLE_FACT_BYTES
        {
            derive(connection, head, fact)?;
            count(connection, head, fact.kind())?;
            return Ok(Appended::Counted);
        }
    } else {
        within("a fact in bytes", size, MAX_FACT_BYTES as u64)?;
        within("facts of a run", single.count + 1, MAX_SINGLE_FACTS)?;
        within("facts of a run in bytes", single.bytes + size, MAX_SINGLE_FACT_BYTES)?;
    }
    derive(connection, head, fact)?;
    let seq = head.append(connection, at, "fact", None, &body)?;
    let sql = if fact.is_repeatable() {
        "UPDATE runs SET repeatable_count = repeatable_count + 1,
             repeatable_bytes = repeatable_bytes + ?1 WHERE ordinal = ?2"
    } else {
        "UPDATE runs SET single_count = single_count + 1,
             single_bytes = single_bytes + ?1 WHERE ordinal = ?2"
    };
    connection
        .prepare_cached(sql)?
        .execute(params![to_sql("a fact in bytes", size)?, head.ordinal])?;
    Ok(Appended::Kept { seq })
}

/// Adds a fact that the ledger itself owes the record. It knows no bound, because there are few of
/// them and a run must be able to end.
pub(super) fn append_owed(
    connection: &Connection,
    head: &mut Head,
    at: TimestampMs,
    fact: &Fact,
) -> Result<()> {
    head.append(connection, at, "fact", None, &text(fact)?)?;
    Ok(())
}

struct Tally {
    count: u64,
    bytes: u64,
}

fn tallies(connection: &Connection, head: &Head) -> Result<(Tally, Tally)> {
    let mut statement = connection.prepare_cached(
        "SELECT repeatable_count, repeatable_bytes, single_count, single_bytes
         FROM runs WHERE ordinal = ?1",
    )?;
    let (a, b, c, d) = statement.query_row([head.ordinal], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    })?;
    let tally = |count, bytes| {
        Ok::<_, LedgerError>(Tally {
            count: from_sql("a count of facts", count)?,
            bytes: from_sql("bytes of facts", bytes)?,
        })
    };
    Ok((tally(a, b)?, tally(c, d)?))
}

fn within(what: &'static str, size: u64, limit: u64) -> Result<()> {
    if size > limit { Err(LedgerError::TooLarge { what, size, limit }) } else { Ok(()) }
}

fn count(connection: &Connection, head: &Head, kind: &str) -> Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO counted_facts (run, kind, count) VALUES (?1, ?2, 1)
             ON CONFLICT DO UPDATE SET count = count + 1",
        )?
        .execute(params![head.ordinal, kind])?;
    Ok(())
}

/// How many facts of each kind were counted and not kept.
pub(super) fn counted(connection: &Connection, head: &Head) -> Result<Vec<Fact>> {
    let mut statement = connection
        .prepare_cached("SELECT kind, count FROM counted_facts WHERE run = ?1 ORDER BY kind")?;
    let rows = statement
        .query_map([head.ordinal], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
    let mut out = Vec::new();
    for row in rows {
        let (kind, count) = row?;
        out.push(Fact::Truncated { kind, count: from_sql("a count of facts", count)? });
    }
    Ok(out)
}

/// Moves what lists show. Happens also for facts that are only counted.
fn derive(connection: &Connection, head: &Head, fact: &Fact) -> Result<()> {
    match fact {
        Fact::Collected { outcome, .. } => {
            let (commits, reference) = match outcome {
                CollectOutcome::NoCommits => (Some(0), None),
                CollectOutcome::Fetched { commits, reference, .. } => {
                    (Some(to_sql("a count of commits", *commits)?), Some(reference.as_str()))
                }
                CollectOutcome::Failed { .. } => (None, None),
            };
            connection
                .prepare_cached("UPDATE runs SET commits = ?1, reference = ?2 WHERE ordinal = ?3")?
                .execute(params![commits, reference, head.ordinal])?;
            Ok(())
        }
        Fact::Spent { spend } => set_spend(connection, head, spend),
        Fact::ModelCall { usage, refusal: None, .. } => {
            let mut statement =
                connection.prepare_cached("SELECT spend FROM runs WHERE ordinal = ?1")?;
            let stored: String = statement.query_row([head.ordinal], |row| row.get(0))?;
            let so_far: Spend =
                json(&stored).map_err(|e| LedgerError::Corrupt { what: format!("spend: {e}") })?;
            set_spend(connection, head, &sum(&so_far, usage))
        }
        _ => Ok(()),
    }
}

fn set_spend(connection: &Connection, head: &Head, spend: &Spend) -> Result<()> {
    connection
        .prepare_cached("UPDATE runs SET spend = ?1 WHERE ordinal = ?2")?
        .execute(params![text(spend)?, head.ordinal])?;
    Ok(())
}

fn sum(a: &Spend, call: &Spend) -> Spend {
    Spend {
        input_tokens: a.input_tokens.saturating_add(call.input_tokens),
        cache_read_tokens: a.cache_read_tokens.saturating_add(call.cache_read_tokens),
        cache_write_tokens: a.cache_write_tokens.saturating_add(call.cache_write_tokens),
        output_tokens: a.output_tokens.saturating_add(call.output_tokens),
        calls_counted_by_size: a.calls_counted_by_size.saturating_add(call.calls_counted_by_size),
        // One admitted call is one call, whatever its usage says.
        model_calls: a.model_calls.saturating_add(call.model_calls.max(1)),
        micro_usd: match (a.micro_usd, call.micro_usd) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
        },
    }
}
