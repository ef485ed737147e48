//! Schedules and deliveries: each slot and each delivery makes at most one task.

use cofferdam_run::schedule::Overlap;
use cofferdam_run::trigger::Delivery;
use cofferdam_run::{Actor, ProjectId, ScheduleId, TaskId, TimestampMs};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::ids::{Table, find, maybe, ordinal, stored};
use super::task::create::insert;
use super::task::query::{bounds, paged};
use crate::error::LedgerError;
use crate::limits::{MAX_FIRED, MAX_LIST, MAX_SALT, MAX_SPEC_BYTES, MAX_TITLE_CHARS};
use crate::sqlite::error::{at_to_sql, from_sql};
use crate::sqlite::row::{json, text};
use crate::store::Result;
use crate::store::triggers::{Received, Schedule, Slot, SlotOutcome};
use crate::store::work::{NewTask, Page, Paged};

const COLUMNS: &str = "s.ordinal, s.id, (SELECT id FROM projects WHERE ordinal = s.project), \
     s.title, s.timing, s.spec, s.retry, (SELECT id FROM profiles WHERE ordinal = s.agent), \
     s.priority, s.enabled, s.created_at, s.next_at, s.after_at";

struct Loaded {
    ordinal: i64,
    schedule: Schedule,
    after: TimestampMs,
}

fn parse(row: &Row<'_>) -> Result<Loaded> {
    let id: String = row.get(1)?;
    let corrupt =
        |e: serde_json::Error| LedgerError::Corrupt { what: format!("schedule {id}: {e}") };
    let next: Option<i64> = row.get(11)?;
    Ok(Loaded {
        ordinal: row.get(0)?,
        schedule: Schedule {
            project: stored("project id", &row.get::<_, String>(2)?)?,
            title: row.get(3)?,
            timing: json(&row.get::<_, String>(4)?).map_err(corrupt)?,
            spec: json(&row.get::<_, String>(5)?).map_err(corrupt)?,
            retry: json(&row.get::<_, String>(6)?).map_err(corrupt)?,
            agent: maybe("agent id", row.get(7)?)?,
            priority: row.get(8)?,
            enabled: row.get(9)?,
            created_at: TimestampMs(from_sql("created_at", row.get(10)?)?),
            next_at: next.map(|at| from_sql("next_at", at).map(TimestampMs)).transpose()?,
            id: stored("schedule id", &id)?,
        },
        after: TimestampMs(from_sql("after_at", row.get(12)?)?),
    })
}

fn load(connection: &Connection, id: &ScheduleId) -> Result<Loaded> {
    let row = ordinal(connection, Table::Schedules, id.as_str())?;
    let sql = format!("SELECT {COLUMNS} FROM schedules AS s WHERE s.ordinal = ?1");
    connection.prepare_cached(&sql)?.query_row([row], |row| Ok(parse(row)))?
}

pub(in crate::sqlite) fn create(connection: &Connection, new: &Schedule) -> Result<Schedule> {
    let spec = text(&new.spec)?;
    if spec.len() > MAX_SPEC_BYTES {
        return Err(LedgerError::TooLarge {
            what: "the specification in bytes",
            size: spec.len() as u64,
            limit: MAX_SPEC_BYTES as u64,
        });
    }
    if find(connection, Table::Schedules, new.id.as_str())?.is_some() {
        return Err(LedgerError::Misuse { what: "a schedule id that is taken" });
    }
    let title: String = new.title.chars().take(MAX_TITLE_CHARS).collect();
    let agent =
        new.agent.as_ref().map(|a| ordinal(connection, Table::Profiles, a.as_str())).transpose()?;
    let next = new.timing.next_after(new.created_at).filter(|_| new.enabled);
    connection.execute(
        "INSERT INTO schedules (id, project, title, timing, spec, retry, agent, priority, enabled,
             after_at, next_at, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?10)",
        params![
            new.id.as_str(),
            ordinal(connection, Table::Projects, new.project.as_str())?,
            title,
            text(&new.timing)?,
            spec,
            text(&new.retry)?,
            agent,
            new.priority.clamp(-100, 100),
            new.enabled,
            at_to_sql(new.created_at)?,
            next.map(at_to_sql).transpose()?,
        ],
    )?;
    Ok(load(connection, &new.id)?.schedule)
}

pub(in crate::sqlite) fn enable(
    connection: &Connection,
    id: &ScheduleId,
    enabled: bool,
    at: TimestampMs,
) -> Result<Schedule> {
    let found = load(connection, id)?;
    if found.schedule.enabled == enabled {
        return Ok(found.schedule);
    }
    let next = found.schedule.timing.next_after(at).filter(|_| enabled);
    connection.execute(
        "UPDATE schedules SET enabled = ?1, after_at = max(after_at, ?2), next_at = ?3
         WHERE ordinal = ?4",
        params![enabled, at_to_sql(at)?, next.map(at_to_sql).transpose()?, found.ordinal],
    )?;
    Ok(load(connection, id)?.schedule)
}

pub(in crate::sqlite) fn schedule(connection: &Connection, id: &ScheduleId) -> Result<Schedule> {
    Ok(load(connection, id)?.schedule)
}

pub(in crate::sqlite) fn schedules(
    connection: &Connection,
    project: Option<&ProjectId>,
    page: Page,
) -> Result<Paged<Schedule>> {
    let (before, limit) = bounds(page);
    let project = project.map(|p| ordinal(connection, Table::Projects, p.as_str())).transpose()?;
    let sql = format!(
        "SELECT {COLUMNS} FROM schedules AS s WHERE s.ordinal < ?1 AND (?2 IS NULL OR s.project = ?2)
         ORDER BY s.ordinal DESC LIMIT ?3"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let most = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![before, project, most])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        let loaded = parse(row)?;
        out.push((loaded.ordinal, loaded.schedule));
    }
    Ok(paged(out, limit))
}

pub(in crate::sqlite) fn slots(
    connection: &Connection,
    id: &ScheduleId,
    limit: u32,
) -> Result<Vec<Slot>> {
    let row = ordinal(connection, Table::Schedules, id.as_str())?;
    let mut statement = connection.prepare_cached(
        "SELECT slot, outcome, (SELECT id FROM tasks WHERE ordinal = slots.task) FROM slots
         WHERE schedule = ?1 ORDER BY slot DESC LIMIT ?2",
    )?;
    let mut rows = statement.query(params![row, limit.min(MAX_LIST)])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        let task: Option<TaskId> = maybe("task id", row.get(2)?)?;
        let outcome = match (row.get::<_, String>(1)?.as_str(), task) {
            ("fired", Some(task)) => SlotOutcome::Fired { task },
            ("missed" | "refused", None) => SlotOutcome::Missed,
            ("overlap", None) => SlotOutcome::Overlap,
            (other, _) => {
                return Err(LedgerError::Corrupt { what: format!("a slot is {other}") });
            }
        };
        let at = TimestampMs(from_sql("a slot", row.get(0)?)?);
        out.push(Slot { schedule: id.clone(), at, outcome });
    }
    Ok(out)
}

pub(in crate::sqlite) fn next_slot(connection: &Connection) -> Result<Option<TimestampMs>> {
    let at: Option<i64> = connection
        .prepare_cached(
            "SELECT min(next_at) FROM schedules WHERE enabled = 1 AND next_at IS NOT NULL",
        )?
        .query_row([], |row| row.get(0))?;
    at.map(|at| from_sql("next_at", at).map(TimestampMs)).transpose()
}

pub(in crate::sqlite) fn fire_due(
    connection: &Connection,
    now: TimestampMs,
    limit: u32,
) -> Result<Vec<Slot>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM schedules AS s
         WHERE s.enabled = 1 AND s.next_at IS NOT NULL AND s.next_at <= ?1
         ORDER BY s.next_at, s.ordinal LIMIT ?2"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![at_to_sql(now)?, limit.min(MAX_FIRED)])?;
    let mut due = Vec::new();
    while let Some(row) = rows.next()? {
        due.push(parse(row)?);
    }
    let mut out = Vec::new();
    for found in due {
        fire(connection, &found, now, &mut out)?;
    }
    Ok(out)
}

fn fire(
    connection: &Connection,
    found: &Loaded,
    now: TimestampMs,
    out: &mut Vec<Slot>,
) -> Result<()> {
    let slots = found.schedule.timing.due(found.after, now);
    for slot in slots.slots {
        let known = connection
            .prepare_cached("SELECT 1 FROM slots WHERE schedule = ?1 AND slot = ?2")?
            .exists(params![found.ordinal, at_to_sql(slot.at)?])?;
        if known {
            continue;
        }
        let (outcome, name, task) = if !slot.fires {
            (SlotOutcome::Missed, "missed", None)
        } else if found.schedule.timing.overlap == Overlap::Skip && is_busy(connection, found)? {
            (SlotOutcome::Overlap, "overlap", None)
        } else {
            match insert(connection, &task_of(connection, found, slot.at, now)?, None)? {
                Ok(made) => {
                    (SlotOutcome::Fired { task: made.task.id }, "fired", Some(made.ordinal))
                }
                Err(refusal) => (SlotOutcome::Refused(refusal), "refused", None),
            }
        };
        connection
            .prepare_cached(
                "INSERT INTO slots (schedule, slot, outcome, task, at) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![found.ordinal, at_to_sql(slot.at)?, name, task, at_to_sql(now)?])?;
        out.push(Slot { schedule: found.schedule.id.clone(), at: slot.at, outcome });
    }
    connection
        .prepare_cached("UPDATE schedules SET after_at = ?1, next_at = ?2 WHERE ordinal = ?3")?
        .execute(params![at_to_sql(now)?, slots.next.map(at_to_sql).transpose()?, found.ordinal])?;
    Ok(())
}

/// Asked of the tasks, so that nothing which was interrupted can keep a schedule waiting.
fn is_busy(connection: &Connection, found: &Loaded) -> Result<bool> {
    Ok(connection
        .prepare_cached(
            "SELECT 1 FROM slots JOIN tasks ON tasks.ordinal = slots.task
             WHERE slots.schedule = ?1 AND tasks.state = 'open'",
        )?
        .exists([found.ordinal])?)
}

fn task_of(
    connection: &Connection,
    found: &Loaded,
    slot: TimestampMs,
    now: TimestampMs,
) -> Result<NewTask> {
    let schedule = &found.schedule;
    let mut id = None;
    for salt in 0..MAX_SALT {
        let candidate = TaskId::of_slot(&schedule.id, slot, salt);
        if find(connection, Table::Tasks, candidate.as_str())?.is_none() {
            id = Some(candidate);
            break;
        }
    }
    let detail = "no free id for the task of a slot".to_owned();
    Ok(NewTask {
        id: id.ok_or(LedgerError::Database { detail })?,
        title: schedule.title.clone(),
        origin: Actor::Schedule(schedule.id.clone()),
        project: Some(schedule.project.clone()),
        thread: None,
        agent: schedule.agent.clone(),
        priority: schedule.priority,
        spec: schedule.spec.clone(),
        retry: schedule.retry.clone(),
        created_at: now,
    })
}

pub(in crate::sqlite) fn receive(
    connection: &Connection,
    delivery: &Delivery,
    new: &NewTask,
) -> Result<Received> {
    let task_id =
        |task: i64| -> Result<TaskId> { Ok(super::task::row::load(connection, task)?.task.id) };
    let again: Option<i64> = connection
        .prepare_cached("SELECT task FROM deliveries WHERE source = ?1 AND delivery = ?2")?
        .query_row([&delivery.source, &delivery.delivery], |row| row.get(0))
        .optional()?;
    if let Some(task) = again {
        return Ok(Received::Again { task: task_id(task)? });
    }
    let note = |task: i64, known: bool| -> Result<()> {
        let object = delivery.object.as_ref().filter(|_| !known);
        connection
            .prepare_cached(
                "INSERT INTO deliveries (source, delivery, object, version, task, at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                delivery.source,
                delivery.delivery,
                object.map(|o| o.object.as_str()),
                object.map(|o| o.version.as_str()),
                task,
                at_to_sql(new.created_at)?,
            ])?;
        Ok(())
    };
    if let Some(object) = &delivery.object {
        let same: Option<i64> = connection
            .prepare_cached(
                "SELECT task FROM deliveries WHERE source = ?1 AND object = ?2 AND version = ?3",
            )?
            .query_row([&delivery.source, &object.object, &object.version], |row| row.get(0))
            .optional()?;
        if let Some(task) = same {
            note(task, true)?;
            return Ok(Received::SameVersion { task: task_id(task)? });
        }
    }
    match insert(connection, new, None)? {
        Ok(made) => {
            note(made.ordinal, false)?;
            Ok(Received::New(Box::new(made.task)))
        }
        Err(refusal) => Ok(Received::Refused(refusal)),
    }
}
