//! Transitions: load, step, event and row, all in one transaction.

use cofferdam_run::{RunEvent, RunId, StepError, TimestampMs, step};
use rusqlite::Connection;

use super::settle;
use super::task::delegate::beyond_share;
use super::task::{end, tree};
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
        RunEvent::ApprovalAsked { .. } | RunEvent::ApprovalDecided { .. } => {
            return Err(LedgerError::Misuse { what: "an approval through apply" });
        }
        _ => {}
    }
    let applied = apply_alone(connection, id, epoch, event, at)?;
    if let (RunEvent::CancelRequested { .. }, Applied::Done { run, .. }) = (event, &applied)
        && let Some(request) = &run.cancel
    {
        let ordinal = head(connection, id)?.ordinal;
        tree::cancel_below(connection, ordinal, request, &mut tree::Ended::default())?;
    }
    Ok(applied)
}

/// The transition of this one run, whatever the event. What belongs to it elsewhere (the row of an
/// approval, the tree below a cancelled run) the caller moves in the same transaction.
pub(super) fn apply_alone(
    connection: &Connection,
    id: &RunId,
    epoch: Option<u64>,
    event: &RunEvent,
    at: TimestampMs,
) -> Result<Applied> {
    let mut loaded = load(connection, id)?;
    let allowed = match epoch {
        Some(epoch) => loaded.head.fence(epoch, Right::ValidLease(at)),
        None if event.needs_owner() => loaded.head.still_open().and(Err(Lost::NoLease)),
        None => loaded.head.still_open(),
    };
    if let Err(lost) = allowed {
        return Ok(Applied::Lost(lost));
    }
    if let RunEvent::Extended { budgets, .. } = event
        && let Some(budget) = beyond_share(connection, loaded.head.ordinal, budgets)?
    {
        return Ok(Applied::Illegal(StepError::BeyondShare { budget }));
    }
    let (next, actions) = match step(loaded.run.clone(), event.clone(), at) {
        Ok(stepped) => stepped,
        Err(error) => return Ok(Applied::Illegal(error)),
    };
    let ordinal = loaded.head.ordinal;
    let over = next.state.is_terminal();
    if over {
        // Only a queued run can end here: by a wish to cancel.
        settle::seal_unstarted(connection, &mut loaded, &next, at)?;
    }
    let (run, seq) = loaded.advance(connection, event, next, at)?;
    if over {
        let fate = end::Fate::over(connection, ordinal)?;
        end::finish(connection, ordinal, &run, fate, at)?;
    }
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
