//! What the agent says about its work while it works.
//!
//! Events are claims for people. Their text is bounded and cannot drive a terminal.

use serde::{Deserialize, Serialize};

use crate::limits::{EVENT_TEXT_CHARS_MAX, REPORT_CHARS_MAX};
use crate::text::{clip, one_line, printable};

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The plan, or a new one.
    Plan,
    /// A tool is about to be used.
    Tool,
    /// How that went.
    ToolResult,
    /// A word of the model, or of the loop about waiting.
    Message,
    /// The final report. The one kind whose text keeps its line breaks.
    Finish,
    /// The run ends without success, and why.
    Error,
}

/// One event; as JSON one line, `{"kind": "…", "text": "…"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// What it is about.
    pub kind: EventKind,
    /// For people; one line of at most [`EVENT_TEXT_CHARS_MAX`] characters, for
    /// [`EventKind::Finish`] several of at most [`REPORT_CHARS_MAX`] together. A note of what was cut
    /// comes on top.
    pub text: String,
}

impl Event {
    /// Bounds `text` and takes out what an event must not hold.
    #[must_use]
    pub fn new(kind: EventKind, text: &str) -> Self {
        let text = match kind {
            EventKind::Finish => clip(&printable(text), REPORT_CHARS_MAX),
            _ => clip(&one_line(text), EVENT_TEXT_CHARS_MAX),
        };
        Self { kind, text }
    }
}

/// Where events go.
pub trait Sink: Send {
    /// Takes one event.
    ///
    /// # Errors
    /// Nobody listens any more; the agent then stops.
    fn event(&mut self, event: Event) -> std::io::Result<()>;
}

/// Collects events; for tests and callers that want them all.
impl Sink for Vec<Event> {
    fn event(&mut self, event: Event) -> std::io::Result<()> {
        self.push(event);
        Ok(())
    }
}
