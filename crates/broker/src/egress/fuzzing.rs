//! Doors into this module's parsers for the fuzz targets: the product's own code, called without a
//! connection around it.
//!
//! Hidden from the documentation and no part of the crate's promises. It must never hold a parser,
//! a limit or a decision of its own: what is tried here is what runs.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use cofferdam_policy::{Authority, Refusal};
use tokio::io::{AsyncRead, ReadBuf};

use super::body::{BodyError, Decoder, LAST_CHUNK, write_piece};
use super::forward::request_head;
use super::head::{Field, HeadError, Inbound};
use super::hello;
use super::limits::{MAX_HEAD_BYTES, MAX_HEAD_LINES, MAX_RESPONSE_HEAD_BYTES};
use super::request::{Form, Framing, Request, connection_options, end_to_end};
use super::response::Response;
use crate::token::{RunToken, Tokens};

pub use super::limits;

/// Bytes that come in pieces of one size and then end.
struct Pieces<'a> {
    rest: &'a [u8],
    piece: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let len = self.rest.len().min(buf.remaining()).min(self.piece.max(1));
        let (now, rest) = self.rest.split_at(len);
        buf.put_slice(now);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}

/// Runs what never waits: its input is in memory.
fn at_once<T>(work: impl Future<Output = T>) -> Option<T> {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

/// How a body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFraming {
    /// No body.
    Empty,
    /// So many bytes.
    Length(u64),
    /// Chunked.
    Chunked,
    /// Until the peer closes.
    UntilClose,
}

impl BodyFraming {
    fn shown(framing: Framing) -> Self {
        match framing {
            Framing::Empty => Self::Empty,
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked,
            Framing::UntilClose => Self::UntilClose,
        }
    }

    fn inner(self) -> Framing {
        match self {
            Self::Empty => Framing::Empty,
            Self::Length(length) => Framing::Length(length),
            Self::Chunked => Framing::Chunked,
            Self::UntilClose => Framing::UntilClose,
        }
    }
}

/// A request as the door understood it.
#[derive(Debug, PartialEq, Eq)]
pub struct SeenRequest {
    /// Where it goes.
    pub authority: Authority,
    /// `CONNECT`.
    pub tunnel: bool,
    /// Its body.
    pub framing: BodyFraming,
    /// A protocol upgrade is asked for.
    pub upgrade: bool,
    /// It carries the token.
    pub carries: bool,
    /// Fields that travel on.
    pub end_to_end: Vec<(Bytes, Bytes)>,
    /// The header as it would go to the host; empty for a tunnel.
    pub forwarded: Vec<u8>,
    /// Bytes of the input that the header took.
    pub taken: usize,
}

/// Why there is no request, as text.
pub type Refused = String;

fn fields<'a>(fields: impl Iterator<Item = &'a Field>) -> Vec<(Bytes, Bytes)> {
    fields.map(|field| (field.name.clone(), field.value.clone())).collect()
}

/// Reads one request whose bytes come in pieces of `piece`. `None` would mean that it waited for
/// more than there is.
#[must_use]
pub fn request(
    bytes: &[u8],
    piece: usize,
    token: &RunToken,
) -> Option<Result<SeenRequest, Refused>> {
    let mut inbound = Inbound::new(Pieces { rest: bytes, piece });
    let head = at_once(inbound.head(MAX_HEAD_BYTES, MAX_HEAD_LINES))?;
    let parse = |error: HeadError| error.to_string();
    let request = head
        .map_err(parse)
        .and_then(|head| Request::parse(head).map_err(|refusal: Refusal| format!("{refusal:?}")));
    let (rest, buffered) = inbound.into_parts();
    let taken = bytes.len() - rest.rest.len() - buffered.len();
    Some(request.map(|request| SeenRequest {
        authority: request.authority.clone(),
        tunnel: request.form == Form::Tunnel,
        framing: BodyFraming::shown(request.framing),
        upgrade: request.upgrade,
        carries: request.principal(&Tokens::one(token.clone())).is_some(),
        end_to_end: fields(request.end_to_end()),
        forwarded: match &request.form {
            Form::Tunnel => Vec::new(),
            Form::Plain { method, path } => request_head(&request, method, path).to_vec(),
        },
        taken,
    }))
}

/// A host's answer as the door understood it.
#[derive(Debug, PartialEq, Eq)]
pub struct SeenResponse {
    /// Status.
    pub status: u16,
    /// Its body.
    pub framing: BodyFraming,
    /// Fields that travel on.
    pub end_to_end: Vec<(Bytes, Bytes)>,
    /// Bytes of the input that the header took.
    pub taken: usize,
}

/// Reads one answer to a request with `method`.
#[must_use]
pub fn response(
    bytes: &[u8],
    piece: usize,
    method: &[u8],
) -> Option<Result<SeenResponse, Refused>> {
    let mut inbound = Inbound::new(Pieces { rest: bytes, piece });
    let head = at_once(inbound.head(MAX_RESPONSE_HEAD_BYTES, MAX_HEAD_LINES))?;
    let response = head
        .map_err(|error| error.to_string())
        .and_then(|head| Response::parse(head, method).map_err(str::to_owned));
    let (rest, buffered) = inbound.into_parts();
    let taken = bytes.len() - rest.rest.len() - buffered.len();
    Some(response.and_then(|response| {
        let nominated =
            connection_options(&response.head).map_err(|refusal| format!("{refusal:?}"))?;
        Ok(SeenResponse {
            status: response.status,
            framing: BodyFraming::shown(response.framing),
            end_to_end: fields(end_to_end(&response.head, &nominated)),
            taken,
        })
    }))
}

/// A body taken out of its framing.
#[derive(Debug, PartialEq, Eq)]
pub struct SeenBody {
    /// What it holds.
    pub content: Vec<u8>,
    /// Size of the largest piece that was handed out.
    pub largest: usize,
    /// The same in this proxy's own chunked framing, its end included.
    pub rechunked: Vec<u8>,
    /// Bytes of the input that the body took.
    pub taken: usize,
}

/// Takes a body out of its framing and puts it into chunks anew.
#[must_use]
pub fn body(bytes: &[u8], piece: usize, framing: BodyFraming) -> Option<Result<SeenBody, Refused>> {
    let mut inbound = Inbound::new(Pieces { rest: bytes, piece });
    let mut decoder = Decoder::new(framing.inner());
    let mut seen = SeenBody { content: Vec::new(), largest: 0, rechunked: Vec::new(), taken: 0 };
    let work = async {
        while let Some(piece) = decoder.next(&mut inbound).await? {
            seen.content.extend_from_slice(&piece);
            seen.largest = seen.largest.max(piece.len());
            write_piece(&mut seen.rechunked, &piece, true).await.map_err(BodyError::Io)?;
        }
        seen.rechunked.extend_from_slice(LAST_CHUNK);
        Ok::<(), BodyError>(())
    };
    let done = at_once(work)?;
    let (rest, buffered) = inbound.into_parts();
    seen.taken = bytes.len() - rest.rest.len() - buffered.len();
    Some(done.map(|()| seen).map_err(|error| error.to_string()))
}

/// What a hello says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeenHello {
    /// More bytes are needed.
    Incomplete,
    /// Complete, with the name in it.
    Complete(Option<Vec<u8>>),
    /// No hello.
    Invalid(&'static str),
}

/// Reads the hello at the front of `bytes`.
#[must_use]
pub fn hello(bytes: &[u8]) -> SeenHello {
    match hello::read(bytes) {
        hello::Hello::Incomplete => SeenHello::Incomplete,
        hello::Hello::Complete(name) => SeenHello::Complete(name),
        hello::Hello::Invalid(why) => SeenHello::Invalid(why),
    }
}

/// Whether a tunnel to `authority` may go on with these bytes; `None`: more are needed.
#[must_use]
pub fn hello_fits(bytes: &[u8], authority: &Authority) -> Option<bool> {
    match hello::agrees(bytes, authority) {
        Ok(true) => Some(true),
        Ok(false) => None,
        Err(_) => Some(false),
    }
}
