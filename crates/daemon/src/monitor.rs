//! Beside each run: the wall clock, the person's wish to cancel, and the heartbeat of the lease.
//!
//! All three are enforced here, outside the guest, whatever the session is waiting for.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_ledger::{Beat, Store};
use cofferdam_run::RunId;
use cofferdam_run::fact::StopCause;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

/// How long a claim lasts without a heartbeat, milliseconds.
pub(crate) const LEASE_TTL_MS: u64 = 30_000;
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What the monitor watches.
pub(crate) struct Monitor {
    pub(crate) ledger: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) run: RunId,
    pub(crate) epoch: u64,
    pub(crate) deadline: Instant,
    pub(crate) stops: mpsc::Sender<StopCause>,
    /// The person at this process wishes to cancel.
    pub(crate) cancel: CancellationToken,
}

impl Monitor {
    /// Watches until dropped.
    pub(crate) async fn watch(self) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut beat = tokio::time::interval(HEARTBEAT_EVERY);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut over, mut asked) = (false, false);
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(self.deadline), if !over => {
                    over = true;
                    self.stop(StopCause::Budget { budget: "wall_clock".to_owned() }).await;
                }
                () = self.cancel.cancelled(), if !asked => {
                    asked = true;
                    let request = self.ledger.request_cancel(&self.run, "the person at the terminal", self.clock.now());
                    if let Err(error) = request.await {
                        tracing::error!(run = %self.run, error = %error, "wish to cancel not stored");
                    }
                    // The wish counts even when it could not be stored.
                    self.stop(StopCause::Cancelled).await;
                }
                _ = look.tick() => {
                    if !asked && matches!(self.ledger.cancel_requested(&self.run).await, Ok(Some(_))) {
                        asked = true;
                        self.stop(StopCause::Cancelled).await;
                    }
                }
                _ = beat.tick() => {
                    let kept = self.ledger.heartbeat(&self.run, self.epoch, self.clock.now(), LEASE_TTL_MS).await;
                    if matches!(kept, Ok(Beat::Lost(_))) {
                        self.stop(StopCause::HostError { detail: "the lease was lost to another process".to_owned() }).await;
                    }
                }
            }
        }
    }

    async fn stop(&self, cause: StopCause) {
        // Nobody listening any more: the run is being wound up already.
        let _ = self.stops.send(cause).await;
    }
}
