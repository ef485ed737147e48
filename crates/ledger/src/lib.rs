//! Durable runs: events, leases, records. The only room that speaks SQL.
//!
//! It never performs an action and never reads a clock. One writer thread per process, any number
//! of processes per file; a write is acknowledged after it is on the disk and not before.
//!
//! The file must be on a local disk: write-ahead logging needs shared memory, which network file
//! systems do not give. Those are refused.

// The suite's fixtures are shared with the unit tests and name the crate from outside.
#[cfg(test)]
extern crate self as cofferdam_ledger;

pub mod error;
pub mod limits;
mod sqlite;
pub mod store;

pub use error::LedgerError;
pub use sqlite::Ledger;
pub use store::Durable;
pub use store::{
    Appended, Applied, Beat, CancelOutcome, EventBody, Item, ListFilter, Lost, NewRun,
    OutputStream, RunRow, Settlement, Store, StoredEvent,
};
