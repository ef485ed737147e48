//! The quarantine: a bare repository in the run's own directory, where a bundle is opened and judged.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cofferdam_git::call::MAX_LONG_CALL;
use cofferdam_git::{Git, Quarantine, escape};
use cofferdam_run::ObjectId;

use super::error::ImportReason;
use super::{
    ImportRequest, MAX_IMPORT_BLOB_BYTES, MAX_IMPORT_BUNDLE_BYTES, MAX_IMPORT_COMMITS,
    MAX_IMPORT_INFLATED_BYTES, MAX_IMPORT_OBJECTS, MAX_SUBJECT_CHARS, MAX_SUBJECTS,
};
use crate::bundle::{self, Header};
use crate::paths::{self, PathFault};
use crate::snapshot::BUNDLE_REF;

/// Says that a directory is a quarantine of ours and may be removed.
const MARKER: &str = "cofferdam-quarantine";

/// File in the quarantine that lists objects of the person which fsck passes over.
const KNOWN_OBJECTS: &str = "cofferdam-known-objects";

/// Most bytes of a listing in the quarantine; past it the bundle is refused and kept.
const MAX_IMPORT_LISTING_BYTES: usize = 192 << 20;

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

fn within(what: &'static str, found: u64, limit: u64) -> Result<(), ImportReason> {
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
    if !header.refs.iter().any(|(_, id)| id == head) {
        return Err(ImportReason::Manifest(format!("no ref is at HEAD, {head}")));
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
    let modules = modules_of(git, &request.base).await?;
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
    let head = &request.expected_head;
    match crate::objects::commit_named(git, head.as_str()).await? {
        Some(commit) if commit == *head => Ok(fetched),
        _ => Err(ImportReason::Manifest(format!("HEAD, {head}, is no commit"))),
    }
}

/// Limits and paths over everything that is new.
pub(super) async fn inspect(
    git: &Git<Quarantine>,
    request: &ImportRequest<'_>,
    fetched: &[Fetched],
) -> Result<(), ImportReason> {
    let tips: Vec<&str> = fetched.iter().map(|f| f.id.as_str()).collect();
    let base = format!("^{}", request.base);
    let commits = git
        .call("rev-list")
        .args(["--max-count", &(MAX_IMPORT_COMMITS + 1).to_string()])
        .args(&tips)
        .arg(&base)
        .within(MAX_LONG_CALL)
        .run()
        .await?;
    let count = commits.stdout.iter().filter(|b| **b == b'\n').count();
    within("commits", u64::try_from(count).unwrap_or(u64::MAX), MAX_IMPORT_COMMITS)?;
    sizes(git, &tips, &base).await?;
    changed_paths(git, &request.base, commits.stdout).await?;
    for f in fetched {
        submodule_paths(git, &f.id, &request.base).await?;
    }
    Ok(())
}

async fn sizes(git: &Git<Quarantine>, tips: &[&str], base: &str) -> Result<(), ImportReason> {
    let listed = git
        .call("rev-list")
        .args(["--objects", "--no-object-names"])
        .args(tips)
        .arg(base)
        .limit(MAX_IMPORT_LISTING_BYTES)
        .within(MAX_LONG_CALL)
        .run()
        .await?;
    let sizes = git
        .call("cat-file")
        .args(["--batch-check=%(objectsize)", "--buffer"])
        .stdin(listed.stdout)
        .limit(MAX_IMPORT_LISTING_BYTES)
        .within(MAX_LONG_CALL)
        .run()
        .await?;
    let mut total = 0u64;
    for line in sizes.stdout.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
        // "missing" is for commits of submodules, which are never fetched.
        let size = std::str::from_utf8(line).ok().and_then(|l| l.parse().ok()).unwrap_or(0u64);
        within("bytes of one object", size, MAX_IMPORT_BLOB_BYTES)?;
        total = total.saturating_add(size);
    }
    within("bytes of all objects", total, MAX_IMPORT_INFLATED_BYTES)
}

/// Every path that any new commit adds or changes, against each of its parents.
async fn changed_paths(
    git: &Git<Quarantine>,
    base: &ObjectId,
    commits: Vec<u8>,
) -> Result<(), ImportReason> {
    let listed = git
        .call("diff-tree")
        .args(["--stdin", "--root", "-m", "-r", "-z", "--raw", "--no-renames", "--no-commit-id"])
        .arg("--no-ext-diff")
        .stdin(commits)
        .limit(MAX_IMPORT_LISTING_BYTES)
        .within(MAX_LONG_CALL)
        .run()
        .await?;
    // Records alternate: `:modes ids status`, then the path.
    let mut records = listed.records();
    while let Some(meta) = records.next() {
        let path = records.next().unwrap_or_default();
        if meta.ends_with(b" D") {
            continue;
        }
        match paths::check(path) {
            // The person's own repository may have such files, and a run may change them.
            Err(PathFault::Control) if is_in(git, base, path).await? => {}
            _ => checked(path)?,
        }
    }
    Ok(())
}

async fn is_in(
    git: &Git<Quarantine>,
    commit: &ObjectId,
    path: &[u8],
) -> Result<bool, ImportReason> {
    let listed = git
        .call("ls-tree")
        .args(["-z", "--name-only", "--full-tree", commit.as_str(), "--"])
        .arg(OsStr::from_bytes(path))
        .run()
        .await?;
    Ok(listed.records().any(|found| found == path))
}

fn checked(path: &[u8]) -> Result<(), ImportReason> {
    paths::check(path).map_err(|fault| ImportReason::Path { path: escape::line(path, 300), fault })
}

/// `.gitmodules` may name any path, and git's own check lets absolute ones and `..` pass.
async fn submodule_paths(
    git: &Git<Quarantine>,
    tip: &ObjectId,
    base: &ObjectId,
) -> Result<(), ImportReason> {
    let Some(blob) = modules_of(git, tip).await? else { return Ok(()) };
    // What the person has already is theirs.
    if modules_of(git, base).await?.as_ref() == Some(&blob) {
        return Ok(());
    }
    let listed = git
        .call("config")
        .args(["-z", "--blob", blob.as_str(), "--get-regexp", r"^submodule\..*\.path$"])
        .accept(&[0, 1])
        .run()
        .await
        .map_err(ImportReason::Objects)?;
    for record in listed.records() {
        let value =
            record.iter().position(|b| *b == b'\n').map_or(&b""[..], |at| &record[at + 1..]);
        checked(value.strip_suffix(b"/").unwrap_or(value))?;
    }
    Ok(())
}

async fn modules_of(
    git: &Git<Quarantine>,
    commit: &ObjectId,
) -> Result<Option<ObjectId>, ImportReason> {
    let output = git
        .call("rev-parse")
        .args(["--verify", "--quiet"])
        .arg(format!("{commit}:.gitmodules"))
        .accept(&[0, 1, 128])
        .run()
        .await?;
    if output.code != 0 {
        return Ok(None);
    }
    Ok(Some(crate::objects::id_in("rev-parse", &output)?))
}

/// Commits of the head that the base has not.
pub(super) async fn count(
    git: &Git<Quarantine>,
    request: &ImportRequest<'_>,
) -> Result<u64, ImportReason> {
    let output = git
        .call("rev-list")
        .arg("--count")
        .arg(format!("{}..{}", request.base, request.expected_head))
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
