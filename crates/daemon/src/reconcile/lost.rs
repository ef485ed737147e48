//! Winding up a run whose process is gone: take it over, save its work, remove its sandbox, settle.
//!
//! The lease of a process that is proven dead is ended in its name; of several that try, one wins. It
//! must never remove what it could not save.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_ledger::{Appended, Beat, Settlement, Store};
use cofferdam_run::fact::{CollectOutcome, Fact, SideRef, StopCause, TeardownOutcome};
use cofferdam_run::{ObjectId, Run, RunEvent, RunId};
use cofferdam_sandbox::{Engine, Found};
use cofferdam_workspace::Checkout;

use super::{SweepReport, leftovers};
use crate::clock::Clock;
use crate::error::HostError;
use crate::host::Host;
use crate::monitor::LEASE_TTL_MS;
use crate::owner;
use crate::paths::create_private_dir;
use crate::windup::{self, PART, WORK, teardown};

/// Stands for a name that the agent gave.
const NOT_SHOWN: &str = "(not shown)";
/// Why commits have no subjects.
const LEFT_OUT: &str = "the commits were fetched before the process was lost; their subjects and the names \
                        of their branches are not repeated here, since they cannot be searched for the \
                        run's credentials any more";

/// Renews a lease until it is ended.
async fn beat(ledger: Arc<dyn Store>, clock: Arc<dyn Clock>, run: RunId, epoch: u64) {
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        if let Err(error) = ledger.heartbeat(&run, epoch, clock.now(), LEASE_TTL_MS).await {
            tracing::warn!(run = %run, error = %error, "lease not renewed");
        }
    }
}

/// What the facts of a lost run say.
#[derive(Debug, Default)]
struct Known {
    prepared: bool,
    started: bool,
    collected: bool,
    torn_down: bool,
    retained: bool,
    lost_before: bool,
    base: Option<ObjectId>,
}

impl Known {
    fn of<'a>(facts: impl IntoIterator<Item = &'a Fact>) -> Self {
        let mut known = Self::default();
        for fact in facts {
            match fact {
                Fact::Snapshot { base, .. } => known.base = Some(base.clone()),
                Fact::SandboxPrepared { .. } => known.prepared = true,
                Fact::AgentStarted { .. } => known.started = true,
                Fact::Collected { .. } => known.collected = true,
                Fact::Retained { .. } => known.retained = true,
                Fact::Stopped { cause: StopCause::HostLost } => known.lost_before = true,
                Fact::Teardown {
                    outcome: TeardownOutcome::Removed | TeardownOutcome::AlreadyGone,
                } => known.torn_down = true,
                _ => {}
            }
        }
        known
    }

    /// The run may have work that nothing says to be safe.
    fn unsaved(&self) -> bool {
        self.started && !self.collected
    }
}

impl Host {
    /// Takes a lost run over, removes its sandbox, saves its work, judges and settles it. `false` when
    /// somebody else has it.
    pub(super) async fn settle_lost(
        &self,
        run: &Run,
        report: &mut SweepReport,
    ) -> Result<bool, HostError> {
        let (id, kind) = (&run.id, run.spec.engine);
        if let Some(lease) = run.state.lease().filter(|lease| !lease.is_expired(self.now_ms())) {
            // Its owner is proven dead, so it ends now.
            if let Beat::Lost(_) = self.ledger.heartbeat(id, lease.epoch, self.now_ms(), 0).await? {
                return Ok(false);
            }
        }
        let owner = format!("sweep in {}", owner::me());
        let Some(lease) = self.ledger.claim(id, &owner, self.now_ms(), LEASE_TTL_MS).await? else {
            return Ok(false);
        };
        // Saving and removing may take longer than a lease lasts.
        let beating = tokio::spawn(beat(
            Arc::clone(&self.ledger),
            Arc::clone(&self.clock),
            id.clone(),
            lease.epoch,
        ));
        let settled = self.wind_up_lost(run, lease.epoch, report).await;
        beating.abort();
        tracing::info!(run = %id, engine = %kind, settled = ?settled, "lost run taken over");
        settled
    }

    async fn wind_up_lost(
        &self,
        run: &Run,
        epoch: u64,
        report: &mut SweepReport,
    ) -> Result<bool, HostError> {
        let id = &run.id;
        // A run that was past its end already knows no such event; settling is what counts.
        let _moved = self.ledger.apply(id, Some(epoch), RunEvent::HostLost, self.now_ms()).await?;
        let facts = self.ledger.facts(id).await?;
        let known = Known::of(facts.iter().map(|(_, fact)| fact));
        if !known.lost_before {
            self.keep(id, epoch, Fact::Stopped { cause: StopCause::HostLost }).await?;
        }
        let fetched = if known.unsaved() { self.fetched_already(run, &known).await } else { None };
        let save = known.unsaved() && fetched.is_none();
        let (salvage, removed) = self.clear_lost(run, save, &known).await;
        if known.unsaved() {
            let (head, commits, outcome) = match fetched {
                Some((head, commits, outcome)) => {
                    self.keep(id, epoch, Fact::Note { text: LEFT_OUT.to_owned() }).await?;
                    (Some(head), commits, outcome)
                }
                None => {
                    let reason = "the process that supervised the run was lost".to_owned();
                    (None, 0, CollectOutcome::Failed { reason, salvage: salvage.clone() })
                }
            };
            let fact = Fact::Collected {
                head_claim: head,
                commits_claim: commits,
                outcome,
                not_taken_claim: Vec::new(),
            };
            self.keep(id, epoch, fact).await?;
        }
        // Whoever saved it may have been killed before it could say so.
        if let Some(place) = salvage.filter(|_| !known.retained) {
            let until_ms = self.now_ms().plus_ms(self.keep_ms()).0;
            let fact = Fact::Retained { kind: "salvage".to_owned(), place, until_ms };
            self.keep(id, epoch, fact).await?;
        }
        let clean = !matches!(removed, Some(TeardownOutcome::Failed { .. }));
        if let Some(outcome) = removed {
            if matches!(outcome, TeardownOutcome::Removed) {
                report.removed.push(format!("{} {id}", run.spec.engine));
            }
            self.keep(id, epoch, Fact::Teardown { outcome }).await?;
        }
        // Renewed once more: the last beat may be old.
        if let Beat::Lost(_) = self.ledger.heartbeat(id, epoch, self.now_ms(), LEASE_TTL_MS).await?
        {
            return Ok(false);
        }
        let settled = self.ledger.settle(id, epoch, self.now_ms()).await?;
        let settled = matches!(settled, Settlement::Done { .. });
        if settled && clean {
            // The record is durable: what is left is scratch.
            let places = [self.paths.run(id).dir().to_owned(), self.paths.trash(id)];
            for place in places.iter().filter(|place| place.exists()) {
                leftovers::remove(place, report).await;
            }
        }
        Ok(settled)
    }

    /// How long salvaged work is kept, milliseconds.
    pub(super) fn keep_ms(&self) -> u64 {
        self.config.salvage_ms().unwrap_or(14 * 86_400_000)
    }

    async fn keep(&self, id: &RunId, epoch: u64, fact: Fact) -> Result<(), HostError> {
        match self.ledger.append_fact(id, epoch, self.clock.now(), fact).await? {
            Appended::Lost(_) => Err(HostError::TakenOver(id.clone())),
            Appended::Kept { .. } | Appended::Counted => Ok(()),
        }
    }

    /// The commits, when the process was lost between fetching them and saying so. The refs are made in
    /// one transaction after everything was checked, so they are proof. Words of the agent are left out:
    /// the credentials that would be taken out of them were known to the lost process alone.
    async fn fetched_already(
        &self,
        run: &Run,
        known: &Known,
    ) -> Option<(ObjectId, u64, CollectOutcome)> {
        let base = known.base.as_ref()?;
        let checkout = Checkout::open(std::path::Path::new(&run.spec.checkout)).await.ok()?;
        let found = cofferdam_workspace::imported(&checkout, &run.id, base).await.ok()??;
        let outcome = CollectOutcome::Fetched {
            reference: found.reference,
            head: found.head.clone(),
            commits: found.commits,
            side_commits: found.side_commits,
            subjects: Vec::new(),
            sides: found
                .sides
                .into_iter()
                .map(|side| SideRef {
                    name_claim: NOT_SHOWN.to_owned(),
                    reference: side.reference,
                    id: side.id,
                })
                .collect(),
        };
        Some((found.head, found.commits + found.side_commits, outcome))
    }

    /// Brings the work of a lost run to safety where that is wanted, then removes its sandbox. Gives
    /// where the work is, and what became of the sandbox when there was one.
    async fn clear_lost(
        &self,
        run: &Run,
        save: bool,
        known: &Known,
    ) -> (Option<String>, Option<TeardownOutcome>) {
        let (id, kind) = (&run.id, run.spec.engine);
        let place = self.paths.salvage(id);
        let paths = self.paths.run(id);
        let mut kept = save && windup::keep_bundle(&paths.bundle_out(), &place, windup::OUT_BUNDLE);
        let failed = |detail: String| Some(TeardownOutcome::Failed { detail });
        kept |= place.join(WORK).exists() || place.join(windup::OUT_BUNDLE).exists();
        let shown = |kept: bool| kept.then(|| place.display().to_string());
        let listed = match self.engines.get(kind).await {
            Ok(engine) => {
                let listed =
                    tokio::time::timeout(teardown::ANSWER_LIMIT, engine.list(&self.instance)).await;
                match listed {
                    Ok(listed) => listed.map(|found| (engine, found)).map_err(|e| e.to_string()),
                    Err(_) => Err("the engine does not answer".to_owned()),
                }
            }
            Err(error) => Err(error.to_string()),
        };
        let (engine, found) = match listed {
            Ok(listed) => listed,
            // A sandbox that was proven gone needs no engine.
            Err(_) if known.torn_down || !(known.prepared || run.state.sandbox().is_some()) => {
                return (shown(kept), None);
            }
            Err(why) => return (shown(kept), failed(why)),
        };
        let there = known.prepared && !known.torn_down;
        let mut outcome = there.then_some(TeardownOutcome::AlreadyGone);
        for sandbox in found.iter().filter(|f| &f.run == id) {
            if save && create_private_dir(&place).is_ok() {
                match save_work(engine.as_ref(), sandbox, &place).await {
                    Ok(saved) => kept |= saved,
                    // Removing now would lose the work for good.
                    Err(error) => return (shown(kept), failed(format!("work not saved: {error}"))),
                }
            }
            outcome =
                Some(teardown::bounded(&self.instance, &engine, engine.remove(sandbox)).await);
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
}

/// Ends what is left in a sandbox that was found and saves its work.
pub(super) async fn save_work(
    engine: &dyn Engine,
    sandbox: &Found,
    place: &std::path::Path,
) -> Result<bool, String> {
    let (part, whole) = (place.join(PART), place.join(WORK));
    if whole.exists() {
        // Whole by its name: saved before, by a process that was killed after it.
        return Ok(true);
    }
    // A copy that a killed process broke off.
    cofferdam_sandbox::remove_tree(&part).map_err(|e| e.to_string())?;
    let saved = engine.salvage(sandbox, &part).await.map_err(|e| e.to_string());
    windup::finish_copy(saved, &part, &whole)
}
