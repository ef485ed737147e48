//! The guest's end: an HTTP/2 client that also answers the host's opens.
//!
//! Never blocks the connection's own task on a consumer of streams.

use std::sync::Arc;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::error::{Ending, LinkError};
use crate::limits::{
    CONNECTION_WINDOW, ERROR_RESETS, GUEST_STREAMS, INCOMING_QUEUE, MAX_FRAME, MAX_HEADER_LIST,
    REMEMBERED_RESETS, SEND_BUFFER, SMALL_FRAME_BUDGET, STREAM_WINDOW,
};
use crate::stream::LinkStream;
use crate::{Incoming, Life, Link, Opener, header, life_and_death};

pub(crate) struct GuestOpener {
    requests: SendRequest<Bytes>,
    slots: Arc<Semaphore>,
}

impl GuestOpener {
    pub(crate) async fn open(
        &self,
        bytes: &[u8],
        life: &Arc<Life>,
    ) -> Result<LinkStream, LinkError> {
        let request = header::open_request(bytes)?;
        let permit = self.slots.clone().acquire_owned().await.map_err(|_| LinkError::Closed)?;
        let mut requests = ready(self.requests.clone()).await?;
        let (response, send) = requests.send_request(request, false).map_err(LinkError::Open)?;
        Ok(LinkStream::opened(send, response, Some(permit), Some(life.clone())))
    }
}

async fn ready(requests: SendRequest<Bytes>) -> Result<SendRequest<Bytes>, LinkError> {
    requests.ready().await.map_err(|_| LinkError::Closed)
}

pub(crate) async fn start<T>(io: T) -> Result<(Link, Incoming), LinkError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (requests, connection) = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_send_buffer_size(SEND_BUFFER)
        .data_frame_budget(SMALL_FRAME_BUDGET)
        .max_concurrent_reset_streams(REMEMBERED_RESETS)
        .max_local_error_reset_streams(Some(ERROR_RESETS))
        .enable_push(false)
        .handshake::<T, Bytes>(io)
        .await
        .map_err(LinkError::Handshake)?;
    let (life, death) = life_and_death();
    let (queue, streams) = mpsc::channel(INCOMING_QUEUE);

    tokio::spawn(answer_opens(requests.clone(), queue, Arc::downgrade(&life), death.gone.clone()));
    tokio::spawn(async move {
        let ending = tokio::select! {
            () = death.close.cancelled() => Ending::Closed,
            result = connection => match result {
                Ok(()) => Ending::PeerGone,
                Err(error) => Ending::of(&error),
            },
        };
        death.come(ending);
    });

    let opener = GuestOpener { requests, slots: Arc::new(Semaphore::new(GUEST_STREAMS)) };
    let link = Link { opener: Opener::Guest(Arc::new(opener)), life: life.clone() };
    Ok((link, Incoming { streams, _life: life }))
}

/// Reads the numbers of the host's opens from the signalling stream and answers each.
async fn answer_opens(
    requests: SendRequest<Bytes>,
    queue: mpsc::Sender<(Vec<u8>, LinkStream)>,
    life: std::sync::Weak<Life>,
    gone: CancellationToken,
) {
    let Ok(mut requests) = ready(requests).await else { return };
    let Ok((response, send)) = requests.send_request(header::signal_request(), false) else {
        return;
    };
    let mut signal = LinkStream::opened(send, response, None, None);
    loop {
        let id = tokio::select! {
            id = signal.read_u64() => id,
            () = gone.cancelled() => return,
        };
        // An end or failure of the signalling stream is one of the link; its task says so.
        let Ok(id) = id else { return };
        let Some(life) = life.upgrade() else { return };
        let Ok(ready) = ready(requests).await else { return };
        requests = ready;
        let Ok((response, mut send)) = requests.send_request(header::answer_request(id), false)
        else {
            return;
        };
        let queue = queue.clone();
        // Bounded by the host's own count of open streams.
        tokio::spawn(async move {
            let Ok(response) = response.await else { return };
            match header::parse_answer_response(&response) {
                Some(bytes) => {
                    let stream = LinkStream::accepted(send, response.into_body(), None, Some(life));
                    // Fails only when nobody takes streams any more: dropping it resets it.
                    let _ = queue.send((bytes, stream)).await;
                }
                None => send.send_reset(h2::Reason::PROTOCOL_ERROR),
            }
        });
    }
}
