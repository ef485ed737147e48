//! Nothing that an agent wrote, or that its content could select, runs on the host.

use cofferdam_workspace::{ApplyRequest, DiffForm, DiffRequest, apply, diff, import};

use crate::support::{Repo, World, bring_back, pack, request, run_id, sandbox};

/// Every way of the person's configuration to start a program, each touching a canary.
fn arm(repo: &Repo<'_>, canary: &str) {
    let touch = format!("touch {canary}; cat");
    repo.script("../arm.sh", &format!("#!/bin/sh\ntouch {canary}\ncat\n"));
    let script = repo.world.path("arm.sh");
    let script = script.to_str().unwrap();
    for (key, value) in [
        ("core.fsmonitor", script),
        ("core.sshCommand", script),
        ("core.editor", script),
        ("core.pager", script),
        ("core.alternateRefsCommand", script),
        ("core.hooksPath", "hooks"),
        ("filter.x.clean", &touch),
        ("filter.x.smudge", &touch),
        ("filter.y.process", script),
        ("filter.y.required", "true"),
        ("filter.a=b.clean", &touch),
        ("filter.a=b.smudge", &touch),
        ("merge.x.driver", &touch),
        ("diff.x.textconv", &touch),
        ("diff.x.command", script),
        ("diff.external", script),
        ("gpg.program", script),
        ("commit.gpgSign", "true"),
        ("credential.helper", script),
        ("alias.add", &format!("!touch {canary}")),
        ("alias.write-tree", &format!("!touch {canary}")),
        ("pager.diff-tree", script),
        ("uploadpack.packObjectsHook", script),
        ("fetch.bundleURI", "https://example.invalid/x"),
    ] {
        repo.git(&["config", key, value]);
    }
    for hook in [
        "pre-commit",
        "post-checkout",
        "post-index-change",
        "reference-transaction",
        "post-rewrite",
        "post-applypatch",
        "pre-auto-gc",
        "fsmonitor-watchman",
        "post-merge",
        "prepare-commit-msg",
        "proc-receive",
        "update",
        "pre-receive",
        "post-receive",
    ] {
        repo.script(&format!("hooks/{hook}"), &format!("#!/bin/sh\ntouch {canary}\n"));
        repo.script(&format!(".git/hooks/{hook}"), &format!("#!/bin/sh\ntouch {canary}\n"));
    }
}

const ATTRIBUTES: &str = "*.x filter=x merge=x diff=x\n*.y filter=y\n*.z filter=a=b\n";

#[tokio::test]
async fn the_canary_survives_a_whole_run() {
    let world = World::new();
    let repo = world.repo(
        "repo",
        &[
            ("f.x", "1\n2\n3\n4\n5\n6\n7\n8\n"),
            ("f.y", "1\n"),
            ("f.z", "1\n"),
            (".gitattributes", ATTRIBUTES),
        ],
    );
    let canary = world.path("canary");
    arm(&repo, canary.to_str().unwrap());
    repo.write("f.x", "1\n2\n3\n4\n5\n6\n7\nmine\n");
    repo.write("f.y", "mine\n");
    repo.write("f.z", "mine\n");
    repo.write("new.x", "mine\n");
    let (checkout, snapshot) = repo.snapshot().await;
    assert!(!canary.exists(), "snapshot ran something");
    let inside = sandbox(&world, &snapshot);
    // Content is taken as it is.
    assert_eq!(inside.read("f.y"), "mine\n");
    inside.write("f.x", "agent\n2\n3\n4\n5\n6\n7\nmine\n");
    inside.write("other.x", "agent\n");
    inside.write("other.y", "agent\n");
    inside.write("other.z", "agent\n");
    inside.script(".husky/post-checkout", &format!("#!/bin/sh\ntouch {}\n", canary.display()));
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    assert!(!canary.exists(), "import ran something");
    let request = DiffRequest { base: snapshot.base.clone(), form: DiffForm::Patch };
    diff(&checkout, &run_id(), request).await.unwrap();
    assert!(!canary.exists(), "diff ran something");
    let request = ApplyRequest { base: snapshot.base.clone(), as_branch: None };
    let result = apply(&checkout, &run_id(), request).await;
    assert!(!canary.exists(), "apply ran something");
    result.unwrap();
    assert_eq!(repo.read("f.x"), "agent\n2\n3\n4\n5\n6\n7\nmine\n");
    assert_eq!(repo.read("other.y"), "agent\n");
    // The trap is real: plain git steps into it.
    repo.try_git(&["status"]);
    assert!(canary.exists(), "the canary was never armed");
}

/// Builds a tree that no porcelain would make, as one commit on the base.
fn commit_tree(inside: &Repo<'_>, entries: &[(&str, &str, &str)]) {
    use std::io::Write as _;
    let blob = inside.id("HEAD:a");
    let mut tree = Vec::new();
    for (mode, name, _) in entries {
        write!(tree, "{mode} {name}\0").unwrap();
        let hex = blob.as_str();
        tree.extend(
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()),
        );
    }
    let file = inside.world.path("tree");
    std::fs::write(&file, tree).unwrap();
    let id =
        inside.git(&["hash-object", "-t", "tree", "-w", "--literally", file.to_str().unwrap()]);
    let commit = inside.git(&["commit-tree", "-p", "HEAD", "-m", "crafted", &id]);
    inside.git(&["update-ref", "HEAD", &commit]);
}

async fn refused_tree(entries: &[(&str, &str, &str)], code: &str) {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    commit_tree(&inside, entries);
    let refs = pack(&inside, &snapshot, &["HEAD"]);
    let error =
        import(request(&checkout, &world, &snapshot, refs, inside.head())).await.unwrap_err();
    assert_eq!(error.code(), code, "{entries:?}: {:?}", error.reason);
    assert!(world.bundle_out().exists());
    assert!(!repo.try_git(&["rev-parse", "--verify", "refs/cofferdam/runs/7k2m9qxc"]));
}

#[tokio::test]
async fn trees_with_paths_that_escape_are_refused() {
    for name in [".git", ".GIT", "..", ".", "git~1", ".g\u{200c}it", "a/b"] {
        refused_tree(&[("100644", name, "")], "WORK-105").await;
    }
    for name in ["a\rb", "a\u{1b}[2Jb", ".git::$INDEX_ALLOCATION", ".git. ."] {
        let error_code = if name.starts_with('a') { "WORK-106" } else { "WORK-105" };
        refused_tree(&[("100644", name, "")], error_code).await;
    }
}

#[tokio::test]
async fn faults_of_the_persons_own_files_do_not_cost_the_runs_work() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    let text = "[submodule \"x\"]\n\tpath = ../x\n\turl = --upload-pack=touch\n";
    repo.write(".gitmodules", text);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("b", "agent\n");
    inside.commit("one");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
}

#[tokio::test]
async fn submodule_paths_that_escape_are_refused() {
    for path in ["/etc/x", "../x", "a/../../x", ".git/modules/x"] {
        let world = World::new();
        let repo = world.repo("repo", &[("a", "1\n")]);
        let (checkout, snapshot) = repo.snapshot().await;
        let inside = sandbox(&world, &snapshot);
        let text = format!("[submodule \"x\"]\n\tpath = {path}\n\turl = https://example.org/x\n");
        inside.write(".gitmodules", &text);
        inside.commit("modules");
        let error = bring_back(&checkout, &snapshot, &inside).await.unwrap_err();
        assert!(["WORK-106", "WORK-105"].contains(&error.code()), "{path}: {:?}", error.reason);
    }
}

#[tokio::test]
async fn a_submodule_url_that_is_a_command_is_refused() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write(".gitmodules", "[submodule \"x\"]\n\tpath = x\n\turl = --upload-pack=touch\n");
    inside.commit("modules");
    let error = bring_back(&checkout, &snapshot, &inside).await.unwrap_err();
    assert_eq!(error.code(), "WORK-105", "{:?}", error.reason);
}

#[tokio::test]
async fn a_tag_in_the_place_of_a_commit_is_refused() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2\n");
    inside.commit("one");
    inside.git(&["tag", "-a", "-m", "t", "t"]);
    let refs = pack(&inside, &snapshot, &["refs/tags/t"]);
    let head = refs[0].1.clone();
    let error = import(request(&checkout, &world, &snapshot, refs, head)).await.unwrap_err();
    assert_eq!(error.code(), "WORK-103", "{:?}", error.reason);
}

#[tokio::test]
async fn ref_names_that_look_like_options_come_back_as_names() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("a", "2\n");
    let side = inside.commit("side");
    inside.git(&["update-ref", "refs/heads/--upload-pack=touch", "HEAD"]);
    inside.git(&["reset", "-q", "--hard", "HEAD^"]);
    inside.write("b", "2\n");
    inside.commit("head");
    let refs = pack(&inside, &snapshot, &["HEAD", "refs/heads/--upload-pack=touch"]);
    let imported =
        import(request(&checkout, &world, &snapshot, refs, inside.head())).await.unwrap();
    assert_eq!(imported.sides[0].name, "refs/heads/--upload-pack=touch");
    assert_eq!(repo.id(&imported.sides[0].reference), side);
}
