//! Who may be taken over, and what may be removed: with a real ledger, real processes, a clock of our own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cofferdam_ledger::NewRun;
use cofferdam_run::{RunId, StateName};
use tempfile::TempDir;

use super::STUCK_AFTER_MS;
use crate::clock::Clock;
use crate::monitor::LEASE_TTL_MS;
use crate::testing::{Hand, dead, spec};
use crate::{Host, HostOptions, owner};

struct World {
    host: Host,
    clock: Arc<Hand>,
    _dir: TempDir,
}

async fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let options = HostOptions {
        data_dir: dir.path().join("data"),
        bin_dirs: Vec::new(),
        engine_hosts: Default::default(),
        config: Default::default(),
    };
    let mut host = Host::open(options).await.unwrap();
    let clock = Arc::new(Hand::default());
    clock.now_ms.store(1_000_000, Ordering::SeqCst);
    host.clock = Arc::<Hand>::clone(&clock);
    World { host, clock, _dir: dir }
}

impl World {
    async fn run(&self, number: u8) -> RunId {
        let id = RunId::from_entropy([number; 5]);
        let spec = spec();
        let new = NewRun { id: id.clone(), spec, created_at: self.clock.now(), title: "t".into() };
        self.host.ledger.create_run(new).await.unwrap();
        id
    }

    async fn claimed(&self, number: u8, owner: &str) -> RunId {
        let id = self.run(number).await;
        let lease = self.host.ledger.claim(&id, owner, self.clock.now(), LEASE_TTL_MS).await;
        assert!(lease.unwrap().is_some());
        id
    }

    fn later(&self, ms: u64) {
        self.clock.now_ms.fetch_add(ms, Ordering::SeqCst);
    }

    async fn state(&self, id: &RunId) -> StateName {
        self.host.ledger.run(id).await.unwrap().state.name()
    }
}

/// S56, S77: the dead are not waited for, and their lease is ended in their name.
#[tokio::test]
async fn a_run_whose_process_is_proven_dead_is_settled_before_its_lease_ends() {
    let world = world().await;
    let id = world.claimed(1, &dead()).await;
    assert_eq!(world.host.lost().await.unwrap().len(), 1);
    let report = world.host.reconcile().await.unwrap();
    assert_eq!(report.settled, [id.to_string()], "{report:?}");
    assert_eq!(world.state(&id).await, StateName::Failed);
}

/// R7, R8, R73: a living owner keeps its run, whatever its lease says; a machine that slept is no reason.
#[tokio::test]
async fn a_run_whose_process_lives_is_never_taken_over() {
    let world = world().await;
    let id = world.claimed(1, &owner::me()).await;
    world.later(LEASE_TTL_MS + STUCK_AFTER_MS - 1_000);
    let report = world.host.sweep().await.unwrap();
    assert_eq!((report.settled.len(), report.live), (0, vec![id.to_string()]));
    world.later(8 * 3_600_000);
    let report = world.host.sweep().await.unwrap();
    assert_eq!((report.settled.len(), report.stuck), (0, vec![id.to_string()]), "named only");
    assert!(!world.state(&id).await.is_terminal());
}

/// Where the process cannot be seen, the lease decides.
#[tokio::test]
async fn an_owner_that_cannot_be_seen_is_waited_for_as_long_as_its_lease() {
    let world = world().await;
    let id = world.claimed(1, "process 1 started 5 in pid:[1] of boot elsewhere").await;
    assert!(world.host.sweep().await.unwrap().settled.is_empty());
    world.later(LEASE_TTL_MS);
    let report = world.host.sweep().await.unwrap();
    assert_eq!(report.settled, [id.to_string()]);
}

/// R5: only what was held can be lost; what waits to be claimed is not, unless nobody can claim it.
#[tokio::test]
async fn a_queued_run_is_left_alone_until_the_process_that_armed_it_is_gone() {
    let world = world().await;
    let (nobodys, mine, lost) = (world.run(1).await, world.run(2).await, world.run(3).await);
    for (id, owner) in [(&mine, owner::me()), (&lost, dead())] {
        let paths = world.host.paths.run(id);
        crate::paths::create_private_dir(paths.dir()).unwrap();
        std::fs::write(paths.armed_by(), owner).unwrap();
    }
    world.later(48 * 3_600_000);
    let report = world.host.sweep().await.unwrap();
    assert_eq!(report.settled, [lost.to_string()], "{report:?}");
    for id in [&nobodys, &mine] {
        assert_eq!(world.state(id).await, StateName::Queued);
    }
    assert!(world.host.paths.run(&mine).dir().exists(), "it may be claimed any moment");
    assert!(!world.host.paths.run(&lost).dir().exists());
}

/// Of several sweeps at once one settles the run, and none fails.
#[tokio::test]
async fn of_many_sweeps_at_once_one_settles_a_run() {
    let world = world().await;
    let owner = dead();
    for number in 1..=4 {
        world.claimed(number, &owner).await;
    }
    let host = &world.host;
    let reports =
        futures::future::join_all((0..6).map(|_| async move { host.reconcile().await.unwrap() }))
            .await;
    let mut settled: Vec<String> = reports.iter().flat_map(|r| r.settled.clone()).collect();
    settled.sort();
    let count = settled.len();
    settled.dedup();
    assert_eq!((count, settled.len()), (4, 4), "{reports:?}");
}

/// A directory of a run that is being armed just now is no leftover; one that its maker left is.
#[tokio::test]
async fn a_directory_without_a_run_goes_only_when_its_maker_is_gone() {
    let world = world().await;
    let mut ids = Vec::new();
    for (number, owner) in [(1u8, Some(owner::me())), (2, Some(dead())), (3, None)] {
        let id = RunId::from_entropy([number; 5]);
        let paths = world.host.paths.run(&id);
        crate::paths::create_private_dir(paths.dir()).unwrap();
        if let Some(owner) = owner {
            std::fs::write(paths.armed_by(), owner).unwrap();
        }
        ids.push(id);
    }
    world.clock.now_ms.store(crate::clock::SystemClock.now().0, Ordering::SeqCst);
    let there = |id: &RunId| world.host.paths.run(id).dir().exists();
    let dry = world.host.sweep_dry().await.unwrap();
    assert_eq!(dry.directories.len(), 1, "{dry:?}");
    world.host.sweep().await.unwrap();
    assert_eq!(ids.iter().map(there).collect::<Vec<_>>(), [true, false, true]);
    world.later(11 * 60_000);
    world.host.sweep().await.unwrap();
    assert_eq!(ids.iter().map(there).collect::<Vec<_>>(), [true, false, false]);
}

/// R49: what is kept has its time, and goes when it is over.
#[tokio::test]
async fn salvage_goes_when_its_time_is_over_and_trash_at_once() {
    let world = world().await;
    let id = RunId::from_entropy([7; 5]);
    for place in [world.host.paths.salvage(&id), world.host.paths.trash(&id)] {
        crate::paths::create_private_dir(&place.join("deep/er")).unwrap();
    }
    world.clock.now_ms.store(crate::clock::SystemClock.now().0, Ordering::SeqCst);
    world.host.sweep().await.unwrap();
    assert!(world.host.paths.salvage(&id).exists() && !world.host.paths.trash(&id).exists());
    world.later(15 * 86_400_000);
    world.host.sweep().await.unwrap();
    assert!(!world.host.paths.salvage(&id).exists());
}
