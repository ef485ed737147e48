//! One model conversation in four wire dialects: `conversation → streaming turn`.
//!
//! Each dialect is a [`Protocol`] (shapes a request) with an [`Assembler`] (folds stream events into
//! a [`Turn`]); both are pure. [`client`] moves bytes and owns every retry. Must never act on half a
//! turn: an assembler gives a turn only when the provider said that it was complete.

mod anthropic;
mod chat;
mod client;
mod conversation;
mod endpoint;
mod error;
mod failure;
mod gemini;
mod responses;

#[cfg(test)]
mod stream_tests;

pub(crate) use client::{ModelClient, RetryPolicy};
pub(crate) use conversation::{Conversation, Entry, ToolResult};
pub(crate) use endpoint::Endpoint;
pub(crate) use error::{ModelError, StreamFault};

use cofferdam_run::spec::Dialect;
use serde_json::{Map, Value};

/// A tool as the model sees it.
#[derive(Debug)]
pub(crate) struct ToolSpec {
    pub(crate) name: &'static str,
    pub(crate) description: String,
    /// JSON Schema in the subset that all four dialects take: `type`, `properties`, `required`,
    /// `items`, `description`.
    pub(crate) schema: Value,
}

/// Everything that one request says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prompt<'a> {
    pub(crate) system: &'a str,
    pub(crate) conversation: &'a Conversation,
    pub(crate) tools: &'a [ToolSpec],
}

/// A tool call of the model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    /// The provider's id; made up by us where the provider gives none.
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: Arguments,
}

/// Arguments of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Arguments {
    /// A JSON object.
    Object(Map<String, Value>),
    /// Something else, as it came.
    Malformed { text: String, why: String },
}

impl Arguments {
    /// Parses the text that a provider streamed. Nothing at all counts as no arguments.
    pub(crate) fn parse(text: &str) -> Self {
        if text.trim().is_empty() {
            return Self::Object(Map::new());
        }
        match serde_json::from_str::<Value>(text) {
            Ok(value) => Self::from_value(value),
            Err(error) => Self::Malformed { text: text.to_owned(), why: error.to_string() },
        }
    }

    /// Takes what a provider sent as a JSON value.
    pub(crate) fn from_value(value: Value) -> Self {
        match value {
            Value::Object(map) => Self::Object(map),
            Value::Null => Self::Object(Map::new()),
            other => {
                Self::Malformed { text: other.to_string(), why: "not a JSON object".to_owned() }
            }
        }
    }

    /// What goes back to the provider: the object, or an empty one in place of what was malformed.
    pub(crate) fn replay(&self) -> Value {
        match self {
            Self::Object(map) => Value::Object(map.clone()),
            Self::Malformed { .. } => Value::Object(Map::new()),
        }
    }
}

/// Why the model stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It said what it had to say, or wants its tools run.
    Complete,
    /// The output limit cut it off; its calls may be incomplete and must not be carried out.
    OutputLimit,
    /// The context window is full.
    ContextFull,
    /// It produced a call that the provider could not read.
    MalformedCall,
    /// The model or the provider declined, in the given words.
    Declined(String),
}

/// One complete answer of the model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Turn {
    pub(crate) text: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) stop: Stop,
    /// The answer in the provider's own shape, with every field that it wants to see again
    /// (signatures, encrypted reasoning): content blocks, one message, output items, or parts.
    pub(crate) replay: Vec<Value>,
}

/// Folds the events of one stream into a turn.
pub(crate) trait Assembler: Send {
    /// Takes one event: its type (may be empty) and its data.
    fn take(&mut self, event: &str, data: &str) -> Result<(), StreamFault>;
    /// True when the provider said that nothing of the turn follows.
    fn is_done(&self) -> bool;
    /// The turn; [`StreamFault::Cut`] when the stream ended before the provider said that it was
    /// complete.
    fn turn(self: Box<Self>) -> Result<Turn, StreamFault>;
}

/// One dialect.
pub(crate) trait Protocol: Send + Sync {
    /// Path and query below the base URL.
    fn path(&self) -> String;
    /// Headers beyond content type, with the placeholder where a key would be.
    fn headers(&self) -> Vec<(&'static str, String)>;
    /// The request's body.
    fn body(&self, prompt: &Prompt<'_>) -> Value;
    /// A fresh assembler. `at`, the length of the conversation, makes up ids that are unique in it.
    fn assembler(&self, at: usize) -> Box<dyn Assembler>;
    /// Gives up an optional feature which `message`, a refusal of the provider, names. True when
    /// something changed, so that the same call is worth making again.
    fn concede(&mut self, message: &str) -> bool;
}

/// The protocol of a dialect.
pub(crate) fn protocol(dialect: Dialect, model: &str) -> Box<dyn Protocol> {
    match dialect {
        Dialect::Anthropic => Box::new(anthropic::Anthropic::new(model)),
        Dialect::OpenaiChat => Box::new(chat::Chat::new(model)),
        Dialect::OpenaiResponses => Box::new(responses::Responses::new(model)),
        Dialect::Gemini => Box::new(gemini::Gemini::new(model)),
    }
}

/// Parses the data of an event; anything but JSON is garbage.
fn parse_event(data: &str) -> Result<Value, StreamFault> {
    serde_json::from_str(data).map_err(|error| StreamFault::Garbage(error.to_string()))
}

/// The text at `key`, or nothing.
fn text_at<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}
