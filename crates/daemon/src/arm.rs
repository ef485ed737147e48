//! Arming: everything that can be refused is refused here, before any engine is touched.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_broker::Secret;
use cofferdam_broker::gateway::{GatewayConfig, ModelGateway};
use cofferdam_ledger::NewRun;
use cofferdam_policy::authority::Name;
use cofferdam_policy::{EgressPolicy, Services};
use cofferdam_run::spec::{AgentSpec, ShellSeparation};
use cofferdam_run::{Lease, RunId, RunSpec};
use cofferdam_sandbox::Engine;
use cofferdam_workspace::Checkout;

use crate::config::GatewaySection;
use crate::error::HostError;
use crate::host::Host;
use crate::owner;
use crate::paths::create_private_dir;

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
    /// A run in which agent and shell are not kept apart is refused.
    pub require_shell_separation: bool,
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
    /// What the wall test asks for: nothing admits it.
    pub(crate) wall_target: Name,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) guest_binary: PathBuf,
    /// The right to act for it, when it was taken from the queue.
    pub(crate) lease: Option<Lease>,
}

/// A request that makes sense on this machine. Nothing is stored yet.
pub struct Checked {
    request: RunRequest,
    checkout: Checkout,
    policy: EgressPolicy,
    services: Services,
    wall_target: Name,
    engine: Arc<dyn Engine>,
    guest_binary: PathBuf,
}

impl std::fmt::Debug for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checked").field("spec", &self.request.spec).finish_non_exhaustive()
    }
}

impl Checked {
    /// What will be recorded, in canonical form.
    #[must_use]
    pub fn spec(&self) -> &RunSpec {
        &self.request.spec
    }

    /// One line for lists.
    #[must_use]
    pub fn title(&self) -> String {
        title(&self.request.spec)
    }

    fn armed(self, id: RunId, lease: Option<Lease>) -> Armed {
        let Self { request, checkout, policy, services, wall_target, engine, guest_binary } = self;
        Armed { id, request, checkout, policy, services, wall_target, engine, guest_binary, lease }
    }
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
        reach(&self.request.spec)
    }
}

/// One line on what a run will be able to reach.
#[must_use]
pub fn reach(spec: &RunSpec) -> String {
    let mut parts = Vec::new();
    if let Some(model) = &spec.model {
        parts.push(format!("model {}/{}", model.provider, model.model));
    }
    parts.extend(spec.egress_allow.iter().cloned());
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
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
    /// Checks everything that can be checked beforehand. Stores nothing.
    ///
    /// # Errors
    /// The first thing that stands in the way, with its code and the way out.
    pub async fn check(&self, mut request: RunRequest) -> Result<Checked, HostError> {
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
        request.spec.services = services.admitted_by(&policy);
        request.spec.egress_test = true;
        let wall_target = crate::wall::target(&policy)?;
        let guest_binary = self.parts(request.spec.engine)?;
        // Built once here only to refuse what cannot work: an unknown price, a bad address.
        let log = Arc::new(cofferdam_broker::log::MemoryLog::default());
        if let Some(config) = gateway_config(&request, &self.config.gateway, log)? {
            ModelGateway::new(config)?;
            request.spec.gateway_opened = self.config.gateway.opened();
        }
        let engine = self.engines.get(request.spec.engine).await?;
        request.spec.shell.separation = separation(&request, engine.as_ref())?;
        Ok(Checked { request, checkout, policy, services, wall_target, engine, guest_binary })
    }

    /// Checks everything and stores the run.
    ///
    /// # Errors
    /// The first thing that stands in the way, with its code and the way out.
    pub async fn arm(&self, request: RunRequest) -> Result<Armed, HostError> {
        let checked = self.check(request).await?;
        let id = RunId::from_entropy(entropy()?);
        self.mark(&id)?;
        self.ledger
            .create_run(NewRun {
                id: id.clone(),
                spec: checked.request.spec.clone(),
                created_at: self.clock.now(),
                title: checked.title(),
            })
            .await?;
        Ok(checked.armed(id, None))
    }

    /// Makes a run that was taken from the queue ready to be supervised. Its specification was decided
    /// when it was queued and stays; only the machine is looked at anew.
    ///
    /// # Errors
    /// What stands in the way now: the run has to be given up then, see [`Host::give_up`].
    pub async fn arm_claimed(
        &self,
        id: &RunId,
        lease: Lease,
        request: RunRequest,
    ) -> Result<Armed, HostError> {
        let spec = request.spec.clone();
        let mut checked = self.check(request).await?;
        // The record says what was stored, to the letter.
        checked.request.spec = spec;
        self.mark(id)?;
        Ok(checked.armed(id.clone(), Some(lease)))
    }

    /// Notes who holds what is not in the ledger (the key, values of variables), so that a sweep tells
    /// a run that is just beginning from one that was left behind.
    fn mark(&self, id: &RunId) -> Result<(), HostError> {
        let run_paths = self.paths.run(id);
        create_private_dir(run_paths.dir())
            .and_then(|()| std::fs::write(run_paths.armed_by(), owner::me()))
            .map_err(|e| HostError::io("create", run_paths.dir(), e))
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

/// Whether agent and shell will be kept apart.
fn separation(request: &RunRequest, engine: &dyn Engine) -> Result<ShellSeparation, HostError> {
    let why = match &request.spec.agent {
        AgentSpec::Builtin { .. } if engine.separates_shell() => {
            return Ok(ShellSeparation::Enforced);
        }
        AgentSpec::Builtin { .. } => format!("the {} engine gives both one network", engine.kind()),
        AgentSpec::Command { .. } => "a command starts its shells itself".to_owned(),
    };
    if request.require_shell_separation {
        return Err(HostError::ShellShared { why });
    }
    Ok(ShellSeparation::Advisory)
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
