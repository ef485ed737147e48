//! From creation to proven removal, and what must not be touched.

use std::time::{Duration, Instant};

use cofferdam_conformance::bed::ended;
use cofferdam_conformance::note::note;
use cofferdam_conformance::{Bed, PATIENCE, small};
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::ids::TimestampMs;
use cofferdam_sandbox::SandboxSpec;

#[tokio::test]
async fn the_exit_code_of_the_first_process_is_told() {
    // No signal of its own: the first process of a namespace is immune to those. A kill from outside is
    // told as one, below.
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exec false", 1)] {
        let ran = Bed::new().run(script, &small()).await;
        assert_eq!((ran.exit.code, ran.exit.signal), (Some(code), None), "{ran:?}");
        assert!(!ran.exit.oom_killed);
    }
}

#[tokio::test]
async fn teardown_leaves_nothing_started_or_not() {
    let bed = Bed::new();
    let engine = bed.shell("sleep 600").await;
    for started in [false, true] {
        let prepared = engine.prepare(&bed.spec(&small())).await.unwrap();
        assert_eq!(engine.list(&bed.instance).await.unwrap().len(), 1);
        let outcome = if started {
            prepared.start().await.unwrap().control.teardown().await
        } else {
            prepared.teardown().await
        };
        assert_eq!(outcome, TeardownOutcome::Removed);
        assert_eq!(engine.list(&bed.instance).await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_killed_sandbox_ends_with_the_signal_and_says_so_again() {
    let bed = Bed::new();
    let mut running = bed.start("sleep 600").await;
    running.control.kill().await;
    let exit = ended(&mut *running.control).await;
    assert_eq!((exit.code, exit.signal, exit.oom_killed), (None, Some(9), false));
    running.control.kill().await;
    assert_eq!(ended(&mut *running.control).await, exit);
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn a_wait_that_was_given_up_can_be_taken_up_again() {
    let bed = Bed::new();
    let mut running = bed.start("cat > /dev/null; exit 5").await;
    let early = tokio::time::timeout(Duration::from_millis(200), running.control.wait()).await;
    assert!(early.is_err());
    drop(running.stdin);
    assert_eq!(ended(&mut *running.control).await.code, Some(5));
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn what_a_lost_host_left_is_found_with_its_time_to_live_and_removed() {
    let bed = Bed::new();
    let engine = bed.shell("cat > /dev/null; sleep 600").await;
    let started = SandboxSpec { expires_at: TimestampMs(1_234_567), ..bed.spec(&small()) };
    let only_made = bed.spec(&small());
    // A host that dies runs no destructor.
    std::mem::forget(engine.prepare(&started).await.unwrap().start().await.unwrap());
    std::mem::forget(engine.prepare(&only_made).await.unwrap());

    let next = bed.engine(&[]).await;
    let found = next.list(&bed.instance).await.unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    for entry in &found {
        let spec = if entry.run == started.run { &started } else { &only_made };
        assert_eq!(entry.run, spec.run);
        assert_eq!(entry.expires_at, spec.expires_at);
        assert_eq!(entry.instance, bed.instance);
        assert_eq!(entry.running, entry.run == started.run, "{entry:?}");
        assert_eq!(next.remove(entry).await, TeardownOutcome::Removed);
        assert_eq!(next.remove(entry).await, TeardownOutcome::AlreadyGone);
    }
    assert_eq!(next.list(&bed.instance).await.unwrap(), []);
}

#[tokio::test]
async fn sandboxes_of_another_instance_are_neither_listed_nor_removed() {
    let (mine, other) = (Bed::new(), Bed::new());
    let mut theirs = other.start("cat >/dev/null").await;
    // In one place, as two data directories on one engine are.
    let engine = mine.under.engine(other.dir.path(), &[]).await;
    assert_eq!(engine.list(&mine.instance).await.unwrap(), []);
    // Even when somebody claims that it is ours.
    let mut claim = other.engine(&[]).await.list(&other.instance).await.unwrap().remove(0);
    claim.instance = mine.instance.clone();
    assert_eq!(engine.remove(&claim).await, TeardownOutcome::AlreadyGone);
    drop(theirs.stdin);
    assert_eq!(ended(&mut *theirs.control).await.code, Some(0));
    assert_eq!(theirs.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn a_second_sandbox_for_the_same_run_is_refused_and_the_first_stays() {
    let bed = Bed::new();
    let engine = bed.shell("sleep 600").await;
    let spec = bed.spec(&small());
    let first = engine.prepare(&spec).await.unwrap();
    assert_eq!(engine.prepare(&spec).await.err().unwrap().code(), "SANDBOX-004");
    assert_eq!(engine.list(&bed.instance).await.unwrap().len(), 1);
    assert_eq!(first.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_sandboxes_at_once_do_not_mix_and_all_go() {
    let bed = std::sync::Arc::new(Bed::new());
    let tasks: Vec<_> = (0..10)
        .map(|n| {
            let bed = std::sync::Arc::clone(&bed);
            tokio::spawn(async move {
                let script = format!("echo {n} > /work/n; sleep 0.2; cat /work/n; exit {n}");
                bed.run(&script, &small()).await
            })
        })
        .collect();
    for (n, task) in (0..).zip(tasks) {
        let ran = task.await.unwrap();
        assert_eq!((ran.stdout, ran.exit.code), (format!("{n}\n"), Some(n)));
    }
    assert_eq!(bed.engine(&[]).await.list(&bed.instance).await.unwrap(), []);
}

#[tokio::test]
async fn this_process_holds_no_descriptor_of_sandboxes_that_have_gone() {
    let bed = Bed::new();
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let engine = bed.shell("true").await;
    let round = || async {
        let mut running = engine.prepare(&bed.spec(&small())).await.unwrap().start().await.unwrap();
        ended(&mut *running.control).await;
        assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
    };
    // Connections that are kept for the next request come with the first rounds.
    for _ in 0..3 {
        round().await;
    }
    let before = count();
    for _ in 0..5 {
        round().await;
    }
    assert!(count() <= before, "{before} became {}", count());
}

#[tokio::test]
async fn an_engine_that_hangs_is_given_up_on_with_a_code() {
    use cofferdam_conformance::Under;
    use cofferdam_sandbox::docker::{Base, Behind, DockerConfig, DockerEngine};
    let bed = Bed::new();
    if bed.under == Under::Native {
        // No engine is asked: the launch itself has the bound, which its own tests cut off.
        const { assert!(cofferdam_sandbox::native::LAUNCH_MS <= 60_000) };
        return;
    }
    let place = bed.dir.path().join("silent.sock");
    let _silent = tokio::net::UnixListener::bind(&place).unwrap();
    let config = DockerConfig {
        host: Some(format!("unix://{}", place.display())),
        base: Base::HostFiles,
        state_dir: bed.dir.path().to_owned(),
        behind: match bed.under {
            Under::Podman | Under::PodmanRootless => Behind::Podman,
            Under::Gvisor => Behind::Gvisor { runtime: "runsc".to_owned() },
            Under::Docker | Under::Native => Behind::Docker,
        },
    };
    let connect = tokio::time::timeout(PATIENCE, DockerEngine::connect(config));
    let error = connect.await.expect("it waited for ever").unwrap_err();
    assert_eq!(error.code(), "SANDBOX-001");
    assert!(!error.hint().is_empty());
}

#[tokio::test]
async fn the_time_of_a_start_is_measured() {
    const ROUNDS: usize = 7;
    let bed = Bed::new();
    let engine = bed.shell("true").await;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        #[expect(clippy::disallowed_methods, reason = "a measurement, which nothing depends on")]
        let begin = Instant::now();
        let mut running = engine.prepare(&bed.spec(&small())).await.unwrap().start().await.unwrap();
        ended(&mut *running.control).await;
        times.push(u64::try_from(begin.elapsed().as_millis()).unwrap());
        assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
    }
    times.sort_unstable();
    note("start_ms", &serde_json::json!({ "median": times[ROUNDS / 2], "least": times[0] }));
}
