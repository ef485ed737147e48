//! Every bound of the egress door, in one place.
//!
//! Sizes are constants; times can be given per door, so that a check can run faster than a run.

use std::time::Duration;

/// Most bytes of a request header, request line and final blank line included. More: `EGRESS-002`.
pub const MAX_HEAD_BYTES: usize = 32 * 1024;
/// Most lines of a header, request line included. More: `EGRESS-002`.
pub const MAX_HEAD_LINES: usize = 200;
/// Most bytes of a request target. More: `EGRESS-002`.
pub const MAX_TARGET_BYTES: usize = 8 * 1024;
/// Most bytes of an origin's response header. More: `EGRESS-060`.
pub const MAX_RESPONSE_HEAD_BYTES: usize = 64 * 1024;
/// Most interim (1xx) responses before the final one. More: `EGRESS-060`.
pub const MAX_INTERIM_RESPONSES: usize = 16;
/// Most bytes of a chunk's size line, extensions included. More: `EGRESS-004` or `EGRESS-060`.
pub const MAX_CHUNK_LINE_BYTES: usize = 1024;
/// Most bytes of all trailer lines of a body; they are checked and dropped. More: as above.
pub const MAX_TRAILER_BYTES: usize = 8 * 1024;
/// Most bytes of a TLS hello, record headers included. More: `EGRESS-051`, tunnel closed.
pub const MAX_HELLO_BYTES: usize = 64 * 1024;
/// Most connections of one run at once. More: answered with `EGRESS-027` and closed.
pub const MAX_STREAMS: usize = 256;
/// Connections of one run at once from which on refused ones are not waited for: see
/// [`Limits::refused_crowded`].
pub const CROWDED_STREAMS: usize = 64;
/// Most requests on one connection; the last is answered with `Connection: close`.
pub const MAX_REQUESTS_PER_CONNECTION: usize = 1000;
/// Most refused credentials on one connection; then it is closed.
pub const MAX_AUTH_FAILURES: usize = 8;
/// Most refusals of one run that become facts. The rest is counted in one `Fact::Truncated`.
pub const MAX_LOGGED_REFUSALS: u64 = 500;
/// Most admitted connections of one run that become facts. The rest is counted likewise.
pub const MAX_LOGGED_CONNECTIONS: u64 = 10_000;
/// Most characters of a target or reason in a fact, after escaping. The rest is cut.
pub const MAX_LOGGED_CHARS: usize = 300;
/// Attempts to look one name up when the failure is temporary. Then `EGRESS-031`.
pub const LOOKUP_ATTEMPTS: usize = 3;
/// Most lookups of this process that the operating system works on at once. More wait, and the wait
/// counts as lookup time.
pub const MAX_LOOKUPS_AT_ONCE: usize = 16;
/// Most bytes read and thrown away after a refusal, so that the answer is not lost to a reset.
pub const MAX_LINGER_BYTES: usize = 256 * 1024;
/// Size of a copy buffer, bytes; each connection has one per direction.
pub const COPY_BYTES: usize = 64 * 1024;

/// Times of a door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// From the first byte of a header to its last. Past it: `EGRESS-003`.
    pub header: Duration,
    /// Without a byte between requests (or before the first). Past it: closed without a reply.
    pub keep_alive: Duration,
    /// One lookup attempt. Past it: counts as a temporary failure.
    pub lookup: Duration,
    /// Pauses before the second and third lookup attempt.
    pub lookup_pauses: [Duration; LOOKUP_ATTEMPTS - 1],
    /// One address. Past it: the next vetted address is tried.
    pub dial: Duration,
    /// All addresses of one name. Past it: `EGRESS-040`.
    pub dial_all: Duration,
    /// From the 200 to the whole TLS hello of a tunnel to port 443. Past it: closed.
    pub hello: Duration,
    /// Without a byte in either direction. Past it: closed, outcome `idle`.
    pub idle: Duration,
    /// The same, once one side has finished sending.
    pub half_closed: Duration,
    /// A whole connection or plain request. Past it: closed, outcome `too long`.
    pub total: Duration,
    /// The door's own answer (a refusal, the 200 of a tunnel) to a client that does not read. Past it:
    /// dropped.
    pub answer: Duration,
    /// Waiting for the client to take a refusal before the connection is dropped.
    pub linger: Duration,
    /// Without a byte after a refusal that leaves the connection open (a client then asks again at
    /// once). Past it: closed without a reply.
    pub refused: Duration,
    /// Takes the place of `linger` and `refused` while the run has more than [`CROWDED_STREAMS`]
    /// connections: refused ones that nobody closes must not keep permitted ones waiting.
    pub refused_crowded: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            header: seconds(30),
            keep_alive: seconds(120),
            lookup: seconds(10),
            lookup_pauses: [Duration::from_millis(250), Duration::from_millis(750)],
            dial: seconds(10),
            dial_all: seconds(30),
            hello: seconds(30),
            idle: seconds(600),
            half_closed: seconds(60),
            total: seconds(6 * 3600),
            answer: seconds(30),
            linger: seconds(1),
            refused: seconds(5),
            refused_crowded: Duration::from_millis(250),
        }
    }
}

impl Limits {
    /// The same times divided by `factor`, for checks that play a slow client quickly.
    #[must_use]
    pub fn faster(&self, factor: u32) -> Self {
        let factor = factor.max(1);
        Self {
            header: self.header / factor,
            keep_alive: self.keep_alive / factor,
            lookup: self.lookup / factor,
            lookup_pauses: self.lookup_pauses.map(|pause| pause / factor),
            dial: self.dial / factor,
            dial_all: self.dial_all / factor,
            hello: self.hello / factor,
            idle: self.idle / factor,
            half_closed: self.half_closed / factor,
            total: self.total / factor,
            answer: self.answer / factor,
            linger: self.linger / factor,
            refused: self.refused / factor,
            refused_crowded: self.refused_crowded / factor,
        }
    }
}
