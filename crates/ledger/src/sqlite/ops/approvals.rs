//! Approvals: asked together with the run's waiting, decided together with its going on, used once.

use cofferdam_run::approval::{Approval, ApprovalState, Decision, Refusal};
use cofferdam_run::{Actor, ApprovalId, Ask, Decider, Digest, RunEvent, RunId, State, TimestampMs};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::ids::stored;
use super::task::query::{bounds, paged};
use super::transition::apply_alone;
use crate::error::LedgerError;
use crate::sqlite::error::{at_to_sql, from_sql};
use crate::sqlite::row::{Right, head, json, load as load_run, text};
use crate::store::approvals::{ApprovalFilter, Asked, Decided, NewApproval, Used};
use crate::store::work::{Page, Paged};
use crate::store::{Applied, Lost, Result};

const COLUMNS: &str = "a.ordinal, a.id, (SELECT id FROM runs WHERE ordinal = a.run), a.ask, \
     a.subject, a.digest, a.asked_by, a.asked_at, a.expires_at, a.state, a.decided_by, \
     a.decided_at, a.note, a.closed_at";

fn parse(row: &Row<'_>) -> Result<(i64, Approval)> {
    let id_text: String = row.get(1)?;
    let corrupt =
        |what: String| LedgerError::Corrupt { what: format!("approval {id_text}: {what}") };
    let by: Option<Actor> = super::ids::maybe("actor", row.get(10)?)?;
    let at = |column: usize| -> Result<Option<TimestampMs>> {
        let value: Option<i64> = row.get(column)?;
        value.map(|v| from_sql("an instant", v).map(TimestampMs)).transpose()
    };
    let (decided, closed) = (at(11)?, at(13)?);
    let note: String = row.get(12)?;
    let state = match (row.get::<_, String>(9)?.as_str(), by, decided, closed) {
        ("pending", None, None, None) => ApprovalState::Pending,
        ("approved", Some(by), Some(at), None) => ApprovalState::Approved { by, at },
        ("rejected", Some(by), Some(at), None) => ApprovalState::Rejected { by, at, reason: note },
        ("consumed", Some(by), Some(at), Some(used_at)) => {
            ApprovalState::Consumed { by, at, used_at }
        }
        ("expired", None, None, Some(at)) => ApprovalState::Expired { at },
        ("withdrawn", _, _, Some(at)) => ApprovalState::Withdrawn { at, why: note },
        (state, ..) => return Err(corrupt(format!("its state {state} contradicts the rest"))),
    };
    let subject: cofferdam_run::approval::Subject =
        json(&row.get::<_, String>(4)?).map_err(|e| corrupt(format!("subject: {e}")))?;
    if subject.digest.as_str() != row.get::<_, String>(5)? || !subject.is_sound() {
        return Err(corrupt("its subject is not what its digest says".to_owned()));
    }
    Ok((
        row.get(0)?,
        Approval {
            run: stored("run id", &row.get::<_, String>(2)?)?,
            ask: row.get(3)?,
            subject,
            asked_by: stored("actor", &row.get::<_, String>(6)?)?,
            asked_at: TimestampMs(from_sql("asked_at", row.get(7)?)?),
            expires_at: TimestampMs(from_sql("expires_at", row.get(8)?)?),
            state,
            id: stored("approval id", &id_text)?,
        },
    ))
}

fn load(connection: &Connection, id: &ApprovalId) -> Result<(i64, Approval)> {
    let sql = format!("SELECT {COLUMNS} FROM approvals AS a WHERE a.id = ?1");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row([id.as_str()], |row| Ok(parse(row))).optional()?;
    found.unwrap_or_else(|| Err(LedgerError::NotFound { kind: "approval", id: id.to_string() }))
}

fn store(connection: &Connection, ordinal: i64, approval: &Approval) -> Result<()> {
    let (by, decided, note, closed) = match &approval.state {
        ApprovalState::Pending => (None, None, "", None),
        ApprovalState::Approved { by, at } => (Some(by), Some(*at), "", None),
        ApprovalState::Rejected { by, at, reason } => (Some(by), Some(*at), reason.as_str(), None),
        ApprovalState::Consumed { by, at, used_at } => (Some(by), Some(*at), "", Some(*used_at)),
        ApprovalState::Expired { at } => (None, None, "", Some(*at)),
        ApprovalState::Withdrawn { at, why } => (None, None, why.as_str(), Some(*at)),
    };
    // Who said yes stays, also when it was withdrawn before it was used.
    let changed = connection
        .prepare_cached(
            "UPDATE approvals SET state = ?1, decided_by = coalesce(?2, decided_by),
                 decided_at = coalesce(?3, decided_at), note = ?4, closed_at = ?5
             WHERE ordinal = ?6 AND state IN ('pending', 'approved')",
        )?
        .execute(params![
            approval.state.name(),
            by.map(ToString::to_string),
            decided.map(at_to_sql).transpose()?,
            note,
            closed.map(at_to_sql).transpose()?,
            ordinal,
        ])?;
    if changed == 1 {
        return Ok(());
    }
    let what = format!("approval {} changed under the write lock", approval.id);
    Err(LedgerError::Corrupt { what })
}

pub(in crate::sqlite) fn ask(
    connection: &Connection,
    run: &RunId,
    epoch: u64,
    new: &NewApproval,
    at: TimestampMs,
) -> Result<Asked> {
    let asked = Ask { id: new.ask.clone(), text: new.subject.text.clone() };
    let event = RunEvent::ApprovalAsked { ask: asked };
    let actions = match apply_alone(connection, run, Some(epoch), &event, at)? {
        Applied::Done { run, actions, .. } => {
            if run.cancel.is_some() {
                // The question became the stop that was owed.
                return Ok(Asked::Lost(Lost::Stopping));
            }
            actions
        }
        Applied::Lost(lost) => return Ok(Asked::Lost(lost)),
        Applied::Illegal(error) => return Ok(Asked::Illegal(error)),
    };
    if !new.subject.is_sound() {
        return Err(LedgerError::Misuse { what: "a subject with another's digest" });
    }
    let row = head(connection, run)?.ordinal;
    let known = connection
        .prepare_cached("SELECT 1 FROM approvals WHERE run = ?1 AND ask = ?2")?
        .exists(params![row, new.ask])?;
    if known {
        return Err(LedgerError::Misuse { what: "a question that was asked before" });
    }
    connection
        .prepare_cached(
            "INSERT INTO approvals (id, run, ask, subject, digest, asked_by, asked_at, expires_at,
                 state)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'pending')",
        )?
        .execute(params![
            new.id.as_str(),
            row,
            new.ask,
            text(&new.subject)?,
            new.subject.digest.as_str(),
            Actor::Agent(run.clone()).to_string(),
            at_to_sql(at)?,
            at_to_sql(new.expires_at)?,
        ])?;
    let (_, approval) = load(connection, &new.id)?;
    Ok(Asked::Waiting { approval: Box::new(approval), actions })
}

pub(in crate::sqlite) fn decide(
    connection: &Connection,
    id: &ApprovalId,
    by: &Decider,
    decision: Decision,
    reason: &str,
    at: TimestampMs,
) -> Result<Decided> {
    let (ordinal, approval) = load(connection, id)?;
    let decided = match approval.clone().decide(by, decision, reason, at) {
        Ok(decided) => decided,
        Err(refusal) => return Ok(Decided::Refused { refusal, approval: Box::new(approval) }),
    };
    let event = RunEvent::ApprovalDecided {
        ask: approval.ask.clone(),
        approved: decision == Decision::Approve,
        by: by.actor().to_string(),
    };
    match apply_alone(connection, &approval.run, None, &event, at)? {
        Applied::Done { run, actions, .. } => {
            store(connection, ordinal, &decided)?;
            Ok(Decided::Counts { approval: Box::new(decided), run, actions })
        }
        // The run went on without it. Its question closes with it.
        Applied::Lost(_) | Applied::Illegal(_) => {
            let why = "the run no longer asks";
            let withdrawn = approval.withdrawn(why, at);
            store(connection, ordinal, &withdrawn)?;
            let refusal = Refusal::Withdrawn { why: why.to_owned() };
            Ok(Decided::Refused { refusal, approval: Box::new(withdrawn) })
        }
    }
}

pub(in crate::sqlite) fn consume(
    connection: &Connection,
    id: &ApprovalId,
    run: &RunId,
    epoch: u64,
    subject: &Digest,
    at: TimestampMs,
) -> Result<Used> {
    let loaded = load_run(connection, run)?;
    if let Err(lost) = loaded.head.fence(epoch, Right::ValidLease(at)) {
        return Ok(Used::Lost(lost));
    }
    let works = matches!(loaded.run.state, State::Planning { .. } | State::Executing { .. });
    if !works || loaded.run.cancel.is_some() {
        return Ok(Used::Lost(Lost::Stopping));
    }
    let (ordinal, approval) = load(connection, id)?;
    match approval.consume(run, subject, at) {
        Ok(used) => {
            store(connection, ordinal, &used)?;
            Ok(Used::Granted(Box::new(used)))
        }
        Err(refusal) => Ok(Used::Refused(refusal)),
    }
}

/// Closes whatever a run had asked and not used.
pub(super) fn withdraw_all(
    connection: &Connection,
    run: i64,
    why: &str,
    at: TimestampMs,
) -> Result<()> {
    let sql = format!(
        "SELECT {COLUMNS} FROM approvals AS a
         WHERE a.run = ?1 AND a.state IN ('pending', 'approved') ORDER BY a.ordinal"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([run])?;
    let mut open = Vec::new();
    while let Some(row) = rows.next()? {
        open.push(parse(row)?);
    }
    for (ordinal, approval) in open {
        store(connection, ordinal, &approval.withdrawn(why, at))?;
    }
    Ok(())
}

pub(in crate::sqlite) fn expire(
    connection: &Connection,
    now: TimestampMs,
) -> Result<Vec<Approval>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM approvals AS a
         WHERE a.state = 'pending' AND a.expires_at <= ?1 ORDER BY a.ordinal"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([at_to_sql(now)?])?;
    let mut due = Vec::new();
    while let Some(row) = rows.next()? {
        due.push(parse(row)?);
    }
    let mut out = Vec::new();
    for (ordinal, approval) in due {
        let event = RunEvent::ApprovalDecided {
            ask: approval.ask.clone(),
            approved: false,
            by: Actor::Host.to_string(),
        };
        // A run that has moved on needs no answer.
        let _ = apply_alone(connection, &approval.run, None, &event, now)?;
        let expired = approval.expired(now);
        store(connection, ordinal, &expired)?;
        out.push(expired);
    }
    Ok(out)
}

pub(in crate::sqlite) fn approval(connection: &Connection, id: &ApprovalId) -> Result<Approval> {
    Ok(load(connection, id)?.1)
}

pub(in crate::sqlite) fn list(
    connection: &Connection,
    filter: &ApprovalFilter,
    page: Page,
) -> Result<Paged<Approval>> {
    let (before, limit) = bounds(page);
    let run = match &filter.run {
        Some(run) => Some(head(connection, run)?.ordinal),
        None => None,
    };
    let sql = format!(
        "SELECT {COLUMNS} FROM approvals AS a
         WHERE a.ordinal < ?1 AND (?2 IS NULL OR a.state = ?2) AND (?3 IS NULL OR a.run = ?3)
         ORDER BY a.ordinal DESC LIMIT ?4"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let most = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![before, filter.state, run, most])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        out.push(parse(row)?);
    }
    Ok(paged(out, limit))
}

pub(in crate::sqlite) fn pending(connection: &Connection) -> Result<u64> {
    let count = connection
        .prepare_cached("SELECT count(*) FROM approvals WHERE state = 'pending'")?
        .query_row([], |row| row.get(0))?;
    from_sql("a count", count)
}
