//! What a session is made of: the doors on the host and what the guest is told.
//!
//! Nothing in what the guest is told is a secret of the host's.

use std::sync::Arc;

use cofferdam_broker::egress::{EgressConfig, EgressDoor, Limits, SystemResolver, TcpDialler};
use cofferdam_broker::gateway::ModelGateway;
use cofferdam_broker::{BrokerLog, RunToken, ShellWay, Tokens};
use cofferdam_run::RunSpec;
use cofferdam_run::spec::{AgentSpec, ShellNetwork, ShellSeparation};
use cofferdam_wire::{AgentStart, GitIdentity, ShellStart, StartSpec, WorkspaceSpec};
use cofferdam_workspace::Snapshot;

use super::Ctx;
use crate::arm::{Armed, entropy, gateway_config};
use crate::doors::{Doors, gatewayed};
use crate::environment::environment;
use crate::error::HostError;

/// Mints the tokens of a run: one of the agent's, and one of the commands that the built-in agent
/// starts. A command as the agent is one principal with everything that it starts.
pub(super) fn tokens(spec: &RunSpec) -> Result<Tokens, HostError> {
    let agent = RunToken::from_entropy(entropy()?);
    if matches!(spec.agent, AgentSpec::Command { .. }) {
        return Ok(Tokens::one(agent));
    }
    let way = match (spec.shell.network, spec.shell.separation) {
        (ShellNetwork::Off, _) => ShellWay::Closed,
        (ShellNetwork::Rules, ShellSeparation::Enforced) => ShellWay::Own,
        (ShellNetwork::Rules, ShellSeparation::Advisory) => ShellWay::Shared,
    };
    Ok(Tokens::two(agent, RunToken::from_entropy(entropy()?), way))
}

/// Builds the doors of the run.
pub(super) fn doors(ctx: &Ctx<'_>, armed: &Armed, tokens: &Tokens) -> Result<Doors, HostError> {
    let log: Arc<dyn BrokerLog> = Arc::new(ctx.facts.clone());
    let section = &ctx.host.config.gateway;
    let model = match gateway_config(&armed.request, section, Arc::clone(&log))? {
        Some(config) => Some(Arc::new(ModelGateway::new(config)?)),
        None => None,
    };
    let egress = EgressDoor::new(EgressConfig {
        policy: armed.policy.clone(),
        services: armed.services.clone(),
        tokens: tokens.clone(),
        gatewayed: gatewayed(&armed.request.spec),
        bytes_out: ctx.spec.budgets.egress_bytes_out,
        resolver: Arc::new(SystemResolver),
        dialler: Arc::new(TcpDialler),
        log,
        limits: Limits::default(),
    });
    Ok(Doors { egress, model })
}

pub(super) fn start_spec(
    ctx: &Ctx<'_>,
    armed: &Armed,
    snapshot: &Snapshot,
    tokens: &Tokens,
) -> StartSpec {
    let spec = &ctx.spec;
    let (name, email) = snapshot.identity.clone();
    let person = &armed.request.env;
    StartSpec {
        run: ctx.id.to_string(),
        workspace: WorkspaceSpec {
            base: snapshot.base.clone(),
            bundle_ref: snapshot.bundle_ref.clone(),
            branch: snapshot.branch.clone().unwrap_or_else(|| "work".to_owned()),
            object_format: snapshot.object_format.clone(),
            identity: GitIdentity { name, email },
        },
        agent: match (&spec.agent, &spec.model) {
            (AgentSpec::Builtin { max_steps }, Some(model)) => AgentStart::Builtin {
                task: spec.task.clone(),
                dialect: model.dialect,
                model: model.model.clone(),
                max_steps: *max_steps,
            },
            (AgentSpec::Command { argv }, _) => AgentStart::Command { argv: argv.clone() },
            // Arming refuses a built-in agent without a model; the guest refuses an empty command.
            (AgentSpec::Builtin { .. }, None) => AgentStart::Command { argv: Vec::new() },
        },
        env: environment(&ctx.id, Some(tokens.agent()), spec.model.as_ref(), person),
        output_bytes: spec.budgets.output_bytes,
        shell: match &spec.agent {
            AgentSpec::Builtin { .. } => Some(ShellStart {
                // The model gateway is the agent's alone.
                env: environment(&ctx.id, tokens.shell(), None, person),
                separate: spec.shell.separation == ShellSeparation::Enforced,
                proxy: spec.shell.network == ShellNetwork::Rules,
            }),
            AgentSpec::Command { .. } => None,
        },
        wall_test: None,
    }
}
