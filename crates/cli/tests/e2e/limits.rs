//! Each limit that trips is named: memory, processes, disk, inodes, processor time. Wall clock, output
//! and tokens are with what stops a run.
//!
//! needs: root, because the kernel counts for us only in a cgroup of ours.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Engine, Ran, World, finish, is_root};

fn world() -> World {
    assert!(is_root(), "needs: root, because the limits need a writable cgroup");
    World::new(Engine::Native)
}

#[track_caller]
fn cause(world: &World) -> Value {
    let verdict = world.last()["verdict"].clone();
    assert_eq!(verdict["outcome"], "failed", "{verdict:#}");
    verdict["cause"].clone()
}

#[track_caller]
fn budget(world: &World, ran: &Ran, name: &str) {
    let cause = cause(world);
    assert_eq!(cause["code"], "RUN-051", "{cause:#}\n{ran:#?}");
    assert_eq!(cause["budget"], name, "{cause:#}");
}

/// What the record says that the run used.
fn used(world: &World, what: &str) -> u64 {
    let usage = world.fact("resources")["usage"].clone();
    usage[what].as_u64().unwrap_or_else(|| panic!("no {what} in {usage:#}"))
}

#[test]
fn a_child_that_runs_out_of_memory_names_it_although_the_agent_goes_on() {
    let world = world();
    let script = "python3 -c 'b = bytearray(400 * 1024 * 1024)'; exit 0";
    world.run(&["--memory", "128MiB", "--", "sh", "-c", script]).expect(1);
    assert_eq!(cause(&world)["code"], "RUN-052");
    assert!(used(&world, "oom_kills") >= 1);
    assert!(used(&world, "memory_peak_bytes") <= 128 << 20);
    world.assert_nothing_left();
}

#[test]
fn a_supervisor_that_the_kernel_kills_for_memory_names_it_too() {
    let world = world();
    // Memory that no death gives back: when the agent is gone, the supervisor is the next.
    let script = "while :; do head -c 1048576 /dev/zero >> /dev/shm/full; done";
    world.run(&["--memory", "64MiB", "--", "sh", "-c", script]).expect(1);
    let verdict = world.last()["verdict"].to_string();
    assert!(verdict.contains("RUN-052"), "{verdict}");
    assert!(used(&world, "oom_kills") >= 1);
    world.assert_nothing_left();
}

#[test]
fn a_fork_bomb_ends_with_the_process_limit() {
    let world = world();
    let bomb = "import os, sys, time\n\
                while True:\n\
                \u{20}   try:\n\
                \u{20}       pid = os.fork()\n\
                \u{20}   except OSError:\n\
                \u{20}       sys.exit(7)\n\
                \u{20}   if pid == 0:\n\
                \u{20}       time.sleep(60)\n\
                \u{20}       os._exit(0)\n";
    world.run(&["--pids", "40", "--", "python3", "-c", bomb]).expect(1);
    assert_eq!(cause(&world)["code"], "RUN-059");
    assert!(used(&world, "pids_refused") >= 1);
    world.assert_nothing_left();
}

#[test]
fn work_that_outgrows_the_disk_bound_is_stopped_by_name_and_brought_back() {
    let world = world();
    let script = "echo work > w.txt && git add w.txt && git commit -q -m work; cd /work; \
                  for n in $(seq 1 2000); do head -c 1048576 /dev/urandom > f$n; sleep 0.02; done; sleep 600";
    let ran = world.run(&["--work-size", "64MiB", "--", "sh", "-c", script]).expect(1);
    budget(&world, &ran, "work_bytes");
    assert!(used(&world, "work_bytes") > 64 << 20);
    assert_eq!(world.last()["collected"]["commits"], 1, "what it had made comes back");
    world.assert_nothing_left();
}

#[test]
fn work_that_grows_on_while_it_is_stopped_is_killed() {
    let world = world();
    // Deleted at once, and held open: no walk of the tree meets it.
    let script = "trap '' TERM; exec 9>/work/hidden; rm /work/hidden; \
                  head -c 3000000000 /dev/zero >&9; sleep 600";
    let ran = world.run(&["--work-size", "64MiB", "--", "sh", "-c", script]).expect(1);
    let verdict = world.last()["verdict"].to_string();
    assert!(verdict.contains("RUN-051") && verdict.contains("work_bytes"), "{verdict}\n{ran:#?}");
    world.assert_nothing_left();
}

#[test]
fn too_many_files_are_stopped_by_name() {
    let world = world();
    let script = "mkdir /work/many; cd /work/many; n=0; \
                  while [ $n -lt 6000 ]; do : > $n; n=$((n+1)); done; sleep 600";
    let ran = world.run(&["--work-files", "2000", "--", "sh", "-c", script]).expect(1);
    budget(&world, &ran, "work_files");
    assert!(used(&world, "work_files") > 2_000);
    world.assert_nothing_left();
}

#[test]
fn processor_time_is_a_budget_of_its_own() {
    let world = world();
    let script = "while :; do :; done & while :; do :; done";
    let ran = world.run(&["--cpu-time", "2s", "--", "sh", "-c", script]).expect(1);
    budget(&world, &ran, "cpu_time");
    assert!(used(&world, "cpu_ms") > 2_000);
    world.assert_nothing_left();
}

#[test]
fn no_run_uses_up_the_hosts_last_space() {
    let world = world();
    // More than any file system has: the floor is reached from the first moment.
    let config = "[run]\ndisk_floor = \"100000000GiB\"\n";
    std::fs::write(world.dir.path().join("config.toml"), config).unwrap();
    world.run_shell("sleep 600").expect(1);
    let verdict = world.last()["verdict"].to_string();
    assert!(verdict.contains("host_disk"), "{verdict}");
    world.assert_nothing_left();
}

/// The command as a user that owns this world and nothing else.
fn as_ordinary_user(world: &World, args: &[&str]) -> Ran {
    let own = ["-R", "23456:23456", world.dir.path().to_str().unwrap()];
    assert!(Command::new("chown").args(own).status().unwrap().success());
    let inner = world.command(args);
    let mut command = Command::new("/usr/bin/setpriv");
    command.args(["--reuid", "23456", "--regid", "23456", "--clear-groups", "--"]);
    command.arg(inner.get_program()).args(inner.get_args()).env_clear();
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(world.repo());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap())
}

#[test]
fn an_ordinary_user_is_told_which_limits_do_not_hold_and_refused_unless_they_are_accepted() {
    let world = world();
    let run = ["run", "--engine", "native"];
    let agent = ["--", "true"];
    let refused = as_ordinary_user(&world, &[&run[..], &agent].concat());
    assert_eq!(refused.code, Some(1), "{refused:#?}");
    assert!(refused.stdout.contains("RUN-022"), "{refused:#?}");
    assert!(refused.stdout.contains("memory_limit"), "{refused:#?}");
    let accept = ["--accept-degraded", "memory_limit,pids_limit,cpu_limit"];
    let ran = as_ordinary_user(&world, &[&run[..], &accept, &agent].concat());
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let last = as_ordinary_user(&world, &["show", "--json", "last"]).json();
    let warnings = last["verdict"]["warnings"].to_string();
    for layer in ["memory_limit", "pids_limit", "cpu_limit"] {
        assert!(warnings.contains(layer), "{warnings}");
    }
    // A budget of processor time needs somebody to count it.
    let accept = ["--accept-degraded", "memory_limit,pids_limit", "--cpu-time", "5m"];
    let ran = as_ordinary_user(&world, &[&run[..], &accept, &agent].concat());
    assert!(ran.code == Some(1) && ran.stdout.contains("cpu_limit"), "{ran:#?}");
}

#[test]
fn a_run_within_its_limits_completes_and_says_what_it_used() {
    let world = world();
    world
        .run_shell("head -c 1048576 /dev/urandom > big; git add big; git commit -qm big")
        .expect(0);
    for what in ["cpu_ms", "memory_peak_bytes", "work_bytes", "work_files"] {
        assert!(used(&world, what) > 0, "{what}");
    }
    assert_eq!(used(&world, "oom_kills"), 0);
    assert_eq!(used(&world, "pids_refused"), 0);
    assert!(used(&world, "work_bytes") > 1 << 20);
    world.assert_nothing_left();
}
