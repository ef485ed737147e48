//! The conversation, in a shape that no dialect owns.
//!
//! Must never lose the task: only results of tools are shortened, oldest first, and each says so.

use serde_json::Value;

use super::Turn;
use crate::limits::SHORTENED_RESULT_BYTES;
use crate::text::{prefix, suffix};

/// What a tool answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolResult {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

/// One entry.
#[derive(Debug)]
pub(crate) enum Entry {
    /// The task, or a word of ours.
    User(String),
    /// An answer of the model, in the provider's shape.
    Assistant { replay: Vec<Value>, bytes: usize },
    /// Results of the calls of the answer before.
    Results(Vec<ToolResult>),
}

/// The whole conversation.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    entries: Vec<Entry>,
}

impl Conversation {
    /// Starts with the task.
    pub(crate) fn new(task: String) -> Self {
        Self { entries: vec![Entry::User(task)] }
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) fn push_user(&mut self, text: impl Into<String>) {
        self.entries.push(Entry::User(text.into()));
    }

    /// Adds an answer. One without any content is left out: providers refuse empty messages.
    pub(crate) fn push_turn(&mut self, turn: &Turn) {
        if turn.replay.is_empty() {
            return;
        }
        let bytes = turn.replay.iter().map(|v| v.to_string().len()).sum();
        self.entries.push(Entry::Assistant { replay: turn.replay.clone(), bytes });
    }

    pub(crate) fn push_results(&mut self, results: Vec<ToolResult>) {
        if !results.is_empty() {
            self.entries.push(Entry::Results(results));
        }
    }

    /// Size in bytes, near enough to what is sent.
    pub(crate) fn bytes(&self) -> usize {
        self.entries
            .iter()
            .map(|entry| match entry {
                Entry::User(text) => text.len(),
                Entry::Assistant { bytes, .. } => *bytes,
                Entry::Results(results) => results.iter().map(|r| r.text.len()).sum(),
            })
            .sum()
    }

    /// Shortens the oldest tool results when the conversation is over `bound` bytes, down to half of
    /// it, so that the prefix which providers cache does not change at every turn. The newest results
    /// go last and only when nothing else is left. Returns how many results were shortened.
    pub(crate) fn shorten(&mut self, bound: usize) -> usize {
        let mut size = self.bytes();
        if size <= bound {
            return 0;
        }
        let target = bound / 2;
        let newest = self.entries.iter().rposition(|e| matches!(e, Entry::Results(_)));
        let mut count = 0;
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let Entry::Results(results) = entry else { continue };
            let goal = if Some(at) == newest { bound } else { target };
            for result in results {
                if size <= goal {
                    return count;
                }
                let before = result.text.len();
                if let Some(short) = shortened(&result.text) {
                    size = size - before + short.len();
                    result.text = short;
                    count += 1;
                }
            }
        }
        count
    }
}

/// A short form of an old result; `None` when it is short already.
fn shortened(text: &str) -> Option<String> {
    if text.len() <= 2 * SHORTENED_RESULT_BYTES {
        return None;
    }
    let half = SHORTENED_RESULT_BYTES / 2;
    let (head, tail) = (prefix(text, half), suffix(text, half));
    let cut = text.len() - head.len() - tail.len();
    Some(format!(
        "{head}\n[… {cut} bytes of this old result were removed to keep the conversation small; \
         run the tool again when they are needed …]\n{tail}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(text: String) -> ToolResult {
        ToolResult { id: "c".into(), name: "run_shell".into(), text, is_error: false }
    }

    fn texts(conversation: &Conversation) -> Vec<usize> {
        conversation
            .entries()
            .iter()
            .filter_map(|e| match e {
                Entry::Results(r) => Some(r[0].text.len()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn oldest_results_are_shortened_first_and_say_so() {
        let mut conversation = Conversation::new("the task".repeat(100));
        for _ in 0..5 {
            conversation.push_results(vec![result("x".repeat(10_000))]);
        }
        assert_eq!(conversation.shorten(60_000), 0);
        assert_eq!(conversation.shorten(45_000), 3);
        let sizes = texts(&conversation);
        assert!(
            sizes[..3].iter().all(|n| *n < 1_000) && sizes[3..].iter().all(|n| *n == 10_000),
            "{sizes:?}"
        );
        assert!(matches!(&conversation.entries()[0], Entry::User(t) if t.len() == 800));
        let Entry::Results(first) = &conversation.entries()[1] else { panic!() };
        assert!(
            first[0].text.contains("9600 bytes of this old result were removed"),
            "{}",
            first[0].text
        );
    }

    #[test]
    fn the_newest_result_survives_while_the_rest_can_give() {
        let mut conversation = Conversation::new(String::new());
        conversation.push_results(vec![result("x".repeat(30_000))]);
        conversation.push_results(vec![result("y".repeat(30_000))]);
        conversation.shorten(40_000);
        assert_eq!(texts(&conversation)[1], 30_000);
        conversation.shorten(20_000);
        assert!(texts(&conversation)[1] < 1_000);
        assert_eq!(conversation.shorten(1), 0, "nothing is shortened twice");
    }
}
