//! What a person wishes for, in the form in which they say it, and the request that comes of it.
//!
//! The command line, the API and a service all go through here: a default or a refusal cannot differ
//! between them. It reads no environment: the values of variables are handed in.

use std::collections::BTreeMap;

use cofferdam_broker::Secret;
use cofferdam_run::EngineKind;
use cofferdam_run::spec::{AgentSpec, Mode, RunSpec, ShellNetwork, ShellSeparation};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::arm::RunRequest;
use crate::config::{self, Config, ResolvedModel};
use crate::error::HostError;

/// Turns of the built-in agent when nothing else is said.
pub const DEFAULT_STEPS: u32 = 200;

/// A wish for a run. What is left out comes from the configuration; sizes, durations and money are
/// text with a unit, as in the configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunWish {
    /// Absolute path of the checkout.
    pub checkout: String,
    /// The task for the built-in agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Any command instead of the built-in agent, as its argument vector.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineKind>,
    /// `PROVIDER/MODEL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Rules to admit, beside those of the configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Rules to refuse; they beat what is admitted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// Names of variables whose values are passed into the sandbox.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Wall clock, such as `90m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_clock: Option<String>,
    /// Longest silence of a working agent, such as `30m`, or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence: Option<String>,
    /// Model tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Money in US dollars, such as `2.50`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub money: Option<String>,
    /// Turns of the built-in agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// Memory, such as `4GiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Processor time of all processes together, such as `30m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_time: Option<String>,
    /// Bytes that the work may take on the disk, such as `20GiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_size: Option<String>,
    /// Files and directories of the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_files: Option<u64>,
    /// What the commands of the built-in agent may reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell_network: Option<ShellNetwork>,
    /// A run in which agent and shell cannot be kept apart is refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub require_shell_separation: bool,
    /// Posture layers that may be missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accept_degraded: Vec<String>,
}

/// Values of variables by name.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

impl RunWish {
    /// The configuration with what is wished for instead.
    ///
    /// # Errors
    /// An unknown layer.
    pub fn over(&self, mut config: Config) -> Result<Config, HostError> {
        let run = &mut config.run;
        macro_rules! take {
            ($($field:ident),*) => { $( if self.$field.is_some() { run.$field.clone_from(&self.$field); } )* };
        }
        take!(engine, model, wall_clock, silence, tokens, money, max_steps, memory, pids, cpus);
        take!(cpu_time, work_size, work_files, shell_network);
        if self.require_shell_separation {
            run.shell_separation = config::SeparationWish::Required;
        }
        run.accept_degraded.extend(self.accept_degraded.iter().cloned());
        config.egress.allow.extend(self.allow.iter().cloned());
        config.egress.deny.extend(self.deny.iter().cloned());
        for name in &config.run.accept_degraded {
            config::parse_layer(name)?;
        }
        Ok(config)
    }

    /// The request: everything decided, nothing checked yet against the machine.
    ///
    /// # Errors
    /// What makes no sense, or a value that is missing, with the way out.
    pub fn request(&self, config: Config, env: Lookup<'_>) -> Result<RunRequest, HostError> {
        let config = self.over(config)?;
        let agent = self.agent(&config)?;
        // What is wrong with a value of its own is told before what is missing.
        let resources = config.resources()?;
        let budgets = config.budgets()?;
        let model = model(&config, &agent, env)?;
        let key = model.as_ref().map(|m| key(m, env)).transpose()?.flatten();
        let values = values(&self.env, env)?;
        let spec = RunSpec {
            task: self.task.clone().unwrap_or_default(),
            mode: Mode::Unattended,
            agent,
            engine: config.run.engine.unwrap_or(EngineKind::Native),
            resources,
            budgets,
            egress_allow: config.egress.allow.clone(),
            egress_deny: config.egress.deny.clone(),
            checkout: self.checkout.clone(),
            accept_degraded: config.run.accept_degraded.clone(),
            credentials: model.iter().filter_map(|m| m.provider.key_env.clone()).collect(),
            env_names: self.env.clone(),
            // What follows is the host's to say: arming fills it in.
            gateway_opened: Vec::new(),
            shell: config.shell(),
            services: Vec::new(),
            egress_test: false,
            model: model.as_ref().map(|m| m.spec.clone()),
        };
        let local_provider = model.as_ref().is_some_and(|m| m.provider.local);
        let require_shell_separation =
            config.run.shell_separation == config::SeparationWish::Required;
        Ok(RunRequest { spec, key, local_provider, require_shell_separation, env: values })
    }

    fn agent(&self, config: &Config) -> Result<AgentSpec, HostError> {
        if !self.command.is_empty() {
            return Ok(AgentSpec::Command { argv: self.command.clone() });
        }
        if self.task.as_deref().unwrap_or_default().trim().is_empty() {
            return Err(HostError::NoTask);
        }
        Ok(AgentSpec::Builtin { max_steps: config.run.max_steps.unwrap_or(DEFAULT_STEPS) })
    }
}

/// The request of a specification that was decided and stored before: nothing is decided anew, only
/// the values that are never stored are looked up again.
///
/// # Errors
/// A value that is missing, with the way out; or the provider is not configured any more.
pub fn request_of(
    spec: RunSpec,
    config: &Config,
    env: Lookup<'_>,
) -> Result<RunRequest, HostError> {
    let mut key = None;
    let mut local_provider = false;
    if let Some(model) = &spec.model {
        let wish = format!("{}/{}", model.provider, model.model);
        let resolved = config::resolve_model(&config.providers, Some(&wish), &|_| true)?;
        local_provider = resolved.provider.local;
        key = self::key(&resolved, env)?;
    }
    let env = values(&spec.env_names, env)?;
    // What was promised when it was stored is demanded now.
    let require_shell_separation = spec.shell.separation == ShellSeparation::Enforced;
    Ok(RunRequest { spec, key, local_provider, require_shell_separation, env })
}

fn values(names: &[String], env: Lookup<'_>) -> Result<BTreeMap<String, String>, HostError> {
    let value = |name: &String| {
        env(name)
            .map(|value| (name.clone(), value))
            .ok_or_else(|| HostError::NoVariable(name.clone()))
    };
    names.iter().map(value).collect()
}

/// The built-in agent needs a model; a command gets one only when one is named.
fn model(
    config: &Config,
    agent: &AgentSpec,
    env: Lookup<'_>,
) -> Result<Option<ResolvedModel>, HostError> {
    let wish = config.run.model.as_deref();
    if wish.is_none() && matches!(agent, AgentSpec::Command { .. }) {
        return Ok(None);
    }
    let has = |name: &str| env(name).is_some();
    Ok(Some(config::resolve_model(&config.providers, wish, &has)?))
}

fn key(model: &ResolvedModel, env: Lookup<'_>) -> Result<Option<Secret>, HostError> {
    let Some(variable) = &model.provider.key_env else { return Ok(None) };
    match env(variable) {
        Some(value) => Ok(Some(Secret::new(value))),
        None => Err(HostError::NoKey {
            provider: model.spec.provider.clone(),
            variable: variable.clone(),
        }),
    }
}
