//! Schedules: when a task is made by the clock, and what becomes of slots that nobody was there for.
//!
//! Pure. A slot is an instant, and (schedule, slot) happens at most once, whoever counts. Whether an
//! earlier task still runs is asked of its runs, never of a flag that an interruption could leave
//! set.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cron::{Cron, Zone};
use crate::ids::TimestampMs;

/// Milliseconds after its instant during which a slot counts as on time.
pub const ON_TIME_MS: u64 = 5 * 60 * 1000;

/// Slots that a schedule makes up for at once.
pub const MAX_CATCH_UP: u32 = 24;

/// What happens with slots that came while nobody was there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "missed", rename_all = "snake_case")]
pub enum Missed {
    /// They are noted as missed.
    #[default]
    Skip,
    /// The latest one is made up for.
    Latest,
    /// Each is made up for, the latest `max` of them.
    All {
        /// At most this many, and never more than [`MAX_CATCH_UP`].
        max: u32,
    },
}

/// What happens when the task of an earlier slot is not over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// The slot is noted as skipped.
    #[default]
    Skip,
    /// The task is made and waits its turn.
    Queue,
}

/// When.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Timing {
    /// The expression.
    pub cron: Cron,
    /// The zone that it is read in.
    pub zone: Zone,
    /// Slots without a daemon.
    #[serde(default)]
    pub missed: Missed,
    /// Slots during an earlier task.
    #[serde(default)]
    pub overlap: Overlap,
}

/// What a slot is to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueSlot {
    /// The slot.
    pub at: TimestampMs,
    /// True: make the task. False: note it as missed.
    pub fires: bool,
}

/// What is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueSlots {
    /// Oldest first.
    pub slots: Vec<DueSlot>,
    /// Before the first of them there were others; they are missed without being listed.
    pub earlier_missed: bool,
    /// The next slot after now.
    pub next: Option<TimestampMs>,
}

impl Timing {
    /// The first slot after that instant.
    #[must_use]
    pub fn next_after(&self, after: TimestampMs) -> Option<TimestampMs> {
        self.cron.next_after(after, &self.zone)
    }

    /// The slots in `(after, now]` and what becomes of each.
    #[must_use]
    pub fn due(&self, after: TimestampMs, now: TimestampMs) -> DueSlots {
        let keep = match self.missed {
            Missed::Skip | Missed::Latest => 1,
            Missed::All { max } => max.clamp(1, MAX_CATCH_UP),
        };
        let keep = usize::try_from(keep).unwrap_or(1);
        let (slots, earlier_missed) = self.cron.due(after, now, &self.zone, keep);
        let slots = slots
            .into_iter()
            .map(|at| {
                let on_time = now.since_ms(at) <= ON_TIME_MS;
                DueSlot { at, fires: on_time || self.missed != Missed::Skip }
            })
            .collect();
        DueSlots { slots, earlier_missed, next: self.next_after(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    fn timing(missed: Missed) -> Timing {
        Timing {
            cron: "@hourly".parse().unwrap(),
            zone: "UTC".parse().unwrap(),
            missed,
            overlap: Overlap::Skip,
        }
    }

    fn due(missed: Missed, after: u64, now: u64) -> (Vec<(u64, bool)>, bool) {
        let due = timing(missed).due(TimestampMs(after), TimestampMs(now));
        assert_eq!(due.next, Some(TimestampMs((now / HOUR + 1) * HOUR)));
        (due.slots.iter().map(|s| (s.at.0 / HOUR, s.fires)).collect(), due.earlier_missed)
    }

    #[test]
    fn a_slot_on_time_fires_whatever_the_policy() {
        for missed in [Missed::Skip, Missed::Latest, Missed::All { max: 3 }] {
            assert_eq!(due(missed, HOUR, 2 * HOUR + 1), (vec![(2, true)], false));
        }
    }

    #[test]
    fn missed_slots_follow_the_policy() {
        let now = 10 * HOUR + HOUR / 2;
        assert_eq!(due(Missed::Skip, HOUR, now), (vec![(10, false)], true));
        assert_eq!(due(Missed::Latest, HOUR, now), (vec![(10, true)], true));
        let all = due(Missed::All { max: 3 }, HOUR, now);
        assert_eq!(all, (vec![(8, true), (9, true), (10, true)], true));
        let (slots, _) = due(Missed::All { max: u32::MAX }, HOUR, 100 * HOUR);
        assert_eq!(slots.len(), 24);
    }

    #[test]
    fn nothing_is_due_twice() {
        assert_eq!(due(Missed::Latest, 10 * HOUR, 10 * HOUR + 1), (vec![], false));
    }
}
