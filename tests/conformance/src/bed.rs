//! A bed for sandboxes: an instance of its own, a directory of its own, and what came of a script.
//!
//! Whatever a failed test leaves is swept when its bed is dropped.

use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_run::fact::{ResourceUse, TeardownOutcome};
use cofferdam_run::ids::{InstanceId, RunId, TimestampMs};
use cofferdam_run::posture::LayerReport;
use cofferdam_run::spec::Resources;
use cofferdam_sandbox::spec::Hardening;
use cofferdam_sandbox::{Control, Engine, RootSource, Running, SandboxExit, SandboxSpec};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::under::{Under, binary};

/// No single wait of a test takes longer; a hang is a failure with a name.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Limits that any machine has and every engine works with.
#[must_use]
pub fn small() -> Resources {
    Resources {
        memory_bytes: 256 << 20,
        pids: 300,
        cpu_millis: 1000,
        tmp_bytes: 16 << 20,
        open_files: 1024,
        ..Resources::default()
    }
}

/// A place to run sandboxes in.
#[derive(Debug)]
pub struct Bed {
    /// The engine under test.
    pub under: Under,
    /// Its own instance.
    pub instance: InstanceId,
    /// Directory of its runs.
    pub dir: tempfile::TempDir,
}

/// What a script left behind.
#[derive(Debug)]
pub struct Ran {
    /// How it ended.
    pub exit: SandboxExit,
    /// Its output.
    pub stdout: String,
    /// Its error text.
    pub stderr: String,
    /// What the engine showed before the start.
    pub read_back: Vec<LayerReport>,
    /// What this host saw of it.
    pub outside: Vec<LayerReport>,
    /// What it used.
    pub usage: ResourceUse,
}

fn entropy<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

impl Default for Bed {
    fn default() -> Self {
        Self::new()
    }
}

impl Bed {
    /// A fresh one.
    ///
    /// # Panics
    /// When there is no room for its directory.
    #[must_use]
    pub fn new() -> Self {
        Self {
            under: Under::test(),
            instance: InstanceId::from_entropy(entropy()),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// The engine, with `command` in the guest's place.
    pub async fn engine(&self, command: &[&str]) -> Box<dyn Engine> {
        self.under.engine(self.dir.path(), command).await
    }

    /// The engine, with a script in the guest's place.
    pub async fn shell(&self, script: &str) -> Box<dyn Engine> {
        self.engine(&["/bin/sh", "-c", script]).await
    }

    /// A specification of its own run.
    #[must_use]
    pub fn spec(&self, resources: &Resources) -> SandboxSpec {
        let run = RunId::from_entropy(entropy());
        SandboxSpec {
            run_dir: self.dir.path().join(run.as_str()),
            run,
            instance: self.instance.clone(),
            expires_at: TimestampMs(4_000_000_000_000),
            hardening: Hardening::for_run(resources),
            // Never started: a command takes its place.
            guest_binary: PathBuf::from("/usr/bin/true"),
            shell_host: false,
            root: RootSource::HostUserland,
        }
    }

    /// The same with the real guest.
    #[must_use]
    pub fn guest_spec(&self, resources: &Resources) -> SandboxSpec {
        SandboxSpec { guest_binary: binary("cofferdam-guest"), ..self.spec(resources) }
    }

    /// Starts a script.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(&self, script: &str) -> Running {
        let engine = self.shell(script).await;
        engine.prepare(&self.spec(&small())).await.unwrap().start().await.unwrap()
    }

    /// Runs a script to its end with nothing more to read, and proves the removal.
    ///
    /// # Panics
    /// When one of the steps fails or hangs.
    pub async fn run(&self, script: &str, resources: &Resources) -> Ran {
        // It waits for a word, so that whatever looks at it from outside has looked.
        let engine = self.shell(&format!("read -r _word; {script}")).await;
        let prepared = engine.prepare(&self.spec(resources)).await.unwrap();
        let read_back = prepared.evidence().read_back.clone();
        let mut running = prepared.start().await.unwrap();
        running.stdin.write_all(b"go\n").await.unwrap();
        running.stdin.flush().await.unwrap();
        // Closed by being dropped: not every engine's input knows a half close.
        drop(std::mem::replace(&mut running.stdin, Box::new(tokio::io::sink())));
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
        let usage = running.control.usage().await;
        assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
        Ran {
            exit,
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            read_back,
            outside: running.outside,
            usage,
        }
    }

    /// Runs a script with small limits; it must succeed. Its output lines.
    ///
    /// # Panics
    /// When it does not.
    pub async fn lines(&self, script: &str) -> Vec<String> {
        let ran = self.run(script, &small()).await;
        assert_eq!(ran.exit.code, Some(0), "{ran:?}");
        ran.stdout.lines().map(str::to_owned).collect()
    }
}

impl Drop for Bed {
    /// A test that fails half-way leaves sandboxes behind: they go too, as a sweep would do it.
    fn drop(&mut self) {
        let (under, runs) = (self.under, self.dir.path().to_owned());
        let instance = self.instance.clone();
        let sweep = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let engine = under.engine(&runs, &[]).await;
                for found in engine.list(&instance).await.unwrap() {
                    engine.remove(&found).await;
                }
            });
        });
        // Within a panic another one would abort the process.
        let _failed = sweep.join();
    }
}

/// Waits for the end.
///
/// # Panics
/// When it does not come.
pub async fn ended(control: &mut dyn Control) -> SandboxExit {
    tokio::time::timeout(PATIENCE, control.wait()).await.expect("the sandbox did not end")
}
