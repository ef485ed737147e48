//! Searching everything that a run could have touched for the planted marker and every credential.
//!
//! It must never take a place that could not be searched for a clean one, nor tell a secret's value.

use std::path::PathBuf;

use cofferdam_run::fact::Fact;

use super::Windup;
use crate::arm::Armed;
use crate::supervise::Ctx;
use crate::{canary, objects};

/// Searches for the planted marker and for every credential of the run.
pub(super) async fn search(ctx: &Ctx<'_>, armed: &Armed, windup: &Windup) -> Fact {
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
