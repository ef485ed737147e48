//! Nothing that the agent leaves is lost without a word.

use crate::support::{Finished, Guest, World, git, run};

/// The whole, at the head that came back.
fn at_head(world: &World, done: &Finished, path: &str) -> String {
    let source = world.fetch(&done.bundle);
    let head = done.manifest.head.as_ref().unwrap();
    git(&source, &["show", &format!("{head}:{path}")])
}

fn assert_all_taken(done: &Finished, of: &str) {
    assert_eq!(done.manifest.leftovers_error, None, "{of}");
    assert_eq!(done.manifest.not_taken, Vec::<String>::new(), "{of}");
    assert!(done.manifest.leftovers_committed, "{of}");
}

/// Back for another script in the same world.
fn clear(world: &World) {
    std::fs::remove_dir_all(world.guest_root().join("work")).unwrap();
}

#[tokio::test]
async fn locks_and_broken_indexes_do_not_cost_the_work() {
    let world = World::new();
    for script in [
        "touch .git/refs/heads/topic/one.lock .git/HEAD.lock",
        "mkdir .git/index.lock && touch .git/index.lock/x",
        "mkdir .git/refs/heads/topic/one.lock",
        "echo garbage > .git/index",
        "rm .git/index && mkdir .git/index && touch .git/index/x",
        "git update-index --assume-unchanged a.txt; git update-index --skip-worktree a.txt",
        "git config core.sparseCheckout true; echo nothing > .git/info/sparse-checkout",
    ] {
        let script = format!("echo new > new.txt; mkdir -p .git/info; {script}; echo two >> a.txt");
        let done = run(&world, &script).await;
        assert_all_taken(&done, &script);
        assert_eq!(at_head(&world, &done, "a.txt"), "one\ntwo", "{script}");
        assert_eq!(at_head(&world, &done, "new.txt"), "new", "{script}");
        clear(&world);
    }
}

#[tokio::test]
async fn a_branch_that_cannot_move_still_brings_the_leftovers() {
    let world = World::new();
    // HEAD points where a directory of other refs is.
    let script = "git update-ref refs/heads/x/y HEAD; git symbolic-ref HEAD refs/heads/x; \
                  echo new > new.txt";
    let done = run(&world, script).await;
    assert_all_taken(&done, script);
    assert_eq!(at_head(&world, &done, "new.txt"), "new");
    assert_eq!(done.oid("refs/cofferdam/leftovers/0"), done.manifest.head.as_ref());
}

#[tokio::test]
async fn unreadable_files_and_a_read_only_repository_are_taken() {
    let world = World::new();
    for script in [
        "mkdir d && echo new > d/new.txt && echo new > new.txt && chmod 000 d/new.txt d new.txt",
        "mkdir d && echo new > d/new.txt && cp d/new.txt . && chmod -R a-w .git",
        "mkdir d && echo new > d/new.txt && cp d/new.txt . && chmod 000 .git",
    ] {
        let mut guest = Guest::start_unprivileged(&world).await;
        guest.begin_until_started(&world, &world.spec(script)).await;
        let done = guest.finish().await;
        assert_all_taken(&done, script);
        assert_eq!(at_head(&world, &done, "new.txt"), "new", "{script}");
        assert_eq!(at_head(&world, &done, "d/new.txt"), "new", "{script}");
        clear(&world);
    }
}

#[tokio::test]
async fn filters_and_line_ends_that_fail_are_passed_over() {
    let world = World::new();
    for script in [
        "git config filter.f.clean false; git config filter.f.required true; \
         echo '*.txt filter=f' > .gitattributes",
        "git config filter.f.process false; git config filter.f.required true; \
         echo '*.txt filter=f' > .git/info/attributes",
        "git config core.safecrlf true; git config core.autocrlf input; printf 'a\\r\\nb\\n' > m",
        "echo '*.txt working-tree-encoding=UTF-16' > .gitattributes",
    ] {
        let script = format!("mkdir -p .git/info; echo new > new.txt; {script}");
        let done = run(&world, &script).await;
        assert_all_taken(&done, &script);
        assert_eq!(at_head(&world, &done, "new.txt"), "new", "{script}");
        clear(&world);
    }
}

#[tokio::test]
async fn what_cannot_be_taken_is_named_and_costs_nothing_else() {
    let world = World::new();
    for (script, named) in [
        ("truncate -s 1T sparse", "sparse: 1099511627776 bytes"),
        ("touch \"$(printf 'a\\nb')\"", "a\\nb: a name"),
        ("touch \"$(printf 'a\\033b')\"", "a\\u{1b}b: a name"),
        ("mkdir -p 'x/git~1' && touch 'x/git~1/config'", "x/git~1: a name"),
        ("git init -q vendor && touch vendor/x", "vendor: a nested repository"),
        (
            "git init -q vendor && cd vendor && touch x && git add . && git commit -qm In",
            "vendor: a nested repository",
        ),
        ("mkdir v && echo rubbish > v/.git && touch v/x", "v: a nested repository"),
        ("git worktree add -q ../tree && touch ../tree/x", "/tree: its uncommitted files"),
    ] {
        let done = run(&world, &format!("echo new > new.txt; {script}")).await;
        assert_eq!(done.manifest.leftovers_error, None, "{script}");
        assert_eq!(done.manifest.not_taken_count, 1, "{:?}", done.manifest.not_taken);
        assert!(done.manifest.not_taken[0].contains(named), "{:?}", done.manifest.not_taken);
        assert_eq!(at_head(&world, &done, "new.txt"), "new", "{script}");
        clear(&world);
    }
}

#[tokio::test]
async fn what_is_ignored_on_purpose_is_not_named_and_what_was_staged_all_the_same_is_taken() {
    let world = World::new();
    let script = "echo '/out/' > .gitignore; echo '/kept' >> .gitignore; mkdir out; \
                  git init -q out/nested; truncate -s 2G out/large; \
                  touch \"out/$(printf 'a\\nb')\"; echo kept > kept; git add -f kept";
    let done = run(&world, script).await;
    assert_all_taken(&done, script);
    assert_eq!(at_head(&world, &done, "kept"), "kept");
}

#[tokio::test]
async fn names_of_what_was_not_taken_are_bounded_and_counted() {
    let world = World::new();
    let script = "for n in $(seq 60); do mkdir -p d$n; touch \"d$n/$(printf 'a\\nb')\"; done";
    let done = run(&world, script).await;
    assert_eq!(done.manifest.not_taken.len(), cofferdam_wire::NOT_TAKEN);
    assert_eq!(done.manifest.not_taken_count, 60);
}

#[tokio::test]
async fn stashes_and_heads_left_behind_come_back() {
    let world = World::new();
    let script = "echo s1 >> a.txt; git stash -q; echo s2 > u; git stash -q -u; \
                  git checkout -q --detach; echo d > d; git add d; git commit -qm Detached; \
                  git checkout -q topic/one; echo r > r; git add r; git commit -qm Reset; \
                  git reset -q --hard HEAD^; git worktree add -q --detach ../tree; cd ../tree; \
                  echo w > w; git add w; git commit -qm Worktree";
    let done = run(&world, script).await;
    assert_eq!(done.manifest.not_taken, Vec::<String>::new());
    assert_eq!(done.manifest.head.as_ref(), Some(&world.base));
    let source = world.fetch(&done.bundle);
    let subjects: Vec<String> = done
        .manifest
        .refs
        .iter()
        .map(|r| git(&source, &["log", "-1", "--format=%s", r.oid.as_str()]))
        .collect();
    for wanted in ["WIP on topic/one", "Detached", "Reset", "Worktree"] {
        assert!(subjects.iter().any(|s| s.starts_with(wanted)), "{wanted}: {subjects:?}");
    }
    assert_eq!(done.manifest.refs.len(), 5, "{subjects:?}");
}

#[tokio::test]
async fn what_was_amended_or_rebased_does_not_come_back() {
    let world = World::new();
    let script = "echo 1 > x; git add x; git commit -qm One; git commit -q --amend -m Two; \
                  git branch other HEAD^; git checkout -q other; echo o > o; git add o; \
                  git commit -qm Other; git checkout -q topic/one; git rebase -q other";
    let done = run(&world, script).await;
    let names: Vec<&str> = done.manifest.refs.iter().map(|r| r.name.as_str()).collect();
    assert!(!names.iter().any(|n| n.starts_with("refs/cofferdam/")), "{names:?}");
    assert_eq!(done.manifest.commits, 2);
}

#[tokio::test]
async fn a_head_whose_commit_is_gone_is_no_fresh_start() {
    let world = World::new();
    let script = "echo w > w; git add w; git commit -qm W; \
                  rm -f .git/objects/$(git rev-parse HEAD | sed 's,^..,&/,')";
    let done = run(&world, script).await;
    assert_eq!(done.manifest.head, None);
    assert!(done.manifest.leftovers_error.is_some());
}
