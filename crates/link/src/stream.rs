//! One stream of a link as a byte stream.
//!
//! Gives the peer room only for what was really read, writes only what the peer has room for, and
//! never turns a lost link or a reset into a clean end of the stream.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

use crate::Life;
use crate::limits::{LINGER_BYTES, LINGER_TIMEOUT, SEND_BUFFER};

/// A stream of a link. `shutdown` ends the writing half and leaves the reading half. Dropped before
/// `shutdown` it is reset, and the peer's reads and writes fail; dropped after, everything written
/// still arrives, and what the peer writes is discarded up to [`LINGER_BYTES`].
pub struct LinkStream {
    send: SendStream<Bytes>,
    recv: Recv,
    rest: Bytes,
    finished: bool,
    /// Counted against this end's bound of opened streams for as long as the stream lives.
    permit: Option<OwnedSemaphorePermit>,
    life: Option<Arc<Life>>,
}

enum Recv {
    /// The guest opened it and the host's response has not come yet.
    Response(ResponseFuture),
    Body(RecvStream),
    End,
}

impl Recv {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            match self {
                Self::End => return Poll::Ready(Ok(None)),
                Self::Response(response) => {
                    let response = ready!(Pin::new(response).poll(cx)).map_err(io_error)?;
                    *self = Self::Body(response.into_body());
                }
                Self::Body(body) => match ready!(body.poll_data(cx)) {
                    Some(Ok(chunk)) if chunk.is_empty() => {}
                    Some(Ok(chunk)) => return Poll::Ready(Ok(Some(chunk))),
                    Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
                    None => *self = Self::End,
                },
            }
        }
    }

    /// Gives the peer room for `len` more bytes.
    fn release(&mut self, len: usize) -> io::Result<()> {
        match self {
            // Fails only for room that was never taken; these bytes took it.
            Self::Body(body) => body.flow_control().release_capacity(len).map_err(io_error),
            Self::Response(_) | Self::End => Ok(()),
        }
    }

    /// Discards what the peer still sends, within bounds. HTTP/2 has no way to say "I read no
    /// more" that leaves what was written before alone, so the stream stays until the peer is done.
    async fn linger(mut self) {
        let drain = async {
            let mut discarded = 0;
            while let Ok(Some(chunk)) = poll_fn(|cx| self.poll_chunk(cx)).await {
                discarded += chunk.len();
                if discarded > LINGER_BYTES || self.release(chunk.len()).is_err() {
                    break;
                }
            }
        };
        // Past either bound the stream is reset as it drops.
        let _ = tokio::time::timeout(LINGER_TIMEOUT, drain).await;
    }
}

impl LinkStream {
    pub(crate) fn opened(
        send: SendStream<Bytes>,
        response: ResponseFuture,
        permit: Option<OwnedSemaphorePermit>,
        life: Option<Arc<Life>>,
    ) -> Self {
        Self {
            send,
            recv: Recv::Response(response),
            rest: Bytes::new(),
            finished: false,
            permit,
            life,
        }
    }

    pub(crate) fn accepted(
        send: SendStream<Bytes>,
        body: RecvStream,
        permit: Option<OwnedSemaphorePermit>,
        life: Option<Arc<Life>>,
    ) -> Self {
        Self { send, recv: Recv::Body(body), rest: Bytes::new(), finished: false, permit, life }
    }
}

impl AsyncRead for LinkStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if this.rest.is_empty() {
            match ready!(this.recv.poll_chunk(cx))? {
                Some(chunk) => this.rest = chunk,
                None => return Poll::Ready(Ok(())),
            }
        }
        let len = this.rest.len().min(buf.remaining());
        buf.put_slice(&this.rest[..len]);
        this.rest.advance(len);
        if this.rest.is_empty() {
            // Lets go of the frame's allocation.
            this.rest = Bytes::new();
        }
        this.recv.release(len)?;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LinkStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.finished {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.send.reserve_capacity(buf.len().min(SEND_BUFFER));
        let mut room = self.send.capacity();
        // Room that was there before is not announced by `poll_capacity`, so it is asked last.
        while room == 0 {
            match ready!(self.send.poll_capacity(cx)) {
                Some(Ok(now)) => room = now,
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
                None => return Poll::Ready(Err(self.why_closed(cx))),
            }
        }
        let len = room.min(buf.len());
        if let Err(error) = self.send.send_data(Bytes::copy_from_slice(&buf[..len]), false) {
            return Poll::Ready(Err(io_error(error)));
        }
        Poll::Ready(Ok(len))
    }

    /// The connection's own task writes as fast as the underlying stream takes it.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.finished {
            return Poll::Ready(Ok(()));
        }
        self.finished = true;
        if self.send.send_data(Bytes::new(), true).is_err() {
            return Poll::Ready(Err(self.why_closed(cx)));
        }
        Poll::Ready(Ok(()))
    }
}

impl LinkStream {
    fn why_closed(&mut self, cx: &mut Context<'_>) -> io::Error {
        match self.send.poll_reset(cx) {
            Poll::Ready(Err(error)) => io_error(error),
            Poll::Ready(Ok(_)) => io::ErrorKind::ConnectionReset.into(),
            Poll::Pending => io::ErrorKind::BrokenPipe.into(),
        }
    }
}

impl Drop for LinkStream {
    fn drop(&mut self) {
        if !self.finished {
            self.send.send_reset(Reason::CANCEL);
            return;
        }
        let recv = std::mem::replace(&mut self.recv, Recv::End);
        if matches!(recv, Recv::End) {
            return;
        }
        // Outside a runtime the connection's task is gone too.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (permit, life) = (self.permit.take(), self.life.take());
            runtime.spawn(async move {
                recv.linger().await;
                drop((permit, life));
            });
        }
    }
}

impl fmt::Debug for LinkStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkStream").field("finished", &self.finished).finish_non_exhaustive()
    }
}

fn io_error(error: h2::Error) -> io::Error {
    let kind = if error.is_reset() {
        io::ErrorKind::ConnectionReset
    } else if let Some(inner) = error.get_io() {
        inner.kind()
    } else {
        io::ErrorKind::BrokenPipe
    };
    io::Error::new(kind, error)
}
