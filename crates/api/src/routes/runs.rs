//! Runs: list, look, stop, follow. They are made by tasks, or by commands in their own process.

use cofferdam_ledger::CancelOutcome;
use cofferdam_ledger::store::work::{Page, RunFilter};
use cofferdam_run::StateName;
use http::StatusCode;

use super::{limit, page, paged};
use crate::endpoint::{Call, Nothing};
use crate::problem::Problem;
use crate::types::{
    After, CancelResult, Cancelled, Event, EventPage, ListRuns, RunDetail, RunList, RunSummary,
};

fn states(text: Option<&str>) -> Result<Vec<StateName>, Problem> {
    let names = text.unwrap_or_default().split(',').map(str::trim).filter(|n| !n.is_empty());
    names.map(|name| name.parse().map_err(Problem::malformed)).collect()
}

pub(super) async fn list(call: Call<ListRuns>) -> Result<RunList, Problem> {
    let query = &call.query;
    let filter = RunFilter {
        states: states(query.state.as_deref())?,
        live_only: query.live,
        project: query.project.clone(),
        thread: query.thread.clone(),
        task: query.task.clone(),
        run: None,
    };
    let host = &call.service.host;
    let found = host.durable().runs(filter, page(query.before, query.limit)?).await?;
    let (rows, next) = paged(found);
    let live = rows.iter().filter(|row| !row.run.state.is_terminal());
    let lost = host.lost_among(live.map(|row| row.run.id.clone())).await?;
    let runs = rows.into_iter().map(|row| {
        let is_lost = lost.contains(&row.run.id);
        RunSummary::of(row, is_lost)
    });
    Ok(RunList { runs: runs.collect(), next })
}

pub(super) async fn one(call: Call) -> Result<RunDetail, Problem> {
    let id = call.run().await?;
    let host = &call.service.host;
    let run = host.ledger().run(&id).await?;
    let filter = RunFilter { run: Some(id.clone()), ..RunFilter::default() };
    let found = host.durable().runs(filter, Page { before: None, limit: 1 }).await?;
    let row = found.items.into_iter().next();
    let row = row.ok_or_else(|| Problem::no_such(format!("run {id}")))?;
    let lost = host.lost_among([id.clone()]).await?.contains(&id);
    Ok(RunDetail { summary: RunSummary::of(row, lost), spec: run.spec })
}

/// A run of a task is stopped with its task: otherwise the next attempt would follow.
pub(super) async fn cancel(call: Call<Nothing, Nothing>) -> Result<Cancelled, Problem> {
    let run = call.run().await?;
    let host = &call.service.host;
    let state = host.ledger().run(&run).await?.state.name();
    if state.is_terminal() {
        return Err(over(&run, state));
    }
    if let Some(task) = host.durable().task_of(&run).await? {
        let done = host.durable().cancel_task(&task, call.by(), call.now()).await?;
        for stopped in &done.requested {
            call.service.nudge(stopped);
        }
        call.service.handed.forget(&task);
        call.service.changed.notify_one();
        let at_once = done.over.contains(&run);
        let cancel = if at_once { CancelResult::Cancelled } else { CancelResult::Requested };
        return Ok(Cancelled { run, cancel });
    }
    let outcome = host.ledger().request_cancel(&run, call.by(), call.now()).await?;
    call.service.nudge(&run);
    let cancel = match outcome {
        CancelOutcome::Requested(_) => CancelResult::Requested,
        CancelOutcome::AlreadyRequested(_) => CancelResult::AlreadyRequested,
        CancelOutcome::CancelledAtOnce => CancelResult::Cancelled,
        CancelOutcome::AlreadyOver(state) => return Err(over(&run, state)),
    };
    Ok(Cancelled { run, cancel })
}

fn over(run: &cofferdam_run::RunId, state: StateName) -> Problem {
    Problem::new(StatusCode::CONFLICT, "API-012", format!("run {run} is over: {state}"))
}

pub(super) async fn events(call: Call<After>) -> Result<EventPage, Problem> {
    let run = call.run().await?;
    let limit = limit(call.query.limit, 200)?;
    let ledger = call.service.host.ledger();
    // Asked first: an event that comes in between is on a later page, never lost.
    let over = ledger.run(&run).await?.state.name().is_terminal();
    let stored = ledger.events(&run, call.query.after, limit).await?;
    let complete = over && (stored.len() as u64) < u64::from(limit);
    let events: Vec<Event> = stored.into_iter().map(Event::of).collect();
    let after = events.last().map_or(call.query.after, |event| event.seq);
    Ok(EventPage { events, after, complete })
}
