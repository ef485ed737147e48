//! Message bodies: taken out of one framing and put into another, never passed through.
//!
//! The sender's chunk sizes, extensions and trailers end here. What goes on is framed by this
//! proxy, so two ends cannot be made to disagree about where a message stops.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::head::{HeadError, Inbound, parse_field};
use super::limits::{COPY_BYTES, MAX_CHUNK_LINE_BYTES, MAX_TRAILER_BYTES};
use super::request::Framing;

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// The framing is wrong, too long, or ends early.
    #[error("{0}")]
    Framing(&'static str),
    /// The stream failed.
    #[error("reading failed")]
    Io(#[from] io::Error),
}

impl From<HeadError> for BodyError {
    fn from(error: HeadError) -> Self {
        match error {
            HeadError::Io(error) => Self::Io(error),
            HeadError::Syntax(why) | HeadError::TooLarge(why) => Self::Framing(why),
            HeadError::Closed | HeadError::Truncated => Self::Framing("the body ended early"),
        }
    }
}

/// Takes a body out of its framing.
#[derive(Debug)]
pub(super) struct Decoder {
    state: State,
}

#[derive(Debug)]
enum State {
    Length(u64),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailers(usize),
    UntilClose,
    Done,
}

impl Decoder {
    pub(super) fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Empty | Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::ChunkSize,
            Framing::UntilClose => State::UntilClose,
        };
        Self { state }
    }

    /// The next piece of the body, never empty; `None` at its end.
    pub(super) async fn next<R: AsyncRead + Unpin>(
        &mut self,
        from: &mut Inbound<R>,
    ) -> Result<Option<Bytes>, BodyError> {
        loop {
            match self.state {
                State::Done => return Ok(None),
                State::Length(left) => {
                    let piece = piece(from, left).await?;
                    let left = left - piece.len() as u64;
                    self.state = if left == 0 { State::Done } else { State::Length(left) };
                    return Ok(Some(piece));
                }
                State::ChunkSize => {
                    let line = from.line(MAX_CHUNK_LINE_BYTES).await?;
                    self.state = match chunk_size(&line)? {
                        0 => State::Trailers(0),
                        size => State::ChunkData(size),
                    };
                }
                State::ChunkData(left) => {
                    let piece = piece(from, left).await?;
                    let left = left - piece.len() as u64;
                    self.state = if left == 0 { State::ChunkEnd } else { State::ChunkData(left) };
                    return Ok(Some(piece));
                }
                State::ChunkEnd => {
                    if !from.line(0).await.map_err(chunk_end)?.is_empty() {
                        return Err(BodyError::Framing("chunk data that no CRLF follows"));
                    }
                    self.state = State::ChunkSize;
                }
                State::Trailers(bytes) => {
                    let line = from.line(MAX_TRAILER_BYTES).await?;
                    let bytes = bytes + line.len() + 2;
                    if bytes > MAX_TRAILER_BYTES {
                        return Err(BodyError::Framing("the trailers are too long"));
                    }
                    if line.is_empty() {
                        self.state = State::Done;
                    } else {
                        parse_field(&line)?;
                        self.state = State::Trailers(bytes);
                    }
                }
                State::UntilClose => {
                    if from.buf.is_empty() && from.fill().await? == 0 {
                        self.state = State::Done;
                        return Ok(None);
                    }
                    let len = from.buf.len().min(COPY_BYTES);
                    return Ok(Some(from.buf.split_to(len).freeze()));
                }
            }
        }
    }
}

/// A data byte where CRLF belongs would otherwise be told as a line that is too long.
fn chunk_end(error: HeadError) -> BodyError {
    match error {
        HeadError::TooLarge(_) => BodyError::Framing("chunk data that no CRLF follows"),
        other @ (HeadError::Closed
        | HeadError::Truncated
        | HeadError::Syntax(_)
        | HeadError::Io(_)) => other.into(),
    }
}

async fn piece<R: AsyncRead + Unpin>(from: &mut Inbound<R>, most: u64) -> Result<Bytes, BodyError> {
    if from.buf.is_empty() && from.fill().await? == 0 {
        return Err(BodyError::Framing("the body ended early"));
    }
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    Ok(from.buf.split_to(from.buf.len().min(most).min(COPY_BYTES)).freeze())
}

/// `1*HEXDIG [";" extensions]`; extensions are looked at for their bytes only.
fn chunk_size(line: &[u8]) -> Result<u64, BodyError> {
    let digits = line.iter().position(|b| *b == b';').map_or(line, |at| &line[..at]);
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(BodyError::Framing("a chunk size that is not plain hexadecimal"));
    }
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or(BodyError::Framing("a chunk size that is not plain hexadecimal"))
}

/// Writes one piece in this proxy's own framing.
pub(super) async fn write_piece<W: AsyncWrite + Unpin>(
    to: &mut W,
    piece: &[u8],
    chunked: bool,
) -> io::Result<()> {
    if chunked {
        let mut framed = BytesMut::with_capacity(piece.len() + 20);
        framed.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        framed.extend_from_slice(piece);
        framed.extend_from_slice(b"\r\n");
        to.write_all(&framed).await
    } else {
        to.write_all(piece).await
    }
}

/// Bytes that [`write_piece`] writes.
pub(super) fn framed_len(piece: &[u8], chunked: bool) -> u64 {
    let overhead = if chunked { format!("{:x}", piece.len()).len() + 4 } else { 0 };
    (piece.len() + overhead) as u64
}

/// What ends a chunked body.
pub(super) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
