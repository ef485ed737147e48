//! Two daemons on one data directory, and the order in which things happen.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::bail;
use cofferdam_ledger::store::approvals::Approvals as _;
use cofferdam_ledger::store::catalogue::Catalogue as _;
use cofferdam_ledger::store::triggers::{Schedule, Triggers as _};
use cofferdam_ledger::store::work::{ClaimLimits, Work as _};
use cofferdam_ledger::{Ledger, LedgerError, ListFilter, Store as _};
use cofferdam_run::project::{Project, Switches, Thread};
use cofferdam_run::schedule::{Missed, Overlap, Timing};
use cofferdam_run::spec::Mode;
use cofferdam_run::{ProjectId, RunId, ScheduleId, ThreadId, TimestampMs};

use super::world::{Stop, World};
use super::{driver, facts, person};

/// How long a lease lasts.
pub(super) const TTL_MS: u64 = 3_000;

/// Steps of coming to rest, before something counts as hanging.
const REST_STEPS: u32 = 4_000;

/// A daemon: a handle of the ledger, and what it remembers.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) name: String,
    pub(super) ledger: Ledger,
    /// The runs that it holds, with their epochs.
    pub(super) held: BTreeMap<RunId, u64>,
}

#[derive(Debug)]
pub(super) struct Daemons {
    dir: PathBuf,
    all: [Option<Daemon>; 2],
    starts: u32,
}

impl Daemons {
    pub(super) async fn open(dir: &Path) -> anyhow::Result<Self> {
        let mut daemons = Self { dir: dir.to_owned(), all: [None, None], starts: 0 };
        daemons.restart(0).await?;
        daemons.restart(1).await?;
        Ok(daemons)
    }

    /// Drops everything that a daemon had in memory and opens the ledger anew.
    pub(super) async fn restart(&mut self, who: usize) -> anyhow::Result<()> {
        self.starts += 1;
        if let Some(place) = self.all.get_mut(who) {
            *place = None;
            let ledger = Ledger::open(&self.dir).await?;
            let name = format!("daemon {who}, start {}", self.starts);
            *place = Some(Daemon { name, ledger, held: BTreeMap::new() });
        }
        Ok(())
    }

    #[expect(
        clippy::expect_used,
        reason = "both are open from `open` on, and `restart` fails whole"
    )]
    pub(super) fn get(&mut self, who: usize) -> &mut Daemon {
        self.all[who % 2].as_mut().expect("a daemon is open")
    }

    #[expect(
        clippy::expect_used,
        reason = "both are open from `open` on, and `restart` fails whole"
    )]
    pub(super) fn ledger(&self, who: usize) -> &Ledger {
        &self.all[who % 2].as_ref().expect("a daemon is open").ledger
    }
}

/// A project, threads and a schedule, before anything can go wrong.
pub(super) async fn furnish(world: &mut World, ledger: &Ledger) -> anyhow::Result<()> {
    let id = ProjectId::from_entropy(world.random.id());
    let project = Project {
        id: id.clone(),
        name: "p".into(),
        checkout: "/work".into(),
        switches: Switches { unattended: true, scheduled: true, remote: true },
        max_parallel: Some(4),
        created_at: world.now,
        archived_at: None,
    };
    let _ = ledger.create_project(project).await?;
    for _ in 0..2 {
        let thread = ThreadId::from_entropy(world.random.id());
        let new = Thread {
            id: thread.clone(),
            project: Some(id.clone()),
            title: "t".into(),
            created_at: world.now,
            closed_at: None,
        };
        ledger.create_thread(new).await?;
        world.threads.push(thread);
    }
    let timing = Timing {
        cron: "*/10 * * * *".parse()?,
        zone: "UTC".parse()?,
        missed: Missed::Latest,
        overlap: Overlap::Skip,
    };
    let schedule = Schedule {
        id: ScheduleId::from_entropy(world.random.id()),
        project: id.clone(),
        title: "now and then".into(),
        timing,
        spec: facts::spec(Mode::Unattended, "look after it"),
        retry: Default::default(),
        agent: None,
        priority: -5,
        enabled: true,
        created_at: world.now,
        next_at: None,
    };
    ledger.create_schedule(schedule).await?;
    world.project = Some(id);
    Ok(())
}

/// One thing happens at one daemon, or time passes.
pub(super) async fn step(world: &mut World, daemons: &mut Daemons, who: usize) -> Result<(), Stop> {
    match world.random.below(100) {
        0..22 => {
            let later = if world.random.chance(40) {
                // The machine slept: leases run out while their owners believe in them.
                10_000 + world.random.below(60_000)
            } else {
                world.random.below(1_200)
            };
            world.now = world.now.plus_ms(later);
            Ok(())
        }
        22..36 => person::act(world, daemons.get(who)).await,
        36..46 => claim(world, daemons.get(who), who).await,
        46..52 => reconcile(world, daemons.get(who), who).await,
        52..56 => maintain(world, daemons.get(who)).await,
        _ => {
            let held: Vec<RunId> = daemons.get(who).held.keys().cloned().collect();
            match world.random.pick(&held).cloned() {
                Some(run) => {
                    driver::step(world, daemons.get(who), &run).await?;
                    driver::step(world, daemons.get(who), &run).await
                }
                None => claim(world, daemons.get(who), who).await,
            }
        }
    }
}

/// Notes a claim. Nobody may have had that epoch of that run before.
fn claimed(world: &mut World, daemon: &mut Daemon, who: usize, run: &RunId, epoch: u64) {
    if let Some(other) = world.journal.claims.insert((run.clone(), epoch), who) {
        world.violation(format!("run {run}: epoch {epoch} was claimed twice, before by {other}"));
    }
    world.note(format!("{}: claimed {run}, epoch {epoch}", daemon.name));
    daemon.held.insert(run.clone(), epoch);
}

async fn claim(world: &mut World, daemon: &mut Daemon, who: usize) -> Result<(), Stop> {
    if world.is(super::Sabotage::DoubleClaim) && world.storm {
        driver::steal(world, daemon).await?;
    }
    let (ledger, name, now) = (daemon.ledger.clone(), daemon.name.clone(), world.now);
    let limits = ClaimLimits::default();
    let taken =
        world.write("claim", async { ledger.claim_next(&name, limits, now, TTL_MS).await }).await?;
    if let Some(taken) = taken {
        claimed(world, daemon, who, &taken.run.id, taken.lease.epoch);
    }
    Ok(())
}

/// Takes over what others left behind. The old sandboxes go before anything else happens.
async fn reconcile(world: &mut World, daemon: &mut Daemon, who: usize) -> Result<(), Stop> {
    let (ledger, name, now) = (daemon.ledger.clone(), daemon.name.clone(), world.now);
    for run in ledger.expired(now).await.map_err(Stop::Broken)? {
        if daemon.held.contains_key(&run.id) && world.random.chance(500) {
            continue;
        }
        let work = async { ledger.claim(&run.id, &name, now, TTL_MS).await };
        if let Some(lease) = world.write("take over", work).await? {
            claimed(world, daemon, who, &run.id, lease.epoch);
        }
    }
    Ok(())
}

async fn maintain(world: &mut World, daemon: &mut Daemon) -> Result<(), Stop> {
    let (ledger, now) = (daemon.ledger.clone(), world.now);
    world.write("expire approvals", async { ledger.expire_approvals(now).await }).await?;
    let slots = world.write("fire", async { ledger.fire_due(now, 10).await }).await?;
    for slot in slots {
        world.note(format!("slot {}: {:?}", slot.at.0, slot.outcome));
    }
    Ok(())
}

/// The storm is over: everything that is open must come to an end by itself, by its clock, or by the
/// exit that an operator has.
pub(super) async fn come_to_rest(world: &mut World, daemons: &mut Daemons) -> anyhow::Result<()> {
    world.storm = false;
    let schedules = daemons.ledger(0).schedules(None, Default::default()).await?;
    for schedule in schedules.items {
        daemons.ledger(0).enable_schedule(&schedule.id, false, world.now).await?;
    }
    for _ in 0..REST_STEPS {
        let live = ListFilter { live_only: true, ..Default::default() };
        if daemons.ledger(0).list(live, 1).await?.is_empty() {
            return Ok(());
        }
        let (mut moved, mut mover) = (Ok(()), 0);
        for who in 0..2 {
            if moved.is_ok() {
                mover = who;
                moved = rest_step(world, daemons, who).await;
            }
        }
        match moved {
            Ok(()) | Err(Stop::Failed) => {}
            // A stop that was asked for by its number.
            Err(Stop::Crash) => {
                world.crashes += 1;
                daemons.restart(mover).await?;
            }
            Err(Stop::Broken(error)) => bail!("the ledger failed by itself: {error}"),
        }
        if !world.violations.is_empty() {
            return Ok(());
        }
        // Where only a clock is waited for, it is moved on to where it rings.
        let idle = daemons.get(0).held.is_empty() && daemons.get(1).held.is_empty();
        let due = daemons.ledger(0).next_due().await?.filter(|_| idle);
        let soon = TimestampMs(world.now.0 + 1_000);
        world.now = due.map_or(soon, |due| due.max(soon));
    }
    let live = ListFilter { live_only: true, ..Default::default() };
    let rows = daemons.ledger(0).list(live, 100).await?;
    let left: Vec<String> = rows.iter().map(|r| format!("{} {}", r.id, r.state)).collect();
    world.violation(format!("these never end: {}", left.join(", ")));
    Ok(())
}

async fn rest_step(world: &mut World, daemons: &mut Daemons, who: usize) -> Result<(), Stop> {
    let daemon = daemons.get(who);
    if who == 0 {
        reconcile(world, daemon, who).await?;
        if !daemon.ledger.queued(1).await.map_err(Stop::Broken)?.is_empty() {
            claim(world, daemon, who).await?;
        }
        if daemon.ledger.approvals_pending().await.map_err(Stop::Broken)? > 0 {
            if world.random.chance(500) {
                person::decide(world, daemon).await?;
            } else {
                maintain(world, daemon).await?;
            }
        }
        person::operate(world, daemon).await?;
    }
    for run in daemon.held.keys().cloned().collect::<Vec<_>>() {
        driver::step(world, daemon, &run).await?;
    }
    Ok(())
}

/// An answer that is expected when a write is repeated whose answer was lost.
pub(super) fn known(error: &LedgerError) -> bool {
    matches!(error, LedgerError::Misuse { .. })
}
