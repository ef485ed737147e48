//! An engine that fails in each way, between the product and a real one: the run ends in its bound
//! with the right cause, work is kept, and once the engine answers again nothing is left.

use std::path::PathBuf;
use std::process::{Child, Command};

use cofferdam_testkit::engine_proxy::{EngineProxy, Fault};
use serde_json::Value;

use crate::support::{Engine, Ran, World, docker_host, finish, until};

/// A world whose engine is reached through the proxy.
struct Faulty {
    world: World,
    proxy: EngineProxy,
}

const WORK_THEN_SLEEP: &str =
    "echo work > w.txt && git add w.txt && git commit -q -m work && echo READY && sleep 600";

impl Faulty {
    fn new() -> Self {
        let world = World::new(Engine::Docker);
        let engine = PathBuf::from(docker_host().trim_start_matches("unix://"));
        let proxy = EngineProxy::start(&world.dir.path().join("p.sock"), &engine).unwrap();
        let faulty = Self { world, proxy };
        // The image is built while nothing fails.
        faulty.run(&["--", "true"]).expect(0);
        faulty
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.world.command(args);
        command.env("DOCKER_HOST", self.proxy.host());
        command
    }

    fn cofferdam(&self, args: &[&str]) -> Ran {
        finish(self.command(args).spawn().unwrap())
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.cofferdam(&self.world.run_args(args))
    }

    fn spawn(&self, args: &[&str]) -> Child {
        self.command(&self.world.run_args(args)).spawn().unwrap()
    }

    /// Starts a run and waits until its agent works.
    fn working(&self, args: &[&str]) -> Child {
        let mut all = args.to_vec();
        all.extend(["--", "sh", "-c", WORK_THEN_SLEEP]);
        let child = self.spawn(&all);
        until("the run to work", || {
            let logs = self.cofferdam(&["logs", "--output", "last"]).stdout;
            logs.contains("READY").then_some(())
        });
        child
    }

    fn last(&self) -> Value {
        self.cofferdam(&["show", "--json", "last"]).expect(0).json()
    }

    /// What the engine itself says to be there of the newest run.
    fn remains(&self) -> Vec<String> {
        let run = self.last()["run"].as_str().unwrap().to_owned();
        let filter = format!("label=cofferdam.run={run}");
        let mut found = Vec::new();
        for args in [["ps", "-aq"], ["volume", "ls"]] {
            let mut command = Command::new("docker");
            command.args(["-H", &docker_host()]).args(args).args(["--filter", &filter]);
            if args[0] == "volume" {
                command.arg("-q");
            }
            let out = command.output().unwrap();
            assert!(out.status.success());
            found.extend(String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned));
        }
        found
    }

    /// The engine answers again: a sweep leaves nothing, and says nothing failed.
    #[track_caller]
    fn healed(&self) {
        self.proxy.heal();
        let swept = self.cofferdam(&["sweep", "--json"]).expect(0).json();
        assert_eq!(swept["failed"], serde_json::json!([]), "{swept}");
        assert_eq!(self.remains(), Vec::<String>::new());
        self.world.assert_nothing_left();
    }
}

fn code(result: &Value) -> &str {
    result["verdict"]["cause"]["code"].as_str().unwrap_or("none")
}

/// Seconds from the stop to the last entry of the record.
fn seconds_after_stop(faulty: &Faulty) -> u64 {
    let record = faulty.cofferdam(&["record", "show", "last"]).expect(0).json();
    let entries = record["entries"].as_array().unwrap().clone();
    let at = |e: &Value| e["at"].as_u64().unwrap_or_else(|| panic!("no time in {e}"));
    let stopped = entries.iter().find(|e| e["type"] == "stopped").expect("a stop");
    (at(entries.last().unwrap()) - at(stopped)) / 1000
}

/// The bound is 10 s; a machine that is busy with other tests gets as much again.
const BOUND: u64 = 20;

#[test]
fn a_hung_create_does_not_outlive_the_wall_clock() {
    let faulty = Faulty::new();
    faulty.proxy.fault("POST", "/containers/create", Fault::Hang);
    faulty.run(&["--wall-clock", "3s", "--", "true"]).expect(1);
    assert_eq!(code(&faulty.last()), "RUN-051");
    assert!(seconds_after_stop(&faulty) <= BOUND);
    faulty.healed();
}

#[test]
fn a_create_that_nobody_hears_of_leaves_nothing() {
    let faulty = Faulty::new();
    faulty.proxy.fault("POST", "/containers/create", Fault::Deaf);
    faulty.run(&["--wall-clock", "3s", "--", "true"]).expect(1);
    assert_eq!(faulty.remains(), Vec::<String>::new(), "found by its label though never answered");
    faulty.healed();
}

#[test]
fn a_hung_start_does_not_outlive_the_wall_clock() {
    let faulty = Faulty::new();
    faulty.proxy.fault("POST", "/start", Fault::Hang);
    faulty.run(&["--wall-clock", "3s", "--", "true"]).expect(1);
    assert_eq!(code(&faulty.last()), "RUN-051");
    assert_eq!(faulty.remains(), Vec::<String>::new());
    faulty.healed();
}

#[test]
fn a_hung_attach_does_not_outlive_a_cancel() {
    let faulty = Faulty::new();
    faulty.proxy.fault("POST", "/attach", Fault::Hang);
    let child = faulty.spawn(&["--", "true"]);
    until("the engine to be asked to attach", || {
        faulty.proxy.seen().iter().filter(|s| s.contains("/attach")).nth(1).map(|_| ())
    });
    faulty.cofferdam(&["cancel", "last"]).expect(0);
    finish(child).expect(130);
    assert_eq!(code(&faulty.last()), "RUN-050");
    faulty.healed();
}

#[test]
fn a_hung_wait_is_no_reason_to_miss_an_end() {
    let faulty = Faulty::new();
    faulty.proxy.fault("POST", "/wait", Fault::Hang);
    faulty.run(&["--", "sh", "-c", "echo x > x; git add x; git commit -qm x"]).expect(0);
    assert_eq!(faulty.last()["outcome"], "completed");
    faulty.healed();
}

#[test]
fn a_hung_kill_is_given_up_on_and_what_is_left_is_named_and_swept() {
    let faulty = Faulty::new();
    let child = faulty.working(&["--wall-clock", "6s"]);
    // A container that ends by nothing but a kill.
    let id = faulty.remains()[0].clone();
    let stop = ["-H", &docker_host(), "kill", "--signal", "STOP", &id];
    assert!(Command::new("docker").args(stop).output().unwrap().status.success());
    faulty.proxy.fault("POST", "/kill", Fault::Hang);
    finish(child).expect(1);
    let result = faulty.last();
    let text = result["verdict"].to_string();
    assert!(text.contains("RUN-051") && text.contains("RUN-030"), "{result:#}");
    assert!(text.contains("cofferdam sweep"), "what to do is said: {result:#}");
    assert!(seconds_after_stop(&faulty) <= BOUND);
    assert!(!faulty.remains().is_empty(), "nothing was removed unsaved");
    faulty.healed();
    assert_kept(&faulty);
}

/// The committed work is home, or lies in the run's salvage.
#[track_caller]
fn assert_kept(faulty: &Faulty) {
    let result = faulty.last();
    if result["collected"]["commits"].as_u64().is_some_and(|commits| commits > 0) {
        return;
    }
    let run = result["run"].as_str().unwrap().to_owned();
    let kept = faulty.world.data().join("salvage").join(run).join("work/w.txt");
    assert_eq!(std::fs::read_to_string(&kept).unwrap_or_default(), "work\n", "{}", kept.display());
}

#[test]
fn a_hung_remove_is_told_and_swept_later() {
    let faulty = Faulty::new();
    faulty.proxy.fault("DELETE", "/containers/", Fault::Hang);
    faulty.run(&["--", "sh", "-c", "echo x > x; git add x; git commit -qm x"]).expect(1);
    let result = faulty.last();
    assert_eq!(code(&result), "RUN-030", "{result:#}");
    assert_eq!(result["collected"]["commits"], 1, "the work is home all the same");
    faulty.healed();
}

#[test]
fn an_engine_that_dies_in_the_middle_costs_no_work() {
    let faulty = Faulty::new();
    let child = faulty.working(&[]);
    faulty.proxy.fault("", "", Fault::Drop);
    faulty.proxy.cut_all();
    finish(child).expect(1);
    let result = faulty.last();
    let text = result["verdict"].to_string();
    assert!(text.contains("RUN-010") && text.contains("RUN-030"), "{result:#}");
    assert!(seconds_after_stop(&faulty) <= BOUND);
    faulty.healed();
    assert_kept(&faulty);
}

#[test]
fn an_engine_that_hangs_in_the_middle_does_not_hold_a_cancel() {
    let faulty = Faulty::new();
    let child = faulty.working(&[]);
    faulty.proxy.fault("", "", Fault::Hang);
    let id = faulty.remains()[0].clone();
    let stop = ["-H", &docker_host(), "kill", "--signal", "STOP", &id];
    assert!(Command::new("docker").args(stop).output().unwrap().status.success());
    faulty.cofferdam(&["cancel", "last"]).expect(0);
    finish(child).expect(1);
    assert!(seconds_after_stop(&faulty) <= BOUND);
    let text = faulty.last()["verdict"].to_string();
    assert!(text.contains("RUN-050") && text.contains("RUN-030"), "{text}");
    faulty.healed();
    assert_kept(&faulty);
}

#[test]
fn an_engine_that_is_restarted_in_the_middle_leaves_nothing_and_the_work_is_kept() {
    let faulty = Faulty::new();
    let child = faulty.working(&[]);
    faulty.proxy.cut_all();
    finish(child).expect(1);
    let result = faulty.last();
    let kept = result["collected"]["outcome"] == "fetched"
        || result["collected"]["salvage"].as_str().is_some();
    assert!(kept, "{result:#}");
    assert_eq!(faulty.remains(), Vec::<String>::new());
    faulty.healed();
}

#[test]
fn an_engine_that_refuses_is_told_as_a_failure_of_the_host() {
    let faulty = Faulty::new();
    faulty.proxy.fault("POST", "/containers/create", Fault::Refuse);
    let ran = faulty.run(&["--", "true"]).expect(1);
    assert!(ran.stdout.contains("broken on purpose"), "{}", ran.stdout);
    assert_eq!(faulty.remains(), Vec::<String>::new());
    faulty.healed();
}

#[test]
fn an_answer_that_is_cut_short_is_no_answer() {
    let faulty = Faulty::new();
    faulty.proxy.fault("GET", "/json", Fault::Cut(90));
    faulty.run(&["--wall-clock", "20s", "--", "true"]).expect(1);
    faulty.healed();
}

#[test]
fn a_slow_engine_is_waited_for() {
    let faulty = Faulty::new();
    let delay = std::time::Duration::from_millis(700);
    for part in ["/containers/create", "/start", "/attach", "/wait"] {
        faulty.proxy.fault("POST", part, Fault::Delay(delay));
    }
    faulty.run(&["--", "true"]).expect(0);
    faulty.healed();
}

#[test]
fn a_sweep_does_not_hang_on_an_engine_that_does_and_forgets_nothing() {
    let faulty = Faulty::new();
    let mut child = faulty.working(&[]);
    child.kill().unwrap();
    child.wait().unwrap();
    faulty.proxy.fault("", "/json", Fault::Hang);
    let swept = faulty.cofferdam(&["sweep", "--json"]);
    assert!(swept.stdout.contains("docker"), "the engine is named: {swept:#?}");
    faulty.healed();
    assert_kept(&faulty);
}

/// Kills the host while the engine hangs in a call, then sweeps.
#[track_caller]
fn killed_during(method: &'static str, part: &'static str, fault: Fault) {
    let faulty = Faulty::new();
    let before = faulty.proxy.seen().len();
    faulty.proxy.fault(method, part, fault);
    let mut child =
        faulty.spawn(&["--", "sh", "-c", "echo work > w.txt; git add .; git commit -qm work"]);
    until("the engine to be asked", || {
        let asked = |s: &&String| s.starts_with(method) && s.contains(part);
        faulty.proxy.seen()[before..].iter().find(asked).map(|_| ())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    faulty.healed();
    let result = faulty.last();
    assert!(result["verdict"].to_string().contains("RUN-053"), "{result:#}");
}

#[test]
fn a_host_killed_while_preparing_is_swept() {
    killed_during("POST", "/containers/create", Fault::Deaf);
}

#[test]
fn a_host_killed_while_starting_is_swept() {
    killed_during("POST", "/start", Fault::Deaf);
}

#[test]
fn a_host_killed_while_tearing_down_is_swept() {
    killed_during("DELETE", "/volumes/", Fault::Hang);
}
