//! Takes the host's key out of whatever flows to the guest.
//!
//! A provider has no reason to send it back; a faulty or hostile one might. Other bytes pass as they
//! are and at once: only a tail that could be the beginning of the key waits for the next chunk.

use bytes::{Bytes, BytesMut};

use crate::secret::Secret;

/// Shorter keys are not looked for: they would match ordinary text.
const MIN_KEY_BYTES: usize = 8;

/// Scrubs one stream.
#[derive(Debug)]
pub(super) struct Scrubber {
    key: Secret,
    held: Vec<u8>,
}

impl Scrubber {
    pub(super) fn new(key: &Secret) -> Self {
        Self { key: key.clone(), held: Vec::new() }
    }

    /// The bytes to pass on now.
    pub(super) fn push(&mut self, chunk: Bytes) -> Bytes {
        let key = self.key.expose().as_bytes();
        if key.len() < MIN_KEY_BYTES {
            return chunk;
        }
        if self.held.is_empty() && !chunk.contains(&key[0]) {
            return chunk;
        }
        let data = if self.held.is_empty() {
            chunk
        } else {
            let mut joined = BytesMut::with_capacity(self.held.len() + chunk.len());
            joined.extend_from_slice(&self.held);
            joined.extend_from_slice(&chunk);
            self.held.clear();
            joined.freeze()
        };
        let mut data = scrub(data, key);
        let keep = (1..key.len().min(data.len() + 1))
            .rev()
            .find(|n| data.ends_with(&key[..*n]))
            .unwrap_or(0);
        self.held = data.split_off(data.len() - keep).to_vec();
        data
    }

    /// What is still held, at the end of the stream.
    pub(super) fn finish(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.held))
    }

    /// True when text holds the key.
    pub(super) fn finds_in(key: &Secret, text: &[u8]) -> bool {
        let key = key.expose().as_bytes();
        key.len() >= MIN_KEY_BYTES && text.windows(key.len()).any(|window| window == key)
    }
}

fn scrub(data: Bytes, key: &[u8]) -> Bytes {
    let Some(mut at) = find(&data, key) else { return data };
    let mut out = BytesMut::from(&data[..]);
    loop {
        out[at..at + key.len()].fill(b'*');
        match find(&out[at + key.len()..], key) {
            Some(next) => at += key.len() + next,
            None => return out.freeze(),
        }
    }
}

fn find(data: &[u8], key: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(first) = data.get(from..)?.iter().position(|b| *b == key[0]) {
        let at = from + first;
        if data[at..].starts_with(key) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_never_passes_however_it_is_split() {
        let key = Secret::new("sk-abcdefgh".to_owned());
        let text = b"data: sk-sk-abcdefgh sk-abcdefghsk-abcdefg\n\n";
        let expect = b"data: sk-*********** ***********sk-abcdefg\n\n";
        for size in 1..=text.len() {
            let mut scrubber = Scrubber::new(&key);
            let mut out = Vec::new();
            for chunk in text.chunks(size) {
                out.extend_from_slice(&scrubber.push(Bytes::copy_from_slice(chunk)));
            }
            out.extend_from_slice(&scrubber.finish());
            assert_eq!(out, expect, "pieces of {size}");
        }
    }

    #[test]
    fn other_bytes_pass_at_once() {
        let mut scrubber = Scrubber::new(&Secret::new("sk-abcdefgh".to_owned()));
        assert_eq!(
            scrubber.push(Bytes::from_static(b"ask me, sk-a is not it")),
            "ask me, sk-a is not it"
        );
        assert_eq!(scrubber.push(Bytes::from_static(b"ends with sk-a")), "ends with ");
        assert_eq!(scrubber.push(Bytes::from_static(b"!")), "sk-a!");
    }
}
