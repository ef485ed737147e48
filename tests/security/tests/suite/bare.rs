//! The attacker as the first program of a sandbox, on one engine, with a hardening that the test may
//! have weakened.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::ids::{InstanceId, RunId, TimestampMs};
use cofferdam_run::spec::Resources;
use cofferdam_sandbox::docker::{Base, Behind, DockerConfig, DockerEngine};
use cofferdam_sandbox::native::{NativeConfig, NativeEngine};
use cofferdam_sandbox::spec::Hardening;
use cofferdam_sandbox::{Engine, RootSource, SandboxSpec};
use cofferdam_security::Place;
use tokio::io::AsyncReadExt as _;

use crate::machine::Machine;
use crate::report::{Report, expected_on};
use crate::targets::Targets;
use crate::world::{EngineName, bin_dir, docker_host};

/// Longest life of one sandbox of this suite.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is done to the work volume of a prepared sandbox before it starts.
pub(crate) type Plant = fn(&Path);

fn entropy<const N: usize>() -> [u8; N] {
    use std::io::Read as _;
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

/// Runs the selected attempts.
pub(crate) fn attack(
    engine: EngineName,
    hardening: Hardening,
    selected: &[&str],
    plant: Option<Plant>,
) -> Report {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let before = Machine::look();
    let report = runtime.block_on(attack_async(engine, hardening, selected, plant));
    assert_eq!(before, Machine::look(), "the machine is not as it was");
    report
}

async fn attack_async(
    name: EngineName,
    hardening: Hardening,
    selected: &[&str],
    plant: Option<Plant>,
) -> Report {
    let targets = Targets::new();
    let dir = tempfile::Builder::new().prefix("cofferdam-bare-").tempdir().unwrap();
    let mut command = vec!["/cofferdam/guest".to_owned()];
    command.extend(targets.parameters());
    command.extend(selected.iter().map(|word| (*word).to_owned()));
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let engine: Box<dyn Engine> = match name {
        EngineName::Native => Box::new(
            NativeEngine::new(NativeConfig {
                launcher: Some(bin_dir().join("cofferdam-launch")),
                runs_root: dir.path().to_owned(),
            })
            .with_command(&words),
        ),
        EngineName::Docker => {
            let config = DockerConfig {
                host: Some(docker_host()),
                base: Base::HostFiles,
                state_dir: state_dir(),
                behind: Behind::Docker,
            };
            Box::new(DockerEngine::connect(config).await.unwrap().with_entrypoint(&words))
        }
    };
    let (run, instance) = (RunId::from_entropy(entropy()), InstanceId::from_entropy(entropy()));
    let spec = SandboxSpec {
        run_dir: dir.path().join(run.as_str()),
        run,
        instance: instance.clone(),
        expires_at: TimestampMs(4_000_000_000_000),
        hardening,
        guest_binary: bin_dir().join("cofferdam-attacker"),
        root: RootSource::HostUserland,
        shell_host: false,
    };
    let prepared = engine.prepare(&spec).await.unwrap();
    if let Some(plant) = plant {
        plant(&spec.run_dir.join("work"));
    }
    let mut running = prepared.start().await.unwrap();
    drop(running.stdin);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let read = async {
        let limit = 4 << 20;
        let (mut stdout, mut stderr) = (running.stdout.take(limit), running.stderr.take(limit));
        tokio::join!(stdout.read_to_end(&mut out), stderr.read_to_end(&mut err))
    };
    let in_time = tokio::time::timeout(PATIENCE, read).await.is_ok();
    if !in_time {
        running.control.kill().await;
    }
    running.control.wait().await;
    let gone = running.control.teardown().await;
    assert_eq!(gone, TeardownOutcome::Removed);
    assert_eq!(engine.list(&instance).await.unwrap(), Vec::new());
    assert!(in_time, "the attacker did not end");
    Report::parse(&format!(
        "{}\n{}",
        String::from_utf8_lossy(&out),
        String::from_utf8_lossy(&err).replace("@attack", "(stderr) attack")
    ))
}

/// Shared by the tests, so that an image is built once.
fn state_dir() -> PathBuf {
    std::env::temp_dir().join("cofferdam-security-images")
}

/// Limits so tight that a small attempt meets them.
pub(crate) fn tight() -> Hardening {
    let mut hardening = Hardening::for_run(&Resources {
        memory_bytes: 64 << 20,
        pids: 48,
        cpu_millis: 1500,
        tmp_bytes: 8 << 20,
        open_files: 256,
        ..Resources::default()
    });
    for tmpfs in &mut hardening.tmpfs {
        tmpfs.inodes = 1500;
        tmpfs.size_bytes = tmpfs.size_bytes.min(8 << 20);
    }
    hardening
}

/// Limits of an ordinary small run.
pub(crate) fn ordinary() -> Hardening {
    Hardening::for_run(&Resources {
        memory_bytes: 512 << 20,
        pids: 128,
        cpu_millis: 1500,
        tmp_bytes: 32 << 20,
        open_files: 1024,
        ..Resources::default()
    })
}

fn names(engine: EngineName, place: Place) -> impl Iterator<Item = &'static str> {
    expected_on(engine).filter(move |attempt| attempt.place == place).map(|attempt| attempt.name)
}

fn every_attempt_is_refused_to_the_first_program(engine: EngineName) {
    let report = attack(engine, ordinary(), &["anywhere"], None).excusing(engine);
    report.assert_all_refused(names(engine, Place::Anywhere));
}

fn exhaustion_meets_its_limit(engine: EngineName) {
    attack(engine, tight(), &["tight"], None).assert_all_refused(names(engine, Place::Tight));
}

mod native {
    use super::EngineName::Native;

    #[test]
    fn every_attempt_is_refused_to_the_first_program() {
        super::every_attempt_is_refused_to_the_first_program(Native);
    }

    #[test]
    fn exhaustion_meets_its_limit() {
        super::exhaustion_meets_its_limit(Native);
    }

    #[test]
    fn what_the_host_planted_is_dead() {
        let report =
            super::attack(Native, super::ordinary(), &["planted"], Some(crate::controls::plant));
        report.assert_all_refused(super::names(Native, cofferdam_security::Place::Planted));
    }
}

mod docker {
    use super::EngineName::Docker;

    #[test]
    fn every_attempt_is_refused_to_the_first_program() {
        super::every_attempt_is_refused_to_the_first_program(Docker);
    }

    #[test]
    fn exhaustion_meets_its_limit() {
        super::exhaustion_meets_its_limit(Docker);
    }
}
