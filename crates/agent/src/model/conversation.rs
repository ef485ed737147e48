//! The conversation, in a shape that no dialect owns.
//!
//! Must never lose the task, nor what a provider signed: only results of tools and arguments of old
//! calls are shortened, oldest first, and each place says so.

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
        let bytes = size_of(&turn.replay);
        self.entries.push(Entry::Assistant { replay: turn.replay.clone(), bytes });
    }

    pub(crate) fn push_results(&mut self, results: Vec<ToolResult>) {
        if !results.is_empty() {
            self.entries.push(Entry::Results(results));
        }
    }

    /// Size in bytes, near enough to what is sent.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.iter().map(Entry::bytes).sum()
    }

    /// Shortens old text when the conversation is over `bound` bytes, down to half of it, so that the
    /// prefix which providers cache does not change at every turn: results of tools, then long
    /// arguments of calls, and the newest results only when nothing else is left. Returns how many
    /// places were shortened.
    pub(crate) fn shorten(&mut self, bound: usize) -> usize {
        let newest_results = self.entries.iter().rposition(|e| matches!(e, Entry::Results(_)));
        let newest_turn = self.entries.iter().rposition(|e| matches!(e, Entry::Assistant { .. }));
        let mut count = 0;
        count += self.shorten_where(bound, bound / 2, |at, entry| match entry {
            Entry::Results(results) if Some(at) != newest_results => shorten_results(results),
            _ => 0,
        });
        count += self.shorten_where(bound, bound / 2, |at, entry| match entry {
            Entry::Assistant { replay, bytes } if Some(at) != newest_turn => {
                let places = replay.iter_mut().map(shorten_arguments).sum();
                *bytes = size_of(replay);
                places
            }
            _ => 0,
        });
        count += self.shorten_where(bound, bound, |at, entry| match entry {
            Entry::Results(results) if Some(at) == newest_results => shorten_results(results),
            _ => 0,
        });
        count
    }

    /// Lets `shorten` at one entry after another while the size is over `goal`, if it is over `bound`.
    fn shorten_where(
        &mut self,
        bound: usize,
        goal: usize,
        mut shorten: impl FnMut(usize, &mut Entry) -> usize,
    ) -> usize {
        let mut size = self.bytes();
        let mut count = 0;
        if size > bound {
            for (at, entry) in self.entries.iter_mut().enumerate() {
                if size <= goal {
                    break;
                }
                let before = entry.bytes();
                count += shorten(at, entry);
                size -= before.saturating_sub(entry.bytes());
            }
        }
        count
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        match self {
            Self::User(text) => text.len(),
            Self::Assistant { bytes, .. } => *bytes,
            Self::Results(results) => results.iter().map(|r| r.text.len()).sum(),
        }
    }
}

fn size_of(replay: &[Value]) -> usize {
    replay.iter().map(|v| v.to_string().len()).sum()
}

fn shorten_results(results: &mut [ToolResult]) -> usize {
    let mut count = 0;
    for result in results {
        if let Some(short) = shortened(&result.text) {
            result.text = short;
            count += 1;
        }
    }
    count
}

/// Shortens the long texts among the arguments of the calls in one replayed value, of whichever
/// dialect. A Gemini part with a signature stays as it is.
fn shorten_arguments(value: &mut Value) -> usize {
    if value.get("thoughtSignature").is_some() {
        return 0;
    }
    let arguments = match value.get("type").and_then(Value::as_str) {
        Some("tool_use") => value.get_mut("input"),
        Some("function_call") => value.get_mut("arguments"),
        _ if value.get("functionCall").is_some() => value.pointer_mut("/functionCall/args"),
        _ => {
            let calls = value.get_mut("tool_calls").and_then(Value::as_array_mut);
            let arguments =
                calls.into_iter().flatten().filter_map(|c| c.pointer_mut("/function/arguments"));
            return arguments.map(shorten_texts).sum();
        }
    };
    arguments.map_or(0, shorten_texts)
}

/// The same for the arguments themselves: an object, or one as JSON text.
fn shorten_texts(arguments: &mut Value) -> usize {
    match arguments {
        Value::Object(map) => {
            let mut count = 0;
            for value in map.values_mut() {
                if let Value::String(text) = value
                    && let Some(short) = shortened(text)
                {
                    *text = short;
                    count += 1;
                }
            }
            count
        }
        Value::String(text) => match serde_json::from_str(text) {
            Ok(mut inner @ Value::Object(_)) => {
                let count = shorten_texts(&mut inner);
                if count > 0 {
                    *text = inner.to_string();
                }
                count
            }
            _ => 0,
        },
        _ => 0,
    }
}

/// A short form of an old text; `None` when it is short already.
fn shortened(text: &str) -> Option<String> {
    if text.len() <= 2 * SHORTENED_RESULT_BYTES {
        return None;
    }
    let half = SHORTENED_RESULT_BYTES / 2;
    let (head, tail) = (prefix(text, half), suffix(text, half));
    let cut = text.len() - head.len() - tail.len();
    Some(format!(
        "{head}\n[… {cut} bytes of this old text were removed to keep the conversation small; \
         look again where it came from when they are needed …]\n{tail}"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
            first[0].text.contains("9600 bytes of this old text were removed"),
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

    #[test]
    fn long_arguments_of_old_calls_give_way_in_every_dialect() {
        let long = "z".repeat(20_000);
        let object = json!({"path": "a", "content": long});
        let text = object.to_string();
        let shapes = [
            json!({"type": "tool_use", "id": "t", "name": "write_file", "input": object}),
            json!({"role": "assistant", "tool_calls": [{"function": {"arguments": text}}]}),
            json!({"type": "function_call", "call_id": "c", "arguments": text}),
            json!({"functionCall": {"name": "write_file", "args": object}}),
        ];
        let signed = json!({"functionCall": {"args": object}, "thoughtSignature": "S"});
        for (shape, gives) in shapes.into_iter().zip([true; 4]).chain([(signed, false)]) {
            let turn = Turn {
                text: String::new(),
                calls: Vec::new(),
                stop: crate::model::Stop::Complete,
                replay: vec![shape.clone()],
            };
            let mut conversation = Conversation::new("the task".into());
            conversation.push_turn(&turn);
            conversation.push_results(vec![result("ok".into())]);
            conversation.push_turn(&turn);
            let before = conversation.bytes();
            assert_eq!(conversation.shorten(30_000) > 0, gives, "{shape}");
            let Entry::Assistant { replay, .. } = &conversation.entries()[1] else { panic!() };
            assert_eq!(replay[0].to_string().len() < 1_000, gives);
            assert_eq!(conversation.bytes() < before, gives);
            let Entry::Assistant { replay, .. } = &conversation.entries()[3] else { panic!() };
            assert_eq!(replay[0], shape, "the newest turn stays");
        }
    }
}
