//! Removal, proven.
//!
//! Removing is asked for and then checked by asking again; only the engine's explicit "no such thing"
//! counts as gone. It must never wait without a limit, and never touch what its labels do not name as
//! this run's of this instance.

use std::collections::HashMap;
use std::time::Duration;

use bollard::query_parameters::{
    KillContainerOptionsBuilder, ListContainersOptionsBuilder, ListVolumesOptionsBuilder,
    RemoveContainerOptionsBuilder, RemoveVolumeOptionsBuilder,
};
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::ids::{InstanceId, RunId};
use futures::StreamExt as _;

use super::call::{self, CALL_TIMEOUT, CallError, Client, KILL_TIMEOUT, REMOVE_TIMEOUT};
use super::labels;

/// Looks at whether something is gone before giving up.
pub const GONE_LOOKS: u32 = 25;
/// Pause between two looks, milliseconds.
pub const GONE_PAUSE: Duration = Duration::from_millis(200);

/// What is to go.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remains {
    /// Container ids.
    pub(crate) containers: Vec<String>,
    /// Volume names.
    pub(crate) volumes: Vec<String>,
}

/// Kills a container and waits until the engine says that it has ended, within [`KILL_TIMEOUT`]. What
/// hangs is met again at removal, which says so.
pub(super) async fn stop(client: &Client, id: &str) {
    let options = KillContainerOptionsBuilder::default().signal("SIGKILL").build();
    // Refused when it has ended already.
    let _ended = client.ask(KILL_TIMEOUT, client.docker.kill_container(id, Some(options))).await;
    let mut waiting = std::pin::pin!(client.docker.wait_container(id, None));
    let _hangs = tokio::time::timeout(KILL_TIMEOUT, waiting.next()).await;
}

impl Remains {
    /// Everything labelled as this run's of this instance.
    pub(crate) async fn of(
        client: &Client,
        instance: &InstanceId,
        run: &RunId,
    ) -> Result<Self, CallError> {
        let filters = labels::filter_run(run);
        let is_ours = |all: &HashMap<String, String>| {
            labels::Owner::read(all)
                .is_some_and(|owner| owner.run == *run && owner.instance == *instance)
        };
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let containers = client
            .ask(CALL_TIMEOUT, client.docker.list_containers(Some(options)))
            .await?
            .into_iter()
            .filter(|found| found.labels.as_ref().is_some_and(is_ours))
            .filter_map(|found| found.id)
            .collect();
        let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
        let volumes = client
            .ask(CALL_TIMEOUT, client.docker.list_volumes(Some(options)))
            .await?
            .volumes
            .into_iter()
            .flatten()
            .filter(|found| is_ours(&found.labels))
            .map(|found| found.name)
            .collect();
        Ok(Self { containers, volumes })
    }

    /// Removes all of it, containers first. An engine that does not answer once is not asked again:
    /// the caller waits for [`REMOVE_TIMEOUT`] or [`CALL_TIMEOUT`] once, not for each thing.
    pub(crate) async fn remove(&self, client: &Client) -> TeardownOutcome {
        let mut was_there = false;
        let mut hangs = false;
        let mut left = Vec::new();
        let containers = self.containers.iter().map(|id| ("container", id));
        let volumes = self.volumes.iter().map(|name| ("volume", name));
        for (kind, name) in containers.chain(volumes) {
            if hangs {
                left.push(format!("{kind} {name}: not tried, the engine does not answer"));
                continue;
            }
            match remove_one(client, kind, name).await {
                Ok(existed) => was_there |= existed,
                Err(why) => {
                    hangs = why.hangs;
                    left.push(format!("{kind} {name}: {}", why.text));
                }
            }
        }
        if !left.is_empty() {
            TeardownOutcome::Failed { detail: call::cut(&left.join("; ")) }
        } else if was_there {
            TeardownOutcome::Removed
        } else {
            TeardownOutcome::AlreadyGone
        }
    }
}

/// Why something is left.
struct Left {
    text: String,
    hangs: bool,
}

/// Asks once.
async fn ask_to_remove(client: &Client, is_container: bool, name: &str) -> Result<(), CallError> {
    let docker = &client.docker;
    if is_container {
        // Anonymous volumes of the image go with it.
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        client.ask(REMOVE_TIMEOUT, docker.remove_container(name, Some(options))).await
    } else {
        let options = RemoveVolumeOptionsBuilder::default().force(false).build();
        client.ask(REMOVE_TIMEOUT, docker.remove_volume(name, Some(options))).await
    }
}

/// Removes one thing and proves it. `Ok(false)` when it had gone before. An engine that refuses is
/// asked again at each look: Podman refuses a container that is ending at this very moment.
async fn remove_one(client: &Client, kind: &str, name: &str) -> Result<bool, Left> {
    let docker = &client.docker;
    let is_container = kind == "container";
    let hung = |error: &CallError| Left { text: error.to_string(), hangs: true };
    let mut asked = ask_to_remove(client, is_container, name).await;
    let mut existed = !matches!(&asked, Err(error) if error.says_gone());
    let mut last = String::new();
    for _ in 0..GONE_LOOKS {
        if let Err(error @ CallError::Late { .. }) = &asked {
            return Err(hung(error));
        }
        let look = if is_container {
            client.ask(CALL_TIMEOUT, docker.inspect_container(name, None)).await.map(|_| ())
        } else {
            client.ask(CALL_TIMEOUT, docker.inspect_volume(name)).await.map(|_| ())
        };
        match look {
            Err(error) if error.says_gone() => return Ok(existed),
            Err(error @ CallError::Late { .. }) => return Err(hung(&error)),
            Err(error) => last = error.to_string(),
            Ok(()) => {
                existed = true;
                "it is still there".clone_into(&mut last);
            }
        }
        tokio::time::sleep(GONE_PAUSE).await;
        if asked.is_err() {
            asked = ask_to_remove(client, is_container, name).await;
        }
    }
    let answer = asked.err().map_or_else(String::new, |error| format!(", removal: {error}"));
    Err(Left { text: format!("{last}{answer}"), hangs: false })
}
