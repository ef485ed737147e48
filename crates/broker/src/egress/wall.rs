//! The wall test as the door sees it: a target that no rule admits, which is to be refused.
//!
//! What the guest says about its attempts is a claim; what is counted here is evidence. A watched
//! target is never looked up or dialled, whatever the rules say, so that the test waits for nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cofferdam_policy::authority::Name;
use cofferdam_policy::{Authority, NamePermit, Refusal, RefusalCode, Stage};

use super::request::Form;

/// What the door saw of the watched target. Attempts without the run's token do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WallSeen {
    /// CONNECTs that the rules refused.
    pub tunnels_refused: u32,
    /// Plain requests that the rules refused.
    pub plain_refused: u32,
    /// Attempts that the rules admitted.
    pub let_through: u32,
    /// Attempts that something other than the rules refused: they show nothing.
    pub other: u32,
}

impl WallSeen {
    /// Both ways were tried, and every attempt was refused by the rules.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.tunnels_refused > 0 && self.plain_refused > 0 && self.let_through == 0
    }
}

/// The watched target, while there is one.
#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<Option<(Name, WallSeen)>>);

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Option<(Name, WallSeen)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, target: Name) {
        *self.lock() = Some((target, WallSeen::default()));
    }

    pub(super) fn end(&self) -> WallSeen {
        self.lock().take().map(|(_, seen)| seen).unwrap_or_default()
    }

    pub(super) fn concerns(&self, authority: &Authority) -> bool {
        self.lock().as_ref().is_some_and(|(target, _)| authority.host().name() == Some(target))
    }

    /// Notes what the rules said of the watched target. What they admit is refused here.
    pub(super) fn note(&self, form: &Form, decision: Result<NamePermit, Refusal>) -> Refusal {
        let mut watched = self.lock();
        let mut unwatched = WallSeen::default();
        let seen = watched.as_mut().map_or(&mut unwatched, |(_, seen)| seen);
        match decision {
            Ok(permit) => {
                seen.let_through += 1;
                let reason = format!("the wall test was admitted by {}", permit.rule());
                Refusal::new(RefusalCode::NotAdmitted, reason)
            }
            Err(refusal) => {
                match (refusal.kind, form) {
                    (RefusalCode::NotAdmitted | RefusalCode::Denied, Form::Tunnel) => {
                        seen.tunnels_refused += 1;
                    }
                    (RefusalCode::NotAdmitted | RefusalCode::Denied, Form::Plain { .. }) => {
                        seen.plain_refused += 1;
                    }
                    _ => seen.other += 1,
                }
                debug_assert_eq!(refusal.stage, Stage::Policy, "decided by text alone");
                refusal
            }
        }
    }
}
