//! The work volume: it outlives what happens to the sandbox, it is counted, it can be brought out.

use cofferdam_conformance::bed::ended;
use cofferdam_conformance::note::note;
use cofferdam_conformance::{Bed, PATIENCE};
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_sandbox::Stop;
use tokio::io::AsyncReadExt as _;

const MAKE: &str = "mkdir -p /work/repo/d && cd /work/repo && git init -q . && echo precious > d/f && \
                    head -c 3000000 /dev/urandom > big && echo ready && sleep 600";

async fn ready(stdout: &mut (dyn tokio::io::AsyncRead + Send + Unpin)) {
    let mut line = [0; 6];
    tokio::time::timeout(PATIENCE, stdout.read_exact(&mut line)).await.unwrap().unwrap();
    assert_eq!(&line, b"ready\n");
}

#[tokio::test]
async fn the_work_of_a_killed_run_is_brought_out_and_harmless() {
    let bed = Bed::new();
    let mut running = bed.start(MAKE).await;
    ready(&mut *running.stdout).await;
    running.control.kill().await;
    ended(&mut *running.control).await;
    let to = bed.dir.path().join("saved");
    assert!(running.control.salvage(&to).await.unwrap());
    assert_eq!(std::fs::read_to_string(to.join("d/f")).unwrap(), "precious\n");
    assert!(!to.join(".git").exists(), "git on the host would take it for a repository");
    assert!(bed.dir.path().join("README-salvage.txt").exists());
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn the_work_of_a_lost_host_is_brought_out_by_the_next() {
    let bed = Bed::new();
    let mut running = bed.start(MAKE).await;
    ready(&mut *running.stdout).await;
    std::mem::forget(running);
    let next = bed.engine(&[]).await;
    let found = next.list(&bed.instance).await.unwrap().remove(0);
    let to = bed.dir.path().join("saved");
    assert!(next.salvage(&found, &to).await.unwrap());
    assert_eq!(std::fs::read_to_string(to.join("d/f")).unwrap(), "precious\n");
    assert_eq!(next.remove(&found).await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn the_work_volume_is_counted_from_outside_while_the_run_goes_on() {
    let bed = Bed::new();
    let mut running = bed.start(MAKE).await;
    ready(&mut *running.stdout).await;
    let counted = running.control.work_use(Stop::at(u64::MAX, u64::MAX)).await;
    let Some(counted) = counted else {
        // Without a cgroup of its own nothing proves that the container is this machine's.
        assert!(!bed.under.limits(), "this engine's volume cannot be counted here");
        return;
    };
    assert!(counted.whole && counted.bytes >= 3_000_000, "{counted:?}");
    assert!(counted.files > 5, "{counted:?}");
    assert!(running.control.work_place().is_some_and(|place| place.is_dir()));
    // A bound that is passed ends the walk.
    let cut = running.control.work_use(Stop::at(1000, u64::MAX)).await.unwrap();
    assert!(cut.bytes > 1000);
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
    note("work", &serde_json::json!({ "bytes": counted.bytes, "files": counted.files }));
}
