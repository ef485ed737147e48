//! The gateway's limits, one constant each: the unit, and what happens past it.

use std::time::Duration;

/// Bytes of one request body. Past it: 413, `MODEL-003`; nothing is sent on.
pub const MAX_REQUEST_BYTES: usize = 32 << 20;
/// Bytes up to which a request body is taken without one of the [`MAX_LARGE_BODIES`] permits.
pub const SMALL_REQUEST_BYTES: usize = 1 << 20;
/// Request bodies over [`SMALL_REQUEST_BYTES`] held at once. Past it: reading waits.
pub const MAX_LARGE_BODIES: usize = 4;
/// Values (objects, lists, scalars) in one request body. Past it: 400, `MODEL-004`.
pub const MAX_JSON_VALUES: usize = 1_000_000;
/// Calls of one run in flight at once. Past it: 429 with `retry-after: 1`, `MODEL-012`.
pub const MAX_CALLS_IN_FLIGHT: usize = 32;
/// Guest connections of one run at once. Past it: the new connection is closed unread.
pub const MAX_CONNECTIONS: usize = 128;
/// Headers of one request or answer. Past it: hyper answers 431, or the call ends with `MODEL-015`.
pub const MAX_HEADERS: usize = 100;
/// Bytes of the head of one request or answer. Past it: as [`MAX_HEADERS`].
pub const MAX_HEAD_BYTES: usize = 64 << 10;
/// Time within which a request head must be complete, counted from the end of the one before. Past
/// it: the connection is closed.
pub const HEAD_READ_TIMEOUT: Duration = Duration::from_secs(120);
/// Silence of the guest while its body is read. Past it: 408, `MODEL-004`.
pub const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Resolving, connecting and TLS together. Past it: 502, `MODEL-013`.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// From the sent request to the provider's answer head. Past it: 504, `MODEL-016`.
pub const ANSWER_HEAD_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Silence within an answer; each byte starts it anew. Past it: the answer is broken off, `MODEL-016`.
pub const ANSWER_IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// One whole call. Past it: the answer is broken off, `MODEL-016`.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// Bytes of one streamed event that are read for usage. Past it: the answer is counted by size.
pub const MAX_EVENT_BYTES: usize = 16 << 20;
/// Bytes of an unstreamed answer that are kept for reading its usage. Past it: counted by size.
pub const MAX_WHOLE_ANSWER_BYTES: usize = 32 << 20;
/// Bytes of a provider's error body that are passed on. Past it: cut.
pub const MAX_ERROR_BODY_BYTES: usize = 256 << 10;
/// Idle connections kept to the provider. Past it: closed.
pub const MAX_IDLE_UPSTREAM: usize = 8;
/// Age at which an idle connection to the provider is not used again.
pub const IDLE_UPSTREAM_AGE: Duration = Duration::from_secs(30);
/// Time in which a kept connection must be ready for the next request. Past it: a new one is made.
pub const READY_TIMEOUT: Duration = Duration::from_secs(1);
/// Facts about refused calls that a run's record gets. Past it: counted, told once at the end.
pub const MAX_REFUSAL_FACTS: u64 = 500;
/// Characters of guest text (path, model id) in a fact. Past it: cut.
pub const MAX_FACT_TEXT: usize = 200;

/// Output tokens reserved for a call that names no bound of its own.
pub const ASSUMED_OUTPUT_TOKENS: u64 = 32_768;
/// Bound written into a call that names none once less than [`ASSUMED_OUTPUT_TOKENS`] are left: small
/// enough for the models of each provider.
pub const INSERTED_OUTPUT_TOKENS: u64 = 8_192;
/// Tokens by which the reservation of a running call grows at once when it runs past it.
pub const GROWTH_TOKENS: u64 = 1_024;
/// Least output worth a call. Where less is left the budget is exhausted.
pub const MIN_OUTPUT_TOKENS: u64 = 16;
/// Bytes of text that are counted as one token where a count is needed before or without the
/// provider's.
pub const BYTES_PER_TOKEN: u64 = 4;
/// Tokens reserved for one inline image, whatever its size.
pub const IMAGE_TOKENS: u64 = 6_000;
/// Bytes of base64 of other inline media that are counted as one token.
pub const MEDIA_BYTES_PER_TOKEN: u64 = 16;

/// Waiting times, so that tests can shorten them. The defaults are the constants above.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// [`CONNECT_TIMEOUT`].
    pub connect: Duration,
    /// [`ANSWER_HEAD_TIMEOUT`].
    pub answer_head: Duration,
    /// [`ANSWER_IDLE_TIMEOUT`].
    pub answer_idle: Duration,
    /// [`CALL_TIMEOUT`].
    pub call: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: CONNECT_TIMEOUT,
            answer_head: ANSWER_HEAD_TIMEOUT,
            answer_idle: ANSWER_IDLE_TIMEOUT,
            call: CALL_TIMEOUT,
        }
    }
}
