//! Arming a run.

use cofferdam_run::limits::Spend;
use cofferdam_run::task::Priority;
use cofferdam_run::{Due, Run, RunId, RunSpec, State, TimestampMs};
use rusqlite::{Connection, params};

use crate::error::LedgerError;
use crate::limits::{MAX_SPEC_BYTES, MAX_TITLE_CHARS};
use crate::sqlite::error::at_to_sql;
use crate::sqlite::row::{clamped, due_of, mode_name, text};
use crate::store::{NewRun, Result};

/// Of which task a run is an attempt. Project, thread and agent are the task's.
pub(super) struct Place {
    pub(super) task: i64,
    pub(super) attempt: u32,
    pub(super) retried_from: Option<i64>,
    pub(super) priority: Priority,
    pub(super) due: Option<Due>,
}

pub(in crate::sqlite) fn create_run(connection: &Connection, new: &NewRun) -> Result<Run> {
    insert_run(connection, &new.id, &new.spec, &new.title, new.created_at, None)
}

pub(super) fn insert_run(
    connection: &Connection,
    id: &RunId,
    spec: &RunSpec,
    title: &str,
    created_at: TimestampMs,
    place: Option<&Place>,
) -> Result<Run> {
    let spec_json = text(spec)?;
    if spec_json.len() > MAX_SPEC_BYTES {
        return Err(LedgerError::TooLarge {
            what: "the specification in bytes",
            size: spec_json.len() as u64,
            limit: MAX_SPEC_BYTES as u64,
        });
    }
    let taken =
        connection.prepare_cached("SELECT 1 FROM runs WHERE id = ?1")?.exists([id.as_str()])?;
    if taken {
        return Err(LedgerError::Exists { id: id.clone() });
    }
    let mut run = Run::new(id.clone(), spec.clone(), created_at);
    run.state = State::Queued { due: place.and_then(|p| p.due) };
    let title: String = title.chars().take(MAX_TITLE_CHARS).collect();
    let at = at_to_sql(created_at)?;
    let task = place.map(|p| p.task);
    connection
        .prepare_cached(
            "INSERT INTO runs (id, title, checkout, mode, state, state_json, created_at,
                 updated_at, output_budget, spend, task, attempt, retried_from, priority, due_at,
                 project, thread, agent)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14,
                 (SELECT project FROM tasks WHERE ordinal = ?10),
                 (SELECT thread FROM tasks WHERE ordinal = ?10),
                 (SELECT agent FROM tasks WHERE ordinal = ?10))",
        )?
        .execute(params![
            id.as_str(),
            title,
            spec.checkout,
            mode_name(spec.mode),
            run.state.name().as_str(),
            text(&run.state)?,
            at,
            clamped(spec.budgets.output_bytes),
            text(&Spend::default())?,
            task,
            place.map_or(1, |p| p.attempt),
            place.and_then(|p| p.retried_from),
            place.map_or(0, |p| p.priority),
            due_of(&run.state)?,
        ])?;
    let ordinal = connection.last_insert_rowid();
    connection
        .prepare_cached("INSERT INTO specs (run, body) VALUES (?1, ?2)")?
        .execute(params![ordinal, spec_json])?;
    Ok(run)
}
