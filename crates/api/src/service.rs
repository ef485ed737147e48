//! The runs of this process: started, queued for a place, supervised, stopped.
//!
//! What is durable is in the ledger; here is only what a process must hold: the keys of its runs, and
//! the means to stop them. It decides nothing about a run.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cofferdam_daemon::{Armed, Host, HostError, RunRequest, Silent};
use cofferdam_run::{Digest, RunId, TimestampMs};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::problem::Problem;
use crate::secrets::Secrets;
use crate::types::StartedRun;

/// Runs that a service supervises at once unless it is told otherwise; further ones wait, queued.
pub(crate) const DEFAULT_LIVE: usize = 8;
/// Streams of events at once. A further one is refused with API-008.
pub(crate) const MAX_STREAMS: usize = 256;
/// Idempotency keys that are remembered; the oldest is forgotten first.
pub(crate) const MAX_KEYS: usize = 4096;
/// How long a stopping service waits for its runs to be wound up.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(120);

/// Values of the service's own environment.
pub type Environment = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// A creation that is under way or done, by its key: a second one waits for the first.
type Creation = Arc<tokio::sync::Mutex<Option<(Digest, RunId)>>>;

#[derive(Default)]
struct Keys {
    by_key: HashMap<String, Creation>,
    order: std::collections::VecDeque<String>,
}

pub(crate) struct Service {
    pub(crate) host: Arc<Host>,
    pub(crate) secrets: Secrets,
    pub(crate) environment: Environment,
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) stopping: CancellationToken,
    pub(crate) asked_to_stop: CancellationToken,
    pub(crate) address: OnceLock<SocketAddr>,
    places: Arc<Semaphore>,
    live: Mutex<HashMap<RunId, CancellationToken>>,
    keys: Mutex<Keys>,
    tasks: TaskTracker,
}

impl Service {
    pub(crate) fn new(
        host: Arc<Host>,
        secrets: Secrets,
        environment: Environment,
        live: usize,
    ) -> Self {
        Self {
            host,
            secrets,
            environment,
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            stopping: CancellationToken::new(),
            asked_to_stop: CancellationToken::new(),
            address: OnceLock::new(),
            places: Arc::new(Semaphore::new(live.max(1))),
            live: Mutex::default(),
            keys: Mutex::default(),
            tasks: TaskTracker::new(),
        }
    }

    pub(crate) fn now(&self) -> TimestampMs {
        self.host.now()
    }

    fn live(&self) -> MutexGuard<'_, HashMap<RunId, CancellationToken>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many runs this process has, waiting ones included.
    pub(crate) fn live_count(&self) -> u64 {
        self.live().len() as u64
    }

    /// Tells the supervisor of a run, when it is this process's, that somebody wishes to stop it.
    pub(crate) fn nudge(&self, run: &RunId) {
        if let Some(cancel) = self.live().get(run) {
            cancel.cancel();
        }
    }

    fn creation(&self, key: &str) -> Creation {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = keys.by_key.get(key) {
            return Arc::clone(known);
        }
        while keys.order.len() >= MAX_KEYS {
            let Some(oldest) = keys.order.pop_front() else { break };
            keys.by_key.remove(&oldest);
        }
        let fresh = Creation::default();
        keys.order.push_back(key.to_owned());
        keys.by_key.insert(key.to_owned(), Arc::clone(&fresh));
        fresh
    }

    /// Starts a run, once per key: the same request again gets the same run.
    pub(crate) async fn start(
        self: &Arc<Self>,
        key: Option<String>,
        body: Digest,
        request: RunRequest,
    ) -> Result<StartedRun, Problem> {
        let creation = key.map_or_else(Creation::default, |key| self.creation(&key));
        let mut made = creation.lock().await;
        if let Some((before, run)) = made.as_ref() {
            if *before != body {
                return Err(Problem::key_reused());
            }
            return Ok(StartedRun { run: run.clone(), reach: String::new(), repeated: true });
        }
        if self.stopping.is_cancelled() {
            return Err(Problem::stopping());
        }
        let armed = self.host.arm(request).await?;
        let (run, reach) = (armed.id().clone(), armed.reach());
        *made = Some((body, run.clone()));
        self.supervise(armed);
        Ok(StartedRun { run, reach, repeated: false })
    }

    fn supervise(self: &Arc<Self>, armed: Armed) {
        let (service, run, cancel) =
            (Arc::clone(self), armed.id().clone(), CancellationToken::new());
        self.live().insert(run.clone(), cancel.clone());
        self.tasks.spawn(async move {
            let place = tokio::select! {
                biased;
                () = cancel.cancelled() => None,
                place = Arc::clone(&service.places).acquire_owned() => place.ok(),
            };
            // A run that was cancelled while it waited is over already; one that another wish stopped
            // is wound up at once.
            let waits = place.is_none() && service.is_over(&run).await;
            if !waits {
                match service.host.supervise(armed, Arc::new(Silent), cancel).await {
                    Ok(report) => {
                        tracing::info!(%run, outcome = %report.record.verdict.outcome, "run over");
                    }
                    Err(HostError::TakenOver(_)) => tracing::warn!(%run, "run taken over"),
                    Err(error) => tracing::error!(%run, %error, "run not supervised"),
                }
            }
            drop(place);
            service.live().remove(&run);
        });
    }

    async fn is_over(&self, run: &RunId) -> bool {
        let stored = self.host.ledger().run(run).await;
        stored.is_ok_and(|run| run.state.name().is_terminal())
    }

    /// Stops taking runs, stops those that are live, and waits for them within [`STOP_LIMIT`].
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
            tracing::error!(
                live = self.live_count(),
                "runs left unsettled: the next sweep does it"
            );
        }
    }
}
