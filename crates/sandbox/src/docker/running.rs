//! A prepared and a started container.
//!
//! The container is attached to before it starts, so that not one byte of the guest is missed. It
//! must never report an end that the engine did not state.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, KillContainerOptionsBuilder, WaitContainerOptionsBuilder,
};
use cofferdam_run::fact::{ResourceUse, TeardownOutcome};
use cofferdam_run::posture::LayerReport;
use futures::StreamExt;

use super::call::{CALL_TIMEOUT, CallError, Client, KILL_TIMEOUT};
use super::flavour::Flavour;
use super::outside;
use super::remove::Remains;
use super::stdio::{self, Pumps};
use super::usage::Counters;
use super::view::HostView;
use crate::engine::{Control, Evidence, Prepared, Running, SandboxExit};
use crate::error::SandboxError;
use crate::native::unlinked;
use crate::spec::Hardening;
use crate::volume::{self, Stop, WorkUse};

/// Pause before the engine is asked again after it failed to answer a wait, milliseconds.
pub const WAIT_AGAIN: Duration = Duration::from_millis(500);

/// Time after which the state is read although the engine has not answered a wait.
pub const WAIT_LOOK: Duration = Duration::from_secs(2);

/// A container that exists and was compared, and has not started.
pub(crate) struct PreparedContainer {
    pub(crate) client: Client,
    pub(crate) flavour: Flavour,
    pub(crate) hardening: Hardening,
    /// The engine's id.
    pub(crate) id: String,
    /// Its name: the sandbox's identity.
    pub(crate) name: String,
    pub(crate) volume: String,
    pub(crate) evidence: Evidence,
}

impl PreparedContainer {
    fn remains(&self) -> Remains {
        Remains { containers: vec![self.id.clone()], volumes: vec![self.volume.clone()] }
    }
}

#[async_trait]
impl Prepared for PreparedContainer {
    fn identity(&self) -> &str {
        &self.name
    }

    fn evidence(&self) -> &Evidence {
        &self.evidence
    }

    async fn start(self: Box<Self>) -> Result<Running, SandboxError> {
        match self.attach_and_start().await {
            Ok(streams) => {
                let (view, outside) = self.look().await;
                let work = match &view {
                    Some(view) => self.work_here().await.map(|place| (place, view.pid)),
                    None => None,
                };
                Ok(Running {
                    stdin: Box::new(streams.stdin),
                    stdout: Box::new(streams.stdout),
                    stderr: Box::new(streams.stderr),
                    control: Box::new(RunningContainer {
                        remains: self.remains(),
                        counters: Counters::of(view),
                        work,
                        flavour: self.flavour,
                        client: self.client,
                        id: self.id,
                        ended: None,
                        _pumps: streams.pumps,
                    }),
                    outside,
                })
            }
            Err(error) => {
                let outcome = self.remains().remove(&self.client).await;
                if let TeardownOutcome::Failed { detail } = outcome {
                    tracing::warn!(%detail, "a container that did not start could not be removed");
                }
                Err(error.on(self.flavour.kind))
            }
        }
    }

    async fn teardown(self: Box<Self>) -> TeardownOutcome {
        self.remains().remove(&self.client).await
    }
}

impl PreparedContainer {
    /// What this host sees of the container, where it runs on this host.
    async fn look(&self) -> (Option<HostView>, Vec<LayerReport>) {
        let seen = self
            .client
            .ask(CALL_TIMEOUT, self.client.docker.inspect_container(&self.id, None))
            .await
            .ok();
        let pid = seen.and_then(|seen| seen.state?.pid).unwrap_or(0);
        let view = HostView::of(pid, &self.id);
        let outside = outside::look(view.as_ref(), &self.hardening, &self.flavour);
        (view, outside)
    }

    /// Where the volume lies on this host, when it may be read here.
    async fn work_here(&self) -> Option<PathBuf> {
        let volume = self
            .client
            .ask(CALL_TIMEOUT, self.client.docker.inspect_volume(&self.volume))
            .await
            .ok()?;
        let place = PathBuf::from(volume.mountpoint);
        std::fs::read_dir(&place).is_ok().then_some(place)
    }

    async fn attach_and_start(&self) -> Result<stdio::Streams, SandboxError> {
        let options = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdin(true)
            .stdout(true)
            .stderr(true)
            .logs(false)
            .build();
        let attached = self
            .client
            .ask(CALL_TIMEOUT, self.client.docker.attach_container(&self.id, Some(options)))
            .await
            .map_err(|error| error.during("attach to the container"))?;
        let streams = stdio::split(attached);
        match self
            .client
            .ask(CALL_TIMEOUT, self.client.docker.start_container(&self.id, None))
            .await
        {
            Ok(()) => Ok(streams),
            Err(CallError::Refused { message, .. }) => Err(SandboxError::Launch {
                stage: "start the container".to_owned(),
                detail: message,
            }),
            Err(error) => Err(error.during("start the container")),
        }
    }
}

/// A started container.
struct RunningContainer {
    client: Client,
    id: String,
    remains: Remains,
    flavour: Flavour,
    counters: Counters,
    /// The volume on this host, and the first process by its number on this host.
    work: Option<(PathBuf, i32)>,
    ended: Option<SandboxExit>,
    _pumps: Pumps,
}

#[async_trait]
impl Control for RunningContainer {
    async fn wait(&mut self) -> SandboxExit {
        loop {
            if let Some(exit) = self.ended {
                return exit;
            }
            let options = WaitContainerOptionsBuilder::default().condition("not-running").build();
            // Whatever the stream says, the state is read from the container itself; an engine that
            // went away is asked again, since the container may well outlive it.
            // Nor is a call that never answers waited for: the state is read anyway now and then.
            let mut waiting =
                std::pin::pin!(self.client.docker.wait_container(&self.id, Some(options)));
            let answered = tokio::time::timeout(WAIT_LOOK, waiting.next()).await.is_ok();
            match self
                .client
                .ask(CALL_TIMEOUT, self.client.docker.inspect_container(&self.id, None))
                .await
            {
                Ok(seen) => {
                    self.ended = seen.state.as_ref().and_then(exit_of).map(|exit| SandboxExit {
                        oom_killed: self.oom_killed(exit.oom_killed),
                        ..exit
                    });
                }
                Err(error) if error.says_gone() => self.ended = Some(SandboxExit::default()),
                Err(error) => tracing::debug!(%error, "the engine did not answer about an end"),
            }
            if self.ended.is_none() && answered {
                tracing::debug!("waiting again");
                tokio::time::sleep(WAIT_AGAIN).await;
            }
        }
    }

    async fn kill(&mut self) {
        let options = KillContainerOptionsBuilder::default().signal("SIGKILL").build();
        if let Err(error) = self
            .client
            .ask(KILL_TIMEOUT, self.client.docker.kill_container(&self.id, Some(options)))
            .await
        {
            // It has ended already, or the engine hangs; teardown removes by force and says which.
            tracing::debug!(%error, "kill had no effect");
        }
    }

    async fn usage(&mut self) -> ResourceUse {
        self.counters.usage(&self.client, &self.id).await
    }

    async fn work_use(&mut self, stop: Stop) -> Option<WorkUse> {
        let (work, first) = self.work.clone()?;
        let _ends_with_the_caller = stop.guard();
        let host_processes = self.flavour.host_processes;
        let counted = tokio::task::spawn_blocking(move || {
            let mut seen = volume::count(&work, &stop)?;
            if host_processes {
                seen.bytes = seen.bytes.saturating_add(unlinked::bytes(&work, first));
            }
            Ok::<_, std::io::Error>(seen)
        });
        match counted.await {
            Ok(Ok(seen)) => Some(seen),
            Ok(Err(error)) => {
                tracing::warn!(%error, "work volume not counted");
                None
            }
            Err(_) => None,
        }
    }

    fn work_place(&self) -> Option<PathBuf> {
        self.work.as_ref().map(|(place, _)| place.clone())
    }

    async fn salvage(&mut self, to: &Path) -> Result<bool, SandboxError> {
        // Nothing may write there while it is read, whatever the caller believes.
        self.kill().await;
        let _hangs = tokio::time::timeout(KILL_TIMEOUT, self.wait()).await;
        super::salvage::work(&self.client, &self.id, to)
            .await
            .map_err(|error| error.on(self.flavour.kind))
    }

    async fn teardown(self: Box<Self>) -> TeardownOutcome {
        self.remains.remove(&self.client).await
    }
}

impl RunningContainer {
    /// The kernel's own count where it shows; the engine's flag where that can be believed.
    fn oom_killed(&self, flag: bool) -> bool {
        let counted = self.counters.oom_killed();
        counted == Some(true) || (flag && (self.flavour.tells_oom || counted.is_none()))
    }
}

/// How it ended; `None` while it has not.
///
/// The engine gives one number. By the convention of shells, of Docker's init and of the engine
/// itself, 128 + N stands for signal N; the guest never exits with such a number by itself.
fn exit_of(state: &bollard::models::ContainerState) -> Option<SandboxExit> {
    let ended = state.running == Some(false)
        && state.restarting != Some(true)
        && state.finished_at.as_deref().is_some_and(|at| !at.starts_with("0001-"));
    if !ended {
        return None;
    }
    let oom_killed = state.oom_killed == Some(true);
    let number = state.exit_code.and_then(|code| i32::try_from(code).ok());
    Some(match number {
        Some(n) if n > 128 && n <= 128 + 64 => {
            SandboxExit { code: None, signal: Some(n - 128), oom_killed }
        }
        code => SandboxExit { code, signal: None, oom_killed },
    })
}
