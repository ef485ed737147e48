//! Sandboxes and files that nobody owns any more.
//!
//! Work that was left in place is saved before its sandbox goes; what is kept on purpose goes when its
//! time is over. Each thing is looked up in the ledger just before it is removed.

use std::path::Path;

use cofferdam_run::fact::{CollectOutcome, Fact, TeardownOutcome};
use cofferdam_run::{EngineKind, RunId};
use cofferdam_sandbox::{Engine, Found};

use super::SweepReport;
use super::lost::save_work;
use crate::host::Host;
use crate::paths::create_private_dir;
use crate::windup::{self, WORK, teardown};

/// Age at which a directory of a run that the ledger does not know, and that names no process, counts
/// as left behind, milliseconds.
const UNKNOWN_AFTER_MS: u64 = 10 * 60 * 1000;
/// Tries at a tree that somebody else removes at the same time.
const REMOVAL_TRIES: u32 = 3;

impl Host {
    /// Removes sandboxes of settled runs. `false` when the engine could not be asked.
    pub(super) async fn sweep_engine(&self, kind: EngineKind, report: &mut SweepReport) -> bool {
        if self.parts(kind).is_err() {
            return true;
        }
        let listed = match self.engines.get(kind).await {
            Ok(engine) => {
                let list =
                    tokio::time::timeout(teardown::ANSWER_LIMIT, engine.list(&self.instance));
                match list.await {
                    Ok(listed) => listed.map(|found| (engine, found)).map_err(|e| e.to_string()),
                    Err(_) => Err("the engine does not answer".to_owned()),
                }
            }
            Err(error) => Err(error.to_string()),
        };
        let (engine, found) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                report.unreachable.push(format!("{kind}: {error}"));
                return false;
            }
        };
        for sandbox in &found {
            if self.is_live(&sandbox.run).await {
                continue;
            }
            if report.dry_run {
                report.removed.push(format!("{kind} {}", sandbox.run));
                continue;
            }
            if let Err(error) = self.save_unsaved(engine.as_ref(), sandbox).await {
                report.failed.push(format!("{kind} {}: work not saved: {error}", sandbox.run));
                continue;
            }
            match teardown::bounded(&self.instance, &engine, engine.remove(sandbox)).await {
                TeardownOutcome::Failed { detail } => {
                    report.failed.push(format!("{kind} {}: {detail}", sandbox.run));
                }
                TeardownOutcome::Removed | TeardownOutcome::AlreadyGone => {
                    report.removed.push(format!("{kind} {}", sandbox.run));
                }
            }
        }
        true
    }

    /// Saves the work of a settled run whose sandbox had to be left, because there was no room for it
    /// or no engine that answered.
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
        if !lost || place.join(WORK).exists() {
            return Ok(());
        }
        create_private_dir(&place).map_err(|e| e.to_string())?;
        let saved = save_work(engine, sandbox, &place).await?;
        let paths = self.paths.run(&sandbox.run);
        windup::keep_bundle(&paths.bundle_out(), &place, windup::OUT_BUNDLE);
        if saved {
            windup::keep_bundle(&paths.bundle_in(), &place, "base.bundle");
        } else {
            // Nothing to save after all; goes when it is empty.
            let _ = std::fs::remove_dir(&place);
        }
        Ok(())
    }

    /// Removes run directories of settled runs, what waits to be removed, and salvage whose time is
    /// over.
    pub(super) async fn sweep_directories(
        &self,
        unreachable: &[EngineKind],
        report: &mut SweepReport,
    ) {
        for (name, path) in entries(&self.paths.runs()) {
            let Ok(id) = name.parse::<RunId>() else { continue };
            if self.is_live(&id).await || self.is_new(&id, &path).await {
                continue;
            }
            // A sandbox that could not be removed is still in there, or its work is not saved yet.
            let failed = report.failed.iter().any(|f| f.contains(&name));
            if failed || self.waits_for(&id, unreachable).await {
                continue;
            }
            remove(&path, report).await;
        }
        for (name, path) in entries(&self.paths.trash_dir()) {
            if name.parse::<RunId>().is_ok() {
                remove(&path, report).await;
            }
        }
        let keep_ms = self.keep_ms();
        for (name, path) in entries(&self.paths.salvage_dir()) {
            if name.parse::<RunId>().is_ok() && self.age_ms(&path).is_some_and(|a| a > keep_ms) {
                remove(&path, report).await;
            }
        }
    }

    /// True for a directory that a process may be about to store its run for.
    async fn is_new(&self, id: &RunId, path: &Path) -> bool {
        let unknown = self.ledger.run(id).await.is_err() && self.armed_by(id).is_none();
        unknown && self.age_ms(path).is_none_or(|age| age < UNKNOWN_AFTER_MS)
    }

    /// True when the run's sandbox is left at an engine that cannot be asked now.
    async fn waits_for(&self, id: &RunId, unreachable: &[EngineKind]) -> bool {
        let Ok(run) = self.ledger.run(id).await else { return false };
        if !unreachable.contains(&run.spec.engine) {
            return false;
        }
        let facts = self.ledger.facts(id).await.unwrap_or_default();
        let last = facts.iter().rev().find_map(|(_, fact)| match fact {
            Fact::Teardown { outcome } => Some(outcome),
            _ => None,
        });
        matches!(last, Some(TeardownOutcome::Failed { .. }))
    }

    fn age_ms(&self, path: &Path) -> Option<u64> {
        let changed = std::fs::symlink_metadata(path).ok()?.modified().ok()?;
        let since = changed.duration_since(std::time::UNIX_EPOCH).ok()?;
        let at = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Some(self.now_ms().0.saturating_sub(at))
    }
}

/// Names and paths in a directory of ours; nothing when it does not exist.
fn entries(place: &Path) -> Vec<(String, std::path::PathBuf)> {
    let listed = std::fs::read_dir(place).into_iter().flatten().flatten();
    listed.map(|e| (e.file_name().to_string_lossy().into_owned(), e.path())).collect()
}

pub(super) async fn remove(path: &Path, report: &mut SweepReport) {
    if report.dry_run {
        report.directories.push(path.display().to_string());
        return;
    }
    let place = path.to_owned();
    let removed = tokio::task::spawn_blocking(move || {
        let mut last = Ok(());
        for _ in 0..REMOVAL_TRIES {
            last = cofferdam_sandbox::remove_tree(&place);
            // The run's own process may be at it as well.
            if !matches!(&last, Err(e) if e.kind() == std::io::ErrorKind::NotFound) {
                break;
            }
        }
        last
    });
    match removed.await {
        Ok(Ok(())) => report.directories.push(path.display().to_string()),
        Ok(Err(error)) => report.failed.push(format!("{}: {error}", path.display())),
        Err(error) => report.failed.push(format!("{}: {error}", path.display())),
    }
}
