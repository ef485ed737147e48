//! Server-sent events and the scrubber, each beside a plain reading of the whole.

use cofferdam_broker::gateway::fuzzing::{events, scrubbed};

use crate::choice;

/// The second one overlaps with itself.
const KEYS: [&str; 2] = ["sk-abcdefgh", "ababababab"];

pub(crate) fn body(data: &[u8]) {
    let (first, bytes) = choice(data);
    let whole = events([bytes]);
    assert_eq!(whole, reference(bytes), "another reader of events sees others");
    assert_eq!(events(bytes.chunks(1 + first % 13)), whole, "the answer depends on the pieces");

    let key = KEYS[first % 2];
    let out = scrubbed(key, [bytes]);
    assert_eq!(scrubbed(key, bytes.chunks(1 + first % 13)), out, "so does scrubbing");
    assert_eq!(out.len(), bytes.len());
    let hides = |text: &[u8]| text.windows(key.len()).any(|w| w == key.as_bytes());
    assert!(!hides(&out), "the key passed");
    let changed = out.iter().zip(bytes).filter(|(a, b)| a != b);
    assert!(changed.clone().all(|(after, _)| *after == b'*'));
    assert!(hides(bytes) || changed.count() == 0, "something else was changed");
}

/// The algorithm of the HTML standard, for `data` alone, over a text that is there whole.
fn reference(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let (mut events, mut data) = (Vec::new(), None::<Vec<u8>>);
    while let Some(end) = rest.iter().position(|b| matches!(b, b'\r' | b'\n')) {
        let line = &rest[..end];
        let ended = if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[end + ended..];
        if line.is_empty() {
            events.extend(data.take());
            continue;
        }
        let (field, value) = match line.iter().position(|b| *b == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &line[line.len()..]),
        };
        if field == b"data" {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match &mut data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => data = Some(value.to_vec()),
            }
        }
    }
    events
}
