//! Reads a conversation: how many assistant turns it holds, and whether a provider would take it.
//!
//! The checks are those that providers really make and that clients really get wrong: unanswered
//! tool calls, results for calls that nobody made, missing mandatory fields. Never panics on any JSON.

use serde_json::Value;

/// Counts runs of adjacent assistant entries.
#[derive(Debug, Default)]
pub(super) struct Turns {
    count: usize,
    inside: bool,
    tag: Option<usize>,
}

impl Turns {
    /// An entry of the assistant. Entries with the call id of an earlier turn's script belong to it,
    /// however a client interleaves calls and results.
    pub(super) fn assistant(&mut self, call_id: Option<&str>) {
        let tag = call_id.and_then(turn_of_call);
        let same = self.inside || (tag.is_some() && tag == self.tag);
        if !same {
            self.count += 1;
        }
        self.inside = true;
        if tag.is_some() {
            self.tag = tag;
        }
    }

    /// An entry of anybody else.
    pub(super) fn other(&mut self) {
        self.inside = false;
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }
}

/// The call id for call `index` of turn `turn`.
pub(super) fn call_id(prefix: &str, turn: usize, index: usize) -> String {
    format!("{prefix}_turn{turn:04}call{index:02}")
}

fn turn_of_call(id: &str) -> Option<usize> {
    let digits = id.split_once("_turn")?.1.split_once("call")?.0;
    digits.parse().ok()
}

/// `value[key]` as a slice; empty when absent or of another type.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// `value[key]` as text; empty when absent or of another type.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_entries_are_one_turn() {
        let mut turns = Turns::default();
        turns.other();
        turns.assistant(None);
        turns.assistant(None);
        turns.other();
        turns.assistant(None);
        assert_eq!(turns.count(), 2);
    }

    #[test]
    fn interleaved_results_do_not_split_a_turn() {
        let mut turns = Turns::default();
        turns.assistant(Some(&call_id("call", 0, 0)));
        turns.other();
        turns.assistant(Some(&call_id("call", 0, 1)));
        turns.other();
        turns.assistant(Some(&call_id("call", 1, 0)));
        assert_eq!(turns.count(), 2);
    }
}
