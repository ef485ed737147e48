//! Applying: the person's own edits stay theirs, and a refusal changes nothing.

use cofferdam_run::ObjectId;
use cofferdam_workspace::{Applied, ApplyError, ApplyRequest, Checkout, Snapshot, apply};

use crate::support::{Repo, World, bring_back, run_id, sandbox};

async fn applied(checkout: &Checkout, snapshot: &Snapshot) -> Result<Applied, ApplyError> {
    let request = ApplyRequest { base: snapshot.base.clone(), as_branch: None };
    apply(checkout, &run_id(), request).await
}

/// Refused with `code`, and everything as it was.
async fn refused(
    repo: &Repo<'_>,
    checkout: &Checkout,
    snapshot: &Snapshot,
    code: &str,
) -> ApplyError {
    let before = repo.photograph();
    let error = applied(checkout, snapshot).await.unwrap_err();
    assert_eq!(error.code(), code, "{error:?}");
    assert_eq!(repo.photograph(), before, "a refusal changed the checkout");
    error
}

const LINES: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n";

fn edited(old: &str, new: &str) -> String {
    LINES.lines().map(|l| if l == old { format!("{new}\n") } else { format!("{l}\n") }).collect()
}

#[tokio::test]
async fn on_an_unmoved_clean_checkout_the_runs_own_commits_are_taken() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n"), ("gone", "x\n"), ("mv", "some\nthing\n")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("dir/ünï", "new\n");
    inside.script("run.sh", "#!/bin/sh\n");
    std::os::unix::fs::symlink("a", inside.dir.join("link")).unwrap();
    inside.remove("gone");
    inside.git(&["mv", "mv", "moved"]);
    inside.commit("one");
    inside.git(&["checkout", "-q", "-b", "topic"]);
    inside.write("t", "t\n");
    inside.commit("topic");
    inside.git(&["checkout", "-q", "work"]);
    inside.commit("empty");
    inside.git(&["merge", "-q", "--no-ff", "-m", "merge", "topic"]);
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let done = applied(&checkout, &snapshot).await.unwrap();
    assert_eq!(
        done,
        Applied::Picked {
            head: inside.head(),
            commits: 4,
            already: 0,
            flattened_merges: 0,
            fast_forward: true,
            squashed: false
        }
    );
    assert_eq!(repo.head(), inside.head());
    assert_eq!(repo.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(repo.status(), "");
    assert!(repo.git(&["reflog", "-1"]).contains("cofferdam: apply run 7k2m9qxc"));
    assert!(!repo.exists("gone") && repo.exists("moved") && repo.exists("link"));
    assert!(repo.git(&["ls-files", "-s", "run.sh"]).starts_with("100755"));
    assert!(!repo.dir.join(".git/index.lock").exists());
    assert_eq!(applied(&checkout, &snapshot).await.unwrap(), Applied::AlreadyApplied);
}

#[tokio::test]
async fn commits_are_picked_onto_a_moved_head_with_author_and_message() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", LINES)]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", &edited("2", "two"));
    inside.git(&["add", "-A"]);
    inside.git(&["commit", "-q", "--author=Agent <agent@x>", "-m", "one\n\nbody \u{1b}[31m"]);
    inside.commit("empty");
    inside.write("b", "b\n");
    inside.commit("two");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    repo.write("a", &edited("14", "fourteen"));
    repo.commit("meanwhile");
    let done = applied(&checkout, &snapshot).await.unwrap();
    assert!(matches!(done, Applied::Picked { commits: 2, fast_forward: false, .. }), "{done:?}");
    assert_eq!(repo.git(&["log", "--format=%s"]), "two\none\nmeanwhile\nfirst");
    assert_eq!(
        repo.git(&["log", "-1", "--skip=1", "--format=%an %ae %cn"]),
        "Agent agent@x Ada Person"
    );
    assert!(repo.git(&["cat-file", "commit", "HEAD^"]).ends_with("one\n\nbody \u{1b}[31m"));
    assert_eq!(repo.read("a"), edited("2", "two").replace("14", "fourteen"));
    assert_eq!(repo.status(), "");
    repo.git(&["fsck", "--strict"]);
    assert_eq!(applied(&checkout, &snapshot).await.unwrap(), Applied::AlreadyApplied);
}

#[tokio::test]
async fn a_commit_that_was_picked_by_hand_and_then_edited_is_known_by_its_patch() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", LINES)]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", &edited("2", "two"));
    inside.commit("one");
    inside.write("b", "b\n");
    inside.commit("two");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    repo.write("c", "c\n");
    repo.commit("meanwhile");
    repo.git(&["cherry-pick", "refs/cofferdam/runs/7k2m9qxc~1"]);
    repo.write("a", &edited("2", "zwei"));
    repo.commit("edited after");
    let done = applied(&checkout, &snapshot).await.unwrap();
    assert!(matches!(done, Applied::Picked { commits: 1, already: 1, .. }), "{done:?}");
    assert_eq!(repo.read("a"), edited("2", "zwei"));
}

#[tokio::test]
async fn the_dirty_launch_tree_keeps_its_edits_uncommitted() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", LINES), ("b", LINES), ("c", "c\n")]);
    repo.write("a", &edited("2", "my edit"));
    repo.write("c", "my staged edit\n");
    repo.git(&["add", "c"]);
    repo.write("untracked", "mine\n");
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    let text = inside.read("a").replace("14", "agent");
    inside.write("a", &text);
    inside.write("b", &edited("1", "agent"));
    inside.write("new", "agent\n");
    inside.commit("fix");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let done = applied(&checkout, &snapshot).await.unwrap();
    assert!(matches!(done, Applied::Picked { commits: 1, .. }), "{done:?}");
    assert_eq!(repo.git(&["log", "--format=%s"]), "fix\nfirst");
    assert_eq!(repo.git(&["show", "HEAD:a"]) + "\n", edited("14", "agent"));
    assert_eq!(repo.read("a"), text, "both edits are in the file");
    assert_eq!(repo.read("new"), "agent\n");
    assert_eq!(repo.status(), " M a\nM  c\n?? untracked");
    assert_eq!(repo.git(&["diff", "--stat"]).lines().count(), 2);
    assert!(repo.git(&["diff"]).contains("+my edit"));
    repo.git(&["fsck", "--strict"]);
    let everything = repo.git(&["count-objects", "-v"]);
    assert!(!everything.contains("garbage: 1"), "{everything}");
}

#[tokio::test]
async fn staged_and_unstaged_edits_of_one_file_stay_apart() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", LINES)]);
    repo.write("a", &edited("2", "staged"));
    repo.git(&["add", "a"]);
    repo.write("a", &edited("2", "staged").replace("8\n", "unstaged\n"));
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", &inside.read("a").replace("14", "agent"));
    inside.commit("fix");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    applied(&checkout, &snapshot).await.unwrap();
    assert_eq!(repo.status(), "MM a");
    assert_eq!(repo.git(&["show", ":a"]) + "\n", edited("2", "staged").replace("14", "agent"));
    assert_eq!(repo.read("a"), inside.read("a"));
    repo.git(&["fsck", "--strict"]);
}

#[tokio::test]
async fn a_run_that_changed_the_same_lines_is_refused_until_they_are_committed() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", LINES)]);
    repo.write("a", &edited("2", "my edit"));
    repo.write("untracked", "mine\n");
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", &inside.read("a").replace("my edit", "my edit, improved"));
    inside.write("untracked", "mine, improved\n");
    inside.commit("improve");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let error = refused(&repo, &checkout, &snapshot, "WORK-205").await;
    assert!(error.to_string().contains("untracked"), "{error}");
    repo.commit("mine");
    applied(&checkout, &snapshot).await.unwrap();
    assert_eq!(repo.read("untracked"), "mine, improved\n");
    assert_eq!(repo.git(&["log", "--format=%s"]), "improve\nmine\nfirst");
    assert_eq!(repo.status(), "");
}

#[tokio::test]
async fn a_conflict_names_the_files_and_leaves_everything_as_it_was() {
    let world = World::new();
    let repo = world.repo("repo", &[("a\u{202e}x", LINES), ("b", "1\n")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("b", "fine\n");
    inside.commit("this one fits");
    inside.write("a\u{202e}x", &edited("2", "agent"));
    inside.commit("this one \u{1b}[31mdoes not");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    repo.write("a\u{202e}x", &edited("2", "person"));
    repo.commit("meanwhile");
    repo.write("dirty", "x");
    let error = refused(&repo, &checkout, &snapshot, "WORK-205").await;
    assert_eq!(
        error.to_string(),
        "this one \\u{1b}[31mdoes not does not apply: conflicts in a\\u{202e}x"
    );
}

#[tokio::test]
async fn later_edits_in_the_way_are_refused_and_others_are_kept() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", LINES), ("b", "1\n")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", &edited("2", "agent"));
    inside.write("new", "agent\n");
    inside.commit("fix");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    repo.write("a", &edited("2", "person"));
    refused(&repo, &checkout, &snapshot, "WORK-206").await;
    repo.write("a", LINES);
    repo.write("new", "person\n");
    refused(&repo, &checkout, &snapshot, "WORK-206").await;
    repo.remove("new");
    repo.write("a", &edited("14", "person"));
    repo.write("b", "person\n");
    applied(&checkout, &snapshot).await.unwrap();
    assert_eq!(repo.status(), " M a\n M b");
    assert_eq!(repo.read("a"), edited("2", "agent").replace("14", "person"));
}

#[tokio::test]
async fn an_ignored_file_is_never_overwritten() {
    let world = World::new();
    let repo = world.repo("repo", &[(".gitignore", ".env\ncache\n"), ("a", "1\n")]);
    repo.write(".env", "KEY=precious\n");
    repo.write("cache/x", "precious\n");
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write(".env", "KEY=agent\n");
    inside.write("cache", "a file where a directory is\n");
    inside.git(&["add", "-f", ".env", "cache"]);
    inside.git(&["commit", "-q", "-m", "overwrite"]);
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let error = refused(&repo, &checkout, &snapshot, "WORK-207").await;
    assert_eq!(error.to_string(), "files that are not in git would be overwritten: .env, cache");
    assert_eq!(repo.read(".env"), "KEY=precious\n");
}

#[tokio::test]
async fn an_ignored_symbolic_link_is_not_written_through() {
    let world = World::new();
    let repo = world.repo("repo", &[(".gitignore", "out\n"), ("a", "1\n")]);
    let outside = world.path("outside");
    std::fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, repo.dir.join("out")).unwrap();
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("out/file", "agent\n");
    inside.git(&["add", "-f", "out/file"]);
    inside.git(&["commit", "-q", "-m", "through"]);
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    refused(&repo, &checkout, &snapshot, "WORK-207").await;
    assert!(!outside.join("file").exists());
}

#[tokio::test]
async fn files_and_directories_may_change_places() {
    let world = World::new();
    let repo = world.repo("repo", &[("x/a", "1\n"), ("x/b", "2\n"), ("y", "3\n")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.git(&["rm", "-q", "-r", "x", "y"]);
    inside.write("x", "file\n");
    inside.write("y/deep/file", "dir\n");
    inside.commit("exchange");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    applied(&checkout, &snapshot).await.unwrap();
    assert_eq!((repo.read("x"), repo.read("y/deep/file")), ("file\n".into(), "dir\n".into()));
    assert_eq!(repo.status(), "");
}

#[tokio::test]
async fn merges_land_as_one_commit_each_on_a_moved_head() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    repo.write("dirty", "mine\n");
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.git(&["checkout", "-q", "-b", "topic"]);
    inside.write("t1", "t\n");
    inside.commit("t1");
    inside.write("t2", "t\n");
    inside.commit("t2");
    inside.git(&["checkout", "-q", "work"]);
    inside.write("w", "w\n");
    inside.commit("w");
    inside.git(&["merge", "-q", "--no-ff", "-m", "merge topic", "topic"]);
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let done = applied(&checkout, &snapshot).await.unwrap();
    assert!(matches!(done, Applied::Picked { commits: 2, flattened_merges: 1, .. }), "{done:?}");
    assert_eq!(repo.git(&["log", "--format=%s"]), "merge topic\nw\nfirst");
    assert!(repo.exists("t1") && repo.exists("t2") && repo.exists("w"));
    assert_eq!(repo.status(), "?? dirty");
}

#[tokio::test]
async fn rewritten_history_lands_as_one_commit() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    repo.write("mine", "mine\n");
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("b", "agent\n");
    inside.git(&["add", "-A"]);
    inside.git(&["commit", "-q", "--amend", "-m", "amended over the snapshot"]);
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let done = applied(&checkout, &snapshot).await.unwrap();
    assert!(matches!(done, Applied::Picked { commits: 1, squashed: true, .. }), "{done:?}");
    assert_eq!(repo.git(&["show", "--format=", "--name-only", "HEAD"]), "b");
    assert_eq!(repo.status(), "?? mine");
}

#[tokio::test]
async fn an_empty_run_changes_nothing() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    repo.write("dirty", "x");
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.commit("nothing");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let before = repo.photograph();
    assert_eq!(applied(&checkout, &snapshot).await.unwrap(), Applied::Nothing);
    assert_eq!(repo.photograph(), before);
}

#[tokio::test]
async fn a_branch_can_be_made_instead() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2\n");
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let before = (repo.head(), repo.status());
    let branch = |name: &str| {
        let request =
            ApplyRequest { base: snapshot.base.clone(), as_branch: Some(name.to_owned()) };
        let checkout = &checkout;
        async move { apply(checkout, &run_id(), request).await }
    };
    assert_eq!(branch("agent/fix").await.unwrap(), Applied::Branch { name: "agent/fix".into() });
    assert_eq!(repo.id("refs/heads/agent/fix"), inside.head());
    for name in ["agent/fix", "main", "-f", "--force", "a..b", "HEAD", "", "x.lock", "a b", "a\nb"]
    {
        assert_eq!(branch(name).await.unwrap_err().code(), "WORK-209", "{name:?}");
    }
    assert_eq!((repo.head(), repo.status()), before);
}

#[tokio::test]
async fn locks_and_interrupted_operations_are_respected() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2\n");
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    repo.write(".git/index.lock", "");
    refused(&repo, &checkout, &snapshot, "WORK-202").await;
    repo.remove(".git/index.lock");
    repo.write(".git/MERGE_HEAD", repo.head().as_str());
    refused(&repo, &checkout, &snapshot, "WORK-203").await;
    repo.remove(".git/MERGE_HEAD");
    applied(&checkout, &snapshot).await.unwrap();
}

#[tokio::test]
async fn two_applies_at_once_give_one_result() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2\n");
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let (first, second) =
        tokio::join!(applied(&checkout, &snapshot), applied(&checkout, &snapshot));
    let results = [first.unwrap(), second.unwrap()];
    assert!(results.contains(&Applied::AlreadyApplied), "{results:?}");
    assert!(results.iter().any(|r| matches!(r, Applied::Picked { .. })), "{results:?}");
}

#[tokio::test]
async fn files_that_cannot_be_written_are_put_back() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n"), ("m", "1\n"), ("z/inner", "1\n")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2\n");
    inside.write("b", "new\n");
    inside.remove("m");
    inside.write("z/inner", "2\n");
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    // Even root cannot replace a file in an immutable place: a directory that is a mount point of
    // nothing stands in for it, so the branch is locked instead and HEAD cannot move.
    repo.write(".git/refs/heads/main.lock", "");
    let before = contents(&repo, &["a", "m", "z/inner"]);
    let head: ObjectId = repo.head();
    let error = applied(&checkout, &snapshot).await.unwrap_err();
    assert_eq!(error.code(), "WORK-211", "{error:?}");
    assert_eq!(contents(&repo, &["a", "m", "z/inner"]), before);
    assert!(!repo.exists("b"));
    repo.remove(".git/refs/heads/main.lock");
    assert_eq!(repo.head(), head);
    assert_eq!(repo.status(), "");
    applied(&checkout, &snapshot).await.unwrap();
}

#[tokio::test]
async fn a_failure_in_the_middle_of_writing_puts_back_what_was_written() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n"), ("dir/b", "1\n"), ("m", "1\n"), ("z", "1\n")]);
    let inside = Repo { world: &world, dir: world.path("inside") };
    repo.git(&["clone", "-q", ".", inside.dir.to_str().unwrap()]);
    inside.write("a", "2\n");
    inside.remove("dir/b");
    inside.write("new/deep/file", "new\n");
    inside.write("z", "2\n");
    inside.git(&["add", "-A"]);
    // A name that no file system takes: an import would refuse it, so it is put there by hand.
    let blob = inside.id(":a");
    let entry = format!("100644,{blob},mm{}", "x".repeat(300));
    inside.git(&["update-index", "--add", "--cacheinfo", &entry]);
    inside.git(&["commit", "-q", "-m", "impossible"]);
    let refspec = "HEAD:refs/cofferdam/runs/7k2m9qxc";
    repo.git(&["fetch", "-q", inside.dir.to_str().unwrap(), refspec]);
    repo.write("dirty", "mine\n");
    let checkout = repo.open().await;
    let before = contents(&repo, &["a", "dir/b", "m", "z", "dirty"]);
    let request = ApplyRequest { base: repo.head(), as_branch: None };
    let error = apply(&checkout, &run_id(), request).await.unwrap_err();
    assert_eq!(error.code(), "WORK-211", "{error:?}");
    assert_eq!(contents(&repo, &["a", "dir/b", "m", "z", "dirty"]), before);
    assert!(!repo.exists("new"));
    assert_eq!(repo.status(), "?? dirty");
}

fn contents(repo: &Repo<'_>, paths: &[&str]) -> Vec<String> {
    paths.iter().map(|p| repo.read(p)).collect()
}

#[tokio::test]
async fn an_apply_that_was_killed_in_the_middle_is_finished_by_the_next() {
    use std::os::unix::fs::MetadataExt as _;
    let world = World::new();
    let repo = world.repo("repo", &[("a", LINES), ("b", "1\n"), ("c", "1\n")]);
    repo.write("a", &edited("2", "mine"));
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", &inside.read("a").replace("14", "agent"));
    inside.write("b", "agent\n");
    inside.write("new", "agent\n");
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    // Files were partly written, HEAD had not moved, git's lock was held.
    repo.write("a", &inside.read("a"));
    repo.write("new", "agent\n");
    repo.write(".git/index.lock", "");
    let lock = repo.dir.join(".git/index.lock").symlink_metadata().unwrap();
    let born = lock.created().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let path = repo.dir.join(".git/index.lock");
    let note = format!("{} {} {born}", path.display(), lock.ino());
    repo.write(".git/cofferdam/index.lock.owned", &note);
    applied(&checkout, &snapshot).await.unwrap();
    assert_eq!(repo.status(), " M a");
    assert_eq!(repo.read("a"), inside.read("a"));
    assert_eq!(repo.git(&["show", "HEAD:a"]) + "\n", edited("14", "agent"));
    assert!(!repo.exists(".git/index.lock"));
    assert!(!repo.exists(".git/cofferdam/index.lock.owned"));
}

#[tokio::test]
async fn a_sha256_repository_applies_and_nothing_is_left_but_the_lock_file() {
    let world = World::new();
    let repo = world.repo_with("repo", &[("a", LINES)], &["--object-format=sha256"]);
    repo.write("a", &edited("2", "mine"));
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", &inside.read("a").replace("14", "agent"));
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    applied(&checkout, &snapshot).await.unwrap();
    assert_eq!(repo.read("a"), inside.read("a"));
    assert_eq!(repo.status(), " M a");
    repo.git(&["fsck", "--strict"]);
    let left = std::fs::read_dir(repo.dir.join(".git/cofferdam")).unwrap();
    let names: Vec<_> = left.map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["apply.lock"]);
}

#[tokio::test]
async fn a_detached_head_moves_by_itself() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    let main = repo.head();
    repo.git(&["checkout", "-q", "--detach"]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2\n");
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    applied(&checkout, &snapshot).await.unwrap();
    assert_eq!(repo.head(), inside.head());
    assert_eq!(repo.id("refs/heads/main"), main);
    assert_eq!(repo.status(), "");
}

#[tokio::test]
async fn a_renamed_file_takes_the_runs_change_along() {
    let world = World::new();
    let repo = world.repo("repo", &[("old", LINES)]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("old", &edited("2", "agent"));
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    repo.git(&["mv", "old", "new"]);
    repo.commit("rename");
    applied(&checkout, &snapshot).await.unwrap();
    assert_eq!(repo.read("new"), edited("2", "agent"));
    assert!(!repo.exists("old"));
    assert_eq!(repo.status(), "");
}

#[tokio::test]
async fn a_linked_worktree_applies_to_its_own_branch() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    let linked = Repo { world: &world, dir: world.path("linked") };
    repo.git(&["worktree", "add", "-q", "-b", "side", linked.dir.to_str().unwrap()]);
    linked.write("mine", "x\n");
    let (checkout, snapshot) = linked.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2\n");
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    applied(&checkout, &snapshot).await.unwrap();
    assert_eq!(linked.read("a"), "2\n");
    assert_eq!(linked.status(), "?? mine");
    assert_eq!((repo.read("a"), repo.status()), ("1\n".into(), String::new()));
    assert_eq!(repo.git(&["log", "-1", "--format=%s", "side"]), "one");
}
