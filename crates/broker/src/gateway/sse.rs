//! Splits a byte stream into server-sent events, beside the stream: nothing waits for it.
//!
//! After <https://html.spec.whatwg.org/multipage/server-sent-events.html>: lines end with CR, LF or
//! CRLF, a blank line ends an event, `data` lines are joined with LF, one byte order mark at the front
//! is dropped. It hands out the data only.
//! (`sse-stream` drives a body; here the body is driven by the guest, and this only looks on.) It must
//! never hold more than [`MAX_EVENT_BYTES`].

use super::limits::MAX_EVENT_BYTES;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The splitter's state between chunks.
#[derive(Debug, Default)]
pub(super) struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    after_cr: bool,
    /// The first line is over: a byte order mark is text from here on.
    begun: bool,
    /// An event was larger than is read; nothing more is handed out.
    overflowed: bool,
}

impl Events {
    /// Takes a chunk; calls `event` with the data of each event that it completes.
    pub(super) fn push(&mut self, chunk: &[u8], mut event: impl FnMut(&[u8])) {
        let mut rest = chunk;
        while !rest.is_empty() && !self.overflowed {
            if std::mem::take(&mut self.after_cr) && rest[0] == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let end = rest.iter().position(|b| matches!(b, b'\n' | b'\r'));
            let (part, ended_by) = match end {
                Some(at) => (&rest[..at], Some(rest[at])),
                None => (rest, None),
            };
            if self.line.len() + self.data.len() + part.len() > MAX_EVENT_BYTES {
                *self = Self { overflowed: true, ..Self::default() };
                return;
            }
            self.line.extend_from_slice(part);
            rest = &rest[part.len() + usize::from(ended_by.is_some())..];
            if let Some(byte) = ended_by {
                self.after_cr = byte == b'\r';
                self.end_line(&mut event);
            }
        }
    }

    fn end_line(&mut self, event: &mut impl FnMut(&[u8])) {
        let mut line = std::mem::take(&mut self.line);
        if !std::mem::replace(&mut self.begun, true) && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        if line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                event(&self.data);
                self.data.clear();
            }
            return;
        }
        // A field without a colon has an empty value.
        let value = if line == b"data" { Some(&b""[..]) } else { line.strip_prefix(b"data:") };
        if let Some(value) = value {
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
        // Keeps the allocation for the next line.
        self.line = line;
        self.line.clear();
    }

    /// True between two events, where another one may be put in.
    pub(super) fn at_boundary(&self) -> bool {
        self.line.is_empty() && !self.has_data && !self.overflowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(chunks: &[&[u8]]) -> Vec<String> {
        let (mut reader, mut out) = (Events::default(), Vec::new());
        for chunk in chunks {
            reader.push(chunk, |data| out.push(String::from_utf8_lossy(data).into_owned()));
        }
        out
    }

    #[test]
    fn each_way_of_splitting_gives_the_same_events() {
        let text = "event: a\ndata: {\"x\":\"ü\"}\n\n: note\r\ndata:1\r\ndata: 2\r\n\r\nid: 7\n\ndata: [DONE]\n\n".as_bytes();
        let whole = events(&[text]);
        assert_eq!(whole, ["{\"x\":\"ü\"}", "1\n2", "[DONE]"]);
        for size in 1..text.len() {
            let chunks: Vec<&[u8]> = text.chunks(size).collect();
            assert_eq!(events(&chunks), whole, "pieces of {size}");
        }
    }

    #[test]
    fn a_byte_order_mark_and_a_bare_field_do_not_hide_data() {
        assert_eq!(events(&[b"\xef\xbb", b"\xbfdata: 1\n\n"]), ["1"]);
        assert_eq!(events(&[b"data\ndata: 1\n\n"]), ["\n1"]);
        assert_eq!(events(&[b"data: 1\n\n\xef\xbb\xbfdata: 2\n\n"]), ["1"]);
    }

    #[test]
    fn an_endless_event_is_given_up() {
        let mut reader = Events::default();
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..=(MAX_EVENT_BYTES >> 20) {
            reader.push(&chunk, |_| panic!("no event"));
        }
        assert!(reader.overflowed && reader.line.is_empty());
    }
}
