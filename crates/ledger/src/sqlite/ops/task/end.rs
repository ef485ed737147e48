//! The end of an attempt and what follows from it, in the transaction that ends the run.
//!
//! Whatever hung on the run goes with it: questions are withdrawn, children are cancelled.

use cofferdam_run::limits::Spend;
use cofferdam_run::retry::classify;
use cofferdam_run::task::{After, AttemptEnd, Task, TaskState};
use cofferdam_run::{CancelRequest, Record, Run, State, TimestampMs};
use rusqlite::Connection;

use super::create::{free_run_id, insert_attempt};
use super::row::{Stored, of_run, update};
use super::tree;
use crate::error::LedgerError;
use crate::sqlite::ops::approvals;
use crate::sqlite::row::{Loaded, json};
use crate::store::Result;

/// What will become of the task of a run that is about to end.
#[derive(Debug)]
pub(in crate::sqlite) struct Fate {
    task: Stored,
    after: After,
    spend: Spend,
}

impl Fate {
    /// The run ends as a dead letter.
    pub(in crate::sqlite) fn is_given_up(&self) -> bool {
        matches!(self.after, After::GivenUp { .. })
    }
}

impl Fate {
    /// The task ends as the run does.
    pub(in crate::sqlite) fn over(connection: &Connection, run: i64) -> Result<Option<Self>> {
        let Some(task) = of_run(connection, run)? else { return Ok(None) };
        Ok(Some(Self { task, after: After::Over, spend: spend_of(connection, run)? }))
    }
}

pub(in crate::sqlite) fn fate(
    connection: &Connection,
    loaded: &Loaded,
    record: &Record,
    at: TimestampMs,
) -> Result<Option<Fate>> {
    let Some(task) = of_run(connection, loaded.head.ordinal)? else { return Ok(None) };
    let spend = spend_of(connection, loaded.head.ordinal)?;
    let after = if loaded.run.cancel.is_some() {
        After::Over
    } else {
        task.task.after(AttemptEnd {
            spec: &loaded.run.spec,
            verdict: &record.verdict,
            class: classify(&record.verdict, record.facts()),
            spend: &spend,
            at,
        })
    };
    Ok(Some(Fate { task, after, spend }))
}

/// What a run spent so far.
pub(super) fn spend_of(connection: &Connection, run: i64) -> Result<Spend> {
    let stored: String = connection
        .prepare_cached("SELECT spend FROM runs WHERE ordinal = ?1")?
        .query_row([run], |row| row.get(0))?;
    json(&stored).map_err(|e| LedgerError::Corrupt { what: format!("spend: {e}") })
}

/// Carries the fate out, once the run itself is terminal.
pub(in crate::sqlite) fn finish(
    connection: &Connection,
    ordinal: i64,
    run: &Run,
    fate: Option<Fate>,
    at: TimestampMs,
) -> Result<()> {
    approvals::withdraw_all(connection, ordinal, "the run is over", at)?;
    if let Some(Fate { task: Stored { ordinal: row, task, .. }, after, spend }) = fate {
        let mut task =
            Task { spent: plus(&task.spent, &spend), updated_at: task.updated_at.max(at), ..task };
        let id = run.id.clone();
        let mut again = None;
        match after {
            After::Again { next, tally } => {
                let id = free_run_id(connection, &task.id, next.number)?;
                task.attempts = next.number;
                task.tally = tally;
                task.state = TaskState::Open { run: id.clone() };
                again = Some((id, next));
            }
            After::GivenUp { exhausted, tally } => {
                task.tally = tally;
                task.state = TaskState::DeadLetter { run: id, exhausted };
            }
            After::Over => {
                task.state = match &run.state {
                    State::Completed { .. } => TaskState::Completed { run: id },
                    State::Cancelled { .. } => TaskState::Cancelled { run: id },
                    State::Failed { .. } => TaskState::Failed { run: id },
                    State::DeadLetter { .. }
                    | State::Queued { .. }
                    | State::Preparing { .. }
                    | State::Planning { .. }
                    | State::Executing { .. }
                    | State::AwaitingApproval { .. }
                    | State::Paused { .. }
                    | State::Collecting { .. } => {
                        let what = format!("run {id} ended as {}", run.state.name());
                        return Err(LedgerError::Corrupt { what });
                    }
                };
                if matches!(run.state, State::Cancelled { .. }) && task.cancel.is_none() {
                    task.cancel = run.cancel.clone();
                }
            }
        }
        if let Some((id, next)) = &again {
            insert_attempt(connection, row, &task, id, next, at)?;
        }
        update(connection, row, &task)?;
    }
    let by = format!("the run {} that delegated it is over", run.id);
    let mut ended = tree::Ended::default();
    tree::cancel_children_of_run(connection, ordinal, &CancelRequest { by, at }, &mut ended)
}

/// Both together, class by class.
pub(super) fn plus(a: &Spend, b: &Spend) -> Spend {
    Spend {
        input_tokens: a.input_tokens.saturating_add(b.input_tokens),
        cache_read_tokens: a.cache_read_tokens.saturating_add(b.cache_read_tokens),
        cache_write_tokens: a.cache_write_tokens.saturating_add(b.cache_write_tokens),
        output_tokens: a.output_tokens.saturating_add(b.output_tokens),
        calls_counted_by_size: a.calls_counted_by_size.saturating_add(b.calls_counted_by_size),
        model_calls: a.model_calls.saturating_add(b.model_calls),
        micro_usd: match (a.micro_usd, b.micro_usd) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
        },
    }
}
