//! From SQLite's errors to the ledger's, and integers between the two.

use std::path::Path;

use cofferdam_run::TimestampMs;
use rusqlite::ErrorCode;

use crate::error::LedgerError;

/// True when another process or connection holds the lock: worth another attempt.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed
        )
    )
}

impl From<rusqlite::Error> for LedgerError {
    fn from(error: rusqlite::Error) -> Self {
        if is_busy(&error) {
            return Self::Stuck;
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::DiskFull,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Corrupt { what: error.to_string() }
            }
            _ => Self::Database { detail: error.to_string() },
        }
    }
}

/// A failure of opening, with the path that it concerns.
pub(super) fn cannot_open(path: &Path, error: impl std::fmt::Display) -> LedgerError {
    LedgerError::Open { path: path.to_owned(), detail: error.to_string() }
}

/// SQLite has signed integers only.
pub(super) fn to_sql(what: &'static str, value: u64) -> Result<i64, LedgerError> {
    i64::try_from(value).map_err(|_| LedgerError::TooLarge {
        what,
        size: value,
        limit: i64::MAX.unsigned_abs(),
    })
}

/// An instant as SQLite stores it.
pub(super) fn at_to_sql(at: TimestampMs) -> Result<i64, LedgerError> {
    to_sql("a time in milliseconds", at.0)
}

/// A stored integer that is never negative.
pub(super) fn from_sql(what: &str, value: i64) -> Result<u64, LedgerError> {
    u64::try_from(value).map_err(|_| LedgerError::Corrupt { what: format!("{what} is {value}") })
}
