//! The one clock of the daemon. Everything else is told the time.
//!
//! Three clocks, each for one purpose: the calendar for what is recorded and for leases between
//! processes; the runtime's own, which stands still while the machine sleeps, for budgets and bounds;
//! and how long the machine has slept, to say so.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cofferdam_run::TimestampMs;
use rustix::time::{ClockId, clock_gettime};

/// Where the time comes from.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Now, UTC.
    fn now(&self) -> TimestampMs;

    /// How long this machine has slept since it was started. Only differences mean something.
    fn slept(&self) -> Duration {
        Duration::ZERO
    }
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

    fn slept(&self) -> Duration {
        // The first goes on during sleep, the second does not.
        let (with, without) = (read(ClockId::Boottime), read(ClockId::Monotonic));
        with.saturating_sub(without)
    }
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}
