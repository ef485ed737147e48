//! The link: many byte streams over one, between the host and the guest of a run.
//!
//! It is HTTP/2 (through `h2`) on whatever byte stream the engine gives: the guest is the client,
//! the host the server. Every stream has its own flow control, so a slow reader stops its own
//! stream and no other. Either end can open a stream; an HTTP/2 server cannot, so a host's open
//! is asked for over an internal signalling stream and answered by the guest. Both ends see only
//! [`Link::open`] and [`Incoming::next`].
//!
//! This room must never know what travels, and the host's end must never trust the guest's: a
//! stream's header is bytes, every queue and buffer has a bound from [`limits`], and a byte
//! sequence that is not the protocol ends the link with an error.

mod error;
pub mod frames;
#[doc(hidden)]
pub mod fuzzing;
mod guest;
mod header;
mod host;
mod join;
pub mod limits;
mod stream;

use std::fmt;
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use error::{Ending, LinkError};
pub use join::join;
pub use stream::LinkStream;

/// One end of a link. Clones share it. The link ends when the peer is gone, at [`Link::close`],
/// or once every `Link`, [`Incoming`] and [`LinkStream`] of this end has been dropped.
#[derive(Clone)]
pub struct Link {
    opener: Opener,
    life: Arc<Life>,
}

#[derive(Clone)]
enum Opener {
    Host(Arc<host::HostOpener>),
    Guest(Arc<guest::GuestOpener>),
}

impl Link {
    /// The host's end. Waits for the guest's preface, at most [`limits::HANDSHAKE_TIMEOUT`].
    ///
    /// # Errors
    /// [`LinkError::Handshake`] when the peer does not speak the protocol or is gone.
    pub async fn host<T>(io: T) -> Result<(Self, Incoming), LinkError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        host::start(io).await
    }

    /// The guest's end.
    ///
    /// # Errors
    /// [`LinkError::Handshake`] when the host is gone.
    pub async fn guest<T>(io: T) -> Result<(Self, Incoming), LinkError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        guest::start(io).await
    }

    /// Opens a stream with a header that the peer gets from [`Incoming::next`].
    ///
    /// Waits while this end has its fill of open streams ([`limits::GUEST_STREAMS`],
    /// [`limits::HOST_STREAMS`]). A guest's open does not wait for the host; a host's open waits
    /// for the guest, at most [`limits::OPEN_TIMEOUT`].
    ///
    /// # Errors
    /// [`LinkError::HeaderTooLarge`], [`LinkError::Closed`], [`LinkError::OpenTimedOut`], or
    /// [`LinkError::Refused`] when the peer does not take it.
    pub async fn open(&self, header: &[u8]) -> Result<LinkStream, LinkError> {
        let opened = async {
            match &self.opener {
                Opener::Host(opener) => opener.open(header, &self.life).await,
                Opener::Guest(opener) => opener.open(header, &self.life).await,
            }
        };
        tokio::select! {
            biased;
            stream = opened => stream,
            () = self.life.gone.cancelled() => Err(LinkError::Closed),
        }
    }

    /// Ends the link and everything on it at once, without waiting for what is under way: streams
    /// of both ends fail, the peer sees the underlying stream end.
    pub fn close(&self) {
        self.life.close.cancel();
    }

    /// Resolves when the link has ended, with the reason.
    pub async fn closed(&self) -> Ending {
        self.life.gone.cancelled().await;
        self.life.ending.get().cloned().unwrap_or(Ending::Closed)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("gone", &self.life.gone.is_cancelled()).finish_non_exhaustive()
    }
}

/// The streams that the peer opens.
pub struct Incoming {
    streams: mpsc::Receiver<(Vec<u8>, LinkStream)>,
    _life: Arc<Life>,
}

impl Incoming {
    /// The next stream of the peer with its header; `None` once the link has ended. Cancel safe.
    pub async fn next(&mut self) -> Option<(Vec<u8>, LinkStream)> {
        self.streams.recv().await
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").finish_non_exhaustive()
    }
}

/// What the handles of one end share. Dropping the last handle closes the link.
struct Life {
    close: CancellationToken,
    gone: CancellationToken,
    ending: Arc<OnceLock<Ending>>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.close.cancel();
    }
}

/// The connection task's half of [`Life`]: it must not keep the link alive by itself.
struct Death {
    close: CancellationToken,
    gone: CancellationToken,
    ending: Arc<OnceLock<Ending>>,
}

impl Death {
    fn come(self, ending: Ending) {
        // The first reason stands; only this task sets one.
        let _ = self.ending.set(ending);
        self.gone.cancel();
    }
}

fn life_and_death() -> (Arc<Life>, Death) {
    let close = CancellationToken::new();
    let gone = CancellationToken::new();
    let ending = Arc::new(OnceLock::new());
    let life = Life { close: close.clone(), gone: gone.clone(), ending: ending.clone() };
    (Arc::new(life), Death { close, gone, ending })
}
