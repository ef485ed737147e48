//! Winding a run up: collect, search for secrets, tear down, judge, settle, clean up.
//!
//! The order is fixed: work is brought to safety before anything is removed, the search comes before
//! what it searches is gone, and the verdict and the terminal state are stored together.

mod aside;
mod collect;
mod ending;
mod search;
pub(crate) mod teardown;

use std::sync::Arc;
use std::time::Duration;

use cofferdam_broker::gateway::ModelGateway;
use cofferdam_ledger::{Appended, Beat, Settlement};
use cofferdam_run::fact::{Fact, StopCause, TeardownOutcome};
use cofferdam_run::{ObjectId, Record, RunEvent};
use cofferdam_sandbox::{Control, WorkUse};
use cofferdam_workspace::Snapshot;
use tokio::time::Instant;

use crate::arm::Armed;
use crate::error::HostError;
use crate::monitor::LEASE_TTL_MS;
use crate::session::End;
use crate::supervise::{Ctx, RunReport};
use crate::watch;

pub(crate) use collect::{OUT_BUNDLE, PART, WORK, finish_copy, keep_bundle};

/// Model calls that were cut are still being counted within this time; past it the sum may lack them.
const COUNTING: Duration = Duration::from_secs(5);
/// Bytes of the end of the guest's log that the record keeps when a session ended badly.
const LAST_WORDS_BYTES: usize = 1_500;

/// What there is to wind up.
#[derive(Default)]
pub(crate) struct Windup {
    pub(crate) snapshot: Option<Snapshot>,
    /// The started sandbox.
    pub(crate) control: Option<Box<dyn Control>>,
    /// It was torn down already, unstarted.
    pub(crate) torn: Option<TeardownOutcome>,
    /// Creating or starting it failed half-way: ask the engine what there is.
    pub(crate) sweep: bool,
    pub(crate) end: Option<End>,
    /// Work could not be saved: removing the sandbox would lose it for good.
    pub(crate) unsaved: Option<String>,
    /// What was fetched.
    pub(crate) heads: Vec<ObjectId>,
    pub(crate) model: Option<Arc<ModelGateway>>,
    /// Why it is not known that everything in the sandbox has ended: then nothing of it is touched.
    pub(crate) hung: Option<String>,
    /// The newest count of the work volume.
    pub(crate) work: Option<WorkUse>,
}

/// Brings everything to its end and stores the verdict.
pub(crate) async fn finish(
    ctx: &Ctx<'_>,
    armed: &Armed,
    mut windup: Windup,
) -> Result<RunReport, HostError> {
    // First of all, and waiting for nothing else: no process of the sandbox outlives the bound.
    let ended = match &mut windup.control {
        Some(control) => {
            let inside = windup.end.as_ref().is_some_and(|end| end.stop.is_some());
            let stopped = ctx.first_stop.at().or_else(|| inside.then(Instant::now));
            Some(ending::end(control, stopped).await)
        }
        None => None,
    };
    ctx.apply(RunEvent::CollectStarted).await;
    if let Some(Err(hung)) = &ended {
        tracing::warn!(run = %ctx.id, hung, "the end of the sandbox is not known");
        windup.hung = Some(hung.clone());
    }
    if let (Some(control), Some(Ok(exit))) = (&mut windup.control, ended) {
        ctx.facts.host(Fact::SandboxEnded { exit: exit.code, oom_killed: exit.oom_killed }).await;
        // The counters go with the sandbox.
        let usage = watch::last_words(control, &ctx.bounds(), windup.work).await;
        ctx.facts.host(Fact::Resources { usage }).await;
    }
    if windup.control.is_some() && explains_itself(&windup) {
        last_words(ctx).await;
    }
    collect::collect(ctx, armed, &mut windup).await;
    let canary = search::search(ctx, armed, &windup).await;
    let unsaved = windup.unsaved.is_some();
    let trash = if unsaved || windup.hung.is_some() { None } else { aside::put(ctx) };
    teardown::teardown(ctx, armed, &mut windup).await;
    if let Some(model) = windup.model.take() {
        if tokio::time::timeout(COUNTING, model.settled()).await.is_err() {
            tracing::warn!(run = %ctx.id, "model calls not settled in time");
        }
        ctx.facts.host(Fact::Spent { spend: model.spend() }).await;
    }
    ctx.facts.host(canary).await;
    let unwritten = ctx.facts.flush().await;
    let record = settle(ctx, unwritten).await?;
    // The record is durable: what is left of the run directory is scratch, unless work is still in it.
    if !unsaved && let Err(error) = std::fs::remove_dir_all(ctx.paths.dir()) {
        tracing::warn!(run = %ctx.id, error = %error, "run directory not removed; sweep will");
    }
    if let Some(trash) = trash {
        aside::remove(ctx, trash).await;
    }
    Ok(RunReport { run: ctx.id.clone(), record })
}

/// True when the end of the guest's log may say why the session ended as it did.
fn explains_itself(windup: &Windup) -> bool {
    let stop = windup.end.as_ref().map(|end| end.stop.as_ref());
    matches!(
        stop,
        None | Some(Some(
            StopCause::LinkLost
                | StopCause::NoHello
                | StopCause::Protocol { .. }
                | StopCause::GuestFailed { .. }
        ))
    )
}

/// Keeps the end of the guest's log, which goes with the run directory otherwise.
async fn last_words(ctx: &Ctx<'_>) {
    let Ok(log) = tokio::fs::read(ctx.paths.guest_log()).await else { return };
    let tail = &log[log.len().saturating_sub(LAST_WORDS_BYTES)..];
    let text = crate::text::line(&String::from_utf8_lossy(tail), LAST_WORDS_BYTES);
    if !text.trim().is_empty() {
        let text = format!("the guest's log ends (a claim): {text}");
        ctx.facts.host(Fact::Note { text }).await;
    }
}

/// Judges and seals. When facts could not be written the record says so rather than look whole.
async fn settle(ctx: &Ctx<'_>, unwritten: Option<String>) -> Result<Record, HostError> {
    let ledger = &ctx.host.ledger;
    let now = || ctx.host.clock.now();
    // Judging needs a valid lease: a long teardown may have outlived the last heartbeat.
    if let Beat::Lost(_) = ledger.heartbeat(&ctx.id, ctx.epoch, now(), LEASE_TTL_MS).await? {
        return Err(HostError::TakenOver(ctx.id.clone()));
    }
    if let Some(detail) = unwritten {
        let fact = Fact::Stopped { cause: StopCause::HostError { detail } };
        if let Appended::Lost(_) = ledger.append_fact(&ctx.id, ctx.epoch, now(), fact).await? {
            return Err(HostError::TakenOver(ctx.id.clone()));
        }
    }
    let mut settled = ledger.settle(&ctx.id, ctx.epoch, now()).await?;
    if let Settlement::Illegal(error) = &settled {
        // A transition on the way here could not be stored (a full disk, say): make up for it.
        let detail = format!("transitions were missing: {error}");
        ctx.apply(RunEvent::StopRequested { cause: StopCause::HostError { detail } }).await;
        ctx.apply(RunEvent::CollectStarted).await;
        let _ = ctx.facts.flush().await;
        settled = ledger.settle(&ctx.id, ctx.epoch, now()).await?;
    }
    match settled {
        Settlement::Done { record, .. } => Ok(*record),
        Settlement::Lost(_) => Err(HostError::TakenOver(ctx.id.clone())),
        Settlement::Illegal(error) => {
            Err(HostError::Internal(format!("the run could not be settled: {error}")))
        }
    }
}
