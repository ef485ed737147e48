//! Limits of a Docker sandbox hold against a program that pushes them. needs: docker

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

mod docker_support;

use cofferdam_run::spec::Resources;
use docker_support::{Lab, small};

#[tokio::test]
async fn the_process_limit_stops_a_bounded_fork_loop() {
    // At most 200 children that each end by themselves.
    let script = r"
python3 -c '
import os, time
made = 0
for _ in range(200):
    try:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        made += 1
    except BlockingIOError:
        break
print(made)
'";
    let outcome = Lab::shell(script).await.run(small()).await;
    let made: u64 = outcome.stdout.trim().parse().unwrap_or_else(|_| panic!("{outcome:?}"));
    assert!(made > 20 && made < small().pids, "{made}");
}

#[tokio::test]
async fn memory_past_the_limit_is_an_oom_kill_and_is_said_so() {
    let outcome =
        Lab::shell("python3 -c 'x = b\"x\" * (1 << 30); print(len(x))'").await.run(small()).await;
    assert!(outcome.exit.oom_killed, "{outcome:?}");
    assert_eq!(outcome.stdout, "");
    assert!(outcome.exit.code != Some(0), "{outcome:?}");
}

#[tokio::test]
async fn a_run_within_its_memory_is_not_an_oom_kill() {
    let outcome =
        Lab::shell("python3 -c 'print(len(b\"x\" * (64 << 20)))'").await.run(small()).await;
    assert_eq!(outcome.stdout.trim(), (64 << 20).to_string());
    assert!(!outcome.exit.oom_killed);
    assert_eq!((outcome.exit.code, outcome.exit.signal), (Some(0), None));
}

#[tokio::test]
async fn tmp_ends_at_its_size() {
    let script = "head -c 33554432 /dev/zero > /tmp/big; stat -c %s /tmp/big";
    let outcome = Lab::shell(script).await.run(small()).await;
    let size: u64 = outcome.stdout.trim().parse().unwrap();
    assert!(size <= small().tmp_bytes, "{size}");
    assert!(outcome.stderr.contains("No space left"), "{outcome:?}");
}

#[tokio::test]
async fn per_process_limits_are_in_force() {
    let outcome =
        Lab::shell("ulimit -n; ulimit -Hn; ulimit -c; ulimit -Hc").await.run(small()).await;
    assert_eq!(outcome.stdout, "1024\n1024\n0\n0\n");
}

#[tokio::test]
async fn more_cores_than_the_machine_has_may_be_asked_for() {
    let outcome = Lab::shell("true").await.run(Resources { cpu_millis: 512_000, ..small() }).await;
    assert_eq!(outcome.exit.code, Some(0));
}

#[tokio::test]
async fn exit_codes_and_signals_are_told_apart() {
    let outcome = Lab::shell("exit 7").await.run(small()).await;
    assert_eq!((outcome.exit.code, outcome.exit.signal), (Some(7), None));
    let outcome = Lab::shell("kill -TERM $$").await.run(small()).await;
    assert_eq!((outcome.exit.code, outcome.exit.signal), (None, Some(15)));
}
