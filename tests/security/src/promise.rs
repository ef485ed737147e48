//! The promises of `SECURITY.md`, by number. Data only.

/// A promise that tests show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// Nothing leaves but through the broker.
    P1,
    /// The broker admits only what a rule names.
    P2,
    /// No credential of the host is readable inside.
    P3,
    /// The guest cannot write outside its places or gain rights.
    P4,
    /// The guest cannot exhaust the host.
    P5,
    /// Nothing that the agent wrote executes on the host.
    P6,
    /// Work is never lost.
    P8,
    /// Nothing unlisted is left behind.
    P11,
    /// Stopping stops.
    P12,
}

impl Promise {
    /// Its number in `SECURITY.md`.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::P1 => 1,
            Self::P2 => 2,
            Self::P3 => 3,
            Self::P4 => 4,
            Self::P5 => 5,
            Self::P6 => 6,
            Self::P8 => 8,
            Self::P11 => 11,
            Self::P12 => 12,
        }
    }
}
