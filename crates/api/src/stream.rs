//! Events as they happen, as server-sent events that a reader can leave and take up again.
//!
//! The event's id is its sequence number in the ledger: whoever reconnects with the last one that it
//! saw misses nothing. Pages are read when the reader has room, so a slow one costs no memory.
//!
//! Two streams: of one run, which ends with it, and of the whole log, which does not.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event as Sse, KeepAlive};
use axum::response::{IntoResponse, Sse as SseResponse};
use cofferdam_ledger::store::stream::EventFilter;
use cofferdam_run::RunId;
use futures::Stream;
use tokio::sync::OwnedSemaphorePermit;

use crate::endpoint::Call;
use crate::problem::Problem;
use crate::service::Service;
use crate::types::{Event, From, FromLog, LoggedEvent};

/// Events read from the ledger at once.
const PAGE: u32 = 200;
/// Pause between two looks while nothing happens. Runs of other processes write to the same ledger,
/// so it has to be looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Comments sent while nothing happens, so that a dead reader is noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);

struct Reader {
    service: Arc<Service>,
    run: RunId,
    after: u64,
    read: VecDeque<Event>,
    /// The run was over when the last page was asked for.
    over: bool,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

impl Reader {
    async fn next(&mut self) -> Option<Sse> {
        loop {
            if let Some(event) = self.read.pop_front() {
                self.after = event.seq;
                let sse = Sse::default().id(event.seq.to_string()).event(event.name());
                return sse.json_data(&event).ok();
            }
            if self.ended || self.service.stopping.is_cancelled() {
                return None;
            }
            if self.over {
                self.ended = true;
                return Some(Sse::default().event("end").data("{}"));
            }
            if let Err(problem) = self.page().await {
                self.ended = true;
                return Sse::default().event("problem").json_data(&problem).ok();
            }
            if self.read.is_empty() && !self.over {
                tokio::select! {
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                    () = self.service.stopping.cancelled() => {}
                }
            }
        }
    }

    async fn page(&mut self) -> Result<(), Problem> {
        let ledger = self.service.host.ledger();
        // Asked first: what comes between the two is on this page or on the next.
        let over = ledger.run(&self.run).await?.state.name().is_terminal();
        let events = ledger.events(&self.run, self.after, PAGE).await?;
        self.over = over && events.is_empty();
        self.read.extend(events.into_iter().map(Event::of));
        Ok(())
    }
}

/// The stream of a run's events.
pub(crate) async fn run(call: Call<From>) -> Result<impl IntoResponse + use<>, Problem> {
    let run = call.run().await?;
    // An unknown run is an answer, not an empty stream.
    call.service.host.ledger().run(&run).await?;
    let after = match call.header("last-event-id") {
        None => call.query.after,
        Some(id) => id.parse().map_err(|_| Problem::malformed("Last-Event-ID is no number"))?,
    };
    let place = Arc::clone(&call.service.streams)
        .try_acquire_owned()
        .map_err(|_| Problem::too_many("too many streams are open"))?;
    let reader = Reader {
        service: Arc::clone(&call.service),
        run,
        after,
        read: VecDeque::new(),
        over: false,
        ended: false,
        _place: place,
    };
    Ok(SseResponse::new(events(reader)).keep_alive(KeepAlive::new().interval(HEARTBEAT)))
}

fn events(reader: Reader) -> impl Stream<Item = Result<Sse, Infallible>> {
    futures::stream::unfold(reader, async |mut reader| {
        let event = reader.next().await?;
        Some((Ok(event), reader))
    })
}

struct LogReader {
    service: Arc<Service>,
    filter: EventFilter,
    cursor: u64,
    read: VecDeque<Sse>,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

impl LogReader {
    async fn next(&mut self) -> Option<Sse> {
        loop {
            if let Some(event) = self.read.pop_front() {
                return Some(event);
            }
            if self.ended || self.service.stopping.is_cancelled() {
                return None;
            }
            match self.page().await {
                Ok(true) => {}
                Ok(false) => tokio::select! {
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                    () = self.service.stopping.cancelled() => {}
                },
                Err(problem) => {
                    self.ended = true;
                    return Sse::default().event("problem").json_data(&problem).ok();
                }
            }
        }
    }

    /// Reads on; false when there was nothing.
    async fn page(&mut self) -> Result<bool, Problem> {
        let durable = self.service.host.durable();
        let page = durable.events_after(self.cursor, self.filter.clone(), PAGE).await?;
        if let Some(rebase) = page.rebase {
            let data = serde_json::json!({ "through": rebase.through });
            let id = page.cursor.max(rebase.through);
            let told = Sse::default().event("rebase").id(id.to_string()).json_data(&data);
            self.read.extend(told.ok());
        }
        for logged in page.events {
            let event =
                LoggedEvent { id: logged.id, run: logged.run, event: Event::of(logged.event) };
            let told =
                Sse::default().id(event.id.to_string()).event(event.event.name()).json_data(&event);
            self.read.extend(told.ok());
        }
        let moved = page.cursor > self.cursor;
        self.cursor = self.cursor.max(page.cursor);
        Ok(moved || !self.read.is_empty())
    }
}

/// The stream of all runs' events, from now on unless a place is named.
pub(crate) async fn log(call: Call<FromLog>) -> Result<impl IntoResponse + use<>, Problem> {
    let named = match call.header("last-event-id") {
        None => call.query.after,
        Some(id) => Some(id.parse().map_err(|_| Problem::malformed("Last-Event-ID is no number"))?),
    };
    let last = call.service.host.durable().last_event().await?;
    let place = Arc::clone(&call.service.streams)
        .try_acquire_owned()
        .map_err(|_| Problem::too_many("too many streams are open"))?;
    let mut reader = LogReader {
        service: Arc::clone(&call.service),
        filter: EventFilter { run: None, transitions_only: call.query.transitions_only },
        cursor: named.unwrap_or(last),
        read: VecDeque::new(),
        ended: false,
        _place: place,
    };
    // An id from another history: what the reader built from it is not of this ledger.
    if reader.cursor > last {
        reader.cursor = 0;
        let data = serde_json::json!({ "through": 0 });
        reader.read.extend(Sse::default().event("rebase").id("0").json_data(&data).ok());
    }
    let events = futures::stream::unfold(reader, async |mut reader| {
        let event = reader.next().await?;
        Some((Ok::<_, Infallible>(event), reader))
    });
    Ok(SseResponse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)))
}
