//! Reconciliation: runs whose process is gone are wound up, sandboxes that nobody owns are removed.
//!
//! The engine is the truth about sandboxes, the ledger about runs. Nothing of another instance and
//! nothing of a live run is touched.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_ledger::{Appended, Beat, ListFilter, Settlement, Store};
use cofferdam_run::fact::{CollectOutcome, Fact, StopCause, TeardownOutcome};
use cofferdam_run::{EngineKind, RunEvent, RunId, TimestampMs};
use cofferdam_sandbox::{Engine, Found};

use crate::clock::Clock;
use crate::error::HostError;
use crate::host::Host;
use crate::monitor::LEASE_TTL_MS;
use crate::paths::create_private_dir;
use crate::windup::{self, remove_dir};

/// Renews a lease until it is ended.
async fn beat(ledger: Arc<dyn Store>, clock: Arc<dyn Clock>, run: RunId, epoch: u64) {
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        if let Err(error) = ledger.heartbeat(&run, epoch, clock.now(), LEASE_TTL_MS).await {
            tracing::warn!(run = %run, error = %error, "lease not renewed");
        }
    }
}

/// What a sweep did.
#[derive(Debug, Default, serde::Serialize)]
pub struct SweepReport {
    /// Runs whose process was lost, now settled.
    pub settled: Vec<String>,
    /// Sandboxes removed, as `engine run`.
    pub removed: Vec<String>,
    /// Directories removed.
    pub directories: Vec<String>,
    /// What could not be removed, and why.
    pub failed: Vec<String>,
    /// Runs that are live, or whose process was lost so recently that it cannot be told yet.
    pub live: Vec<String>,
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

impl Host {
    /// Settles lost runs and removes what they left.
    ///
    /// # Errors
    /// The ledger cannot be used.
    pub async fn sweep(&self) -> Result<SweepReport, HostError> {
        let mut report = SweepReport::default();
        let now = self.clock.now();
        for run in self.ledger.expired(now).await? {
            if self.settle_lost(&run.id, run.spec.engine, now, &mut report).await? {
                report.settled.push(run.id.to_string());
            }
        }
        let live = self.live().await?;
        report.live = live.iter().map(RunId::to_string).collect();
        for kind in EngineKind::ALL {
            self.sweep_engine(kind, &live, &mut report).await;
        }
        self.sweep_directories(&live, &mut report);
        Ok(report)
    }

    /// Runs whose process is gone and that wait for a sweep.
    ///
    /// # Errors
    /// The ledger cannot be used.
    pub async fn lost(&self) -> Result<BTreeSet<RunId>, HostError> {
        let expired = self.ledger.expired(self.clock.now()).await?;
        Ok(expired.into_iter().map(|run| run.id).collect())
    }

    async fn live(&self) -> Result<BTreeSet<RunId>, HostError> {
        let filter = ListFilter { live_only: true, ..ListFilter::default() };
        Ok(self.ledger.list(filter, u32::MAX).await?.into_iter().map(|row| row.id).collect())
    }

    /// Takes a lost run over, removes its sandbox, saves its work, judges and settles it.
    async fn settle_lost(
        &self,
        id: &RunId,
        kind: EngineKind,
        now: TimestampMs,
        report: &mut SweepReport,
    ) -> Result<bool, HostError> {
        let owner = format!("sweep in process {}", std::process::id());
        let Some(lease) = self.ledger.claim(id, &owner, now, LEASE_TTL_MS).await? else {
            return Ok(false);
        };
        let at = || self.clock.now();
        // A run that was past its end already knows no such event; settling is what counts.
        let moved = self.ledger.apply(id, Some(lease.epoch), RunEvent::HostLost, at()).await?;
        tracing::info!(run = %id, result = ?moved, "lost run taken over");
        let fact = Fact::Stopped { cause: StopCause::HostLost };
        self.keep(id, lease.epoch, fact).await?;
        let facts = self.ledger.facts(id).await?;
        let has = |wanted: fn(&Fact) -> bool| facts.iter().any(|(_, fact)| wanted(fact));
        let started = has(|f| matches!(f, Fact::AgentStarted { .. }));
        let collected = has(|f| matches!(f, Fact::Collected { .. }));
        let prepared = has(|f| matches!(f, Fact::SandboxPrepared { .. }));
        // Bringing out and removing may take longer than a lease lasts.
        let beating = tokio::spawn(beat(
            Arc::clone(&self.ledger),
            Arc::clone(&self.clock),
            id.clone(),
            lease.epoch,
        ));
        let (salvage, removed) = self.clear_lost(kind, id, started && !collected, prepared).await;
        beating.abort();
        if started && !collected {
            let outcome = CollectOutcome::Failed {
                reason: "the process that supervised the run was lost".to_owned(),
                salvage: salvage.clone(),
            };
            let fact = Fact::Collected {
                head_claim: None,
                commits_claim: 0,
                outcome,
                not_taken_claim: Vec::new(),
            };
            self.keep(id, lease.epoch, fact).await?;
        }
        if let Some(place) = salvage {
            let until_ms = at().plus_ms(self.config.salvage_ms().unwrap_or(14 * 86_400_000)).0;
            let fact = Fact::Retained { kind: "salvage".to_owned(), place, until_ms };
            self.keep(id, lease.epoch, fact).await?;
        }
        if let Some(outcome) = removed {
            if matches!(outcome, TeardownOutcome::Removed) {
                report.removed.push(format!("{kind} {id}"));
            }
            self.keep(id, lease.epoch, Fact::Teardown { outcome }).await?;
        }
        // Renewed once more: the last beat may be old.
        if let Beat::Lost(_) = self.ledger.heartbeat(id, lease.epoch, at(), LEASE_TTL_MS).await? {
            return Ok(false);
        }
        let settled = self.ledger.settle(id, lease.epoch, at()).await?;
        Ok(matches!(settled, Settlement::Done { .. }))
    }

    async fn keep(&self, id: &RunId, epoch: u64, fact: Fact) -> Result<(), HostError> {
        match self.ledger.append_fact(id, epoch, self.clock.now(), fact).await? {
            Appended::Lost(_) => Err(HostError::TakenOver(id.clone())),
            Appended::Kept { .. } | Appended::Counted => Ok(()),
        }
    }

    /// Brings the work of a lost run to safety where that is wanted, then removes its sandbox. Gives
    /// where the work is, and what became of the sandbox when there was one.
    async fn clear_lost(
        &self,
        kind: EngineKind,
        id: &RunId,
        save: bool,
        prepared: bool,
    ) -> (Option<String>, Option<TeardownOutcome>) {
        let place = self.paths.salvage(id);
        let paths = self.paths.run(id);
        let mut kept = save && windup::keep_bundle(&paths.bundle_out(), &place, "out.bundle");
        let failed = |detail: String| Some(TeardownOutcome::Failed { detail });
        let shown = |kept: bool| kept.then(|| place.display().to_string());
        let engine = match self.engines.get(kind).await {
            Ok(engine) => engine,
            Err(error) => return (shown(kept), failed(error.to_string())),
        };
        let found = match engine.list(&self.instance).await {
            Ok(found) => found,
            Err(error) => return (shown(kept), failed(error.to_string())),
        };
        let mut outcome = prepared.then_some(TeardownOutcome::AlreadyGone);
        for sandbox in found.iter().filter(|f| &f.run == id) {
            if save && create_private_dir(&place).is_ok() {
                match engine.salvage(sandbox, &place.join("work")).await {
                    Ok(true) => kept = true,
                    Ok(false) => {}
                    // Removing now would lose the work for good.
                    Err(error) => return (shown(kept), failed(format!("work not saved: {error}"))),
                }
            }
            outcome = Some(engine.remove(sandbox).await);
            if matches!(outcome, Some(TeardownOutcome::Failed { .. })) {
                break;
            }
        }
        if kept {
            windup::keep_bundle(&paths.bundle_in(), &place, "base.bundle");
        } else {
            // Made for nothing, and empty; often not even made.
            let _ = std::fs::remove_dir(&place);
        }
        (shown(kept), outcome)
    }

    async fn sweep_engine(
        &self,
        kind: EngineKind,
        live: &BTreeSet<RunId>,
        report: &mut SweepReport,
    ) {
        if self.parts(kind).is_err() {
            return;
        }
        let listed = match self.engines.get(kind).await {
            Ok(engine) => engine.list(&self.instance).await.map(|found| (engine, found)),
            Err(error) => Err(error),
        };
        let (engine, found) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                report.unreachable.push(format!("{kind}: {error}"));
                return;
            }
        };
        for sandbox in found.iter().filter(|f| !live.contains(&f.run)) {
            if let Err(error) = self.save_unsaved(engine.as_ref(), sandbox).await {
                report.failed.push(format!("{kind} {}: work not saved: {error}", sandbox.run));
                continue;
            }
            match engine.remove(sandbox).await {
                TeardownOutcome::Failed { detail } => {
                    report.failed.push(format!("{kind} {}: {detail}", sandbox.run))
                }
                TeardownOutcome::Removed | TeardownOutcome::AlreadyGone => {
                    report.removed.push(format!("{kind} {}", sandbox.run));
                }
            }
        }
    }

    /// Saves the work of a settled run whose sandbox had to be left because there was no room for it.
    async fn save_unsaved(&self, engine: &dyn Engine, sandbox: &Found) -> Result<(), String> {
        let place = self.paths.salvage(&sandbox.run);
        let facts = self.ledger.facts(&sandbox.run).await.unwrap_or_default();
        // A bundle that was kept does not say that the work directory was: that is seen at its place.
        let lost = facts.iter().any(|(_, fact)| match fact {
            Fact::Collected { outcome, not_taken_claim, .. } => {
                matches!(outcome, CollectOutcome::Failed { .. }) || !not_taken_claim.is_empty()
            }
            _ => false,
        });
        if !lost || place.join("work").exists() {
            return Ok(());
        }
        create_private_dir(&place).map_err(|e| e.to_string())?;
        let saved =
            engine.salvage(sandbox, &place.join("work")).await.map_err(|e| e.to_string())?;
        windup::keep_bundle(&self.paths.run(&sandbox.run).bundle_out(), &place, "out.bundle");
        if !saved {
            // Nothing to save after all; goes when it is empty.
            let _ = std::fs::remove_dir(&place);
        }
        Ok(())
    }

    /// Removes run directories of settled runs, and salvage whose time is over.
    fn sweep_directories(&self, live: &BTreeSet<RunId>, report: &mut SweepReport) {
        let entries = std::fs::read_dir(self.paths.runs()).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let ours = name.parse::<RunId>().is_ok_and(|id| !live.contains(&id));
            if !ours {
                continue;
            }
            // An engine's sandbox that could not be removed is still in there.
            if report.failed.iter().any(|f| f.contains(&name)) {
                continue;
            }
            match remove_dir(&entry.path()) {
                Ok(_) => report.directories.push(entry.path().display().to_string()),
                Err(error) => report.failed.push(format!("{}: {error}", entry.path().display())),
            }
        }
        let keep_ms = self.config.salvage_ms().unwrap_or(14 * 86_400_000);
        let salvage =
            std::fs::read_dir(self.paths.data().join("salvage")).into_iter().flatten().flatten();
        for entry in salvage {
            let old = entry
                .metadata()
                .and_then(|m| m.modified())
                .ok()
                .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
                .is_some_and(|t| {
                    self.clock
                        .now()
                        .0
                        .saturating_sub(u64::try_from(t.as_millis()).unwrap_or(u64::MAX))
                        > keep_ms
                });
            if !old {
                continue;
            }
            match remove_dir(&entry.path()) {
                Ok(_) => report.directories.push(entry.path().display().to_string()),
                Err(error) => report.failed.push(format!("{}: {error}", entry.path().display())),
            }
        }
    }
}
