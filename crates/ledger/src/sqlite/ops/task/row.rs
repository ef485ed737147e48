//! A task's row: load it with every check, write it back whole.

use cofferdam_run::delegate::Share;
use cofferdam_run::retry::Exhausted;
use cofferdam_run::task::{Parent, Task, TaskState};
use cofferdam_run::{CancelRequest, RunId, TaskId, TimestampMs};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::de::DeserializeOwned;

use crate::error::LedgerError;
use crate::sqlite::error::{at_to_sql, from_sql};
use crate::sqlite::ops::ids::{Table, find, maybe, stored};
use crate::sqlite::row::{json, text};
use crate::store::Result;

/// What [`parse`] reads, from `tasks AS t`.
pub(super) const COLUMNS: &str = "t.ordinal, t.id, t.title, t.origin, \
     (SELECT id FROM projects WHERE ordinal = t.project), \
     (SELECT id FROM threads WHERE ordinal = t.thread), \
     (SELECT id FROM profiles WHERE ordinal = t.agent), \
     (SELECT id FROM tasks WHERE ordinal = t.parent), \
     (SELECT id FROM runs WHERE ordinal = t.parent_run), \
     (SELECT id FROM tasks WHERE ordinal = t.root), \
     t.depth, t.intent, t.priority, t.spec, t.retry, t.tally, t.attempts, t.spent, t.cancel_by, \
     t.cancel_at, t.state, (SELECT id FROM runs WHERE ordinal = t.run), t.exhausted, t.created_at, \
     t.updated_at, t.share, t.root";

/// A task and what only rows know.
#[derive(Debug, Clone)]
pub(in crate::sqlite) struct Stored {
    pub(in crate::sqlite) ordinal: i64,
    pub(in crate::sqlite) task: Task,
    /// What was taken from the parent's budget.
    pub(in crate::sqlite) share: Option<Share>,
    /// The top of its tree; itself for a root.
    pub(in crate::sqlite) root: i64,
}

pub(super) fn parse(row: &Row<'_>) -> Result<Stored> {
    let id_text: String = row.get(1)?;
    let id: TaskId = stored("task id", &id_text)?;
    let corrupt = |what: String| LedgerError::Corrupt { what: format!("task {id_text}: {what}") };
    fn part<T: DeserializeOwned>(row: &Row<'_>, column: usize, what: &str, id: &str) -> Result<T> {
        json(&row.get::<_, String>(column)?)
            .map_err(|e| LedgerError::Corrupt { what: format!("task {id}: {what}: {e}") })
    }
    let run: Option<RunId> = maybe("run id", row.get(21)?)?;
    let run = run.ok_or_else(|| corrupt("it has no attempt".to_owned()))?;
    let exhausted: Option<String> = row.get(22)?;
    let state = match (row.get::<_, String>(20)?.as_str(), exhausted.as_deref()) {
        ("open", None) => TaskState::Open { run },
        ("completed", None) => TaskState::Completed { run },
        ("failed", None) => TaskState::Failed { run },
        ("cancelled", None) => TaskState::Cancelled { run },
        ("dead_letter", Some("attempts")) => {
            TaskState::DeadLetter { run, exhausted: Exhausted::Attempts }
        }
        ("dead_letter", Some("waits")) => {
            TaskState::DeadLetter { run, exhausted: Exhausted::Waits }
        }
        ("dead_letter", Some("spend")) => {
            TaskState::DeadLetter { run, exhausted: Exhausted::Spend }
        }
        (state, why) => return Err(corrupt(format!("state {state}, {why:?} used up"))),
    };
    let depth = u32::try_from(row.get::<_, i64>(10)?).map_err(|e| corrupt(e.to_string()))?;
    let parent = match (
        maybe("task id", row.get(7)?)?,
        maybe("run id", row.get(8)?)?,
        maybe("task id", row.get(9)?)?,
    ) {
        (Some(task), Some(run), Some(root)) => Some(Parent { task, run, root, depth }),
        (None, None, None) => None,
        _ => return Err(corrupt("half a parent".to_owned())),
    };
    let cancel = match (row.get::<_, Option<String>>(18)?, row.get::<_, Option<i64>>(19)?) {
        (Some(by), Some(at)) => {
            Some(CancelRequest { by, at: TimestampMs(from_sql("cancel_at", at)?) })
        }
        _ => None,
    };
    let share: Option<String> = row.get(25)?;
    let ordinal = row.get(0)?;
    let task = Task {
        title: row.get(2)?,
        origin: stored("origin", &row.get::<_, String>(3)?)?,
        project: maybe("project id", row.get(4)?)?,
        thread: maybe("thread id", row.get(5)?)?,
        agent: maybe("agent id", row.get(6)?)?,
        parent,
        intent: stored("intent", &row.get::<_, String>(11)?)?,
        priority: row.get(12)?,
        spec: part(row, 13, "specification", &id_text)?,
        retry: part(row, 14, "retry policy", &id_text)?,
        tally: part(row, 15, "tally", &id_text)?,
        attempts: u32::try_from(row.get::<_, i64>(16)?).map_err(|e| corrupt(e.to_string()))?,
        spent: part(row, 17, "spend", &id_text)?,
        cancel,
        state,
        created_at: TimestampMs(from_sql("created_at", row.get(23)?)?),
        updated_at: TimestampMs(from_sql("updated_at", row.get(24)?)?),
        id,
    };
    Ok(Stored {
        ordinal,
        task,
        share: share.map(|s| json(&s)).transpose().map_err(|e| corrupt(format!("share: {e}")))?,
        root: row.get::<_, Option<i64>>(26)?.unwrap_or(ordinal),
    })
}

/// The task with that row number.
pub(in crate::sqlite) fn load(connection: &Connection, ordinal: i64) -> Result<Stored> {
    let sql = format!("SELECT {COLUMNS} FROM tasks AS t WHERE t.ordinal = ?1");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row([ordinal], |row| Ok(parse(row))).optional()?;
    found.unwrap_or_else(|| Err(LedgerError::Corrupt { what: format!("no task {ordinal}") }))
}

/// The task with that id.
pub(in crate::sqlite) fn load_id(connection: &Connection, id: &TaskId) -> Result<Stored> {
    load(connection, crate::sqlite::ops::ids::ordinal(connection, Table::Tasks, id.as_str())?)
}

/// The task that a run is an attempt of.
pub(in crate::sqlite) fn of_run(connection: &Connection, run: i64) -> Result<Option<Stored>> {
    let mut statement = connection.prepare_cached("SELECT task FROM runs WHERE ordinal = ?1")?;
    let task: Option<i64> = statement.query_row([run], |row| row.get(0))?;
    task.map(|ordinal| load(connection, ordinal)).transpose()
}

/// Writes whatever of a task can change.
pub(super) fn update(connection: &Connection, ordinal: i64, task: &Task) -> Result<()> {
    let run = find(connection, Table::Runs, task.state.run().as_str())?;
    let exhausted = match &task.state {
        TaskState::DeadLetter { exhausted, .. } => Some(exhausted.as_str()),
        TaskState::Open { .. }
        | TaskState::Completed { .. }
        | TaskState::Failed { .. }
        | TaskState::Cancelled { .. } => None,
    };
    let mut statement = connection.prepare_cached(
        "UPDATE tasks SET state = ?1, run = ?2, exhausted = ?3, spec = ?4, tally = ?5,
             attempts = ?6, spent = ?7, cancel_by = ?8, cancel_at = ?9, updated_at = ?10
         WHERE ordinal = ?11",
    )?;
    let changed = statement.execute(params![
        task.state.name(),
        run,
        exhausted,
        text(&task.spec)?,
        text(&task.tally)?,
        task.attempts,
        text(&task.spent)?,
        task.cancel.as_ref().map(|c| c.by.as_str()),
        task.cancel.as_ref().map(|c| at_to_sql(c.at)).transpose()?,
        at_to_sql(task.updated_at)?,
        ordinal,
    ])?;
    if changed == 1 {
        Ok(())
    } else {
        Err(LedgerError::Corrupt { what: format!("task {} is not there", task.id) })
    }
}
