//! Notices a loop that goes in circles.
//!
//! A call brings something new when it, or its result, was not seen before in this run. Must never
//! hold more than a hash per call.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::limits::{NO_PROGRESS_STOP, NO_PROGRESS_WARN};
use crate::model::{Arguments, Call};

/// What to do after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Go on.
    GoOn,
    /// Go on, and tell the model how many calls in a row brought nothing new.
    Warn(u32),
    /// Stop.
    Stop(u32),
}

#[derive(Debug, Default)]
pub(super) struct Guard {
    seen: HashSet<u64>,
    repeats: u32,
}

impl Guard {
    /// Takes a call and its result.
    pub(super) fn observe(&mut self, call: &Call, result: &str) -> Verdict {
        let mut hasher = DefaultHasher::new();
        call.name.hash(&mut hasher);
        match &call.arguments {
            // A map of JSON prints in one order, whatever order the model chose.
            Arguments::Object(map) => {
                serde_json::Value::Object(map.clone()).to_string().hash(&mut hasher)
            }
            Arguments::Malformed { text, .. } => text.hash(&mut hasher),
        }
        result.hash(&mut hasher);
        if self.seen.insert(hasher.finish()) {
            self.repeats = 0;
            return Verdict::GoOn;
        }
        self.repeats += 1;
        match self.repeats {
            n if n >= NO_PROGRESS_STOP => Verdict::Stop(n),
            n if n >= NO_PROGRESS_WARN => Verdict::Warn(n),
            _ => Verdict::GoOn,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn call(command: &str) -> Call {
        let mut map = Map::new();
        map.insert("command".into(), json!(command));
        Call { id: "x".into(), name: "run_shell".into(), arguments: Arguments::Object(map) }
    }

    #[test]
    fn the_same_call_with_the_same_result_warns_and_then_stops() {
        let mut guard = Guard::default();
        let verdicts: Vec<Verdict> =
            (0..=NO_PROGRESS_STOP).map(|_| guard.observe(&call("a"), "r")).collect();
        assert_eq!(verdicts[..3], [Verdict::GoOn; 3]);
        assert_eq!(verdicts[3], Verdict::Warn(3));
        assert_eq!(verdicts.last(), Some(&Verdict::Stop(NO_PROGRESS_STOP)));
    }

    #[test]
    fn turning_in_a_circle_of_several_calls_stops_too() {
        let mut guard = Guard::default();
        let last = (0..20)
            .map(|n| guard.observe(&call(["a", "b", "c"][n % 3]), "r"))
            .find(|v| matches!(v, Verdict::Stop(_)));
        assert!(last.is_some());
    }

    #[test]
    fn a_new_result_is_progress() {
        let mut guard = Guard::default();
        for n in 0..50 {
            assert_eq!(guard.observe(&call("a"), &n.to_string()), Verdict::GoOn);
        }
        for n in 0..50 {
            assert_eq!(guard.observe(&call(&n.to_string()), "r"), Verdict::GoOn);
        }
    }
}
