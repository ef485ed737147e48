//! From creation to proven removal, and what must not be touched. needs: docker

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

mod docker_support;
mod trap;

use std::time::Duration;

use cofferdam_run::engine::EngineKind;
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::spec::Resources;
use cofferdam_sandbox::docker::{Base, Behind, DockerConfig, DockerEngine};
use cofferdam_sandbox::spec::Hardening;
use cofferdam_sandbox::{Engine as _, RootSource, SandboxError, SandboxSpec};
use docker_support::{Lab, config, ended, fresh_instance, small, state_dir};
use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};

fn label(spec: &SandboxSpec) -> String {
    format!("cofferdam.run={}", spec.run)
}

#[tokio::test]
async fn teardown_leaves_neither_container_nor_volume() {
    let lab = Lab::shell("sleep 600").await;
    for started in [false, true] {
        let spec = lab.spec();
        let prepared = lab.engine.prepare(&spec).await.unwrap();
        assert_eq!(lab.labelled(&label(&spec)).await, (1, 1));
        let outcome = if started {
            prepared.start().await.unwrap().control.teardown().await
        } else {
            prepared.teardown().await
        };
        assert_eq!(outcome, TeardownOutcome::Removed);
        assert_eq!(lab.labelled(&label(&spec)).await, (0, 0));
    }
}

#[tokio::test]
async fn a_killed_sandbox_ends_with_the_signal() {
    let lab = Lab::shell("sleep 600").await;
    let mut running = lab.engine.prepare(&lab.spec()).await.unwrap().start().await.unwrap();
    running.control.kill().await;
    let exit = ended(&mut *running.control).await;
    assert_eq!((exit.code, exit.signal, exit.oom_killed), (None, Some(9), false));
    running.control.kill().await;
    assert_eq!(ended(&mut *running.control).await, exit);
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn a_wait_that_was_given_up_can_be_taken_up_again() {
    let lab = Lab::shell("cat > /dev/null; exit 5").await;
    let mut running = lab.engine.prepare(&lab.spec()).await.unwrap().start().await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(200), running.control.wait()).await;
    assert!(early.is_err());
    drop(running.stdin);
    assert_eq!(ended(&mut *running.control).await.code, Some(5));
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn what_a_killed_host_left_is_found_and_removed() {
    let lab = Lab::shell("sleep 600").await;
    let (spec, only_made) = (lab.spec(), lab.spec());
    // A host that dies runs no destructor.
    std::mem::forget(lab.engine.prepare(&spec).await.unwrap().start().await.unwrap());
    std::mem::forget(lab.engine.prepare(&only_made).await.unwrap());

    let next = DockerEngine::connect(config()).await.unwrap();
    let found = next.list(&lab.instance).await.unwrap();
    assert_eq!(found.len(), 2);
    for entry in &found {
        assert_eq!(entry.running, entry.run == spec.run);
        assert_eq!(entry.expires_at, spec.expires_at);
        assert_eq!(entry.instance, lab.instance);
        assert_eq!(next.remove(entry).await, TeardownOutcome::Removed);
        assert_eq!(next.remove(entry).await, TeardownOutcome::AlreadyGone);
    }
    assert_eq!(next.list(&lab.instance).await.unwrap(), []);
    assert_eq!(lab.labelled(&format!("cofferdam.instance={}", lab.instance)).await, (0, 0));
}

#[tokio::test]
async fn a_volume_without_its_container_is_found_and_removed() {
    let lab = Lab::shell("true").await;
    let spec = lab.spec();
    std::mem::forget(lab.engine.prepare(&spec).await.unwrap());
    lab.docker.remove_container(&format!("cofferdam-{}", spec.run), None).await.unwrap();
    let found = lab.engine.list(&lab.instance).await.unwrap();
    assert_eq!(found.len(), 1);
    assert!(!found[0].running);
    assert_eq!(lab.engine.remove(&found[0]).await, TeardownOutcome::Removed);
    assert_eq!(lab.labelled(&label(&spec)).await, (0, 0));
}

#[tokio::test]
async fn sandboxes_of_another_instance_are_neither_listed_nor_removed() {
    let (mine, other) = (Lab::shell("sleep 600").await, Lab::shell("sleep 600").await);
    let spec = other.spec();
    let theirs = other.engine.prepare(&spec).await.unwrap().start().await.unwrap();
    assert_eq!(mine.engine.list(&mine.instance).await.unwrap(), []);
    // Even when somebody claims that it is ours.
    let mut claim = other.engine.list(&other.instance).await.unwrap().remove(0);
    claim.instance = mine.instance.clone();
    assert_eq!(mine.engine.remove(&claim).await, TeardownOutcome::AlreadyGone);
    assert_eq!(other.labelled(&label(&spec)).await, (1, 1));
    assert_eq!(theirs.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn a_second_sandbox_for_the_same_run_is_refused_and_the_first_stays() {
    let lab = Lab::shell("sleep 600").await;
    let spec = lab.spec();
    let first = lab.engine.prepare(&spec).await.unwrap();
    let refused = lab.engine.prepare(&spec).await.err().unwrap();
    assert_eq!(refused.code(), "SANDBOX-004");
    assert_eq!(lab.labelled(&label(&spec)).await, (1, 1));
    assert_eq!(first.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_a_coded_error_and_leaves_nothing() {
    let lab = Lab::shell("true").await;
    let spec = SandboxSpec {
        hardening: Hardening::for_run(&Resources { open_files: 1 << 40, ..small() }),
        ..lab.spec()
    };
    // More open files than any kernel grants: the engine accepts the container and cannot start it.
    let error = match lab.engine.prepare(&spec).await {
        Ok(prepared) => prepared.start().await.err().unwrap(),
        Err(error) => error,
    };
    assert!(matches!(error.code(), "SANDBOX-005" | "SANDBOX-007"), "{error}");
    assert_eq!(lab.labelled(&label(&spec)).await, (0, 0));
}

#[tokio::test]
async fn a_missing_guest_binary_or_a_directory_root_is_refused_before_anything_exists() {
    let lab = Lab::shell("true").await;
    let missing = SandboxSpec { guest_binary: lab.dir.path().join("none"), ..lab.spec() };
    assert_eq!(lab.engine.prepare(&missing).await.err().unwrap().code(), "SANDBOX-003");
    let directory = SandboxSpec { root: RootSource::Directory("/srv".into()), ..lab.spec() };
    assert_eq!(lab.engine.prepare(&directory).await.err().unwrap().code(), "SANDBOX-002");
    for spec in [missing, directory] {
        assert_eq!(lab.labelled(&label(&spec)).await, (0, 0));
    }
}

#[tokio::test]
async fn the_work_of_a_killed_run_can_be_brought_out() {
    let script = "mkdir -p /work/repo/sub && cd /work/repo && echo kept > sub/file && \
                  ln -s /etc/passwd link && ln sub/file hard && echo ready && sleep 600";
    let lab = Lab::shell(script).await;
    let mut running = lab.engine.prepare(&lab.spec()).await.unwrap().start().await.unwrap();
    let mut ready = [0; 6];
    running.stdout.read_exact(&mut ready).await.unwrap();
    running.control.kill().await;
    ended(&mut *running.control).await;
    let to = lab.dir.path().join("salvaged");
    assert!(running.control.salvage(&to).await.unwrap());
    assert_eq!(std::fs::read_to_string(to.join("sub/file")).unwrap(), "kept\n");
    assert_eq!(std::fs::read_to_string(to.join("hard")).unwrap(), "kept\n");
    assert_eq!(std::fs::read_link(to.join("link")).unwrap(), std::path::Path::new("/etc/passwd"));
    assert!(!to.with_extension("incomplete").exists());
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn a_salvaged_repository_runs_nothing_on_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let canary = dir.path().join("canary");
    let lab = Lab::shell(&trap::script(&canary)).await;
    let mut running = lab.engine.prepare(&lab.spec()).await.unwrap().start().await.unwrap();
    assert_eq!(ended(&mut *running.control).await.code, Some(0));
    let work = dir.path().join("work");
    assert!(running.control.salvage(&work).await.unwrap());
    assert!(!trap::springs(&work, &canary));
    assert!(dir.path().join("README-salvage.txt").exists());
    // Positive control: with its names back, the same work does run something.
    let control = dir.path().join("control");
    trap::copy(&work, &control);
    trap::rearm(&control);
    assert!(trap::springs(&control, &canary), "the trap does not work");
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn work_beside_a_link_in_the_repositorys_place_is_brought_out() {
    let script = "mkdir /work/repo2 && echo kept > /work/repo2/f && ln -s /etc /work/repo";
    let lab = Lab::shell(script).await;
    let mut running = lab.engine.prepare(&lab.spec()).await.unwrap().start().await.unwrap();
    ended(&mut *running.control).await;
    let to = lab.dir.path().join("salvaged");
    assert!(running.control.salvage(&to).await.unwrap());
    assert_eq!(std::fs::read_to_string(to.join("repo2/f")).unwrap(), "kept\n");
    assert_eq!(std::fs::read_link(to.join("repo")).unwrap(), std::path::Path::new("/etc"));
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn a_run_without_a_repository_has_nothing_to_bring_out() {
    let lab = Lab::shell("true").await;
    let mut running = lab.engine.prepare(&lab.spec()).await.unwrap().start().await.unwrap();
    ended(&mut *running.control).await;
    let to = lab.dir.path().join("salvaged");
    assert!(!running.control.salvage(&to).await.unwrap());
    assert!(!to.exists());
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

fn at(host: String) -> DockerConfig {
    DockerConfig {
        host: Some(host),
        base: Base::HostFiles,
        state_dir: state_dir(),
        behind: Behind::Docker,
    }
}

#[tokio::test]
async fn an_absent_engine_is_a_coded_error_that_names_the_socket_and_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("none.sock");
    let dead = dir.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    for path in [socket, dead] {
        let error =
            DockerEngine::connect(at(format!("unix://{}", path.display()))).await.unwrap_err();
        assert_eq!(error.code(), "SANDBOX-001");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        assert!(error.hint().contains("systemctl start docker"), "{}", error.hint());
        let report = DockerEngine::diagnose(at(format!("unix://{}", path.display()))).await;
        assert!(!report.usable);
        assert_eq!(report.problems.len(), 1);
    }
    let error = DockerEngine::connect(at("tcp://192.0.2.1:2375".to_owned())).await.unwrap_err();
    assert_eq!(error.code(), "SANDBOX-001");
}

#[tokio::test]
async fn the_report_names_version_and_layers() {
    let engine = DockerEngine::connect(config()).await.unwrap();
    let report = engine.probe().await;
    assert_eq!(report.kind, EngineKind::Docker);
    assert!(report.usable);
    assert!(report.version.contains("API 1."), "{}", report.version);
    assert_eq!(docker_support::not_enforced(&report.layers), Vec::<&_>::new());
}

/// A door to the engine that can be shut: requests then wait for ever.
async fn door(path: &std::path::Path) -> tokio::sync::watch::Sender<bool> {
    let (shut, is_shut) = tokio::sync::watch::channel(false);
    let listener = UnixListener::bind(path).unwrap();
    let upstream = docker_support::host().strip_prefix("unix://").unwrap().to_owned();
    tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            if *is_shut.borrow() {
                held.push(near);
                continue;
            }
            let upstream = upstream.clone();
            tokio::spawn(async move {
                let mut far = UnixStream::connect(upstream).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    shut
}

#[tokio::test]
async fn a_hung_engine_does_not_strand_the_run_and_what_is_left_is_named() {
    let lab = Lab::shell("sleep 600").await;
    let socket = lab.dir.path().join("door.sock");
    let shut = door(&socket).await;
    let engine = DockerEngine::connect(at(format!("unix://{}", socket.display())))
        .await
        .unwrap()
        .with_entrypoint(&["/bin/sleep", "600"]);
    let spec = SandboxSpec { instance: fresh_instance(), ..lab.spec() };
    let running = engine.prepare(&spec).await.unwrap().start().await.unwrap();
    engine.wait_at_most(Duration::from_millis(500));
    shut.send(true).unwrap();
    let outcome =
        tokio::time::timeout(docker_support::PATIENCE, running.control.teardown()).await.unwrap();
    let TeardownOutcome::Failed { detail } = outcome else { panic!("{outcome:?}") };
    assert!(detail.contains(&format!("cofferdam-{}-work", spec.run)), "{detail}");
    assert!(detail.contains("no answer within 500 ms"), "{detail}");
    let error = engine.list(&spec.instance).await.unwrap_err();
    assert!(matches!(error, SandboxError::Timeout { .. }), "{error}");
    // As soon as it answers again, a sweep removes it.
    let found = lab.engine.list(&spec.instance).await.unwrap();
    assert_eq!(lab.engine.remove(&found[0]).await, TeardownOutcome::Removed);
}
