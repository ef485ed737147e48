//! What a session is made of: the doors on the host and what the guest is told.
//!
//! Nothing in what the guest is told is a secret of the host's.

use std::sync::Arc;

use cofferdam_broker::egress::{EgressConfig, EgressDoor, Limits, SystemResolver, TcpDialler};
use cofferdam_broker::gateway::ModelGateway;
use cofferdam_broker::{BrokerLog, RunToken};
use cofferdam_policy::Authority;
use cofferdam_run::spec::AgentSpec;
use cofferdam_wire::{AgentStart, GitIdentity, StartSpec, WorkspaceSpec};
use cofferdam_workspace::Snapshot;

use super::Ctx;
use crate::arm::{Armed, gateway_config};
use crate::doors::Doors;
use crate::environment::environment;
use crate::error::HostError;

/// Builds the doors of the run.
pub(super) fn doors(ctx: &Ctx<'_>, armed: &Armed, token: &RunToken) -> Result<Doors, HostError> {
    let log: Arc<dyn BrokerLog> = Arc::new(ctx.facts.clone());
    let section = &ctx.host.config.gateway;
    let model = match gateway_config(&armed.request, section, Arc::clone(&log))? {
        Some(config) => Some(Arc::new(ModelGateway::new(config)?)),
        None => None,
    };
    let egress = EgressDoor::new(EgressConfig {
        policy: armed.policy.clone(),
        services: armed.services.clone(),
        token: token.clone(),
        gatewayed: armed
            .request
            .spec
            .model
            .iter()
            .filter_map(|m| authority_of(&m.base_url))
            .collect(),
        bytes_out: ctx.spec.budgets.egress_bytes_out,
        resolver: Arc::new(SystemResolver),
        dialler: Arc::new(TcpDialler),
        log,
        limits: Limits::default(),
    });
    Ok(Doors { egress, model })
}

fn authority_of(base_url: &str) -> Option<Authority> {
    let (scheme, rest) = base_url.split_once("://")?;
    let text = rest.split('/').next()?;
    let port = if scheme == "https" { 443 } else { 80 };
    Authority::parse(text).or_else(|_| Authority::parse(&format!("{text}:{port}"))).ok()
}

pub(super) fn start_spec(
    ctx: &Ctx<'_>,
    armed: &Armed,
    snapshot: &Snapshot,
    token: &RunToken,
) -> StartSpec {
    let spec = &ctx.spec;
    let (name, email) = snapshot.identity.clone();
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
        env: environment(&ctx.id, token, spec.model.as_ref(), &armed.request.env),
        output_bytes: spec.budgets.output_bytes,
    }
}
