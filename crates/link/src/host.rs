//! The host's end: an HTTP/2 server whose client is hostile.
//!
//! Never waits for the guest without a bound, never queues more than [`INCOMING_QUEUE`] streams,
//! and never lets the guest choose a number: an answer names one of the host's own opens or is
//! refused.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::error::{Ending, LinkError};
use crate::header::{self, Ask};
use crate::limits::{
    CONNECTION_WINDOW, ERROR_RESETS, HANDSHAKE_TIMEOUT, HOST_STREAMS, INCOMING_QUEUE, MAX_FRAME,
    MAX_HEADER_LIST, MAX_STREAMS, OPEN_TIMEOUT, PENDING_RESETS, REMEMBERED_RESETS, SEND_BUFFER,
    SMALL_FRAME_BUDGET, STREAM_WINDOW,
};
use crate::stream::LinkStream;
use crate::{Incoming, Life, Link, Opener, life_and_death};

/// An open that waits for the guest's answer.
struct Pending {
    header: Vec<u8>,
    permit: OwnedSemaphorePermit,
    answer: oneshot::Sender<LinkStream>,
    life: Arc<Life>,
}

type PendingOpens = Arc<Mutex<HashMap<u64, Pending>>>;

pub(crate) struct HostOpener {
    pending: PendingOpens,
    signal: mpsc::Sender<u64>,
    next: AtomicU64,
    slots: Arc<Semaphore>,
}

impl HostOpener {
    pub(crate) async fn open(
        &self,
        bytes: &[u8],
        life: &Arc<Life>,
    ) -> Result<LinkStream, LinkError> {
        // Refused here rather than when the guest answers.
        header::answer_response(bytes)?;
        let permit = self.slots.clone().acquire_owned().await.map_err(|_| LinkError::Closed)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let pending = Pending { header: bytes.to_vec(), permit, answer, life: life.clone() };
        lock(&self.pending).insert(id, pending);
        let forget = Forget { pending: &self.pending, id };
        let asked = async {
            self.signal.send(id).await.map_err(|_| LinkError::Closed)?;
            answered.await.map_err(|_| LinkError::Refused)
        };
        let stream = tokio::time::timeout(OPEN_TIMEOUT, asked).await;
        drop(forget);
        stream.unwrap_or(Err(LinkError::OpenTimedOut(OPEN_TIMEOUT)))
    }
}

/// Takes the entry of an open away however the open ends.
struct Forget<'a> {
    pending: &'a PendingOpens,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        lock(self.pending).remove(&self.id);
    }
}

fn lock(pending: &PendingOpens) -> std::sync::MutexGuard<'_, HashMap<u64, Pending>> {
    // No code that can panic runs under this lock; a map is whole at any point anyway.
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) async fn start<T>(io: T) -> Result<(Link, Incoming), LinkError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    start_within(io, HANDSHAKE_TIMEOUT).await
}

async fn start_within<T>(io: T, limit: Duration) -> Result<(Link, Incoming), LinkError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_concurrent_streams(MAX_STREAMS)
        .max_send_buffer_size(SEND_BUFFER)
        .data_frame_budget(SMALL_FRAME_BUDGET)
        .max_concurrent_reset_streams(REMEMBERED_RESETS)
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(Some(ERROR_RESETS));
    let connection = tokio::time::timeout(limit, builder.handshake::<T, Bytes>(io))
        .await
        .map_err(|_| LinkError::HandshakeTimedOut(limit))?
        .map_err(LinkError::Handshake)?;

    let (life, death) = life_and_death();
    let (queue, streams) = mpsc::channel(INCOMING_QUEUE);
    let (signal, signals) = mpsc::channel(HOST_STREAMS);
    let pending = PendingOpens::default();
    let opener = HostOpener {
        pending: pending.clone(),
        signal,
        next: AtomicU64::new(1),
        slots: Arc::new(Semaphore::new(HOST_STREAMS)),
    };
    let desk = Desk { queue, pending, signals: Some(signals), life: Arc::downgrade(&life) };
    tokio::spawn(async move {
        let ending = tokio::select! {
            () = death.close.cancelled() => Ending::Closed,
            ending = serve(connection, desk) => ending,
        };
        death.come(ending);
    });

    let link = Link { opener: Opener::Host(Arc::new(opener)), life: life.clone() };
    Ok((link, Incoming { streams, _life: life }))
}

async fn serve<T>(mut connection: Connection<T, Bytes>, mut desk: Desk) -> Ending
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match connection.accept().await {
            Some(Ok((request, respond))) => desk.take(request, respond),
            Some(Err(error)) => return Ending::of(&error),
            None => return Ending::PeerGone,
        }
    }
}

/// Where requests of the guest are sorted.
struct Desk {
    queue: mpsc::Sender<(Vec<u8>, LinkStream)>,
    pending: PendingOpens,
    signals: Option<mpsc::Receiver<u64>>,
    life: std::sync::Weak<Life>,
}

impl Desk {
    fn take(&mut self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        let (parts, body) = request.into_parts();
        let Some(life) = self.life.upgrade() else { return };
        match header::parse_request(&parts) {
            Some(Ask::Open(bytes)) => {
                let Ok(place) = self.queue.try_reserve() else {
                    respond.send_reset(Reason::REFUSED_STREAM);
                    return;
                };
                // Fails when the guest has reset the stream meanwhile.
                let Ok(send) = respond.send_response(header::plain_response(), false) else {
                    return;
                };
                place.send((bytes, LinkStream::accepted(send, body, None, Some(life))));
            }
            Some(Ask::Answer(id)) => {
                let Some(pending) = lock(&self.pending).remove(&id) else {
                    respond.send_reset(Reason::REFUSED_STREAM);
                    return;
                };
                let Ok(response) = header::answer_response(&pending.header) else { return };
                let Ok(send) = respond.send_response(response, false) else { return };
                let stream =
                    LinkStream::accepted(send, body, Some(pending.permit), Some(pending.life));
                // Fails when the opener has given up: dropping the stream resets it.
                let _ = pending.answer.send(stream);
            }
            Some(Ask::Signal) => {
                let Some(mut signals) = self.signals.take() else {
                    respond.send_reset(Reason::REFUSED_STREAM);
                    return;
                };
                let Ok(send) = respond.send_response(header::plain_response(), false) else {
                    return;
                };
                let mut stream = LinkStream::accepted(send, body, None, None);
                tokio::spawn(async move {
                    while let Some(id) = signals.recv().await {
                        if stream.write_u64(id).await.is_err() {
                            return;
                        }
                    }
                });
            }
            None => respond.send_reset(Reason::REFUSED_STREAM),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silent_guest_fails_the_handshake() {
        let (io, _silent) = tokio::io::duplex(1024);
        let result = start_within(io, Duration::from_millis(1)).await;
        assert!(matches!(result, Err(LinkError::HandshakeTimedOut(_))));
    }
}
