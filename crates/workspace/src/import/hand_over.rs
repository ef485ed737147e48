//! From the quarantine into the person's repository: objects first, then all refs in one transaction
//! in which each must not have existed.

use cofferdam_git::call::MAX_LONG_CALL;
use cofferdam_git::{Git, Quarantine, escape};
use cofferdam_run::ObjectId;

use super::error::ImportReason;
use super::quarantine::Fetched;
use super::{ImportRequest, SideRef};
use crate::objects;
use crate::snapshot::BUNDLE_REF;

/// Hands over and returns the refs beside the head.
pub(super) async fn hand_over(
    quarantine: &Git<Quarantine>,
    request: &ImportRequest<'_>,
    fetched: Vec<Fetched>,
) -> Result<Vec<SideRef>, ImportReason> {
    let head = &request.expected_head;
    let mut sides: Vec<SideRef> = Vec::new();
    let mut wanted: Vec<String> = vec![BUNDLE_REF.to_owned()];
    for f in fetched {
        if f.id == *head {
            wanted.push(f.local);
            continue;
        }
        let seen = sides.iter().any(|s| s.id == f.id);
        if seen || is_reachable(quarantine, &f.id, head, &request.base).await? {
            continue;
        }
        sides.push(SideRef {
            name: escape::line(&f.name, 120),
            reference: format!("refs/cofferdam/sides/{}/{}", request.run, sides.len()),
            id: f.id,
        });
        wanted.push(f.local);
    }
    let person = request.checkout.git();
    person
        .call("fetch")
        .args(["--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance"])
        .args(["--no-recurse-submodules", "--end-of-options"])
        .arg(quarantine.directory())
        .args(&wanted)
        // Git checked the run's objects in the quarantine. The base's are the person's own, whose
        // faults must not cost the run's work.
        .config("fetch.fsckObjects", "false")
        .config("transfer.fsckObjects", "false")
        .without_persons_config()
        .from_local_files()
        .within(MAX_LONG_CALL)
        .run()
        .await
        .map_err(ImportReason::HandOver)?;
    let mut refs = vec![
        (crate::run_reference(&request.run), head.clone()),
        // Where the agent rewrote history the head does not hold it, and diff and apply need it.
        (crate::base_reference(&request.run), request.base.clone()),
    ];
    refs.extend(sides.iter().map(|s| (s.reference.clone(), s.id.clone())));
    create_refs(request, &refs).await?;
    Ok(sides)
}

async fn is_reachable(
    git: &Git<Quarantine>,
    id: &ObjectId,
    head: &ObjectId,
    base: &ObjectId,
) -> Result<bool, ImportReason> {
    // A tag object is never an ancestor: it is kept for itself.
    if objects::commit_named(git, id.as_str()).await?.as_ref() != Some(id) {
        return Ok(false);
    }
    Ok(objects::is_ancestor(git, id, head).await? || objects::is_ancestor(git, id, base).await?)
}

/// Creates all refs or none. Those that stand at the right object already, from an import that was
/// repeated, are left alone.
async fn create_refs(
    request: &ImportRequest<'_>,
    refs: &[(String, ObjectId)],
) -> Result<(), ImportReason> {
    let git = request.checkout.git();
    let mut commands = String::new();
    for (reference, id) in refs {
        let output = git
            .call("rev-parse")
            .args(["--verify", "--quiet", reference])
            .accept(&[0, 1])
            .run()
            .await?;
        if output.code == 1 {
            commands.push_str(&format!("create {reference} {id}\n"));
            continue;
        }
        let found = objects::id_in("rev-parse", &output)?;
        if found != *id {
            let reference = reference.clone();
            return Err(ImportReason::Taken { reference, found: found.to_string() });
        }
    }
    if commands.is_empty() {
        return Ok(());
    }
    git.call("update-ref")
        .args(["-m", &format!("cofferdam: import run {}", request.run), "--stdin"])
        .stdin(commands.into_bytes())
        .run()
        .await
        .map(drop)
        .map_err(ImportReason::HandOver)
}
