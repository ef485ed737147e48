//! What this process holds beside the ledger: the means to stop its runs, values that were handed
//! over, who may come in.
//!
//! Everything that must outlive the process is in the ledger. It decides nothing about a run.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cofferdam_daemon::Host;
use cofferdam_run::{RunId, TimestampMs};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::dispatch::{self, Handed};
use crate::secrets::Secrets;

/// Runs that a service supervises at once unless it is told otherwise; further ones wait, queued.
pub(crate) const DEFAULT_LIVE: u32 = 8;
/// Streams of events at once. A further one is refused with API-008.
pub(crate) const MAX_STREAMS: usize = 256;
/// How long a stopping service waits for its runs to be wound up.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(120);

/// Values of the service's own environment.
pub type Environment = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

pub(crate) struct Service {
    pub(crate) host: Arc<Host>,
    pub(crate) secrets: Secrets,
    pub(crate) environment: Environment,
    pub(crate) streams: Arc<Semaphore>,
    /// Nothing new is taken any more.
    pub(crate) stopping: CancellationToken,
    pub(crate) asked_to_stop: CancellationToken,
    /// The queue may have something, or room.
    pub(crate) changed: Notify,
    pub(crate) address: OnceLock<SocketAddr>,
    pub(crate) tasks: TaskTracker,
    live: Mutex<HashMap<RunId, CancellationToken>>,
    pub(crate) handed: Handed,
}

impl Service {
    pub(crate) fn new(host: Arc<Host>, secrets: Secrets, environment: Environment) -> Self {
        Self {
            host,
            secrets,
            environment,
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            stopping: CancellationToken::new(),
            asked_to_stop: CancellationToken::new(),
            changed: Notify::new(),
            address: OnceLock::new(),
            tasks: TaskTracker::new(),
            live: Mutex::default(),
            handed: Handed::default(),
        }
    }

    /// Takes from the queue from now on.
    pub(crate) fn begin(self: &Arc<Self>, live: u32) {
        self.tasks.spawn(dispatch::dispatch(Arc::clone(self), live.max(1)));
    }

    pub(crate) fn now(&self) -> TimestampMs {
        self.host.now()
    }

    fn live(&self) -> MutexGuard<'_, HashMap<RunId, CancellationToken>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many runs this process supervises.
    pub(crate) fn live_count(&self) -> u64 {
        self.live().len() as u64
    }

    pub(crate) fn took(&self, run: &RunId, cancel: CancellationToken) {
        self.live().insert(run.clone(), cancel);
    }

    pub(crate) fn gave_back(&self, run: &RunId) {
        self.live().remove(run);
    }

    /// Tells the supervisor of a run, when it is this process's, that somebody wishes to stop it. The
    /// wish itself is in the ledger already.
    pub(crate) fn nudge(&self, run: &RunId) {
        if let Some(cancel) = self.live().get(run) {
            cancel.cancel();
        }
    }

    /// Takes nothing more, stops what is live, and waits for it within [`STOP_LIMIT`]. What is queued
    /// stays queued: the next service takes it.
    pub(crate) async fn stop(&self) {
        self.stopping.cancel();
        let runs: Vec<RunId> = self.live().keys().cloned().collect();
        for run in runs {
            let wish =
                self.host.ledger().request_cancel(&run, "the service was stopped", self.now());
            if let Err(error) = wish.await {
                tracing::error!(%run, %error, "wish to cancel not stored");
            }
            self.nudge(&run);
        }
        self.tasks.close();
        if tokio::time::timeout(STOP_LIMIT, self.tasks.wait()).await.is_err() {
            let live = self.live_count();
            tracing::error!(live, "runs left unsettled: the next start settles them");
        }
    }
}
