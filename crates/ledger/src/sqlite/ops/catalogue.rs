//! Projects, threads and named profiles.

use cofferdam_run::project::{Named, Project, Switches, Thread};
use cofferdam_run::{ProjectId, ThreadId, TimestampMs};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ids::{Table, maybe, ordinal, stored};
use super::task::query::{bounds, paged};
use crate::error::LedgerError;
use crate::sqlite::error::{at_to_sql, from_sql, to_sql};
use crate::sqlite::row::{json, text};
use crate::store::Result;
use crate::store::catalogue::{ProjectChange, Stored};
use crate::store::work::{Page, Paged};

const PROJECT: &str = "ordinal, id, name, checkout, unattended, scheduled, remote, max_parallel, \
     created_at, archived_at";

fn instant(row: &Row<'_>, column: usize) -> Result<Option<TimestampMs>> {
    let value: Option<i64> = row.get(column)?;
    value.map(|v| from_sql("an instant", v).map(TimestampMs)).transpose()
}

fn parse_project(row: &Row<'_>) -> Result<(i64, Project)> {
    Ok((
        row.get(0)?,
        Project {
            id: stored("project id", &row.get::<_, String>(1)?)?,
            name: row.get(2)?,
            checkout: row.get(3)?,
            switches: Switches {
                unattended: row.get(4)?,
                scheduled: row.get(5)?,
                remote: row.get(6)?,
            },
            max_parallel: row.get(7)?,
            created_at: TimestampMs(from_sql("created_at", row.get(8)?)?),
            archived_at: instant(row, 9)?,
        },
    ))
}

pub(in crate::sqlite) fn load_project(
    connection: &Connection,
    id: &ProjectId,
) -> Result<(i64, Project)> {
    let row = ordinal(connection, Table::Projects, id.as_str())?;
    let sql = format!("SELECT {PROJECT} FROM projects WHERE ordinal = ?1");
    connection.prepare_cached(&sql)?.query_row([row], |row| Ok(parse_project(row)))?
}

/// Which of name and checkout another project has.
fn taken(connection: &Connection, project: &Project) -> Result<Option<&'static str>> {
    for (what, sql, value) in [
        (
            "name",
            "SELECT 1 FROM projects WHERE name = ?1 AND archived_at IS NULL AND id <> ?2",
            &project.name,
        ),
        (
            "checkout",
            "SELECT 1 FROM projects WHERE checkout = ?1 AND archived_at IS NULL AND id <> ?2",
            &project.checkout,
        ),
    ] {
        if connection.prepare_cached(sql)?.exists([value.as_str(), project.id.as_str()])? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

fn named(name: &str) -> Result<()> {
    let size = name.chars().count();
    if (1..=cofferdam_run::project::MAX_NAME_CHARS).contains(&size) {
        return Ok(());
    }
    Err(LedgerError::TooLarge {
        what: "a name in characters",
        size: size as u64,
        limit: cofferdam_run::project::MAX_NAME_CHARS as u64,
    })
}

pub(in crate::sqlite) fn create_project(
    connection: &Connection,
    new: &Project,
) -> Result<Stored<Project>> {
    named(&new.name)?;
    if let Some(what) = taken(connection, new)? {
        return Ok(Stored::Taken { what });
    }
    connection.execute(
        "INSERT INTO projects (id, name, checkout, unattended, scheduled, remote, max_parallel,
             created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            new.id.as_str(),
            new.name,
            new.checkout,
            new.switches.unattended,
            new.switches.scheduled,
            new.switches.remote,
            new.max_parallel,
            at_to_sql(new.created_at)?,
        ],
    )?;
    Ok(Stored::Done(load_project(connection, &new.id)?.1))
}

pub(in crate::sqlite) fn change_project(
    connection: &Connection,
    id: &ProjectId,
    change: &ProjectChange,
) -> Result<Stored<Project>> {
    let (row, found) = load_project(connection, id)?;
    let next = Project {
        name: change.name.clone().unwrap_or(found.name),
        switches: change.switches.unwrap_or(found.switches),
        max_parallel: change.max_parallel.unwrap_or(found.max_parallel),
        archived_at: found.archived_at.or(change.archive),
        ..found
    };
    named(&next.name)?;
    if next.archived_at.is_none()
        && let Some(what) = taken(connection, &next)?
    {
        return Ok(Stored::Taken { what });
    }
    connection.execute(
        "UPDATE projects SET name = ?1, unattended = ?2, scheduled = ?3, remote = ?4,
             max_parallel = ?5, archived_at = ?6 WHERE ordinal = ?7",
        params![
            next.name,
            next.switches.unattended,
            next.switches.scheduled,
            next.switches.remote,
            next.max_parallel,
            next.archived_at.map(at_to_sql).transpose()?,
            row,
        ],
    )?;
    Ok(Stored::Done(next))
}

pub(in crate::sqlite) fn project_at(
    connection: &Connection,
    checkout: &str,
) -> Result<Option<Project>> {
    let sql = format!("SELECT {PROJECT} FROM projects WHERE checkout = ?1 AND archived_at IS NULL");
    let found = connection
        .prepare_cached(&sql)?
        .query_row([checkout], |row| Ok(parse_project(row)))
        .optional()?;
    Ok(found.transpose()?.map(|(_, project)| project))
}

pub(in crate::sqlite) fn projects(connection: &Connection, page: Page) -> Result<Paged<Project>> {
    let (before, limit) = bounds(page);
    let sql =
        format!("SELECT {PROJECT} FROM projects WHERE ordinal < ?1 ORDER BY ordinal DESC LIMIT ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows =
        statement.query(params![before, i64::try_from(limit + 1).unwrap_or(i64::MAX)])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        out.push(parse_project(row)?);
    }
    Ok(paged(out, limit))
}

const THREAD: &str = "ordinal, id, (SELECT id FROM projects WHERE ordinal = threads.project), \
     title, created_at, closed_at";

fn parse_thread(row: &Row<'_>) -> Result<(i64, Thread)> {
    Ok((
        row.get(0)?,
        Thread {
            id: stored("thread id", &row.get::<_, String>(1)?)?,
            project: maybe("project id", row.get(2)?)?,
            title: row.get(3)?,
            created_at: TimestampMs(from_sql("created_at", row.get(4)?)?),
            closed_at: instant(row, 5)?,
        },
    ))
}

pub(in crate::sqlite) fn load_thread(
    connection: &Connection,
    id: &ThreadId,
) -> Result<(i64, Thread)> {
    let row = ordinal(connection, Table::Threads, id.as_str())?;
    let sql = format!("SELECT {THREAD} FROM threads WHERE ordinal = ?1");
    connection.prepare_cached(&sql)?.query_row([row], |row| Ok(parse_thread(row)))?
}

pub(in crate::sqlite) fn create_thread(connection: &Connection, new: &Thread) -> Result<Thread> {
    let project = match &new.project {
        Some(id) => Some(ordinal(connection, Table::Projects, id.as_str())?),
        None => None,
    };
    let title: String = new.title.chars().take(crate::limits::MAX_TITLE_CHARS).collect();
    connection.execute(
        "INSERT INTO threads (id, project, title, created_at) VALUES (?1, ?2, ?3, ?4)",
        params![new.id.as_str(), project, title, at_to_sql(new.created_at)?],
    )?;
    Ok(load_thread(connection, &new.id)?.1)
}

pub(in crate::sqlite) fn close_thread(
    connection: &Connection,
    id: &ThreadId,
    at: TimestampMs,
) -> Result<Thread> {
    let (row, _) = load_thread(connection, id)?;
    connection.execute(
        "UPDATE threads SET closed_at = coalesce(closed_at, ?1) WHERE ordinal = ?2",
        params![at_to_sql(at)?, row],
    )?;
    Ok(load_thread(connection, id)?.1)
}

pub(in crate::sqlite) fn threads(
    connection: &Connection,
    project: Option<&ProjectId>,
    page: Page,
) -> Result<Paged<Thread>> {
    let (before, limit) = bounds(page);
    let project = project.map(|p| ordinal(connection, Table::Projects, p.as_str())).transpose()?;
    let sql = format!(
        "SELECT {THREAD} FROM threads WHERE ordinal < ?1 AND (?2 IS NULL OR project = ?2)
         ORDER BY ordinal DESC LIMIT ?3"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let most = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![before, project, most])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        out.push(parse_thread(row)?);
    }
    Ok(paged(out, limit))
}

/// Which table of names a profile is in.
#[derive(Debug, Clone, Copy)]
pub(in crate::sqlite) enum Kind {
    Agent,
    Policy,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Policy => "policy",
        }
    }
}

fn parse_named<I, T>(row: &Row<'_>) -> Result<(i64, Named<I, T>)>
where
    I: std::str::FromStr,
    T: DeserializeOwned,
{
    let id: String = row.get(1)?;
    let body = json(&row.get::<_, String>(4)?)
        .map_err(|e| LedgerError::Corrupt { what: format!("profile {id}: {e}") })?;
    Ok((
        row.get(0)?,
        Named {
            id: stored("profile id", &id)?,
            name: row.get(2)?,
            version: from_sql("a version", row.get(3)?)?,
            body,
            updated_at: TimestampMs(from_sql("updated_at", row.get(5)?)?),
        },
    ))
}

pub(in crate::sqlite) fn put<I, T>(
    connection: &Connection,
    kind: Kind,
    profile: &Named<I, T>,
    max_parallel: Option<u32>,
    expected: u64,
) -> Result<Stored<Named<I, T>>>
where
    I: std::str::FromStr + std::fmt::Display,
    T: Serialize + DeserializeOwned,
{
    named(&profile.name)?;
    let id = profile.id.to_string();
    let found: Option<i64> = connection
        .prepare_cached("SELECT version FROM profiles WHERE id = ?1 AND kind = ?2")?
        .query_row([id.as_str(), kind.name()], |row| row.get(0))
        .optional()?;
    let version = found.map_or(Ok(0), |v| from_sql("a version", v))?;
    if version != expected {
        return Ok(Stored::Changed { version });
    }
    let taken = connection
        .prepare_cached("SELECT 1 FROM profiles WHERE kind = ?1 AND name = ?2 AND id <> ?3")?
        .exists([kind.name(), profile.name.as_str(), id.as_str()])?;
    if taken {
        return Ok(Stored::Taken { what: "name" });
    }
    connection.execute(
        "INSERT INTO profiles (kind, id, name, version, body, max_parallel, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (id) DO UPDATE SET name = excluded.name, version = excluded.version,
             body = excluded.body, max_parallel = excluded.max_parallel,
             updated_at = excluded.updated_at",
        params![
            kind.name(),
            id,
            profile.name,
            to_sql("a version", version + 1)?,
            text(&profile.body)?,
            max_parallel,
            at_to_sql(profile.updated_at)?,
        ],
    )?;
    Ok(Stored::Done(profile_of(connection, kind, &id)?))
}

const PROFILE: &str = "ordinal, id, name, version, body, updated_at";

pub(in crate::sqlite) fn profile_of<I, T>(
    connection: &Connection,
    kind: Kind,
    id: &str,
) -> Result<Named<I, T>>
where
    I: std::str::FromStr,
    T: DeserializeOwned,
{
    let sql = format!("SELECT {PROFILE} FROM profiles WHERE id = ?1 AND kind = ?2");
    let found = connection
        .prepare_cached(&sql)?
        .query_row([id, kind.name()], |row| Ok(parse_named(row)))
        .optional()?;
    match found {
        Some(found) => Ok(found?.1),
        None => Err(LedgerError::NotFound { kind: kind.name(), id: id.to_owned() }),
    }
}

pub(in crate::sqlite) fn profiles<I, T>(
    connection: &Connection,
    kind: Kind,
    page: Page,
) -> Result<Paged<Named<I, T>>>
where
    I: std::str::FromStr,
    T: DeserializeOwned,
{
    let (before, limit) = bounds(page);
    let sql = format!(
        "SELECT {PROFILE} FROM profiles WHERE kind = ?1 AND ordinal < ?2
         ORDER BY ordinal DESC LIMIT ?3"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let most = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![kind.name(), before, most])?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        out.push(parse_named(row)?);
    }
    Ok(paged(out, limit))
}
