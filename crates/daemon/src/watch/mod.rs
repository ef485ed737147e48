//! Beside each session: what the run uses of the host, and the end of it when that is too much.
//!
//! Everything here is seen from outside of the sandbox: the kernel's counters, the blocks of the work
//! volume, the free space of the host. Nothing depends on what the guest says or answers. It stops a
//! run first and kills it when it goes on growing meanwhile; it never removes anything.

mod bounds;
mod pace;
mod place;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_run::RunId;
use cofferdam_run::fact::{ResourceUse, StopCause};
use cofferdam_run::spec::RunSpec;
use cofferdam_sandbox::{Control, WorkUse};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

pub(crate) use bounds::{Bounds, Free};
use bounds::{Finding, Need};
use pace::{COUNT_EVERY, Pace};
pub use place::WorkPlace;

/// Between two looks at counters and free space, at least. Longer where a look itself takes long.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A look at an engine's counters takes at most this share of the time: one part in so many.
const LOOK_SHARE: u32 = 10;
/// How long an engine may take over its counters. Past it they are unknown until the next look.
pub(crate) const USAGE_LIMIT: Duration = Duration::from_secs(5);
/// How long counting the work volume once more for the record may take. Past it the record has the
/// count before.
pub(crate) const LAST_COUNT: Duration = Duration::from_secs(1);

/// Watches one run.
pub(crate) struct Watch {
    run: RunId,
    bounds: Bounds,
    /// The data directory; the work volume may lie elsewhere.
    data: PathBuf,
    stops: mpsc::Sender<StopCause>,
    /// The newest count of the work volume.
    pub(crate) last: Option<WorkUse>,
    told: Vec<&'static str>,
    killed: bool,
    look_every: Duration,
    count_every: Duration,
}

impl Watch {
    pub(crate) fn new(
        run: &RunId,
        bounds: Bounds,
        data: &Path,
        stops: mpsc::Sender<StopCause>,
    ) -> Self {
        Self {
            run: run.clone(),
            bounds,
            data: data.to_owned(),
            stops,
            last: None,
            told: Vec::new(),
            killed: false,
            look_every: LOOK_EVERY,
            count_every: COUNT_EVERY,
        }
    }

    /// Watches until dropped.
    pub(crate) async fn run(&mut self, control: &mut Box<dyn Control>) -> Infallible {
        let place = control.work_place();
        let begin = Instant::now();
        let mut pace =
            Pace::new(&self.bounds, self.count_every, place.as_deref().and_then(Free::of));
        let mut next = begin;
        loop {
            tokio::time::sleep_until(next).await;
            let look = Instant::now();
            let used = timeout(USAGE_LIMIT, control.usage()).await.unwrap_or_default();
            let free = place.as_deref().and_then(Free::of);
            let mut findings = vec![self.bounds.cpu(used.cpu_ms)];
            findings.extend([free, Free::of(&self.data)].map(|free| self.bounds.host(free)));
            let spent = look.elapsed();
            if pace.is_due(begin.elapsed(), free) {
                let begun = Instant::now();
                if let Some(seen) = control.work_use(self.bounds.stop()).await {
                    self.last = Some(seen);
                    findings.push(self.bounds.work(&seen));
                }
                pace.counted(begin.elapsed(), begun.elapsed(), self.last, free);
            }
            for finding in findings.into_iter().flatten() {
                self.act(finding, control).await;
            }
            next = Instant::now() + self.look_every.max(spent * LOOK_SHARE);
        }
    }

    async fn act(&mut self, finding: Finding, control: &mut Box<dyn Control>) {
        let Finding { budget, need } = finding;
        if !self.told.contains(&budget) {
            self.told.push(budget);
            tracing::warn!(run = %self.run, budget, "the run uses more than it may");
            // A full queue means that the run is being stopped already.
            let _ = self.stops.try_send(StopCause::Budget { budget: budget.to_owned() });
        }
        if need == Need::Kill && !self.killed {
            self.killed = true;
            tracing::warn!(run = %self.run, budget, "it goes on growing while it is stopped: killed");
            control.kill().await;
        }
    }
}

/// A limit of the specification that cannot be held on this engine and machine, before any agent runs.
pub(crate) fn unenforceable(spec: &RunSpec, used: &ResourceUse) -> Option<StopCause> {
    let accepted = spec.accept_degraded.iter().any(|layer| layer == "cpu_limit");
    blind(spec.budgets.cpu_ms, used.cpu_ms, accepted)
}

fn blind(budget_ms: Option<u64>, used_ms: Option<u64>, accepted: bool) -> Option<StopCause> {
    (budget_ms.is_some() && used_ms.is_none() && !accepted).then(|| StopCause::PostureRefused {
        layer: "cpu_limit".to_owned(),
        detail: "processor time cannot be counted here, so its budget would not hold".to_owned(),
    })
}

/// What a sandbox that has ended used, for the record. To be asked before it is removed.
pub(crate) async fn last_words(
    control: &mut Box<dyn Control>,
    bounds: &Bounds,
    before: Option<WorkUse>,
) -> ResourceUse {
    let used = timeout(USAGE_LIMIT, control.usage()).await.unwrap_or_default();
    let counted = timeout(LAST_COUNT, control.work_use(bounds.stop())).await.ok().flatten();
    let work = counted.or(before);
    ResourceUse {
        work_bytes: work.map(|w| w.bytes).or(used.work_bytes),
        work_files: work.map(|w| w.files).or(used.work_files),
        ..used
    }
}
