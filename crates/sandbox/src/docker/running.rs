//! A prepared and a started container.
//!
//! The container is attached to before it starts, so that not one byte of the guest is missed. It
//! must never report an end that the engine did not state.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, KillContainerOptionsBuilder, WaitContainerOptionsBuilder,
};
use cofferdam_run::fact::TeardownOutcome;
use futures::StreamExt;

use super::call::{CALL_TIMEOUT, CallError, Client, KILL_TIMEOUT};
use super::remove::Remains;
use super::stdio::{self, Pumps};
use crate::engine::{Control, Evidence, Prepared, Running, SandboxExit};
use crate::error::SandboxError;

/// Pause before the engine is asked again after it failed to answer a wait, milliseconds.
pub const WAIT_AGAIN: Duration = Duration::from_millis(500);

/// A container that exists and was compared, and has not started.
pub(crate) struct PreparedContainer {
    pub(crate) client: Client,
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
            Ok(streams) => Ok(Running {
                stdin: Box::new(streams.stdin),
                stdout: Box::new(streams.stdout),
                stderr: Box::new(streams.stderr),
                control: Box::new(RunningContainer {
                    remains: self.remains(),
                    client: self.client,
                    id: self.id,
                    ended: None,
                    _pumps: streams.pumps,
                }),
                outside: Vec::new(),
            }),
            Err(error) => {
                let outcome = self.remains().remove(&self.client).await;
                if let TeardownOutcome::Failed { detail } = outcome {
                    tracing::warn!(%detail, "a container that did not start could not be removed");
                }
                Err(error)
            }
        }
    }

    async fn teardown(self: Box<Self>) -> TeardownOutcome {
        self.remains().remove(&self.client).await
    }
}

impl PreparedContainer {
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
            let answered =
                std::pin::pin!(self.client.docker.wait_container(&self.id, Some(options)))
                    .next()
                    .await;
            match self
                .client
                .ask(CALL_TIMEOUT, self.client.docker.inspect_container(&self.id, None))
                .await
            {
                Ok(seen) => self.ended = seen.state.as_ref().and_then(exit_of),
                Err(error) if error.says_gone() => self.ended = Some(SandboxExit::default()),
                Err(error) => tracing::debug!(%error, "the engine did not answer about an end"),
            }
            if self.ended.is_none() {
                tracing::debug!(answered = answered.is_some(), "waiting again");
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

    async fn salvage(&mut self, to: &Path) -> Result<bool, SandboxError> {
        // Nothing may write there while it is read, whatever the caller believes.
        self.kill().await;
        let _hangs = tokio::time::timeout(KILL_TIMEOUT, self.wait()).await;
        super::salvage::work(&self.client, &self.id, to).await
    }

    async fn teardown(self: Box<Self>) -> TeardownOutcome {
        self.remains.remove(&self.client).await
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
