//! Cron expressions in a time zone: five fields, read once, asked for the next instant.
//!
//! Pure: the time zone rules are compiled in, so every machine gives the same answer, and time
//! arrives as a parameter.
//!
//! Daylight saving. When the hour field is `*`, time is counted as it passes: a skipped hour has no
//! slots, a repeated hour has them twice. When hours are named, each local time happens once a day:
//! one that does not exist moves forward by the length of the gap, of one that exists twice the
//! first counts (both as RFC 5545 has it). Times that fall on the same instant are one slot.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::TimestampMs;

/// Bytes of an expression. A longer one is refused.
pub const MAX_CRON_BYTES: usize = 256;

/// Days that are searched for the next slot: eight years and a day, so that 29 February is found
/// also around a year like 2100. An expression without a slot in them is refused.
const SEARCH_DAYS: u32 = 8 * 366 + 1;

/// Why a text is no schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCron {
    /// Not five fields.
    #[error("a schedule has five fields (minute hour day month weekday), not {found}")]
    Fields {
        /// How many there are.
        found: usize,
    },
    /// A field that cannot be read.
    #[error("the {field} {text:?} is not one: {why}")]
    Field {
        /// Which.
        field: &'static str,
        /// Its text, cut at 80 characters.
        text: String,
        /// Why.
        why: &'static str,
    },
    /// Too long.
    #[error("the schedule is {size} bytes long; at most {MAX_CRON_BYTES} fit")]
    TooLong {
        /// Its size.
        size: usize,
    },
    /// A day that never comes.
    #[error("{text:?} never happens")]
    Never {
        /// The expression.
        text: String,
    },
    /// No such time zone.
    #[error("{name:?} is no IANA time zone, for example Europe/Berlin or UTC")]
    Zone {
        /// The name, cut at 80 characters.
        name: String,
    },
}

/// An IANA time zone by name, with its rules.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Zone {
    name: String,
    rules: TimeZone,
}

impl Zone {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name)
    }
}

impl FromStr for Zone {
    type Err = InvalidCron;
    fn from_str(name: &str) -> Result<Self, InvalidCron> {
        let unknown = || InvalidCron::Zone { name: name.chars().take(80).collect() };
        let rules = TimeZoneDatabase::bundled().get(name).map_err(|_| unknown())?;
        // Compared without case; stored as the database has it.
        let name = rules.iana_name().ok_or_else(unknown)?.to_owned();
        Ok(Self { name, rules })
    }
}

impl TryFrom<String> for Zone {
    type Error = InvalidCron;
    fn try_from(name: String) -> Result<Self, InvalidCron> {
        name.parse()
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> Self {
        zone.name
    }
}

/// A parsed expression. Keeps its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Cron {
    text: String,
    /// Bit sets: bit `n` means that `n` matches.
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    every_hour: bool,
    any_day: bool,
    any_weekday: bool,
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

struct Field {
    name: &'static str,
    low: u8,
    high: u8,
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { name: "minute", low: 0, high: 59, names: &[] },
    Field { name: "hour", low: 0, high: 23, names: &[] },
    Field { name: "day", low: 1, high: 31, names: &[] },
    Field { name: "month", low: 1, high: 12, names: &MONTHS },
    // 7 is Sunday too.
    Field { name: "weekday", low: 0, high: 7, names: &WEEKDAYS },
];

impl Field {
    fn error(&self, text: &str, why: &'static str) -> InvalidCron {
        InvalidCron::Field { field: self.name, text: text.chars().take(80).collect(), why }
    }

    fn value(&self, text: &str) -> Result<u8, InvalidCron> {
        let lower = text.to_ascii_lowercase();
        if let Some(place) = self.names.iter().position(|n| *n == lower) {
            return Ok(self.low + u8::try_from(place).unwrap_or(0));
        }
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.error(text, "it is not a number"));
        }
        match text.parse() {
            Ok(n) if (self.low..=self.high).contains(&n) => Ok(n),
            _ => Err(self.error(text, "it is out of range")),
        }
    }

    fn parse(&self, text: &str) -> Result<u64, InvalidCron> {
        let mut bits = 0u64;
        for item in text.split(',') {
            let (range, step) = match item.split_once('/') {
                Some((range, step)) => (range, Some(step)),
                None => (item, None),
            };
            let (low, high) = match range.split_once('-') {
                _ if range == "*" => (self.low, self.high),
                Some((low, high)) => (self.value(low)?, self.value(high)?),
                None if step.is_some() => (self.value(range)?, self.high),
                None => {
                    let value = self.value(range)?;
                    (value, value)
                }
            };
            let step = match step {
                None => 1,
                Some(step) => match step.parse::<u8>() {
                    Ok(n) if n > 0 && step.bytes().all(|b| b.is_ascii_digit()) => n,
                    _ => return Err(self.error(item, "its step is not a number above zero")),
                },
            };
            if low > high {
                return Err(self.error(item, "its range goes backwards"));
            }
            bits |= (low..=high).step_by(usize::from(step)).fold(0, |bits, n| bits | 1 << n);
        }
        Ok(bits)
    }
}

impl FromStr for Cron {
    type Err = InvalidCron;
    fn from_str(text: &str) -> Result<Self, InvalidCron> {
        if text.len() > MAX_CRON_BYTES {
            return Err(InvalidCron::TooLong { size: text.len() });
        }
        let long = match text.trim() {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            other => other,
        };
        let parts: Vec<&str> = long.split_ascii_whitespace().collect();
        let found = parts.len();
        let parts: [&str; 5] = parts.try_into().map_err(|_| InvalidCron::Fields { found })?;
        let mut sets = [0; 5];
        for ((set, field), part) in sets.iter_mut().zip(&FIELDS).zip(parts) {
            *set = field.parse(part)?;
        }
        let [minutes, hours, days, months, weekdays] = sets;
        let cron = Self {
            text: text.trim().to_owned(),
            minutes,
            hours,
            days,
            months,
            weekdays: weekdays | (weekdays >> 7),
            every_hour: parts[1] == "*",
            any_day: parts[2].starts_with('*'),
            any_weekday: parts[4].starts_with('*'),
        };
        // 2000 to 2008 has every day of the calendar.
        let never = || InvalidCron::Never { text: cron.text.clone() };
        let start = Date::new(2000, 1, 1).map_err(|_| never())?;
        if cron.next_date(start).is_none() {
            return Err(never());
        }
        Ok(cron)
    }
}

impl TryFrom<String> for Cron {
    type Error = InvalidCron;
    fn try_from(text: String) -> Result<Self, InvalidCron> {
        text.parse()
    }
}

impl From<Cron> for String {
    fn from(cron: Cron) -> Self {
        cron.text
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn has(bits: u64, n: i8) -> bool {
    u32::try_from(n).is_ok_and(|n| n < 64 && bits & (1 << n) != 0)
}

impl Cron {
    /// As cron has always read it: when both day and weekday are restricted, either is enough.
    fn matches_date(&self, date: Date) -> bool {
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        has(self.months, date.month())
            && match (self.any_day, self.any_weekday) {
                (false, false) => day || weekday,
                _ => day && weekday,
            }
    }

    fn next_date(&self, from: Date) -> Option<Date> {
        let mut date = from;
        for _ in 0..SEARCH_DAYS {
            if self.matches_date(date) {
                return Some(date);
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    /// The first slot after that instant; `None` past the end of the calendar.
    #[must_use]
    pub fn next_after(&self, after: TimestampMs, zone: &Zone) -> Option<TimestampMs> {
        let after = Timestamp::from_millisecond(i64::try_from(after.0).ok()?).ok()?;
        let local = after.to_zoned_datetime(zone.rules.clone());
        // A gap can move a time of the day before past midnight.
        let mut date = local.date().yesterday().ok()?;
        loop {
            date = self.next_date(date)?;
            let mut found = self.instants(date, zone);
            found.sort_unstable();
            if let Some(next) = found.into_iter().find(|at| *at > after) {
                return u64::try_from(next.as_millisecond()).ok().map(TimestampMs);
            }
            date = date.tomorrow().ok()?;
        }
    }

    /// All slots of a local date.
    fn instants(&self, date: Date, zone: &Zone) -> Vec<Timestamp> {
        let mut out = Vec::new();
        for hour in (0..24).filter(|h| has(self.hours, *h)) {
            for minute in (0..60).filter(|m| has(self.minutes, *m)) {
                let time = zone.rules.to_ambiguous_timestamp(date.at(hour, minute, 0, 0));
                if !self.every_hour {
                    out.extend(time.compatible().ok());
                    continue;
                }
                if matches!(time.offset(), AmbiguousOffset::Gap { .. }) {
                    continue;
                }
                let (earlier, later) = (time.earlier().ok(), time.later().ok());
                out.extend(earlier);
                if later != earlier {
                    out.extend(later);
                }
            }
        }
        out
    }

    /// The latest slots in `(after, now]`, oldest first, at most `keep`; and whether there were more
    /// before them. However long ago `after` is, the work is bounded by `keep`.
    #[must_use]
    pub fn due(
        &self,
        after: TimestampMs,
        now: TimestampMs,
        zone: &Zone,
        keep: usize,
    ) -> (Vec<TimestampMs>, bool) {
        let mut window_ms = 60_000u64;
        loop {
            let from = TimestampMs(now.0.saturating_sub(window_ms)).max(after);
            let mut slots = Vec::new();
            let mut at = from;
            while let Some(next) = self.next_after(at, zone).filter(|n| *n <= now) {
                slots.push(next);
                at = next;
            }
            if slots.len() > keep || from == after {
                let more = slots.len() > keep;
                return (slots.split_off(slots.len().saturating_sub(keep)), more);
            }
            window_ms = window_ms.saturating_mul(4);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(text: &str) -> TimestampMs {
        let at: Timestamp = text.parse().unwrap();
        TimestampMs(u64::try_from(at.as_millisecond()).unwrap())
    }

    fn shown(at: TimestampMs) -> String {
        Timestamp::from_millisecond(i64::try_from(at.0).unwrap()).unwrap().to_string()
    }

    /// The next slots after `after`.
    fn check(cron: &str, zone: &str, after: &str, expected: &[&str]) {
        let (cron, zone): (Cron, Zone) = (cron.parse().unwrap(), zone.parse().unwrap());
        let mut at = ms(after);
        for expected in expected {
            at = cron.next_after(at, &zone).unwrap();
            assert_eq!(shown(at), *expected, "{cron} in {zone:?} after {after}");
        }
    }

    #[test]
    fn fields_are_read_as_cron_always_did() {
        check(
            "*/15 9-10 * * *",
            "UTC",
            "2026-01-05T09:40:00Z",
            &["2026-01-05T09:45:00Z", "2026-01-05T10:00:00Z"],
        );
        check("0 8 * * mon-fri", "UTC", "2026-01-02T09:00:00Z", &["2026-01-05T08:00:00Z"]);
        check(
            "0 0 13 * 5",
            "UTC",
            "2026-01-01T12:00:00Z",
            &["2026-01-02T00:00:00Z", "2026-01-09T00:00:00Z", "2026-01-13T00:00:00Z"],
        );
        check("0 0 29 feb *", "UTC", "2026-01-01T00:00:00Z", &["2028-02-29T00:00:00Z"]);
        check(
            "5/20 0 1 1 7",
            "UTC",
            "2026-01-01T00:00:00Z",
            &[
                "2026-01-01T00:05:00Z",
                "2026-01-01T00:25:00Z",
                "2026-01-01T00:45:00Z",
                "2026-01-04T00:05:00Z",
            ],
        );
        check("@daily", "Asia/Kolkata", "2026-01-01T00:00:00Z", &["2026-01-01T18:30:00Z"]);
    }

    #[test]
    fn a_local_time_that_does_not_exist_moves_by_the_gap() {
        // Berlin, 29 March 2026: 02:00 becomes 03:00.
        check(
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00:00Z",
            &["2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"],
        );
        // 02:30 moves to 03:30, which is named too: one slot.
        check(
            "30 2,3 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00:00Z",
            &["2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"],
        );
    }

    #[test]
    fn a_local_time_that_exists_twice_happens_once() {
        // Berlin, 25 October 2026: 03:00 becomes 02:00.
        check(
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00:00Z",
            &["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
        );
    }

    #[test]
    fn every_hour_counts_hours_as_they_pass() {
        check(
            "0 * * * *",
            "Europe/Berlin",
            "2026-10-24T23:30:00Z",
            &["2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"],
        );
        check(
            "0 * * * *",
            "Europe/Berlin",
            "2026-03-28T23:30:00Z",
            &["2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"],
        );
        check(
            "30 * * * *",
            "Australia/Lord_Howe",
            "2026-04-04T13:45:00Z",
            &["2026-04-04T14:30:00Z", "2026-04-04T15:00:00Z", "2026-04-04T16:00:00Z"],
        );
    }

    #[test]
    fn a_day_that_a_zone_skipped_is_left_out_or_moved() {
        // Samoa had no 30 December 2011.
        check("0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", &["2011-12-30T22:00:00Z"]);
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        let long = "*".repeat(300);
        for text in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "5-1 * * * *",
            "*/0 * * * *",
            "*/x * * * *",
            "+1 * * * *",
            "1,,2 * * * *",
            "0 0 30 feb *",
            "@reboot",
            "* * * * funday",
            &long,
        ] {
            assert!(text.parse::<Cron>().is_err(), "{text}");
        }
        for zone in ["", "Mars/Olympus", "../../etc/passwd", "CEST5"] {
            assert!(zone.parse::<Zone>().is_err(), "{zone}");
        }
    }

    #[test]
    fn both_survive_storage() {
        let cron: Cron = serde_json::from_str("\"*/5 * * * *\"").unwrap();
        assert_eq!(serde_json::to_string(&cron).unwrap(), "\"*/5 * * * *\"");
        let zone: Zone = serde_json::from_str("\"europe/berlin\"").unwrap();
        assert_eq!(serde_json::to_string(&zone).unwrap(), "\"Europe/Berlin\"");
        serde_json::from_str::<Cron>("\"* * *\"").unwrap_err();
    }

    #[test]
    fn of_a_long_pause_the_latest_slots_are_found_without_counting_all() {
        let (cron, zone): (Cron, Zone) = ("* * * * *".parse().unwrap(), "UTC".parse().unwrap());
        let (slots, more) =
            cron.due(ms("1990-01-01T00:00:00Z"), ms("2026-01-01T00:00:30Z"), &zone, 2);
        assert!(more);
        assert_eq!(
            slots.into_iter().map(shown).collect::<Vec<_>>(),
            ["2025-12-31T23:59:00Z", "2026-01-01T00:00:00Z"]
        );
        let none = cron.due(ms("2026-01-01T00:00:00Z"), ms("2026-01-01T00:00:59Z"), &zone, 2);
        assert_eq!(none, (vec![], false));
        let yearly: Cron = "@yearly".parse().unwrap();
        let (slots, more) =
            yearly.due(ms("2024-06-01T00:00:00Z"), ms("2026-06-01T00:00:00Z"), &zone, 5);
        assert_eq!((slots.len(), more), (2, false));
    }
}
