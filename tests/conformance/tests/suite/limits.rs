//! Limits against programs that push them. Every program is bounded in time and count by itself too.
//!
//! An engine that does not enforce limits refuses the run (see `posture`); here it is only shown that the
//! same programs end.

use cofferdam_conformance::note::note;
use cofferdam_conformance::{Bed, small};
use cofferdam_run::spec::Resources;

#[tokio::test]
async fn memory_past_the_limit_is_a_kill_and_is_said_so_although_the_first_process_lives_on() {
    let bed = Bed::new();
    let grab = "python3 -c 'print(len(b\"x\" * (1 << 30)))'; echo went on";
    let ran = bed.run(grab, &small()).await;
    assert_eq!(ran.exit.oom_killed, bed.under.limits(), "{ran:?}");
    assert_eq!(ran.stdout.contains(&(1u64 << 30).to_string()), !bed.under.limits(), "{ran:?}");
    note("oom", &serde_json::json!({ "told": ran.exit.oom_killed, "kills": ran.usage.oom_kills }));
}

#[tokio::test]
async fn memory_of_the_first_process_itself_past_the_limit_is_told_too() {
    let bed = Bed::new();
    let ran = bed.run("exec python3 -c 'b\"x\" * (1 << 30)'", &small()).await;
    assert_eq!(ran.exit.oom_killed, bed.under.limits(), "{ran:?}");
    assert_eq!(ran.exit.code == Some(0), !bed.under.limits(), "{ran:?}");
}

#[tokio::test]
async fn a_program_within_its_memory_is_no_kill() {
    let ran = Bed::new().run("python3 -c 'print(len(b\"x\" * (64 << 20)))'", &small()).await;
    assert_eq!(ran.stdout.trim(), (64 << 20).to_string(), "{ran:?}");
    assert_eq!((ran.exit.code, ran.exit.signal), (Some(0), None));
    assert!(!ran.exit.oom_killed);
}

#[tokio::test]
async fn the_process_limit_stops_a_bounded_fork_loop() {
    // At most 400 children that each end by themselves.
    let script = r"python3 -c '
import os, time
made = 0
for _ in range(400):
    try:
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        made += 1
    except OSError:
        break
print(made)
'";
    let bed = Bed::new();
    let ran = bed.run(script, &small()).await;
    // gVisor's kernel may itself end when it gets no thread: then nothing was printed, and it has ended.
    let made: u64 = ran.stdout.trim().parse().unwrap_or(0);
    if bed.under.limits() {
        assert!(made < small().pids, "{ran:?}");
    } else {
        assert_eq!(made, 400, "{ran:?}");
    }
    note(
        "pids",
        &serde_json::json!({ "made": made, "peak": ran.usage.pids_peak, "refused": ran.usage.pids_refused }),
    );
}

#[tokio::test]
async fn processor_time_is_cut_to_the_limit() {
    let burn = r"python3 -c '
import time
end = time.monotonic() + 3
while time.monotonic() < end: pass
'";
    let bed = Bed::new();
    let ran = bed.run(burn, &Resources { cpu_millis: 250, ..small() }).await;
    assert_eq!(ran.exit.code, Some(0), "{ran:?}");
    let Some(used) = ran.usage.cpu_ms else {
        assert!(!bed.under.limits(), "processor time is not counted: {ran:?}");
        return;
    };
    // Other load can only make it less. Three seconds at a quarter, and what the start took.
    assert!(used < 2200, "{used} ms");
    note(
        "cpu",
        &serde_json::json!({ "used_ms": used, "throttled_ms": ran.usage.cpu_throttled_ms }),
    );
}

#[tokio::test]
async fn tmp_ends_at_its_size() {
    let script = "head -c 33554432 /dev/zero > /tmp/big; wc -c < /tmp/big";
    let ran = Bed::new().run(script, &small()).await;
    let size: u64 = ran.stdout.trim().parse().unwrap_or_else(|_| panic!("{ran:?}"));
    assert!(size <= small().tmp_bytes, "{size}");
    assert!(ran.stderr.contains("No space left"), "{ran:?}");
}

#[tokio::test]
async fn open_files_and_core_dumps_are_bounded() {
    let script = "ulimit -n; ulimit -Hn; ulimit -c; ulimit -Hc";
    let bed = Bed::new();
    let lines = bed.lines(script).await;
    assert_eq!(lines == ["1024", "1024", "0", "0"], bed.under.limits(), "{lines:?}");
}

#[tokio::test]
async fn what_a_run_used_is_counted() {
    let bed = Bed::new();
    let script = "python3 -c 'x = b\"x\" * (100 << 20)\nfor _ in range(3000000): pass'; true";
    let ran = bed.run(script, &small()).await;
    assert_eq!(ran.exit.code, Some(0), "{ran:?}");
    if bed.under.limits() {
        let usage = &ran.usage;
        assert!(usage.cpu_ms.is_some_and(|ms| ms > 0), "{usage:?}");
        assert!(usage.memory_peak_bytes.is_some_and(|bytes| bytes >= 100 << 20), "{usage:?}");
        assert!(usage.pids_peak.is_some(), "{usage:?}");
        assert_eq!(usage.oom_kills, Some(0), "{usage:?}");
    }
    note("usage", &serde_json::to_value(&ran.usage).unwrap());
}
