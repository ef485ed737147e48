//! What can go wrong with a link, and how a link ends.
//!
//! Never carries bytes of the peer: they could be anything, and errors are shown to people.

use std::time::Duration;

/// Why an operation on the link failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer does not speak the protocol, or the underlying stream failed at the start.
    #[error("the link could not be set up")]
    Handshake(#[source] h2::Error),
    /// The guest said nothing.
    #[error("the guest's end of the link did not come up within {0:?}")]
    HandshakeTimedOut(Duration),
    /// The link has ended.
    #[error("the link has ended")]
    Closed,
    /// The header is over its bound.
    #[error("a stream header of {0} bytes is over the limit of {limit} bytes", limit = crate::limits::MAX_HEADER)]
    HeaderTooLarge(usize),
    /// The peer did not take the stream.
    #[error("the peer refused the stream")]
    Refused,
    /// The guest did not answer a host's open.
    #[error("the guest did not take the stream within {0:?}")]
    OpenTimedOut(Duration),
    /// The stream could not be opened.
    #[error("the stream could not be opened")]
    Open(#[source] h2::Error),
}

/// How a link ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// This end closed it, or dropped all of its handles.
    Closed,
    /// The peer closed it, or its process is gone: the underlying stream ended.
    PeerGone,
    /// The peer broke the protocol or a limit of it, or the underlying stream failed.
    Fault(String),
}

impl Ending {
    /// A lost underlying stream is a peer that has gone; everything else is a fault. The text is
    /// h2's own and holds nothing of the peer's but a debug text that it cuts off here.
    pub(crate) fn of(error: &h2::Error) -> Self {
        use std::io::ErrorKind;
        let lost = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof];
        match error.get_io() {
            Some(io) if lost.contains(&io.kind()) => Self::PeerGone,
            Some(io) => Self::Fault(format!("the underlying stream failed: {}", io.kind())),
            None => match error.reason() {
                Some(reason) => Self::Fault(format!("protocol: {}", reason.description())),
                None => Self::Fault("protocol".to_owned()),
            },
        }
    }
}
