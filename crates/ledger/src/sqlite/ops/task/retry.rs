//! An operator's retry and cancel.

use cofferdam_run::retry::Tally;
use cofferdam_run::task::{RetryRefusal, Task, TaskState};
use cofferdam_run::{Actor, CancelRequest, RunSpec, TaskId, TimestampMs};
use rusqlite::{Connection, OptionalExtension};

use super::create::{free_run_id, insert_attempt};
use super::row::{load_id, update};
use super::tree::{self, Ended};
use crate::sqlite::ops::ids::{Table, ordinal, stored};
use crate::store::Result;
use crate::store::work::{Retried, TreeCancelled};

pub(in crate::sqlite) fn retry_task(
    connection: &Connection,
    id: &TaskId,
    edited: Option<&RunSpec>,
    by: &Actor,
    at: TimestampMs,
) -> Result<Retried> {
    let found = load_id(connection, id)?;
    let next = match found.task.retried(edited.cloned()) {
        Ok(next) => next,
        Err(refusal) => return Ok(Retried::Refused(refusal)),
    };
    if let Some(thread) = &found.task.thread {
        let thread = ordinal(connection, Table::Threads, thread.as_str())?;
        let busy: Option<String> = connection
            .prepare_cached("SELECT id FROM tasks WHERE thread = ?1 AND state = 'open' LIMIT 1")?
            .query_row([thread], |row| row.get(0))
            .optional()?;
        if let Some(task) = busy {
            let task = stored("task id", &task)?;
            return Ok(Retried::Refused(RetryRefusal::ThreadBusy { task }));
        }
    }
    tracing::info!(task = %id, by = %by, attempt = next.number, "retry");
    let run = free_run_id(connection, id, next.number)?;
    let task = Task {
        spec: next.spec.clone(),
        tally: Tally::default(),
        attempts: next.number,
        cancel: None,
        state: TaskState::Open { run: run.clone() },
        updated_at: found.task.updated_at.max(at),
        ..found.task
    };
    insert_attempt(connection, found.ordinal, &task, &run, &next, at)?;
    update(connection, found.ordinal, &task)?;
    Ok(Retried::Queued { task: Box::new(task), run })
}

pub(in crate::sqlite) fn cancel_task(
    connection: &Connection,
    id: &TaskId,
    by: &str,
    at: TimestampMs,
) -> Result<TreeCancelled> {
    let found = load_id(connection, id)?;
    let mut ended = Ended::default();
    let request = CancelRequest { by: by.chars().take(200).collect(), at };
    tree::cancel_open(connection, found.ordinal, &request, &mut ended)?;
    Ok(ended)
}
