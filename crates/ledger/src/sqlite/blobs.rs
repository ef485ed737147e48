//! Files beside the database, named by what is in them, for what is too big for a row.
//!
//! A file is whole and on the disk before any row names it, and is compared with its name whenever it
//! is read. Never changes a file; what no row names any more is removed by compaction.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_run::{Digest, TimestampMs};
use rusqlite::{Connection, params};

use super::error::{cannot_open, to_sql};
use crate::error::LedgerError;
use crate::limits::{BLOB_GRACE_MS, MAX_BLOB_BYTES};
use crate::store::Result;

/// The blobs of one data directory.
#[derive(Debug, Clone)]
pub(super) struct Blobs {
    dir: PathBuf,
}

impl Blobs {
    pub(super) fn new(data_dir: &Path) -> Self {
        Self { dir: data_dir.join("blobs") }
    }

    fn place(&self, digest: &Digest) -> PathBuf {
        let hex = digest.as_str().trim_start_matches("sha256:");
        self.dir.join(&hex[..2]).join(hex)
    }

    /// Stores `bytes` and notes that they exist. Harmless when they do already.
    pub(super) fn put(&self, connection: &Connection, bytes: &[u8]) -> Result<Digest> {
        let digest = Digest::of(bytes);
        self.write(&digest, bytes)?;
        connection
            .prepare_cached("INSERT OR IGNORE INTO blobs (digest, bytes) VALUES (?1, ?2)")?
            .execute(params![digest.as_str(), to_sql("bytes of a blob", bytes.len() as u64)?])?;
        Ok(digest)
    }

    fn write(&self, digest: &Digest, bytes: &[u8]) -> Result<()> {
        let place = self.place(digest);
        if place.exists() {
            return Ok(());
        }
        let parent = place.parent().unwrap_or(&self.dir);
        let fail = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                LedgerError::DiskFull
            }
            _ => cannot_open(&place, error),
        };
        DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(fail)?;
        // Of two processes that write the same bytes either may win: they are the same.
        let temporary = place.with_extension(format!("{}.new", std::process::id()));
        let written = (|| {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &place)?;
            // The names too must outlive a loss of power.
            File::open(parent)?.sync_all()?;
            File::open(&self.dir)?.sync_all()
        })();
        written.map_err(|error| {
            let _ = std::fs::remove_file(&temporary);
            fail(error)
        })
    }

    /// The bytes of that digest.
    pub(super) fn get(&self, digest: &Digest) -> Result<Vec<u8>> {
        let place = self.place(digest);
        let corrupt = |why: String| LedgerError::Corrupt { what: format!("blob {digest}: {why}") };
        let file = File::open(&place).map_err(|e| corrupt(e.to_string()))?;
        let mut bytes = Vec::new();
        file.take(MAX_BLOB_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| corrupt(e.to_string()))?;
        if Digest::of(&bytes) == *digest {
            Ok(bytes)
        } else {
            Err(corrupt("its bytes are not those of its name".to_owned()))
        }
    }

    /// Removes files that no row names and that are not being written. Gives how many.
    pub(super) fn sweep(&self, connection: &Connection, now: TimestampMs) -> Result<u64> {
        let mut removed = 0;
        let mut known =
            connection.prepare_cached("SELECT 1 FROM blobs WHERE digest = 'sha256:' || ?1")?;
        let dirs = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for entry in dirs.flat_map(|d| std::fs::read_dir(d.path()).into_iter().flatten().flatten())
        {
            let age_ms = entry
                .metadata()
                .and_then(|m| m.modified())
                .ok()
                .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
                .and_then(|t| u64::try_from(t.as_millis()).ok())
                .map_or(0, |t| now.since_ms(TimestampMs(t)));
            let name = entry.file_name().to_string_lossy().into_owned();
            if age_ms > BLOB_GRACE_MS
                && !known.exists([name])?
                && std::fs::remove_file(entry.path()).is_ok()
            {
                removed += 1;
            }
        }
        Ok(removed)
    }
}
