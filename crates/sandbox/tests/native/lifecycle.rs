//! Starting, stopping, losing the host, finding and removing.

use std::path::PathBuf;
use std::process::Stdio;

use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::ids::InstanceId;
use cofferdam_sandbox::{Engine as _, SandboxError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::{Bench, cgroup_directories, engine_at, processes_with, small, spec_at};
use crate::trap;

#[tokio::test]
async fn streams_belong_to_the_guest_from_its_first_byte() {
    let bench = Bench::new();
    let mut running = bench.start("cat; echo end >&2", &small()).await;
    running.stdin.write_all(b"\n\nabc").await.unwrap();
    running.stdin.shutdown().await.unwrap();
    drop(running.stdin);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    running.stdout.read_to_end(&mut out).await.unwrap();
    running.stderr.read_to_end(&mut err).await.unwrap();
    assert_eq!((out.as_slice(), err.as_slice()), (&b"\n\nabc"[..], &b"end\n"[..]));
    assert_eq!(running.control.wait().await.code, Some(0));
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn exit_code_and_signal_come_through() {
    let bench = Bench::new();
    let outcome = bench.run("exit 37", &small()).await;
    assert_eq!((outcome.exit.code, outcome.exit.signal), (Some(37), None));
    let mut running = bench.start("cat >/dev/null; sleep 600", &small()).await;
    running.control.kill().await;
    let exit = running.control.wait().await;
    assert_eq!((exit.code, exit.signal), (None, Some(libc::SIGKILL)));
    assert_eq!(running.control.wait().await, exit, "asking again gives the same");
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn teardown_of_a_running_sandbox_leaves_nothing() {
    let bench = Bench::new();
    // Children that left the session and ignore what can be ignored.
    let script = "trap '' TERM HUP INT; echo x > /work/f; mkdir -m 0 /work/closed; \
                  setsid sh -c 'trap \"\" TERM; sleep 654321' & setsid sleep 654321 & echo up; wait";
    let mut running = bench.start(script, &small()).await;
    let mut up = [0; 3];
    running.stdout.read_exact(&mut up).await.unwrap();
    assert!(!cgroup_directories(&bench.instance).is_empty());
    let found = bench.engine(&[]).list(&bench.instance).await.unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].running);
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
    assert_eq!(cgroup_directories(&bench.instance), Vec::<PathBuf>::new());
    assert_eq!(processes_with(bench.temp.path().to_str().unwrap()), Vec::<i32>::new());
    assert_eq!(std::fs::read_dir(bench.temp.path()).unwrap().count(), 0);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(bench.temp.path().to_str().unwrap()));
    assert_eq!(bench.engine(&[]).list(&bench.instance).await.unwrap(), vec![]);
    assert_eq!(bench.engine(&[]).remove(&found[0]).await, TeardownOutcome::AlreadyGone);
}

#[tokio::test]
async fn unstarted_sandbox_is_listed_and_torn_down() {
    let bench = Bench::new();
    let engine = bench.engine(&["/bin/true"]);
    let spec = bench.spec(&small());
    let prepared = engine.prepare(&spec).await.unwrap();
    let found = engine.list(&bench.instance).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].sandbox.as_str(), found[0].running), (prepared.identity(), false));
    let again = engine.prepare(&spec).await.err();
    assert!(matches!(again, Some(SandboxError::Exists { .. })), "{again:?}");
    assert_eq!(prepared.teardown().await, TeardownOutcome::Removed);
    assert_eq!(engine.list(&bench.instance).await.unwrap(), vec![]);
    assert_eq!(cgroup_directories(&bench.instance), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn salvage_moves_the_repository_and_never_a_link() {
    let bench = Bench::new();
    let kept = tempfile::tempdir().unwrap();
    let script = "mkdir -m 0 /work/repo; chmod 700 /work/repo; echo x > /work/repo/f; sleep 600";
    let mut running = bench.start(&format!("{script} & echo up; wait"), &small()).await;
    running.stdout.read_exact(&mut [0; 3]).await.unwrap();
    // Kills what still runs before it moves anything.
    while !saved_file_exists(&bench) {
        tokio::task::yield_now().await;
    }
    let to = kept.path().join("work");
    assert!(running.control.salvage(&to).await.unwrap());
    assert_eq!(std::fs::read_to_string(to.join("f")).unwrap(), "x\n");
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);

    // Moved away, with a link in its place: all of the work is kept, and the link stays a link.
    let script = "mkdir /work/repo2 /work/home; echo y > /work/repo2/f; ln -s /etc /work/repo";
    let mut running = bench.start(script, &small()).await;
    running.control.wait().await;
    let to = kept.path().join("link");
    assert!(running.control.salvage(&to).await.unwrap());
    assert_eq!(std::fs::read_to_string(to.join("repo2/f")).unwrap(), "y\n");
    assert_eq!(std::fs::read_link(to.join("repo")).unwrap(), PathBuf::from("/etc"));
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn empty_directories_are_no_work_to_save() {
    let bench = Bench::new();
    let kept = tempfile::tempdir().unwrap();
    let mut running = bench.start("mkdir -p /work/repo /work/home/.cache", &small()).await;
    running.control.wait().await;
    assert!(!running.control.salvage(&kept.path().join("work")).await.unwrap());
    assert_eq!(std::fs::read_dir(kept.path()).unwrap().count(), 0);
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn salvaged_repository_runs_nothing_on_the_host() {
    let bench = Bench::new();
    let kept = tempfile::tempdir().unwrap();
    let (work, canary) = (kept.path().join("work"), kept.path().join("canary"));
    let mut running = bench.start(&trap::script(&canary), &small()).await;
    assert_eq!(running.control.wait().await.code, Some(0));
    let run = std::fs::read_dir(bench.temp.path()).unwrap().next().unwrap().unwrap().path();
    trap::copy(&run.join("work/repo"), &kept.path().join("control"));
    assert!(trap::springs(&kept.path().join("control"), &canary), "the trap does not work");
    assert!(running.control.salvage(&work).await.unwrap());
    assert!(!trap::springs(&work, &canary));
    assert!(kept.path().join("README-salvage.txt").exists());
    assert!(work.join("nested/git-of-the-sandbox").exists());
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn work_that_cannot_be_moved_stays_where_it_is() {
    let bench = Bench::new();
    // On another file system a rename is refused.
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let script = "mkdir /work/repo; echo x > /work/repo/f";
    let mut running = bench.start(script, &small()).await;
    running.control.wait().await;
    let to = elsewhere.path().join("work");
    let refused = running.control.salvage(&to).await;
    assert!(matches!(refused, Err(SandboxError::Io { .. })), "{refused:?}");
    assert!(!to.exists());
    assert!(saved_file_exists(&bench));
    let kept = tempfile::tempdir().unwrap();
    assert!(running.control.salvage(&kept.path().join("work")).await.unwrap());
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn work_of_a_found_sandbox_is_saved_once_all_of_it_has_ended() {
    let bench = Bench::new();
    let kept = tempfile::tempdir().unwrap();
    // Writes on and on: moved while it runs, the directory would be in use.
    let script =
        "mkdir /work/repo; cd /work/repo; echo x > f; echo up; while :; do echo x > f; done";
    let mut running = bench.start(script, &small()).await;
    running.stdout.read_exact(&mut [0; 3]).await.unwrap();
    let engine = bench.engine(&[]);
    let found = engine.list(&bench.instance).await.unwrap().remove(0);
    let to = kept.path().join("work");
    assert!(engine.salvage(&found, &to).await.unwrap());
    assert!(to.join("f").exists());
    assert!(!engine.list(&bench.instance).await.unwrap()[0].running);
    assert_eq!(engine.remove(&found).await, TeardownOutcome::Removed);
    assert!(to.join("f").exists());
    assert!(!engine.salvage(&found, &kept.path().join("again")).await.unwrap());
    assert_eq!(running.control.wait().await.signal, Some(libc::SIGKILL));
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a measure by hand, shown and never asserted")]
async fn large_tree_goes_with_its_sandbox() {
    let bench = Bench::new();
    // For the measure: COFFERDAM_MEASURE_FILES=100000 and `--nocapture`.
    let files = std::env::var("COFFERDAM_MEASURE_FILES").unwrap_or("4000".to_owned());
    let script = format!(
        "mkdir /work/flat; perl -e 'for $n (1..{files}) {{ $d = $n % 2 ? \"flat\" : \"d\" . $n % 997; \
         mkdir \"/work/$d\"; open F, \">/work/$d/$n\" or die; print F \"content\"; close F }}'"
    );
    let mut running = bench.start(&script, &small()).await;
    assert_eq!(running.control.wait().await.code, Some(0));
    let start = std::time::Instant::now();
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
    println!("{files} files removed with their sandbox in {:?}", start.elapsed());
    assert_eq!(std::fs::read_dir(bench.temp.path()).unwrap().count(), 0);
}

fn saved_file_exists(bench: &Bench) -> bool {
    let run = std::fs::read_dir(bench.temp.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::read(run.join("work/repo/f")).is_ok_and(|content| content == b"x\n")
}

#[tokio::test]
async fn twenty_starts_and_stops_leave_no_cgroup() {
    let bench = Bench::new();
    for _ in 0..20 {
        let outcome = bench.run("exit 0", &small()).await;
        assert_eq!(outcome.exit.code, Some(0));
        assert_eq!(outcome.teardown, TeardownOutcome::Removed);
    }
    assert_eq!(cgroup_directories(&bench.instance), Vec::<PathBuf>::new());
    assert_eq!(std::fs::read_dir(bench.temp.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn four_sandboxes_at_once_do_not_disturb_one_another() {
    let bench = Bench::new();
    let (script, resources) = ("cat /proc/1/comm; hostname", small());
    let (a, b, c, d) = tokio::join!(
        start_to_end(&bench, script, &resources),
        start_to_end(&bench, script, &resources),
        start_to_end(&bench, script, &resources),
        start_to_end(&bench, script, &resources),
    );
    for outcome in [a, b, c, d] {
        assert_eq!(outcome, "sh\ncofferdam\n");
    }
    assert_eq!(cgroup_directories(&bench.instance), Vec::<PathBuf>::new());
}

async fn start_to_end(
    bench: &Bench,
    script: &str,
    resources: &cofferdam_run::spec::Resources,
) -> String {
    let mut running = bench.start(script, resources).await;
    let mut out = String::new();
    running.stdout.read_to_string(&mut out).await.unwrap();
    running.control.wait().await;
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
    out
}

#[tokio::test]
async fn sandbox_of_another_instance_is_neither_listed_nor_removed() {
    let bench = Bench::new();
    let mut running = bench.start("cat >/dev/null", &small()).await;
    let engine = bench.engine(&[]);
    let other = InstanceId::from_entropy([3; 10]);
    assert_eq!(engine.list(&other).await.unwrap(), vec![]);
    let mut stolen = engine.list(&bench.instance).await.unwrap().remove(0);
    stolen.instance = other;
    assert_eq!(engine.remove(&stolen).await, TeardownOutcome::AlreadyGone);
    assert!(engine.list(&bench.instance).await.unwrap()[0].running);
    drop(running.stdin);
    assert_eq!(running.control.wait().await.code, Some(0));
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn reused_process_number_is_not_killed() {
    let bench = Bench::new();
    let engine = bench.engine(&["/bin/true"]);
    let spec = bench.spec(&small());
    let prepared = engine.prepare(&spec).await.unwrap();
    // As if the recorded process had ended and its number were another's now: a bystander's.
    let mut bystander = spawn_cat();
    let forged = serde_json::json!({ "pid": bystander.id(), "start_time": 1 });
    std::fs::write(spec.run_dir.join("child.json"), forged.to_string()).unwrap();
    assert_eq!(prepared.teardown().await, TeardownOutcome::Removed);
    assert!(bystander.try_wait().unwrap().is_none(), "the bystander was killed");
    drop(bystander.stdin.take());
    assert!(bystander.wait().unwrap().success());
}

#[expect(clippy::disallowed_methods, reason = "a bystander process of the test")]
fn spawn_cat() -> std::process::Child {
    std::process::Command::new("/bin/cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn run_directory_outside_the_runs_root_is_refused() {
    let bench = Bench::new();
    let mut spec = bench.spec(&small());
    spec.run_dir = PathBuf::from("/var/tmp/cofferdam-not-here");
    let refused = bench.engine(&["/bin/true"]).prepare(&spec).await.err();
    assert!(matches!(refused, Some(SandboxError::Io { .. })), "{refused:?}");
    assert!(!spec.run_dir.exists());
}

#[tokio::test]
async fn prepare_that_fails_leaves_nothing() {
    let bench = Bench::new();
    let engine = bench.engine(&["/bin/true"]);
    let spec = bench.spec(&small());
    // Something that is no directory stands where the volume would be.
    std::fs::create_dir(&spec.run_dir).unwrap();
    std::fs::write(spec.run_dir.join("work"), "").unwrap();
    let failed = engine.prepare(&spec).await.err();
    assert!(matches!(failed, Some(SandboxError::Io { .. })), "{failed:?}");
    assert_eq!(engine.list(&bench.instance).await.unwrap(), vec![]);
    assert!(!spec.run_dir.exists());
}

#[tokio::test]
async fn program_that_does_not_exist_ends_with_126_and_leaves_nothing() {
    let bench = Bench::new();
    let outcome = bench.run_command(&["/nonexistent"], &bench.spec(&small())).await;
    assert_eq!(outcome.exit.code, Some(126));
    assert!(outcome.stderr.contains("/nonexistent"), "{outcome:?}");
    assert_eq!(outcome.teardown, TeardownOutcome::Removed);
}

#[tokio::test]
async fn launch_that_fails_names_its_step_and_leaves_nothing() {
    let bench = Bench::new();
    let engine = bench.engine(&["/bin/true"]);
    let spec = bench.spec(&small());
    let prepared = engine.prepare(&spec).await.unwrap();
    std::fs::remove_dir(spec.run_dir.join("work")).unwrap();
    match prepared.start().await {
        Err(SandboxError::Launch { stage, .. }) => assert!(stage.contains("work"), "{stage}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(engine.list(&bench.instance).await.unwrap(), vec![]);
    assert_eq!(cgroup_directories(&bench.instance), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn probe_finds_every_layer_and_leaves_nothing() {
    let bench = Bench::new();
    let report = bench.engine(&[]).probe().await;
    assert!(report.usable, "{report:?}");
    assert_eq!(report.layers.len(), 12, "{report:?}");
    assert_eq!(report.problems, vec![]);
    assert_eq!(std::fs::read_dir(bench.temp.path()).unwrap().count(), 0);
}

/// The process that a file of the run's directory names.
fn recorded(bench: &Bench, file: &str, pick: impl Fn(&serde_json::Value) -> i64) -> i32 {
    let run = std::fs::read_dir(bench.temp.path()).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(run.join(file)).unwrap();
    i32::try_from(pick(&serde_json::from_str(&text).unwrap())).unwrap()
}

#[tokio::test]
async fn guest_dies_with_its_launcher() {
    let bench = Bench::new();
    let mut running = bench.start("trap '' TERM HUP; echo up; sleep 600 & wait", &small()).await;
    running.stdout.read_exact(&mut [0; 3]).await.unwrap();
    let launcher = recorded(&bench, "label.json", |v| v["launcher"]["pid"].as_i64().unwrap());
    let first = recorded(&bench, "child.json", |v| v["pid"].as_i64().unwrap());
    let first = rustix::process::Pid::from_raw(first).unwrap();
    let guest = rustix::process::pidfd_open(first, rustix::process::PidfdFlags::empty()).unwrap();
    let launcher = rustix::process::Pid::from_raw(launcher).unwrap();
    rustix::process::kill_process(launcher, rustix::process::Signal::KILL).unwrap();
    // Readable when it has ended. The time only bounds a failure.
    let mut fds = [rustix::event::PollFd::new(&guest, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    let ended = rustix::event::poll(&mut fds, Some(&patience)).unwrap();
    assert_eq!(ended, 1, "the guest outlives its launcher");
    assert_eq!(running.control.wait().await.signal, Some(libc::SIGKILL));
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn sandbox_whose_streams_were_dropped_ends_by_itself() {
    let bench = Bench::new();
    let engine =
        bench.engine(&["/bin/sh", "-c", "trap '' HUP TERM PIPE; sleep 600"]).with_grace_ms(20);
    let running = engine.prepare(&bench.spec(&small())).await.unwrap().start().await.unwrap();
    let mut control = running.control;
    drop((running.stdin, running.stdout, running.stderr));
    // The time only bounds a failure.
    let patience = std::time::Duration::from_secs(20);
    let exit = tokio::time::timeout(patience, control.wait()).await.unwrap();
    assert_eq!(exit.signal, Some(libc::SIGKILL));
    assert_eq!(control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn half_closed_input_does_not_end_the_sandbox() {
    let bench = Bench::new();
    let engine =
        bench.engine(&["/bin/sh", "-c", "cat; sleep 0.3; echo still here"]).with_grace_ms(1);
    let mut running = engine.prepare(&bench.spec(&small())).await.unwrap().start().await.unwrap();
    drop(running.stdin);
    let mut out = String::new();
    running.stdout.read_to_string(&mut out).await.unwrap();
    assert_eq!(out, "still here\n");
    assert_eq!(running.control.wait().await.code, Some(0));
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

const HOST_ROLE: &str = "COFFERDAM_TEST_HOST_ROLE";

/// Not a fact of its own: the process that the next test kills. It starts a sandbox, says so and
/// waits to be killed.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the role is handed to the re-executed test binary")]
async fn host_process_to_be_killed() {
    let Ok(role) = std::env::var(HOST_ROLE) else { return };
    let (root, instance) = role.split_once('|').unwrap();
    let root = PathBuf::from(root);
    let engine =
        engine_at(&root, &["/bin/sh", "-c", "trap '' HUP TERM; setsid sleep 600 & sleep 600"])
            .with_grace_ms(50);
    let spec = spec_at(&root, &instance.parse().unwrap(), &small());
    let _running = engine.prepare(&spec).await.unwrap().start().await.unwrap();
    println!("sandbox is up");
    std::future::pending::<()>().await;
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "re-executes the test binary as a host to be killed")]
async fn killed_host_leaves_nothing_after_list_and_remove() {
    use std::io::{BufRead as _, BufReader};
    let bench = Bench::new();
    let role = format!("{}|{}", bench.temp.path().display(), bench.instance);
    let mut host = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lifecycle::host_process_to_be_killed", "--nocapture"])
        .env(HOST_ROLE, role)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let lines = BufReader::new(host.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("sandbox is up")));
    let found = bench.engine(&[]).list(&bench.instance).await.unwrap();
    assert!(found[0].running);

    host.kill().unwrap();
    host.wait().unwrap();
    // By itself, after the grace: launcher and guest go, though nobody sweeps yet.
    for _ in 0..2_000 {
        if !bench.engine(&[]).list(&bench.instance).await.unwrap()[0].running {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let found = bench.engine(&[]).list(&bench.instance).await.unwrap();
    assert!(!found[0].running, "the sandbox outlives its host");
    assert_eq!(processes_with(bench.temp.path().to_str().unwrap()), Vec::<i32>::new());

    assert_eq!(bench.engine(&[]).remove(&found[0]).await, TeardownOutcome::Removed);
    assert_eq!(cgroup_directories(&bench.instance), Vec::<PathBuf>::new());
    assert_eq!(std::fs::read_dir(bench.temp.path()).unwrap().count(), 0);
}
