//! What a container used of its limits, and whether the memory limit killed something in it.
//!
//! From its cgroup where this host sees it: an engine's own flag says nothing (Podman) or says it of a
//! run that went on (Docker, truthfully). The engine takes the cgroup away soon after the first process has
//! ended, so the counters are read once more at that very moment. Without a view of the cgroup the
//! engine's statistics stand in; what neither shows is `None`.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bollard::models::ContainerStatsResponse;
use bollard::query_parameters::StatsOptionsBuilder;
use cofferdam_run::fact::ResourceUse;
use futures::StreamExt as _;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

use super::call::{Client, USAGE_TIMEOUT};
use super::view::HostView;
use crate::native::cgroup::usage;

/// Pause between two looks at the counters of a running container; what was used after the last one before
/// its cgroup went is not counted.
pub const COUNT_EVERY: Duration = Duration::from_millis(250);

/// Counters of a running container, kept after it has ended.
#[derive(Debug)]
pub(crate) struct Counters {
    directories: Vec<std::path::PathBuf>,
    last: Arc<Mutex<ResourceUse>>,
    at_the_end: Option<AbortHandle>,
}

impl Counters {
    /// From now on. Without a view only the engine can be asked.
    pub(crate) fn of(view: Option<HostView>) -> Self {
        let last = Arc::new(Mutex::new(ResourceUse::default()));
        let Some(HostView { ended, cgroups, .. }) = view else {
            return Self { directories: Vec::new(), last, at_the_end: None };
        };
        let (kept, directories) = (Arc::clone(&last), cgroups.clone());
        let waiting = tokio::spawn(async move {
            let Ok(ended) = watched(ended) else { return };
            // Now and then as well: an engine may be faster than the last look.
            loop {
                let over = tokio::time::timeout(COUNT_EVERY, ended.readable()).await;
                keep(&kept, read(&cgroups));
                if over.is_ok() {
                    break;
                }
            }
        });
        Self { directories, last, at_the_end: Some(waiting.abort_handle()) }
    }

    /// The counters as they are now, or as they were last.
    pub(crate) async fn usage(&self, client: &Client, id: &str) -> ResourceUse {
        let fresh = if self.directories.is_empty() {
            ask(client, id).await
        } else {
            read(&self.directories)
        };
        keep(&self.last, fresh)
    }

    /// Whether the memory limit killed a process; `None` where that does not show.
    pub(crate) fn oom_killed(&self) -> Option<bool> {
        let now = keep(&self.last, read(&self.directories));
        now.oom_kills.map(|kills| kills > 0)
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        if let Some(waiting) = &self.at_the_end {
            waiting.abort();
        }
    }
}

#[expect(unsafe_code, reason = "watching a descriptor has no safe constructor")]
fn watched(ended: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by the value that is registered, which gives the same number
    // until it is dropped, and the registration is undone before that.
    unsafe { AsyncFd::register(ended) }.map_err(|failed| failed.into_parts().1)
}

fn read(directories: &[std::path::PathBuf]) -> ResourceUse {
    let mut now = usage::read(directories);
    if now.pids_peak.is_none() {
        // Older kernels keep no peak: the most that was ever seen stands in for it.
        now.pids_peak = directories.iter().find_map(|directory| {
            std::fs::read_to_string(directory.join("pids.current")).ok()?.trim().parse().ok()
        });
    }
    now
}

/// Keeps the larger of each counter: a cgroup that is being taken away shows less, never more.
fn keep(last: &Mutex<ResourceUse>, now: ResourceUse) -> ResourceUse {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let most = |a: Option<u64>, b: Option<u64>| a.max(b);
    *last = ResourceUse {
        cpu_ms: most(last.cpu_ms, now.cpu_ms),
        memory_peak_bytes: most(last.memory_peak_bytes, now.memory_peak_bytes),
        oom_kills: most(last.oom_kills, now.oom_kills),
        pids_peak: most(last.pids_peak, now.pids_peak),
        pids_refused: most(last.pids_refused, now.pids_refused),
        cpu_throttled_ms: most(last.cpu_throttled_ms, now.cpu_throttled_ms),
        work_bytes: None,
        work_files: None,
    };
    last.clone()
}

/// One answer of the engine's statistics.
async fn ask(client: &Client, id: &str) -> ResourceUse {
    let options = StatsOptionsBuilder::default().stream(false).one_shot(true).build();
    let first = async {
        let mut answers = std::pin::pin!(client.docker.stats(id, Some(options)));
        answers.next().await.unwrap_or(Ok(ContainerStatsResponse::default()))
    };
    client.ask(USAGE_TIMEOUT, first).await.map(|stats| of_stats(&stats)).unwrap_or_default()
}

fn of_stats(stats: &ContainerStatsResponse) -> ResourceUse {
    let memory = stats.memory_stats.as_ref();
    let cpu = stats.cpu_stats.as_ref();
    let throttling = cpu.and_then(|cpu| cpu.throttling_data.as_ref());
    ResourceUse {
        cpu_ms: cpu
            .and_then(|cpu| cpu.cpu_usage.as_ref()?.total_usage)
            // An ended container answers with zeros.
            .filter(|ns| *ns > 0)
            .map(|ns| ns / 1_000_000),
        memory_peak_bytes: memory.and_then(|memory| memory.max_usage.or(memory.usage)),
        pids_peak: stats.pids_stats.as_ref().and_then(|pids| pids.current),
        cpu_throttled_ms: throttling.and_then(|data| data.throttled_time).map(|ns| ns / 1_000_000),
        ..ResourceUse::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_vanish_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
        write("pids.current", "7\n");
        write("cpuacct.usage", "5000000\n");
        let counters = Counters {
            directories: vec![dir.path().to_owned()],
            last: Arc::default(),
            at_the_end: None,
        };
        assert_eq!(counters.oom_killed(), Some(true));
        write("pids.current", "3\n");
        std::fs::remove_file(dir.path().join("memory.oom_control")).unwrap();
        assert_eq!(counters.oom_killed(), Some(true));
        let last = counters.last.lock().unwrap().clone();
        assert_eq!((last.pids_peak, last.cpu_ms), (Some(7), Some(5)));
    }

    #[test]
    fn a_container_without_a_view_has_no_opinion_about_memory() {
        assert_eq!(Counters::of(None).oom_killed(), None);
    }
}
