//! A run's bundle comes back through the quarantine, or is refused and kept.

use std::fs;

use cofferdam_workspace::{ImportReason, import, is_part_of_base};

use crate::support::{World, bring_back, pack, request, run_id, sandbox};

const REFERENCE: &str = "refs/cofferdam/runs/7k2m9qxc";

#[tokio::test]
async fn commits_come_back_and_nothing_else_of_the_repository_changes() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    repo.write("a", "dirty");
    repo.write("untracked", "u");
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "agent");
    inside.commit("one");
    inside.write("b", "agent");
    inside.commit("two \u{1b}[31mred\u{202e}");
    let before = repo.photograph();
    let imported = bring_back(&checkout, &snapshot, &inside).await.unwrap();
    assert_eq!(imported.reference, REFERENCE);
    assert_eq!(imported.head, inside.head());
    assert_eq!(imported.commits, 2);
    assert_eq!(imported.subjects, ["two \\u{1b}[31mred\\u{202e}", "one"]);
    assert!(imported.sides.is_empty());
    assert_eq!(repo.id(REFERENCE), inside.head());
    let mut after = repo.photograph();
    after.retain(|name, _| !name.starts_with(b".git/refs/cofferdam"));
    assert_eq!(after, before);
    repo.git(&["fsck", "--strict"]);
    assert!(!world.path("run/quarantine.git").exists());
    assert!(world.bundle_out().exists());
    // Again, as after a crash before the answer was stored.
    let again = bring_back(&checkout, &snapshot, &inside).await.unwrap();
    assert_eq!(again, imported);
}

#[tokio::test]
async fn the_base_survives_collection_of_the_persons_repository() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    repo.write("a", "2");
    repo.commit("doomed");
    repo.write("a", "dirty");
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("b", "agent");
    inside.commit("one");
    repo.git(&["reset", "-q", "--hard", "HEAD^"]);
    repo.git(&["reflog", "expire", "--expire=now", "--all"]);
    repo.git(&["gc", "-q", "--prune=now"]);
    assert!(!repo.try_git(&["cat-file", "-e", snapshot.head.as_str()]));
    let imported = bring_back(&checkout, &snapshot, &inside).await.unwrap();
    assert_eq!(imported.commits, 1);
    repo.git(&["fsck", "--strict"]);
}

#[tokio::test]
async fn rewritten_history_and_side_branches_come_back_whole() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("s", "side");
    inside.git(&["checkout", "-q", "-b", "side"]);
    let side = inside.commit("on the side");
    inside.git(&["checkout", "-q", "--orphan", "fresh"]);
    inside.commit("unrelated history");
    let refs = pack(&inside, &snapshot, &["HEAD", "refs/heads/fresh", "refs/heads/side"]);
    let imported =
        import(request(&checkout, &world, &snapshot, refs, inside.head())).await.unwrap();
    assert_eq!((imported.commits, imported.side_commits), (1, 1));
    assert_eq!(imported.sides.len(), 1);
    assert_eq!(imported.sides[0].name, "refs/heads/side");
    assert_eq!(repo.id(&imported.sides[0].reference), side);
    assert_eq!(repo.head(), snapshot.head);
}

#[tokio::test]
async fn a_head_left_at_the_base_or_moved_back_brings_the_other_branches() {
    for back in [false, true] {
        let world = World::new();
        let repo = world.repo("repo", &[("a", "1")]);
        repo.write("a", "2");
        repo.commit("second");
        let (checkout, snapshot) = repo.snapshot().await;
        let inside = sandbox(&world, &snapshot);
        inside.git(&["checkout", "-q", "-b", "side"]);
        inside.write("s", "1");
        inside.commit("one");
        inside.write("s", "2");
        let side = inside.commit("two");
        inside.git(&["checkout", "-q", "work"]);
        if back {
            inside.git(&["reset", "-q", "--hard", "HEAD^"]);
        }
        let head = inside.head();
        let refs = pack(&inside, &snapshot, &["refs/heads/side"]);
        let imported =
            import(request(&checkout, &world, &snapshot, refs, head.clone())).await.unwrap();
        assert_eq!((imported.commits, imported.side_commits), (0, 2));
        assert_eq!(imported.head, head);
        assert_eq!(repo.id(REFERENCE), head);
        assert_eq!(repo.id(&imported.sides[0].reference), side);
        assert!(is_part_of_base(&checkout, &snapshot.base, &head).await.unwrap());
        assert!(!is_part_of_base(&checkout, &snapshot.base, &side).await.unwrap());
    }
}

#[tokio::test]
async fn a_head_that_neither_bundle_nor_base_has_is_refused() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.git(&["checkout", "-q", "-b", "side"]);
    inside.write("s", "1");
    inside.commit("one");
    let refs = pack(&inside, &snapshot, &["refs/heads/side"]);
    inside.write("s", "2");
    let unsent = inside.commit("two");
    let unknown = "0123456789012345678901234567890123456789".parse().unwrap();
    for head in [unsent, unknown] {
        let error =
            import(request(&checkout, &world, &snapshot, refs.clone(), head)).await.unwrap_err();
        assert_eq!(error.code(), "WORK-103", "{:?}", error.reason);
    }
}

#[tokio::test]
async fn merges_come_back_with_their_ids_in_sha256_too() {
    let world = World::new();
    let repo = world.repo_with("repo", &[("a", "1")], &["--object-format=sha256"]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.git(&["checkout", "-q", "-b", "topic"]);
    inside.write("t", "t");
    inside.commit("topic");
    inside.git(&["checkout", "-q", "work"]);
    inside.write("w", "w");
    inside.commit("work");
    inside.git(&["merge", "-q", "--no-ff", "-m", "merge", "topic"]);
    let imported = bring_back(&checkout, &snapshot, &inside).await.unwrap();
    assert_eq!(imported.commits, 3);
    assert_eq!(imported.head, inside.head());
}

#[tokio::test]
async fn a_manifest_that_differs_in_any_way_is_refused() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2");
    inside.commit("one");
    let refs = pack(&inside, &snapshot, &["HEAD", "refs/heads/work"]);
    let head = inside.head();
    let wrong_head = snapshot.base.clone();
    let missing = refs[..1].to_vec();
    let mut extra = refs.clone();
    extra.push(("refs/heads/more".into(), head.clone()));
    let mut other = refs.clone();
    other[1].1 = snapshot.base.clone();
    for (refs, head) in [(missing, &head), (extra, &head), (other, &head), (refs, &wrong_head)] {
        let error =
            import(request(&checkout, &world, &snapshot, refs, head.clone())).await.unwrap_err();
        assert_eq!(error.code(), "WORK-103", "{:?}", error.reason);
        assert_eq!(error.salvage, world.bundle_out());
        assert!(world.bundle_out().exists());
    }
    assert!(!repo.try_git(&["rev-parse", "--verify", REFERENCE]));
}

#[tokio::test]
async fn a_truncated_or_damaged_bundle_is_refused_and_kept() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", &"random enough\n".repeat(50));
    inside.commit("one");
    let refs = pack(&inside, &snapshot, &["HEAD"]);
    let whole = fs::read(world.bundle_out()).unwrap();
    let mut damaged = whole.clone();
    let last = damaged.len() - 30;
    damaged[last] ^= 0xff;
    for (bytes, code) in [
        (&whole[..whole.len() - 25], "WORK-105"),
        (&damaged[..], "WORK-105"),
        (&whole[..20], "WORK-102"),
        (&b""[..], "WORK-102"),
    ] {
        fs::write(world.bundle_out(), bytes).unwrap();
        let error = import(request(&checkout, &world, &snapshot, refs.clone(), inside.head()))
            .await
            .unwrap_err();
        assert_eq!(error.code(), code, "{:?}", error.reason);
        assert_eq!(fs::read(&error.salvage).unwrap(), bytes, "kept as it was");
        assert!(!world.path("run/quarantine.git").exists());
    }
    assert!(!repo.try_git(&["rev-parse", "--verify", REFERENCE]));
}

#[tokio::test]
async fn a_bundle_that_announces_too_many_objects_is_refused_before_it_is_opened() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2");
    inside.commit("one");
    let refs = pack(&inside, &snapshot, &["HEAD"]);
    let mut bytes = fs::read(world.bundle_out()).unwrap();
    let count = bytes.windows(4).position(|w| w == b"PACK").unwrap() + 8;
    bytes[count..count + 4].copy_from_slice(&u32::MAX.to_be_bytes());
    fs::write(world.bundle_out(), bytes).unwrap();
    let error =
        import(request(&checkout, &world, &snapshot, refs, inside.head())).await.unwrap_err();
    assert_eq!(error.code(), "WORK-101", "{:?}", error.reason);
}

#[tokio::test]
async fn a_bundle_on_commits_that_the_snapshot_lacks_is_refused() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2");
    let between = inside.commit("not in the bundle");
    inside.write("a", "3");
    inside.commit("in the bundle");
    let out = world.bundle_out();
    inside.git(&["bundle", "create", "-q", out.to_str().unwrap(), "HEAD", &format!("^{between}")]);
    let refs = vec![("HEAD".to_owned(), inside.head())];
    let error =
        import(request(&checkout, &world, &snapshot, refs, inside.head())).await.unwrap_err();
    assert_eq!(error.code(), "WORK-104", "{:?}", error.reason);
    assert!(out.exists());
}

#[tokio::test]
async fn a_run_whose_ref_holds_something_else_is_refused() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let (checkout, snapshot) = repo.snapshot().await;
    repo.git(&["update-ref", REFERENCE, "HEAD"]);
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2");
    inside.commit("one");
    let error = bring_back(&checkout, &snapshot, &inside).await.unwrap_err();
    assert_eq!(error.code(), "WORK-108", "{:?}", error.reason);
    assert_eq!(repo.id(REFERENCE), snapshot.head);
}

#[tokio::test]
async fn another_snapshot_than_the_base_is_refused() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2");
    inside.commit("one");
    let refs = pack(&inside, &snapshot, &["HEAD"]);
    let mut wrong = request(&checkout, &world, &snapshot, refs.clone(), inside.head());
    wrong.base = inside.head();
    let error = import(wrong).await.unwrap_err();
    assert!(matches!(error.reason, ImportReason::Manifest(_)), "{:?}", error.reason);
    let mut absent = request(&checkout, &world, &snapshot, refs, inside.head());
    fs::write(world.path("run/broken"), "no bundle").unwrap();
    absent.base_bundle = world.path("run/broken");
    let error = import(absent).await.unwrap_err();
    assert_eq!(error.code(), "WORK-107", "{:?}", error.reason);
}

#[tokio::test]
async fn a_foreign_directory_in_the_place_of_the_quarantine_is_left_alone() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2");
    inside.commit("one");
    fs::create_dir(world.path("run/quarantine.git")).unwrap();
    fs::write(world.path("run/quarantine.git/precious"), "x").unwrap();
    let error = bring_back(&checkout, &snapshot, &inside).await.unwrap_err();
    assert_eq!(error.code(), "WORK-011", "{:?}", error.reason);
    assert!(world.path("run/quarantine.git/precious").exists());
}

#[tokio::test]
async fn a_file_whose_odd_name_the_person_has_already_may_change() {
    let world = World::new();
    let repo = world.repo("repo", &[("Icon\r", "1")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("Icon\r", "2");
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
}

#[tokio::test]
async fn a_shallow_checkout_takes_commits_back() {
    let world = World::new();
    let origin = world.repo("origin", &[("a", "1")]);
    origin.write("a", "2");
    origin.commit("second");
    let repo = crate::support::Repo { world: &world, dir: world.path("shallow") };
    let url = format!("file://{}", origin.dir.display());
    origin.git(&["clone", "-q", "--depth=1", &url, repo.dir.to_str().unwrap()]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("b", "agent");
    inside.commit("one");
    let imported = bring_back(&checkout, &snapshot, &inside).await.unwrap();
    assert_eq!(imported.commits, 1);
    let request = cofferdam_workspace::ApplyRequest { base: snapshot.base, as_branch: None };
    cofferdam_workspace::apply(&checkout, &run_id(), request).await.unwrap();
    assert_eq!(repo.git(&["log", "--format=%s"]), "one\nsecond");
    assert_eq!(repo.status(), "");
}
