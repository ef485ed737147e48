//! Reads what a call really cost from the provider's answer, in disjoint classes of tokens.
//!
//! Providers differ in what their counts include: Anthropic's cache counts stand beside
//! `input_tokens`; OpenAI's cached tokens are inside `prompt_tokens`, Gemini's inside
//! `promptTokenCount`; Gemini's thoughts stand beside the candidates. One reader per dialect turns
//! them into [`Tokens`]. It never changes the answer.

mod read;
#[cfg(test)]
mod tests;

use cofferdam_run::spec::Dialect;

use super::limits::{BYTES_PER_TOKEN, MAX_WHOLE_ANSWER_BYTES};
use super::sse::Events;
use read::Seen;

/// Tokens in disjoint classes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tokens {
    /// Input that no cache served.
    pub(super) input: u64,
    /// Input served from a cache.
    pub(super) cache_read: u64,
    /// Input written to a cache at the ordinary rate.
    pub(super) cache_write: u64,
    /// Input written to a cache that lives for an hour.
    pub(super) cache_write_long: u64,
    /// Output, reasoning included.
    pub(super) output: u64,
}

impl Tokens {
    /// Input of all classes.
    pub(super) fn all_input(&self) -> u64 {
        [self.input, self.cache_read, self.cache_write, self.cache_write_long]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// All classes.
    pub(super) fn total(&self) -> u64 {
        self.all_input().saturating_add(self.output)
    }
}

/// What the answer said about its cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cost {
    /// The provider's own final count.
    Reported(Tokens),
    /// No final count; the size of what was seen.
    BySize(Tokens),
}

/// Looks on while an answer passes.
#[derive(Debug)]
pub(super) struct Reader {
    dialect: Dialect,
    form: Form,
    seen: Seen,
    bytes: u64,
}

#[derive(Debug)]
enum Form {
    Stream(Events),
    Whole {
        kept: Vec<u8>,
        overflowed: bool,
    },
    /// Compressed or otherwise unreadable.
    Opaque,
}

impl Reader {
    /// A reader for an answer of that content type. Encoded answers cannot be read.
    pub(super) fn new(dialect: Dialect, content_type: &str, encoded: bool) -> Self {
        let kind = content_type.split(';').next().unwrap_or("").trim();
        let form = if encoded {
            Form::Opaque
        } else if kind.eq_ignore_ascii_case("text/event-stream") {
            Form::Stream(Events::default())
        } else {
            Form::Whole { kept: Vec::new(), overflowed: false }
        };
        Self { dialect, form, seen: Seen::default(), bytes: 0 }
    }

    /// Takes the next bytes of the answer.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.bytes = self.bytes.saturating_add(chunk.len() as u64);
        let (dialect, seen) = (self.dialect, &mut self.seen);
        match &mut self.form {
            Form::Stream(events) => events.push(chunk, |data| seen.event(dialect, data)),
            Form::Whole { kept, overflowed } => {
                if kept.len() + chunk.len() > MAX_WHOLE_ANSWER_BYTES {
                    *overflowed = true;
                    *kept = Vec::new();
                }
                if !*overflowed {
                    kept.extend_from_slice(chunk);
                }
            }
            Form::Opaque => {}
        }
    }

    /// Tokens used so far as far as one can see: what the provider reported, and the text that passed.
    pub(super) fn running(&self) -> Tokens {
        let mut tokens = self.seen.tokens;
        tokens.output = tokens.output.max(self.seen.text_bytes.div_ceil(BYTES_PER_TOKEN));
        tokens
    }

    /// True once the provider's last word about the cost was seen.
    pub(super) fn is_final(&self) -> bool {
        self.seen.is_final
    }

    /// True between two events of a stream.
    pub(super) fn at_boundary(&self) -> bool {
        matches!(&self.form, Form::Stream(events) if events.at_boundary())
    }

    /// The cost once the answer has ended. `input` is what was estimated for the request. `None` when
    /// the answer carried no final count and did not end by itself or could not be read.
    pub(super) fn finish(&mut self, input: u64, complete: bool) -> Option<Cost> {
        if let Form::Whole { kept, overflowed: false } = &mut self.form {
            self.seen.whole(self.dialect, &std::mem::take(kept));
        }
        if self.seen.is_final {
            return Some(Cost::Reported(self.seen.tokens));
        }
        // The size of what is compressed says nothing.
        if !complete || matches!(self.form, Form::Opaque) {
            return None;
        }
        // Whatever partial count there is must not make it cheaper than its size.
        let seen = self.seen.tokens;
        let uncached = input.saturating_sub(seen.all_input()).saturating_add(seen.input);
        let output = seen.output.max(self.bytes.div_ceil(BYTES_PER_TOKEN));
        Some(Cost::BySize(Tokens { input: uncached, output, ..seen }))
    }

    /// Bytes of the answer so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}
