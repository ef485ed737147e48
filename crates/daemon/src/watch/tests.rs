//! Bounds, pace, and a watch over a sandbox that is made up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_sandbox::SandboxExit;
use cofferdam_sandbox::Stop;

use super::*;

const MIB: u64 = 1 << 20;

fn bounds() -> Bounds {
    Bounds { work_bytes: 1000 * MIB, work_files: 1000, cpu_ms: Some(5_000), floor_bytes: None }
}

fn used(bytes: u64, files: u64) -> WorkUse {
    WorkUse { bytes, files, whole: true }
}

fn found(budget: &'static str, need: Need) -> Option<Finding> {
    Some(Finding { budget, need })
}

#[test]
fn each_bound_has_its_name_and_growth_past_a_quarter_more_is_killed() {
    let bounds = bounds();
    for (seen, expect) in [
        (used(1000 * MIB, 1000), None),
        (used(1000 * MIB + 1, 1), found("work_bytes", Need::Stop)),
        (used(1250 * MIB + 1, 1), found("work_bytes", Need::Kill)),
        (used(1, 1001), found("work_files", Need::Stop)),
        (used(1, 11_001), found("work_files", Need::Kill)),
        (WorkUse { whole: false, ..used(1, 1) }, found("work_files", Need::Stop)),
    ] {
        assert_eq!(bounds.work(&seen), expect, "{seen:?}");
    }
    assert_eq!(bounds.cpu(Some(5_000)), None);
    assert_eq!(bounds.cpu(Some(5_001)), found("cpu_time", Need::Stop));
    assert_eq!(bounds.cpu(None), None);
}

#[test]
fn the_host_keeps_a_floor_of_space_and_of_inodes() {
    let free = Free { bytes: 1 << 40, all_bytes: 1 << 42, files: 1_000_000, all_files: 10_000_000 };
    let of = |free| bounds().host(Some(free));
    assert_eq!(of(free), None);
    assert_eq!(of(Free { bytes: (1 << 30) - 1, ..free }), found("host_disk", Need::Stop));
    assert_eq!(of(Free { bytes: (1 << 29) - 1, ..free }), found("host_disk", Need::Kill));
    assert_eq!(of(Free { files: 9_999, ..free }), found("host_disk", Need::Stop));
    // Two parts in a hundred of a small one.
    let small = Free { bytes: 40 * MIB, all_bytes: 1000 * MIB, ..free };
    assert_eq!(of(small), None);
    assert_eq!(of(Free { bytes: 19 * MIB, ..small }), found("host_disk", Need::Stop));
    // A file system without a fixed number of inodes has no floor of them.
    assert_eq!(of(Free { files: 0, all_files: 0, ..free }), None);
    let configured = Bounds { floor_bytes: Some(1 << 41), ..bounds() };
    assert_eq!(configured.host(Some(free)), found("host_disk", Need::Stop));
    assert_eq!(bounds().host(None), None);
}

#[test]
fn a_large_tree_is_counted_seldom_and_a_fast_writer_is_caught_at_once() {
    let second = Duration::from_secs;
    let free = |bytes| Some(Free { bytes, all_bytes: 1 << 42, files: 0, all_files: 0 });
    let mut pace = Pace::new(&bounds(), COUNT_EVERY, free(10_000 * MIB));
    assert!(!pace.is_due(second(1), free(9_500 * MIB)));
    assert!(pace.is_due(second(1), free(8_900 * MIB)), "more went than the volume may hold");
    assert!(pace.is_due(second(2), free(10_000 * MIB)));
    // One that takes a second is not repeated for twenty, unless as much went as was left.
    pace.counted(second(10), second(1), Some(used(900 * MIB, 5)), free(9_000 * MIB));
    assert!(!pace.is_due(second(29), free(8_950 * MIB)));
    assert!(pace.is_due(second(14), free(8_800 * MIB)));
    assert!(!pace.is_due(second(13), free(8_800 * MIB)), "nor does that keep a core busy");
    assert!(pace.is_due(second(30), free(9_000 * MIB)));
    // However long one takes, a minute later comes the next.
    pace.counted(second(100), second(50), Some(used(0, 5)), None);
    assert!(!pace.is_due(second(159), None));
    assert!(pace.is_due(second(160), None));
}

/// A sandbox whose work grows by so much with each count.
struct Growing {
    bytes: u64,
    step: u64,
    counts: Arc<AtomicU64>,
    kills: Arc<AtomicU64>,
}

#[async_trait]
impl Control for Growing {
    async fn wait(&mut self) -> SandboxExit {
        SandboxExit::default()
    }
    async fn kill(&mut self) {
        self.kills.fetch_add(1, Ordering::SeqCst);
    }
    async fn usage(&mut self) -> ResourceUse {
        ResourceUse { cpu_ms: Some(10), ..ResourceUse::default() }
    }
    async fn work_use(&mut self, _stop: Stop) -> Option<WorkUse> {
        self.counts.fetch_add(1, Ordering::SeqCst);
        self.bytes += self.step;
        Some(used(self.bytes, 1))
    }
    async fn teardown(self: Box<Self>) -> TeardownOutcome {
        TeardownOutcome::Removed
    }
}

/// Watches until ten counts were made. Gives the stops, the kills and the last count.
async fn ten_counts(step: u64) -> (Vec<StopCause>, u64, Option<WorkUse>) {
    let (sender, mut stops) = mpsc::channel(16);
    let (counts, kills) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (counted, killed) = (Arc::clone(&counts), Arc::clone(&kills));
    let mut control: Box<dyn Control> =
        Box::new(Growing { bytes: MIB, step, counts: counted, kills: killed });
    let floor = Bounds { floor_bytes: Some(0), ..bounds() };
    let run = RunId::from_entropy([3; 5]);
    let mut watch = Watch::new(&run, floor, Path::new("/"), sender);
    watch.look_every = Duration::from_millis(1);
    watch.count_every = Duration::from_millis(1);
    let enough = async {
        while counts.load(Ordering::SeqCst) < 10 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        never = watch.run(&mut control) => match never {},
        () = enough => {}
    }
    let mut told = Vec::new();
    while let Ok(stop) = stops.try_recv() {
        told.push(stop);
    }
    (told, kills.load(Ordering::SeqCst), watch.last)
}

#[tokio::test]
async fn a_run_is_stopped_once_and_killed_once_when_it_grows_on() {
    let (told, kills, last) = ten_counts(400 * MIB).await;
    assert_eq!(told, [StopCause::Budget { budget: "work_bytes".to_owned() }]);
    assert_eq!(kills, 1);
    assert!(last.is_some_and(|seen| seen.bytes > 1250 * MIB));
}

#[tokio::test]
async fn a_run_within_its_bounds_is_left_alone() {
    let (told, kills, last) = ten_counts(0).await;
    assert_eq!((told, kills, last), (vec![], 0, Some(used(MIB, 1))));
}

#[test]
fn a_budget_that_cannot_be_counted_is_refused_unless_accepted() {
    assert!(matches!(blind(Some(1), None, false), Some(StopCause::PostureRefused { .. })));
    for (budget, used, accepted) in
        [(None, None, false), (Some(1), Some(0), false), (Some(1), None, true)]
    {
        assert_eq!(blind(budget, used, accepted), None);
    }
}
