//! Strict reading of HTTP/1.1 headers, for requests and responses alike.
//!
//! Lines end in CRLF and in nothing else; there are no folded lines, no blank before a colon, no
//! control bytes. Bytes are judged as they arrive, so that a sender of anything else is refused
//! at once instead of after a timeout. It must never guess what a sender meant.

use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::limits::COPY_BYTES;

/// Why there is no header.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeadError {
    /// The peer closed before the first byte.
    #[error("closed before the first byte")]
    Closed,
    /// The peer closed in the middle.
    #[error("closed in the middle of the header")]
    Truncated,
    /// Not strict HTTP/1.1.
    #[error("{0}")]
    Syntax(&'static str),
    /// A size limit is exceeded.
    #[error("{0}")]
    TooLarge(&'static str),
    /// The stream failed.
    #[error("reading failed")]
    Io(#[from] io::Error),
}

/// One header field. The name keeps its letters' case; the value has no blanks around it.
#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) name: Bytes,
    pub(super) value: Bytes,
}

impl Field {
    pub(super) fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }
}

/// A header: its first line and its fields, in order.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) start: Bytes,
    pub(super) fields: Vec<Field>,
}

impl Head {
    /// All values of the fields of that name, in order.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Bytes> + 'a {
        self.fields.iter().filter(move |field| field.is(name)).map(|field| &field.value)
    }
}

/// A reading half with what was read too far.
#[derive(Debug)]
pub(super) struct Inbound<R> {
    io: R,
    pub(super) buf: BytesMut,
    eof: bool,
    total: u64,
}

impl<R: AsyncRead + Unpin> Inbound<R> {
    pub(super) fn new(io: R) -> Self {
        Self { io, buf: BytesMut::new(), eof: false, total: 0 }
    }

    /// Reads once; zero means that the peer has finished. Safe to drop while it waits.
    pub(super) async fn fill(&mut self) -> io::Result<usize> {
        if self.eof {
            return Ok(0);
        }
        if self.buf.capacity() - self.buf.len() < COPY_BYTES / 4 {
            self.buf.reserve(COPY_BYTES);
        }
        let read = self.io.read_buf(&mut self.buf).await?;
        self.eof = read == 0;
        self.total += read as u64;
        Ok(read)
    }

    /// Bytes read from the stream so far.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The bare stream and what was read too far.
    pub(super) fn into_parts(self) -> (R, BytesMut) {
        (self.io, self.buf)
    }

    /// Reads one header and removes it from the buffer.
    pub(super) async fn head(
        &mut self,
        max_bytes: usize,
        max_lines: usize,
    ) -> Result<Head, HeadError> {
        let mut scan = Scan::new(max_bytes, max_lines);
        loop {
            if scan.advance(&self.buf)? {
                break;
            }
            if self.fill().await? == 0 {
                return Err(if self.buf.is_empty() {
                    HeadError::Closed
                } else {
                    HeadError::Truncated
                });
            }
        }
        let text = self.buf.split_to(scan.at).freeze();
        scan.parse(&text)
    }

    /// Reads one line that ends in CRLF, without the CRLF.
    pub(super) async fn line(&mut self, max_bytes: usize) -> Result<Bytes, HeadError> {
        let mut at = 0;
        loop {
            while let Some(byte) = self.buf.get(at) {
                match byte {
                    b'\r' => match self.buf.get(at + 1) {
                        Some(b'\n') => {
                            let line = self.buf.split_to(at).freeze();
                            self.buf.advance(2);
                            return Ok(line);
                        }
                        Some(_) => return Err(HeadError::Syntax(BARE_CR)),
                        None => break,
                    },
                    b'\n' => return Err(HeadError::Syntax(BARE_LF)),
                    byte if is_control(*byte) => return Err(HeadError::Syntax(CONTROL)),
                    _ if at >= max_bytes => return Err(HeadError::TooLarge("a line is too long")),
                    _ => at += 1,
                }
            }
            if self.fill().await? == 0 {
                return Err(HeadError::Truncated);
            }
        }
    }
}

const BARE_CR: &str = "a CR that no LF follows";
const BARE_LF: &str = "an LF that no CR precedes";
const CONTROL: &str = "a control byte";

/// Controls but tab; CR and LF are looked at before.
fn is_control(byte: u8) -> bool {
    (byte < 0x20 && byte != b'\t') || byte == 0x7f
}

/// Where the lines of a header are; resumes where it stopped when more bytes have come.
struct Scan {
    at: usize,
    line_start: usize,
    lines: Vec<(usize, usize)>,
    max_bytes: usize,
    max_lines: usize,
}

impl Scan {
    fn new(max_bytes: usize, max_lines: usize) -> Self {
        Self { at: 0, line_start: 0, lines: Vec::new(), max_bytes, max_lines }
    }

    /// True when the header is complete; `at` is then its length.
    fn advance(&mut self, text: &[u8]) -> Result<bool, HeadError> {
        while let Some(byte) = text.get(self.at) {
            if self.at >= self.max_bytes {
                return Err(HeadError::TooLarge("the header is too long"));
            }
            match byte {
                b'\r' => match text.get(self.at + 1) {
                    Some(b'\n') => {
                        let line = (self.line_start, self.at);
                        self.at += 2;
                        self.line_start = self.at;
                        if line.0 < line.1 {
                            if self.lines.len() >= self.max_lines {
                                return Err(HeadError::TooLarge("the header has too many lines"));
                            }
                            self.lines.push(line);
                        } else if !self.lines.is_empty() {
                            return Ok(true);
                        } else if self.at > 2 {
                            // One empty line before a request is to be ignored (RFC 9112 2.2).
                            return Err(HeadError::Syntax("empty lines before the first line"));
                        }
                    }
                    Some(_) => return Err(HeadError::Syntax(BARE_CR)),
                    None => return Ok(false),
                },
                b'\n' => return Err(HeadError::Syntax(BARE_LF)),
                byte if is_control(*byte) => return Err(HeadError::Syntax(CONTROL)),
                _ => self.at += 1,
            }
        }
        Ok(false)
    }

    fn parse(&self, text: &Bytes) -> Result<Head, HeadError> {
        let mut lines = self.lines.iter().map(|(from, to)| text.slice(*from..*to));
        let start = lines.next().ok_or(HeadError::Syntax("no first line"))?;
        let fields = lines.map(|line| parse_field(&line)).collect::<Result<_, _>>()?;
        Ok(Head { start, fields })
    }
}

/// Parses one field line.
pub(super) fn parse_field(line: &Bytes) -> Result<Field, HeadError> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Err(HeadError::Syntax("a folded line"));
    }
    let colon = line
        .iter()
        .position(|b| *b == b':')
        .ok_or(HeadError::Syntax("a field line without a colon"))?;
    if colon == 0 || !line[..colon].iter().all(|b| is_token_byte(*b)) {
        return Err(HeadError::Syntax("a field name that is not a token"));
    }
    let mut from = colon + 1;
    let mut to = line.len();
    while from < to && is_blank(line[from]) {
        from += 1;
    }
    while from < to && is_blank(line[to - 1]) {
        to -= 1;
    }
    Ok(Field { name: line.slice(..colon), value: line.slice(from..to) })
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// A byte of a token (RFC 9110 section 5.6.2).
pub(super) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The members of a comma-separated list, without blanks around them, empty ones dropped.
pub(super) fn list_members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(<[u8]>::trim_ascii).filter(|member| !member.is_empty())
}
