//! Making a task and its attempts.

use cofferdam_run::delegate::Share;
use cofferdam_run::limits::Spend;
use cofferdam_run::retry::Tally;
use cofferdam_run::task::{NextAttempt, PRIORITIES, Parent, Task, TaskState, intent};
use cofferdam_run::trigger::IdempotencyKey;
use cofferdam_run::{RunId, TimestampMs};
use rusqlite::{Connection, OptionalExtension, params};

use super::row::{Stored, load, update};
use crate::error::LedgerError;
use crate::limits::{MAX_SALT, MAX_SPEC_BYTES, MAX_TITLE_CHARS};
use crate::sqlite::error::at_to_sql;
use crate::sqlite::ops::catalogue;
use crate::sqlite::ops::create::{Place, insert_run};
use crate::sqlite::ops::ids::{Table, find, ordinal};
use crate::sqlite::row::text;
use crate::store::Result;
use crate::store::work::{CreateRefusal, Created, NewTask};

pub(in crate::sqlite) fn create_task(
    connection: &Connection,
    new: &NewTask,
    key: Option<&IdempotencyKey>,
) -> Result<Created> {
    if let Some(key) = key {
        let mut statement = connection
            .prepare_cached("SELECT body, task FROM idempotency WHERE scope = ?1 AND key = ?2")?;
        let found: Option<(String, i64)> = statement
            .query_row([key.scope(), key.key()], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        if let Some((body, task)) = found {
            let task = load(connection, task)?.task;
            return Ok(if body == key.body().as_str() {
                Created::Same(Box::new(task))
            } else {
                Created::Conflict { task: task.id }
            });
        }
    }
    let stored = match insert(connection, new, None)? {
        Ok(stored) => stored,
        Err(refusal) => return Ok(Created::Refused(refusal)),
    };
    if let Some(key) = key {
        connection.execute(
            "INSERT INTO idempotency (scope, key, body, task, at) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                key.scope(),
                key.key(),
                key.body().as_str(),
                stored.ordinal,
                at_to_sql(new.created_at)?,
            ],
        )?;
    }
    Ok(Created::New(Box::new(stored.task)))
}

/// Where a child hangs.
pub(in crate::sqlite) struct Below<'a> {
    pub(super) parent: &'a Stored,
    pub(super) run: i64,
    pub(super) run_id: &'a RunId,
    pub(super) turn: i64,
    pub(super) share: Share,
}

/// Stores the task and queues its first attempt, when projects and threads admit it.
pub(in crate::sqlite) fn insert(
    connection: &Connection,
    new: &NewTask,
    below: Option<&Below<'_>>,
) -> Result<std::result::Result<Stored, CreateRefusal>> {
    let spec = text(&new.spec)?;
    if spec.len() > MAX_SPEC_BYTES {
        return Err(LedgerError::TooLarge {
            what: "the specification in bytes",
            size: spec.len() as u64,
            limit: MAX_SPEC_BYTES as u64,
        });
    }
    if find(connection, Table::Tasks, new.id.as_str())?.is_some() {
        return Err(LedgerError::Misuse { what: "a task id that is taken" });
    }
    let mut project = None;
    if let Some(id) = &new.project {
        let (row, found) = catalogue::load_project(connection, id)?;
        if found.archived_at.is_some() {
            return Ok(Err(CreateRefusal::ProjectArchived(id.clone())));
        }
        // A child is its parent's: what admitted that admits it.
        if below.is_none()
            && let Err(off) = found.switches.admit(&new.origin, new.spec.mode)
        {
            return Ok(Err(off.into()));
        }
        project = Some(row);
    }
    let mut thread = None;
    if let Some(id) = &new.thread {
        let (row, found) = catalogue::load_thread(connection, id)?;
        if found.closed_at.is_some() {
            return Ok(Err(CreateRefusal::ThreadClosed(id.clone())));
        }
        if found.project != new.project {
            return Ok(Err(CreateRefusal::OtherProject(id.clone())));
        }
        thread = Some(row);
    }
    let agent =
        new.agent.as_ref().map(|a| ordinal(connection, Table::Profiles, a.as_str())).transpose()?;
    let at = at_to_sql(new.created_at)?;
    let depth = below.map_or(0, |b| b.parent.task.parent.as_ref().map_or(0, |p| p.depth) + 1);
    let priority = new.priority.clamp(*PRIORITIES.start(), *PRIORITIES.end());
    let title: String = new.title.chars().take(MAX_TITLE_CHARS).collect();
    let intent = intent(&new.spec, new.agent.as_ref());
    connection.execute(
        "INSERT INTO tasks (id, title, origin, project, thread, agent, parent, parent_run, root,
             depth, turn, share, intent, priority, spec, retry, tally, attempts, spent, state,
             created_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, 1, ?18,
             'open', ?19, ?19)",
        params![
            new.id.as_str(),
            title,
            new.origin.to_string(),
            project,
            thread,
            agent,
            below.map(|b| b.parent.ordinal),
            below.map(|b| b.run),
            below.map(|b| b.parent.root),
            depth,
            below.map(|b| b.turn),
            below.map(|b| text(&b.share)).transpose()?,
            intent.as_str(),
            priority,
            spec,
            text(&new.retry)?,
            text(&Tally::default())?,
            text(&Spend::default())?,
            at,
        ],
    )?;
    let row = connection.last_insert_rowid();
    let id = free_run_id(connection, &new.id, 1)?;
    let parent = below.map(|below| {
        let above = &below.parent.task;
        Parent {
            task: above.id.clone(),
            run: below.run_id.clone(),
            root: above.parent.as_ref().map_or_else(|| above.id.clone(), |p| p.root.clone()),
            depth,
        }
    });
    let task = Task {
        id: new.id.clone(),
        title,
        origin: new.origin.clone(),
        project: new.project.clone(),
        thread: new.thread.clone(),
        agent: new.agent.clone(),
        parent,
        intent,
        priority,
        spec: new.spec.clone(),
        retry: new.retry.clone(),
        tally: Tally::default(),
        attempts: 1,
        spent: Spend::default(),
        cancel: None,
        state: TaskState::Open { run: id.clone() },
        created_at: new.created_at,
        updated_at: new.created_at,
    };
    let next = NextAttempt { number: 1, retried_from: None, spec: new.spec.clone(), due: None };
    insert_attempt(connection, row, &task, &id, &next, new.created_at)?;
    update(connection, row, &task)?;
    Ok(Ok(load(connection, row)?))
}

/// The id of an attempt; another one while it is taken.
pub(super) fn free_run_id(
    connection: &Connection,
    task: &cofferdam_run::TaskId,
    number: u32,
) -> Result<RunId> {
    for salt in 0..MAX_SALT {
        let id = RunId::of_attempt(task, number, salt);
        if find(connection, Table::Runs, id.as_str())?.is_none() {
            return Ok(id);
        }
    }
    Err(LedgerError::Database { detail: format!("no free id for an attempt of {task}") })
}

/// Queues an attempt. The task's row is the caller's to move.
pub(super) fn insert_attempt(
    connection: &Connection,
    task_row: i64,
    task: &Task,
    id: &RunId,
    next: &NextAttempt,
    at: TimestampMs,
) -> Result<()> {
    let retried_from = match &next.retried_from {
        Some(run) => Some(ordinal(connection, Table::Runs, run.as_str())?),
        None => None,
    };
    let place = Place {
        task: task_row,
        attempt: next.number,
        retried_from,
        priority: task.priority,
        due: next.due,
    };
    insert_run(connection, id, &next.spec, &task.title, at, Some(&place))?;
    Ok(())
}
