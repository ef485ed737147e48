//! Seeded simulation of durable runs: a real ledger, two daemons that act by the state machine, and
//! everything around them made up from one number: clock, engine, agents, persons, failures.
//!
//! At each boundary, before and after every write and every effect, a daemon may be stopped: all it
//! had in memory is gone and it opens the ledger anew. Writes may fail before they are committed, or
//! after, so that nobody knows. What must hold then is in `check`.
//!
//! The same seed gives the same life. Nothing here sleeps, reads a clock or draws a random number.

mod agent;
mod check;
mod driver;
mod engine;
mod facts;
mod person;
mod process;
mod random;
mod world;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cofferdam_ledger::Ledger;

pub use random::Random;

use world::{Stop, World};

/// A mistake that is made on purpose, to see that the simulation finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// A daemon works on a run that another one holds.
    DoubleClaim,
    /// A write is confirmed and was never made.
    LostEvent,
    /// A run that was over is queued again.
    RevivedTerminal,
    /// A sandbox is said to be gone and is not.
    Orphan,
    /// An effect is performed before its approval is used up.
    DoubleEffect,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::DoubleClaim,
        Self::LostEvent,
        Self::RevivedTerminal,
        Self::Orphan,
        Self::DoubleEffect,
    ];
}

/// How a life goes.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// What everything is made up from.
    pub seed: u64,
    /// Steps before the storm ends and everything has to come to rest.
    pub steps: u32,
    /// How often a daemon is stopped at a boundary, of 1,000.
    pub crash_permille: u32,
    /// How often a write or an effect fails, of 1,000.
    pub fault_permille: u32,
    /// Stops a daemon at exactly this boundary, counted from 1, and nowhere else.
    pub crash_at: Option<u64>,
    /// A mistake to be found.
    pub sabotage: Option<Sabotage>,
}

impl Config {
    /// The usual storm.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        Self {
            seed,
            steps: 60,
            crash_permille: 15,
            fault_permille: 25,
            crash_at: None,
            sabotage: None,
        }
    }

    /// The same life without any failure, stopped at one boundary when that is given.
    #[must_use]
    pub fn calm(seed: u64, crash_at: Option<u64>) -> Self {
        // No number is drawn for a stop, so that the life up to it is the same whichever it is.
        let crash_at = Some(crash_at.unwrap_or(u64::MAX));
        Self { crash_permille: 0, fault_permille: 0, crash_at, ..Self::of_seed(seed) }
    }
}

/// What a life came to.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Rules that were broken; empty when all held.
    pub violations: Vec<String>,
    /// Boundaries passed.
    pub boundaries: u64,
    /// How often a daemon was stopped.
    pub crashes: u64,
    /// Writes and effects that failed.
    pub faults: u64,
    /// Runs that ended, by state.
    pub ended: std::collections::BTreeMap<String, u64>,
    /// Approved effects that were performed.
    pub effects: u64,
    /// The last things that happened, for whoever looks for the cause.
    pub trace: Vec<String>,
}

/// A database of the newest format without a row, copied for each life.
#[derive(Debug)]
pub struct Template {
    dir: tempfile::TempDir,
}

/// Where lives are kept while they last: in memory where the machine has such a place, because what
/// is simulated is the loss of a process and not of power.
fn scratch() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

impl Template {
    /// Makes the database.
    ///
    /// # Errors
    /// When there is no room for it.
    pub async fn new() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir_in(scratch()).context("a directory for the template")?;
        drop(Ledger::open(dir.path()).await?);
        let connection = rusqlite::Connection::open(dir.path().join("ledger.db"))?;
        connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?;
        Ok(Self { dir })
    }

    fn copy(&self) -> anyhow::Result<tempfile::TempDir> {
        let dir = tempfile::tempdir_in(scratch()).context("a directory for a life")?;
        std::fs::copy(self.dir.path().join("ledger.db"), dir.path().join("ledger.db"))?;
        Ok(dir)
    }
}

/// Lives one life.
///
/// # Errors
/// Only when the machine fails; a rule that is broken is in the report.
pub async fn live(template: &Template, config: Config) -> anyhow::Result<Report> {
    let dir = template.copy()?;
    let mut world = World::new(config);
    let mut daemons = process::Daemons::open(dir.path()).await?;
    process::furnish(&mut world, daemons.ledger(0)).await?;
    for _ in 0..config.steps {
        let who = usize::from(world.random.chance(500));
        match process::step(&mut world, &mut daemons, who).await {
            Ok(()) | Err(Stop::Failed) => {}
            Err(Stop::Crash) => {
                world.crashes += 1;
                daemons.restart(who).await?;
                check::always(&mut world, daemons.ledger(who)).await?;
            }
            Err(Stop::Broken(error)) => {
                world.violation(format!("the ledger failed by itself: {} {error}", error.code()));
                break;
            }
        }
        if !world.violations.is_empty() {
            break;
        }
    }
    if config.sabotage == Some(Sabotage::RevivedTerminal) {
        world::revive(dir.path())?;
    }
    check::always(&mut world, daemons.ledger(0)).await?;
    if world.violations.is_empty() {
        process::come_to_rest(&mut world, &mut daemons).await?;
        check::always(&mut world, daemons.ledger(0)).await?;
        check::at_rest(&mut world, daemons.ledger(0)).await?;
    }
    Ok(world.report())
}
