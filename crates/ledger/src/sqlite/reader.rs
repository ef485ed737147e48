//! Read connections: a few, each used by one reader at a time, on blocking threads.
//!
//! They cannot write (`query_only`), and write-ahead logging keeps them from waiting for a writer.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::error::LedgerError;
use crate::limits::BUSY_ATTEMPTS;
use crate::store::Result;

#[derive(Debug)]
pub(super) struct Readers {
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(connections: Vec<Connection>) -> Self {
        let permits = Arc::new(Semaphore::new(connections.len()));
        Self { idle: Arc::new(Mutex::new(connections)), permits }
    }

    /// Runs `work` in one read transaction, so that it sees one state of the database.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit =
            Arc::clone(&self.permits).acquire_owned().await.map_err(|_| LedgerError::Closed)?;
        let idle = Arc::clone(&self.idle);
        let task = tokio::task::spawn_blocking(move || {
            // A connection is only ever missing when a reader panicked with it.
            let connection = lock(&idle).pop().ok_or(LedgerError::Closed)?;
            let result = read(&connection, work);
            lock(&idle).push(connection);
            drop(permit);
            result
        });
        task.await.map_err(|_| LedgerError::Closed)?
    }
}

fn lock(idle: &Mutex<Vec<Connection>>) -> std::sync::MutexGuard<'_, Vec<Connection>> {
    // The list is whole after every single operation on it.
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(connection: &Connection, work: impl Fn(&Connection) -> Result<T>) -> Result<T> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let result = connection.execute_batch("BEGIN").map_err(LedgerError::from);
        let result = result.and_then(|()| work(connection));
        if !connection.is_autocommit() {
            // A read transaction has nothing to lose.
            let _ = connection.execute_batch("ROLLBACK");
        }
        match result {
            // Only while another process recovers the log after a crash.
            Err(LedgerError::Stuck) if attempts < BUSY_ATTEMPTS => {}
            result => return result,
        }
    }
}
