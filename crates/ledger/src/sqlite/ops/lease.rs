//! Claims and heartbeats. Each claim starts a fresh epoch; nothing of an older one can be written.

use cofferdam_run::{Lease, RunEvent, RunId, StateName, StepError, TimestampMs, step};
use rusqlite::{Connection, params};

use crate::error::LedgerError;
use crate::sqlite::error::at_to_sql;
use crate::sqlite::row::{Loaded, Right, head, load};
use crate::store::{Beat, Result};

pub(in crate::sqlite) fn claim(
    connection: &Connection,
    id: &RunId,
    owner: &str,
    now: TimestampMs,
    ttl_ms: u64,
) -> Result<Option<Lease>> {
    let loaded = load(connection, id)?;
    if loaded.head.state == StateName::Queued && thread_is_busy(connection, loaded.head.ordinal)? {
        return Ok(None);
    }
    take(connection, loaded, owner, now, ttl_ms)
}

/// A thread's turns follow one another: nobody works on another turn of it, and no earlier one is
/// open.
fn thread_is_busy(connection: &Connection, ordinal: i64) -> Result<bool> {
    Ok(connection
        .prepare_cached(
            "SELECT 1 FROM runs AS mine WHERE mine.ordinal = ?1 AND mine.thread IS NOT NULL AND (
                 EXISTS (SELECT 1 FROM runs AS held
                         WHERE held.thread = mine.thread AND held.owner IS NOT NULL)
                 OR EXISTS (SELECT 1 FROM tasks AS earlier
                            WHERE earlier.thread = mine.thread AND earlier.state = 'open'
                              AND earlier.ordinal < mine.task))",
        )?
        .exists([ordinal])?)
}

/// The claim itself.
pub(super) fn take(
    connection: &Connection,
    loaded: Loaded,
    owner: &str,
    now: TimestampMs,
    ttl_ms: u64,
) -> Result<Option<Lease>> {
    let lease = Lease {
        owner: owner.to_owned(),
        epoch: loaded.head.epoch + 1,
        expires_at: expiry(now, ttl_ms),
    };
    let event = RunEvent::Claimed { lease: lease.clone() };
    let next = match step(loaded.run.clone(), event.clone(), now) {
        // The actions follow from the state, which the new owner reads.
        Ok((next, _actions)) => next,
        Err(StepError::LeaseHeld { .. } | StepError::NotDue { .. } | StepError::Illegal { .. }) => {
            return Ok(None);
        }
        Err(
            StepError::StaleEpoch { .. }
            | StepError::NotAsked { .. }
            | StepError::NobodyThere
            | StepError::BeyondShare { .. }
            | StepError::Contradiction { .. },
        ) => {
            return Err(LedgerError::Corrupt {
                what: format!("run {}: its epoch goes back", loaded.head.id),
            });
        }
    };
    loaded.advance(connection, &event, next, now)?;
    Ok(Some(lease))
}

pub(in crate::sqlite) fn heartbeat(
    connection: &Connection,
    id: &RunId,
    epoch: u64,
    now: TimestampMs,
    ttl_ms: u64,
) -> Result<Beat> {
    let head = head(connection, id)?;
    if let Err(lost) = head.fence(epoch, Right::NewestClaim) {
        return Ok(Beat::Lost(lost));
    }
    let expires_at = expiry(now, ttl_ms);
    connection
        .prepare_cached("UPDATE runs SET lease_expires = ?1 WHERE ordinal = ?2")?
        .execute(params![at_to_sql(expires_at)?, head.ordinal])?;
    let Some(held) = head.lease else {
        return Err(LedgerError::Corrupt { what: format!("run {id} is held by nobody") });
    };
    Ok(Beat::Held { lease: Lease { expires_at, ..held }, cancel: head.cancel })
}

/// Never past what the database can store.
fn expiry(now: TimestampMs, ttl_ms: u64) -> TimestampMs {
    now.plus_ms(ttl_ms).min(TimestampMs(i64::MAX.unsigned_abs()))
}
