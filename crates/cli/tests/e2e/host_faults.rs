//! Guests that misbehave, hosts that are killed, ledgers that are locked, disks that are full: the run
//! ends in its bound with the right cause, work is kept, nothing is left.
//!
//! On the native engine, where the host kills by itself; `engine_faults` has the engine's own failures.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::{
    Engine, Ran, World, bin_dir, command_line, descendants, finish, is_root, until,
};

const WORK_THEN_SLEEP: &str =
    "echo work > w.txt && git add w.txt && git commit -q -m work && echo READY && sleep 600";

/// Starts a run and waits until its agent works.
fn working(world: &World, args: &[&str]) -> Child {
    let mut all = args.to_vec();
    all.extend(["--", "sh", "-c", WORK_THEN_SLEEP]);
    let child = world.command(&world.run_args(&all)).spawn().unwrap();
    until("the run to work", || {
        let logs = world.cofferdam(&["logs", "--output", "last"]).stdout;
        logs.contains("READY").then_some(())
    });
    child
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn guest_of(child: &Child) -> u32 {
    let mine = descendants(child.id());
    let guest = mine.into_iter().find(|p| command_line(*p).starts_with("/cofferdam/guest"));
    guest.expect("the guest is a descendant")
}

fn verdict(world: &World) -> String {
    world.last()["verdict"].to_string()
}

#[track_caller]
fn assert_work_kept(world: &World) {
    let result = world.last();
    let salvage = result["collected"]["salvage"].as_str().expect("the work was kept");
    let kept = std::path::Path::new(salvage).join("work/w.txt");
    assert_eq!(std::fs::read_to_string(&kept).unwrap_or_default(), "work\n", "{}", kept.display());
}

/// R4: a run in which nothing moves any more ends long before its wall clock.
#[test]
fn a_silent_agent_is_stopped_by_the_silence_budget_and_its_work_comes_home() {
    let world = World::new(Engine::Native);
    world.run(&["--silence", "2s", "--", "sh", "-c", WORK_THEN_SLEEP]).expect(1);
    let text = verdict(&world);
    assert!(text.contains("RUN-051") && text.contains("silence"), "{text}");
    assert_eq!(world.last()["collected"]["commits"], 1);
    world.assert_nothing_left();
}

#[test]
fn an_agent_that_speaks_now_and_then_is_not_silent() {
    let world = World::new(Engine::Native);
    let script = "for i in 1 2 3 4 5 6; do echo $i; sleep 1; done";
    world.run(&["--silence", "3s", "--", "sh", "-c", script]).expect(0);
    world.assert_nothing_left();
}

/// R4, R46: a guest that hangs answers nothing; the limit and the killer are outside of it.
#[test]
fn a_hung_guest_is_killed_from_outside_and_its_work_is_kept() {
    let world = World::new(Engine::Native);
    let child = working(&world, &["--silence", "3s"]);
    signal("-STOP", guest_of(&child));
    finish(child).expect(1);
    let text = verdict(&world);
    assert!(text.contains("silence") && text.contains("RUN-010"), "{text}");
    assert_work_kept(&world);
    world.assert_nothing_left();
}

/// P12: cut at once, every process gone within ten seconds, whatever the guest does.
#[test]
fn a_cancel_ends_a_hung_guest_within_its_bound() {
    let world = World::new(Engine::Native);
    let child = working(&world, &[]);
    let guest = guest_of(&child);
    signal("-STOP", guest);
    signal("-INT", child.id());
    finish(child);
    assert!(!command_line(guest).starts_with("/cofferdam/guest"), "the guest is gone");
    let record = world.cofferdam(&["record", "show", "last"]).expect(0).json();
    let entries = record["entries"].as_array().unwrap().clone();
    let at = |kind: &str| {
        let entry = entries.iter().find(|e| e["type"] == kind).unwrap_or(&Value::Null);
        entry["at"].as_u64().unwrap_or_else(|| panic!("no {kind} in {record:#}"))
    };
    let took = at("sandbox_ended") - at("stopped");
    // The bound is 10 s; a busy machine gets as much again.
    assert!(took < 20_000, "{took} ms from the stop to the end of all processes");
    assert_work_kept(&world);
    world.assert_nothing_left();
}

/// The ledger's database, wherever below the data directory it is.
fn database(world: &World) -> std::path::PathBuf {
    let names = ["ledger.db", "ledger.sqlite/ledger.db", "ledger.sqlite"];
    let mut places = names.iter().map(|name| world.data().join(name));
    places.find(|place| place.is_file()).expect("a database")
}

/// R16: a ledger that another process has locked does not hold up the stop.
#[test]
fn a_locked_ledger_does_not_hold_up_a_stop() {
    let world = World::new(Engine::Native);
    let child = working(&world, &[]);
    let guest = guest_of(&child);
    let hold = "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
                c.execute('BEGIN IMMEDIATE')\nprint('held', flush=True)\nsys.stdin.read()";
    let mut holder = Command::new("python3")
        .args(["-c", hold])
        .arg(database(&world))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    signal("-INT", child.id());
    until("every process of the sandbox to be gone", || {
        (!command_line(guest).starts_with("/cofferdam/guest")).then_some(())
    });
    // Only now may the verdict be written.
    drop(holder.stdin.take());
    holder.wait().unwrap();
    finish(child).expect(130);
    assert_eq!(world.last()["collected"]["commits"], 1);
    world.assert_nothing_left();
}

/// S76: what the agent left running and that holds its output open keeps nothing waiting.
#[test]
fn children_that_keep_the_output_open_do_not_keep_the_run() {
    let world = World::new(Engine::Native);
    let script =
        "for i in 1 2 3; do setsid sleep 600 & done; (setsid sh -c 'sleep 600' &) ; echo done";
    let ran = world.run(&["--wall-clock", "60s", "--", "sh", "-c", script]).expect(0);
    assert!(ran.stderr.contains("done") || ran.stdout.contains("done"), "{ran:?}");
    world.assert_nothing_left();
}

/// A world whose guest is this shell script instead.
fn with_guest(script: &str) -> (World, tempfile::TempDir) {
    let world = World::new(Engine::Native);
    let bins = tempfile::tempdir().unwrap();
    std::fs::copy(bin_dir().join("cofferdam-launch"), bins.path().join("cofferdam-launch"))
        .unwrap();
    let guest = bins.path().join("cofferdam-guest");
    std::fs::write(&guest, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&guest, std::fs::Permissions::from_mode(0o755)).unwrap();
    (world, bins)
}

/// Runs it and looks that nothing is left and that the run failed with `cause`.
#[track_caller]
fn hostile_guest(script: &str, causes: &[&str]) {
    let (world, bins) = with_guest(script);
    let args = world.run_args(&["--quiet", "--", "true"]);
    let mut command = world.command(&args);
    command.env("COFFERDAM_BIN_DIR", bins.path());
    finish(command.spawn().unwrap()).expect(1);
    let text = verdict(&world);
    assert!(causes.iter().any(|cause| text.contains(cause)), "{text}");
    world.assert_nothing_left();
}

#[test]
fn a_guest_that_never_says_hello_is_given_up_on() {
    hostile_guest("exec sleep 600", &["RUN-056"]);
}

#[test]
fn a_guest_that_floods_the_control_stream_with_noise_is_cut() {
    hostile_guest("exec yes yes", &["RUN-054", "RUN-055", "RUN-056"]);
}

/// R64: an endless line is no reason to keep it.
#[test]
fn a_guest_that_floods_its_own_log_is_cut() {
    hostile_guest(
        "tr '\\0' x </dev/zero >&2 & sleep 2; exit 1",
        &["RUN-054", "RUN-055", "RUN-056"],
    );
}

#[test]
fn a_guest_that_closes_its_output_and_stays_is_ended() {
    hostile_guest("exec >&- ; exec sleep 600", &["RUN-054", "RUN-055", "RUN-056"]);
}

#[test]
fn a_guest_that_ends_at_once_is_told_as_such() {
    hostile_guest("exit 0", &["RUN-054", "RUN-055", "RUN-056"]);
}

/// R1, R49, S77: the next run settles what a killed host left, before it takes work itself.
#[test]
fn the_start_of_another_run_settles_what_a_killed_host_left() {
    let world = World::new(Engine::Native);
    let mut child = working(&world, &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    let lost = world.cofferdam(&["ps", "--json"]).json()["runs"][0].clone();
    assert_eq!(lost["lost"], true, "proven at once, without waiting for the lease: {lost}");
    let id = lost["run"].as_str().unwrap().to_owned();
    let ran = world.run(&["--", "true"]).expect(0);
    assert!(ran.stderr.contains(&id), "it is said: {}", ran.stderr);
    let result = world.cofferdam(&["show", "--json", &id]).expect(0).json();
    assert!(result["verdict"].to_string().contains("RUN-053"), "{result:#}");
    assert!(result["collected"]["salvage"].as_str().is_some(), "{result:#}");
    world.assert_nothing_left();
}

/// R2: a run whose process is gone has a way out for the person, at once.
#[test]
fn a_cancel_settles_a_run_whose_process_is_gone() {
    let world = World::new(Engine::Native);
    let mut child = working(&world, &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    let told = world.cofferdam(&["cancel", "--json", "last"]).expect(0).json();
    assert_eq!(told["cancel"], "settled");
    assert_work_kept(&world);
    world.assert_nothing_left();
}

/// S77, R7: nothing of a run whose process lives is touched, though a sweep runs beside it.
#[test]
fn a_sweep_beside_a_live_run_leaves_it_alone() {
    let world = World::new(Engine::Native);
    let child = working(&world, &[]);
    let dry = world.cofferdam(&["sweep", "--dry-run", "--json"]).expect(0).json();
    let swept = world.cofferdam(&["sweep", "--json"]).expect(0).json();
    for report in [&dry, &swept] {
        assert_eq!(report["live"].as_array().unwrap().len(), 1, "{report}");
        for what in ["settled", "removed", "directories", "failed"] {
            assert_eq!(report[what], json!([]), "{report}");
        }
    }
    signal("-INT", child.id());
    finish(child).expect(130);
    assert_eq!(world.last()["collected"]["commits"], 1);
    world.assert_nothing_left();
}

#[test]
fn a_dry_sweep_tells_and_changes_nothing() {
    let world = World::new(Engine::Native);
    let mut child = working(&world, &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    let tell = || world.cofferdam(&["sweep", "--dry-run", "--json"]).expect(0).json();
    let (first, second) = (tell(), tell());
    assert_eq!(first["settled"].as_array().unwrap().len(), 1, "{first}");
    assert_eq!(first, second);
    let swept = world.cofferdam(&["sweep", "--json"]).expect(0).json();
    assert_eq!(swept["settled"], first["settled"]);
    world.assert_nothing_left();
}

/// A host that is killed while a large result comes out loses nothing of it.
#[test]
fn a_host_killed_while_collecting_keeps_the_work() {
    let world = World::new(Engine::Native);
    let script = "echo work > w.txt; head -c 60000000 /dev/urandom > big.bin; git add .; \
                  git commit -qm work; echo READY";
    let mut child = world.command(&world.run_args(&["--", "sh", "-c", script])).spawn().unwrap();
    until("the agent to have ended", || {
        let listed = world.cofferdam(&["ps", "--json"]).json();
        let state = listed["runs"][0]["state"].as_str()?.to_owned();
        matches!(state.as_str(), "collecting" | "stopping" | "failed" | "completed").then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    world.cofferdam(&["sweep"]).expect(0);
    let result = world.last();
    let fetched = result["collected"]["commits"].as_u64().unwrap_or(0) > 0;
    assert!(fetched || result["collected"]["salvage"].as_str().is_some(), "{result:#}");
    world.assert_nothing_left();
}

/// Runs a shell script in a mount namespace of its own, with a small file system for the data.
fn with_small_disk(world: &World, size: &str, script: &str) -> Ran {
    assert!(is_root(), "needs: root, to mount a small file system in a namespace of its own");
    std::fs::create_dir_all(world.data()).unwrap();
    let script = format!(
        "set -u; mount -t tmpfs -o size={size},mode=0700 none \"$COFFERDAM_DATA_DIR\" || exit 99\n{script}"
    );
    let mut inner = world.command(&[]);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    command.env_clear().current_dir(world.repo());
    for (name, value) in inner.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command.env("COFFERDAM", inner.get_program());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Made only for its environment.
    inner.stdin(Stdio::null());
    finish(command.spawn().unwrap())
}

/// S80, P8: a disk that fills up while a result comes out ends the run, and loses nothing.
#[test]
fn a_full_disk_while_collecting_fails_the_run_and_keeps_the_work() {
    let world = World::new(Engine::Native);
    let script = r#"
        "$COFFERDAM" run --quiet --engine native -- sh -c 'head -c 30000000 /dev/urandom > big.bin; git add .; git commit -qm work' >run.txt 2>&1
        echo "first $?"
        "$COFFERDAM" sweep --json
        mount -o remount,size=600m "$COFFERDAM_DATA_DIR"
        "$COFFERDAM" sweep --json >/dev/null; echo "sweep $?"
        "$COFFERDAM" show --json last
    "#;
    let ran = with_small_disk(&world, "90m", script);
    assert!(ran.stdout.contains("first 1"), "{ran:#?}");
    assert!(ran.stdout.contains("sweep 0"), "{ran:#?}");
    let at = ran.stdout.find("sweep 0").unwrap() + "sweep 0".len();
    let result: Value = serde_json::from_str(ran.stdout[at..].trim()).expect("a verdict");
    let kept = result["collected"]["commits"].as_u64().unwrap_or(0) > 0
        || result["collected"]["salvage"].as_str().is_some()
        || result["verdict"].to_string().contains("left in place")
        || result["verdict"].to_string().contains("host_disk");
    assert_eq!(result["outcome"], "failed", "{result:#}");
    assert!(kept, "{result:#}");
}
