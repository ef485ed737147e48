//! What every benchmark gets: places for its files, the programs that are measured, and a way out.
//!
//! It must never keep anything: each benchmark's directory goes when the benchmark ends.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::ids::{InstanceId, RunId, TimestampMs};
use cofferdam_run::spec::Resources;
use cofferdam_sandbox::spec::Hardening;
use cofferdam_sandbox::{Engine, RootSource, SandboxSpec};
use tempfile::TempDir;

use crate::outside;

/// The person stopped the program.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Ends early when the person presses Ctrl-C, so that what was made is dropped and so removed.
pub(crate) async fn interruptible<T>(
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => Err(Interrupted.into()),
    }
}

/// Places and programs.
#[derive(Debug)]
pub(crate) struct World {
    place: PathBuf,
    bin_dir: PathBuf,
    command: PathBuf,
}

impl World {
    pub(crate) fn new(place: PathBuf, bin_dir: PathBuf, command: PathBuf) -> anyhow::Result<Self> {
        let found = |path: PathBuf| {
            path.canonicalize().with_context(|| {
                format!("{} is not there: start through cargo xtask bench", path.display())
            })
        };
        Ok(Self { place: found(place)?, bin_dir: found(bin_dir)?, command: found(command)? })
    }

    /// Where directories are made.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// A directory that goes when dropped.
    pub(crate) fn directory(&self) -> anyhow::Result<TempDir> {
        Ok(tempfile::Builder::new().prefix("cofferdam-bench-").tempdir_in(&self.place)?)
    }

    pub(crate) fn guest(&self) -> PathBuf {
        self.bin_dir.join("cofferdam-guest")
    }

    pub(crate) fn launcher(&self) -> PathBuf {
        self.bin_dir.join("cofferdam-launch")
    }

    pub(crate) fn bin_dir(&self) -> &Path {
        &self.bin_dir
    }

    /// The `cofferdam` command.
    pub(crate) fn cofferdam(&self) -> &Path {
        &self.command
    }
}

/// An instance of this program's own, so that its sandboxes are told from all others.
pub(crate) fn instance() -> anyhow::Result<InstanceId> {
    let mut entropy = [0; 10];
    getrandom::fill(&mut entropy)?;
    Ok(InstanceId::from_entropy(entropy))
}

pub(crate) fn run_id() -> anyhow::Result<RunId> {
    let mut entropy = [0; 5];
    getrandom::fill(&mut entropy)?;
    Ok(RunId::from_entropy(entropy))
}

/// What a sandbox is made from when it runs something trivial.
pub(crate) struct SandboxMaker<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) instance: &'a InstanceId,
    pub(crate) guest: PathBuf,
    pub(crate) runs: &'a Path,
}

impl SandboxMaker<'_> {
    pub(crate) fn spec(&self) -> anyhow::Result<SandboxSpec> {
        let run = run_id()?;
        Ok(SandboxSpec {
            run_dir: self.runs.join(run.as_str()),
            run,
            instance: self.instance.clone(),
            expires_at: TimestampMs(0),
            hardening: Hardening::for_run(&Resources::default()),
            guest_binary: self.guest.clone(),
            root: RootSource::HostUserland,
            shell_host: false,
        })
    }

    /// A whole life. Gives milliseconds to the end of the program, and to the proven removal.
    pub(crate) async fn life(&self) -> anyhow::Result<(f64, f64)> {
        let spec = self.spec()?;
        let watch = outside::Watch::start();
        let mut running = self.engine.prepare(&spec).await?.start().await?;
        let exit = running.control.wait().await;
        let to_exit = watch.ms();
        let gone = running.control.teardown().await;
        let to_gone = watch.ms();
        anyhow::ensure!(exit.code == Some(0), "the program in the sandbox ended with {exit:?}");
        anyhow::ensure!(matches!(gone, TeardownOutcome::Removed), "not removed: {gone:?}");
        Ok((to_exit, to_gone))
    }

    /// Removes what an interrupted or failed measurement left.
    pub(crate) async fn sweep(&self) -> anyhow::Result<()> {
        for found in self.engine.list(self.instance).await? {
            let gone = self.engine.remove(&found).await;
            anyhow::ensure!(matches!(gone, TeardownOutcome::Removed), "{found:?}: {gone:?}");
        }
        Ok(())
    }
}
