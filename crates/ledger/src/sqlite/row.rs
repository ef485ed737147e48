//! A run's row: load it with every check, change it only where it still is what was loaded.
//!
//! [`Head`] is what most writes need and costs no decoding; [`Loaded`] is the whole run. An unknown
//! or contradictory value is an error, never a default.

use cofferdam_run::spec::Mode;
use cofferdam_run::{CancelRequest, Lease, Run, RunEvent, RunId, State, StateName, TimestampMs};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{at_to_sql, from_sql, to_sql};
use crate::error::LedgerError;
use crate::limits::MAX_EVENT_BYTES;
use crate::store::{Lost, Result};

/// Columns that [`head`] reads, in its order.
const HEAD_COLUMNS: &str = "ordinal, id, state, cancel_by, cancel_at, owner, epoch, lease_expires, \
     last_seq, output_budget";

/// Columns that [`parse`] reads: those of the head, then its own.
pub(super) const COLUMNS: &str = "ordinal, id, state, cancel_by, cancel_at, owner, epoch, \
     lease_expires, last_seq, output_budget, state_json, created_at, updated_at, mode, \
     (SELECT body FROM specs WHERE specs.run = runs.ordinal), due_at";

/// What a write must know of a run: whose it is, and where its log ends.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) ordinal: i64,
    pub(super) id: RunId,
    pub(super) state: StateName,
    pub(super) cancel: Option<CancelRequest>,
    /// Present exactly while somebody must work on the run.
    pub(super) lease: Option<Lease>,
    /// The epoch of the newest claim; stays when the run is over.
    pub(super) epoch: u64,
    pub(super) last_seq: u64,
    /// Bytes of output that may be kept.
    pub(super) output_budget: u64,
}

/// A run and its head.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) head: Head,
    pub(super) run: Run,
}

/// The head of the run with that id.
pub(super) fn head(connection: &Connection, id: &RunId) -> Result<Head> {
    let sql = format!("SELECT {HEAD_COLUMNS} FROM runs WHERE id = ?1");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row([id.as_str()], |row| Ok(parse_head(row))).optional()?;
    found.unwrap_or_else(|| Err(LedgerError::NoSuchRun { id: id.to_string() }))
}

/// The run with that id.
pub(super) fn load(connection: &Connection, id: &RunId) -> Result<Loaded> {
    let sql = format!("SELECT {COLUMNS} FROM runs WHERE id = ?1");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row([id.as_str()], |row| Ok(parse(row))).optional()?;
    found.unwrap_or_else(|| Err(LedgerError::NoSuchRun { id: id.to_string() }))
}

fn parse_head(row: &Row<'_>) -> Result<Head> {
    let id_text: String = row.get(1)?;
    let corrupt = |what: String| LedgerError::Corrupt { what: format!("run {id_text}: {what}") };
    let id: RunId = id_text.parse().map_err(|_| corrupt("its id is not one".to_owned()))?;
    let state: StateName = row.get::<_, String>(2)?.parse().map_err(corrupt)?;
    let cancel = match (row.get::<_, Option<String>>(3)?, row.get::<_, Option<i64>>(4)?) {
        (Some(by), Some(at)) => {
            Some(CancelRequest { by, at: TimestampMs(from_sql("cancel_at", at)?) })
        }
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            return Err(corrupt("half a wish to cancel".to_owned()));
        }
    };
    let epoch = from_sql("epoch", row.get(6)?)?;
    let lease = match (row.get::<_, Option<String>>(5)?, row.get::<_, Option<i64>>(7)?) {
        (Some(owner), Some(expires)) => {
            let expires_at = TimestampMs(from_sql("lease_expires", expires)?);
            Some(Lease { owner, epoch, expires_at })
        }
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => return Err(corrupt("half a lease".to_owned())),
    };
    Ok(Head {
        ordinal: row.get(0)?,
        id,
        state,
        cancel,
        lease,
        epoch,
        last_seq: from_sql("last_seq", row.get(8)?)?,
        output_budget: from_sql("output_budget", row.get(9)?)?,
    })
}

/// Decodes a row of [`COLUMNS`].
pub(super) fn parse(row: &Row<'_>) -> Result<Loaded> {
    let head = parse_head(row)?;
    let corrupt = |what: String| LedgerError::Corrupt { what: format!("run {}: {what}", head.id) };
    let state: State =
        json(&row.get::<_, String>(10)?).map_err(|e| corrupt(format!("state: {e}")))?;
    if state.name() != head.state {
        return Err(corrupt(format!("state is {} and {}", head.state, state.name())));
    }
    // The queue is read by the column, the run by its state.
    if due_of(&state)? != row.get(15)? {
        return Err(corrupt("it waits until two instants".to_owned()));
    }
    let spec: Option<String> = row.get(14)?;
    let spec = spec.ok_or_else(|| corrupt("it has no specification".to_owned()))?;
    let spec: cofferdam_run::RunSpec =
        json(&spec).map_err(|e| corrupt(format!("specification: {e}")))?;
    let mode: String = row.get(13)?;
    if mode != mode_name(spec.mode) {
        return Err(corrupt(format!("mode is {mode} and {}", mode_name(spec.mode))));
    }
    // Heartbeats move only the columns, so the expiry there is the true one.
    let state = match (state.lease(), &head.lease) {
        (None, None) => state,
        (Some(held), Some(stored)) if held.epoch == stored.epoch && held.owner == stored.owner => {
            state.with_lease(stored.clone())
        }
        (Some(_) | None, Some(_)) | (Some(_), None) => {
            return Err(corrupt("state and lease contradict one another".to_owned()));
        }
    };
    let run = Run {
        id: head.id.clone(),
        spec,
        state,
        cancel: head.cancel.clone(),
        created_at: TimestampMs(from_sql("created_at", row.get(11)?)?),
        updated_at: TimestampMs(from_sql("updated_at", row.get(12)?)?),
    };
    let run = run.restored().map_err(|e| corrupt(e.to_string()))?;
    Ok(Loaded { head, run })
}

/// Until when a queued run waits, as its column has it.
pub(super) fn due_of(state: &State) -> Result<Option<i64>> {
    match state {
        State::Queued { due: Some(due) } => Ok(Some(at_to_sql(due.at)?)),
        _ => Ok(None),
    }
}

pub(super) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Unattended => "unattended",
        Mode::Supervised => "supervised",
    }
}

/// How much right a write needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    /// The newest claim, and its lease valid at this instant.
    ValidLease(TimestampMs),
    /// The newest claim, expired or not.
    NewestClaim,
}

impl Head {
    /// Checks that `epoch` may write. A run that is over takes no write at all.
    pub(super) fn fence(&self, epoch: u64, right: Right) -> std::result::Result<(), Lost> {
        self.still_open()?;
        let Some(lease) = &self.lease else {
            return Err(Lost::Epoch { current: self.epoch });
        };
        if lease.epoch != epoch {
            return Err(Lost::Epoch { current: lease.epoch });
        }
        match right {
            Right::ValidLease(at) if lease.is_expired(at) => {
                Err(Lost::Expired { at: lease.expires_at })
            }
            Right::ValidLease(_) | Right::NewestClaim => Ok(()),
        }
    }

    pub(super) fn still_open(&self) -> std::result::Result<(), Lost> {
        if self.state.is_terminal() { Err(Lost::Over { state: self.state }) } else { Ok(()) }
    }

    /// Writes an event under the next sequence number and returns that.
    pub(super) fn append(
        &mut self,
        connection: &Connection,
        at: TimestampMs,
        kind: &str,
        state: Option<StateName>,
        body: &dyn rusqlite::ToSql,
    ) -> Result<u64> {
        let seq = self.last_seq + 1;
        let mut statement = connection.prepare_cached(
            "INSERT INTO events (run, seq, at, epoch, kind, state, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        let epoch = self.lease.as_ref().map(|l| to_sql("an epoch", l.epoch)).transpose()?;
        statement.execute(params![
            self.ordinal,
            to_sql("a sequence number", seq)?,
            at_to_sql(at)?,
            epoch,
            kind,
            state.map(StateName::as_str),
            body,
        ])?;
        self.last_seq = seq;
        Ok(seq)
    }
}

impl Loaded {
    /// Writes a transition: its event and the row, where that still is what was loaded.
    ///
    /// # Errors
    /// `Corrupt` when it is not. Under the write lock that cannot be, so it is no lost race; as an
    /// error it also rolls the event back.
    pub(super) fn advance(
        mut self,
        connection: &Connection,
        event: &RunEvent,
        next: Run,
        at: TimestampMs,
    ) -> Result<(Run, u64)> {
        let body = text(event)?;
        // A verdict is bounded by the facts it comes from, and a run must be able to end.
        let bounded = !matches!(event, RunEvent::Settled { .. } | RunEvent::GivenUp { .. });
        if bounded && body.len() > MAX_EVENT_BYTES {
            return Err(LedgerError::TooLarge {
                what: "an event in bytes",
                size: body.len() as u64,
                limit: MAX_EVENT_BYTES as u64,
            });
        }
        let seq = self.head.append(connection, at, "transition", Some(next.state.name()), &body)?;
        if next.spec != self.run.spec {
            connection
                .prepare_cached("UPDATE specs SET body = ?1 WHERE run = ?2")?
                .execute(params![text(&next.spec)?, self.head.ordinal])?;
        }
        let lease = next.state.lease();
        let epoch = lease.map_or(self.head.epoch, |l| l.epoch);
        let mut statement = connection.prepare_cached(
            "UPDATE runs SET state = ?1, state_json = ?2, updated_at = ?3, cancel_by = ?4,
                 cancel_at = ?5, owner = ?6, epoch = ?7, lease_expires = ?8, verdict = ?9,
                 output_budget = ?10, due_at = ?11
             WHERE ordinal = ?12 AND state = ?13 AND epoch = ?14",
        )?;
        let changed = statement.execute(params![
            next.state.name().as_str(),
            text(&next.state)?,
            at_to_sql(next.updated_at)?,
            next.cancel.as_ref().map(|c| c.by.as_str()),
            next.cancel.as_ref().map(|c| at_to_sql(c.at)).transpose()?,
            lease.map(|l| l.owner.as_str()),
            to_sql("an epoch", epoch)?,
            lease.map(|l| at_to_sql(l.expires_at)).transpose()?,
            next.state.verdict().map(text).transpose()?,
            clamped(next.spec.budgets.output_bytes),
            due_of(&next.state)?,
            self.head.ordinal,
            self.head.state.as_str(),
            to_sql("an epoch", self.head.epoch)?,
        ])?;
        if changed != 1 {
            let what = format!("run {} changed under the write lock", self.head.id);
            return Err(LedgerError::Corrupt { what });
        }
        Ok((next, seq))
    }
}

/// A bound, lowered to the largest that can be stored.
pub(super) fn clamped(bound: u64) -> i64 {
    i64::try_from(bound).unwrap_or(i64::MAX)
}

/// JSON as stored.
pub(super) fn text(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| LedgerError::Database { detail: e.to_string() })
}

/// A stored JSON value.
pub(super) fn json<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text)
}
