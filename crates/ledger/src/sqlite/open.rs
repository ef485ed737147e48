//! Opening: directory, file, permissions, format, connections.
//!
//! Whatever must happen once per data directory happens under an advisory lock on `ledger.lock`, so
//! that several processes may start at the same instant. Never touches a database of a newer format.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_run::InstanceId;
use rusqlite::{Connection, OpenFlags};

use super::error::cannot_open;
use super::filesystem;
use super::migrate::{APPLICATION_ID, known_format, migrate};
use super::reader::OpenReader;
use crate::error::LedgerError;
use crate::limits::BUSY_ATTEMPT_MS;
use crate::store::Result;

/// What tests may change.
#[derive(Debug, Clone, Default)]
pub(super) struct Options {
    /// Pages that the database may have, to play a full disk.
    pub(super) max_pages: Option<u32>,
    /// Number of the file system that the directory is on, instead of the true one.
    pub(super) pretend_disk: Option<u32>,
}

pub(super) struct Opened {
    /// None when opened for reading only.
    pub(super) writer: Option<Connection>,
    pub(super) reader: Connection,
    /// Opens further read connections.
    pub(super) more: OpenReader,
    pub(super) instance: InstanceId,
}

pub(super) fn open(data_dir: &Path, options: Options) -> Result<Opened> {
    make_private_dir(data_dir)?;
    filesystem::check(data_dir, options.pretend_disk)?;
    let lock = private_file(&data_dir.join("ledger.lock"))?;
    lock.lock().map_err(|e| cannot_open(data_dir, e))?;

    let path = data_dir.join("ledger.db");
    private_file(&path)?;
    let writer = connect(&path)?;
    check_format(&writer, &path)?;
    prepare_writer(&writer, &path)?;
    migrate(&writer, data_dir)?;
    if let Some(pages) = options.max_pages {
        writer.pragma_update(None, "max_page_count", pages)?;
    }
    let instance = instance(&writer)?;
    let more: OpenReader = Arc::new(move || {
        let reader = connect(&path)?;
        reader.pragma_update(None, "query_only", true)?;
        Ok(reader)
    });
    let reader = more()?;
    // Dropping the file lets go of the lock; a process that dies here lets go of it too.
    drop(lock);
    Ok(Opened { writer: Some(writer), reader, more, instance })
}

/// Opens what is there for reading, also when a newer version wrote it and says that this one may
/// read it. Makes and changes nothing.
pub(super) fn open_read_only(data_dir: &Path) -> Result<Opened> {
    let path = data_dir.join("ledger.db");
    let place = path.clone();
    let more: OpenReader = Arc::new(move || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let real = place.canonicalize().map_err(|e| cannot_open(&place, e))?;
        let reader =
            Connection::open_with_flags(real, flags).map_err(|e| cannot_open(&place, e))?;
        reader.busy_timeout(Duration::from_millis(BUSY_ATTEMPT_MS))?;
        reader.pragma_update(None, "trusted_schema", false)?;
        Ok(reader)
    });
    let reader = more()?;
    let first = &reader;
    if number(first, "application_id")? != APPLICATION_ID {
        return Err(cannot_open(&path, "it is a database of something else"));
    }
    let (found, known) = (number(first, "user_version")?, known_format());
    if found < known {
        // Reading would need the new tables.
        let detail = format!("it has format {found}; opening it for writing brings it to {known}");
        return Err(cannot_open(&path, detail));
    }
    let readable_by: i64 = first.query_row("SELECT readable_by FROM meta", [], |row| row.get(0))?;
    if readable_by > known {
        return Err(LedgerError::Newer { path, found, known });
    }
    let instance = instance(first)?;
    Ok(Opened { writer: None, reader, more, instance })
}

fn make_private_dir(dir: &Path) -> Result<()> {
    let fail = |e| cannot_open(dir, e);
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fail)?;
    let mode = dir.metadata().map_err(fail)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        std::fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(fail)?;
    }
    Ok(())
}

/// Opens or makes a file that only its owner may read. SQLite gives `-wal` and `-shm` its mode.
fn private_file(path: &Path) -> Result<File> {
    let fail = |e: std::io::Error| cannot_open(path, e);
    match path.symlink_metadata() {
        Ok(found) if !found.is_file() => return Err(cannot_open(path, "it is not a regular file")),
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(fail(e)),
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(fail)?;
    let mode = file.metadata().map_err(fail)?.permissions().mode() & 0o7777;
    if mode != 0o600 {
        file.set_permissions(Permissions::from_mode(0o600)).map_err(fail)?;
    }
    Ok(file)
}

fn connect(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    // NOFOLLOW refuses a link anywhere in the path, and a person's data directory may well be
    // reached through one.
    let real = path.canonicalize().map_err(|e| cannot_open(path, e))?;
    let connection = Connection::open_with_flags(real, flags).map_err(|e| cannot_open(path, e))?;
    connection.busy_timeout(Duration::from_millis(BUSY_ATTEMPT_MS))?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn number(connection: &Connection, pragma: &str) -> Result<i64> {
    Ok(connection.pragma_query_value(None, pragma, |row| row.get(0))?)
}

/// Refuses what is not a ledger of a known format, before anything is written.
fn check_format(connection: &Connection, path: &Path) -> Result<()> {
    let found = number(connection, "user_version")?;
    let known = known_format();
    if found > known {
        return Err(LedgerError::Newer { path: path.to_owned(), found, known });
    }
    let application = number(connection, "application_id")?;
    let pages = number(connection, "page_count")?;
    if pages > 0 && application != APPLICATION_ID {
        return Err(cannot_open(path, "it is a database of something else"));
    }
    Ok(())
}

fn prepare_writer(connection: &Connection, path: &Path) -> Result<()> {
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode != "wal" {
        let detail = format!("write-ahead logging is not possible here (journal mode {mode})");
        return Err(cannot_open(path, detail));
    }
    // FULL: a commit is on the disk before it is acknowledged.
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(())
}

fn instance(connection: &Connection) -> Result<InstanceId> {
    let text: String =
        connection.query_row("SELECT instance_id FROM meta", [], |row| row.get(0))?;
    text.parse().map_err(|e| LedgerError::Corrupt { what: format!("the instance id: {e}") })
}
