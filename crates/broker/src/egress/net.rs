//! Where names are looked up and connections start: the only such places of the broker.
//!
//! Both ask for a permit, so a name that no rule admits cannot be looked up and an address that
//! was not vetted cannot be dialled.

use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};

use async_trait::async_trait;
use cofferdam_policy::{DialTarget, NamePermit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::limits::MAX_LOOKUPS_AT_ONCE;

/// A byte stream in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Any byte stream in both directions.
pub type BoxStream = Box<dyn Stream>;

/// Why a name has no addresses.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// There is no such name, or it has no address. Not worth another attempt.
    #[error("no such name")]
    NotFound,
    /// Another attempt may succeed.
    #[error("the lookup failed: {0}")]
    Temporary(String),
}

/// Looks names up. Makes one attempt per call; the door repeats temporary failures.
#[async_trait]
pub trait Resolver: Send + Sync + 'static {
    /// All addresses of the admitted name, in order of preference.
    ///
    /// # Errors
    /// [`ResolveError`]; an empty answer may also be returned as such.
    async fn resolve(&self, name: &NamePermit) -> Result<Vec<IpAddr>, ResolveError>;
}

/// Opens connections.
#[async_trait]
pub trait Dialler: Send + Sync + 'static {
    /// Connects to one vetted address. The door bounds the time.
    ///
    /// # Errors
    /// Whatever the network says.
    async fn dial(&self, target: DialTarget) -> io::Result<BoxStream>;
}

/// Lookups in the hands of the operating system, over all doors of this process. A lookup holds a
/// thread of the runtime until the system is done with it, also after the door has stopped
/// waiting, so a guest must not be able to start any number of them.
static LOOKUPS: Semaphore = Semaphore::const_new(MAX_LOOKUPS_AT_ONCE);

/// The host's own resolver.
#[derive(Debug, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, name: &NamePermit) -> Result<Vec<IpAddr>, ResolveError> {
        let Some(host) = name.authority().host().name() else {
            return Err(ResolveError::NotFound);
        };
        // The dot makes the name absolute: the host's search domains must not turn an admitted
        // name into another one.
        let absolute = format!("{host}.");
        let port = name.authority().port();
        let slot =
            LOOKUPS.acquire().await.map_err(|error| ResolveError::Temporary(error.to_string()))?;
        let lookup = move || {
            let answer = (absolute.as_str(), port).to_socket_addrs();
            drop(slot);
            answer
        };
        match spawn_blocking(lookup).await {
            Ok(Ok(addresses)) => Ok(addresses.map(|address| address.ip()).collect()),
            Ok(Err(error)) => Err(classify(&error)),
            Err(error) => Err(ResolveError::Temporary(error.to_string())),
        }
    }
}

/// The standard library gives the system's text and no code (glibc, musl and macOS wordings).
fn classify(error: &io::Error) -> ResolveError {
    let text = error.to_string();
    let final_answers = [
        "Name or service not known",
        "No address associated with hostname",
        "Name does not resolve",
        "Name has no usable address",
        "nodename nor servname provided",
    ];
    if final_answers.iter().any(|known| text.contains(known)) {
        ResolveError::NotFound
    } else {
        ResolveError::Temporary(text)
    }
}

/// Plain TCP.
#[derive(Debug, Default)]
pub struct TcpDialler;

#[async_trait]
impl Dialler for TcpDialler {
    async fn dial(&self, target: DialTarget) -> io::Result<BoxStream> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the broker's one place where connections start; takes vetted addresses only"
        )]
        let stream = TcpStream::connect(target.address()).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}
