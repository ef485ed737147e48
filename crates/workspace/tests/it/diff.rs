//! What a run changed, as a reviewer sees it.

use cofferdam_workspace::{Change, DiffForm, DiffRequest, Risk, diff};

use crate::support::{World, bring_back, run_id, sandbox};

#[tokio::test]
async fn risky_files_come_first_and_nothing_can_steer_the_terminal() {
    let world = World::new();
    let repo = world.repo(
        "repo",
        &[("a", "1\n2\n"), ("gone", "x\n"), ("old", "long enough\nto be a rename\nindeed\n")],
    );
    // A driver of the person's that content could select.
    let canary = world.path("canary");
    repo.git(&["config", "diff.x.textconv", &format!("touch {};cat", canary.display())]);
    repo.git(&["config", "diff.x.command", &format!("touch {}", canary.display())]);
    repo.git(&["config", "diff.external", &format!("touch {}", canary.display())]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write(".gitattributes", "* diff=x\n* -diff\n");
    inside.write("a", "1\n3\u{1b}[2J\u{202e}\n");
    inside.remove("gone");
    inside.git(&["mv", "old", "new\u{202e}name"]);
    inside.write(".github/workflows/ci.yml", "on: push\n");
    inside.script("tool", "#!/bin/sh\n");
    inside.write_bytes("blob".as_ref(), &[0, 1, 2, 3]);
    std::os::unix::fs::symlink("/etc/passwd", inside.dir.join("link")).unwrap();
    inside.commit("changes");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    // The run's attributes must not count even when they are in the working tree.
    repo.write(".gitattributes", "* diff=x\n* -diff\n");
    let request = DiffRequest { base: snapshot.base.clone(), form: DiffForm::Patch };
    let found = diff(&checkout, &run_id(), request).await.unwrap();
    assert_eq!(found.head, inside.head());
    let paths: Vec<&str> = found.files.iter().map(|f| f.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            ".github/workflows/ci.yml",
            ".gitattributes",
            "link",
            "tool",
            "blob",
            "a",
            "gone",
            "new\\u{202e}name"
        ]
    );
    assert_eq!(found.files[0].risks, [Risk::Workflow]);
    assert_eq!(found.files[2].risks, [Risk::Symlink]);
    assert_eq!(found.files[4].risks, [Risk::Binary]);
    assert_eq!(found.files[6].change, Change::Deleted);
    assert_eq!(found.files[7].change, Change::Renamed);
    assert_eq!(found.files[7].from.as_deref(), Some("old"));
    assert_eq!((found.files[5].added, found.files[5].removed), (Some(1), Some(1)));
    let patch = found.patch.unwrap();
    assert!(patch.contains("+3\\u{1b}[2J\\u{202e}"), "{patch}");
    assert!(!patch.chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
    assert!(!found.patch_cut);
    assert!(!canary.exists());
}

#[tokio::test]
async fn a_long_patch_is_cut_loudly() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    let (checkout, snapshot) = repo.snapshot().await;
    let inside = sandbox(&world, &snapshot);
    inside.write("big", &"0123456789abcde\n".repeat(600_000));
    inside.commit("big");
    bring_back(&checkout, &snapshot, &inside).await.unwrap();
    let request = DiffRequest { base: snapshot.base, form: DiffForm::Patch };
    let found = diff(&checkout, &run_id(), request).await.unwrap();
    assert!(found.patch_cut);
    assert!(found.patch.unwrap().len() <= cofferdam_workspace::MAX_PATCH_BYTES);
    assert_eq!(found.added, 600_000);
}

#[tokio::test]
async fn an_unknown_run_and_an_unknown_base_have_codes() {
    let world = World::new();
    let repo = world.repo("repo", &[("a", "1\n")]);
    let checkout = repo.open().await;
    let request = DiffRequest { base: repo.head(), form: DiffForm::Files };
    let error = diff(&checkout, &run_id(), request).await.unwrap_err();
    assert_eq!(error.code(), "WORK-012", "{error}");
    repo.git(&["update-ref", "refs/cofferdam/runs/7k2m9qxc", "HEAD"]);
    let request = DiffRequest { base: "1".repeat(40).parse().unwrap(), form: DiffForm::Files };
    let error = diff(&checkout, &run_id(), request).await.unwrap_err();
    assert_eq!(error.code(), "WORK-013", "{error}");
}
