//! Limits trip inside, and only inside.

use cofferdam_run::spec::Resources;

use crate::harness::{Bench, small};

#[tokio::test]
async fn process_limit_stops_a_bounded_fork_loop() {
    let bench = Bench::new();
    let resources = Resources { pids: 20, ..small() };
    let script = r#"perl -e '
        for (1..100) { $p = fork; if (!defined $p) { print "stopped\n"; last } if (!$p) { sleep 60; exit }
            $n++ } print "$n\n"; kill 9, -1'; exit 0"#;
    let outcome = bench.run(script, &resources).await;
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines[0], "stopped", "{outcome:?}");
    let children: u64 = lines[1].parse().unwrap();
    assert!(children < resources.pids, "{children} children");
}

#[tokio::test]
async fn memory_limit_ends_with_oom_killed() {
    let bench = Bench::new();
    let resources = Resources { memory_bytes: 64 << 20, ..small() };
    let outcome =
        bench.run("exec perl -e '$x = \"a\" x (512<<20); print length $x'", &resources).await;
    assert!(outcome.exit.oom_killed, "{outcome:?}");
    assert_eq!(outcome.exit.signal, Some(libc::SIGKILL), "{outcome:?}");
}

#[tokio::test]
async fn run_within_its_memory_is_not_oom_killed() {
    let outcome = Bench::new().run("perl -e '$x = \"a\" x (8<<20)'", &small()).await;
    assert!(!outcome.exit.oom_killed);
    assert_eq!(outcome.exit.code, Some(0), "{outcome:?}");
}

#[tokio::test]
async fn tmp_is_bounded_and_counts_as_memory() {
    let script = "head -c 33554432 /dev/zero > /tmp/big 2>/dev/null && echo unbounded; \
                  test $(stat -c %s /tmp/big) -le 16777216 && echo bounded";
    assert_eq!(Bench::new().run(script, &small()).await.stdout, "bounded\n");
}

#[tokio::test]
async fn open_files_and_core_are_limited() {
    let out =
        Bench::new().run("ulimit -n; ulimit -Hn; ulimit -c; ulimit -Hc", &small()).await.stdout;
    assert_eq!(out, "256\n256\n0\n0\n");
}

#[tokio::test]
async fn limits_can_be_read_inside_where_programs_look() {
    let script = "cd /sys/fs/cgroup; cat memory.max memory/memory.limit_in_bytes 2>/dev/null; \
                  cat pids.max pids/pids.max 2>/dev/null; cat cpu.max cpu/cpu.cfs_quota_us 2>/dev/null";
    let out = Bench::new().run(script, &small()).await.stdout;
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], (256u64 << 20).to_string(), "{out}");
    assert_eq!(lines[1], "64", "{out}");
    assert!(lines[2].starts_with("150000"), "{out}");
}
