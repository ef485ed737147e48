//! The one clock of the daemon. Everything else is told the time.

use std::time::{SystemTime, UNIX_EPOCH};

use cofferdam_run::TimestampMs;

/// Where the time comes from.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Now, UTC.
    fn now(&self) -> TimestampMs;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> TimestampMs {
        #[expect(clippy::disallowed_methods, reason = "this is the clock")]
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        TimestampMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}
