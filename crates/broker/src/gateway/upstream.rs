//! Connections to the provider: vetted, verified, kept alive, and given up at once when nobody
//! waits for them any more.
//!
//! A name is looked up and vetted for each new connection, by the same permits as the egress door.
//! Certificates are always verified. Redirects are answers like any other here: this file follows
//! nothing.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use cofferdam_policy::{DialPermit, Route};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::task::AbortHandle;
use tokio::time::{Duration, Instant, timeout};
use tokio_rustls::TlsConnector;

use super::limits::{IDLE_UPSTREAM_AGE, MAX_HEADERS, MAX_IDLE_UPSTREAM, READY_TIMEOUT};
use super::origin::Origin;
use crate::egress::{BoxStream, Dialler, Resolver};

type Sender = SendRequest<Full<Bytes>>;

/// Why the TLS set-up cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// This machine has no trusted certificates and none were given.
    #[error("no trusted certificate authorities were found on this machine{0}")]
    NoRoots(String),
    /// A certificate of the configuration is not one.
    #[error("a configured certificate authority is not valid: {0}")]
    Root(rustls::Error),
    /// The provider has no protocol version that we speak.
    #[error("TLS could not be set up: {0}")]
    Setup(rustls::Error),
    /// The host name cannot be in a certificate.
    #[error("{0:?} is no name that a certificate can hold")]
    Name(String),
}

/// Why a call did not reach the provider or got no answer head.
#[derive(Debug)]
pub(super) enum SendError {
    /// Nothing of the request left.
    NotSent(String),
    /// It may have been received.
    NoAnswer(String),
    /// It may have been received; the provider was silent for too long.
    Silent,
}

/// The provider.
pub(super) struct Upstream {
    origin: Origin,
    local: bool,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    resolver: Arc<dyn Resolver>,
    dialler: Arc<dyn Dialler>,
    connect_timeout: Duration,
    idle: Mutex<VecDeque<Idle>>,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

/// One connection. Its task is ended when it is dropped.
#[derive(Debug)]
struct Connection {
    sender: Sender,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection that carries one answer. Dropped early, it takes the connection with it, so that the
/// provider sees at once that nobody listens.
pub(super) struct Lease {
    connection: Connection,
    upstream: Arc<Upstream>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lease(..)")
    }
}

impl Lease {
    /// The answer was read to its end: keep the connection.
    pub(super) fn give_back(self) {
        let Self { connection, upstream } = self;
        if connection.sender.is_closed() {
            return;
        }
        let mut idle = upstream.idle();
        idle.push_back(Idle { connection, since: Instant::now() });
        while idle.len() > MAX_IDLE_UPSTREAM {
            idle.pop_front();
        }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// What [`Upstream::new`] needs.
pub(super) struct UpstreamConfig {
    pub(super) origin: Origin,
    pub(super) local: bool,
    pub(super) roots: Vec<CertificateDer<'static>>,
    pub(super) resolver: Arc<dyn Resolver>,
    pub(super) dialler: Arc<dyn Dialler>,
    pub(super) connect_timeout: Duration,
}

impl Upstream {
    pub(super) fn new(config: UpstreamConfig) -> Result<Arc<Self>, TlsError> {
        let tls = if config.origin.tls {
            let host = config.origin.authority.host();
            let text =
                host.literal().map_or_else(|| host.to_string(), |address| address.to_string());
            let name = ServerName::try_from(text.clone()).map_err(|_| TlsError::Name(text))?;
            Some((TlsConnector::from(Arc::new(tls_config(config.roots)?)), name))
        } else {
            None
        };
        Ok(Arc::new(Self {
            origin: config.origin,
            local: config.local,
            tls,
            resolver: config.resolver,
            dialler: config.dialler,
            connect_timeout: config.connect_timeout,
            idle: Mutex::default(),
        }))
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the connections that carry nothing.
    pub(super) fn close_idle(&self) {
        self.idle().clear();
    }

    /// Sends a request; answers with the head and what carries the body.
    pub(super) async fn send(
        self: &Arc<Self>,
        mut request: Request<Full<Bytes>>,
        head_timeout: Duration,
    ) -> Result<(Response<Incoming>, Lease), SendError> {
        loop {
            let (mut connection, fresh) = match self.take_idle().await {
                Some(connection) => (connection, false),
                None => match timeout(self.connect_timeout, self.connect()).await {
                    Ok(connection) => (connection.map_err(SendError::NotSent)?, true),
                    Err(_) => return Err(SendError::NotSent("no connection in time".to_owned())),
                },
            };
            match timeout(head_timeout, connection.sender.try_send_request(request)).await {
                Err(_) => return Err(SendError::Silent),
                Ok(Ok(response)) => {
                    return Ok((response, Lease { connection, upstream: Arc::clone(self) }));
                }
                Ok(Err(mut failed)) => {
                    let error = describe(failed.error());
                    match failed.take_message() {
                        // A kept connection was closed by the provider before anything was written.
                        Some(unsent) if !fresh => request = unsent,
                        Some(_) => return Err(SendError::NotSent(error)),
                        None => return Err(SendError::NoAnswer(error)),
                    }
                }
            }
        }
    }

    async fn take_idle(&self) -> Option<Connection> {
        loop {
            let mut idle = self.idle().pop_back()?;
            let young = idle.since.elapsed() < IDLE_UPSTREAM_AGE;
            // Ready once the end of the last answer was seen; a closed one says so here.
            let ready = timeout(READY_TIMEOUT, idle.connection.sender.ready());
            if young && matches!(ready.await, Ok(Ok(()))) {
                return Some(idle.connection);
            }
        }
    }

    async fn connect(&self) -> Result<Connection, String> {
        let permit = self.permit().await?;
        let mut failure = String::from("no address");
        for target in permit.targets() {
            match self.dialler.dial(target).await {
                Ok(stream) => match self.handshake(stream).await {
                    Ok(connection) => return Ok(connection),
                    Err(error) => failure = error,
                },
                Err(error) => failure = format!("connecting to {}: {error}", target.address()),
            }
        }
        Err(failure)
    }

    async fn permit(&self) -> Result<DialPermit, String> {
        let name = self.origin.name_permit();
        let literal = self.origin.authority.host().literal();
        let answers = match (literal, &name) {
            (Some(address), _) => vec![address],
            (None, Ok(name)) => self.resolver.resolve(name).await.map_err(|e| e.to_string())?,
            (None, Err(error)) => return Err(error.to_string()),
        };
        if !self.local {
            let name = name.map_err(|e| e.to_string())?;
            return name.vet(&answers).map_err(|e| e.to_string());
        }
        let address = *answers.first().ok_or("the name has no address")?;
        match self.origin.service_route(address).map_err(|e| e.to_string())? {
            Route::Service(permit) => Ok(permit),
            Route::Lookup(_) => Err("the local service is not configured".to_owned()),
        }
    }

    async fn handshake(&self, stream: BoxStream) -> Result<Connection, String> {
        let stream: BoxStream = match &self.tls {
            None => stream,
            Some((connector, name)) => {
                let tls = connector.connect(name.clone(), stream).await;
                Box::new(tls.map_err(|e| format!("TLS: {e}"))?)
            }
        };
        let (sender, connection) = http1::Builder::new()
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| describe(&e))?;
        let task = tokio::spawn(async move {
            // Its errors reach whoever waits for the answer.
            let _ = connection.await;
        });
        Ok(Connection { sender, task: task.abort_handle() })
    }
}

/// The causes of an error, outermost first.
pub(super) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}

fn tls_config(extra: Vec<CertificateDer<'static>>) -> Result<rustls::ClientConfig, TlsError> {
    let mut roots = rustls::RootCertStore::empty();
    for root in extra {
        roots.add(root).map_err(TlsError::Root)?;
    }
    // Honours SSL_CERT_FILE and SSL_CERT_DIR. Certificates that do not parse are left out, as every
    // other client on this machine leaves them out.
    let native = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(native.certs);
    if roots.is_empty() {
        let why: Vec<String> = native.errors.iter().map(ToString::to_string).collect();
        let why = if why.is_empty() { String::new() } else { format!(": {}", why.join("; ")) };
        return Err(TlsError::NoRoots(why));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
