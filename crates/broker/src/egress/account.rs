//! What the door tells: one fact per connection, bounded, and the byte budget.
//!
//! An [`Entry`] lives as long as its connection and tells its fact when it is dropped, so that a
//! connection cannot end without being told, however it ends. The number of facts is bounded,
//! since a guest decides how many there would be; what is left out is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cofferdam_policy::Refusal;
use cofferdam_run::Fact;
use cofferdam_run::spec::Principal;
use tokio_util::sync::CancellationToken;

use super::limits::{MAX_LOGGED_CHARS, MAX_LOGGED_CONNECTIONS, MAX_LOGGED_REFUSALS};
use crate::log::BrokerLog;

/// Name of the budget of bytes that may leave.
pub const BYTES_OUT_BUDGET: &str = "egress_bytes_out";

/// The door's books.
pub(super) struct Books {
    log: Arc<dyn BrokerLog>,
    cut: CancellationToken,
    bytes_out_left: AtomicU64,
    exhausted: AtomicBool,
    refusals: AtomicU64,
    connections: AtomicU64,
    left_out: AtomicU64,
}

impl Books {
    pub(super) fn new(log: Arc<dyn BrokerLog>, cut: CancellationToken, bytes_out: u64) -> Self {
        Self {
            log,
            cut,
            bytes_out_left: AtomicU64::new(bytes_out),
            exhausted: AtomicBool::new(false),
            refusals: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// Opens the entry of one connection or plain request.
    pub(super) fn entry(self: &Arc<Self>, target: &str) -> Entry {
        Entry {
            books: Arc::clone(self),
            target: printable(target),
            reason: String::new(),
            address: None,
            outcome: "cut",
            verdict: Verdict::Open,
            quiet: false,
            bytes_out: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            principal: None,
        }
    }

    /// Tells how many facts were left out since the last call.
    pub(super) fn tell_left_out(&self) {
        let count = self.left_out.swap(0, Ordering::Relaxed);
        if count > 0 {
            self.log.fact(Fact::Truncated { kind: "egress".to_owned(), count });
        }
    }

    /// Takes `bytes` from the budget, all or none.
    fn take(&self, bytes: u64) -> bool {
        let taken = self
            .bytes_out_left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(bytes));
        if taken.is_ok() {
            return true;
        }
        if !self.exhausted.swap(true, Ordering::AcqRel) {
            self.log.exhausted(BYTES_OUT_BUDGET);
        }
        self.cut.cancel();
        false
    }

    fn tell(&self, admitted: bool, fact: Fact) {
        let (counter, most) = if admitted {
            (&self.connections, MAX_LOGGED_CONNECTIONS)
        } else {
            (&self.refusals, MAX_LOGGED_REFUSALS)
        };
        if counter.fetch_add(1, Ordering::Relaxed) < most {
            self.log.fact(fact);
        } else {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Not decided yet.
    Open,
    Admitted,
    Refused,
}

/// The budget of bytes out is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the budget of bytes that may leave is used up")]
pub(super) struct Exhausted;

/// One connection or plain request, told when dropped.
pub(super) struct Entry {
    books: Arc<Books>,
    target: String,
    reason: String,
    address: Option<String>,
    outcome: &'static str,
    verdict: Verdict,
    quiet: bool,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    principal: Option<Principal>,
}

impl Entry {
    /// It carries the token of `principal`.
    pub(super) fn of(&mut self, principal: Principal) {
        self.principal = Some(principal);
    }

    /// The rules admit it; it is about to be dialled at `address`.
    pub(super) fn admit(&mut self, rule: String, address: String) {
        self.verdict = Verdict::Admitted;
        self.reason = rule;
        self.address = Some(address);
    }

    /// It is refused, even if it had been admitted before.
    pub(super) fn refuse(&mut self, refusal: &Refusal) {
        self.verdict = Verdict::Refused;
        self.reason = printable(&refusal.to_string());
        self.outcome = "";
    }

    /// A refusal of the wall test, which has a fact of its own.
    pub(super) fn keep_quiet(&mut self) {
        self.quiet = true;
    }

    /// How an admitted one ended.
    pub(super) fn end(&mut self, outcome: &'static str) {
        if self.verdict == Verdict::Admitted {
            self.outcome = outcome;
        }
    }

    /// Accounts for bytes that are about to leave. On an error not one of them may.
    pub(super) fn take_out(&self, bytes: u64) -> Result<(), Exhausted> {
        if !self.books.take(bytes) {
            return Err(Exhausted);
        }
        self.bytes_out.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Accounts for bytes that came in.
    pub(super) fn add_in(&self, bytes: u64) {
        self.bytes_in.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let admitted = match self.verdict {
            // The guest left, or the run ended, before there was a decision.
            Verdict::Open => return,
            Verdict::Refused if self.quiet => return,
            Verdict::Admitted => true,
            Verdict::Refused => false,
        };
        let fact = Fact::Egress {
            target: std::mem::take(&mut self.target),
            admitted,
            reason: std::mem::take(&mut self.reason),
            address: self.address.take(),
            bytes_out: *self.bytes_out.get_mut(),
            bytes_in: *self.bytes_in.get_mut(),
            outcome: self.outcome.to_owned(),
            principal: self.principal,
        };
        self.books.tell(admitted, fact);
    }
}

/// Text from outside, made safe to print and cut.
pub(super) fn printable(text: &str) -> String {
    let mut out = String::new();
    for (count, c) in text.chars().flat_map(char::escape_debug).enumerate() {
        if count == MAX_LOGGED_CHARS {
            out.push('…');
            break;
        }
        out.push(c);
    }
    out
}
