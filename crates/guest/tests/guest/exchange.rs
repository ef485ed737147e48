//! Whole runs: the real guest binary, real git, a shell as the agent.

use crate::support::{Guest, World, git, run};
use cofferdam_wire::{Down, ErrorCode, PROTOCOL_VERSION, Up};

#[tokio::test]
async fn commits_of_the_agent_come_back() {
    let world = World::new();
    let done = run(&world, "echo two >> a.txt && git commit -qam Second && echo said").await;
    assert_eq!((done.end.code, done.end.signal, done.end.cancelled), (Some(0), None, false));
    assert_eq!((done.printed().as_str(), done.end.report.trim()), ("said\n", "said"));
    assert_eq!((done.manifest.commits, done.manifest.leftovers_committed), (1, false));
    let head = done.manifest.head.clone().unwrap();
    assert_eq!(done.oid("HEAD"), Some(&head));
    assert_eq!(done.oid("refs/heads/topic/one"), Some(&head));
    let source = world.fetch(&done.bundle);
    assert_eq!(git(&source, &["show", &format!("{head}:a.txt")]), "one\ntwo");
    assert_eq!(
        git(&source, &["log", "-1", "--format=%an <%ae> %s", head.as_str()]),
        "Ann Agent <ann@example.invalid> Second"
    );
    assert_eq!(git(&source, &["rev-parse", &format!("{head}^")]), world.base.as_str());
    assert!(done.exit.success());
}

#[tokio::test]
async fn sha256_repository_comes_in_and_back() {
    let world = World::with_format("sha256");
    let done = run(&world, "echo two >> a.txt && git commit -qam Second").await;
    assert_eq!(done.manifest.head.as_ref().unwrap().as_str().len(), 64);
    world.fetch(&done.bundle);
}

#[tokio::test]
async fn untouched_tree_gives_an_empty_manifest() {
    let world = World::new();
    let done = run(&world, "git status --porcelain").await;
    assert_eq!(done.printed(), "", "the workspace came in dirty");
    assert_eq!(done.manifest.head.as_ref(), Some(&world.base));
    assert!(done.manifest.refs.is_empty());
    assert_eq!((done.manifest.commits, done.manifest.bundle_bytes), (0, 0));
}

#[tokio::test]
async fn leftovers_are_committed_even_against_hooks_locks_and_signing() {
    let world = World::new();
    let done = run(
        &world,
        "echo two >> a.txt; echo new > new.txt; mkdir .git/hooks; \
         printf '#!/bin/sh\\nexit 1\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; \
         git config commit.gpgsign true; git config gpg.program /bin/false; \
         git config core.hooksPath .git/hooks; git config core.worktree /usr; \
         touch .git/index.lock",
    )
    .await;
    assert!(done.manifest.leftovers_committed);
    let source = world.fetch(&done.bundle);
    let head = done.manifest.head.unwrap();
    assert_eq!(
        git(&source, &["show", "--format=%s", "--name-only", head.as_str()]),
        "Uncommitted work at the end of the run (cofferdam)\n\na.txt\nnew.txt"
    );
}

#[tokio::test]
async fn branches_tags_and_a_detached_head_come_back() {
    let world = World::new();
    let done = run(
        &world,
        "git checkout -q -b side && echo s > s && git add s && git commit -qm Side && \
         git tag -a v1 -m v1 && git checkout -q --detach && echo d > d && git add d && \
         git commit -qm Detached",
    )
    .await;
    let names: Vec<&str> = done.manifest.refs.iter().map(|r| r.name.as_str()).collect();
    assert!(names.contains(&"HEAD") && names.contains(&"refs/heads/side"), "{names:?}");
    assert!(names.contains(&"refs/tags/v1"), "{names:?}");
    assert!(!names.contains(&"refs/heads/topic/one"), "it still is at the base: {names:?}");
    assert_eq!(done.manifest.commits, 2);
    assert_ne!(done.oid("HEAD"), done.oid("refs/heads/side"));
    world.fetch(&done.bundle);
}

#[tokio::test]
async fn deleted_repository_gives_no_head() {
    let world = World::new();
    for script in
        ["rm -rf .git", "cd .. && rm -rf repo", "rm -rf .git && mkfifo .git", "> .git/HEAD"]
    {
        let _ = std::fs::remove_dir_all(world.guest_root().join("work"));
        let done = run(&world, script).await;
        assert_eq!(done.manifest.head, None, "{script}");
        assert!(done.manifest.refs.is_empty() && done.bundle.is_empty(), "{script}");
        assert!(done.exit.success());
    }
}

#[tokio::test]
async fn repository_made_anew_comes_back_whole() {
    let world = World::new();
    let done = run(&world, "rm -rf .git && git init -q && git add . && git commit -qm Anew").await;
    let source = world.fetch(&done.bundle);
    let head = done.manifest.head.unwrap();
    assert_eq!(git(&source, &["log", "--format=%s", head.as_str()]), "Anew");
}

#[tokio::test]
async fn agent_has_exactly_its_environment() {
    let world = World::new();
    let done = run(&world, "env | cut -d= -f1 | sort | tr '\\n' ' '; stat -c %a \"$HOME\"").await;
    let names =
        "GIT_AUTHOR_EMAIL GIT_AUTHOR_NAME GIT_COMMITTER_EMAIL GIT_COMMITTER_NAME HOME PATH PWD";
    assert_eq!(done.printed().trim(), format!("{names} 700"));
}

#[tokio::test]
async fn agent_gets_no_descriptor_but_its_own() {
    let world = World::new();
    let done = run(&world, "ls /proc/self/fd | tr '\\n' ' '; readlink /proc/self/fd/0").await;
    // The fourth is the directory that `ls` reads.
    assert_eq!(done.printed(), "0 1 2 3 /dev/null\n");
}

#[tokio::test]
async fn agent_cannot_write_outside_its_places() {
    let world = World::new();
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let script = format!(
        "echo x > {}/x || echo refused; echo y > /tmp/cofferdam-$$ && rm /tmp/cofferdam-$$ && \
         echo z > ../z && echo ok",
        outside.path().display()
    );
    let done = run(&world, &script).await;
    let printed = done.printed();
    assert!(printed.contains("refused\n") && printed.contains("ok\n"), "{printed}");
}

#[tokio::test]
async fn failing_agent_is_told_with_its_code_and_its_work_comes_back() {
    let world = World::new();
    let done = run(&world, "echo broken >> a.txt; echo why >&2; exit 7").await;
    assert_eq!(done.end.code, Some(7));
    assert_eq!(done.end.report.trim(), "why");
    assert!(done.manifest.leftovers_committed);
    let done = run(&World::new(), "kill -9 $$").await;
    assert_eq!((done.end.code, done.end.signal), (None, Some(9)));
}

#[tokio::test]
async fn missing_program_is_a_coded_failure() {
    let world = World::new();
    let mut guest = Guest::start(&world).await;
    let mut spec = world.spec("");
    spec.agent = cofferdam_wire::AgentStart::Command { argv: vec!["no-such-program".to_owned()] };
    guest.begin(&spec, &world.bundle).await;
    assert!(matches!(guest.next().await, Up::WorkspaceReady { .. }));
    let Up::Failed { code, message } = guest.next().await else { panic!("no failure") };
    assert_eq!(code, ErrorCode::AgentStart);
    assert!(message.contains("no-such-program"), "{message}");
    guest.link.close();
    assert_eq!(guest.child.wait().await.unwrap().code(), Some(1));
}

#[tokio::test]
async fn bundle_that_is_not_what_was_announced_is_refused() {
    let world = World::new();
    let mut short = world.bundle.clone();
    short.truncate(100);
    let mut other = world.spec("true");
    other.workspace.base = "0123456789012345678901234567890123456789".parse().unwrap();
    for (spec, bundle) in [(world.spec("true"), &short), (other, &world.bundle)] {
        let _ = std::fs::remove_dir_all(world.guest_root().join("work"));
        let mut guest = Guest::start(&world).await;
        guest.begin(&spec, bundle).await;
        let Up::Failed { code, .. } = guest.next().await else { panic!("no failure") };
        assert_eq!(code, ErrorCode::WorkspaceIn);
        assert!(!world.guest_root().join("work/in.bundle").exists());
        guest.link.close();
        assert_eq!(guest.child.wait().await.unwrap().code(), Some(1));
    }
}

/// Descriptors that this test process has got from whoever started it, and passes on.
fn inheritable_descriptors() -> Vec<String> {
    const CLOEXEC: u64 = 0o2_000_000;
    let mut found: Vec<u64> = std::fs::read_dir("/proc/self/fdinfo")
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.unwrap();
            let number: u64 = entry.file_name().to_str()?.parse().ok()?;
            let info = std::fs::read_to_string(entry.path()).ok()?;
            let flags = info.lines().find_map(|l| l.strip_prefix("flags:"))?;
            let flags = u64::from_str_radix(flags.trim(), 8).unwrap();
            (number > 2 && flags & CLOEXEC == 0).then_some(number)
        })
        .collect();
    found.sort_unstable();
    found.iter().map(u64::to_string).collect()
}

#[tokio::test]
async fn hello_says_what_the_guest_sees_of_itself() {
    let world = World::new();
    let guest = Guest::start(&world).await;
    let Up::Hello { protocol, version, probe } = guest.hello else { panic!("no hello") };
    assert_eq!((protocol, version.as_str()), (PROTOCOL_VERSION, env!("CARGO_PKG_VERSION")));
    assert_eq!(Some(probe.pid), guest.child.id());
    let inherited = inheritable_descriptors();
    let extra: Vec<&str> =
        probe.extra_descriptors.iter().map(|d| d.split(':').next().unwrap()).collect();
    assert_eq!(extra, inherited);
    assert!(probe.interfaces_up.contains(&"lo".to_owned()));
    assert!(!probe.root_read_only || !probe.writable_mounts.contains(&"/".to_owned()));
}

#[tokio::test]
async fn cancel_before_the_bundle_gives_an_empty_manifest() {
    let world = World::new();
    let mut guest = Guest::start(&world).await;
    guest.down.send(&Down::Start(Box::new(world.spec("true")))).await.unwrap();
    guest.down.send(&Down::Cancel { reason: "test".to_owned() }).await.unwrap();
    let done = guest.finish().await;
    assert!(done.end.cancelled);
    assert_eq!(done.manifest.head, None);
}
