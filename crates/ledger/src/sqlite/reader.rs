//! Read connections: a few, each used by one reader at a time, on blocking threads.
//!
//! They cannot write (`query_only`), and write-ahead logging keeps them from waiting for a writer.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::error::LedgerError;
use crate::limits::{BUSY_ATTEMPTS, READ_CONNECTIONS};
use crate::store::Result;

/// Opens a further read connection.
pub(super) type OpenReader = Arc<dyn Fn() -> Result<Connection> + Send + Sync>;

pub(super) struct Readers {
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
    open: OpenReader,
}

impl std::fmt::Debug for Readers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readers").finish_non_exhaustive()
    }
}

impl Readers {
    /// With one connection open. Others follow when readers meet.
    pub(super) fn new(first: Connection, open: OpenReader) -> Self {
        let permits = Arc::new(Semaphore::new(READ_CONNECTIONS));
        Self { idle: Arc::new(Mutex::new(vec![first])), permits, open }
    }

    /// Runs `work` in one read transaction, so that it sees one state of the database.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit =
            Arc::clone(&self.permits).acquire_owned().await.map_err(|_| LedgerError::Closed)?;
        let (idle, open) = (Arc::clone(&self.idle), Arc::clone(&self.open));
        let task = tokio::task::spawn_blocking(move || {
            let idle_one = lock(&idle).pop();
            let connection = match idle_one {
                Some(connection) => connection,
                None => open()?,
            };
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
