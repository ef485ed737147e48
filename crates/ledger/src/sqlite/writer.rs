//! The one writer of this process: a thread that commits waiting writes in groups.
//!
//! Writes that wait together share a transaction and so one flush to the disk; each stands behind
//! its own savepoint, so none can spoil another. A reply is sent after COMMIT and never before.

use std::thread;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use super::error::is_busy;
use crate::error::LedgerError;
use crate::limits::{BUSY_ATTEMPTS, MAX_GROUP, MAX_WAITING_WRITES};
use crate::store::Result;

/// Handle of the writer thread. The thread ends when the last handle is gone.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Box<dyn Job>>,
}

impl Writer {
    pub(super) fn start(connection: Connection, commits: watch::Sender<u64>) -> Result<Self> {
        let (jobs, waiting) = mpsc::channel(MAX_WAITING_WRITES);
        thread::Builder::new()
            .name("ledger-writer".to_owned())
            .spawn(move || write_until_closed(&connection, waiting, &commits))
            .map_err(|e| LedgerError::Database { detail: format!("no writer thread: {e}") })?;
        Ok(Self { jobs })
    }

    /// Writes in the queue.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.jobs.max_capacity() - self.jobs.capacity()
    }

    /// Runs `work` inside a transaction and returns once that is on the disk. `work` may run more
    /// than once; what an earlier run wrote is rolled back by then. It is carried out even when the
    /// caller stops waiting.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Write { work, result: None, reply });
        self.jobs.send(job).await.map_err(|_| LedgerError::Closed)?;
        answer.await.map_err(|_| LedgerError::Closed)?
    }
}

/// A write whose result type is forgotten, so that all can wait in one queue.
trait Job: Send {
    /// Runs it and keeps the result. False when it failed and must be rolled back.
    fn attempt(&mut self, connection: &Connection) -> bool;
    /// Sends the kept result: the transaction is durable.
    fn acknowledge(self: Box<Self>);
    /// Sends the kept error, or `error` when the write itself had gone well.
    fn refuse(self: Box<Self>, error: LedgerError);
}

struct Write<T, F> {
    work: F,
    result: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T: Send, F: FnMut(&Connection) -> Result<T> + Send> Job for Write<T, F> {
    fn attempt(&mut self, connection: &Connection) -> bool {
        let result = (self.work)(connection);
        let good = result.is_ok();
        self.result = Some(result);
        good
    }

    fn acknowledge(self: Box<Self>) {
        // Nobody listens when the caller stopped waiting.
        let _ = self.reply.send(self.result.unwrap_or(Err(LedgerError::Closed)));
    }

    fn refuse(self: Box<Self>, error: LedgerError) {
        let own = self.result.and_then(Result::err);
        let _ = self.reply.send(Err(own.unwrap_or(error)));
    }
}

fn write_until_closed(
    connection: &Connection,
    mut waiting: mpsc::Receiver<Box<dyn Job>>,
    commits: &watch::Sender<u64>,
) {
    while let Some(first) = waiting.blocking_recv() {
        let mut group = vec![first];
        while group.len() < MAX_GROUP
            && let Ok(next) = waiting.try_recv()
        {
            group.push(next);
        }
        commit(connection, group);
        commits.send_modify(|count| *count += 1);
    }
}

fn commit(connection: &Connection, mut group: Vec<Box<dyn Job>>) {
    match try_commit(connection, &mut group) {
        Ok(()) => group.into_iter().for_each(Job::acknowledge),
        Err(error) if group.len() == 1 => group.into_iter().for_each(|j| j.refuse(error.clone())),
        // One write took the whole transaction down, for example on a full disk: each by itself.
        Err(_) => group.into_iter().for_each(|job| commit(connection, vec![job])),
    }
}

fn try_commit(connection: &Connection, group: &mut [Box<dyn Job>]) -> Result<()> {
    begin(connection)?;
    let result = run_all(connection, group).and_then(|()| Ok(connection.execute_batch("COMMIT")?));
    if result.is_err() && !connection.is_autocommit() {
        // Best effort: when even this fails the next BEGIN says so.
        let _ = connection.execute_batch("ROLLBACK");
    }
    result
}

fn run_all(connection: &Connection, group: &mut [Box<dyn Job>]) -> Result<()> {
    for job in group {
        connection.execute_batch("SAVEPOINT one_write")?;
        if !job.attempt(connection) {
            if connection.is_autocommit() {
                // SQLite rolled everything back by itself.
                return Err(LedgerError::Database {
                    detail: "the transaction was lost".to_owned(),
                });
            }
            connection.execute_batch("ROLLBACK TO one_write")?;
        }
        connection.execute_batch("RELEASE one_write")?;
    }
    Ok(())
}

/// Takes the write lock, however many processes want it.
fn begin(connection: &Connection) -> Result<()> {
    for _ in 0..BUSY_ATTEMPTS {
        // Waits up to the connection's busy timeout.
        match connection.execute_batch("BEGIN IMMEDIATE") {
            Ok(()) => return Ok(()),
            Err(error) if is_busy(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(LedgerError::Stuck)
}
