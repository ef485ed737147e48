//! What a store of runs must be able to do, without saying how.
//!
//! A second backend joins by implementing [`Store`] and passing the same suite. Nothing here speaks
//! SQL, performs an action or reads a clock: every instant comes from the caller.

pub mod approvals;
pub mod catalogue;
pub mod stream;
pub mod triggers;
pub mod work;

use async_trait::async_trait;
use cofferdam_run::fact::Fact;
use cofferdam_run::limits::Spend;
use cofferdam_run::spec::{Mode, RunSpec};
use cofferdam_run::{
    Action, CancelRequest, InstanceId, Lease, Record, Run, RunEvent, RunId, StateName, StepError,
    TimestampMs, Verdict,
};

use crate::error::LedgerError;

/// Result of a store's operation.
pub type Result<T> = std::result::Result<T, LedgerError>;

/// A run to be armed.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Its id, minted by the caller.
    pub id: RunId,
    /// Everything decided beforehand.
    pub spec: RunSpec,
    /// Now.
    pub created_at: TimestampMs,
    /// One line for lists; cut at [`crate::limits::MAX_TITLE_CHARS`].
    pub title: String,
}

/// Why a write did not count. Losing is a result, not a fault: read again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// The write needs the owner's epoch and carried none.
    NoLease,
    /// The run was claimed anew since, or never by the caller.
    Epoch {
        /// The epoch that holds the run now; 0 when nobody ever claimed it.
        current: u64,
    },
    /// The lease ran out. A heartbeat renews it as long as nobody else has claimed the run.
    Expired {
        /// When it ran out.
        at: TimestampMs,
    },
    /// Somebody wishes to stop it: nothing new begins.
    Stopping,
    /// The run is over; its first terminal state stands.
    Over {
        /// That state.
        state: StateName,
    },
}

/// Result of [`Store::apply`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Applied {
    /// The transition is durable.
    Done {
        /// The run as it stands now.
        run: Box<Run>,
        /// What to do about it, in order.
        actions: Vec<Action>,
        /// Sequence number of the event.
        seq: u64,
    },
    /// Somebody or something was first. Nothing changed.
    Lost(Lost),
    /// The state knows no such event. Nothing changed.
    Illegal(StepError),
}

/// Result of [`Store::heartbeat`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Beat {
    /// The lease is renewed.
    Held {
        /// As it stands now.
        lease: Lease,
        /// Somebody wishes to cancel; the owner owes a stop.
        cancel: Option<CancelRequest>,
    },
    /// It is not the caller's any more.
    Lost(Lost),
}

/// Result of [`Store::append_fact`] and [`Store::append_output`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Appended {
    /// Durable, under this sequence number.
    Kept {
        /// The sequence number.
        seq: u64,
    },
    /// A bound is reached: counted and not kept (of output: the part past the bound).
    Counted,
    /// Not the caller's run any more.
    Lost(Lost),
}

/// Result of [`Store::request_cancel`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum CancelOutcome {
    /// Noted; the owner will stop the run.
    Requested(CancelRequest),
    /// Somebody had asked before; their request stands.
    AlreadyRequested(CancelRequest),
    /// Nobody had started it, so it is over already.
    CancelledAtOnce,
    /// It was over before.
    AlreadyOver(StateName),
}

/// Result of [`Store::settle`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Settlement {
    /// The run is over; record and terminal state are durable together.
    Done {
        /// The run as it stands now and for ever.
        run: Box<Run>,
        /// Its record.
        record: Box<Record>,
    },
    /// Somebody or something was first. Nothing changed.
    Lost(Lost),
    /// The run cannot be settled from where it stands. Nothing changed.
    Illegal(StepError),
}

/// Which stream of the agent a chunk came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Something to add to a run's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A fact, as for [`Store::append_fact`].
    Fact(Box<Fact>),
    /// A chunk of output, as for [`Store::append_output`].
    Output {
        /// Where it was written.
        stream: OutputStream,
        /// What.
        bytes: Vec<u8>,
    },
}

/// One line of a run's event log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Counts from 1 per run, without gaps, over all kinds together.
    pub seq: u64,
    /// When it happened, as the caller said.
    pub at: TimestampMs,
    /// What it is.
    pub body: EventBody,
}

/// What an event is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventBody {
    /// The run moved, or was asked to.
    Transition {
        /// By what.
        event: RunEvent,
        /// The state after it.
        state: StateName,
    },
    /// The host learned something.
    Fact(Box<Fact>),
    /// The agent wrote something.
    Output {
        /// Where.
        stream: OutputStream,
        /// What, as bytes: a chunk may end inside a character.
        bytes: Vec<u8>,
    },
}

/// Which runs a list shows. The default shows all.
#[derive(Debug, Clone, Default)]
pub struct ListFilter {
    /// Only runs in one of these states; empty for all.
    pub states: Vec<StateName>,
    /// Only runs that are not over.
    pub live_only: bool,
    /// Only runs of this checkout (its absolute path).
    pub checkout: Option<String>,
}

/// A run as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    /// Its id.
    pub id: RunId,
    /// One line for people.
    pub title: String,
    /// Absolute path of the checkout.
    pub checkout: String,
    /// Unattended or supervised.
    pub mode: Mode,
    /// Where it stands.
    pub state: StateName,
    /// Somebody wishes to cancel it, or did.
    pub cancel_requested: bool,
    /// When it was armed.
    pub created_at: TimestampMs,
    /// When it last changed.
    pub updated_at: TimestampMs,
    /// Commits fetched; `None` before collecting.
    pub commits: Option<u64>,
    /// The ref that holds them.
    pub reference: Option<String>,
    /// The verdict, once it is over.
    pub verdict: Option<Verdict>,
    /// Spend so far: calls as they happen, replaced by the final sum.
    pub spend: Spend,
}

/// Everything that durable work needs of a store.
pub trait Durable:
    Store
    + work::Work
    + approvals::Approvals
    + triggers::Triggers
    + stream::Stream
    + catalogue::Catalogue
{
}

impl<T> Durable for T where
    T: Store
        + work::Work
        + approvals::Approvals
        + triggers::Triggers
        + stream::Stream
        + catalogue::Catalogue
{
}

/// Durable runs. Every method either is durable when it returns or changed nothing.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// The id of this data directory, made once.
    async fn instance_id(&self) -> Result<InstanceId>;

    /// Arms a run. [`LedgerError::Exists`] when the id is taken: mint another.
    async fn create_run(&self, new: NewRun) -> Result<Run>;

    /// Takes a run that is queued, or whose lease has expired, under a fresh epoch. `None` when
    /// somebody else holds it or it is over. Of several claimants exactly one wins.
    async fn claim(
        &self,
        id: &RunId,
        owner: &str,
        now: TimestampMs,
        ttl_ms: u64,
    ) -> Result<Option<Lease>>;

    /// Renews the lease of `epoch` to `now + ttl_ms`; also one that has expired, as long as nobody
    /// else has claimed the run.
    async fn heartbeat(
        &self,
        id: &RunId,
        epoch: u64,
        now: TimestampMs,
        ttl_ms: u64,
    ) -> Result<Beat>;

    /// Load, step, event and derived row in one transaction. Events of the owner need its epoch and
    /// a lease that is valid at `at`; a person's events need none. Not for `claimed` ([`claim`]) nor
    /// for `settled` and `given_up` ([`settle`]), which are refused as misuse.
    ///
    /// [`claim`]: Store::claim
    /// [`settle`]: Store::settle
    async fn apply(
        &self,
        id: &RunId,
        epoch: Option<u64>,
        event: RunEvent,
        at: TimestampMs,
    ) -> Result<Applied>;

    /// Adds a fact to the record-to-be. Needs the current epoch but no valid lease: a fact that was
    /// seen stays true. Repeatable facts past the bounds are counted and not kept.
    async fn append_fact(
        &self,
        id: &RunId,
        epoch: u64,
        at: TimestampMs,
        fact: Fact,
    ) -> Result<Appended>;

    /// Keeps a chunk of agent output, up to the run's budget `output_bytes`. Past it the rest is
    /// counted, see [`Store::output_cut_bytes`].
    async fn append_output(
        &self,
        id: &RunId,
        epoch: u64,
        at: TimestampMs,
        stream: OutputStream,
        bytes: Vec<u8>,
    ) -> Result<Appended>;

    /// Adds many, in order, in one transaction: one flush to the disk instead of one for each. Gives
    /// one answer per item; an item past a bound is refused by itself. At most
    /// [`crate::limits::MAX_BATCH`] items.
    async fn append_batch(
        &self,
        id: &RunId,
        epoch: u64,
        items: Vec<(TimestampMs, Item)>,
    ) -> Result<Vec<Result<Appended>>>;

    /// Bytes of output that were counted and not kept.
    async fn output_cut_bytes(&self, id: &RunId) -> Result<u64>;

    /// Notes the wish to cancel, from any process and without a lease. A queued run is over at once.
    async fn request_cancel(&self, id: &RunId, by: &str, at: TimestampMs) -> Result<CancelOutcome>;

    /// The wish to cancel, if any.
    async fn cancel_requested(&self, id: &RunId) -> Result<Option<CancelRequest>>;

    /// The run as it stands.
    async fn run(&self, id: &RunId) -> Result<Run>;

    /// The one run whose id begins with `prefix`.
    async fn resolve_prefix(&self, prefix: &str) -> Result<RunId>;

    /// Runs, newest first, at most `limit` (and never more than [`crate::limits::MAX_LIST`]).
    async fn list(&self, filter: ListFilter, limit: u32) -> Result<Vec<RunRow>>;

    /// Events with a sequence number above `after_seq`, in order, at most `limit` (and never more
    /// than [`crate::limits::MAX_LIST`]).
    async fn events(&self, id: &RunId, after_seq: u64, limit: u32) -> Result<Vec<StoredEvent>>;

    /// All facts so far, in order.
    async fn facts(&self, id: &RunId) -> Result<Vec<(TimestampMs, Fact)>>;

    /// Judges the stored facts, seals the record and makes the run terminal, in one transaction. A
    /// stop or a wish to cancel that the facts do not mention is added to them first, so that
    /// record and state cannot differ. Needs the current epoch and a valid lease.
    async fn settle(&self, id: &RunId, epoch: u64, at: TimestampMs) -> Result<Settlement>;

    /// The sealed record's JSON; `None` while the run is not over.
    async fn record(&self, id: &RunId) -> Result<Option<String>>;

    /// Runs that are held under a lease which has expired at `now`: to be reconciled before any new
    /// work is taken. Oldest first.
    async fn expired(&self, now: TimestampMs) -> Result<Vec<Run>>;

    /// Queued runs, oldest first, at most `limit`.
    async fn queued(&self, limit: u32) -> Result<Vec<RunId>>;
}
