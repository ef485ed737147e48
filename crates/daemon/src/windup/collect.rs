//! Bringing the work home: the guest's bundle through the quarantine, or else what can be saved.
//!
//! It must never take a guest's word for work that was not fetched, nor lose what it refused.

use std::path::Path;

use cofferdam_run::ObjectId;
use cofferdam_run::fact::{CollectOutcome, Fact, SideRef};
use cofferdam_sandbox::Control;
use cofferdam_wire::{Manifest, NOT_TAKEN, NOT_TAKEN_CHARS};
use cofferdam_workspace::{ImportRequest, Snapshot};

use super::Windup;
use crate::arm::Armed;
use crate::paths::create_private_dir;
use crate::progress::Progress;
use crate::session::End;
use crate::supervise::Ctx;

/// Name of saved work, below a run's salvage.
pub(crate) const WORK: &str = "work";
/// Name of a bundle that came out and could not be fetched, beside it.
pub(crate) const OUT_BUNDLE: &str = "out.bundle";
/// The work while it is being copied.
pub(crate) const PART: &str = "work.part";

pub(super) async fn collect(ctx: &Ctx<'_>, armed: &Armed, windup: &mut Windup) {
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
        // The search still finds what it should: it looks at the commits themselves.
        subjects: imported.subjects.iter().map(|s| shown(ctx, s)).collect(),
        sides: imported
            .sides
            .into_iter()
            .map(|side| SideRef {
                name_claim: shown(ctx, &side.name),
                reference: side.reference,
                id: side.id,
            })
            .collect(),
    })
}

/// The agent's text as the record keeps it: no secret, one line.
fn shown(ctx: &Ctx<'_>, text: &str) -> String {
    crate::text::line(&ctx.needles.redact(text), 200)
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

/// Saves the work volume. Under its name there is only what is whole as far as it goes: a copy that
/// was broken off never looks like one that was made.
async fn save(control: &mut Box<dyn Control>, place: &Path) -> Result<bool, String> {
    let (part, whole) = (place.join(PART), place.join(WORK));
    let saved = control.salvage(&part).await.map_err(|e| format!("{}: {e}", e.code()));
    finish_copy(saved, &part, &whole)
}

/// Gives a finished copy its name, or takes the rest of one away.
pub(crate) fn finish_copy(
    saved: Result<bool, String>,
    part: &Path,
    whole: &Path,
) -> Result<bool, String> {
    match saved {
        Ok(true) => {
            std::fs::rename(part, whole).map_err(|e| format!("{}: {e}", whole.display()))?;
            Ok(true)
        }
        Ok(false) => Ok(false),
        Err(why) => {
            // It is all still in the volume.
            let _ = cofferdam_sandbox::remove_tree(part);
            Err(why)
        }
    }
}

/// Keeps what there is of work that could not be fetched. Gives the place, when anything was kept.
async fn salvage(ctx: &Ctx<'_>, windup: &mut Windup) -> Option<String> {
    let place = ctx.host.paths.salvage(&ctx.id);
    let mut kept = keep_bundle(&ctx.paths.bundle_out(), &place, OUT_BUNDLE);
    if let Err(error) = create_private_dir(&place) {
        windup.unsaved = Some(format!("cannot create {}: {error}", place.display()));
        return None;
    }
    if let Some(hung) = &windup.hung {
        // Something may still write there, and nobody answers.
        windup.unsaved = Some(hung.clone());
    } else if let Some(control) = &mut windup.control {
        match save(control, &place).await {
            Ok(saved) => kept |= saved,
            Err(why) => windup.unsaved = Some(why),
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
