//! Listening: a local socket for this person's own processes, and a loopback port for browsers.
//!
//! It never listens on an address that another machine can reach.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse as _;
use cofferdam_daemon::Host;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::ServeError;
use crate::guard::{Door, Guard, Names, guard};
use crate::lock::ServiceLock;
use crate::place::Place;
use crate::problem::Problem;
use crate::routes;
use crate::secrets::Secrets;
use crate::service::{DEFAULT_LIVE, Environment, Service};

/// Port of the browser's door unless another is wished for.
pub const DEFAULT_PORT: u16 = 7351;
/// Connections at once on each door. Further ones wait to be accepted.
pub(crate) const MAX_CONNECTIONS: usize = 512;
/// From the first byte of a connection's request to the end of its head. Past it the connection ends.
pub(crate) const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of a request's head. Past it the request is refused with 431.
pub(crate) const MAX_HEAD_BYTES: usize = 64 << 10;
/// How long a stopping service lets answers finish.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// How to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Address of the browser's door; `None` for the socket alone.
    pub listen: Option<SocketAddr>,
    /// Further names under which the browser's door is reached, as `host` or `host:port`.
    pub names: Vec<String>,
    /// Runs at once; further ones wait.
    pub live: u32,
}

impl ServeOptions {
    /// Address of the browser's door unless another is wished for.
    #[must_use]
    pub fn default_address() -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT)
    }
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self { listen: Some(Self::default_address()), names: Vec::new(), live: DEFAULT_LIVE }
    }
}

/// Where a service can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The browser's door.
    pub address: Option<SocketAddr>,
    /// The page's address with a code for one session, good once and for ten minutes.
    pub url: Option<String>,
}

/// A service that listens and does not answer yet.
pub struct Server {
    service: Arc<Service>,
    live: u32,
    socket: UnixListener,
    tcp: Option<(TcpListener, Names)>,
    _lock: ServiceLock,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("tcp", &self.tcp.is_some()).finish_non_exhaustive()
    }
}

fn bind_socket(place: &Place) -> Result<UnixListener, ServeError> {
    let path = place.socket();
    let listen = |source| ServeError::Listen { address: path.display().to_string(), source };
    // The lock is ours: whoever bound this before is gone.
    match std::fs::remove_file(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(listen(error)),
    }
    let socket = UnixListener::bind(&path).map_err(listen)?;
    // Its folder is private already; this says the same of the socket itself.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(listen)?;
    Ok(socket)
}

impl Server {
    /// Takes the data directory's lock and listens.
    ///
    /// # Errors
    /// Another process serves it, or an address cannot be had.
    pub async fn bind(
        host: Arc<Host>,
        environment: Environment,
        options: ServeOptions,
    ) -> Result<(Self, Bound), ServeError> {
        let place = Place::of(host.paths().data());
        let lock = ServiceLock::take(&place)?;
        let token = place.token();
        let secrets = Secrets::open(&token).map_err(|e| ServeError::file("use", &token, e))?;
        let service = Arc::new(Service::new(host, secrets, environment));
        let tcp = match options.listen {
            None => None,
            Some(address) if !address.ip().is_loopback() => {
                return Err(ServeError::NotLoopback(address));
            }
            Some(address) => {
                let listen = |source| ServeError::Listen { address: address.to_string(), source };
                let listener = TcpListener::bind(address).await.map_err(listen)?;
                let local = listener.local_addr().map_err(listen)?;
                // Set once, here, before anything is served.
                let _ = service.address.set(local);
                Some((listener, Names::of(local.port(), &options.names)))
            }
        };
        let socket = bind_socket(&place)?;
        let address = service.address.get().copied();
        let code = service.secrets.new_code(service.now());
        let url = match (address, code) {
            (Some(address), Ok(code)) => Some(format!("http://{address}/#code={}", code.expose())),
            _ => None,
        };
        let live = options.live;
        Ok((Self { service, live, socket, tcp, _lock: lock }, Bound { address, url }))
    }

    /// Serves until `stop`, then stops the runs, settles them and ends.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { service, live, socket, tcp, _lock: lock } = self;
        let ending = CancellationToken::new();
        let tasks = TaskTracker::new();
        let local = router(&service, Door::Socket, Names::default());
        tasks.spawn(accept_socket(socket, local, ending.clone()));
        if let Some((listener, names)) = tcp {
            let pages = router(&service, Door::Tcp, names);
            tasks.spawn(accept_tcp(listener, pages, ending.clone()));
        }
        service.begin(live);
        tokio::select! {
            () = stop => {}
            () = service.asked_to_stop.cancelled() => {}
        }
        // Answers go on while the runs are wound up: `cancel` and `show` work to the end.
        service.stop().await;
        ending.cancel();
        tasks.close();
        let _ = tokio::time::timeout(DRAIN_LIMIT, tasks.wait()).await;
        drop(lock);
    }
}

/// The routes behind the guard of a door.
fn router(service: &Arc<Service>, door: Door, names: Names) -> Router {
    let mut router = Router::new();
    for endpoint in routes::all() {
        router = router.route(endpoint.path, endpoint.handler);
    }
    let guarded = Guard { service: Arc::clone(service), door, names };
    router
        .fallback(async |request: Request| {
            Problem::no_such(format!("route {}", request.uri().path())).into_response()
        })
        .method_not_allowed_fallback(async || {
            Problem::new(http::StatusCode::METHOD_NOT_ALLOWED, "API-013", "not with this method")
                .into_response()
        })
        .layer(axum::middleware::from_fn_with_state(guarded, guard))
        .with_state(Arc::clone(service))
}

async fn accept_tcp(listener: TcpListener, router: Router, ending: CancellationToken) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ending.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let (router, ending) = (router.clone(), ending.clone());
                tokio::spawn(async move {
                    connection(stream, router, ending).await;
                    drop(place);
                });
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn accept_socket(listener: UnixListener, router: Router, ending: CancellationToken) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let me = rustix::process::getuid().as_raw();
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ending.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                // The kernel names the peer: this person's processes, or root's, which can do anyway.
                let known = stream.peer_cred().is_ok_and(|p| p.uid() == me || p.uid() == 0);
                if !known {
                    tracing::warn!("a connection of another user was refused");
                    continue;
                }
                let (router, ending) = (router.clone(), ending.clone());
                tokio::spawn(async move {
                    connection(stream, router, ending).await;
                    drop(place);
                });
            }
            Err(error) => pause(&error).await,
        }
    }
}

/// Out of descriptors, most likely: one moment later there may be one.
async fn pause(error: &std::io::Error) {
    tracing::warn!(%error, "a connection could not be accepted");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    ending: CancellationToken,
) {
    let service = TowerToHyperService::new(router);
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_buf_size(MAX_HEAD_BYTES);
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    tokio::select! {
        _ended = serving.as_mut() => {}
        () = ending.cancelled() => {
            serving.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(DRAIN_LIMIT, serving).await;
        }
    }
}
