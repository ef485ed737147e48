//! What the tests of the Docker engine share: an engine, an instance of their own, and a way to run a
//! script in a sandbox. A missing engine is a failure, never a skip.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker;
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::ids::{InstanceId, RunId, TimestampMs};
use cofferdam_run::posture::{Layer, LayerReport};
use cofferdam_run::spec::Resources;
use cofferdam_sandbox::docker::{Base, Behind, DockerConfig, DockerEngine};
use cofferdam_sandbox::spec::Hardening;
use cofferdam_sandbox::{Control, Engine, Evidence, RootSource, SandboxExit, SandboxSpec};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// No single wait of a test takes longer; a hang is a failure with a name.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Address of the engine under test.
pub(crate) fn host() -> String {
    #[expect(clippy::disallowed_methods, reason = "tests are told where the engine is")]
    std::env::var("COFFERDAM_TEST_DOCKER_HOST").unwrap_or_else(|_| {
        panic!(
            "COFFERDAM_TEST_DOCKER_HOST is not set: start an engine with `cargo xtask engine up` and set it to \
             the DOCKER_HOST that it prints"
        )
    })
}

/// Kept between tests, so that the host's files are read once.
pub(crate) fn state_dir() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("docker-state");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

pub(crate) fn config() -> DockerConfig {
    DockerConfig {
        host: Some(host()),
        base: Base::HostFiles,
        state_dir: state_dir(),
        behind: Behind::Docker,
    }
}

fn entropy<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

pub(crate) fn fresh_instance() -> InstanceId {
    InstanceId::from_entropy(entropy())
}

pub(crate) fn fresh_run() -> RunId {
    RunId::from_entropy(entropy())
}

/// An engine with an instance of its own.
pub(crate) struct Lab {
    pub(crate) engine: DockerEngine,
    pub(crate) docker: Docker,
    pub(crate) instance: InstanceId,
    pub(crate) dir: tempfile::TempDir,
}

/// What a script in a sandbox left behind.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit: SandboxExit,
    pub(crate) evidence: Evidence,
}

impl Lab {
    /// `script` takes the guest's place.
    pub(crate) async fn shell(script: &str) -> Self {
        Self::with(&["/bin/sh", "-c", script]).await
    }

    pub(crate) async fn with(entrypoint: &[&str]) -> Self {
        let engine = DockerEngine::connect(config()).await.unwrap().with_entrypoint(entrypoint);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("guest"), b"stands in for the guest").unwrap();
        Self { engine, docker: client(), instance: fresh_instance(), dir }
    }

    pub(crate) fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            run: fresh_run(),
            instance: self.instance.clone(),
            expires_at: TimestampMs(4_000_000_000_000),
            hardening: Hardening::for_run(&small()),
            guest_binary: self.dir.path().join("guest"),
            run_dir: self.dir.path().join("run"),
            root: RootSource::HostUserland,
            shell_host: false,
        }
    }

    /// Runs to the end with an empty input and proves the removal.
    pub(crate) async fn run(&self, resources: Resources) -> Outcome {
        let spec = SandboxSpec { hardening: Hardening::for_run(&resources), ..self.spec() };
        let prepared = self.engine.prepare(&spec).await.unwrap();
        let evidence = prepared.evidence().clone();
        let mut running = prepared.start().await.unwrap();
        running.stdin.shutdown().await.unwrap();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let read = async {
            tokio::join!(
                running.stdout.read_to_end(&mut stdout),
                running.stderr.read_to_end(&mut stderr)
            )
        };
        let (out, err) =
            tokio::time::timeout(PATIENCE, read).await.expect("the script did not end");
        out.unwrap();
        err.unwrap();
        let exit = ended(&mut *running.control).await;
        assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
        Outcome {
            stdout: String::from_utf8(stdout).unwrap(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            exit,
            evidence,
        }
    }

    /// Containers and volumes that carry this label value.
    pub(crate) async fn labelled(&self, label: &str) -> (usize, usize) {
        labelled(&self.docker, label).await
    }
}

pub(crate) async fn ended(control: &mut dyn Control) -> SandboxExit {
    tokio::time::timeout(PATIENCE, control.wait()).await.expect("the sandbox did not end")
}

/// A second client, to look at the engine independently of the code under test.
pub(crate) fn client() -> Docker {
    let host = host();
    Docker::connect_with_unix(
        host.strip_prefix("unix://").expect("tests use a socket"),
        120,
        &bollard::ClientVersion { major_version: 1, minor_version: 41 },
    )
    .unwrap()
}

pub(crate) async fn labelled(docker: &Docker, label: &str) -> (usize, usize) {
    use bollard::query_parameters::{ListContainersOptionsBuilder, ListVolumesOptionsBuilder};
    let filters = std::collections::HashMap::from([("label".to_owned(), vec![label.to_owned()])]);
    let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
    let containers = docker.list_containers(Some(options)).await.unwrap().len();
    let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
    let volumes =
        docker.list_volumes(Some(options)).await.unwrap().volumes.unwrap_or_default().len();
    (containers, volumes)
}

/// Limits that any machine has.
pub(crate) fn small() -> Resources {
    Resources {
        memory_bytes: 256 << 20,
        pids: 64,
        cpu_millis: 1000,
        tmp_bytes: 16 << 20,
        open_files: 1024,
        ..Resources::default()
    }
}

pub(crate) fn not_enforced(reports: &[LayerReport]) -> Vec<&LayerReport> {
    reports.iter().filter(|report| !report.status.is_enforced()).collect()
}

pub(crate) fn layers(reports: &[LayerReport]) -> Vec<Layer> {
    reports.iter().map(|report| report.layer).collect()
}
