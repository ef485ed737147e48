//! What every engine offers. The daemon sees these types and nothing of an engine's own.
//!
//! An implementation must never start the guest before everything it was asked for is in place, and
//! must never touch a sandbox of another instance.

use std::fmt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use cofferdam_run::engine::EngineKind;
use cofferdam_run::fact::{ResourceUse, TeardownOutcome};
use cofferdam_run::ids::{Digest, InstanceId, RunId, TimestampMs};
use cofferdam_run::posture::LayerReport;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::SandboxError;
use crate::spec::Hardening;
use crate::volume::{Stop, WorkUse};

/// Where the sandbox's root file system comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootSource {
    /// The host's own `/usr`, certificates and a synthetic `/etc`; nothing else of the host.
    HostUserland,
    /// An unpacked root file system on the host; mounted read-only.
    Directory(PathBuf),
    /// An image reference of the engine, best with a digest.
    Image(String),
}

/// Everything an engine needs to make one sandbox.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// The run that it belongs to.
    pub run: RunId,
    /// The instance that owns the run.
    pub instance: InstanceId,
    /// When a sweep may remove it, whoever owns it.
    pub expires_at: TimestampMs,
    /// What hardens it, limits included: [`Hardening::for_run`] of the run's resources.
    pub hardening: Hardening,
    /// The static guest binary on the host.
    pub guest_binary: PathBuf,
    /// The run's private directory on the host. Created when missing; the engine's own files in it
    /// are removed at teardown, and `run_dir/work` with them: move that away first to keep it.
    pub run_dir: PathBuf,
    /// Root file system.
    pub root: RootSource,
    /// The commands of the built-in agent get a network namespace of their own: a second process of
    /// the guest is started in one. Only where [`Engine::separates_shell`].
    pub shell_host: bool,
}

/// Something that stands in the way of an engine, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What is missing, one sentence.
    pub what: String,
    /// A command or step that mends it.
    pub fix: String,
}

/// What an engine can do on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineReport {
    /// The engine.
    pub kind: EngineKind,
    /// Its version, for people.
    pub version: String,
    /// A sandbox can be made at all; layers may still be missing.
    pub usable: bool,
    /// What it would give, layer by layer.
    pub layers: Vec<LayerReport>,
    /// What is in the way.
    pub problems: Vec<Problem>,
}

/// A sandbox that exists, found by its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The run that it was made for.
    pub run: RunId,
    /// The instance that made it.
    pub instance: InstanceId,
    /// The engine's own name for it: [`Prepared::identity`].
    pub sandbox: String,
    /// Something of it still runs.
    pub running: bool,
    /// When it may be removed, whoever owns it.
    pub expires_at: TimestampMs,
}

/// What was configured, as read back before the guest's first instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// Engine version, at most 200 characters.
    pub engine_version: String,
    /// Digest of [`crate::spec::Hardening`].
    pub hardening: Digest,
    /// Image id, or fingerprint of the native root.
    pub root: String,
    /// Digest of the guest binary.
    pub guest: Digest,
    /// Layer by layer, as the engine shows it.
    pub read_back: Vec<LayerReport>,
}

/// How a sandbox ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SandboxExit {
    /// Exit code of its first process; `None` when a signal ended it or it cannot be known.
    pub code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// The memory limit killed something in it (not necessarily its first process).
    pub oom_killed: bool,
}

/// A sandbox engine.
#[async_trait]
pub trait Engine: Send + Sync {
    /// Which one.
    fn kind(&self) -> EngineKind;
    /// It can make a second network namespace in a sandbox. Where not, asking for one is an error.
    fn separates_shell(&self) -> bool {
        false
    }
    /// What it can do here. Changes nothing on the machine that outlives the call.
    async fn probe(&self) -> EngineReport;
    /// Creates and configures a sandbox without starting it.
    async fn prepare(&self, spec: &SandboxSpec) -> Result<Box<dyn Prepared>, SandboxError>;
    /// All sandboxes of an instance, running or not.
    async fn list(&self, instance: &InstanceId) -> Result<Vec<Found>, SandboxError>;
    /// Ends everything in one that was found and moves the work in its volume to `to`, as
    /// [`Control::salvage`] does: for a run whose host was lost. To be called before
    /// [`Engine::remove`]. `false` when there is nothing to save.
    async fn salvage(&self, found: &Found, to: &Path) -> Result<bool, SandboxError> {
        let _nothing_to_move = (found, to);
        Ok(false)
    }
    /// Removes one that was found; [`TeardownOutcome::Removed`] only when it is proven gone.
    async fn remove(&self, found: &Found) -> TeardownOutcome;
}

/// A sandbox that exists and has not started.
#[async_trait]
pub trait Prepared: Send {
    /// The engine's own name for it: store it before starting.
    fn identity(&self) -> &str;
    /// What was configured.
    fn evidence(&self) -> &Evidence;
    /// Starts the guest. On an error the sandbox has been removed or is found by [`Engine::list`].
    async fn start(self: Box<Self>) -> Result<Running, SandboxError>;
    /// Removes it unstarted.
    async fn teardown(self: Box<Self>) -> TeardownOutcome;
}

/// A started sandbox: its streams and its control.
pub struct Running {
    /// Standard input of the guest.
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    /// Standard output of the guest: the link, from its first byte.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// Standard error of the guest: hostile text, unbounded; the reader bounds it.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// Wait, kill, remove.
    pub control: Box<dyn Control>,
    /// What the host saw of the first process from outside, before the guest's first instruction.
    /// Empty for engines without such a view.
    pub outside: Vec<LayerReport>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("outside", &self.outside).finish_non_exhaustive()
    }
}

/// Control over a started sandbox.
#[async_trait]
pub trait Control: Send + Sync {
    /// Waits for the end of its first process. Safe to cancel and to call again.
    async fn wait(&mut self) -> SandboxExit;
    /// Kills everything in it. Nothing happens when it has ended.
    async fn kill(&mut self);
    /// What the sandbox used of its limits until now, from counters outside of it; what the engine does
    /// not show is `None`. A few small files or one request: asked for several times a second while
    /// the agent works, and once more after the sandbox has ended and before it is removed. Never
    /// counts the work volume: [`Control::work_use`] does. Safe to cancel.
    async fn usage(&mut self) -> ResourceUse {
        ResourceUse::default()
    }
    /// Counts the work volume, as far as `stop` lets it. May take seconds on a large volume, blocks
    /// nothing meanwhile, and follows no link. `None` where this engine cannot count it. Safe to
    /// cancel, which ends the walk.
    async fn work_use(&mut self, stop: Stop) -> Option<WorkUse> {
        let _no_volume_to_count = stop;
        None
    }
    /// A directory of the host on the file system that holds the work volume, to ask for free space;
    /// `None` where that file system is not this machine's.
    fn work_place(&self) -> Option<PathBuf> {
        None
    }
    /// Moves or copies the repository in the work volume to the directory `to`, which does not exist
    /// yet; all of the work when no repository is where it should be. Git on the host takes nothing in
    /// it for a repository, and `README-salvage.txt` beside `to` says why. `false` when there are only
    /// empty directories. Called after everything in the sandbox has ended; never follows a link out
    /// of the volume.
    async fn salvage(&mut self, to: &Path) -> Result<bool, SandboxError> {
        let _ = to;
        Ok(false)
    }
    /// Kills what is left, removes everything, and proves it.
    async fn teardown(self: Box<Self>) -> TeardownOutcome;
}
