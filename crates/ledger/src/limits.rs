//! Bounds of the ledger, each with its unit and what happens past it.
//!
//! A bound never drops anything silently: it refuses, or it counts.

/// Characters of a run's title. The rest is cut.
pub const MAX_TITLE_CHARS: usize = 200;

/// Bytes of one fact as JSON. A repeatable fact past it is counted and not kept; another is refused
/// with `LEDGER-010`.
pub const MAX_FACT_BYTES: usize = 1 << 20;

/// Repeatable facts kept per run. Further ones are counted and appear in the record as `truncated`.
pub const MAX_REPEATABLE_FACTS: u64 = 20_000;

/// Bytes of repeatable facts kept per run, as JSON. Further ones are counted.
pub const MAX_REPEATABLE_FACT_BYTES: u64 = 16 << 20;

/// Facts per run that are not repeatable. A further one is refused with `LEDGER-010`.
pub const MAX_SINGLE_FACTS: u64 = 1_000;

/// Bytes of facts per run that are not repeatable, as JSON. A further one is refused with
/// `LEDGER-010`.
pub const MAX_SINGLE_FACT_BYTES: u64 = 16 << 20;

// Whatever can be stored can be sealed into a record that can be verified: sequence number, time and
// two digests take less than 300 bytes of an entry.
const _: () = assert!(
    MAX_REPEATABLE_FACT_BYTES
        + MAX_SINGLE_FACT_BYTES
        + 300 * (MAX_REPEATABLE_FACTS + MAX_SINGLE_FACTS)
        + (8 << 20)
        < cofferdam_run::record::MAX_RECORD_BYTES as u64
);

/// Bytes of one chunk of output. A larger one is stored as several events.
pub const MAX_OUTPUT_CHUNK_BYTES: usize = 64 << 10;

/// Chunks of output kept per run; the rest is counted, as past the run's `output_bytes`.
pub const MAX_OUTPUT_CHUNKS: u64 = 100_000;

/// Items of one batch of facts and output. A larger batch is refused with `LEDGER-010`.
pub const MAX_BATCH: usize = 1_024;

/// Bytes of a specification as JSON. A larger one is refused with `LEDGER-010`.
pub const MAX_SPEC_BYTES: usize = 1 << 20;

/// Bytes of one transition's JSON. A larger one is refused with `LEDGER-010`.
pub const MAX_EVENT_BYTES: usize = 256 << 10;

/// Rows returned by one list or one page of events. A larger limit is lowered to it.
pub const MAX_LIST: u32 = 10_000;

/// Writes that share one transaction and so one flush to the disk. Further ones wait for the next.
pub const MAX_GROUP: usize = 256;

/// Writes that wait in one process. Further callers wait for room.
pub const MAX_WAITING_WRITES: usize = 4_096;

/// Read connections per process. Further readers wait for one.
pub const READ_CONNECTIONS: usize = 4;

/// Milliseconds that one attempt waits for another process's write lock before it tries again.
pub const BUSY_ATTEMPT_MS: u64 = 5_000;

/// Attempts before the lock counts as stuck and `LEDGER-005` is given: two minutes altogether.
pub const BUSY_ATTEMPTS: u32 = 24;

/// Bytes of a record that stays in its row. A larger one becomes a file beside the database, named by
/// its digest.
pub const RECORD_INLINE_BYTES: usize = 64 << 10;

/// Bytes of such a file. A larger one counts as damaged.
pub const MAX_BLOB_BYTES: u64 = 80 << 20;

/// Milliseconds that a file which no row names is left alone: it may be about to be named.
pub const BLOB_GRACE_MS: u64 = 60 * 60 * 1000;

/// Schedules dealt with in one transaction. Further ones wait for the next call.
pub const MAX_FIRED: u32 = 100;

/// Tries to mint an id that is not taken, before that counts as a mistake.
pub const MAX_SALT: u32 = 64;
