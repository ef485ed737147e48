//! The agent's output on its way to the host: decoded, bounded, counted.
//!
//! Always reads to the end, however much comes: an agent that prints must not block on it, and what
//! is over the bound is counted and let go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cofferdam_agent::driver::EventsFormat;
use cofferdam_agent::{Event, EventKind};
use cofferdam_wire::{OutputStream, Up};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::limits::{EVENT_CHARS, EVENT_KIND_CHARS, EVENT_LINE, OUTPUT_CHUNK, REPORT_CHARS};
use crate::talk::ToHost;

/// Bytes of output that may still be relayed, over both streams together.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    left: AtomicU64,
    cut: AtomicU64,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Self {
        Self(Arc::new(Counts { left: AtomicU64::new(bytes), cut: AtomicU64::new(0) }))
    }

    /// Takes up to `bytes`; what is not there is counted as cut.
    fn take(&self, bytes: usize) -> usize {
        let asked = bytes as u64;
        let before = self
            .0
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                Some(left.saturating_sub(asked))
            })
            // The closure always gives a value.
            .unwrap_or(0);
        let taken = before.min(asked);
        self.0.cut.fetch_add(asked - taken, Ordering::Relaxed);
        usize::try_from(taken).unwrap_or(bytes)
    }

    /// Bytes that were cut so far.
    pub(crate) fn cut(&self) -> u64 {
        self.0.cut.load(Ordering::Relaxed)
    }
}

/// Reads one output stream to its end. Returns the agent's last words, as far as this stream has
/// any: its final report, or else the end of what it printed.
pub(crate) async fn relay(
    from: Option<impl AsyncRead + Unpin>,
    stream: OutputStream,
    format: EventsFormat,
    budget: Budget,
    up: ToHost,
) -> LastWords {
    let mut relay = Relay {
        stream,
        budget,
        up,
        text: Decoder::default(),
        line: Vec::new(),
        endless: false,
        last: LastWords::default(),
    };
    let Some(mut from) = from else { return relay.last };
    let mut chunk = vec![0; OUTPUT_CHUNK];
    // A read error ends the stream like its end does.
    while let Ok(len @ 1..) = from.read(&mut chunk).await {
        match format {
            EventsFormat::None => relay.plain(&chunk[..len]).await,
            EventsFormat::Builtin => relay.events(&chunk[..len]).await,
        }
    }
    relay.finish(format).await
}

/// What is kept of a stream when it has ended.
#[derive(Debug, Default)]
pub(crate) struct LastWords {
    report: Option<String>,
    tail: Vec<u8>,
}

impl LastWords {
    /// At most [`REPORT_CHARS`] characters.
    pub(crate) fn into_text(self) -> String {
        self.report.unwrap_or_else(|| {
            let text = String::from_utf8_lossy(&self.tail);
            let skip = text.chars().count().saturating_sub(REPORT_CHARS);
            text.chars().skip(skip).collect()
        })
    }
}

struct Relay {
    stream: OutputStream,
    budget: Budget,
    up: ToHost,
    text: Decoder,
    /// An event line that has not ended.
    line: Vec<u8>,
    /// The current line is over its bound and passes as ordinary output.
    endless: bool,
    last: LastWords,
}

impl Relay {
    async fn plain(&mut self, bytes: &[u8]) {
        self.keep_tail(bytes);
        let taken = self.budget.take(bytes.len());
        let text = self.text.decode(&bytes[..taken]);
        self.say_text(text).await;
    }

    async fn say_text(&self, text: String) {
        if !text.is_empty() {
            // Nobody to tell is no reason to stop reading.
            let _ = self.up.say(Up::Output { stream: self.stream, text }).await;
        }
    }

    fn keep_tail(&mut self, bytes: &[u8]) {
        let tail = &mut self.last.tail;
        tail.extend_from_slice(bytes);
        if tail.len() > 4 * REPORT_CHARS + OUTPUT_CHUNK {
            tail.drain(..tail.len() - 4 * REPORT_CHARS);
        }
    }

    async fn events(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let (part, rest) = bytes.split_at(end + 1);
            bytes = rest;
            if self.endless {
                self.endless = false;
                self.plain(part).await;
            } else {
                self.line.extend_from_slice(part);
                let line = std::mem::take(&mut self.line);
                self.event(&line).await;
            }
        }
        if self.endless {
            self.plain(bytes).await;
        } else {
            self.line.extend_from_slice(bytes);
            if self.line.len() > EVENT_LINE {
                self.endless = true;
                let line = std::mem::take(&mut self.line);
                self.plain_chunks(&line).await;
            }
        }
    }

    async fn plain_chunks(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(OUTPUT_CHUNK) {
            self.plain(chunk).await;
        }
    }

    async fn event(&mut self, line: &[u8]) {
        let Ok(event) = serde_json::from_slice::<Event>(line) else {
            self.plain_chunks(line).await;
            return;
        };
        if matches!(event.kind, EventKind::Finish) {
            self.last.report = Some(event.text.chars().take(REPORT_CHARS).collect());
        }
        if self.budget.take(line.len()) == line.len() {
            let kind = kind_name(event.kind);
            let text = one_line(&event.text);
            let _ = self.up.say(Up::Agent { kind, text }).await;
        }
    }

    async fn finish(mut self, format: EventsFormat) -> LastWords {
        if format == EventsFormat::Builtin && !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            self.event(&line).await;
        }
        let text = self.text.finish();
        self.say_text(text).await;
        self.last
    }
}

fn kind_name(kind: EventKind) -> String {
    let name = serde_json::to_value(kind).ok();
    let name = name.as_ref().and_then(|v| v.as_str()).unwrap_or("message");
    name.chars().take(EVENT_KIND_CHARS).collect()
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(EVENT_CHARS).collect()
}

/// Decodes UTF-8 that arrives in pieces; what is none becomes the replacement character.
#[derive(Debug, Default)]
struct Decoder {
    /// The beginning of a character whose end has not come, at most three bytes.
    pending: Vec<u8>,
}

impl Decoder {
    fn decode(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.pending);
        all.extend_from_slice(bytes);
        let mut text = String::with_capacity(all.len());
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            let last = chunks.peek().is_none();
            if last && could_go_on(invalid) {
                self.pending = invalid.to_vec();
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        text
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// True when more bytes could make a character of these.
fn could_go_on(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn character_split_between_chunks_survives() {
        let bytes = "aé€😀z".as_bytes();
        for split in 0..=bytes.len() {
            let mut decoder = Decoder::default();
            let mut text = decoder.decode(&bytes[..split]);
            text.push_str(&decoder.decode(&bytes[split..]));
            text.push_str(&decoder.finish());
            assert_eq!(text, "aé€😀z", "split at {split}");
        }
    }

    #[test]
    fn invalid_bytes_are_replaced_and_never_kept_back() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.decode(b"a\xff"), "a\u{fffd}");
        assert_eq!(decoder.decode(b"\xe2\x82"), "");
        assert_eq!(decoder.finish(), "\u{fffd}");
    }

    #[test]
    fn budget_counts_what_it_does_not_give() {
        let budget = Budget::new(10);
        assert_eq!((budget.take(4), budget.take(9), budget.take(5)), (4, 6, 0));
        assert_eq!(budget.cut(), 3 + 5);
    }
}

#[cfg(test)]
mod relay_tests {
    use tokio::sync::mpsc;

    use super::*;

    async fn relayed(bytes: &[u8], format: EventsFormat, limit: u64) -> (Vec<Up>, String, u64) {
        let (queue, mut said) = mpsc::channel(1);
        let budget = Budget::new(limit);
        let relay =
            relay(Some(bytes), OutputStream::Stdout, format, budget.clone(), ToHost::new(queue));
        let collect = async {
            let mut all = Vec::new();
            while let Some(up) = said.recv().await {
                all.push(up);
            }
            all
        };
        let (words, all) = tokio::join!(relay, collect);
        (all, words.into_text(), budget.cut())
    }

    fn text(said: &[Up]) -> String {
        said.iter()
            .filter_map(|up| match up {
                Up::Output { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    #[tokio::test]
    async fn events_are_told_and_other_lines_are_output() {
        let lines = b"{\"kind\":\"plan\",\"text\":\"first\\nthen\"}\nnoise\n\
                      {\"kind\":\"nonsense\",\"text\":\"x\"}\n\
                      {\"kind\":\"finish\",\"text\":\"all\\ndone\"}";
        let (said, report, cut) = relayed(lines, EventsFormat::Builtin, 1000).await;
        let agent = |kind: &str, text: &str| Up::Agent { kind: kind.into(), text: text.into() };
        assert_eq!(said[0], agent("plan", "first then"));
        assert_eq!(said.last(), Some(&agent("finish", "all done")));
        assert_eq!(text(&said), "noise\n{\"kind\":\"nonsense\",\"text\":\"x\"}\n");
        assert_eq!((report.as_str(), cut), ("all\ndone", 0));
    }

    #[tokio::test]
    async fn endless_event_line_is_bounded_output_and_the_next_line_is_heard() {
        let mut bytes = vec![b'x'; 5 * EVENT_LINE];
        bytes.extend_from_slice(b"\n{\"kind\":\"finish\",\"text\":\"ok\"}\n");
        let (said, report, cut) = relayed(&bytes, EventsFormat::Builtin, 10_000_000).await;
        assert_eq!((text(&said).len(), report.as_str(), cut), (5 * EVENT_LINE + 1, "ok", 0));
    }

    #[tokio::test]
    async fn report_is_heard_past_the_output_bound() {
        let bytes = b"noise noise\n{\"kind\":\"finish\",\"text\":\"ok\"}\n";
        let (said, report, cut) = relayed(bytes, EventsFormat::Builtin, 5).await;
        assert_eq!((text(&said).as_str(), report.as_str()), ("noise", "ok"));
        assert_eq!(cut, bytes.len() as u64 - 5);
        assert!(!said.iter().any(|up| matches!(up, Up::Agent { .. })));
    }

    #[tokio::test]
    async fn worst_case_chunk_fits_into_one_message() {
        for worst in [0x01, 0xff] {
            let (said, _, _) =
                relayed(&vec![worst; OUTPUT_CHUNK], EventsFormat::None, u64::MAX).await;
            for up in said {
                let message = serde_json::to_vec(&up).unwrap();
                assert!(message.len() < cofferdam_link::limits::MAX_JSON_FRAME);
                assert!(matches!(up, Up::Output { text, .. } if text.len() <= 64 << 10));
            }
        }
    }
}
