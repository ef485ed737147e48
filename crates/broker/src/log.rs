//! Where the broker tells what it decided.
//!
//! The broker never writes a record itself: it hands typed facts to whoever supervises the run. An
//! implementation must not block, since it is called from connection tasks.

use std::sync::{Mutex, PoisonError};

use cofferdam_run::Fact;

/// Takes the broker's facts. Called from many tasks at once; must not block.
pub trait BrokerLog: Send + Sync + 'static {
    /// Something was decided or ended.
    fn fact(&self, fact: Fact);

    /// A budget of the run is used up. `budget` is one of the names of
    /// [`cofferdam_run::StopCause::Budget`], for example `egress_bytes_out`. May be called more
    /// than once; the first call decides.
    fn exhausted(&self, budget: &'static str);
}

/// Keeps everything in memory, unbounded: for tests and the offline vector check.
#[derive(Debug, Default)]
pub struct MemoryLog {
    facts: Mutex<Vec<Fact>>,
    exhausted: Mutex<Vec<&'static str>>,
}

impl MemoryLog {
    /// The facts so far, oldest first.
    #[must_use]
    pub fn facts(&self) -> Vec<Fact> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The budgets reported as used up so far, in order of the reports.
    #[must_use]
    pub fn exhausted_budgets(&self) -> Vec<&'static str> {
        self.exhausted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl BrokerLog for MemoryLog {
    fn fact(&self, fact: Fact) {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).push(fact);
    }

    fn exhausted(&self, budget: &'static str) {
        self.exhausted.lock().unwrap_or_else(PoisonError::into_inner).push(budget);
    }
}
