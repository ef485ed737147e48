//! From ids to row numbers and back.

use rusqlite::{Connection, OptionalExtension};

use crate::error::LedgerError;
use crate::store::Result;

/// A table whose rows have ids.
#[derive(Debug, Clone, Copy)]
pub(in crate::sqlite) enum Table {
    Runs,
    Tasks,
    Projects,
    Threads,
    Profiles,
    Schedules,
}

impl Table {
    fn parts(self) -> (&'static str, &'static str) {
        match self {
            Self::Runs => ("run", "SELECT ordinal FROM runs WHERE id = ?1"),
            Self::Tasks => ("task", "SELECT ordinal FROM tasks WHERE id = ?1"),
            Self::Projects => ("project", "SELECT ordinal FROM projects WHERE id = ?1"),
            Self::Threads => ("thread", "SELECT ordinal FROM threads WHERE id = ?1"),
            Self::Profiles => ("profile", "SELECT ordinal FROM profiles WHERE id = ?1"),
            Self::Schedules => ("schedule", "SELECT ordinal FROM schedules WHERE id = ?1"),
        }
    }
}

/// The row number of an id that must exist.
pub(in crate::sqlite) fn ordinal(connection: &Connection, table: Table, id: &str) -> Result<i64> {
    let (kind, _) = table.parts();
    find(connection, table, id)?
        .ok_or_else(|| LedgerError::NotFound { kind, id: id.chars().take(80).collect() })
}

/// The row number, when there is one.
pub(in crate::sqlite) fn find(
    connection: &Connection,
    table: Table,
    id: &str,
) -> Result<Option<i64>> {
    let (_, sql) = table.parts();
    Ok(connection.prepare_cached(sql)?.query_row([id], |row| row.get(0)).optional()?)
}

/// A stored id.
pub(in crate::sqlite) fn stored<T: std::str::FromStr>(what: &'static str, text: &str) -> Result<T> {
    text.parse().map_err(|_| LedgerError::Corrupt { what: format!("the {what} {text:?}") })
}

/// A stored id that may be missing.
pub(in crate::sqlite) fn maybe<T: std::str::FromStr>(
    what: &'static str,
    text: Option<String>,
) -> Result<Option<T>> {
    text.map(|t| stored(what, &t)).transpose()
}
