//! The whole log in one order, for streams that are taken up again; and what is dropped from it.

use async_trait::async_trait;
use cofferdam_run::{RunId, TimestampMs};

use super::{Result, Store, StoredEvent};

/// Which events a stream carries. The default carries all.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Only of this run.
    pub run: Option<RunId>,
    /// Only transitions.
    pub transitions_only: bool,
}

/// An event with its place in the whole log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedEvent {
    /// Grows over the whole data directory, in the order of commits; never given twice.
    pub id: u64,
    /// Whose.
    pub run: RunId,
    /// What.
    pub event: StoredEvent,
}

/// Events after a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    /// In order.
    pub events: Vec<LoggedEvent>,
    /// Where to go on: everything up to here was given or does not match.
    pub cursor: u64,
    /// There may be more already.
    pub more: bool,
    /// Events after the cursor that was asked for have been compacted away: what was built from the
    /// stream has to be read anew. Goes with the events, not instead of them.
    pub rebase: Option<Rebase>,
}

/// History that is not in the log any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebase {
    /// Some events up to this id are gone.
    pub through: u64,
}

/// What is kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Events of runs that have been over for this long are dropped, milliseconds. Records stay.
    pub events_ms: u64,
    /// Idempotency keys and deliveries are forgotten after this, milliseconds.
    pub keys_ms: u64,
    /// Runs per call; call again while [`Compacted::more`].
    pub batch: u32,
}

impl Default for Retention {
    fn default() -> Self {
        let day = 24 * 60 * 60 * 1000;
        Self { events_ms: 30 * day, keys_ms: 7 * day, batch: 50 }
    }
}

/// What was dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Runs whose events are gone.
    pub runs: Vec<RunId>,
    /// Events.
    pub events: u64,
    /// Keys and deliveries.
    pub keys: u64,
    /// Files that nothing named any more.
    pub blobs: u64,
    /// There is more to do.
    pub more: bool,
}

/// The log over all runs.
#[async_trait]
pub trait Stream: Store {
    /// Events with an id above `after`, in order, at most `limit`.
    async fn events_after(&self, after: u64, filter: EventFilter, limit: u32) -> Result<EventPage>;

    /// The id of the newest event; 0 when there is none.
    async fn last_event(&self) -> Result<u64>;

    /// Drops what is old. A run that is not over is never touched.
    async fn compact(&self, retention: Retention, now: TimestampMs) -> Result<Compacted>;
}
