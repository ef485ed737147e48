//! What a path may be instead of a checkout, and what still is one.

use std::path::Path;

use cofferdam_git::GitEnv;
use cofferdam_workspace::{ApplyRequest, Checkout, InProgress, WorkspaceError, apply};

use crate::support::{PATH, Repo, World, bring_back, run_id, sandbox};

async fn refused(world: &World, path: &Path) -> WorkspaceError {
    Checkout::open_in(&world.env(), path).await.unwrap_err()
}

#[tokio::test]
async fn a_remote_project_is_refused_before_git_is_looked_for() {
    let nothing = GitEnv::new("/nonexistent".as_ref(), None, None);
    for address in ["ssh://host/x", "git@host:x", "host:x", "https://h/x", "vscode-remote://ssh/x"]
    {
        let error = Checkout::open_in(&nothing, Path::new(address)).await.unwrap_err();
        assert_eq!(error.code(), "WORK-001", "{address}: {error}");
    }
}

#[tokio::test]
async fn each_thing_that_is_no_checkout_has_its_own_code() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    std::fs::create_dir(world.path("plain")).unwrap();
    let bare = Repo { world: &world, dir: world.path("bare.git") };
    std::fs::create_dir(&bare.dir).unwrap();
    bare.git(&["init", "-q", "--bare"]);
    let unborn = Repo { world: &world, dir: world.path("unborn") };
    std::fs::create_dir(&unborn.dir).unwrap();
    unborn.git(&["init", "-q"]);
    for (path, code) in [
        (world.path("absent"), "WORK-002"),
        (repo.dir.join("a"), "WORK-003"),
        (world.path("plain"), "WORK-004"),
        (bare.dir.clone(), "WORK-005"),
        (repo.dir.join(".git"), "WORK-006"),
        (repo.dir.join(".git/refs"), "WORK-006"),
        (unborn.dir.clone(), "WORK-008"),
    ] {
        let error = refused(&world, &path).await;
        assert_eq!(error.code(), code, "{path:?}: {error}");
        assert!(!error.hint().is_empty());
    }
}

#[tokio::test]
async fn a_damaged_head_is_not_taken_for_a_repository_without_commits() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let head = repo.head();
    let (dir, file) = head.as_str().split_at(2);
    repo.remove(&format!(".git/objects/{dir}/{file}"));
    let error = refused(&world, &repo.dir).await;
    assert_eq!(error.code(), "GIT-006", "{error}");
}

#[tokio::test]
async fn a_bare_repository_planted_inside_a_checkout_is_not_entered() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let planted = Repo { world: &world, dir: repo.dir.join("vendor") };
    std::fs::create_dir(&planted.dir).unwrap();
    planted.git(&["init", "-q", "--bare"]);
    let canary = world.path("canary");
    planted.git(&["config", "core.fsmonitor", &format!("touch {}", canary.display())]);
    planted.git(&["config", "core.bare", "false"]);
    planted.git(&["config", "core.worktree", repo.dir.to_str().unwrap()]);
    let error = refused(&world, &planted.dir).await;
    assert_eq!(error.code(), "WORK-005", "{error}");
    assert!(!canary.exists());
}

#[tokio::test]
async fn a_checkout_of_another_user_needs_the_persons_trust() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    // Only root can give files away, so git is told by its own test switch that they are somebody
    // else's; not while fetching, where the program at the other end would believe it of our own
    // directory as well.
    let wrapper = Repo { world: &world, dir: world.path("bin") };
    std::fs::create_dir(&wrapper.dir).unwrap();
    wrapper.script(
        "git",
        "#!/bin/sh\ncase \"$2:$PWD\" in fetch:*) ;; *:*/repo)\n\
        GIT_TEST_ASSUME_DIFFERENT_OWNER=1; export GIT_TEST_ASSUME_DIFFERENT_OWNER ;;\nesac\n\
        PATH=/usr/local/bin:/usr/bin:/bin; exec git \"$@\"\n",
    );
    let path = format!("{}:{PATH}", wrapper.dir.display());
    let env = GitEnv::new(path.as_ref(), Some(world.path("home")), None);
    let error = Checkout::open_in(&env, &repo.dir).await.unwrap_err();
    assert_eq!(error.code(), "WORK-007", "{error}");
    let config = std::fs::read_to_string(world.path("home/.gitconfig")).unwrap();
    world.write_home(
        ".gitconfig",
        &format!("{config}[safe]\n\tdirectory = {}\n", repo.dir.display()),
    );
    // Trusted now, and all of it works there.
    repo.write("dirty", "x");
    let checkout = Checkout::open_in(&env, &repo.dir).await.unwrap();
    let snapshot = checkout.snapshot(&run_id(), &world.bundle_in()).await.unwrap();
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2");
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let request = ApplyRequest { base: snapshot.base, as_branch: None };
    apply(&checkout, &run_id(), request).await.unwrap();
    assert_eq!(repo.read("a"), "2");
}

#[tokio::test]
async fn a_subdirectory_and_a_linked_worktree_open_at_their_top() {
    let world = World::new();
    let repo = world.repo("repo", &[("sub/dir/a", "1")]);
    let inner = Checkout::open_in(&world.env(), &repo.dir.join("sub/dir")).await.unwrap();
    assert_eq!(inner.top(), repo.dir);
    let linked = world.path("linked");
    repo.git(&["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    let checkout = Checkout::open_in(&world.env(), &linked.join("sub")).await.unwrap();
    assert_eq!(checkout.top(), linked);
    assert_eq!(checkout.branch().await.unwrap().as_deref(), Some("side"));
}

#[tokio::test]
async fn a_merge_in_progress_is_allowed_and_told() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    repo.git(&["checkout", "-q", "-b", "other"]);
    repo.write("a", "2\n");
    repo.commit("other");
    repo.git(&["checkout", "-q", "main"]);
    repo.write("a", "3\n");
    repo.commit("main");
    assert!(!repo.try_git(&["merge", "-q", "other"]));
    let (checkout, snapshot) = repo.snapshot().await;
    assert_eq!(checkout.in_progress(), Some(InProgress::Merge));
    assert!(snapshot.notes.iter().any(|n| n.to_string().contains("merge")), "{:?}", snapshot.notes);
    assert_eq!(snapshot.uncommitted_paths, 1);
}

#[tokio::test]
async fn missing_and_old_git_have_codes() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let empty = world.path("empty");
    std::fs::create_dir(&empty).unwrap();
    let env = GitEnv::new(empty.as_os_str(), None, None);
    let error = Checkout::open_in(&env, &repo.dir).await.unwrap_err();
    assert_eq!(error.code(), "GIT-001", "{error}");
    let old = Repo { world: &world, dir: world.path("old") };
    std::fs::create_dir(&old.dir).unwrap();
    old.script("git", "#!/bin/sh\necho git version 2.17.1\n");
    let path = format!("{}:{PATH}", old.dir.display());
    let env = GitEnv::new(path.as_ref(), None, None);
    let error = Checkout::open_in(&env, &repo.dir).await.unwrap_err();
    assert_eq!(error.code(), "GIT-002", "{error}");
}

#[tokio::test]
async fn identity_is_the_persons_or_a_stand_in() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1")]);
    let identity = repo.open().await.identity().await.unwrap();
    assert_eq!(identity, ("Ada Person".to_owned(), "ada@example.org".to_owned()));
    let env = GitEnv::new(PATH.as_ref(), None, None);
    let checkout = Checkout::open_in(&env, &repo.dir).await.unwrap();
    assert_eq!(checkout.identity().await.unwrap().0, "Cofferdam");
    repo.git(&["config", "user.name", "Evil\u{1b}[31m <x>\nname"]);
    assert_eq!(repo.open().await.identity().await.unwrap().0, "Evil[31m xname");
}
