//! Reading tasks and runs. Nothing here writes.

use cofferdam_run::task::Task;
use cofferdam_run::{RunId, TaskId, TimestampMs};
use rusqlite::{Connection, params};

use super::row::{COLUMNS, load_id, of_run, parse};
use crate::error::LedgerError;
use crate::limits::MAX_LIST;
use crate::sqlite::error::from_sql;
use crate::sqlite::ops::ids::{Table, maybe, ordinal, stored};
use crate::sqlite::ops::query::{ROW_COLUMNS, run_row};
use crate::sqlite::row::{head, text};
use crate::store::Result;
use crate::store::work::{Attempt, BoardRow, Page, Paged, RunFilter, TaskFilter};

/// Rows of a page: one more than asked for tells whether there is a next one.
pub(in crate::sqlite) fn bounds(page: Page) -> (i64, usize) {
    let before = page.before.and_then(|b| i64::try_from(b).ok()).unwrap_or(i64::MAX);
    let limit = if page.limit == 0 { MAX_LIST } else { page.limit.min(MAX_LIST) };
    (before, usize::try_from(limit).unwrap_or(1))
}

/// Cuts the one row too many and makes the cursor of the rest.
pub(in crate::sqlite) fn paged<T>(mut rows: Vec<(i64, T)>, limit: usize) -> Paged<T> {
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).and_then(|(ordinal, _)| u64::try_from(*ordinal).ok());
    Paged { items: rows.into_iter().map(|(_, item)| item).collect(), next }
}

pub(in crate::sqlite) fn task(connection: &Connection, id: &TaskId) -> Result<Task> {
    Ok(load_id(connection, id)?.task)
}

pub(in crate::sqlite) fn task_of(connection: &Connection, run: &RunId) -> Result<Option<TaskId>> {
    let head = head(connection, run)?;
    Ok(of_run(connection, head.ordinal)?.map(|s| s.task.id))
}

pub(in crate::sqlite) fn attempts(connection: &Connection, id: &TaskId) -> Result<Vec<Attempt>> {
    let task = ordinal(connection, Table::Tasks, id.as_str())?;
    let mut statement = connection.prepare_cached(
        "SELECT id, attempt, (SELECT id FROM runs AS b WHERE b.ordinal = runs.retried_from), state,
             due_at
         FROM runs WHERE task = ?1 ORDER BY attempt",
    )?;
    let mut rows = statement.query([task])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        let corrupt = |what: String| LedgerError::Corrupt { what: format!("task {id}: {what}") };
        let due: Option<i64> = row.get(4)?;
        out.push(Attempt {
            run: stored("run id", &row.get::<_, String>(0)?)?,
            number: row.get(1)?,
            retried_from: maybe("run id", row.get(2)?)?,
            state: row.get::<_, String>(3)?.parse().map_err(corrupt)?,
            due_at: due.map(|at| from_sql("due_at", at).map(TimestampMs)).transpose()?,
        });
    }
    Ok(out)
}

/// A filter's id as a row number; an id that does not exist is an error, not an empty list.
fn filter(connection: &Connection, table: Table, id: Option<&str>) -> Result<Option<i64>> {
    id.map(|id| ordinal(connection, table, id)).transpose()
}

pub(in crate::sqlite) fn tasks(
    connection: &Connection,
    wanted: &TaskFilter,
    page: Page,
) -> Result<Paged<Task>> {
    let (before, limit) = bounds(page);
    let states = if wanted.states.is_empty() { None } else { Some(text(&wanted.states)?) };
    let sql = format!(
        "SELECT {COLUMNS} FROM tasks AS t
         WHERE t.ordinal < ?1
           AND (?2 IS NULL OR t.state IN (SELECT value FROM json_each(?2)))
           AND (?3 IS NULL OR t.project = ?3) AND (?4 IS NULL OR t.thread = ?4)
           AND (?5 IS NULL OR t.parent = ?5) AND (NOT ?6 OR t.parent IS NULL)
         ORDER BY t.ordinal DESC LIMIT ?7"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![
        before,
        states,
        filter(connection, Table::Projects, wanted.project.as_ref().map(|p| p.as_str()))?,
        filter(connection, Table::Threads, wanted.thread.as_ref().map(|t| t.as_str()))?,
        filter(connection, Table::Tasks, wanted.parent.as_ref().map(|t| t.as_str()))?,
        wanted.roots_only,
        i64::try_from(limit + 1).unwrap_or(i64::MAX),
    ])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        let stored = parse(row)?;
        out.push((stored.ordinal, stored.task));
    }
    Ok(paged(out, limit))
}

pub(in crate::sqlite) fn runs(
    connection: &Connection,
    wanted: &RunFilter,
    page: Page,
) -> Result<Paged<BoardRow>> {
    let (before, limit) = bounds(page);
    let states: Vec<&str> = wanted.states.iter().map(|s| s.as_str()).collect();
    let states = if states.is_empty() { None } else { Some(text(&states)?) };
    let sql = format!(
        "SELECT {ROW_COLUMNS}, ordinal, (SELECT id FROM tasks WHERE ordinal = runs.task),
             (SELECT id FROM projects WHERE ordinal = runs.project),
             (SELECT id FROM threads WHERE ordinal = runs.thread), attempt, due_at
         FROM runs
         WHERE ordinal < ?1
           AND (?2 IS NULL OR state IN (SELECT value FROM json_each(?2)))
           AND (NOT ?3 OR verdict IS NULL)
           AND (?4 IS NULL OR project = ?4) AND (?5 IS NULL OR thread = ?5)
           AND (?6 IS NULL OR task = ?6) AND (?8 IS NULL OR id = ?8)
         ORDER BY ordinal DESC LIMIT ?7"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![
        before,
        states,
        wanted.live_only,
        filter(connection, Table::Projects, wanted.project.as_ref().map(|p| p.as_str()))?,
        filter(connection, Table::Threads, wanted.thread.as_ref().map(|t| t.as_str()))?,
        filter(connection, Table::Tasks, wanted.task.as_ref().map(|t| t.as_str()))?,
        i64::try_from(limit + 1).unwrap_or(i64::MAX),
        wanted.run.as_ref().map(|r| r.as_str()),
    ])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        let due: Option<i64> = row.get(17)?;
        out.push((
            row.get(12)?,
            BoardRow {
                run: run_row(row)?,
                task: maybe("task id", row.get(13)?)?,
                project: maybe("project id", row.get(14)?)?,
                thread: maybe("thread id", row.get(15)?)?,
                attempt: row.get(16)?,
                due_at: due.map(|at| from_sql("due_at", at).map(TimestampMs)).transpose()?,
            },
        ));
    }
    Ok(paged(out, limit))
}
