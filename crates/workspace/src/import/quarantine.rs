//! The quarantine: a bare repository in the run's own directory, where a bundle is opened and judged.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cofferdam_git::call::MAX_LONG_CALL;
use cofferdam_git::{Git, Quarantine, escape};
use cofferdam_run::ObjectId;

use super::error::ImportReason;
use super::{
    ImportRequest, MAX_IMPORT_BUNDLE_BYTES, MAX_IMPORT_OBJECTS, MAX_SUBJECT_CHARS, MAX_SUBJECTS,
};
use crate::bundle::{self, Header};
use crate::snapshot::BUNDLE_REF;

/// Says that a directory is a quarantine of ours and may be removed.
const MARKER: &str = "cofferdam-quarantine";

/// File in the quarantine that lists objects of the person which fsck passes over.
const KNOWN_OBJECTS: &str = "cofferdam-known-objects";

/// A ref of the bundle, by its place in the quarantine.
pub(super) struct Fetched {
    pub(super) name: String,
    pub(super) local: String,
    pub(super) id: ObjectId,
}

/// Everything that can be told before git opens the file.
pub(super) fn admit(request: &ImportRequest<'_>, file: &Path) -> Result<Header, ImportReason> {
    let read = |e| ImportReason::io("read", file, e);
    let metadata = file.metadata().map_err(read)?;
    if !metadata.is_file() {
        return Err(ImportReason::Bundle("it is no file".to_owned()));
    }
    within("bytes of the bundle", metadata.len(), MAX_IMPORT_BUNDLE_BYTES)?;
    let header =
        bundle::read(file).map_err(read)?.map_err(|e| ImportReason::Bundle(e.to_string()))?;
    if header.object_format != request.checkout.object_format() {
        let what = format!("its object format is {}", header.object_format);
        return Err(ImportReason::Bundle(what));
    }
    within("objects in the bundle", u64::from(header.objects), MAX_IMPORT_OBJECTS)?;
    agree(request, &header)?;
    Ok(header)
}

pub(super) fn within(what: &'static str, found: u64, limit: u64) -> Result<(), ImportReason> {
    if found > limit { Err(ImportReason::TooLarge { what, found, limit }) } else { Ok(()) }
}

/// Bundle and manifest name the same refs at the same objects, in both directions.
fn agree(request: &ImportRequest<'_>, header: &Header) -> Result<(), ImportReason> {
    let said: BTreeSet<_> = request.expected_refs.iter().collect();
    let found: BTreeSet<_> = header.refs.iter().collect();
    if found.len() != header.refs.len() {
        return Err(ImportReason::Manifest("a ref is in the bundle twice".to_owned()));
    }
    if let Some((name, id)) = found.difference(&said).next() {
        let name = escape::line(name, 120);
        return Err(ImportReason::Manifest(format!("{name} at {id} is only in the bundle")));
    }
    if let Some((name, id)) = said.difference(&found).next() {
        let name = escape::line(name, 120);
        return Err(ImportReason::Manifest(format!("{name} at {id} is only in the manifest")));
    }
    let head = &request.expected_head;
    if let Some((_, other)) = header.refs.iter().find(|(name, _)| name == "HEAD")
        && other != head
    {
        return Err(ImportReason::Manifest(format!("HEAD is {other}, not {head}")));
    }
    Ok(())
}

/// Makes the quarantine, in place of what a killed import left.
pub(super) async fn create(request: &ImportRequest<'_>) -> Result<Git<Quarantine>, ImportReason> {
    let place = &request.quarantine;
    let created = |e| ImportReason::io("created", place, e);
    remove(place);
    std::fs::create_dir(place).map_err(created)?;
    let place = place.canonicalize().map_err(created)?;
    let env = request.checkout.git().environment();
    let git = Git::create_quarantine(env, &place, request.checkout.object_format()).await?;
    std::fs::write(place.join(MARKER), b"").map_err(created)?;
    Ok(git)
}

/// Removes a quarantine; anything else stays.
pub(super) fn remove(place: &Path) {
    if place.join(MARKER).symlink_metadata().is_ok_and(|m| m.is_file()) {
        let _ = std::fs::remove_dir_all(place);
    } else {
        // Killed before the marker was written, or never more than a directory.
        let _ = std::fs::remove_dir(place);
    }
}

/// The person's own objects: complete, and not checked against rules that old histories may break.
pub(super) async fn take_base(
    git: &Git<Quarantine>,
    request: &ImportRequest<'_>,
    base_bundle: &Path,
) -> Result<(), ImportReason> {
    let base = |error| ImportReason::Base { path: base_bundle.to_owned(), error };
    let refspec = format!("{BUNDLE_REF}:{BUNDLE_REF}");
    fetch(git, base_bundle, &[refspec]).await.map_err(base)?;
    let found = git
        .call("rev-parse")
        .args(["--verify", "--quiet", BUNDLE_REF])
        .run()
        .await
        .and_then(|output| crate::objects::id_in("rev-parse", &output))
        .map_err(base)?;
    if found != request.base {
        let what = format!("the snapshot is {found}, not {}", request.base);
        return Err(ImportReason::Manifest(what));
    }
    Ok(())
}

async fn fetch(
    git: &Git<Quarantine>,
    from: &Path,
    refspecs: &[String],
) -> Result<(), cofferdam_git::GitError> {
    git.call("fetch")
        .args(["--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance"])
        .args(["--no-recurse-submodules", "--atomic", "--end-of-options"])
        .arg(from)
        .args(refspecs)
        // Not every git checks the objects of a bundle, and none lets exceptions through here:
        // `check_objects` does it.
        .config("transfer.fsckObjects", "false")
        .config("fetch.fsckObjects", "false")
        .from_local_files()
        .within(MAX_LONG_CALL)
        .run()
        .await
        .map(drop)
}

/// Names of the packs in the quarantine.
fn packs(git: &Git<Quarantine>) -> Result<BTreeSet<OsString>, ImportReason> {
    let place = git.directory().join("objects/pack");
    let list = || -> std::io::Result<BTreeSet<OsString>> {
        let mut names = BTreeSet::new();
        for entry in std::fs::read_dir(&place)? {
            let name = entry?.file_name();
            if name.as_bytes().ends_with(b".pack") {
                names.insert(name);
            }
        }
        Ok(names)
    };
    list().map_err(|e| ImportReason::io("read", &place, e))
}

/// Git's fsck over every object of the packs that are not in `before`.
async fn check_objects(
    git: &Git<Quarantine>,
    request: &ImportRequest<'_>,
    before: &BTreeSet<OsString>,
) -> Result<(), ImportReason> {
    // New trees may name the `.gitmodules` that the person has already, and git looks into it.
    let known = git.directory().join(KNOWN_OBJECTS);
    let modules = super::inspect::modules_of(git, &request.base).await?;
    let line = modules.map(|id| format!("{id}\n")).unwrap_or_default();
    std::fs::write(&known, line).map_err(|e| ImportReason::io("written", &known, e))?;
    let after = packs(git)?;
    for name in after.difference(before) {
        git.call("index-pack")
            // Relative to the quarantine, where git runs: the list may not have a space in its path.
            .arg(format!("--strict=skiplist={KNOWN_OBJECTS}"))
            .args(["-o", "cofferdam-check.idx"])
            .arg(Path::new("objects/pack").join(name))
            .within(MAX_LONG_CALL)
            .run()
            .await
            .map_err(ImportReason::Objects)?;
        for name in ["cofferdam-check.idx", "cofferdam-check.rev"] {
            let _ = std::fs::remove_file(git.directory().join(name));
        }
    }
    Ok(())
}

/// Opens the run's bundle: prerequisites first, then objects, checked by git.
pub(super) async fn take_bundle(
    git: &Git<Quarantine>,
    request: &ImportRequest<'_>,
    file: &Path,
    header: &Header,
) -> Result<Vec<Fetched>, ImportReason> {
    let head = &request.expected_head;
    // A head that was left at the base, or moved back from it, needs nothing of the bundle.
    if !header.refs.iter().any(|(_, id)| id == head)
        && !super::part_of(git, head, &request.base).await?
    {
        return Err(ImportReason::Manifest(format!("no ref is at HEAD, {head}")));
    }
    for id in &header.prerequisites {
        if !crate::objects::is_present(git, id).await? {
            return Err(ImportReason::Prerequisite(id.to_string()));
        }
    }
    git.call("bundle")
        .args(["verify", "--quiet"])
        .arg(file)
        .within(MAX_LONG_CALL)
        .run()
        .await
        .map_err(ImportReason::Objects)?;
    let fetched: Vec<Fetched> = header
        .refs
        .iter()
        .enumerate()
        .map(|(at, (name, id))| Fetched {
            name: name.clone(),
            local: format!("refs/import/{at}"),
            id: id.clone(),
        })
        .collect();
    let refspecs: Vec<String> = fetched.iter().map(|f| format!("{}:{}", f.name, f.local)).collect();
    let before = packs(git)?;
    fetch(git, file, &refspecs).await.map_err(ImportReason::Objects)?;
    check_objects(git, request, &before).await?;
    for f in &fetched {
        let output = git.call("rev-parse").args(["--verify", "--quiet", &f.local]).run().await?;
        let found = crate::objects::id_in("rev-parse", &output)?;
        if found != f.id {
            let name = escape::line(&f.name, 120);
            return Err(ImportReason::Manifest(format!("{name} became {found}, not {}", f.id)));
        }
    }
    match crate::objects::commit_named(git, head.as_str()).await? {
        Some(commit) if commit == *head => Ok(fetched),
        _ => Err(ImportReason::Manifest(format!("HEAD, {head}, is no commit"))),
    }
}

/// Commits of these heads together that the base has not.
pub(super) async fn count(
    git: &Git<Quarantine>,
    request: &ImportRequest<'_>,
    heads: &[ObjectId],
) -> Result<u64, ImportReason> {
    let output = git
        .call("rev-list")
        .arg("--count")
        .args(heads.iter().map(ObjectId::as_str))
        .arg(format!("^{}", request.base))
        .run()
        .await?;
    std::str::from_utf8(output.line()).ok().and_then(|text| text.parse().ok()).ok_or_else(|| {
        let what = escape::line(output.line(), 80);
        cofferdam_git::GitError::Unexpected { subcommand: "rev-list", what }.into()
    })
}

/// Subjects of the newest, escaped and cut.
pub(super) async fn subjects(
    git: &Git<Quarantine>,
    request: &ImportRequest<'_>,
) -> Result<Vec<String>, ImportReason> {
    let output = git
        .call("log")
        .args(["-z", "--format=tformat:%s", "--max-count", &MAX_SUBJECTS.to_string()])
        .arg("--no-show-signature")
        .arg(format!("{}..{}", request.base, request.expected_head))
        .cut_at(4 << 20)
        .run()
        .await?;
    let mut lines: Vec<&[u8]> = output.stdout.split(|b| *b == 0).collect();
    // Terminated, not separated: the last piece is empty.
    lines.pop();
    Ok(lines.into_iter().map(|l| escape::line(l, MAX_SUBJECT_CHARS)).collect())
}
