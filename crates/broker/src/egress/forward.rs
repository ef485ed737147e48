//! One plain HTTP exchange: the request goes on in this proxy's own framing, the answer comes back
//! in this proxy's own framing.
//!
//! Every exchange has a connection of its own to the host, so nothing of one request can end up in
//! another one.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{BufMut as _, Bytes, BytesMut};
use cofferdam_policy::{Refusal, RefusalCode};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::account::Entry;
use super::body::{BodyError, Decoder, LAST_CHUNK, framed_len, write_piece};
use super::connection::Next;
use super::head::{Field, Inbound};
use super::limits::{
    COPY_BYTES, Limits, MAX_HEAD_LINES, MAX_INTERIM_RESPONSES, MAX_RESPONSE_HEAD_BYTES,
};
use super::net::BoxStream;
use super::relay::Pulse;
use super::reply::{self, REFUSAL_HEADER};
use super::request::{Framing, Request, Version, connection_options, end_to_end};
use super::response::Response;

/// One request on its way.
pub(super) struct Exchange<'a> {
    pub(super) request: &'a Request,
    pub(super) method: &'a Bytes,
    pub(super) path: &'a str,
    /// No further request is served on this connection.
    pub(super) last: bool,
    pub(super) limits: &'a Limits,
}

/// Why an exchange did not come to its end.
enum Failure {
    /// Told to the guest, when nothing of an answer has gone out yet.
    Refused(Refusal),
    Budget,
    GuestClosed,
    HostClosed,
}

impl From<BodyError> for Failure {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Framing(why) => Self::Refused(Refusal::new(RefusalCode::BodyFraming, why)),
            BodyError::Io(_) => Self::GuestClosed,
        }
    }
}

fn bad_upstream(why: impl Into<String>) -> Failure {
    Failure::Refused(Refusal::new(RefusalCode::BadUpstream, why))
}

/// Shared between the two directions.
struct Flags {
    /// The whole request has been sent.
    sent: AtomicBool,
    /// Something of an answer has gone to the guest.
    answered: AtomicBool,
    pulse: Pulse,
}

impl Exchange<'_> {
    pub(super) async fn run<R, W>(
        &self,
        inbound: &mut Inbound<R>,
        out: &mut W,
        host: BoxStream,
        mut entry: Entry,
    ) -> Next
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let (host_read, mut host_write) = tokio::io::split(host);
        let mut host_read = Inbound::new(host_read);
        let flags = Flags {
            sent: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            pulse: Pulse::new(self.limits.idle),
        };
        let work = async {
            tokio::select! {
                biased;
                failure = self.upload(inbound, &mut host_write, &entry, &flags) => Err(failure),
                done = self.download(&mut host_read, out, &entry, &flags) => done,
            }
        };
        let result = flags.pulse.bound(self.limits.total, work).await;
        let answered = flags.answered.load(Ordering::Relaxed);
        let (outcome, refusal) = match result {
            Ok(Ok(keep)) => {
                entry.end("closed");
                return if keep { Next::Again } else { Next::Close };
            }
            Ok(Err(Failure::Refused(refusal))) => {
                entry.refuse(&refusal);
                ("", Some(refusal))
            }
            Ok(Err(Failure::Budget)) => ("budget", None),
            Ok(Err(Failure::GuestClosed)) => ("guest closed", None),
            Ok(Err(Failure::HostClosed)) => (
                "host closed",
                Some(Refusal::new(RefusalCode::BadUpstream, "the host closed without an answer")),
            ),
            Err(why) => (
                why,
                Some(Refusal::new(RefusalCode::BadUpstream, "the host did not answer in time")),
            ),
        };
        entry.end(outcome);
        drop(entry);
        match refusal {
            Some(refusal) if !answered => {
                let bodiless = self.request.is_head();
                let answer = reply::refuse(out, &refusal, true, bodiless);
                match timeout(self.limits.answer, answer).await {
                    Ok(_) => Next::Close,
                    Err(_) => Next::Abort,
                }
            }
            _ => Next::Abort,
        }
    }

    /// Sends the request, then watches for the guest to leave. Returns on failure only.
    async fn upload<R, W>(
        &self,
        inbound: &mut Inbound<R>,
        host: &mut W,
        entry: &Entry,
        flags: &Flags,
    ) -> Failure
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        match self.send(inbound, host, entry, flags).await {
            // The host may answer without reading everything; its answer decides.
            Ok(()) | Err(Failure::HostClosed) => {}
            Err(failure) => return failure,
        }
        while inbound.buf.len() < COPY_BYTES {
            match inbound.fill().await {
                Ok(1..) => {}
                Ok(0) => break,
                Err(_) => return Failure::GuestClosed,
            }
        }
        std::future::pending().await
    }

    async fn send<R, W>(
        &self,
        inbound: &mut Inbound<R>,
        host: &mut W,
        entry: &Entry,
        flags: &Flags,
    ) -> Result<(), Failure>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let head = request_head(self.request, self.method, self.path);
        entry.take_out(head.len() as u64).map_err(|_| Failure::Budget)?;
        host.write_all(&head).await.map_err(|_| Failure::HostClosed)?;
        let chunked = self.request.framing == Framing::Chunked;
        let mut body = Decoder::new(self.request.framing);
        while let Some(piece) = body.next(inbound).await? {
            entry.take_out(framed_len(&piece, chunked)).map_err(|_| Failure::Budget)?;
            write_piece(host, &piece, chunked).await.map_err(|_| Failure::HostClosed)?;
            flags.pulse.beat();
        }
        if chunked {
            entry.take_out(LAST_CHUNK.len() as u64).map_err(|_| Failure::Budget)?;
            host.write_all(LAST_CHUNK).await.map_err(|_| Failure::HostClosed)?;
        }
        host.flush().await.map_err(|_| Failure::HostClosed)?;
        flags.sent.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Relays the answer. True when another request may follow.
    async fn download<R, W>(
        &self,
        host: &mut Inbound<R>,
        out: &mut W,
        entry: &Entry,
        flags: &Flags,
    ) -> Result<bool, Failure>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut counted = 0;
        let mut count = |total: u64| {
            entry.add_in(total - std::mem::replace(&mut counted, total));
            flags.pulse.beat();
        };
        let modern = self.request.version == Version::Http11;
        let mut interim = 0;
        let response = loop {
            let head = host.head(MAX_RESPONSE_HEAD_BYTES, MAX_HEAD_LINES).await;
            count(host.total());
            let head = head.map_err(|error| bad_upstream(error.to_string()))?;
            let response = Response::parse(head, self.method).map_err(bad_upstream)?;
            if !response.is_interim() {
                break response;
            }
            interim += 1;
            if interim > MAX_INTERIM_RESPONSES {
                return Err(bad_upstream("too many interim responses"));
            }
            if modern {
                let head = response_head(&response, None, None)?;
                flags.answered.store(true, Ordering::Relaxed);
                write(out, &head).await?;
            }
        };
        // Without a length an answer to an old client ends with the connection.
        let (framing, delimited) = match response.framing {
            Framing::Chunked | Framing::UntilClose if modern => (Framing::Chunked, true),
            Framing::Chunked | Framing::UntilClose => (Framing::Empty, false),
            framing @ (Framing::Empty | Framing::Length(_)) => (framing, true),
        };
        let keep =
            delimited && !self.last && !self.request.close && flags.sent.load(Ordering::Relaxed);
        let head = response_head(&response, Some(framing), Some(keep))?;
        flags.answered.store(true, Ordering::Relaxed);
        write(out, &head).await?;
        let chunked = framing == Framing::Chunked;
        let mut body = Decoder::new(response.framing);
        loop {
            let piece = body.next(host).await;
            count(host.total());
            match piece {
                Ok(Some(piece)) => {
                    write_piece(out, &piece, chunked).await.map_err(|_| Failure::GuestClosed)?;
                    out.flush().await.map_err(|_| Failure::GuestClosed)?;
                }
                Ok(None) => break,
                Err(BodyError::Framing(why)) => return Err(bad_upstream(why)),
                Err(BodyError::Io(_)) => return Err(Failure::HostClosed),
            }
        }
        if chunked {
            write(out, LAST_CHUNK).await?;
        }
        Ok(keep)
    }
}

async fn write<W: AsyncWrite + Unpin>(out: &mut W, bytes: &[u8]) -> Result<(), Failure> {
    out.write_all(bytes).await.map_err(|_| Failure::GuestClosed)?;
    out.flush().await.map_err(|_| Failure::GuestClosed)
}

/// The header that goes to the host.
pub(super) fn request_head(request: &Request, method: &[u8], path: &str) -> BytesMut {
    let authority = &request.authority;
    let mut head = BytesMut::with_capacity(1024);
    head.put_slice(method);
    head.put_slice(format!(" {path} HTTP/1.1\r\nHost: ").as_bytes());
    if authority.port() == 80 {
        head.put_slice(authority.host().to_string().as_bytes());
    } else {
        head.put_slice(authority.to_string().as_bytes());
    }
    head.put_slice(b"\r\n");
    request.end_to_end().for_each(|field| put_field(&mut head, field));
    put_framing(&mut head, request.framing);
    head.put_slice(b"Connection: close\r\n\r\n");
    head
}

fn put_field(head: &mut BytesMut, field: &Field) {
    head.put_slice(&field.name);
    head.put_slice(b": ");
    head.put_slice(&field.value);
    head.put_slice(b"\r\n");
}

fn put_framing(head: &mut BytesMut, framing: Framing) {
    match framing {
        Framing::Length(length) => {
            head.put_slice(format!("Content-Length: {length}\r\n").as_bytes());
        }
        Framing::Chunked => head.put_slice(b"Transfer-Encoding: chunked\r\n"),
        Framing::Empty | Framing::UntilClose => {}
    }
}

/// The header that goes to the guest. `framing` and `keep` are for final responses.
fn response_head(
    response: &Response,
    framing: Option<Framing>,
    keep: Option<bool>,
) -> Result<BytesMut, Failure> {
    let nominated =
        connection_options(&response.head).map_err(|refusal| bad_upstream(refusal.reason))?;
    let mut head = BytesMut::with_capacity(1024);
    head.put_slice(format!("HTTP/1.1 {} ", response.status).as_bytes());
    head.put_slice(&response.phrase);
    head.put_slice(b"\r\n");
    // Only this proxy tells a client about refusals.
    end_to_end(&response.head, &nominated)
        .filter(|field| !field.is(REFUSAL_HEADER))
        .for_each(|field| put_field(&mut head, field));
    if let Some(framing) = framing {
        put_framing(&mut head, response.shown_length.map_or(framing, Framing::Length));
    }
    match keep {
        Some(true) => head.put_slice(b"Connection: keep-alive\r\n"),
        Some(false) => head.put_slice(b"Connection: close\r\n"),
        None => {}
    }
    head.put_slice(b"\r\n");
    Ok(head)
}
