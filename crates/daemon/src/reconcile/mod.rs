//! Reconciliation: runs whose process is gone are wound up, sandboxes and files that nobody owns are
//! removed.
//!
//! The engine is the truth about sandboxes, the ledger about runs, `/proc` about the processes that
//! hold them. Nothing of another instance and nothing of a live run is touched: whose a thing is gets
//! asked after the thing was found, never before.

mod leftovers;
mod lost;
mod repositories;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use cofferdam_ledger::ListFilter;
use cofferdam_run::{EngineKind, Run, RunId, TimestampMs};

use crate::error::HostError;
use crate::host::Host;
use crate::owner::{self, Life};

/// How long past the end of its lease a living owner may be silent before `sweep` names its run as
/// stuck, milliseconds. It is named, never taken over: no run has two supervisors.
pub const STUCK_AFTER_MS: u64 = 5 * 60 * 1000;
/// Runs that the start of another run settles at most; the others wait for the next one, or for a
/// sweep.
pub const MAX_SETTLED_AT_START: usize = 16;

/// What a sweep did, or would do.
#[derive(Debug, Default, serde::Serialize)]
pub struct SweepReport {
    /// Nothing was done: this is what there is to do.
    pub dry_run: bool,
    /// Runs whose process was lost, now settled.
    pub settled: Vec<String>,
    /// Sandboxes removed, as `engine run`.
    pub removed: Vec<String>,
    /// Directories and files removed.
    pub directories: Vec<String>,
    /// What could not be removed, and why.
    pub failed: Vec<String>,
    /// Runs that are live, or whose process was lost so recently that it cannot be told yet.
    pub live: Vec<String>,
    /// Runs whose process lives and has let its lease run out long ago.
    pub stuck: Vec<String>,
    /// Engines that could not be asked.
    pub unreachable: Vec<String>,
}

impl SweepReport {
    /// True when there was nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settled.is_empty()
            && self.removed.is_empty()
            && self.directories.is_empty()
            && self.failed.is_empty()
    }
}

/// What is known of the process that has a run.
enum Holder {
    /// It lives, or it cannot be told and the lease holds.
    Here,
    /// It lives and has let the lease run out long ago.
    Stuck,
    /// It is gone.
    Gone,
}

impl Host {
    /// Settles lost runs and removes what they left.
    ///
    /// # Errors
    /// The ledger cannot be used.
    pub async fn sweep(&self) -> Result<SweepReport, HostError> {
        self.sweep_or_look(false).await
    }

    /// What [`Host::sweep`] would do. Changes nothing.
    ///
    /// # Errors
    /// The ledger cannot be used.
    pub async fn sweep_dry(&self) -> Result<SweepReport, HostError> {
        self.sweep_or_look(true).await
    }

    async fn sweep_or_look(&self, dry_run: bool) -> Result<SweepReport, HostError> {
        let mut report = SweepReport { dry_run, ..SweepReport::default() };
        for run in self.unfinished().await? {
            let id = run.id.to_string();
            match self.holder(&run) {
                Holder::Here => report.live.push(id),
                Holder::Stuck => report.stuck.push(id),
                Holder::Gone if dry_run => report.settled.push(id),
                Holder::Gone => match self.settle_lost(&run, &mut report).await {
                    Ok(true) => report.settled.push(id),
                    // Somebody else was first.
                    Ok(false) => report.live.push(id),
                    Err(error) => report.failed.push(format!("{id}: not settled: {error}")),
                },
            }
        }
        let mut unreachable = Vec::new();
        for kind in EngineKind::ALL {
            if !self.sweep_engine(kind, &mut report).await {
                unreachable.push(kind);
            }
        }
        self.sweep_directories(&unreachable, &mut report).await;
        self.sweep_repositories(&mut report).await;
        Ok(report)
    }

    /// Settles the runs whose process is gone, and asks an engine only about these. Costs one query
    /// when there are none: done at the start of every run, so that nobody has to remember it.
    ///
    /// # Errors
    /// The ledger cannot be used.
    pub async fn reconcile(&self) -> Result<SweepReport, HostError> {
        let mut report = SweepReport::default();
        let runs = self.unfinished().await?;
        let gone = runs.iter().filter(|run| matches!(self.holder(run), Holder::Gone));
        for run in gone.take(MAX_SETTLED_AT_START) {
            match self.settle_lost(run, &mut report).await {
                Ok(true) => report.settled.push(run.id.to_string()),
                Ok(false) => {}
                Err(error) => report.failed.push(format!("{}: not settled: {error}", run.id)),
            }
        }
        Ok(report)
    }

    /// Settles one run whose process is gone. `false` when it is not, or somebody else was first.
    ///
    /// # Errors
    /// The ledger cannot be used.
    pub async fn settle_if_lost(&self, id: &RunId) -> Result<bool, HostError> {
        let run = self.ledger.run(id).await?;
        if run.state.is_terminal() || !matches!(self.holder(&run), Holder::Gone) {
            return Ok(false);
        }
        self.settle_lost(&run, &mut SweepReport::default()).await
    }

    /// Runs whose process is gone and that wait for a sweep.
    ///
    /// # Errors
    /// The ledger cannot be used.
    pub async fn lost(&self) -> Result<BTreeSet<RunId>, HostError> {
        let runs = self.unfinished().await?;
        let gone = runs.into_iter().filter(|run| matches!(self.holder(run), Holder::Gone));
        Ok(gone.map(|run| run.id).collect())
    }

    /// Those of these runs whose process is gone. Costs a query for each that is not over.
    ///
    /// # Errors
    /// The ledger cannot be used.
    pub async fn lost_among(
        &self,
        ids: impl IntoIterator<Item = RunId> + Send,
    ) -> Result<BTreeSet<RunId>, HostError> {
        let mut gone = BTreeSet::new();
        for id in ids.into_iter().collect::<Vec<_>>() {
            let run = self.ledger.run(&id).await?;
            if !run.state.is_terminal() && matches!(self.holder(&run), Holder::Gone) {
                gone.insert(id);
            }
        }
        Ok(gone)
    }

    async fn unfinished(&self) -> Result<Vec<Run>, HostError> {
        let filter = ListFilter { live_only: true, ..ListFilter::default() };
        let mut runs = Vec::new();
        for row in self.ledger.list(filter, u32::MAX).await? {
            runs.push(self.ledger.run(&row.id).await?);
        }
        Ok(runs)
    }

    /// Who has the run. A lease alone decides only where the process cannot be seen.
    fn holder(&self, run: &Run) -> Holder {
        let now = self.clock.now();
        let Some(lease) = run.state.lease() else {
            // Armed, and not yet claimed: the process that armed it holds its secrets, nobody else can
            // ever carry it out.
            return match self.armed_by(&run.id) {
                Some(Life::Dead) => Holder::Gone,
                Some(Life::Alive | Life::Unknown) | None => Holder::Here,
            };
        };
        match owner::life_of(&lease.owner) {
            Life::Dead => Holder::Gone,
            Life::Unknown if lease.is_expired(now) => Holder::Gone,
            Life::Alive if now >= lease.expires_at.plus_ms(STUCK_AFTER_MS) => Holder::Stuck,
            // Also when its lease has run out: the machine may have slept.
            Life::Alive | Life::Unknown => Holder::Here,
        }
    }

    /// Whether the process lives that armed the run; `None` when nothing says which.
    fn armed_by(&self, id: &RunId) -> Option<Life> {
        let text = std::fs::read_to_string(self.paths.run(id).armed_by()).ok()?;
        Some(owner::life_of(text.trim()))
    }

    /// True when nothing of the run may be removed. A run that the ledger does not know is being armed
    /// just now, unless the process that began it is gone.
    async fn is_live(&self, id: &RunId) -> bool {
        match self.ledger.run(id).await {
            Ok(run) => !run.state.is_terminal(),
            Err(cofferdam_ledger::LedgerError::NoSuchRun { .. }) => {
                !matches!(self.armed_by(id), Some(Life::Dead) | None)
            }
            // It cannot be told, so nothing is touched.
            Err(_) => true,
        }
    }

    fn now_ms(&self) -> TimestampMs {
        self.clock.now()
    }
}
