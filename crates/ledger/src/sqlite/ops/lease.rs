//! Claims and heartbeats. Each claim starts a fresh epoch; nothing of an older one can be written.

use cofferdam_run::{Lease, RunEvent, RunId, StepError, TimestampMs, step};
use rusqlite::{Connection, params};

use crate::error::LedgerError;
use crate::sqlite::error::at_to_sql;
use crate::sqlite::row::{Right, head, load};
use crate::store::{Beat, Result};

pub(in crate::sqlite) fn claim(
    connection: &Connection,
    id: &RunId,
    owner: &str,
    now: TimestampMs,
    ttl_ms: u64,
) -> Result<Option<Lease>> {
    let loaded = load(connection, id)?;
    let lease = Lease {
        owner: owner.to_owned(),
        epoch: loaded.head.epoch + 1,
        expires_at: expiry(now, ttl_ms),
    };
    let event = RunEvent::Claimed { lease: lease.clone() };
    let next = match step(loaded.run.clone(), event.clone(), now) {
        // The actions follow from the state, which the new owner reads.
        Ok((next, _actions)) => next,
        Err(
            StepError::LeaseHeld { .. } | StepError::NotDue { .. } | StepError::Illegal { .. },
        ) => return Ok(None),
        Err(
            StepError::StaleEpoch { .. }
            | StepError::NotAsked { .. }
            | StepError::NobodyThere
            | StepError::Contradiction { .. },
        ) => {
            return Err(LedgerError::Corrupt { what: format!("run {id}: its epoch goes back") });
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
