//! The launcher: what git is given, and that nothing of it stays. A script plays git where the real
//! one would not misbehave on demand.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test where it breaks")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_git::{Git, GitEnv, GitError, Quarantine};
use tempfile::TempDir;

const SYSTEM: &str = "/usr/local/bin:/usr/bin:/bin";

/// Surroundings whose `git` is a script; it answers `version` itself.
fn scripted(dir: &Path, body: &str) -> GitEnv {
    let bin = dir.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = version ]; then echo git version 2.47.0; exit; fi\n{body}\n"
    );
    std::fs::write(bin.join("git"), script).unwrap();
    std::fs::set_permissions(bin.join("git"), std::fs::Permissions::from_mode(0o755)).unwrap();
    GitEnv::new(format!("{}:{SYSTEM}", bin.display()).as_ref(), Some(dir.join("home")), None)
}

fn quarantine(env: &GitEnv, dir: &Path) -> (Git<Quarantine>, PathBuf) {
    let bare = dir.join("bare");
    std::fs::create_dir_all(&bare).unwrap();
    (Git::for_quarantine_in(env, &bare).unwrap(), bare)
}

fn real() -> GitEnv {
    GitEnv::new(SYSTEM.as_ref(), None, None)
}

#[tokio::test]
async fn nothing_of_the_parents_environment_reaches_git() {
    let dir = TempDir::new().unwrap();
    let env = scripted(dir.path(), "env -0; exit 0");
    let (git, _) = quarantine(&env, dir.path());
    let output = git.call("status").run().await.unwrap();
    let expected = [
        "PATH",
        "HOME",
        "LC_ALL",
        "TERM",
        "GIT_TERMINAL_PROMPT",
        "GIT_ASKPASS",
        "SSH_ASKPASS",
        "GIT_SSH_COMMAND",
        "GIT_EDITOR",
        "GIT_SEQUENCE_EDITOR",
        "GIT_PAGER",
        "GIT_ADVICE",
        "GIT_OPTIONAL_LOCKS",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_NO_LAZY_FETCH",
        "GIT_ALLOW_PROTOCOL",
        "GIT_CONFIG_NOSYSTEM",
        "GIT_CONFIG_GLOBAL",
        "GIT_ATTR_NOSYSTEM",
        "GIT_DIR",
        "GIT_CONFIG_COUNT",
        // Set by the shell of the script.
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    ];
    let mut home = None;
    for record in output.records() {
        let text = String::from_utf8_lossy(record).into_owned();
        let (name, value) = text.split_once('=').unwrap();
        let known = expected.contains(&name)
            || name.starts_with("GIT_CONFIG_KEY_")
            || name.starts_with("GIT_CONFIG_VALUE_");
        assert!(known, "{name} reached git");
        if name == "HOME" {
            home = Some(value.to_owned());
        }
    }
    assert_eq!(home.as_deref(), Some("/nonexistent"), "a quarantine has no home");
}

#[tokio::test]
async fn a_hanging_git_is_killed_with_everything_that_it_started() {
    let dir = TempDir::new().unwrap();
    let pid = dir.path().join("pid");
    let body = format!("sh -c 'echo $$ > {}; exec sleep 600' & wait", pid.display());
    let env = scripted(dir.path(), &body);
    let (git, _) = quarantine(&env, dir.path());
    let error = git.call("gc").within(Duration::from_secs(1)).run().await.unwrap_err();
    assert!(matches!(error, GitError::TimedOut { subcommand: "gc", seconds: 1 }), "{error:?}");
    gone(&pid).await;
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_any_more_is_killed() {
    let dir = TempDir::new().unwrap();
    let pid = dir.path().join("pid");
    let body = format!("sh -c 'echo $$ > {}; exec sleep 600' & wait", pid.display());
    let env = scripted(dir.path(), &body);
    let (git, _) = quarantine(&env, dir.path());
    let call = git.call("gc").run();
    tokio::select! {
        result = call => panic!("{result:?}"),
        () = appears(&pid) => {}
    }
    gone(&pid).await;
}

async fn appears(pid: &Path) {
    while !std::fs::read_to_string(pid).is_ok_and(|t| t.ends_with('\n')) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the process is gone or a zombie; nextest's own bound ends a test that never does.
async fn gone(pid: &Path) {
    let pid = std::fs::read_to_string(pid).unwrap().trim().to_owned();
    let stat = PathBuf::from(format!("/proc/{pid}/stat"));
    while std::fs::read_to_string(&stat).is_ok_and(|t| !t.contains(") Z ")) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn endless_output_is_an_error_or_cut_as_asked() {
    let dir = TempDir::new().unwrap();
    let env = scripted(dir.path(), "exec cat /dev/zero");
    let (git, _) = quarantine(&env, dir.path());
    let error = git.call("log").limit(1000).run().await.unwrap_err();
    assert!(matches!(error, GitError::Overflow { limit: 1000, .. }), "{error:?}");
    let output = git.call("log").cut_at(1000).run().await.unwrap();
    assert!(output.cut);
    assert_eq!(output.stdout.len(), 1000);
}

#[tokio::test]
async fn endless_standard_error_neither_blocks_nor_fills_memory() {
    let dir = TempDir::new().unwrap();
    let env = scripted(dir.path(), "head -c 5000000 /dev/zero >&2; echo done");
    let (git, _) = quarantine(&env, dir.path());
    let output = git.call("log").run().await.unwrap();
    assert_eq!(output.line(), b"done");
    assert!(output.stderr.len() < 10_000);
}

#[tokio::test]
async fn large_input_flows_while_output_is_read() {
    let dir = TempDir::new().unwrap();
    let env = scripted(dir.path(), "exec cat");
    let (git, _) = quarantine(&env, dir.path());
    let input = vec![b'x'; 4 << 20];
    let output = git.call("cat-file").stdin(input.clone()).run().await.unwrap();
    assert!(output.stdout == input);
    let ignored = scripted(&dir.path().join("2"), "exit 0");
    let (git, _) = quarantine(&ignored, dir.path());
    git.call("cat-file").stdin(input).run().await.unwrap();
}

#[tokio::test]
async fn output_goes_to_a_file_without_a_memory_bound() {
    let dir = TempDir::new().unwrap();
    let env = scripted(dir.path(), "head -c 3000000 /dev/zero");
    let (git, _) = quarantine(&env, dir.path());
    let path = dir.path().join("out");
    let file = std::fs::File::create(&path).unwrap();
    git.call("pack-objects").limit(10).stdout_to(file).run().await.unwrap();
    assert_eq!(path.metadata().unwrap().len(), 3_000_000);
}

#[tokio::test]
async fn errors_name_subcommand_code_and_escaped_reason() {
    let dir = TempDir::new().unwrap();
    let env = scripted(dir.path(), "printf 'fatal: \\033[31mno\\nhint: x\\nmore\\n' >&2; exit 3");
    let (git, _) = quarantine(&env, dir.path());
    let error = git.call("log").run().await.unwrap_err();
    assert_eq!(error.to_string(), "git log failed (exit code 3): fatal: \\u{1b}[31mno; more");
    let killed = scripted(&dir.path().join("2"), "kill -9 $$");
    let (git, _) = quarantine(&killed, dir.path());
    let error = git.call("log").run().await.unwrap_err();
    assert_eq!(error.to_string(), "git log failed (by a signal)");
}

#[tokio::test]
async fn a_quarantine_that_borrows_objects_is_refused() {
    let dir = TempDir::new().unwrap();
    let bare = dir.path().join("bare");
    std::fs::create_dir_all(bare.join("objects/info")).unwrap();
    std::fs::write(bare.join("objects/info/alternates"), "/elsewhere\n").unwrap();
    let error = Git::for_quarantine_in(&real(), &bare).unwrap_err();
    assert_eq!(error.code(), "GIT-008");
}

#[tokio::test]
async fn a_quarantine_reaches_no_network_and_reads_files_only_when_told() {
    let dir = TempDir::new().unwrap();
    let bare = dir.path().join("bare");
    let other = dir.path().join("other");
    for path in [&bare, &other] {
        std::fs::create_dir(path).unwrap();
    }
    let git = Git::create_quarantine(&real(), &bare, "sha1").await.unwrap();
    Git::create_quarantine(&real(), &other, "sha1").await.unwrap();
    for url in [
        "https://127.0.0.1:1/x",
        "ssh://127.0.0.1/x",
        "git://127.0.0.1/x",
        "ext::true x",
        "file:///",
    ] {
        let error = git.call("fetch").args(["--end-of-options", url]).run().await.unwrap_err();
        assert!(error.stderr().contains("not allowed"), "{url}: {error}");
    }
    let call = || git.call("fetch").arg("--end-of-options").arg(&other).arg("refs/*:refs/x/*");
    assert!(call().run().await.unwrap_err().stderr().contains("not allowed"));
    call().from_local_files().run().await.unwrap();
    let ext = git.call("fetch").args(["--end-of-options", "ext::true x"]).from_local_files();
    assert!(ext.run().await.unwrap_err().stderr().contains("not allowed"));
}

#[tokio::test]
async fn a_git_inside_the_repository_is_never_started() {
    let dir = TempDir::new().unwrap();
    let env = scripted(dir.path(), "touch canary");
    let repository = dir.path();
    let git = Git::for_person_in(&env, repository).await.unwrap();
    let shown = git.call("help").run().await.unwrap();
    assert!(!shown.stdout.is_empty(), "the system's git answered");
    assert!(!repository.join("canary").exists());
}
