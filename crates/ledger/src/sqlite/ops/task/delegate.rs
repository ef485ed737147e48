//! Delegation: the share is taken from the parent's budget in the transaction that makes the child.

use cofferdam_run::delegate::{DelegationLimits, Share, Tree, admit};
use cofferdam_run::limits::Spend;
use cofferdam_run::task::intent;
use cofferdam_run::{Actor, Digest, RunId, State, TaskId, TimestampMs};
use rusqlite::{Connection, params};

use super::create::{Below, insert};
use super::end::spend_of;
use super::row::{Stored, load, of_run};
use crate::error::LedgerError;
use crate::sqlite::error::to_sql;
use crate::sqlite::ops::ids::stored;
use crate::sqlite::row::{Loaded, Right, json, load as load_run};
use crate::store::work::{Delegated, NewChild, NewTask};
use crate::store::{Lost, Result};

pub(in crate::sqlite) fn delegate(
    connection: &Connection,
    parent: &RunId,
    epoch: u64,
    child: &NewChild,
    limits: &DelegationLimits,
    at: TimestampMs,
) -> Result<Delegated> {
    let loaded = load_run(connection, parent)?;
    if let Err(lost) = loaded.head.fence(epoch, Right::ValidLease(at)) {
        return Ok(Delegated::Lost(lost));
    }
    let works = matches!(loaded.run.state, State::Planning { .. } | State::Executing { .. });
    if !works || loaded.run.cancel.is_some() {
        return Ok(Delegated::Lost(Lost::Stopping));
    }
    let Some(above) = of_run(connection, loaded.head.ordinal)? else {
        return Err(LedgerError::Misuse { what: "delegation by a run that has no task" });
    };
    let share = Share::of(&child.spec.budgets);
    let turn = to_sql("a turn", child.turn)?;
    let tree = tree(connection, &loaded, &above, turn)?;
    let about = intent(&child.spec, child.agent.as_ref());
    if let Err(refusal) = admit(limits, &tree, &about, share) {
        return Ok(Delegated::Refused(refusal));
    }
    let new = NewTask {
        id: child.id.clone(),
        title: child.title.clone(),
        origin: Actor::Agent(parent.clone()),
        project: above.task.project.clone(),
        // A child lives inside its parent's turn.
        thread: None,
        agent: child.agent.clone(),
        priority: above.task.priority,
        spec: child.spec.clone(),
        retry: child.retry.clone(),
        created_at: at,
    };
    let below = Below { parent: &above, run: loaded.head.ordinal, run_id: parent, turn, share };
    match insert(connection, &new, Some(&below))? {
        Ok(stored) => {
            let left = tree.allowance.minus(share);
            Ok(Delegated::Queued { task: Box::new(stored.task), left })
        }
        Err(refusal) => {
            tracing::warn!(run = %parent, refusal = %refusal, "a child was not admitted");
            Ok(Delegated::Lost(Lost::Stopping))
        }
    }
}

fn tree(connection: &Connection, loaded: &Loaded, above: &Stored, turn: i64) -> Result<Tree> {
    let mut ancestors = vec![(above.task.id.clone(), above.task.intent.clone())];
    let mut next = above.task.parent.as_ref().map(|p| p.task.clone());
    while let Some(id) = next {
        let found = super::row::load_id(connection, &id)?;
        ancestors.push((id, found.task.intent));
        next = found.task.parent.map(|p| p.task);
    }
    let mut statement = connection.prepare_cached(
        "SELECT id, intent FROM tasks WHERE root = ?1 AND state = 'open' ORDER BY ordinal",
    )?;
    let mut rows = statement.query([above.root])?;
    let mut open = Vec::new();
    while let Some(row) = rows.next()? {
        let id: TaskId = stored("task id", &row.get::<_, String>(0)?)?;
        let about: Digest = stored("intent", &row.get::<_, String>(1)?)?;
        if !ancestors.iter().any(|(known, _)| *known == id) {
            open.push((id, about));
        }
    }
    let count = |sql: &str, values: &[&dyn rusqlite::ToSql]| -> Result<u32> {
        Ok(connection.prepare_cached(sql)?.query_row(values, |row| row.get(0))?)
    };
    Ok(Tree {
        depth: above.task.parent.as_ref().map_or(0, |p| p.depth),
        ancestors,
        open,
        delegated: count("SELECT count(*) FROM tasks WHERE root = ?1", &[&above.root])?,
        this_turn: count(
            "SELECT count(*) FROM tasks WHERE parent_run = ?1 AND turn = ?2",
            &[&loaded.head.ordinal, &turn],
        )?,
        allowance: allowance_of(connection, loaded)?,
    })
}

/// The budget without what was spent and what belongs to children.
pub(super) fn allowance_of(connection: &Connection, loaded: &Loaded) -> Result<Share> {
    let run = loaded.head.ordinal;
    let mut used = Share::spent(&spend_of(connection, run)?);
    let mut statement =
        connection.prepare_cached("SELECT state, share, spent FROM tasks WHERE parent_run = ?1")?;
    let mut rows = statement.query(params![run])?;
    while let Some(row) = rows.next()? {
        let corrupt = |e: serde_json::Error| LedgerError::Corrupt { what: format!("a share: {e}") };
        let cost = if row.get::<_, String>(0)? == "open" {
            json::<Share>(&row.get::<_, String>(1)?).map_err(corrupt)?
        } else {
            Share::spent(&json::<Spend>(&row.get::<_, String>(2)?).map_err(corrupt)?)
        };
        used = used.plus(cost);
    }
    Ok(Share::of(&loaded.run.spec.budgets).minus(used))
}

pub(in crate::sqlite) fn allowance(connection: &Connection, run: &RunId) -> Result<Share> {
    allowance_of(connection, &load_run(connection, run)?)
}

/// The budget that extending a delegated run would pass; `None` when it may be.
pub(in crate::sqlite) fn beyond_share(
    connection: &Connection,
    run: i64,
    asked: &cofferdam_run::Budgets,
) -> Result<Option<&'static str>> {
    let Some(task) = of_run(connection, run)? else { return Ok(None) };
    let Some(share) = task.share else { return Ok(None) };
    // What earlier attempts spent of it is gone.
    let left = share.minus(Share::spent(&load(connection, task.ordinal)?.task.spent));
    Ok(left.lacks(Share::of(asked)))
}
