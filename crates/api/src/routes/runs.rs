//! Runs: list, start, look, stop, follow.

use cofferdam_ledger::{CancelOutcome, ListFilter};
use cofferdam_run::{Digest, StateName};
use http::StatusCode;

use crate::access::Via;
use crate::endpoint::{Call, Nothing};
use crate::problem::Problem;
use crate::types::{
    After, CancelResult, Cancelled, Event, EventPage, ListRuns, NewRun, RunDetail, RunList,
    RunSummary, StartedRun,
};

/// Most entries of a list or a page. A larger wish is refused with API-005.
pub(crate) const MAX_PAGE: u32 = 1000;
/// Most variables handed over with a run, and most bytes of one. Past either API-005.
pub(crate) const MAX_SECRETS: usize = 64;
/// See [`MAX_SECRETS`].
pub(crate) const MAX_SECRET_BYTES: usize = 64 << 10;

fn limit(wish: Option<u32>, usual: u32) -> Result<u32, Problem> {
    match wish {
        None => Ok(usual),
        Some(limit @ 1..=MAX_PAGE) => Ok(limit),
        Some(_) => Err(Problem::malformed(format!("limit must be 1 to {MAX_PAGE}"))),
    }
}

fn states(text: Option<&str>) -> Result<Vec<StateName>, Problem> {
    let names = text.unwrap_or_default().split(',').map(str::trim).filter(|n| !n.is_empty());
    names.map(|name| name.parse().map_err(Problem::malformed)).collect()
}

pub(super) async fn list(call: Call<ListRuns>) -> Result<RunList, Problem> {
    let query = &call.query;
    let filter = ListFilter {
        states: states(query.state.as_deref())?,
        live_only: query.live,
        checkout: query.checkout.clone(),
        ..ListFilter::default()
    };
    let host = &call.service.host;
    let rows = host.ledger().list(filter, limit(query.limit, 50)?).await?;
    let lost = host.lost().await?;
    let runs = rows.into_iter().map(|row| {
        let is_lost = lost.contains(&row.id);
        RunSummary::of(row, is_lost)
    });
    Ok(RunList { runs: runs.collect() })
}

pub(super) async fn one(call: Call) -> Result<RunDetail, Problem> {
    let id = call.run().await?;
    let host = &call.service.host;
    let run = host.ledger().run(&id).await?;
    let filter = ListFilter { checkout: Some(run.spec.checkout.clone()), ..ListFilter::default() };
    let rows = host.ledger().list(filter, u32::MAX).await?;
    let row = rows
        .into_iter()
        .find(|row| row.id == id)
        .ok_or_else(|| Problem::no_such(format!("run {id}")))?;
    let lost = host.lost().await?.contains(&id);
    Ok(RunDetail { summary: RunSummary::of(row, lost), spec: run.spec })
}

pub(super) async fn create(call: Call<Nothing, NewRun>) -> Result<StartedRun, Problem> {
    let NewRun { wish, secrets } = &call.body;
    if !secrets.is_empty() && call.caller.is_none_or(|c| c.via != Via::Socket) {
        let title = "secrets are taken over the local socket alone";
        return Err(Problem::new(StatusCode::FORBIDDEN, "API-011", title)
            .hint("set the variable where the service is started"));
    }
    if secrets.len() > MAX_SECRETS || secrets.values().any(|v| v.len() > MAX_SECRET_BYTES) {
        return Err(Problem::malformed(format!(
            "at most {MAX_SECRETS} variables of at most {MAX_SECRET_BYTES} bytes"
        )));
    }
    if !wish.checkout.starts_with('/') {
        return Err(Problem::malformed("checkout must be an absolute path"));
    }
    let key = call.idempotency_key()?;
    // Invariant: the wish was just read from JSON, so it serialises.
    let body = Digest::of(&serde_json::to_vec(wish).unwrap_or_default());
    let service = &call.service;
    let value = |name: &str| secrets.get(name).cloned().or_else(|| (service.environment)(name));
    let request = wish.request(service.host.config().clone(), &value)?;
    service.start(key, body, request).await
}

pub(super) async fn cancel(call: Call<Nothing, Nothing>) -> Result<Cancelled, Problem> {
    let run = call.run().await?;
    let outcome = call.service.host.ledger().request_cancel(&run, call.by(), call.now()).await?;
    call.service.nudge(&run);
    let cancel = match outcome {
        CancelOutcome::Requested(_) => CancelResult::Requested,
        CancelOutcome::AlreadyRequested(_) => CancelResult::AlreadyRequested,
        CancelOutcome::CancelledAtOnce => CancelResult::Cancelled,
        CancelOutcome::AlreadyOver(state) => {
            let title = format!("run {run} is over: {state}");
            return Err(Problem::new(StatusCode::CONFLICT, "API-012", title));
        }
    };
    Ok(Cancelled { run, cancel })
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
