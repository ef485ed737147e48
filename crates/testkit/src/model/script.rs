//! The script: what the model says at which turn, and what goes wrong there.
//!
//! Plain data with a strict JSON form. It never does anything by itself.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything the server will ever say.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// One entry per assistant turn. Past the end the model says [`Script::LAST_WORDS`] and calls no
    /// tool.
    pub turns: Vec<Turn>,
    /// Answer to requests that offer no tools at all (titles, routers and other side requests of real
    /// agents). `None`: they are answered from `turns` like any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_tools: Option<Turn>,
}

/// One assistant turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// Text; empty for none.
    #[serde(default)]
    pub say: String,
    /// Reasoning that precedes the text, in the dialects that show it; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub think: String,
    /// Tool calls, in order.
    #[serde(default)]
    pub tools: Vec<ToolUse>,
    /// Token counts to report; `None` counts four bytes as one token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Characters per streamed piece of text or arguments.
    #[serde(default = "default_chunk")]
    pub chunk_chars: usize,
    /// What goes wrong at this turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

fn default_chunk() -> usize {
    12
}

impl Default for Turn {
    fn default() -> Self {
        Self {
            say: String::new(),
            think: String::new(),
            tools: Vec::new(),
            usage: None,
            chunk_chars: default_chunk(),
            fault: None,
        }
    }
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolUse {
    /// Name of the tool.
    pub name: String,
    /// Arguments, an object.
    pub args: Value,
}

/// Token counts in disjoint classes; each dialect reports them in its own arithmetic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Usage {
    /// Input tokens that no cache served.
    pub input: u64,
    /// Input tokens served from a cache.
    pub cache_read: u64,
    /// Input tokens written to a cache (Anthropic only).
    pub cache_write: u64,
    /// Output tokens without reasoning.
    pub output: u64,
    /// Reasoning tokens.
    pub reasoning: u64,
}

/// What goes wrong. Several may be combined; `status` and `hang` act before anything is answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fault {
    /// Answer with this HTTP status and the provider's error shape.
    pub status: Option<u16>,
    /// With `status`: this body, byte for byte, in place of the provider's error shape.
    pub body: Option<String>,
    /// With `status`: `retry-after` in seconds.
    pub retry_after: Option<u64>,
    /// With `status`: a `location` header.
    pub location: Option<String>,
    /// Take the request and never answer.
    pub hang: bool,
    /// Wait this long before each streamed piece, milliseconds.
    pub delay_ms: u64,
    /// Stop after this many streamed pieces and stay silent with the connection open.
    pub stall_after: Option<usize>,
    /// Break the connection after this many streamed pieces.
    pub cut_after: Option<usize>,
    /// Send the stream in pieces of this many bytes, whatever they split.
    pub split_bytes: Option<usize>,
    /// Report no usage at all.
    pub omit_usage: bool,
    /// Only the first so many requests for this turn meet the fault; `None`: all of them.
    pub times: Option<u32>,
}

/// Why a script was refused.
#[derive(Debug)]
pub struct ScriptError(String);

impl std::fmt::Display for ScriptError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ScriptError {}

impl Script {
    /// What the model says past the last turn.
    pub const LAST_WORDS: &'static str = "The script has ended.";

    /// Parses the JSON form and checks it.
    ///
    /// # Errors
    /// Unknown keys, arguments that are no object, pieces of zero characters.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let script: Self = serde_json::from_str(text).map_err(|e| ScriptError(e.to_string()))?;
        for (number, turn) in script.turns.iter().chain(script.without_tools.iter()).enumerate() {
            if turn.chunk_chars == 0
                || turn.fault.as_ref().is_some_and(|f| f.split_bytes == Some(0))
            {
                return Err(ScriptError(format!("turn {number}: a piece must not be empty")));
            }
            if let Some(tool) = turn.tools.iter().find(|t| !t.args.is_object()) {
                return Err(ScriptError(format!(
                    "turn {number}: args of {} must be an object",
                    tool.name
                )));
            }
        }
        Ok(script)
    }

    /// A script from turns.
    #[must_use]
    pub fn new(turns: impl IntoIterator<Item = Turn>) -> Self {
        Self { turns: turns.into_iter().collect(), without_tools: None }
    }

    /// The turn of that number; the last words past the end.
    #[must_use]
    pub fn turn(&self, number: usize) -> Turn {
        self.turns.get(number).cloned().unwrap_or_else(|| Turn::say(Self::LAST_WORDS))
    }
}

impl Turn {
    /// A turn of text only.
    #[must_use]
    pub fn say(text: impl Into<String>) -> Self {
        Self { say: text.into(), ..Self::default() }
    }

    /// A turn with one tool call.
    #[must_use]
    pub fn call(name: impl Into<String>, args: Value) -> Self {
        Self::default().and_call(name, args)
    }

    /// One more tool call.
    #[must_use]
    pub fn and_call(mut self, name: impl Into<String>, args: Value) -> Self {
        self.tools.push(ToolUse { name: name.into(), args });
        self
    }

    /// The same turn with these token counts.
    #[must_use]
    pub fn with_usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }

    /// The same turn with this fault.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }

    /// The counts to report for a request of `request_bytes`.
    #[must_use]
    pub(super) fn counted(&self, request_bytes: usize) -> Usage {
        self.usage.unwrap_or_else(|| {
            let tools: usize =
                self.tools.iter().map(|t| t.name.len() + t.args.to_string().len()).sum();
            Usage {
                input: tokens(request_bytes),
                output: tokens(self.say.len() + tools).max(1),
                reasoning: tokens(self.think.len()),
                ..Usage::default()
            }
        })
    }

    /// `text` in pieces of `chunk_chars` characters.
    pub(super) fn pieces(&self, text: &str) -> Vec<String> {
        let chars: Vec<char> = text.chars().collect();
        chars.chunks(self.chunk_chars.max(1)).map(|c| c.iter().collect()).collect()
    }
}

pub(super) fn tokens(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_form_is_short_and_strict() {
        let script = Script::parse(
            r#"{"turns":[{"say":"hi","tools":[{"name":"read_file","args":{"path":"a"}}]},{"fault":{"status":529}}]}"#,
        )
        .unwrap();
        assert_eq!(script.turns[0].tools[0].name, "read_file");
        assert_eq!(script.turns[1].fault.as_ref().unwrap().status, Some(529));
        assert!(Script::parse(r#"{"turns":[{"sya":"hi"}]}"#).is_err());
        assert!(Script::parse(r#"{"turns":[{"tools":[{"name":"x","args":[]}]}]}"#).is_err());
        assert!(Script::parse(r#"{"turns":[{"chunk_chars":0}]}"#).is_err());
    }

    #[test]
    fn past_the_end_the_model_stops_calling_tools() {
        let script = Script::new([Turn::call("plan", serde_json::json!({}))]);
        assert!(script.turn(1).tools.is_empty());
        assert_eq!(script.turn(7).say, Script::LAST_WORDS);
    }
}
