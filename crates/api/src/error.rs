//! Why the service could not start.

use std::path::PathBuf;

use cofferdam_daemon::HostError;

/// A failure at start-up, with a stable code and a way out.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another process serves this data directory.
    #[error("another process serves the data directory {0} already")]
    AlreadyServed(PathBuf),
    /// A file of the service cannot be used.
    #[error("cannot {attempt} {place}")]
    File {
        /// What was tried.
        attempt: &'static str,
        /// On what.
        place: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// Address or socket.
        address: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The address is not one of this machine's own.
    #[error("{0} is reachable from other machines; the service listens on loopback only")]
    NotLoopback(std::net::SocketAddr),
    /// The data directory cannot be used.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl ServeError {
    pub(crate) fn file(
        attempt: &'static str,
        place: &std::path::Path,
        source: std::io::Error,
    ) -> Self {
        Self::File { attempt, place: place.to_path_buf(), source }
    }

    /// Stable code; each has a section in `docs/errors/`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::AlreadyServed(_) => "API-020",
            Self::File { .. } => "API-021",
            Self::Listen { .. } => "API-022",
            Self::NotLoopback(_) => "API-023",
            Self::Host(e) => e.code(),
        }
    }

    /// What the person can do.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::AlreadyServed(_) => Some("use it: cofferdam web prints its address".to_owned()),
            Self::File { .. } => None,
            Self::Listen { .. } => {
                Some("choose another with --listen, or port 0 for any free one".to_owned())
            }
            Self::NotLoopback(_) => Some(
                "listen on 127.0.0.1 and put a reverse proxy with TLS and its own sign-in before it"
                    .to_owned(),
            ),
            Self::Host(e) => e.hint(),
        }
    }
}
