//! The table: every attempt with its promise, its layer, the failure of others that it mirrors, and
//! its twin. An attempt exists exactly once, here by way of its group.

use crate::attack;
use crate::outcome::{Outcome, Twin};
use crate::promise::Promise;

/// Where an attempt makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In every sandbox, also as its first program.
    Anywhere,
    /// Beside the guest, its doors and the broker.
    Product,
    /// In a sandbox with limits so tight that they are met at once.
    Tight,
    /// In a sandbox in whose work volume the host planted things.
    Planted,
}

/// One attempt.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// `layer.what`, unique.
    pub name: &'static str,
    /// The promise that it would break.
    pub promise: Promise,
    /// The layer that holds it, or the first of several.
    pub layer: &'static str,
    /// Where it runs.
    pub place: Place,
    /// The number of the known failure of a comparable system that it mirrors, empty when none.
    pub case: &'static str,
    /// Why it is held on the native engine only; empty when every engine holds it.
    pub native_only: &'static str,
    /// The attempt.
    pub attack: fn() -> Outcome,
    /// The legal neighbour, which must work.
    pub twin: fn() -> Twin,
}

impl Attempt {
    /// A row; `layer` is the name's first part.
    #[must_use]
    pub const fn new(
        name: &'static str,
        layer: &'static str,
        promise: Promise,
        attack: fn() -> Outcome,
        twin: fn() -> Twin,
    ) -> Self {
        Self {
            name,
            promise,
            layer,
            place: Place::Anywhere,
            case: "",
            native_only: "",
            attack,
            twin,
        }
    }

    /// With the failure that it mirrors.
    #[must_use]
    pub const fn case(mut self, case: &'static str) -> Self {
        self.case = case;
        self
    }

    /// With the reason why other engines do not hold it.
    #[must_use]
    pub const fn native_only(mut self, reason: &'static str) -> Self {
        self.native_only = reason;
        self
    }

    /// With the place where it runs.
    #[must_use]
    pub const fn at(mut self, place: Place) -> Self {
        self.place = place;
        self
    }
}

/// All attempts of the attacker program.
pub fn all() -> impl Iterator<Item = &'static Attempt> {
    [
        attack::calls::TABLE,
        attack::sockets::TABLE,
        attack::identity::TABLE,
        attack::files::TABLE,
        attack::network::TABLE,
        attack::processes::TABLE,
        attack::supervisor::TABLE,
        attack::broker::TABLE,
        attack::limits::TABLE,
        attack::planted::TABLE,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_there_are_at_least_ninety() {
        let names: BTreeSet<&str> = all().map(|a| a.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(names.len() >= 90, "{}", names.len());
    }
}
