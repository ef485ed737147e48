//! Taking the next run from the queue: limits, turns of threads, fairness and claim in one
//! transaction.

use cofferdam_run::task::AGEING_MS;
use cofferdam_run::{RunId, TimestampMs};
use rusqlite::{Connection, OptionalExtension, named_params};

use super::row::of_run;
use crate::error::LedgerError;
use crate::sqlite::error::{at_to_sql, from_sql, to_sql};
use crate::sqlite::ops::ids::stored;
use crate::sqlite::ops::lease::take;
use crate::sqlite::row::load;
use crate::store::Result;
use crate::store::work::{ClaimLimits, Claimed};

/// Between projects those with fewer live runs come first, then the one that was served longest ago;
/// within a project priority, raised by waiting, then age. A run armed by itself belongs to no
/// project; those share one place.
const NEXT: &str = "
    WITH live AS MATERIALIZED (
             SELECT project, agent, thread FROM runs WHERE owner IS NOT NULL),
         of_project AS MATERIALIZED (
             SELECT coalesce(project, 0) AS project, count(*) AS n FROM live GROUP BY 1),
         of_agent AS MATERIALIZED (
             SELECT agent, count(*) AS n FROM live WHERE agent IS NOT NULL GROUP BY 1)
    SELECT r.id
    FROM runs AS r
    LEFT JOIN projects AS p ON p.ordinal = r.project
    LEFT JOIN profiles AS a ON a.ordinal = r.agent
    LEFT JOIN of_project ON of_project.project = coalesce(r.project, 0)
    LEFT JOIN of_agent ON of_agent.agent = r.agent
    WHERE r.state = 'queued'
      AND (r.due_at IS NULL OR r.due_at <= :now)
      AND (r.task IS NOT NULL OR NOT :tasks_only)
      AND (SELECT count(*) FROM live) < :daemon
      AND coalesce(of_project.n, 0) < coalesce(p.max_parallel, :project)
      AND coalesce(of_agent.n, 0) < coalesce(a.max_parallel, :agent)
      AND (r.thread IS NULL
           OR (NOT EXISTS (SELECT 1 FROM live WHERE live.thread = r.thread)
               AND NOT EXISTS (SELECT 1 FROM tasks AS earlier
                               WHERE earlier.thread = r.thread AND earlier.state = 'open'
                                 AND earlier.ordinal < r.task)))
    ORDER BY coalesce(of_project.n, 0),
             coalesce(p.last_claimed, 0),
             r.priority + max(:now - r.created_at, 0) / :ageing DESC,
             r.ordinal
    LIMIT 1";

pub(in crate::sqlite) fn claim_next(
    connection: &Connection,
    owner: &str,
    limits: ClaimLimits,
    now: TimestampMs,
    ttl_ms: u64,
) -> Result<Option<Claimed>> {
    let found: Option<String> = connection
        .prepare_cached(NEXT)?
        .query_row(
            named_params! {
                ":now": at_to_sql(now)?,
                ":daemon": limits.daemon,
                ":project": limits.project,
                ":agent": limits.agent,
                ":tasks_only": limits.tasks_only,
                ":ageing": to_sql("a step of waiting", AGEING_MS)?,
            },
            |row| row.get(0),
        )
        .optional()?;
    let Some(id) = found else { return Ok(None) };
    let id: RunId = stored("run id", &id)?;
    let loaded = load(connection, &id)?;
    let ordinal = loaded.head.ordinal;
    let Some(lease) = take(connection, loaded, owner, now, ttl_ms)? else {
        return Err(LedgerError::Corrupt { what: format!("run {id} is queued and not to be had") });
    };
    connection
        .prepare_cached(
            "UPDATE projects SET last_claimed = (SELECT max(last_claimed) + 1 FROM projects)
             WHERE ordinal = (SELECT project FROM runs WHERE ordinal = ?1)",
        )?
        .execute([ordinal])?;
    let attempt: u32 = connection
        .prepare_cached("SELECT attempt FROM runs WHERE ordinal = ?1")?
        .query_row([ordinal], |row| row.get(0))?;
    let task = of_run(connection, ordinal)?.map(|s| s.task.id);
    let run = Box::new(load(connection, &id)?.run);
    Ok(Some(Claimed { run, lease, task, attempt }))
}

pub(in crate::sqlite) fn next_due(connection: &Connection) -> Result<Option<TimestampMs>> {
    let at: Option<i64> = connection
        .prepare_cached(
            "SELECT min(due_at) FROM runs WHERE state = 'queued' AND due_at IS NOT NULL",
        )?
        .query_row([], |row| row.get(0))?;
    at.map(|at| Ok(TimestampMs(from_sql("due_at", at)?))).transpose()
}
