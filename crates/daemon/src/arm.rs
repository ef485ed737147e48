//! Arming: everything that can be refused is refused here, before any engine is touched.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_broker::Secret;
use cofferdam_broker::gateway::{GatewayConfig, ModelGateway};
use cofferdam_ledger::NewRun;
use cofferdam_policy::{EgressPolicy, Services};
use cofferdam_run::spec::AgentSpec;
use cofferdam_run::{RunId, RunSpec};
use cofferdam_sandbox::Engine;
use cofferdam_workspace::Checkout;

use crate::config::GatewaySection;
use crate::error::HostError;
use crate::host::Host;

/// What a person asks for. The specification holds no secret; the key travels beside it.
#[derive(Debug)]
pub struct RunRequest {
    /// Everything that is recorded. `egress_allow`, `egress_deny` and `checkout` are put into canonical
    /// form while arming.
    pub spec: RunSpec,
    /// The model's key, when the run has a model and the provider needs one.
    pub key: Option<Secret>,
    /// The provider is a service of the operator's own.
    pub local_provider: bool,
    /// Values of `spec.env_names`.
    pub env: BTreeMap<String, String>,
}

/// A run that is durable and waits to be supervised. Consumed by supervising it.
pub struct Armed {
    pub(crate) id: RunId,
    pub(crate) request: RunRequest,
    pub(crate) checkout: Checkout,
    pub(crate) policy: EgressPolicy,
    pub(crate) services: Services,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) guest_binary: PathBuf,
}

impl std::fmt::Debug for Armed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Armed").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Armed {
    /// The run.
    #[must_use]
    pub fn id(&self) -> &RunId {
        &self.id
    }

    /// One line on what will be reachable.
    #[must_use]
    pub fn reach(&self) -> String {
        let spec = &self.request.spec;
        let mut parts = Vec::new();
        if let Some(model) = &spec.model {
            parts.push(format!("model {}/{}", model.provider, model.model));
        }
        parts.extend(spec.egress_allow.iter().cloned());
        if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
    }
}

pub(crate) fn gateway_config(
    request: &RunRequest,
    section: &GatewaySection,
    log: Arc<dyn cofferdam_broker::BrokerLog>,
) -> Result<Option<GatewayConfig>, HostError> {
    let Some(model) = request.spec.model.clone() else { return Ok(None) };
    let key = request.key.clone().unwrap_or_else(|| Secret::new(String::new()));
    let mut config = GatewayConfig::new(model, key, request.spec.budgets.clone(), log);
    config.local = request.local_provider;
    config.policy = section.policy();
    config.prices = section.price_table()?;
    Ok(Some(config))
}

impl Host {
    /// Checks everything and stores the run.
    ///
    /// # Errors
    /// The first thing that stands in the way, with its code and the way out.
    pub async fn arm(&self, mut request: RunRequest) -> Result<Armed, HostError> {
        let checkout = Checkout::open(std::path::Path::new(&request.spec.checkout)).await?;
        request.spec.checkout = checkout.top().display().to_string();
        self.outside_of(&checkout)?;
        if matches!(request.spec.agent, AgentSpec::Builtin { .. }) {
            if request.spec.task.trim().is_empty() {
                return Err(HostError::NoTask);
            }
            if request.spec.model.is_none() {
                return Err(crate::config::ConfigError::Value {
                    key: "model".to_owned(),
                    message: "the built-in agent needs a model".to_owned(),
                }
                .into());
            }
        }
        for layer in &request.spec.accept_degraded {
            crate::config::parse_layer(layer)?;
        }
        let policy = EgressPolicy::load(&request.spec.egress_allow, &request.spec.egress_deny)?;
        let services = Services::load(self.config.services.clone())?;
        let guest_binary = self.parts(request.spec.engine)?;
        // Built once here only to refuse what cannot work: an unknown price, a bad address.
        let log = Arc::new(cofferdam_broker::log::MemoryLog::default());
        if let Some(config) = gateway_config(&request, &self.config.gateway, log)? {
            ModelGateway::new(config)?;
            request.spec.gateway_opened = self.config.gateway.opened();
        }
        let engine = self.engines.get(request.spec.engine).await?;
        let id = RunId::from_entropy(entropy()?);
        self.ledger
            .create_run(NewRun {
                id: id.clone(),
                spec: request.spec.clone(),
                created_at: self.clock.now(),
                title: title(&request.spec),
            })
            .await?;
        Ok(Armed { id, request, checkout, policy, services, engine, guest_binary })
    }
}

impl Host {
    /// The data directory must not travel with the checkout: it holds the ledger and the canary.
    fn outside_of(&self, checkout: &Checkout) -> Result<(), HostError> {
        let (data, top) = (self.paths.data().canonicalize(), checkout.top().canonicalize());
        let (Ok(data), Ok(top)) = (data, top) else { return Ok(()) };
        if data.starts_with(&top) && !data.starts_with(checkout.common_dir()) {
            return Err(HostError::DataInCheckout(data.display().to_string()));
        }
        Ok(())
    }
}

/// What lists show of a run.
fn title(spec: &RunSpec) -> String {
    let text = match &spec.agent {
        AgentSpec::Command { argv } if spec.task.is_empty() => argv.join(" "),
        AgentSpec::Command { .. } | AgentSpec::Builtin { .. } => spec.task.clone(),
    };
    crate::text::line(text.lines().next().unwrap_or(""), 120)
}

/// Random bytes from the system.
pub(crate) fn entropy<const N: usize>() -> Result<[u8; N], HostError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| HostError::Io {
        attempt: "read",
        place: "the system's random source".to_owned(),
        source: std::io::Error::other(e.to_string()),
    })?;
    Ok(bytes)
}
