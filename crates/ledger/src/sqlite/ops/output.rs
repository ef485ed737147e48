//! Agent output, kept up to the run's budget. Past it bytes are counted and dropped; the run goes on.

use cofferdam_run::{RunId, TimestampMs};
use rusqlite::{Connection, params};

use crate::limits::{MAX_OUTPUT_CHUNK_BYTES, MAX_OUTPUT_CHUNKS};
use crate::sqlite::error::{from_sql, to_sql};
use crate::sqlite::row::{Right, load};
use crate::store::{Appended, OutputStream, Result};

pub(in crate::sqlite) fn append(
    connection: &Connection,
    id: &RunId,
    epoch: u64,
    at: TimestampMs,
    stream: OutputStream,
    bytes: &[u8],
) -> Result<Appended> {
    let mut loaded = load(connection, id)?;
    if let Err(lost) = loaded.fence(epoch, Right::NewestClaim) {
        return Ok(Appended::Lost(lost));
    }
    let mut statement = connection
        .prepare_cached("SELECT output_bytes, output_chunks FROM runs WHERE ordinal = ?1")?;
    let (kept, chunks) =
        statement.query_row([loaded.ordinal], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let kept = from_sql("output_bytes", kept)?;
    let mut chunks = from_sql("output_chunks", chunks)?;

    let room = loaded.run.spec.budgets.output_bytes.saturating_sub(kept);
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
        loaded.append(connection, at, kind, None, &chunk)?;
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
            loaded.ordinal,
        ])?;
    if cut == 0 { Ok(Appended::Kept { seq: loaded.last_seq }) } else { Ok(Appended::Counted) }
}

pub(in crate::sqlite) fn cut_bytes(connection: &Connection, id: &RunId) -> Result<u64> {
    let loaded = load(connection, id)?;
    let cut = connection.query_row(
        "SELECT output_cut FROM runs WHERE ordinal = ?1",
        [loaded.ordinal],
        |row| row.get(0),
    )?;
    from_sql("output_cut", cut)
}
