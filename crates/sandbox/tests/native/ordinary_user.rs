//! The engine as an ordinary user: a user namespace, and limits reported as missing.
//!
//! Root runs the suite, so the user's half is the test binary executed again as `nobody`.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::ids::InstanceId;
use cofferdam_run::posture::{Layer, LayerReport, LayerStatus};
use cofferdam_run::spec::Resources;
use cofferdam_sandbox::Engine as _;
use cofferdam_sandbox::native::{NativeConfig, NativeEngine};
use tokio::io::AsyncReadExt as _;

use crate::harness::{Bench, LAUNCHER, small, spec_at};

const USER_ROLE: &str = "COFFERDAM_TEST_USER_ROLE";
const NOBODY: u32 = 65534;

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "re-executes the test binary as an ordinary user")]
async fn ordinary_user_gets_a_sandbox_and_is_told_what_is_missing() {
    let bench = Bench::new();
    let home = bench.temp.path();
    std::fs::set_permissions(home, std::fs::Permissions::from_mode(0o755)).unwrap();
    // The build's own directory may be closed to others.
    let copy = |from: &Path, name: &str| {
        let to = home.join(name);
        std::fs::copy(from, &to).unwrap();
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755)).unwrap();
        to
    };
    copy(Path::new(LAUNCHER), "launch");
    let program = copy(&std::env::current_exe().unwrap(), "host");
    let runs = home.join("runs");
    std::fs::create_dir(&runs).unwrap();
    std::os::unix::fs::chown(&runs, Some(NOBODY), Some(NOBODY)).unwrap();

    let status = std::process::Command::new(program)
        .args(["--exact", "ordinary_user::host_as_an_ordinary_user", "--nocapture"])
        .env(USER_ROLE, home)
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(std::fs::read_dir(&runs).unwrap().count(), 0);
}

/// Not a fact of its own: what the test above runs as `nobody`.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the role is handed to the re-executed test binary")]
async fn host_as_an_ordinary_user() {
    let Ok(home) = std::env::var(USER_ROLE) else { return };
    let home = PathBuf::from(home);
    assert!(!rustix::process::geteuid().is_root());
    inside_is_sealed(&home).await;
    fork_loop_is_stopped(&home).await;
    closed_work_is_saved_and_harmless(&home).await;
    probe_names_the_way_out(&home).await;
    let spec = spec_at(&home.join("runs"), &InstanceId::from_entropy([13; 10]), &small());
    crate::second_net::shell_is_kept_apart(engine(&home, ""), spec).await;
}

fn engine(home: &Path, script: &str) -> NativeEngine {
    NativeEngine::new(NativeConfig {
        launcher: Some(home.join("launch")),
        runs_root: home.join("runs"),
    })
    .with_command(&["/bin/sh", "-c", script])
}

/// Runs a script; gives back its output and what was reported.
async fn run(home: &Path, script: &str, resources: &Resources) -> (String, Vec<LayerReport>) {
    let instance = InstanceId::from_entropy([11; 10]);
    let spec = spec_at(&home.join("runs"), &instance, resources);
    let prepared = engine(home, script).prepare(&spec).await.unwrap();
    let mut layers = prepared.evidence().read_back.clone();
    let mut running = prepared.start().await.unwrap();
    drop(running.stdin);
    let mut out = String::new();
    running.stdout.read_to_string(&mut out).await.unwrap();
    running.control.wait().await;
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
    layers.append(&mut running.outside);
    (out, layers)
}

async fn inside_is_sealed(home: &Path) {
    let script = "id -u; id -g; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | cut -f2 | sort -u | tr '\\n' ' '; \
                  echo; ( : > /x ) 2>/dev/null || echo refused; [ -e /root ] || echo hidden; \
                  echo x > /work/f && mkdir -p -m 0 /work/a/b && chmod 0 /work/a && echo written";
    let (out, layers) = run(home, script, &small()).await;
    assert_eq!(out, "10001\n10001\n0000000000000000 1 2 \nrefused\nhidden\nwritten\n");
    for report in layers {
        match report.layer {
            Layer::MemoryLimit | Layer::CpuLimit => {
                assert!(matches!(report.status, LayerStatus::Absent { .. }), "{report:?}");
            }
            Layer::PidsLimit => {
                assert!(matches!(report.status, LayerStatus::Degraded { .. }), "{report:?}");
            }
            _ => assert!(report.status.is_enforced(), "{report:?}"),
        }
    }
}

async fn closed_work_is_saved_and_harmless(home: &Path) {
    let instance = InstanceId::from_entropy([12; 10]);
    let spec = spec_at(&home.join("runs"), &instance, &small());
    let script = "mkdir -p /work/repo/a/.git && echo x > /work/repo/a/.git/f && \
                  chmod 0 /work/repo/a/.git /work/repo/a /work/repo";
    let prepared = engine(home, script).prepare(&spec).await.unwrap();
    let mut running = prepared.start().await.unwrap();
    assert_eq!(running.control.wait().await.code, Some(0));
    // The place of the runs is the user's own.
    let kept = tempfile::tempdir_in(home.join("runs")).unwrap();
    let to = kept.path().join("work");
    assert!(running.control.salvage(&to).await.unwrap());
    assert_eq!(std::fs::read(to.join("a/git-of-the-sandbox/f")).unwrap(), b"x\n");
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

async fn fork_loop_is_stopped(home: &Path) {
    let resources = Resources { pids: 20, ..small() };
    let script = r#"perl -e '
        for (1..100) { $p = fork; if (!defined $p) { print "stopped\n"; last } if (!$p) { sleep 60; exit } }
        kill 9, -1'"#;
    let (out, _) = run(home, script, &resources).await;
    assert_eq!(out, "stopped\n");
}

async fn probe_names_the_way_out(home: &Path) {
    let report = engine(home, "").probe().await;
    assert!(report.usable, "{report:?}");
    assert_eq!(report.problems.len(), 3, "{report:?}");
    assert!(report.problems.iter().all(|p| p.fix.contains("Delegate=yes")), "{report:?}");
}
