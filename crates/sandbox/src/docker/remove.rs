//! Removal, proven.
//!
//! Removing is asked for and then checked by asking again; only the engine's explicit "no such thing"
//! counts as gone. It must never wait without a limit, and never touch what its labels do not name as
//! this run's of this instance.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListVolumesOptionsBuilder, RemoveContainerOptionsBuilder,
    RemoveVolumeOptionsBuilder,
};
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::ids::{InstanceId, RunId};

use super::call::{self, CALL_TIMEOUT, CallError, REMOVE_TIMEOUT};
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

impl Remains {
    /// Everything labelled as this run's of this instance.
    pub(crate) async fn of(docker: &Docker, instance: &InstanceId, run: &RunId) -> Result<Self, CallError> {
        let mut filters = labels::filter(instance);
        filters.entry("label".to_owned()).or_default().push(format!("{}={run}", labels::RUN));
        let is_ours = |all: &HashMap<String, String>| {
            labels::Owner::read(all).is_some_and(|owner| owner.run == *run && owner.instance == *instance)
        };
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let containers = call::bounded(CALL_TIMEOUT, docker.list_containers(Some(options)))
            .await?
            .into_iter()
            .filter(|found| found.labels.as_ref().is_some_and(is_ours))
            .filter_map(|found| found.id)
            .collect();
        let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
        let volumes = call::bounded(CALL_TIMEOUT, docker.list_volumes(Some(options)))
            .await?
            .volumes
            .into_iter()
            .flatten()
            .filter(|found| is_ours(&found.labels))
            .map(|found| found.name)
            .collect();
        Ok(Self { containers, volumes })
    }

    /// Removes all of it, containers first.
    pub(crate) async fn remove(&self, docker: &Docker) -> TeardownOutcome {
        let mut was_there = false;
        let mut left = Vec::new();
        for id in &self.containers {
            let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
            let asked = call::bounded(REMOVE_TIMEOUT, docker.remove_container(id, Some(options))).await;
            was_there |= !matches!(&asked, Err(error) if error.says_gone());
            let gone = until_gone(|| call::bounded(CALL_TIMEOUT, docker.inspect_container(id, None))).await;
            note(&mut left, "container", id, asked, gone);
        }
        for name in &self.volumes {
            let options = RemoveVolumeOptionsBuilder::default().force(false).build();
            let asked = call::bounded(REMOVE_TIMEOUT, docker.remove_volume(name, Some(options))).await;
            was_there |= !matches!(&asked, Err(error) if error.says_gone());
            let gone = until_gone(|| call::bounded(CALL_TIMEOUT, docker.inspect_volume(name))).await;
            note(&mut left, "volume", name, asked, gone);
        }
        if !left.is_empty() {
            TeardownOutcome::Failed { detail: left.join("; ") }
        } else if was_there {
            TeardownOutcome::Removed
        } else {
            TeardownOutcome::AlreadyGone
        }
    }
}

/// Asks until the engine says that it is gone. `Err` says what stands in the way of that.
async fn until_gone<T, F>(mut look: impl FnMut() -> F) -> Result<(), String>
where
    F: Future<Output = Result<T, CallError>>,
{
    let mut last = String::new();
    for _ in 0..GONE_LOOKS {
        match look().await {
            Err(error) if error.says_gone() => return Ok(()),
            // A hung engine has had its time; asking again would multiply it.
            Err(error @ CallError::Late { .. }) => return Err(error.to_string()),
            Err(error) => last = error.to_string(),
            Ok(_) => "it is still there".clone_into(&mut last),
        }
        tokio::time::sleep(GONE_PAUSE).await;
    }
    Err(last)
}

fn note(left: &mut Vec<String>, kind: &str, name: &str, asked: Result<(), CallError>, gone: Result<(), String>) {
    if let Err(why) = gone {
        let answer = asked.err().map_or_else(String::new, |error| format!(", removal: {error}"));
        left.push(format!("{kind} {name}: {why}{answer}"));
    }
}
