//! Agent output, kept up to the run's budget. Past it bytes are counted and dropped; the run goes on.

use cofferdam_run::{RunId, TimestampMs};
use rusqlite::{Connection, params};

use crate::limits::{MAX_OUTPUT_CHUNK_BYTES, MAX_OUTPUT_CHUNKS};
use crate::sqlite::error::{from_sql, to_sql};
use crate::sqlite::row::{Head, head};
use crate::store::{Appended, OutputStream, Result};

/// Keeps what fits. The caller has asked whose run it is.
pub(super) fn append(
    connection: &Connection,
    head: &mut Head,
    at: TimestampMs,
    stream: OutputStream,
    bytes: &[u8],
) -> Result<Appended> {
    let mut statement = connection
        .prepare_cached("SELECT output_bytes, output_chunks FROM runs WHERE ordinal = ?1")?;
    let (kept, chunks) =
        statement.query_row([head.ordinal], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let kept = from_sql("output_bytes", kept)?;
    let mut chunks = from_sql("output_chunks", chunks)?;

    let room = head.output_budget.saturating_sub(kept);
    let fits = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
    let kind = match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    };
    let mut stored = 0;
    for chunk in bytes[..fits].chunks(MAX_OUTPUT_CHUNK_BYTES) {
        if chunks >= MAX_OUTPUT_CHUNKS {
            break;
        }
        head.append(connection, at, kind, None, &chunk)?;
        chunks += 1;
        stored += chunk.len();
    }
    let cut = bytes.len() - stored;
    connection
        .prepare_cached(
            "UPDATE runs SET output_bytes = output_bytes + ?1, output_chunks = ?2,
                 output_cut = output_cut + ?3 WHERE ordinal = ?4",
        )?
        .execute(params![
            to_sql("bytes of output", stored as u64)?,
            to_sql("chunks of output", chunks)?,
            to_sql("bytes of output", cut as u64)?,
            head.ordinal,
        ])?;
    if cut == 0 { Ok(Appended::Kept { seq: head.last_seq }) } else { Ok(Appended::Counted) }
}

pub(in crate::sqlite) fn cut_bytes(connection: &Connection, id: &RunId) -> Result<u64> {
    let head = head(connection, id)?;
    let cut = connection.query_row(
        "SELECT output_cut FROM runs WHERE ordinal = ?1",
        [head.ordinal],
        |row| row.get(0),
    )?;
    from_sql("output_cut", cut)
}
