//! Stopping stops: budgets, cancel, killed guests, killed hosts, floods. Nothing lost, nothing left.

use std::process::Command;

use cofferdam_testkit::model::{Script, Turn, Usage};
use serde_json::json;

use crate::support::{
    Engine, World, command_line, descendants, docker_host, finish, on_both_engines, until,
};

on_both_engines!(
    an_agent_that_never_ends_is_stopped_by_the_wall_clock,
    ctrl_c_cancels_brings_the_work_and_leaves_nothing,
    a_killed_guest_is_told_as_such_and_leaves_nothing,
    a_killed_host_is_reconciled_by_sweep,
    an_agent_that_prints_a_gigabyte_is_cut_and_completes,
    cancel_from_another_process_stops_the_run,
    out_of_memory_has_its_own_cause,
);

const WORK_THEN_SLEEP: &str = "echo work > w.txt && git add w.txt && git commit -q -m work && echo READY && trap '' TERM && sleep 600";

fn an_agent_that_never_ends_is_stopped_by_the_wall_clock(engine: Engine) {
    let world = World::new(engine);
    let ran = world.run(&["--wall-clock", "6s", "--", "sh", "-c", WORK_THEN_SLEEP]).expect(1);
    assert!(ran.stdout.contains("RUN-051") && ran.stdout.contains("wall_clock"), "{}", ran.stdout);
    assert_eq!(world.last()["collected"]["commits"], 1, "what it had made comes back");
    world.assert_nothing_left();
}

/// Starts a run in the background and waits until its agent works.
fn started(world: &World, script: &str) -> (std::process::Child, String) {
    let child = world.command(&world.run_args(&["--", "sh", "-c", script])).spawn().unwrap();
    let id = until("the run to work", || {
        let listed = world.cofferdam(&["ps", "--json"]).json();
        let id = listed["runs"][0]["run"].as_str()?.to_owned();
        let logs = world.cofferdam(&["logs", "--output", &id]).stdout;
        logs.contains("READY").then_some(id)
    });
    (child, id)
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn ctrl_c_cancels_brings_the_work_and_leaves_nothing(engine: Engine) {
    let world = World::new(engine);
    let (child, id) = started(&world, WORK_THEN_SLEEP);
    signal("-INT", child.id());
    let ran = finish(child).expect(130);
    assert!(ran.stdout.contains("cancelled") && ran.stdout.contains("RUN-050"), "{}", ran.stdout);
    let result = world.cofferdam(&["show", "--json", &id]).expect(0).json();
    assert_eq!(result["collected"]["commits"], 1, "{result:#}");
    world.assert_nothing_left();
}

fn cancel_from_another_process_stops_the_run(engine: Engine) {
    let world = World::new(engine);
    let (child, id) = started(&world, WORK_THEN_SLEEP);
    world.cofferdam(&["cancel", &id]).expect(0);
    finish(child).expect(130);
    world.cofferdam(&["cancel", &id]).expect(4);
    world.assert_nothing_left();
}

/// Kills the sandbox's first process from outside.
fn kill_guest(world: &World, child: &std::process::Child) {
    match world.engine {
        Engine::Native => {
            let guest = descendants(child.id())
                .into_iter()
                .find(|p| command_line(*p).starts_with("/cofferdam/guest"))
                .expect("the guest is a descendant");
            signal("-KILL", guest);
        }
        Engine::Docker => {
            let docker = |args: &[&str]| {
                let out = Command::new("docker")
                    .args(["-H", &docker_host()])
                    .args(args)
                    .output()
                    .unwrap();
                String::from_utf8(out.stdout).unwrap()
            };
            let run = world.cofferdam(&["ps", "--json"]).json()["runs"][0]["run"]
                .as_str()
                .unwrap()
                .to_owned();
            let found = docker(&["ps", "-q", "--filter", &format!("label=cofferdam.run={run}")]);
            docker(&["kill", found.trim()]);
        }
    }
}

fn a_killed_guest_is_told_as_such_and_leaves_nothing(engine: Engine) {
    let world = World::new(engine);
    let (child, _) = started(&world, WORK_THEN_SLEEP);
    kill_guest(&world, &child);
    let ran = finish(child).expect(1);
    assert!(ran.stdout.contains("failed"), "{}", ran.stdout);
    let result = world.last();
    // The work could not be handed over: lost work outranks the broken link, and it is named.
    assert_eq!(result["verdict"]["cause"]["code"], "RUN-010", "{result:#}");
    let salvage = result["collected"]["salvage"].as_str().expect("the work was kept");
    let kept = std::path::Path::new(salvage).join("work/w.txt");
    assert_eq!(std::fs::read_to_string(&kept).unwrap_or_default(), "work\n", "{}", kept.display());
    world.assert_nothing_left();
}

fn a_killed_host_is_reconciled_by_sweep(engine: Engine) {
    let world = World::new(engine);
    let (mut child, id) = started(&world, WORK_THEN_SLEEP);
    child.kill().unwrap();
    child.wait().unwrap();
    // The lease of the dead process has to run out first; then it is told as lost.
    until("the run to be told as lost", || {
        let listed = world.cofferdam(&["ps", "--json"]).json();
        (listed["runs"][0]["lost"] == true).then_some(())
    });
    let shown = world.cofferdam(&["show", &id]).expect(0).stdout;
    assert!(shown.contains("cofferdam sweep"), "{shown}");
    let swept = until("sweep to settle the run", || {
        let swept = world.cofferdam(&["sweep", "--json"]).json();
        (swept["settled"][0] == json!(id)).then_some(swept)
    });
    assert_eq!(swept["failed"], json!([]), "{swept}");
    let result = world.cofferdam(&["show", "--json", &id]).expect(0).json();
    assert_eq!(result["outcome"], "failed");
    let text = result["verdict"].to_string();
    assert!(text.contains("RUN-053"), "the lost host is named: {result:#}");
    assert_eq!(result["verdict"]["cause"]["code"], "RUN-010", "lost work outranks it: {result:#}");
    let salvage = result["collected"]["salvage"].as_str().expect("the work was kept");
    assert!(std::path::Path::new(salvage).join("work/w.txt").exists(), "{salvage}");
    world.assert_nothing_left();
}

fn an_agent_that_prints_a_gigabyte_is_cut_and_completes(engine: Engine) {
    let world = World::new(engine);
    std::fs::write(world.dir.path().join("config.toml"), "[run]\noutput = \"1MiB\"\n").unwrap();
    let ran = world
        .run(&["--quiet", "--", "sh", "-c", "head -c 1000000000 /dev/zero | tr '\\0' x"])
        .expect(0);
    assert!(ran.stderr.len() < 2 << 20, "{} bytes came through", ran.stderr.len());
    let cut = world.fact("agent_ended")["output_cut_bytes"].as_u64().unwrap();
    assert!(cut > 990_000_000, "only {cut} bytes were counted as cut");
    world.assert_nothing_left();
}

fn out_of_memory_has_its_own_cause(engine: Engine) {
    if !crate::support::is_root() {
        panic!("needs: root, because the memory limit needs a writable cgroup");
    }
    let world = World::new(engine);
    let hog = "b = bytearray(400 * 1024 * 1024)";
    let ran = world.run(&["--memory", "128MiB", "--", "python3", "-c", hog]).expect(1);
    assert!(ran.stdout.contains("RUN-052"), "{}", ran.stdout);
    world.assert_nothing_left();
}

#[test]
fn a_token_budget_binds_in_the_middle_of_a_run() {
    let big = Usage { input: 4_000, output: 300, ..Usage::default() };
    // Each turn does something new: the agent itself would stop one that goes in circles.
    let turn =
        |n: u32| Turn::call("run_shell", json!({ "command": format!("echo {n}") })).with_usage(big);
    let script = Script::new((0..50).map(turn));
    let world = World::with_model(Engine::Native, "anthropic", script);
    let ran = world.run(&["--tokens", "60000", "spend"]);
    let result = world.last();
    let spent = result["spend"].clone();
    assert_eq!(ran.code, Some(1), "{result:#}");
    assert_eq!(result["verdict"]["cause"]["budget"], "tokens", "{result:#}");
    let tokens: u64 = ["input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"]
        .iter()
        .map(|k| spent[k].as_u64().unwrap())
        .sum();
    // The script reports more input than its bytes could hold, so the last call may cost more than
    // was reserved for it; no further one is admitted.
    assert!(tokens < 60_000 + 4_300, "spent {tokens} of 60000");
    world.assert_nothing_left();
}
