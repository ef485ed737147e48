//! An origin's answer, read as strictly as a guest's request: the guest may control the origin.

use bytes::Bytes;

use super::head::Head;
use super::request::{Framing, body_framing};

/// A response header.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) phrase: Bytes,
    pub(super) framing: Framing,
    /// The length to show where there is no body: answers to HEAD, and 304.
    pub(super) shown_length: Option<u64>,
    pub(super) head: Head,
}

impl Response {
    /// Reads a header; the method of the request decides whether there is a body.
    pub(super) fn parse(head: Head, method: &[u8]) -> Result<Self, &'static str> {
        let line = &head.start;
        let (version, rest) = line.split_at_checked(9).ok_or("a short status line")?;
        if version != b"HTTP/1.1 " && version != b"HTTP/1.0 " {
            return Err("not an HTTP/1 status line");
        }
        let (digits, after) = rest.split_at_checked(3).ok_or("a short status line")?;
        if !digits.iter().all(u8::is_ascii_digit) || !matches!(after.first(), None | Some(b' ')) {
            return Err("a status that is not three digits");
        }
        let status = digits.iter().fold(0, |n, d| n * 10 + u16::from(d - b'0'));
        if !(100..600).contains(&status) || status == 101 {
            return Err("a status that cannot be relayed");
        }
        let phrase = line.slice(line.len().min(13)..);
        let declared = body_framing(&head)?;
        if declared == Framing::Chunked && version == b"HTTP/1.0 " {
            return Err("Transfer-Encoding in an HTTP/1.0 response");
        }
        let bodiless = method == b"HEAD" || status < 200 || status == 204 || status == 304;
        let (framing, shown_length) = match declared {
            Framing::Length(length) if bodiless && status != 204 && status >= 200 => {
                (Framing::Empty, Some(length))
            }
            _ if bodiless => (Framing::Empty, None),
            Framing::Empty => (Framing::UntilClose, None),
            framing @ (Framing::Length(_) | Framing::Chunked | Framing::UntilClose) => {
                (framing, None)
            }
        };
        Ok(Self { status, phrase, framing, shown_length, head })
    }

    /// True for 1xx.
    pub(super) fn is_interim(&self) -> bool {
        self.status < 200
    }
}
