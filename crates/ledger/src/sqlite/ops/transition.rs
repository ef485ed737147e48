//! Transitions: load, step, event and row, all in one transaction.

use cofferdam_run::{RunEvent, RunId, TimestampMs, step};
use rusqlite::Connection;

use super::settle;
use crate::error::LedgerError;
use crate::sqlite::row::{Right, head, load};
use crate::store::{Applied, CancelOutcome, Lost, Result};

pub(in crate::sqlite) fn apply(
    connection: &Connection,
    id: &RunId,
    epoch: Option<u64>,
    event: &RunEvent,
    at: TimestampMs,
) -> Result<Applied> {
    match event {
        RunEvent::Claimed { .. } => {
            return Err(LedgerError::Misuse { what: "claim through apply" });
        }
        RunEvent::Settled { .. } | RunEvent::GivenUp { .. } => {
            return Err(LedgerError::Misuse { what: "settle through apply" });
        }
        _ => {}
    }
    let mut loaded = load(connection, id)?;
    let allowed = match epoch {
        Some(epoch) => loaded.head.fence(epoch, Right::ValidLease(at)),
        None if event.needs_owner() => loaded.head.still_open().and(Err(Lost::NoLease)),
        None => loaded.head.still_open(),
    };
    if let Err(lost) = allowed {
        return Ok(Applied::Lost(lost));
    }
    let (next, actions) = match step(loaded.run.clone(), event.clone(), at) {
        Ok(stepped) => stepped,
        Err(error) => return Ok(Applied::Illegal(error)),
    };
    if next.state.is_terminal() {
        // Only a queued run can end here: by a wish to cancel.
        settle::seal_unstarted(connection, &mut loaded, &next, at)?;
    }
    let (run, seq) = loaded.advance(connection, event, next, at)?;
    Ok(Applied::Done { run: Box::new(run), actions, seq })
}

pub(in crate::sqlite) fn request_cancel(
    connection: &Connection,
    id: &RunId,
    by: &str,
    at: TimestampMs,
) -> Result<CancelOutcome> {
    let head = head(connection, id)?;
    if let Some(first) = head.cancel
        && !head.state.is_terminal()
    {
        return Ok(CancelOutcome::AlreadyRequested(first));
    }
    // By characters, and short: it is shown in lists.
    let by = by.chars().take(200).collect();
    match apply(connection, id, None, &RunEvent::CancelRequested { by }, at)? {
        Applied::Done { run, .. } if run.state.is_terminal() => Ok(CancelOutcome::CancelledAtOnce),
        Applied::Done { run, .. } => match run.cancel {
            Some(request) => Ok(CancelOutcome::Requested(request)),
            None => Err(LedgerError::Corrupt { what: format!("run {id} lost a wish to cancel") }),
        },
        Applied::Lost(Lost::Over { state }) => Ok(CancelOutcome::AlreadyOver(state)),
        Applied::Lost(_) | Applied::Illegal(_) => {
            Err(LedgerError::Misuse { what: "a cancel that a live run refuses" })
        }
    }
}
