//! The wall test over real sandboxes, and over ones whose wall was broken on purpose.
//!
//! needs: root, git, ip, nsenter, unshare, and `cargo xtask build` for guest and launcher.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_policy::EgressPolicy;
use cofferdam_run::spec::Resources;
use cofferdam_run::{Budgets, Fact, Record, RunSpec};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::arm::{Armed, RunRequest};
use crate::config::Config;
use crate::host::{Host, HostOptions};
use crate::progress::{Progress, Silent, Watcher};

#[expect(clippy::disallowed_methods, reason = "tests use the system's own tools")]
fn tool(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    command
}

#[track_caller]
fn run(words: &[&str]) {
    let output = tool(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn network_of(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

/// Processes that this one started, and theirs.
fn descendants() -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        if let Some(parent) = rest.split_whitespace().nth(1).and_then(|p| p.parse::<u32>().ok()) {
            parents.push((pid, parent));
        }
    }
    let mut found = vec![std::process::id()];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(parents.iter().filter(|(_, p)| *p == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

/// A network namespace of the test's own, for as long as it lives.
struct Outside(Child);

impl Outside {
    fn new() -> Self {
        let own = network_of(std::process::id());
        let child = tool(&["unshare", "--net", "sleep", "120"]).spawn().unwrap();
        let outside = Self(child);
        for _ in 0..1_000 {
            if network_of(outside.0.id()).is_some_and(|other| Some(other) != own) {
                return outside;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("no network namespace");
    }

    /// Gives the sandbox an interface and a route that lead here.
    fn open_a_way_from(&self, sandbox: u32) {
        let (here, there) = (self.0.id().to_string(), sandbox.to_string());
        let at = |pid: &str, words: &str| {
            let mut all = vec!["nsenter", "--target", pid, "--net", "ip"];
            all.extend(words.split(' '));
            run(&all);
        };
        at(&here, &format!("link add way0 type veth peer name way1 netns {there}"));
        at(&here, "addr add 192.0.2.1/24 dev way0");
        at(&here, "link set way0 up");
        at(&there, "addr add 192.0.2.2/24 dev way1");
        at(&there, "link set way1 up");
        at(&there, "route add default via 192.0.2.1");
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // Our own child, not waited for yet: the id cannot have been reused.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Breaks the wall at the one moment when the posture was seen to hold and the test is still to come.
struct Breaker(Mutex<Option<Outside>>);

impl Watcher for Breaker {
    fn tell(&self, progress: Progress) {
        if !matches!(progress, Progress::Sealed { .. }) {
            return;
        }
        let own = network_of(std::process::id());
        let sandbox = descendants()
            .into_iter()
            .find(|pid| network_of(*pid).is_some_and(|other| Some(other) != own))
            .unwrap();
        let outside = Outside::new();
        outside.open_a_way_from(sandbox);
        *self.0.lock().unwrap() = Some(outside);
    }
}

struct World {
    dir: tempfile::TempDir,
    host: Host,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("cofferdam-wall-").tempdir().unwrap();
        let repo = dir.path().join("repo");
        std::fs::create_dir(&repo).unwrap();
        let repo = repo.to_str().unwrap();
        run(&["git", "init", "-q", "-b", "main", repo]);
        std::fs::write(Path::new(repo).join("a.txt"), "one\n").unwrap();
        let commit =
            ["-c", "user.name=T", "-c", "user.email=t@example.com", "commit", "-qm", "One"];
        run(&["git", "-C", repo, "add", "."]);
        run(&[["git", "-C", repo].as_slice(), &commit].concat());
        #[expect(clippy::disallowed_methods, reason = "tests are told where the guest is")]
        let bin =
            std::env::var_os("COFFERDAM_BIN_DIR").expect("COFFERDAM_BIN_DIR: run through cargo");
        let config = "[services]\n\"mirror.internal\" = \"127.0.0.1:4873\"\n\"other.internal\" = \"127.0.0.1:1\"\n";
        let host = Host::open(HostOptions {
            data_dir: dir.path().join("data"),
            bin_dirs: vec![bin.into()],
            engine_hosts: Default::default(),
            config: Config::parse(config, "config.toml").unwrap(),
        })
        .await
        .unwrap();
        Self { dir, host }
    }

    /// A run of a command that an agent would start with.
    async fn arm(&self) -> Armed {
        let spec: RunSpec = serde_json::from_value(json!({
            "task": "", "mode": "unattended", "agent": { "kind": "command", "argv": ["true"] },
            "engine": "native", "resources": Resources::default(), "budgets": Budgets::default(),
            "egress_allow": ["mirror.internal:4873"], "egress_deny": [], "model": null,
            "checkout": self.dir.path().join("repo"), "accept_degraded": [], "credentials": [],
            "env_names": [],
        }))
        .unwrap();
        let request = RunRequest {
            spec,
            key: None,
            local_provider: false,
            require_shell_separation: false,
            env: Default::default(),
        };
        self.host.arm(request).await.unwrap()
    }

    async fn supervise(&self, armed: Armed, watcher: Arc<dyn Watcher>) -> Record {
        self.host.supervise(armed, watcher, CancellationToken::new()).await.unwrap().record
    }
}

/// `(target, refused, open)` of the one wall test, and the code of the verdict's cause.
fn told(record: &Record) -> (String, bool, Vec<String>, Option<&'static str>) {
    let mut tests = record.facts().filter_map(|fact| match fact {
        Fact::EgressTest { target, refused, open_claim, .. } => {
            Some((target.clone(), *refused, open_claim.clone()))
        }
        _ => None,
    });
    let (target, refused, open) = tests.next().expect("a wall test is on record");
    assert!(tests.next().is_none());
    (target, refused, open, record.verdict.cause.as_ref().map(cofferdam_run::Cause::code))
}

fn agent_ran(record: &Record) -> bool {
    record.facts().any(|fact| matches!(fact, Fact::AgentStarted { .. }))
}

/// The twin of all that follows.
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_wall_lets_the_agent_start_and_is_on_record() {
    let world = World::new().await;
    let armed = world.arm().await;
    let record = world.supervise(armed, Arc::new(Silent)).await;
    let (target, refused, open, cause) = told(&record);
    assert!(refused && open.is_empty() && target.ends_with(".invalid"), "{target} {open:?}");
    assert_eq!(cause, None, "{:?}", record.verdict);
    assert!(agent_ran(&record));
    // The test itself is no connection that the run asked for.
    assert!(!record.facts().any(|fact| matches!(fact, Fact::Egress { .. })));
    let services = record.facts().find_map(|fact| match fact {
        Fact::Armed { spec, .. } => Some(spec.services.clone()),
        _ => None,
    });
    assert_eq!(services.unwrap(), ["mirror.internal = 127.0.0.1:4873"]);
}

/// S2, S31, S34: a way out of the sandbox's network namespace, made after the posture was seen to
/// hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_way_out_of_the_namespace_turns_the_run_away() {
    let world = World::new().await;
    let armed = world.arm().await;
    let record = world.supervise(armed, Arc::new(Breaker(Mutex::default()))).await;
    let (_, refused, open, cause) = told(&record);
    assert!(refused, "the door held: {open:?}");
    for way in ["a route over way1", "tcp 1.1.1.1:443", "tcp 169.254.169.254:80", "dns 8.8.8.8:53"]
    {
        assert!(open.iter().any(|one| one.starts_with(way)), "{way} is not among {open:?}");
    }
    assert_eq!(cause, Some("RUN-024"), "{:?}", record.verdict);
    assert!(!agent_ran(&record));
}

/// S2: a door whose rules admit what none of the run's rules admits.
#[tokio::test(flavor = "multi_thread")]
async fn a_door_that_admits_the_target_turns_the_run_away() {
    for port in [443, 80] {
        let world = World::new().await;
        let mut armed = world.arm().await;
        armed.policy = EgressPolicy::load(&[format!("{}:{port}", armed.wall_target)], &[]).unwrap();
        let record = world.supervise(armed, Arc::new(Silent)).await;
        let (_, refused, open, cause) = told(&record);
        assert!(!refused && open.is_empty(), "port {port}: {open:?}");
        assert_eq!(cause, Some("RUN-024"), "port {port}: {:?}", record.verdict);
        assert!(!agent_ran(&record), "port {port}");
    }
}
