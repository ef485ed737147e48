//! From the queue to a supervised run: takes what is due and has room, and begins it.
//!
//! The queue is the ledger's; nothing here is lost when the process is. A run that cannot be begun is
//! settled with what stood in its way, so that no claimed run is left without an owner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_daemon::{Host, HostError, Silent, wish};
use cofferdam_ledger::store::work::{ClaimLimits, Claimed};
use cofferdam_run::{TaskId, TimestampMs};
use tokio_util::sync::CancellationToken;

use crate::service::Service;

/// How long a claim lasts until the supervisor's first heartbeat, milliseconds.
const CLAIM_MS: u64 = 60_000;
/// Longest pause between two looks at the queue: another process may have put something there.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Schedules that are dealt with at once; the rest come right after.
const FIRE_BATCH: u32 = 100;

/// Dispatches until the service stops.
pub(crate) async fn dispatch(service: Arc<Service>, live: u32) {
    let limits = ClaimLimits { daemon: live, project: live, agent: live, tasks_only: true };
    while !service.stopping.is_cancelled() {
        fire(&service.host).await;
        match service
            .host
            .durable()
            .claim_next(&service.host.owner(), limits, service.now(), CLAIM_MS)
            .await
        {
            Ok(Some(claimed)) => begin(&service, claimed),
            Ok(None) => wait(&service).await,
            Err(error) => {
                tracing::error!(%error, "the queue cannot be read");
                wait(&service).await;
            }
        }
    }
}

/// Makes the tasks of schedules whose slot has come.
async fn fire(host: &Host) {
    match host.durable().fire_due(host.now(), FIRE_BATCH).await {
        Ok(slots) => {
            for slot in slots {
                tracing::info!(schedule = %slot.schedule, at = slot.at.0, outcome = ?slot.outcome, "slot");
            }
        }
        Err(error) => tracing::error!(%error, "schedules cannot be read"),
    }
}

/// Until something is due, something changed, or it is time to look again.
async fn wait(service: &Service) {
    let now = service.now();
    let durable = service.host.durable();
    let due = [durable.next_due().await, durable.next_slot().await];
    let next = due.into_iter().filter_map(|at| at.ok().flatten()).min();
    let pause = next.map_or(LOOK_EVERY, |at| until(now, at));
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = service.changed.notified() => {}
        () = service.stopping.cancelled() => {}
    }
}

fn until(now: TimestampMs, at: TimestampMs) -> Duration {
    // A due run without room is due in the past: looked at again when a run ends, or a little later.
    Duration::from_millis(at.since_ms(now).max(50)).min(LOOK_EVERY)
}

fn begin(service: &Arc<Service>, claimed: Claimed) {
    let run = claimed.run.id.clone();
    let cancel = CancellationToken::new();
    service.took(&run, cancel.clone());
    let service = Arc::clone(service);
    service.clone().tasks.spawn(async move {
        match supervised(&service, claimed, cancel).await {
            Ok(outcome) => tracing::info!(%run, outcome, "run over"),
            Err(HostError::TakenOver(_)) => tracing::warn!(%run, "run taken over"),
            Err(error) => tracing::error!(%run, %error, "run not settled"),
        }
        service.gave_back(&run);
        service.changed.notify_one();
    });
}

async fn supervised(
    service: &Service,
    claimed: Claimed,
    cancel: CancellationToken,
) -> Result<&'static str, HostError> {
    let Claimed { run, lease, task, attempt: _ } = claimed;
    let handed = task.as_ref().map(|task| service.handed.of(task)).unwrap_or_default();
    let value = |name: &str| handed.get(name).cloned().or_else(|| (service.environment)(name));
    let host = &service.host;
    let armed = match wish::request_of(run.spec.clone(), host.config(), &value) {
        Ok(request) => host.arm_claimed(&run.id, lease.clone(), request).await,
        Err(error) => Err(error),
    };
    let record = match armed {
        Ok(armed) => host.supervise(armed, Arc::new(Silent), cancel).await?.record,
        Err(error) => host.give_up(&run, &lease, &error).await?,
    };
    if let Some(task) = &task
        && host.durable().task(task).await.is_ok_and(|task| !task.state.is_open())
    {
        service.handed.forget(task);
    }
    Ok(record.verdict.outcome.as_str())
}

/// Values that clients handed over for their tasks: in memory alone, until the task is over. A service
/// that starts anew has them no more; its own environment is what is left then.
#[derive(Default)]
pub(crate) struct Handed(std::sync::Mutex<BTreeMap<TaskId, BTreeMap<String, String>>>);

impl Handed {
    fn map(&self) -> std::sync::MutexGuard<'_, BTreeMap<TaskId, BTreeMap<String, String>>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn keep(&self, task: &TaskId, values: BTreeMap<String, String>) {
        if !values.is_empty() {
            self.map().insert(task.clone(), values);
        }
    }

    pub(crate) fn of(&self, task: &TaskId) -> BTreeMap<String, String> {
        self.map().get(task).cloned().unwrap_or_default()
    }

    pub(crate) fn forget(&self, task: &TaskId) {
        self.map().remove(task);
    }
}
