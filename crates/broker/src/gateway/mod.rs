//! The model gateway: the guest's provider, as far as the guest can tell.
//!
//! It carries calls of one dialect to one model of one provider. It parses and checks each request,
//! reserves for it, makes a new request from what was checked, adds the host's key, and streams the
//! answer back while it counts. It is no proxy: it must never send the guest's bytes or headers on
//! as they are, follow a redirect, talk to another host, or let the key into an answer, a fact or a
//! log line.

mod body;
mod call;
mod exchange;
#[doc(hidden)]
pub mod fuzzing;
mod headers;
mod json;
pub mod limits;
mod meter;
mod origin;
mod policy;
mod prices;
mod refusal;
mod relay;
mod request;
mod route;
mod scrub;
mod shared;
mod sse;
mod upstream;
mod usage;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use cofferdam_run::Budgets;
use cofferdam_run::limits::Spend;
use cofferdam_run::spec::{Dialect, ModelSpec};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
pub use limits::Timeouts;
pub use origin::OriginError;
pub use policy::GatewayPolicy;
pub use prices::{Price, PriceAbove, Prices, PricesError};
pub use refusal::codes;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
pub use upstream::TlsError;

use self::meter::Meter;
use self::origin::Origin;
use self::shared::{Parts, Shared};
use self::upstream::{Upstream, UpstreamConfig};
use crate::egress::{Dialler, Resolver, SystemResolver, TcpDialler};
use crate::log::BrokerLog;
use crate::secret::Secret;

/// Everything that a gateway is made from.
pub struct GatewayConfig {
    /// Provider, dialect and model.
    pub model: ModelSpec,
    /// The provider's key; empty for a local service that wants none.
    pub key: Secret,
    /// The run's budgets.
    pub budgets: Budgets,
    /// What the operator opens beyond plain generation.
    pub policy: GatewayPolicy,
    /// The operator's configuration names this provider as a service of its own: plain HTTP and
    /// loopback or private addresses are then admitted, for this base URL alone.
    pub local: bool,
    /// Price table; `None` takes the built-in one.
    pub prices: Option<Prices>,
    /// Certificate authorities to trust besides those of the machine.
    pub roots: Vec<CertificateDer<'static>>,
    /// Looks the provider up.
    pub resolver: Arc<dyn Resolver>,
    /// Connects to it.
    pub dialler: Arc<dyn Dialler>,
    /// Waiting times.
    pub timeouts: Timeouts,
    /// Takes facts and the end of a budget.
    pub log: Arc<dyn BrokerLog>,
}

impl GatewayConfig {
    /// A configuration with everything else at its default: nothing opened, not local, built-in
    /// prices, the machine's trust, resolver and network.
    #[must_use]
    pub fn new(model: ModelSpec, key: Secret, budgets: Budgets, log: Arc<dyn BrokerLog>) -> Self {
        Self {
            model,
            key,
            budgets,
            policy: GatewayPolicy::default(),
            local: false,
            prices: None,
            roots: Vec::new(),
            resolver: Arc::new(SystemResolver),
            dialler: Arc::new(TcpDialler),
            timeouts: Timeouts::default(),
            log,
        }
    }
}

impl fmt::Debug for GatewayConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayConfig")
            .field("model", &self.model)
            .field("key", &self.key)
            .field("budgets", &self.budgets)
            .field("policy", &self.policy)
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

/// Why a gateway was not made.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The base URL cannot be used.
    #[error("the base URL {base_url:?} of provider {provider:?} cannot be used: {source}")]
    BaseUrl {
        /// Name of the provider in the configuration.
        provider: String,
        /// The URL.
        base_url: String,
        /// What is wrong with it.
        source: OriginError,
    },
    /// There is a money budget and no price to meter it with.
    #[error(
        "the price of the model {model:?} is not known, so a money budget cannot be kept; add it to the price table, \
         or bound the run by tokens"
    )]
    NoPrice {
        /// The model.
        model: String,
    },
    /// The key holds bytes that no header can carry.
    #[error(
        "the key of provider {provider:?} holds characters that no key has; was it pasted with a line break?"
    )]
    Key {
        /// Name of the provider in the configuration.
        provider: String,
    },
    /// TLS cannot be set up.
    #[error("provider {provider:?} cannot be reached safely: {source}")]
    Tls {
        /// Name of the provider in the configuration.
        provider: String,
        /// Why.
        source: TlsError,
    },
    /// The built-in price table is broken.
    #[error(transparent)]
    Prices(#[from] PricesError),
}

impl GatewayError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::BaseUrl { .. } => "MODEL-020",
            Self::NoPrice { .. } => "MODEL-021",
            Self::Key { .. } => "MODEL-022",
            Self::Tls { .. } => "MODEL-023",
            Self::Prices(_) => "MODEL-024",
        }
    }
}

/// One run's gateway. Cheap to clone; all clones share one account.
#[derive(Debug, Clone)]
pub struct ModelGateway {
    shared: Arc<Shared>,
}

impl ModelGateway {
    /// Checks the configuration and makes a gateway. Sends nothing.
    ///
    /// # Errors
    /// [`GatewayError`], each with a code and a way out.
    pub fn new(config: GatewayConfig) -> Result<Self, GatewayError> {
        let ModelSpec { provider, dialect, model, base_url } = config.model;
        let origin = Origin::parse(&base_url, config.local).map_err(|source| {
            GatewayError::BaseUrl { provider: provider.clone(), base_url: base_url.clone(), source }
        })?;
        let prices = match config.prices {
            Some(prices) => prices,
            None => Prices::built_in()?,
        };
        let mut models = std::iter::once(&model).chain(&config.policy.models);
        if config.budgets.micro_usd.is_some()
            && let Some(unpriced) = models.find(|m| prices.find(m).is_none())
        {
            return Err(GatewayError::NoPrice { model: unpriced.clone() });
        }
        let priced = prices.find(&model).is_some();
        let credential = headers::credential(dialect, &config.key)
            .map_err(|headers::UnusableKey| GatewayError::Key { provider: provider.clone() })?;
        let openai = matches!(dialect, Dialect::OpenaiChat)
            && origin.authority.host().name().is_some_and(|n| n.as_str() == "api.openai.com");
        let upstream = Upstream::new(UpstreamConfig {
            origin,
            local: config.local,
            roots: config.roots,
            resolver: config.resolver,
            dialler: config.dialler,
            connect_timeout: config.timeouts.connect,
        })
        .map_err(|source| GatewayError::Tls { provider, source })?;
        let meter = Meter::new(&config.budgets, priced, Arc::clone(&config.log));
        let shared = Shared::new(Parts {
            dialect,
            model,
            openai,
            policy: config.policy,
            prices,
            key: config.key,
            credential,
            meter,
            upstream,
            timeouts: config.timeouts,
            log: config.log,
        });
        Ok(Self { shared })
    }

    /// Serves one connection of the guest until it ends, the guest leaves, or [`Self::cut`].
    pub async fn serve(&self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Ok(_permit) = Arc::clone(&self.shared.connections).try_acquire_owned() else {
            tracing::debug!("model connection closed: too many at once");
            return;
        };
        let shared = Arc::clone(&self.shared);
        let service = service_fn(move |request| {
            let shared = Arc::clone(&shared);
            async move { Ok::<_, Infallible>(exchange::exchange(shared, request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits::HEAD_READ_TIMEOUT)
            .max_headers(limits::MAX_HEADERS)
            .max_header_size(limits::MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(io), service);
        tokio::select! {
            biased;
            () = self.shared.ended.cancelled() => {}
            result = connection => if let Err(error) = result {
                tracing::debug!(error = %upstream::describe(&error), "model connection ended");
            },
        }
    }

    /// What was settled so far, over all connections.
    #[must_use]
    pub fn spend(&self) -> Spend {
        self.shared.meter.spend()
    }

    /// Waits until every connection has ended, so that [`Self::spend`] is the last word and each call
    /// has its fact. Meant for after [`Self::cut`], or after the link has closed; connections that
    /// come while it waits are closed unread.
    pub async fn settled(&self) {
        let all = u32::try_from(limits::MAX_CONNECTIONS).unwrap_or(u32::MAX);
        // The semaphore is never closed, so this cannot fail.
        let _all = self.shared.connections.acquire_many(all).await;
    }

    /// Ends all calls at once and admits nothing more. Safe to call again.
    pub fn cut(&self) {
        self.shared.ended.cancel();
        self.shared.upstream.close_idle();
        self.shared.tell_truncated();
    }
}
