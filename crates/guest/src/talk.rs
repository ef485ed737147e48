//! The control stream: messages up through a bounded queue, messages down, and whether the host is
//! still there.
//!
//! Never drops a message and never queues without a bound: who has something to say waits.

use cofferdam_link::frames::{FrameReader, FrameWriter};
use cofferdam_link::{Incoming, Link, LinkStream, frames::FrameError};
use cofferdam_wire::{Down, StartSpec, StreamOpen, Up};
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf, split};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::limits::UP_QUEUE;
use crate::log;

/// The host is gone, or talks nonsense; nothing can be said any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the host is gone")]
pub(crate) struct HostGone;

/// Says something to the host.
#[derive(Debug, Clone)]
pub(crate) struct ToHost(mpsc::Sender<Up>);

impl ToHost {
    /// Says it into this queue.
    pub(crate) fn new(queue: mpsc::Sender<Up>) -> Self {
        Self(queue)
    }

    /// Queues a message; waits while the queue is full.
    pub(crate) async fn say(&self, message: Up) -> Result<(), HostGone> {
        self.0.send(message).await.map_err(|_| HostGone)
    }
}

/// What the host wants of a run that has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Go on.
    Work,
    /// End the agent and collect.
    Cancel,
    /// Nobody is there any more: end the agent, keep what can be kept, end.
    Gone,
}

/// Follows what the host wants.
#[derive(Debug, Clone)]
pub(crate) struct Wishes(watch::Receiver<Wish>);

impl Wishes {
    /// Resolves once the host wants anything but work.
    pub(crate) async fn changed(&mut self) -> Wish {
        match self.0.wait_for(|wish| *wish != Wish::Work).await {
            Ok(wish) => *wish,
            Err(_) => Wish::Gone,
        }
    }

    /// Resolves once the host is gone.
    pub(crate) async fn gone(&mut self) {
        // An error means that the follower has ended, which it does only with the link.
        let _ = self.0.wait_for(|wish| *wish == Wish::Gone).await;
    }

    /// What it wants now.
    pub(crate) fn now(&self) -> Wish {
        *self.0.borrow()
    }
}

/// The open control stream.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) up: ToHost,
    writer: JoinHandle<()>,
    reader: FrameReader<Down, ReadHalf<LinkStream>>,
}

/// Sets up the link over the standard streams and opens the control stream.
pub(crate) async fn open<T>(io: T) -> Result<(Link, Incoming, Control), String>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (link, incoming) = Link::guest(io).await.map_err(|e| e.to_string())?;
    let stream = open_stream(&link, &StreamOpen::Control).await.map_err(|e| e.to_string())?;
    let (reader, writer) = split(stream);
    let (up, messages) = mpsc::channel(UP_QUEUE);
    let writer = tokio::spawn(write(FrameWriter::new(writer), messages));
    let control = Control { up: ToHost::new(up), writer, reader: FrameReader::new(reader) };
    Ok((link, incoming, control))
}

/// Opens a stream of that kind.
pub(crate) async fn open_stream(link: &Link, open: &StreamOpen) -> Result<LinkStream, String> {
    let header = serde_json::to_vec(open).map_err(|e| e.to_string())?;
    link.open(&header).await.map_err(|e| e.to_string())
}

async fn write(mut writer: FrameWriter<Up, WriteHalf<LinkStream>>, mut up: mpsc::Receiver<Up>) {
    while let Some(message) = up.recv().await {
        match writer.send(&message).await {
            Ok(()) => {}
            // The message is lost, the stream is not: nothing of it was written.
            Err(FrameError::TooLarge(bytes)) => {
                log::line(&format!("a message of {bytes} bytes was dropped"))
            }
            Err(_) => return,
        }
    }
    // The half stays open: its end would say that the guest has gone.
    std::future::pending::<()>().await;
}

impl Control {
    /// Waits for the host to begin.
    pub(crate) async fn start(&mut self) -> Result<StartSpec, String> {
        match self.reader.next().await {
            Ok(Some(Down::Start(spec))) => Ok(*spec),
            Ok(Some(Down::Cancel { .. })) => Err("cancelled before it started".to_owned()),
            Ok(None) => Err("the host closed the control stream".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// From here on the host's messages become wishes.
    pub(crate) fn follow(self, link: &Link) -> (ToHost, Wishes, Closing) {
        let (wish, wishes) = watch::channel(Wish::Work);
        let link = link.clone();
        let follower = tokio::spawn(follow(self.reader, link, wish));
        (self.up, Wishes(wishes), Closing { writer: self.writer, follower })
    }
}

/// Keeps the control stream's tasks.
#[derive(Debug)]
pub(crate) struct Closing {
    writer: JoinHandle<()>,
    follower: JoinHandle<()>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.writer.abort();
        self.follower.abort();
    }
}

async fn follow(
    mut reader: FrameReader<Down, ReadHalf<LinkStream>>,
    link: Link,
    wish: watch::Sender<Wish>,
) {
    let mut terminate = crate::supervisor::told_to_end();
    loop {
        let next = tokio::select! {
            message = reader.next() => match message {
                Ok(Some(Down::Cancel { .. })) => Wish::Cancel,
                Ok(Some(Down::Start(_))) => {
                    log::line("the host started twice");
                    Wish::Gone
                }
                // The end of the run, most often; the exit code tells when it is not.
                Ok(None) | Err(FrameError::Io(_)) => Wish::Gone,
                Err(error) => {
                    log::line(&error.to_string());
                    Wish::Gone
                }
            },
            () = &mut terminate => {
                terminate = Box::pin(std::future::pending());
                Wish::Cancel
            }
            _ = link.closed() => Wish::Gone,
        };
        let _ = wish.send(next);
        if next == Wish::Gone {
            link.close();
            return;
        }
    }
}
