//! The service with real runs: they outlive their command, survive a killed service, wait their turn.

use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::time::Duration;

use cofferdam_api::{Client, NewTask, Place, StartedTask};
use cofferdam_daemon::wish::RunWish;
use cofferdam_run::retry::RetryPolicy;
use cofferdam_testkit::model::{Script, Turn};
use serde_json::Value;

use crate::support::{Engine, World, on_both_engines};

on_both_engines! {
    a_detached_run_outlives_its_command_and_brings_its_commits,
    a_killed_service_is_followed_by_one_that_tries_again,
}

/// Ends the world's service whatever becomes of the test.
struct Ended<'a>(&'a World);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.cofferdam(&["stop"]);
    }
}

/// A service of its own process, listening; killed when dropped.
struct Serving(Child);

impl Serving {
    fn start(world: &World, more: &[&str]) -> Self {
        let args = [&["serve", "--listen", "127.0.0.1:0", "--json"], more].concat();
        // Without the key: what a run needs is handed over by the command that asks for it.
        let mut child = world.command(&args).env_remove("TEST_MODEL_KEY").spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // It says where it is once it listens.
        let told = lines.by_ref().map(Result::unwrap).find(|line| line.contains("\"url\""));
        assert!(told.is_some());
        std::thread::spawn(move || lines.for_each(drop));
        Self(child)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wish(world: &World, script: &str) -> RunWish {
    let args = world.run_args(&[]);
    let accept = args.iter().position(|a| *a == "--accept-degraded").map(|i| args[i + 1]);
    RunWish {
        checkout: world.repo().display().to_string(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        engine: Some(world.engine.name().parse().unwrap()),
        accept_degraded: accept.iter().flat_map(|a| a.split(',')).map(str::to_owned).collect(),
        ..RunWish::default()
    }
}

fn start(world: &World, key: &str, new: &NewTask) -> StartedTask {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let place = Place::of(&world.data());
    runtime.block_on(async {
        Client::find(&place).await.expect("a service").start(key, new).await.unwrap()
    })
}

fn show(world: &World, run: &str) -> Value {
    world.cofferdam(&["show", "--json", run]).json()
}

/// Looks until it is so. The bound is for a hang, not for a slow machine.
#[track_caller]
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..1_800 {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{what} did not happen");
}

fn rows(world: &World) -> Vec<Value> {
    world.cofferdam(&["ps", "--json"]).expect(0).json()["runs"].as_array().unwrap().clone()
}

fn state(world: &World, run: &str) -> String {
    let row = rows(world).into_iter().find(|row| row["run"] == run);
    row.map(|row| row["state"].as_str().unwrap().to_owned()).unwrap_or_default()
}

const COMMIT: &str = "echo made > made.txt && git add made.txt && git commit -qm Made";

fn a_detached_run_outlives_its_command_and_brings_its_commits(engine: Engine) {
    let world = World::new(engine);
    let _ended = Ended(&world);
    let started = world.run(&["--detach", "--json", "--", "sh", "-c", COMMIT]).expect(0).json();
    let run = started["run"].as_str().unwrap().to_owned();
    world.cofferdam(&["logs", "-f", &run]).expect(0);
    let shown = show(&world, &run);
    assert_eq!(shown["verdict"]["outcome"], "completed", "{shown}");
    world.cofferdam(&["apply", &run]).expect(0);
    assert_eq!(world.read("made.txt"), "made\n");
    // The same service takes the next one, and a run that is over is not cancelled.
    let next = world.run(&["--detach", "--json", "--", "true"]).expect(0).json();
    world.cofferdam(&["logs", "-f", next["run"].as_str().unwrap()]).expect(0);
    world.cofferdam(&["cancel", &run]).expect(4);
    world.cofferdam(&["stop"]).expect(0);
}

fn a_killed_service_is_followed_by_one_that_tries_again(engine: Engine) {
    let world = World::new(engine);
    let mut first = Serving::start(&world, &[]);
    let soon = RetryPolicy { base_ms: 100, max_ms: 100, ..RetryPolicy::default() };
    let script = format!("sleep 5; {COMMIT}");
    let new = NewTask { wish: wish(&world, &script), retry: Some(soon), ..NewTask::default() };
    let started = start(&world, "one", &new);
    let run = started.run.to_string();
    wait_for("the agent's start", || (state(&world, &run) == "executing").then_some(()));
    first.kill();
    let _second = Serving::start(&world, &[]);
    // The same request again, as a client would that got no answer: nothing is made twice.
    let again = start(&world, "one", &new);
    assert_eq!((again.repeated, &again.task), (true, &started.task));
    let done = wait_for("the second attempt's end", || {
        rows(&world).into_iter().find(|row| row["state"] == "completed")
    });
    assert_ne!(done["run"], run.as_str());
    let lost = show(&world, &run);
    assert_eq!(lost["verdict"]["outcome"], "failed", "{lost}");
    assert_eq!(rows(&world).len(), 2, "{:?}", rows(&world));
    assert_eq!(done["commits"], 1);
    world.cofferdam(&["stop"]).expect(0);
}

#[test]
fn the_key_is_handed_over_and_is_on_no_disk() {
    let script = Script::new([Turn::say("nothing to do")]);
    let world = World::with_model(Engine::Native, "anthropic", script);
    let serving = Serving::start(&world, &[]);
    let started = world.run(&["--detach", "--json", "Look around"]).expect(0).json();
    let run = started["run"].as_str().unwrap();
    world.cofferdam(&["logs", "-f", run]).expect(0);
    let shown = show(&world, run);
    assert_eq!(shown["verdict"]["outcome"], "completed", "{shown}");
    for entry in walk(&world.data()) {
        let bytes = std::fs::read(&entry).unwrap_or_default();
        let key = crate::support::KEY.as_bytes();
        let found = bytes.windows(key.len()).any(|window| window == key);
        assert!(!found, "the key is in {}", entry.display());
    }
    // A later attempt has it no more once the service is another one, and says so.
    drop(serving);
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(walk(&entry.path())),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}

#[test]
fn runs_past_the_bound_wait_their_turn_and_stopping_cancels_what_is_live() {
    let world = World::new(Engine::Native);
    let mut serving = Serving::start(&world, &["--runs", "1"]);
    let first = start(
        &world,
        "a",
        &NewTask { wish: wish(&world, "echo one > one.txt; sleep 600"), ..NewTask::default() },
    );
    let (first, second) = (first.run.to_string(), {
        let new = NewTask { wish: wish(&world, "true"), ..NewTask::default() };
        start(&world, "b", &new).run.to_string()
    });
    wait_for("the first to begin", || (state(&world, &first) == "executing").then_some(()));
    assert_eq!(state(&world, &second), "queued");
    world.cofferdam(&["stop"]).expect(0);
    wait_for("the service's end", || serving.0.try_wait().unwrap());
    assert_eq!(show(&world, &first)["verdict"]["outcome"], "cancelled");
    // What had not begun waits for the next service.
    assert_eq!(state(&world, &second), "queued");
    let _next = Serving::start(&world, &[]);
    wait_for("the second's end", || (state(&world, &second) == "completed").then_some(()));
    world.cofferdam(&["retry", &first]).expect(0);
    world.cofferdam(&["stop"]).expect(0);
}
