//! Winding a run up: collect, search for secrets, tear down, judge, settle, clean up.
//!
//! The order is fixed: work is brought to safety before anything is removed, the search comes before
//! what it searches is gone, and the verdict and the terminal state are stored together.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_ledger::{Appended, Beat, Settlement};
use cofferdam_run::fact::{CollectOutcome, Fact, SideRef, StopCause, TeardownOutcome};
use cofferdam_run::limits::Spend;
use cofferdam_run::{EngineKind, ObjectId, Record, RunEvent};
use cofferdam_sandbox::Control;
use cofferdam_wire::{Manifest, NOT_TAKEN, NOT_TAKEN_CHARS};
use cofferdam_workspace::{ImportRequest, Snapshot};

use crate::arm::Armed;
use crate::canary;
use crate::error::HostError;
use crate::monitor::LEASE_TTL_MS;
use crate::objects;
use crate::paths::create_private_dir;
use crate::progress::Progress;
use crate::session::End;
use crate::supervise::{Ctx, RunReport, end_sandbox};

/// After the link is closed the guest ends by itself within this time, or is killed.
const EXIT_GRACE: Duration = Duration::from_secs(3);
/// Bytes of the end of the guest's log that the record keeps when a session ended badly.
const LAST_WORDS_BYTES: usize = 1_500;
/// Removing the sandbox and proving it; past it the verdict is settled and names what is left.
pub(crate) const TEARDOWN_LIMIT: Duration = Duration::from_secs(60);
/// The same for the native engine, where a hundred thousand files of a memory-limited sandbox have
/// been seen to take over a minute on a busy disk.
pub(crate) const NATIVE_TEARDOWN_LIMIT: Duration = Duration::from_secs(600);

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
    pub(crate) spend: Option<Spend>,
}

/// Brings everything to its end and stores the verdict.
pub(crate) async fn finish(
    ctx: &Ctx<'_>,
    armed: &Armed,
    mut windup: Windup,
) -> Result<RunReport, HostError> {
    ctx.apply(RunEvent::CollectStarted).await;
    if let Some(control) = &mut windup.control {
        let exit = end_sandbox(control, EXIT_GRACE).await;
        ctx.facts.host(Fact::SandboxEnded { exit: exit.code, oom_killed: exit.oom_killed }).await;
    }
    if windup.control.is_some() && explains_itself(&windup) {
        last_words(ctx).await;
    }
    collect(ctx, armed, &mut windup).await;
    let canary = search(ctx, armed, &windup).await;
    let unsaved = windup.unsaved.is_some();
    teardown(ctx, armed, &mut windup).await;
    if let Some(spend) = windup.spend.take() {
        ctx.facts.host(Fact::Spent { spend }).await;
    }
    ctx.facts.host(canary).await;
    let unwritten = ctx.facts.flush().await;
    let record = settle(ctx, unwritten).await?;
    // The record is durable: what is left of the run directory is scratch, unless work is still in it.
    if !unsaved && let Err(error) = std::fs::remove_dir_all(ctx.paths.dir()) {
        tracing::warn!(run = %ctx.id, error = %error, "run directory not removed; sweep will");
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

async fn collect(ctx: &Ctx<'_>, armed: &Armed, windup: &mut Windup) {
    let (Some(end), Some(snapshot)) = (&windup.end, &windup.snapshot) else { return };
    if !end.agent_started {
        return;
    }
    let not_taken_claim = end.manifest.as_ref().map(not_taken).unwrap_or_default();
    let (head_claim, commits_claim) =
        end.manifest.as_ref().map_or((None, 0), |m| (m.head.clone(), m.commits));
    let result = bring_home(ctx, armed, end, snapshot).await;
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(reason) => {
            let reason = crate::text::line(&reason, 2_000);
            let salvage = salvage(ctx, windup).await;
            CollectOutcome::Failed { reason, salvage }
        }
    };
    if let CollectOutcome::Fetched { commits, head, sides, .. } = &outcome {
        windup.heads = sides.iter().map(|s| s.id.clone()).chain([head.clone()]).collect();
        ctx.watcher.tell(Progress::Fetched { commits: *commits });
    }
    if !not_taken_claim.is_empty() && !matches!(outcome, CollectOutcome::Failed { .. }) {
        // The commits are safe; the rest stays findable.
        salvage(ctx, windup).await;
    }
    ctx.facts.host(Fact::Collected { head_claim, commits_claim, outcome, not_taken_claim }).await;
}

/// What the guest could not take, bounded once more: it is a claim.
fn not_taken(manifest: &Manifest) -> Vec<String> {
    let error = manifest.leftovers_error.iter().map(|e| format!("uncommitted files: {e}"));
    let named = manifest.not_taken.iter().take(NOT_TAKEN).cloned();
    let mut all: Vec<String> =
        error.chain(named).map(|text| crate::text::line(&text, NOT_TAKEN_CHARS)).collect();
    let shown = u64::try_from(manifest.not_taken.len().min(NOT_TAKEN)).unwrap_or(u64::MAX);
    let more = manifest.not_taken_count.saturating_sub(shown);
    if more > 0 {
        all.push(format!("{more} more"));
    }
    all
}

async fn bring_home(
    ctx: &Ctx<'_>,
    armed: &Armed,
    end: &End,
    snapshot: &Snapshot,
) -> Result<CollectOutcome, String> {
    let Some(manifest) = &end.manifest else {
        return Err(end.guest_error.clone().unwrap_or_else(|| {
            "the guest was gone before it could hand over its work".to_owned()
        }));
    };
    if let Some(error) = &end.bundle_error {
        return Err(error.clone());
    }
    let Some(head) = manifest.head.clone() else {
        return Err("the repository in the sandbox could not be read any more".to_owned());
    };
    if !end.bundle {
        return if head == snapshot.base && manifest.refs.iter().all(|r| r.oid == snapshot.base) {
            Ok(CollectOutcome::NoCommits)
        } else if moved_back(armed, snapshot, &head).await {
            let text =
                format!("the agent left HEAD at {head}, before the snapshot, and no commits");
            ctx.facts.host(Fact::Note { text }).await;
            Ok(CollectOutcome::NoCommits)
        } else {
            Err(format!("the guest names {head} and sent no bundle"))
        };
    }
    let imported = cofferdam_workspace::import(ImportRequest {
        checkout: &armed.checkout,
        run: ctx.id.clone(),
        base: snapshot.base.clone(),
        base_bundle: ctx.paths.bundle_in(),
        bundle: ctx.paths.bundle_out(),
        expected_head: head,
        expected_refs: refs(manifest),
        quarantine: ctx.paths.quarantine(),
    })
    .await
    .map_err(|e| format!("{}: {e}", e.code()))?;
    Ok(CollectOutcome::Fetched {
        reference: imported.reference,
        head: imported.head,
        commits: imported.commits,
        side_commits: imported.side_commits,
        subjects: imported.subjects.iter().map(|s| crate::text::line(s, 200)).collect(),
        sides: imported
            .sides
            .into_iter()
            .map(|side| SideRef {
                name_claim: crate::text::line(&side.name, 200),
                reference: side.reference,
                id: side.id,
            })
            .collect(),
    })
}

/// True when the sandbox's head is a commit of the snapshot's own history.
async fn moved_back(armed: &Armed, snapshot: &Snapshot, head: &ObjectId) -> bool {
    cofferdam_workspace::is_part_of_base(&armed.checkout, &snapshot.base, head)
        .await
        .unwrap_or_else(|error| {
            tracing::warn!(error = %error, "the guest's head could not be compared with the base");
            false
        })
}

fn refs(manifest: &Manifest) -> Vec<(String, ObjectId)> {
    manifest.refs.iter().map(|r| (r.name.clone(), r.oid.clone())).collect()
}

/// Moves a bundle to `place`, when it is there. Gives whether it was kept.
pub(crate) fn keep_bundle(from: &Path, place: &Path, name: &str) -> bool {
    if !from.exists() {
        return false;
    }
    let moved = create_private_dir(place).and_then(|()| std::fs::rename(from, place.join(name)));
    if let Err(error) = &moved {
        tracing::error!(from = %from.display(), error = %error, "bundle not kept");
    }
    moved.is_ok()
}

/// Keeps what there is of work that could not be fetched. Gives the place, when anything was kept.
async fn salvage(ctx: &Ctx<'_>, windup: &mut Windup) -> Option<String> {
    let place = ctx.host.paths.salvage(&ctx.id);
    let mut kept = keep_bundle(&ctx.paths.bundle_out(), &place, "out.bundle");
    if let Err(error) = create_private_dir(&place) {
        windup.unsaved = Some(format!("cannot create {}: {error}", place.display()));
        return None;
    }
    if let Some(control) = &mut windup.control {
        match control.salvage(&place.join("work")).await {
            Ok(true) => kept = true,
            Ok(false) => {}
            Err(error) => windup.unsaved = Some(format!("{}: {error}", error.code())),
        }
    }
    if !kept {
        // Removing an empty directory that was made a moment ago.
        let _ = std::fs::remove_dir(&place);
        return None;
    }
    // What the work was built on, so that it can be opened without the checkout.
    keep_bundle(&ctx.paths.bundle_in(), &place, "base.bundle");
    let keep_ms = ctx.host.config.salvage_ms().unwrap_or(14 * 86_400_000);
    let shown = place.display().to_string();
    ctx.facts
        .host(Fact::Retained {
            kind: "salvage".to_owned(),
            place: shown.clone(),
            until_ms: ctx.host.clock.now().plus_ms(keep_ms).0,
        })
        .await;
    Some(shown)
}

/// Searches for the planted marker and for every credential of the run.
async fn search(ctx: &Ctx<'_>, armed: &Armed, windup: &Windup) -> Fact {
    let mut found_in: Vec<String> = windup.end.iter().flat_map(|e| e.leaks.clone()).collect();
    let (mut searched, mut unsearched) = (vec!["agent output".to_owned()], Vec::new());
    let needles = ctx.needles.clone();
    let trees: Vec<(PathBuf, &str)> = [
        (ctx.paths.work(), "work directory"),
        (ctx.host.paths.salvage(&ctx.id).join("work"), "salvaged work"),
    ]
    .into_iter()
    .filter(|(place, _)| place.exists())
    .collect();
    let log = ctx.paths.guest_log();
    let scanned = tokio::task::spawn_blocking(move || {
        let (mut found, mut done) = (Vec::new(), Vec::new());
        for (place, label) in trees {
            let (places, whole) = canary::search_tree(&needles, &place, label);
            found.extend(places);
            done.push(if whole { label.to_owned() } else { format!("{label} (in part)") });
        }
        if let Ok(file) = std::fs::File::open(&log)
            && let Ok(hit) = needles.find_in_reader(file)
        {
            found.extend(hit.map(|what| format!("guest log ({what})")));
            done.push("guest log".to_owned());
        }
        (found, done)
    })
    .await;
    match scanned {
        Ok((found, done)) => {
            found_in.extend(found);
            searched.extend(done);
        }
        Err(_) => unsearched.push("work directory".to_owned()),
    }
    if let Some(snapshot) = windup.snapshot.as_ref().filter(|_| !windup.heads.is_empty()) {
        let scratch = ctx.paths.dir().join("objects.tmp");
        let place = armed.checkout.top();
        match objects::search(place, &snapshot.base, &windup.heads, &ctx.needles, &scratch).await {
            Ok(hit) => {
                found_in.extend(hit.map(|what| format!("commits ({what})")));
                searched.push("commits".to_owned());
            }
            Err(error) => {
                tracing::error!(run = %ctx.id, error, "commits not searched");
                unsearched.push("commits".to_owned());
            }
        }
    }
    // What is queued has to be in the ledger before the ledger is searched; a failure is told at the end.
    let _ = ctx.facts.flush().await;
    match ctx.host.ledger.facts(&ctx.id).await {
        Ok(facts) => {
            let text = serde_json::to_vec(&facts).unwrap_or_default();
            found_in.extend(ctx.needles.find_in(&text).map(|what| format!("record ({what})")));
            searched.push("record".to_owned());
        }
        Err(_) => unsearched.push("record".to_owned()),
    }
    Fact::Canary { found_in, searched, unsearched }
}

async fn teardown(ctx: &Ctx<'_>, armed: &Armed, windup: &mut Windup) {
    if let Some(why) = windup.unsaved.take() {
        // Everything in it has ended; `sweep` saves the work and removes it once there is room.
        let detail = format!("left in place, because the work in it could not be saved: {why}");
        ctx.watcher.tell(Progress::Teardown { clean: false });
        ctx.facts.host(Fact::Teardown { outcome: TeardownOutcome::Failed { detail } }).await;
        return;
    }
    let outcome = if let Some(control) = windup.control.take() {
        Some(bounded(teardown_limit(ctx.spec.engine), control.teardown()).await)
    } else if let Some(torn) = windup.torn.take() {
        Some(torn)
    } else if windup.sweep {
        Some(sweep_run(ctx, armed).await)
    } else {
        None
    };
    let Some(outcome) = outcome else { return };
    let clean = matches!(outcome, TeardownOutcome::Removed | TeardownOutcome::AlreadyGone);
    ctx.watcher.tell(Progress::Teardown { clean });
    ctx.facts.host(Fact::Teardown { outcome }).await;
}

/// A remote engine may hang; removing a native sandbox is our own work on the disk and only slow.
fn teardown_limit(kind: EngineKind) -> Duration {
    match kind {
        EngineKind::Native => NATIVE_TEARDOWN_LIMIT,
        EngineKind::Docker | EngineKind::Podman | EngineKind::Gvisor => TEARDOWN_LIMIT,
    }
}

async fn bounded(limit: Duration, work: impl Future<Output = TeardownOutcome>) -> TeardownOutcome {
    let outcome = tokio::time::timeout(limit, work).await;
    outcome.unwrap_or_else(|_| TeardownOutcome::Failed {
        detail: format!("the engine did not answer within {} s", limit.as_secs()),
    })
}

/// Removes whatever carries this run's label. Where the engine knows nothing of the run, that is proof.
async fn sweep_run(ctx: &Ctx<'_>, armed: &Armed) -> TeardownOutcome {
    let listed = tokio::time::timeout(TEARDOWN_LIMIT, armed.engine.list(&ctx.host.instance)).await;
    let found = match listed {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return TeardownOutcome::Failed { detail: error.to_string() },
        Err(_) => {
            return TeardownOutcome::Failed { detail: "the engine did not answer".to_owned() };
        }
    };
    let mut outcome = TeardownOutcome::AlreadyGone;
    for sandbox in found.iter().filter(|f| f.run == ctx.id) {
        outcome = bounded(teardown_limit(ctx.spec.engine), armed.engine.remove(sandbox)).await;
        if matches!(outcome, TeardownOutcome::Failed { .. }) {
            break;
        }
    }
    outcome
}

/// Removes a directory of ours and everything in it, when it is there.
pub(crate) fn remove_dir(place: &Path) -> std::io::Result<bool> {
    match std::fs::remove_dir_all(place) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}
