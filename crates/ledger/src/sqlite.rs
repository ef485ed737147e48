//! The SQLite backend of [`Store`].
//!
//! Each method hands one closure to the writer or to a reader; the closures live in `ops`. Nothing
//! here blocks an async thread.

mod blobs;
mod durable;
mod error;
mod filesystem;
mod migrate;
mod open;
mod ops;
mod reader;
mod row;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_v2;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_run::fact::Fact;
use cofferdam_run::{CancelRequest, InstanceId, Lease, Run, RunEvent, RunId, TimestampMs};

use crate::error::LedgerError;
use crate::store::{
    Appended, Applied, Beat, CancelOutcome, Item, ListFilter, NewRun, OutputStream, Result, RunRow,
    Settlement, Store, StoredEvent,
};
use blobs::Blobs;
use open::Options;
use reader::Readers;
use tokio::sync::watch;
use writer::Writer;

/// The ledger of one data directory. Cheap to clone; all clones share one writer thread.
#[derive(Debug, Clone)]
pub struct Ledger {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// None when opened for reading only.
    writer: Option<Writer>,
    readers: Readers,
    instance: InstanceId,
    blobs: Blobs,
    /// Counts the groups of writes of this process that were committed.
    commits: watch::Sender<u64>,
}

impl Ledger {
    /// Opens the ledger in `data_dir`, making both when they are not there: the directory 0700, the
    /// file `ledger.db` 0600. Any number of processes may do so at once.
    ///
    /// # Errors
    /// `LEDGER-001` when it cannot be opened or protected, `LEDGER-002` when a newer version wrote it,
    /// `LEDGER-003` when it is damaged, `LEDGER-014` when the directory is not on a local disk,
    /// `LEDGER-016` when an older format could not be brought up.
    pub async fn open(data_dir: impl Into<PathBuf>) -> Result<Self> {
        Self::open_with(data_dir.into(), Options::default()).await
    }

    /// Opens what is there for reading only: also a ledger of a newer version, as long as that says
    /// that this one can read it. Every write is refused with `LEDGER-015`.
    ///
    /// # Errors
    /// `LEDGER-001` when there is none or its format is older, `LEDGER-002` when it is too new.
    pub async fn open_read_only(data_dir: impl Into<PathBuf>) -> Result<Self> {
        let data_dir = data_dir.into();
        let blobs = Blobs::new(&data_dir);
        let opened = tokio::task::spawn_blocking(move || open::open_read_only(&data_dir))
            .await
            .map_err(|_| LedgerError::Closed)??;
        Self::start(opened, blobs)
    }

    async fn open_with(data_dir: PathBuf, options: Options) -> Result<Self> {
        let blobs = Blobs::new(&data_dir);
        let opened = tokio::task::spawn_blocking(move || open::open(&data_dir, options))
            .await
            .map_err(|_| LedgerError::Closed)??;
        Self::start(opened, blobs)
    }

    fn start(opened: open::Opened, blobs: Blobs) -> Result<Self> {
        let (commits, _) = watch::channel(0);
        let writer = match opened.writer {
            Some(connection) => Some(Writer::start(connection, commits.clone())?),
            None => None,
        };
        let readers = Readers::new(opened.reader, opened.more);
        let instance = opened.instance;
        Ok(Self { inner: Arc::new(Inner { writer, readers, instance, blobs, commits }) })
    }

    /// Changes whenever this process has committed something. A stream that waits looks again then;
    /// what other processes commit it finds by looking again after a while.
    #[must_use]
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.inner.commits.subscribe()
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&rusqlite::Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match &self.inner.writer {
            Some(writer) => writer.run(work).await,
            None => Err(LedgerError::ReadOnly),
        }
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl Fn(&rusqlite::Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.inner.readers.run(work).await
    }
}

#[async_trait]
impl Store for Ledger {
    async fn instance_id(&self) -> Result<InstanceId> {
        Ok(self.inner.instance.clone())
    }

    async fn create_run(&self, new: NewRun) -> Result<Run> {
        self.write(move |c| ops::create::create_run(c, &new)).await
    }

    async fn claim(
        &self,
        id: &RunId,
        owner: &str,
        now: TimestampMs,
        ttl_ms: u64,
    ) -> Result<Option<Lease>> {
        let (id, owner) = (id.clone(), owner.to_owned());
        self.write(move |c| ops::lease::claim(c, &id, &owner, now, ttl_ms)).await
    }

    async fn heartbeat(
        &self,
        id: &RunId,
        epoch: u64,
        now: TimestampMs,
        ttl_ms: u64,
    ) -> Result<Beat> {
        let id = id.clone();
        self.write(move |c| ops::lease::heartbeat(c, &id, epoch, now, ttl_ms)).await
    }

    async fn apply(
        &self,
        id: &RunId,
        epoch: Option<u64>,
        event: RunEvent,
        at: TimestampMs,
    ) -> Result<Applied> {
        let id = id.clone();
        self.write(move |c| ops::transition::apply(c, &id, epoch, &event, at)).await
    }

    async fn append_fact(
        &self,
        id: &RunId,
        epoch: u64,
        at: TimestampMs,
        fact: Fact,
    ) -> Result<Appended> {
        let (id, item) = (id.clone(), (at, Item::Fact(Box::new(fact))));
        self.write(move |c| ops::append::append_one(c, &id, epoch, &item)).await
    }

    async fn append_output(
        &self,
        id: &RunId,
        epoch: u64,
        at: TimestampMs,
        stream: OutputStream,
        bytes: Vec<u8>,
    ) -> Result<Appended> {
        let (id, item) = (id.clone(), (at, Item::Output { stream, bytes }));
        self.write(move |c| ops::append::append_one(c, &id, epoch, &item)).await
    }

    async fn append_batch(
        &self,
        id: &RunId,
        epoch: u64,
        items: Vec<(TimestampMs, Item)>,
    ) -> Result<Vec<Result<Appended>>> {
        let id = id.clone();
        self.write(move |c| ops::append::append(c, &id, epoch, &items)).await
    }

    async fn output_cut_bytes(&self, id: &RunId) -> Result<u64> {
        let id = id.clone();
        self.read(move |c| ops::output::cut_bytes(c, &id)).await
    }

    async fn request_cancel(&self, id: &RunId, by: &str, at: TimestampMs) -> Result<CancelOutcome> {
        let (id, by) = (id.clone(), by.to_owned());
        self.write(move |c| ops::transition::request_cancel(c, &id, &by, at)).await
    }

    async fn cancel_requested(&self, id: &RunId) -> Result<Option<CancelRequest>> {
        let id = id.clone();
        self.read(move |c| Ok(row::head(c, &id)?.cancel)).await
    }

    async fn run(&self, id: &RunId) -> Result<Run> {
        let id = id.clone();
        self.read(move |c| Ok(row::load(c, &id)?.run)).await
    }

    async fn resolve_prefix(&self, prefix: &str) -> Result<RunId> {
        let prefix = prefix.to_owned();
        self.read(move |c| ops::query::resolve_prefix(c, &prefix)).await
    }

    async fn list(&self, filter: ListFilter, limit: u32) -> Result<Vec<RunRow>> {
        self.read(move |c| ops::query::list(c, &filter, limit)).await
    }

    async fn events(&self, id: &RunId, after_seq: u64, limit: u32) -> Result<Vec<StoredEvent>> {
        let id = id.clone();
        self.read(move |c| ops::query::events(c, &id, after_seq, limit)).await
    }

    async fn facts(&self, id: &RunId) -> Result<Vec<(TimestampMs, Fact)>> {
        let id = id.clone();
        let blobs = self.inner.blobs.clone();
        self.read(move |c| ops::query::facts(c, &blobs, &id)).await
    }

    async fn settle(&self, id: &RunId, epoch: u64, at: TimestampMs) -> Result<Settlement> {
        let id = id.clone();
        let blobs = self.inner.blobs.clone();
        self.write(move |c| ops::settle::settle(c, &blobs, &id, epoch, at)).await
    }

    async fn record(&self, id: &RunId) -> Result<Option<String>> {
        let id = id.clone();
        let blobs = self.inner.blobs.clone();
        self.read(move |c| ops::query::record(c, &blobs, &id)).await
    }

    async fn expired(&self, now: TimestampMs) -> Result<Vec<Run>> {
        self.read(move |c| ops::query::expired(c, now)).await
    }

    async fn queued(&self, limit: u32) -> Result<Vec<RunId>> {
        self.read(move |c| ops::query::queued(c, limit)).await
    }
}
