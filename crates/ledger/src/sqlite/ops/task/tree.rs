//! Cancelling what hangs below a run: all of it in one transaction.

use cofferdam_run::{CancelRequest, RunEvent, RunId};
use rusqlite::Connection;

use super::row::{load, update};
use crate::sqlite::ops::transition::apply_alone;
use crate::sqlite::row::head;
use crate::store::work::TreeCancelled;
use crate::store::{Applied, Result};

pub(in crate::sqlite) type Ended = TreeCancelled;

/// Marks the task of a run as cancelled, so that no further attempt is made, and cancels everything
/// below the run.
pub(in crate::sqlite) fn cancel_below(
    connection: &Connection,
    run: i64,
    request: &CancelRequest,
    ended: &mut Ended,
) -> Result<()> {
    if let Some(stored) = super::row::of_run(connection, run)?
        && stored.task.state.is_open()
        && stored.task.cancel.is_none()
    {
        let mut task = stored.task;
        task.cancel = Some(request.clone());
        update(connection, stored.ordinal, &task)?;
    }
    cancel_children_of_run(connection, run, request, ended)
}

/// Cancels the open tasks that a run delegated, and theirs. Depth is bounded by the rules of
/// delegation.
pub(in crate::sqlite) fn cancel_children_of_run(
    connection: &Connection,
    run: i64,
    request: &CancelRequest,
    ended: &mut Ended,
) -> Result<()> {
    let mut statement = connection.prepare_cached(
        "SELECT ordinal FROM tasks WHERE parent_run = ?1 AND state = 'open' ORDER BY ordinal",
    )?;
    let children: Vec<i64> =
        statement.query_map([run], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for child in children {
        cancel_open(connection, child, request, ended)?;
    }
    Ok(())
}

/// Cancels an open task with everything below it.
pub(in crate::sqlite) fn cancel_open(
    connection: &Connection,
    task: i64,
    request: &CancelRequest,
    ended: &mut Ended,
) -> Result<()> {
    let mut found = load(connection, task)?;
    if !found.task.state.is_open() {
        return Ok(());
    }
    let id: RunId = found.task.state.run().clone();
    let head = head(connection, &id)?;
    if found.task.cancel.is_none() {
        found.task.cancel = Some(request.clone());
        update(connection, found.ordinal, &found.task)?;
    }
    // From the bottom up, so that a run which ends on the spot leaves nothing below it.
    cancel_children_of_run(connection, head.ordinal, request, ended)?;
    if head.cancel.is_some() {
        return Ok(());
    }
    let event = RunEvent::CancelRequested { by: request.by.chars().take(200).collect() };
    match apply_alone(connection, &id, None, &event, request.at)? {
        Applied::Done { run, .. } if run.state.is_terminal() => ended.over.push(id),
        Applied::Done { .. } => ended.requested.push(id),
        Applied::Lost(_) | Applied::Illegal(_) => {}
    }
    Ok(())
}
