//! A run's row: load it with every check, change it only where it still is what was loaded.
//!
//! An unknown or contradictory value is an error, never a default.

use cofferdam_run::{CancelRequest, Lease, Run, RunEvent, RunId, State, StateName, TimestampMs};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{at_to_sql, from_sql, to_sql};
use crate::error::LedgerError;
use crate::limits::MAX_EVENT_BYTES;
use crate::store::{Lost, Result};

/// Columns that [`parse`] reads, in its order.
pub(super) const COLUMNS: &str = "ordinal, id, spec, state, state_json, created_at, updated_at, \
     cancel_by, cancel_at, owner, epoch, lease_expires, last_seq, mode";

/// A run and what its row says besides.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) ordinal: i64,
    pub(super) run: Run,
    /// The epoch of the newest claim; stays when the run is over.
    pub(super) epoch: u64,
    pub(super) last_seq: u64,
}

/// The run with that id.
pub(super) fn load(connection: &Connection, id: &RunId) -> Result<Loaded> {
    find(connection, id)?.ok_or_else(|| LedgerError::NoSuchRun { id: id.to_string() })
}

pub(super) fn find(connection: &Connection, id: &RunId) -> Result<Option<Loaded>> {
    let sql = format!("SELECT {COLUMNS} FROM runs WHERE id = ?1");
    let mut statement = connection.prepare_cached(&sql)?;
    let raw = statement.query_row([id.as_str()], |row| Ok(parse(row))).optional()?;
    raw.transpose()
}

/// Decodes a row of [`COLUMNS`].
pub(super) fn parse(row: &Row<'_>) -> Result<Loaded> {
    let id_text: String = row.get(1)?;
    let corrupt = |what: String| LedgerError::Corrupt { what: format!("run {id_text}: {what}") };
    let id: RunId = id_text.parse().map_err(|_| corrupt("its id is not one".to_owned()))?;
    let spec: cofferdam_run::RunSpec =
        json(&row.get::<_, String>(2)?).map_err(|e| corrupt(format!("spec: {e}")))?;
    let name: StateName = row.get::<_, String>(3)?.parse().map_err(corrupt)?;
    let state: State =
        json(&row.get::<_, String>(4)?).map_err(|e| corrupt(format!("state: {e}")))?;
    if state.name() != name {
        return Err(corrupt(format!("state is {name} and {}", state.name())));
    }
    let mode: String = row.get(13)?;
    if mode != mode_name(spec.mode) {
        return Err(corrupt(format!("mode is {mode} and {}", mode_name(spec.mode))));
    }
    let created_at = TimestampMs(from_sql("created_at", row.get(5)?)?);
    let updated_at = TimestampMs(from_sql("updated_at", row.get(6)?)?);
    let cancel = match (row.get::<_, Option<String>>(7)?, row.get::<_, Option<i64>>(8)?) {
        (Some(by), Some(at)) => {
            Some(CancelRequest { by, at: TimestampMs(from_sql("cancel_at", at)?) })
        }
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            return Err(corrupt("half a wish to cancel".to_owned()));
        }
    };
    let epoch = from_sql("epoch", row.get(10)?)?;
    let stored = match (row.get::<_, Option<String>>(9)?, row.get::<_, Option<i64>>(11)?) {
        (Some(owner), Some(expires)) => {
            let expires_at = TimestampMs(from_sql("lease_expires", expires)?);
            Some(Lease { owner, epoch, expires_at })
        }
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => return Err(corrupt("half a lease".to_owned())),
    };
    // Heartbeats move only the columns, so the expiry there is the true one.
    let state = match (state.lease(), stored) {
        (None, None) => state,
        (Some(held), Some(stored)) if held.epoch == stored.epoch && held.owner == stored.owner => {
            state.with_lease(stored)
        }
        (Some(_) | None, Some(_)) | (Some(_), None) => {
            return Err(corrupt("state and lease contradict one another".to_owned()));
        }
    };
    let run = Run { id, spec, state, cancel, created_at, updated_at };
    let run = run.restored().map_err(|e| corrupt(e.to_string()))?;
    let last_seq = from_sql("last_seq", row.get(12)?)?;
    Ok(Loaded { ordinal: row.get(0)?, run, epoch, last_seq })
}

pub(super) fn mode_name(mode: cofferdam_run::spec::Mode) -> &'static str {
    match mode {
        cofferdam_run::spec::Mode::Unattended => "unattended",
        cofferdam_run::spec::Mode::Supervised => "supervised",
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

impl Loaded {
    /// Checks that `epoch` may write. A run that is over takes no write at all.
    pub(super) fn fence(&self, epoch: u64, right: Right) -> std::result::Result<(), Lost> {
        self.still_open()?;
        let Some(lease) = self.run.state.lease() else {
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
        let state = self.run.state.name();
        if state.is_terminal() { Err(Lost::Over { state }) } else { Ok(()) }
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
        let epoch = self.run.state.lease().map(|_| to_sql("an epoch", self.epoch)).transpose()?;
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

    /// Writes a transition: its event and the row, where that still is what was loaded. `None` when
    /// it is not; nothing may be kept then.
    pub(super) fn advance(
        &mut self,
        connection: &Connection,
        event: &RunEvent,
        next: Run,
        at: TimestampMs,
    ) -> Result<Option<u64>> {
        let body = text(event)?;
        // A verdict is bounded by the facts it comes from, and a run must be able to end.
        let bounded = !matches!(event, RunEvent::Settled { .. });
        if bounded && body.len() > MAX_EVENT_BYTES {
            return Err(LedgerError::TooLarge {
                what: "an event in bytes",
                size: body.len() as u64,
                limit: MAX_EVENT_BYTES as u64,
            });
        }
        let seq = self.append(connection, at, "transition", Some(next.state.name()), &body)?;
        let lease = next.state.lease();
        let epoch = lease.map_or(self.epoch, |l| l.epoch);
        let mut statement = connection.prepare_cached(
            "UPDATE runs SET spec = ?1, state = ?2, state_json = ?3, updated_at = ?4,
                 cancel_by = ?5, cancel_at = ?6, owner = ?7, epoch = ?8, lease_expires = ?9,
                 verdict = ?10
             WHERE ordinal = ?11 AND state = ?12 AND epoch = ?13",
        )?;
        let changed = statement.execute(params![
            text(&next.spec)?,
            next.state.name().as_str(),
            text(&next.state)?,
            at_to_sql(next.updated_at)?,
            next.cancel.as_ref().map(|c| c.by.as_str()),
            next.cancel.as_ref().map(|c| at_to_sql(c.at)).transpose()?,
            lease.map(|l| l.owner.as_str()),
            to_sql("an epoch", epoch)?,
            lease.map(|l| at_to_sql(l.expires_at)).transpose()?,
            next.state.verdict().map(text).transpose()?,
            self.ordinal,
            self.run.state.name().as_str(),
            to_sql("an epoch", self.epoch)?,
        ])?;
        if changed != 1 {
            return Ok(None);
        }
        self.run = next;
        self.epoch = epoch;
        Ok(Some(seq))
    }
}

/// JSON as stored.
pub(super) fn text(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| LedgerError::Database { detail: e.to_string() })
}

/// A stored JSON value.
pub(super) fn json<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text)
}
