//! One sandbox per test, from a script to what came of it.

use std::path::{Path, PathBuf};

use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::ids::{InstanceId, RunId, TimestampMs};
use cofferdam_run::posture::LayerReport;
use cofferdam_run::spec::Resources;
use cofferdam_sandbox::native::{NativeConfig, NativeEngine};
use cofferdam_sandbox::spec::Hardening;
use cofferdam_sandbox::{Engine, RootSource, Running, SandboxExit, SandboxSpec};
use tokio::io::AsyncReadExt as _;

/// An engine with a directory and an instance of its own.
pub(crate) struct Bench {
    pub(crate) temp: tempfile::TempDir,
    pub(crate) instance: InstanceId,
}

/// What a script did.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) exit: SandboxExit,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) read_back: Vec<LayerReport>,
    pub(crate) outside: Vec<LayerReport>,
    pub(crate) teardown: TeardownOutcome,
}

pub(crate) fn small() -> Resources {
    Resources {
        memory_bytes: 256 << 20,
        pids: 64,
        cpu_millis: 1500,
        tmp_bytes: 16 << 20,
        open_files: 256,
        ..Resources::default()
    }
}

fn entropy<const N: usize>() -> [u8; N] {
    use std::io::Read as _;
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

impl Bench {
    pub(crate) fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "needs: root (this suite makes real users, mounts and cgroups)"
        );
        Self { temp: tempfile::tempdir().unwrap(), instance: InstanceId::from_entropy(entropy()) }
    }

    pub(crate) fn engine(&self, command: &[&str]) -> NativeEngine {
        engine_at(self.temp.path(), command)
    }

    pub(crate) fn spec(&self, resources: &Resources) -> SandboxSpec {
        spec_at(self.temp.path(), &self.instance, resources)
    }

    /// Starts `/bin/sh -c script`.
    pub(crate) async fn start(&self, script: &str, resources: &Resources) -> Running {
        let engine = self.engine(&["/bin/sh", "-c", script]);
        engine.prepare(&self.spec(resources)).await.unwrap().start().await.unwrap()
    }

    /// Runs `/bin/sh -c script` to its end, with nothing on its standard input.
    pub(crate) async fn run(&self, script: &str, resources: &Resources) -> Outcome {
        self.run_command(&["/bin/sh", "-c", script], &self.spec(resources)).await
    }

    pub(crate) async fn run_command(&self, command: &[&str], spec: &SandboxSpec) -> Outcome {
        self.run_engine(&self.engine(command), spec).await
    }

    pub(crate) async fn run_engine(&self, engine: &NativeEngine, spec: &SandboxSpec) -> Outcome {
        let prepared = engine.prepare(spec).await.unwrap();
        let read_back = prepared.evidence().read_back.clone();
        let mut running = prepared.start().await.unwrap();
        drop(running.stdin);
        let (mut stdout, mut stderr) = (String::new(), String::new());
        let (out, err) = tokio::join!(
            running.stdout.read_to_string(&mut stdout),
            running.stderr.read_to_string(&mut stderr)
        );
        out.unwrap();
        err.unwrap();
        let exit = running.control.wait().await;
        let teardown = running.control.teardown().await;
        assert_eq!(cgroup_directories(&self.instance), Vec::<PathBuf>::new());
        Outcome { exit, stdout, stderr, read_back, outside: running.outside, teardown }
    }
}

impl Drop for Bench {
    /// A test that fails half-way leaves sandboxes behind: they go too, as a sweep would do it.
    fn drop(&mut self) {
        let (engine, instance) = (self.engine(&[]), self.instance.clone());
        let sweep = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                for found in engine.list(&instance).await.unwrap() {
                    engine.remove(&found).await;
                }
            });
        });
        // Within a panic another one would abort the process.
        let _failed = sweep.join();
    }
}

pub(crate) fn engine_at(runs_root: &Path, command: &[&str]) -> NativeEngine {
    NativeEngine::new(NativeConfig {
        launcher: Some(PathBuf::from(LAUNCHER)),
        runs_root: runs_root.to_owned(),
    })
    .with_command(command)
}

pub(crate) const LAUNCHER: &str = env!("CARGO_BIN_EXE_cofferdam-launch");

pub(crate) fn spec_at(
    runs_root: &Path,
    instance: &InstanceId,
    resources: &Resources,
) -> SandboxSpec {
    let run = RunId::from_entropy(entropy());
    SandboxSpec {
        run_dir: runs_root.join(run.as_str()),
        run,
        instance: instance.clone(),
        expires_at: TimestampMs(1),
        hardening: Hardening::for_run(resources),
        guest_binary: PathBuf::from("/usr/bin/true"),
        root: RootSource::HostUserland,
        shell_host: false,
    }
}

/// Every cgroup directory whose path names the instance, in every hierarchy.
pub(crate) fn cgroup_directories(instance: &InstanceId) -> Vec<PathBuf> {
    fn walk(at: &Path, depth: usize, name: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(at).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                let path = entry.path();
                if path.to_string_lossy().contains(name) {
                    found.push(path.clone());
                }
                if depth > 0 {
                    walk(&path, depth - 1, name, found);
                }
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), 4, instance.as_str(), &mut found);
    found
}

/// Host processes whose command line contains `marker`.
pub(crate) fn processes_with(marker: &str) -> Vec<i32> {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(marker))
        })
        .collect()
}
