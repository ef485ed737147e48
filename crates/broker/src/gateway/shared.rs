//! What all connections of one run's gateway share.
//!
//! It decides nothing about a request; it holds the run's rules, account and end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cofferdam_run::Fact;
use cofferdam_run::spec::Dialect;
use http::{HeaderName, HeaderValue};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::limits::{MAX_REFUSAL_FACTS, Timeouts};
use super::meter::{Meter, Shortage};
use super::policy::GatewayPolicy;
use super::prices::Prices;
use super::refusal::{Refusal, codes};
use super::request::Rules;
use super::upstream::Upstream;
use crate::log::BrokerLog;
use crate::secret::Secret;

pub(super) struct Shared {
    pub(super) dialect: Dialect,
    pub(super) model: String,
    pub(super) openai: bool,
    pub(super) policy: GatewayPolicy,
    pub(super) prices: Prices,
    pub(super) key: Secret,
    pub(super) credential: Option<(HeaderName, HeaderValue)>,
    pub(super) meter: Arc<Meter>,
    pub(super) upstream: Arc<Upstream>,
    pub(super) timeouts: Timeouts,
    pub(super) calls: Arc<Semaphore>,
    pub(super) large_bodies: Arc<Semaphore>,
    pub(super) connections: Arc<Semaphore>,
    /// Cancelled when the run ends.
    pub(super) ended: CancellationToken,
    log: Arc<dyn BrokerLog>,
    refusals: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("model", &self.model).finish_non_exhaustive()
    }
}

/// What [`Shared::new`] cannot make itself.
pub(super) struct Parts {
    pub(super) dialect: Dialect,
    pub(super) model: String,
    pub(super) openai: bool,
    pub(super) policy: GatewayPolicy,
    pub(super) prices: Prices,
    pub(super) key: Secret,
    pub(super) credential: Option<(HeaderName, HeaderValue)>,
    pub(super) meter: Arc<Meter>,
    pub(super) upstream: Arc<Upstream>,
    pub(super) timeouts: Timeouts,
    pub(super) log: Arc<dyn BrokerLog>,
}

impl Shared {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        use super::limits::{MAX_CALLS_IN_FLIGHT, MAX_CONNECTIONS, MAX_LARGE_BODIES};
        Arc::new(Self {
            dialect: parts.dialect,
            model: parts.model,
            openai: parts.openai,
            policy: parts.policy,
            prices: parts.prices,
            key: parts.key,
            credential: parts.credential,
            meter: parts.meter,
            upstream: parts.upstream,
            timeouts: parts.timeouts,
            calls: Arc::new(Semaphore::new(MAX_CALLS_IN_FLIGHT)),
            large_bodies: Arc::new(Semaphore::new(MAX_LARGE_BODIES)),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            ended: CancellationToken::new(),
            log: parts.log,
            refusals: AtomicU64::new(0),
        })
    }

    pub(super) fn rules(&self) -> Rules<'_> {
        Rules {
            dialect: self.dialect,
            model: &self.model,
            policy: &self.policy,
            openai: self.openai,
        }
    }

    /// The refusal once nothing more is carried.
    pub(super) fn over(&self) -> Option<Refusal> {
        if self.ended.is_cancelled() {
            return Some(ended());
        }
        self.meter.exhausted().map(|budget| shortage(Shortage::Exhausted(budget)))
    }

    /// Resolves when calls in flight must end, with the reason.
    pub(super) async fn cut(&self) -> Refusal {
        tokio::select! {
            () = self.ended.cancelled() => ended(),
            () = self.meter.spent().cancelled() => {
                shortage(Shortage::Exhausted(self.meter.exhausted().unwrap_or("tokens")))
            }
        }
    }

    /// Records a call. Refused ones are bounded, since a guest can make as many as it likes.
    pub(super) fn fact(&self, fact: Fact) {
        let refused = matches!(&fact, Fact::ModelCall { usage, .. } if usage.model_calls == 0);
        if refused && self.refusals.fetch_add(1, Ordering::Relaxed) >= MAX_REFUSAL_FACTS {
            return;
        }
        self.log.fact(fact);
    }

    /// Tells how many facts were not kept. Called once, at the end.
    pub(super) fn tell_truncated(&self) {
        let count = self.refusals.swap(0, Ordering::Relaxed).saturating_sub(MAX_REFUSAL_FACTS);
        if count > 0 {
            self.log.fact(Fact::Truncated { kind: "model_call".to_owned(), count });
        }
    }
}

fn ended() -> Refusal {
    Refusal::forbidden(codes::ENDED, "the run has ended; no more calls are carried")
}

/// The refusal for a shortage.
pub(super) fn shortage(shortage: Shortage) -> Refusal {
    match shortage {
        Shortage::Exhausted(budget) => {
            let (what, key) = match budget {
                "money" => ("money", "micro_usd"),
                "model_calls" => ("model call", "model_calls"),
                _ => ("token", "tokens"),
            };
            Refusal::forbidden(
                codes::BUDGET,
                format!("the run's {what} budget is used up (budgets.{key}); the run ends here"),
            )
        }
        Shortage::Held => Refusal::later(
            codes::RESERVED,
            "what is left of the run's budget is reserved by calls in flight; retry when one has ended",
        ),
    }
}
