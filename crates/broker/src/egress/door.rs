//! The egress door: one guest connection in, at most one vetted connection out at a time.
//!
//! Each request passes the same steps in the same order: parse, credential, upgrade and rules and
//! scheme, lookup and vetting, dial; a tunnel to port 443 then has its TLS hello looked at. The
//! door must never look up a name that no rule admits, dial an address that was not vetted, send
//! the run's token on, or tell the guest why an address is forbidden.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_policy::authority::Name;
use cofferdam_policy::{
    Authority, DialPermit, EgressPolicy, NamePermit, Refusal, RefusalCode, Route, Services,
};
use cofferdam_run::spec::Principal;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::account::{Books, Entry};
use super::connection::Connection;
use super::limits::{CROWDED_STREAMS, LOOKUP_ATTEMPTS, Limits, MAX_STREAMS};
use super::net::{BoxStream, Dialler, ResolveError, Resolver};
use super::request::{Form, Request};
use super::wall::{WallSeen, Watch};
use crate::log::BrokerLog;
use crate::token::Tokens;

/// Everything that a door is made of.
pub struct EgressConfig {
    /// What the run may reach.
    pub policy: EgressPolicy,
    /// Names that the host's configuration ties to one address.
    pub services: Services,
    /// Where the model gateway connects to. Their hosts are never admitted here, on any port.
    pub gatewayed: Vec<Authority>,
    /// The tokens, one of which each request must carry.
    pub tokens: Tokens,
    /// Bytes that may be sent to admitted hosts over the whole run. Past it: told through
    /// [`BrokerLog::exhausted`], then everything is cut.
    pub bytes_out: u64,
    /// Where decisions are told.
    pub log: Arc<dyn BrokerLog>,
    /// Looks names up.
    pub resolver: Arc<dyn Resolver>,
    /// Opens connections.
    pub dialler: Arc<dyn Dialler>,
    /// Times.
    pub limits: Limits,
}

/// The egress door of one run.
pub struct EgressDoor {
    pub(super) policy: EgressPolicy,
    services: Services,
    gatewayed: Vec<Authority>,
    gatewayed_addresses: Vec<SocketAddr>,
    pub(super) tokens: Tokens,
    pub(super) books: Arc<Books>,
    resolver: Arc<dyn Resolver>,
    dialler: Arc<dyn Dialler>,
    pub(super) limits: Limits,
    slots: Semaphore,
    watch: Watch,
    cut: CancellationToken,
}

impl fmt::Debug for EgressDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EgressDoor").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl fmt::Debug for EgressConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EgressConfig").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl EgressDoor {
    /// Opens the door of one run.
    #[must_use]
    pub fn new(config: EgressConfig) -> Arc<Self> {
        let cut = CancellationToken::new();
        let gatewayed_addresses = config
            .gatewayed
            .iter()
            .filter_map(|authority| {
                let literal = authority.host().literal();
                literal
                    .map(|address| SocketAddr::new(address, authority.port()))
                    .or_else(|| config.services.address_of(authority))
            })
            .collect();
        Arc::new(Self {
            policy: config.policy,
            services: config.services,
            gatewayed: config.gatewayed,
            gatewayed_addresses,
            tokens: config.tokens,
            books: Arc::new(Books::new(config.log, cut.clone(), config.bytes_out)),
            resolver: config.resolver,
            dialler: config.dialler,
            limits: config.limits,
            slots: Semaphore::new(MAX_STREAMS),
            watch: Watch::default(),
            cut,
        })
    }

    /// Serves one guest connection at the agent's door until it ends. Returns when the connection is
    /// closed, refused or cut; what happened is told through the log.
    pub async fn serve<S>(&self, io: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.serve_at(io, Principal::Agent).await;
    }

    /// The same at the door of `at`.
    pub async fn serve_at<S>(&self, io: S, at: Principal)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = Connection::new(self, io, at);
        let slot = self.slots.try_acquire();
        tokio::select! {
            biased;
            () = self.cut.cancelled() => {}
            () = connection.run(slot.is_ok()) => {}
        }
    }

    /// How long a refused connection is waited for: `usual`, or less where there are many.
    pub(super) fn patience_with_refused(&self, usual: Duration) -> Duration {
        if MAX_STREAMS - self.slots.available_permits() > CROWDED_STREAMS {
            usual.min(self.limits.refused_crowded)
        } else {
            usual
        }
    }

    /// Ends all connections at once and admits nothing more. Can be called again.
    pub fn cut(&self) {
        self.cut.cancel();
        self.books.tell_left_out();
    }

    /// Resolves once the door is shut, by [`EgressDoor::cut`] or by a used-up budget.
    pub async fn shut(&self) {
        self.cut.cancelled().await;
    }

    /// Watches for attempts to reach `target`, a name that no rule admits. Until
    /// [`EgressDoor::end_wall_test`] they are counted, and told as no facts of their own.
    pub fn begin_wall_test(&self, target: Name) {
        self.watch.begin(target);
    }

    /// What was seen of the watched target; from here on it is one like any other.
    pub fn end_wall_test(&self) -> WallSeen {
        self.watch.end()
    }

    /// Upgrade, rules and scheme: decided by text alone.
    fn decide(&self, request: &Request) -> Result<NamePermit, Refusal> {
        let authority = &request.authority;
        if request.upgrade {
            return Err(Refusal::new(RefusalCode::Upgrade, "a protocol upgrade"));
        }
        if self.gatewayed.iter().any(|gatewayed| gatewayed.host() == authority.host()) {
            return Err(Refusal::new(RefusalCode::Gatewayed, "a host of the model gateway"));
        }
        let permit = self.policy.decide(authority)?;
        if request.form != Form::Tunnel && authority.port() == 443 {
            return Err(Refusal::new(RefusalCode::PlainOnTls, "plain HTTP to port 443"));
        }
        Ok(permit)
    }

    /// Decides, looks up, vets and dials. On success the entry is marked as admitted.
    pub(super) async fn connect(
        &self,
        request: &Request,
        entry: &mut Entry,
    ) -> Result<BoxStream, Refusal> {
        let decision = self.decide(request);
        if self.watch.concerns(&request.authority) {
            let admitted = decision.is_ok();
            let refusal = self.watch.note(&request.form, decision);
            if !admitted {
                entry.keep_quiet();
            }
            return Err(refusal);
        }
        let permit = match self.services.route(decision?) {
            Route::Service(permit) => permit,
            Route::Lookup(permit) => self.look_up(permit).await?,
        };
        if permit.addresses().iter().any(|address| self.gatewayed_addresses.contains(address)) {
            return Err(Refusal::new(RefusalCode::Gatewayed, "the address of a model gateway"));
        }
        timeout(self.limits.dial_all, self.dial(&permit, entry)).await.unwrap_or_else(|_| {
            Err(Refusal::new(RefusalCode::DialFailed, "no address accepted in time"))
        })
    }

    async fn look_up(&self, permit: NamePermit) -> Result<DialPermit, Refusal> {
        if permit.authority().host().literal().is_some() {
            return permit.vet(&[]);
        }
        let mut failure = String::new();
        for attempt in 0..LOOKUP_ATTEMPTS {
            if let Some(pause) =
                attempt.checked_sub(1).and_then(|i| self.limits.lookup_pauses.get(i))
            {
                sleep(*pause).await;
            }
            match timeout(self.limits.lookup, self.resolver.resolve(&permit)).await {
                Ok(Ok(answers)) => return permit.vet(&answers),
                Ok(Err(ResolveError::NotFound)) => return permit.vet(&[]),
                Ok(Err(ResolveError::Temporary(why))) => failure = why,
                Err(_) => failure = "no answer in time".to_owned(),
            }
        }
        Err(Refusal::new(RefusalCode::LookupFailed, failure))
    }

    async fn dial(&self, permit: &DialPermit, entry: &mut Entry) -> Result<BoxStream, Refusal> {
        let mut failures = Vec::new();
        for target in permit.targets() {
            match timeout(self.limits.dial, self.dialler.dial(target)).await {
                Ok(Ok(stream)) => {
                    entry.admit(permit.rule().to_string(), target.address().to_string());
                    return Ok(stream);
                }
                Ok(Err(error)) => failures.push(format!("{}: {}", target.address(), error.kind())),
                Err(_) => failures.push(format!("{}: no answer in time", target.address())),
            }
        }
        Err(Refusal::new(RefusalCode::DialFailed, failures.join("; ")))
    }
}

impl Drop for EgressDoor {
    fn drop(&mut self) {
        self.books.tell_left_out();
    }
}
