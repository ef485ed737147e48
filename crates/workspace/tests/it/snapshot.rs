//! A snapshot carries everything and changes nothing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use cofferdam_workspace::{ApplyRequest, SnapshotNote, apply};

use crate::support::{Repo, World, bring_back, run_id, sandbox};

#[tokio::test]
async fn a_clean_tree_travels_as_head_itself() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let before = repo.photograph_all();
    let (_, snapshot) = repo.snapshot().await;
    assert_eq!(snapshot.base, repo.head());
    assert_eq!(snapshot.head, repo.head());
    assert_eq!(snapshot.uncommitted_paths, 0);
    assert_eq!(snapshot.branch.as_deref(), Some("main"));
    assert_eq!(repo.photograph_all(), before);
    let bytes = std::fs::read(world.bundle_in()).unwrap();
    assert_eq!(snapshot.bundle, cofferdam_run::Digest::of(&bytes));
    assert_eq!(snapshot.bundle_bytes, bytes.len() as u64);
}

fn make_dirty(repo: &Repo<'_>) {
    repo.write("staged", "new\n");
    repo.git(&["add", "staged"]);
    repo.write("staged-then-edited", "one\n");
    repo.git(&["add", "staged-then-edited"]);
    repo.write("staged-then-edited", "two\n");
    repo.write("edited", "changed\n");
    repo.remove("deleted");
    repo.git(&["rm", "-q", "removed"]);
    repo.git(&["mv", "old-name", "new-name"]);
    repo.write("untracked/ünï cödé", "u\n");
    repo.write("-rf", "dash\n");
    repo.write(":(top)x", "pathspec\n");
    repo.write_bytes(OsStr::from_bytes(b"line\nfeed \"quoted\""), b"n\n");
    repo.write_bytes(OsStr::from_bytes(b"\xff\xfe"), b"bytes\n");
    repo.write("ignored.log", "secret\n");
    repo.script("run.sh", "#!/bin/sh\n");
    std::os::unix::fs::symlink("edited", repo.dir.join("link")).unwrap();
}

const DIRTY_BASE: [(&str, &str); 6] = [
    (".gitignore", "*.log\n"),
    ("edited", "before\n"),
    ("deleted", "x\n"),
    ("removed", "y\n"),
    ("old-name", "some content\nthat is long enough\n"),
    ("untouched", "same\n"),
];

#[tokio::test]
async fn a_dirty_tree_travels_whole_and_stays_byte_identical() {
    let world = World::new();
    let repo = world.repo("repo", &DIRTY_BASE);
    repo.write("edited", "stashed\n");
    repo.git(&["stash", "-q"]);
    make_dirty(&repo);
    // Another git at work does not disturb.
    repo.write(".git/index.lock", "");
    let before = repo.photograph_all();
    let (_, snapshot) = repo.snapshot().await;
    assert_eq!(repo.photograph_all(), before, "repository changed");
    assert_ne!(snapshot.base, snapshot.head);
    let inside = sandbox(&world, &snapshot);
    assert_eq!(inside.id("HEAD^"), snapshot.head);
    for path in ["staged", "staged-then-edited", "edited", "new-name", "-rf", ":(top)x", "run.sh"] {
        assert_eq!(inside.read(path), repo.read(path), "{path}");
    }
    assert_eq!(inside.read("untracked/ünï cödé"), "u\n");
    assert!(inside.dir.join(OsStr::from_bytes(b"line\nfeed \"quoted\"")).exists());
    assert!(inside.dir.join(OsStr::from_bytes(b"\xff\xfe")).exists());
    for path in ["deleted", "removed", "old-name", "ignored.log"] {
        assert!(!inside.exists(path), "{path}");
    }
    assert!(inside.git(&["ls-files", "-s", "run.sh"]).starts_with("100755"));
    assert!(inside.git(&["ls-files", "-s", "link"]).starts_with("120000"));
    let paths = inside.git(&["diff", "--name-only", "--no-renames", "HEAD^", "HEAD"]);
    assert_eq!(snapshot.uncommitted_paths, paths.lines().count() as u64);
    let left: Vec<_> = std::fs::read_dir(world.path("run")).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "only the bundle is left: {left:?}");
}

#[tokio::test]
async fn the_persons_global_ignore_rules_keep_secrets_out() {
    let world = World::new();
    world.write_home("ignore", ".env\n");
    let config = std::fs::read_to_string(world.path("home/.gitconfig")).unwrap();
    world.write_home(".gitconfig", &format!("{config}[core]\n\texcludesFile = ~/ignore\n"));
    let repo = world.repo("repo", &[("a", "1")]);
    repo.write(".env", "KEY=secret\n");
    let (_, snapshot) = repo.snapshot().await;
    assert_eq!(snapshot.base, snapshot.head);
}

#[tokio::test]
async fn a_change_in_the_instant_of_the_index_write_is_seen() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1111\n")]);
    // Same size, and the modification time that the index already has for it.
    let modified = repo.dir.join("a").metadata().unwrap().modified().unwrap();
    repo.git(&["add", "--refresh", "a"]);
    repo.write("a", "2222\n");
    std::fs::File::options()
        .write(true)
        .open(repo.dir.join("a"))
        .unwrap()
        .set_modified(modified)
        .unwrap();
    std::fs::File::options()
        .write(true)
        .open(repo.dir.join(".git/index"))
        .unwrap()
        .set_modified(modified)
        .unwrap();
    repo.git(&["config", "core.trustctime", "false"]);
    repo.git(&["config", "core.checkStat", "minimal"]);
    let (_, snapshot) = repo.snapshot().await;
    assert_eq!(snapshot.uncommitted_paths, 1);
}

#[tokio::test]
async fn leftovers_of_a_killed_snapshot_are_swept() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let left = world.path("run/.snapshot-dead/repo.git");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(world.path("run/.snapshot-dead/alive"), "").unwrap();
    let living = world.path("run/.snapshot-living");
    std::fs::create_dir(&living).unwrap();
    let alive = std::fs::File::create(living.join("alive")).unwrap();
    alive.lock().unwrap();
    repo.snapshot().await;
    assert!(!left.exists());
    assert!(living.exists());
}

#[tokio::test]
async fn a_detached_sha256_repository_travels() {
    let world = World::new();
    let repo = world.repo_with("repo", &[("a", "1")], &["--object-format=sha256"]);
    repo.git(&["checkout", "-q", "--detach"]);
    repo.write("b", "2");
    let (_, snapshot) = repo.snapshot().await;
    assert_eq!(snapshot.object_format, "sha256");
    assert_eq!(snapshot.branch, None);
    assert_eq!(sandbox(&world, &snapshot).read("b"), "2");
}

#[tokio::test]
async fn a_linked_worktree_travels_with_its_own_index() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    repo.write("a", "dirty in main");
    let linked = Repo { world: &world, dir: world.path("linked") };
    repo.git(&["worktree", "add", "-q", "-b", "side", linked.dir.to_str().unwrap()]);
    linked.write("b", "dirty in linked");
    linked.git(&["add", "b"]);
    let before = (repo.photograph_all(), linked.photograph_all());
    let (_, snapshot) = linked.snapshot().await;
    assert_eq!((repo.photograph_all(), linked.photograph_all()), before);
    assert_eq!(snapshot.uncommitted_paths, 1);
    let inside = sandbox(&world, &snapshot);
    assert_eq!((inside.read("a"), inside.read("b")), ("1".into(), "dirty in linked".into()));
}

#[tokio::test]
async fn submodules_and_nested_repositories_stay_out_and_are_told() {
    let world = World::new();
    let library = world.repo("library", &[("l", "1")]);
    let repo = world.repo("repo", &[("a", "1")]);
    repo.git(&["submodule", "add", "-q", library.dir.to_str().unwrap(), "lib"]);
    repo.commit("submodule");
    repo.write("lib/l", "changed inside");
    let nested = Repo { world: &world, dir: repo.dir.join("nested [x]*") };
    std::fs::create_dir(&nested.dir).unwrap();
    nested.git(&["init", "-q"]);
    nested.write("n", "1");
    let (_, snapshot) = repo.snapshot().await;
    assert_eq!(snapshot.base, snapshot.head, "nothing of its own is dirty");
    assert_eq!(
        snapshot.notes,
        [
            SnapshotNote::Submodule { path: "lib".into(), changed: true },
            SnapshotNote::NestedRepository { path: "nested [x]*".into() },
        ]
    );
    repo.write("b", "dirty");
    assert_eq!(repo.snapshot().await.1.uncommitted_paths, 1);
}

#[tokio::test]
async fn a_shallow_clone_travels_without_history() {
    let world = World::new();
    let origin = world.repo("origin", &[("a", "1")]);
    origin.write("a", "2");
    origin.commit("second");
    let repo = Repo { world: &world, dir: world.path("shallow") };
    let url = format!("file://{}", origin.dir.display());
    origin.git(&["clone", "-q", "--depth=1", &url, repo.dir.to_str().unwrap()]);
    repo.write("b", "dirty");
    let (_, snapshot) = repo.snapshot().await;
    assert!(snapshot.notes.contains(&SnapshotNote::Shallow));
    let inside = sandbox(&world, &snapshot);
    assert_eq!((inside.read("a"), inside.read("b")), ("2".into(), "dirty".into()));
}

#[tokio::test]
async fn a_split_index_and_a_missing_index_travel() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1"), ("b", "2")]);
    repo.git(&["config", "core.splitIndex", "true"]);
    repo.git(&["update-index", "--split-index"]);
    repo.write("a", "dirty");
    let before = repo.photograph_all();
    let (_, snapshot) = repo.snapshot().await;
    assert_eq!(repo.photograph_all(), before);
    assert_eq!(snapshot.uncommitted_paths, 1);
    repo.remove(".git/index");
    assert_eq!(repo.snapshot().await.1.uncommitted_paths, 1);
}

#[tokio::test]
async fn repositories_in_odd_places_and_with_borrowed_objects_travel() {
    let world = World::new();
    let origin = world.repo("origin", &[("a", "1")]);
    let dir = world.path("we:ird \"quoted\" \\ line\nfeed");
    let repo = Repo { world: &world, dir };
    origin.git(&[
        "clone",
        "-q",
        "--shared",
        origin.dir.to_str().unwrap(),
        repo.dir.to_str().unwrap(),
    ]);
    std::fs::write(repo.dir.join(".git/objects/info/alternates"), "../../../origin/.git/objects\n")
        .unwrap();
    repo.write("b", "dirty");
    let before = repo.photograph_all();
    let (checkout, snapshot) = repo.snapshot().await;
    assert_eq!(repo.photograph_all(), before);
    let inside = sandbox(&world, &snapshot);
    assert_eq!((inside.read("a"), inside.read("b")), ("1".into(), "dirty".into()));
    inside.write("c", "agent");
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let request = ApplyRequest { base: snapshot.base, as_branch: None };
    apply(&checkout, &run_id(), request).await.unwrap();
    assert_eq!(repo.status(), "?? b");
}

#[tokio::test]
async fn line_endings_follow_the_persons_rules() {
    let world = World::new();
    let repo = world.repo("repo", &[(".gitattributes", "* text=auto eol=crlf\n"), ("a", "1\r\n")]);
    repo.git(&["config", "core.safecrlf", "true"]);
    repo.write("b", "mixed\r\nline\n");
    let (checkout, snapshot) = repo.snapshot().await;
    assert_eq!(snapshot.uncommitted_paths, 1);
    let inside = sandbox(&world, &snapshot);
    assert_eq!(inside.git(&["cat-file", "blob", "HEAD:b"]), "mixed\nline");
    inside.write("a", "1\r\n2\r\n");
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let request = ApplyRequest { base: snapshot.base, as_branch: None };
    apply(&checkout, &run_id(), request).await.unwrap();
    assert_eq!(repo.read("a"), "1\r\n2\r\n");
    assert_eq!(repo.status(), "?? b");
}

#[tokio::test]
async fn a_file_behind_a_filter_travels_as_it_is_committed() {
    let world = World::new();
    let repo = world.repo("repo", &[(".gitattributes", "*.big filter=store\n")]);
    repo.git(&["config", "filter.store.clean", "echo pointer; cat >/dev/null"]);
    repo.git(&["config", "filter.store.required", "true"]);
    repo.write("x.big", "large content\n");
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let file = std::fs::File::options().write(true).open(repo.dir.join("x.big")).unwrap();
    file.set_modified(long_ago).unwrap();
    repo.commit("pointer");
    assert_eq!(repo.git(&["show", "HEAD:x.big"]), "pointer");
    let (_, snapshot) = repo.snapshot().await;
    assert_eq!(snapshot.base, snapshot.head);
    assert_eq!(snapshot.notes, [SnapshotNote::FiltersOff { names: vec!["store".into()] }]);
}

#[tokio::test]
async fn a_sparse_checkout_travels_whole_and_stays_sparse() {
    let world = World::new();
    let repo = world.repo("repo", &[("in/a", "1\n"), ("out/b", "1\n"), ("top", "1\n")]);
    repo.git(&["sparse-checkout", "set", "--cone", "in"]);
    assert!(!repo.exists("out/b"));
    repo.write("in/new", "dirty\n");
    let before = repo.photograph_all();
    let (checkout, snapshot) = repo.snapshot().await;
    assert_eq!(repo.photograph_all(), before);
    assert_eq!(snapshot.uncommitted_paths, 1);
    let inside = sandbox(&world, &snapshot);
    inside.write("out/b", "agent\n");
    inside.write("in/a", "agent\n");
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let request = ApplyRequest { base: snapshot.base, as_branch: None };
    apply(&checkout, &run_id(), request).await.unwrap();
    assert_eq!(repo.read("in/a"), "agent\n");
    assert_eq!(repo.git(&["show", "HEAD:out/b"]), "agent");
    assert!(!repo.exists("out/b"), "still outside of the checkout");
    assert_eq!(repo.status(), "?? in/new");
}

#[tokio::test]
async fn a_large_tree_travels() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    for n in 0..3000 {
        repo.write(&format!("dir{}/file{n}", n % 50), &format!("{n}\n"));
    }
    let (_, snapshot) = repo.snapshot().await;
    assert_eq!(snapshot.uncommitted_paths, 3000);
}

#[tokio::test]
async fn an_unreadable_place_for_the_bundle_is_an_error_and_leaves_nothing() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let checkout = repo.open().await;
    let error = checkout.snapshot(&run_id(), &world.path("absent/in.bundle")).await.unwrap_err();
    assert_eq!(error.code(), "WORK-011", "{error}");
}
