//! Beside each run: the wall clock, the silence budget, the wish to cancel, the heartbeat of the
//! lease, and whether the machine slept.
//!
//! All of it is enforced here, outside the guest, whatever the session is waiting for. Each watch
//! runs by itself: one that waits for the disk must never hold up another.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_ledger::{Beat, Store};
use cofferdam_run::RunId;
use cofferdam_run::fact::{Fact, StopCause};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::facts::Facts;
use crate::pulse::Pulse;

/// How long a claim lasts without a heartbeat, milliseconds. Past it another process may take the run
/// over, unless it sees that the owner lives.
pub(crate) const LEASE_TTL_MS: u64 = 30_000;
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Sleep of the machine that is worth a remark. Less is not told.
pub(crate) const SLEEP_TOLD: Duration = Duration::from_secs(2);

/// What the monitor watches.
pub(crate) struct Monitor {
    pub(crate) ledger: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) run: RunId,
    pub(crate) epoch: u64,
    /// By the clock that stands still while the machine sleeps.
    pub(crate) deadline: Instant,
    /// Longest silence of a working agent.
    pub(crate) silence: Option<Duration>,
    pub(crate) pulse: Pulse,
    pub(crate) facts: Facts,
    pub(crate) stops: mpsc::Sender<StopCause>,
    /// The person at this process wishes to cancel.
    pub(crate) cancel: CancellationToken,
}

impl Monitor {
    /// Watches until dropped.
    pub(crate) async fn watch(self) {
        tokio::join!(
            self.wall_clock(),
            self.silence(),
            self.person_here(),
            self.person_elsewhere(),
            self.heartbeat(),
            self.sleep(),
        );
    }

    async fn wall_clock(&self) {
        tokio::time::sleep_until(self.deadline).await;
        self.stop(StopCause::Budget { budget: "wall_clock".to_owned() }).await;
    }

    async fn silence(&self) {
        let Some(limit) = self.silence else { return };
        loop {
            let heard = self.pulse.silence().unwrap_or_default();
            if heard >= limit {
                return self.stop(StopCause::Budget { budget: "silence".to_owned() }).await;
            }
            tokio::time::sleep(limit - heard).await;
        }
    }

    async fn person_here(&self) {
        self.cancel.cancelled().await;
        // The stop first: it needs no write to the ledger, which may be locked by another process.
        self.stop(StopCause::Cancelled).await;
        let by = "the person at the terminal";
        if let Err(error) = self.ledger.request_cancel(&self.run, by, self.clock.now()).await {
            tracing::error!(run = %self.run, error = %error, "wish to cancel not stored");
        }
    }

    async fn person_elsewhere(&self) {
        let mut look = ticks(LOOK_EVERY);
        loop {
            look.tick().await;
            if matches!(self.ledger.cancel_requested(&self.run).await, Ok(Some(_))) {
                return self.stop(StopCause::Cancelled).await;
            }
        }
    }

    async fn heartbeat(&self) {
        let mut beat = ticks(HEARTBEAT_EVERY);
        loop {
            beat.tick().await;
            self.beat().await;
        }
    }

    async fn beat(&self) {
        let now = self.clock.now();
        let kept = self.ledger.heartbeat(&self.run, self.epoch, now, LEASE_TTL_MS).await;
        if matches!(kept, Ok(Beat::Lost(_))) {
            let detail = "the lease was lost to another process".to_owned();
            self.stop(StopCause::HostError { detail }).await;
        }
    }

    /// All waiting here is by a clock that stands still while the machine sleeps, so nothing of it is
    /// charged to the run. The lease is by the calendar: it is renewed at once.
    async fn sleep(&self) {
        let mut look = ticks(LOOK_EVERY);
        let mut before = self.clock.slept();
        loop {
            look.tick().await;
            let slept = self.clock.slept();
            let more = slept.saturating_sub(before);
            if more < SLEEP_TOLD {
                continue;
            }
            before = slept;
            self.pulse.beat();
            self.beat().await;
            let text = format!(
                "the machine slept for {} s; that time is not charged to the run",
                more.as_secs()
            );
            self.facts.host(Fact::Note { text }).await;
        }
    }

    async fn stop(&self, cause: StopCause) {
        // Nobody listening any more: the run is being wound up already.
        let _ = self.stops.send(cause).await;
    }
}

fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
#[path = "monitor_tests.rs"]
mod tests;
