//! What outlives a daemon: clock, engine, effects, and a journal of everything that was confirmed.
//!
//! The journal is what the ledger is compared with. It is never read by a daemon.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use cofferdam_ledger::LedgerError;
use cofferdam_run::{ApprovalId, ProjectId, RunId, StateName, TaskId, ThreadId, TimestampMs};

use super::engine::Engine;
use super::random::Random;
use super::{Config, Report, Sabotage};

/// Why a daemon does not go on.
#[derive(Debug)]
pub(super) enum Stop {
    /// It is stopped: everything in memory is gone.
    Crash,
    /// A write or an effect failed, or nobody knows.
    Failed,
    /// The ledger failed without having been told to.
    Broken(LedgerError),
}

/// What a write does besides working.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Not made.
    Before,
    /// Made, and the answer is lost.
    After,
}

/// Everything that was confirmed to somebody.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// Text of a fact that was kept, by run and sequence number.
    pub(super) kept: BTreeMap<(RunId, u64), String>,
    /// Who claimed which epoch of which run.
    pub(super) claims: BTreeMap<(RunId, u64), usize>,
    /// Runs that were seen to be over.
    pub(super) over: BTreeMap<RunId, StateName>,
    /// Tokens that a run was seen to have spent.
    pub(super) spent: BTreeMap<RunId, u64>,
    /// Tasks, by the key of the request that made them.
    pub(super) tasks: BTreeMap<String, TaskId>,
    /// Decisions that were said to count.
    pub(super) decided: BTreeMap<ApprovalId, String>,
    /// How often an approved effect was performed.
    pub(super) effects: BTreeMap<ApprovalId, u32>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) config: Config,
    pub(super) random: Random,
    pub(super) now: TimestampMs,
    pub(super) engine: Engine,
    pub(super) journal: Journal,
    pub(super) project: Option<ProjectId>,
    pub(super) threads: Vec<ThreadId>,
    pub(super) requests: u32,
    pub(super) violations: Vec<String>,
    pub(super) crashes: u64,
    pub(super) faults: u64,
    /// Off while everything comes to rest.
    pub(super) storm: bool,
    boundaries: u64,
    trace: VecDeque<String>,
}

const TRACE: usize = 200;

impl World {
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            random: Random::new(config.seed),
            now: TimestampMs(1_000_000),
            engine: Engine::default(),
            journal: Journal::default(),
            project: None,
            threads: Vec::new(),
            requests: 0,
            violations: Vec::new(),
            crashes: 0,
            faults: 0,
            storm: true,
            boundaries: 0,
            trace: VecDeque::new(),
        }
    }

    pub(super) fn is(&self, sabotage: Sabotage) -> bool {
        self.config.sabotage == Some(sabotage)
    }

    pub(super) fn note(&mut self, what: String) {
        if self.trace.len() == TRACE {
            self.trace.pop_front();
        }
        self.trace.push_back(format!("{} {what}", self.now.0));
    }

    pub(super) fn violation(&mut self, what: String) {
        self.note(format!("VIOLATION {what}"));
        if !self.violations.contains(&what) {
            self.violations.push(what);
        }
    }

    /// A place where a daemon may be stopped.
    pub(super) fn boundary(&mut self, what: &str) -> Result<(), Stop> {
        self.boundaries += 1;
        let here = match self.config.crash_at {
            Some(place) => self.boundaries == place,
            None => self.storm && self.random.chance(self.config.crash_permille),
        };
        if here {
            self.note(format!("stopped at boundary {}: {what}", self.boundaries));
            return Err(Stop::Crash);
        }
        Ok(())
    }

    fn fault(&mut self) -> Fault {
        if !self.storm || !self.random.chance(self.config.fault_permille) {
            return Fault::None;
        }
        self.faults += 1;
        if self.random.chance(500) { Fault::Before } else { Fault::After }
    }

    /// A write to the ledger, with everything that can go wrong around it.
    pub(super) async fn write<T>(
        &mut self,
        what: &str,
        work: impl Future<Output = Result<T, LedgerError>>,
    ) -> Result<T, Stop> {
        self.boundary(what)?;
        let fault = self.fault();
        if fault == Fault::Before {
            self.note(format!("{what}: failed before commit"));
            return Err(Stop::Failed);
        }
        let out = work.await.map_err(Stop::Broken)?;
        self.boundary(what)?;
        if fault == Fault::After {
            self.note(format!("{what}: committed, answer lost"));
            return Err(Stop::Failed);
        }
        Ok(out)
    }

    /// Something that is done to the world outside, likewise.
    pub(super) fn effect<T>(
        &mut self,
        what: &str,
        work: impl FnOnce(&mut Self) -> T,
    ) -> Result<T, Stop> {
        self.boundary(what)?;
        let fault = self.fault();
        if fault == Fault::Before {
            self.note(format!("{what}: failed, not done"));
            return Err(Stop::Failed);
        }
        let out = work(self);
        self.boundary(what)?;
        if fault == Fault::After {
            self.note(format!("{what}: done, answer lost"));
            return Err(Stop::Failed);
        }
        Ok(out)
    }

    pub(super) fn report(self) -> Report {
        let mut ended = BTreeMap::new();
        for state in self.journal.over.values() {
            *ended.entry(state.to_string()).or_insert(0) += 1;
        }
        Report {
            seed: self.config.seed,
            violations: self.violations,
            boundaries: self.boundaries,
            crashes: self.crashes,
            faults: self.faults,
            ended,
            effects: self.journal.effects.values().map(|n| u64::from(*n)).sum(),
            trace: self.trace.into(),
        }
    }
}

/// What nobody can do through the ledger: by hand, with the guards taken down first.
pub(super) fn revive(dir: &Path) -> anyhow::Result<()> {
    let hand = rusqlite::Connection::open(dir.join("ledger.db"))?;
    hand.pragma_update(None, "foreign_keys", false)?;
    hand.execute_batch(
        "DROP TRIGGER terminal_runs_never_change;
         DROP TRIGGER runs_keep_their_identity;
         DROP INDEX one_open_attempt_per_task;
         UPDATE runs SET state = 'queued', state_json = '{\"state\":\"queued\"}', verdict = NULL,
             epoch = 0
         WHERE ordinal = (SELECT min(ordinal) FROM runs WHERE verdict IS NOT NULL);",
    )?;
    Ok(())
}
