//! `cofferdam run`: arms a run, supervises it in this process, tells how it goes, gives its verdict.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use cofferdam_broker::Secret;
use cofferdam_daemon::config::{self, Config, ResolvedModel};
use cofferdam_daemon::{HostError, RunReport, RunRequest, Watcher};
use cofferdam_run::spec::{AgentSpec, Mode};
use cofferdam_run::{EngineKind, Outcome, RunSpec};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::args::RunArgs;
use crate::cmd::show;
use crate::env;
use crate::error::{CANCELLED, CliError};
use crate::out::Out;

mod watch;

pub(crate) use watch::cause as watch_cause;

/// Turns of the built-in agent when nothing else is said.
const DEFAULT_STEPS: u32 = 200;

pub(crate) async fn run(app: &App, args: RunArgs) -> Result<ExitCode, CliError> {
    let config = with_arguments(app.config()?, &args)?;
    let request = request(&config, &args)?;
    let host = app.host().await?;
    // What a killed process left comes first: its work is saved before new work is taken.
    let before = host.reconcile().await?;
    for run in &before.settled {
        app.out.note(&format!("run {run} had lost its process and is settled: cofferdam show {run}"));
    }
    let armed = host.arm(request).await?;
    let cancel = CancellationToken::new();
    let signals = tokio::spawn(cancel_on_signal(cancel.clone(), app.out));
    let watcher: Arc<dyn Watcher> = if args.quiet || app.out.json {
        Arc::new(cofferdam_daemon::Silent)
    } else {
        Arc::new(watch::Lines::new(app.out))
    };
    let report = host.supervise(armed, watcher, cancel).await;
    signals.abort();
    finish(app, &report?)
}

fn finish(app: &App, report: &RunReport) -> Result<ExitCode, CliError> {
    let verdict = &report.record.verdict;
    if app.out.json {
        let view = show::view(&report.record);
        app.out.json(&view);
    } else {
        show::result(app.out, &report.record);
    }
    Ok(match verdict.outcome {
        Outcome::Completed => ExitCode::SUCCESS,
        Outcome::Failed => ExitCode::from(1),
        Outcome::Cancelled => ExitCode::from(CANCELLED),
    })
}

/// The first signal cancels, the second is left to the system.
async fn cancel_on_signal(cancel: CancellationToken, out: Out) {
    let terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
    let Ok(mut terminate) = terminate else { return };
    let hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup());
    let Ok(mut hangup) = hangup else { return };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    out.note("cancelling: the agent is ended and its work brought back (this takes some seconds)");
    cancel.cancel();
}

/// The configuration with what the command line says instead.
fn with_arguments(mut config: Config, args: &RunArgs) -> Result<Config, CliError> {
    let run = &mut config.run;
    if let Some(engine) = args.engine {
        run.engine = Some(engine.into());
    }
    macro_rules! take {
        ($($field:ident),*) => { $( if let Some(value) = &args.$field { run.$field = Some(value.clone()); } )* };
    }
    take!(model, wall_clock, silence, tokens, money, max_steps, memory, pids, cpus, cpu_time, work_size, work_files);
    run.shell_network = args.shell_network.map(Into::into).or(run.shell_network);
    if args.require_shell_separation {
        run.shell_separation = config::SeparationWish::Required;
    }
    run.accept_degraded.extend(args.accept_degraded.iter().cloned());
    config.egress.allow.extend(args.allow.iter().cloned());
    config.egress.deny.extend(args.deny.iter().cloned());
    for name in &run.accept_degraded {
        config::parse_layer(name).map_err(HostError::from)?;
    }
    Ok(config)
}

fn request(config: &Config, args: &RunArgs) -> Result<RunRequest, CliError> {
    let nothing = args.task.as_deref().unwrap_or_default().trim().is_empty();
    if args.command.is_empty() && nothing {
        return Err(HostError::NoTask.into());
    }
    let agent = if args.command.is_empty() {
        AgentSpec::Builtin { max_steps: config.run.max_steps.unwrap_or(DEFAULT_STEPS) }
    } else {
        AgentSpec::Command { argv: args.command.clone() }
    };
    // What is wrong with a value of its own is told before what is missing.
    let resources = config.resources().map_err(HostError::from)?;
    let budgets = config.budgets().map_err(HostError::from)?;
    let model = model(config, &agent)?;
    let key = match &model {
        Some(model) => key(model)?,
        None => None,
    };
    let mut values = BTreeMap::new();
    for name in &args.env {
        let value = env::text(name).ok_or_else(|| {
            CliError::usage(format!("--env {name}: the variable is not set here"))
        })?;
        values.insert(name.clone(), value);
    }
    let checkout = match &args.checkout {
        Some(checkout) => checkout.clone(),
        None => std::env::current_dir().map_err(CliError::other)?.display().to_string(),
    };
    let spec = RunSpec {
        task: args.task.clone().unwrap_or_default(),
        mode: Mode::Unattended,
        agent,
        engine: config.run.engine.unwrap_or(EngineKind::Native),
        resources,
        budgets,
        egress_allow: config.egress.allow.clone(),
        egress_deny: config.egress.deny.clone(),
        checkout,
        accept_degraded: config.run.accept_degraded.clone(),
        credentials: model.iter().filter_map(|m| m.provider.key_env.clone()).collect(),
        env_names: args.env.clone(),
        gateway_opened: Vec::new(),
        // What follows is the host's to say: arming fills it in.
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

/// The built-in agent needs a model; a command gets one only when one is named.
fn model(config: &Config, agent: &AgentSpec) -> Result<Option<ResolvedModel>, CliError> {
    let wish = config.run.model.as_deref();
    if wish.is_none() && matches!(agent, AgentSpec::Command { .. }) {
        return Ok(None);
    }
    let has = |name: &str| env::raw(name).is_some();
    let resolved = config::resolve_model(&config.providers, wish, &has).map_err(HostError::from)?;
    Ok(Some(resolved))
}

fn key(model: &ResolvedModel) -> Result<Option<Secret>, CliError> {
    let Some(variable) = &model.provider.key_env else { return Ok(None) };
    match env::text(variable) {
        Some(value) => Ok(Some(Secret::new(value))),
        None => Err(HostError::NoKey {
            provider: model.spec.provider.clone(),
            variable: variable.clone(),
        }
        .into()),
    }
}
