//! `cofferdam config`, and what is generated from the command line's definition.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;
use cofferdam_daemon::HostError;
use serde_json::json;

use crate::app::App;
use crate::args::{Cli, ConfigAction};
use crate::error::CliError;

pub(crate) fn config(app: &App, action: ConfigAction) -> Result<ExitCode, CliError> {
    match action {
        ConfigAction::Path if app.out.json => app.out.json(&json!({ "file": app.config_path })),
        ConfigAction::Path => app.out.line(&app.config_path.display().to_string()),
        ConfigAction::Check { file } => {
            let path = file.unwrap_or_else(|| app.config_path.clone());
            if !path.exists() {
                return Err(CliError::usage(format!("{} does not exist", path.display())));
            }
            app.config_at(&path)?;
            if app.out.json {
                app.out.json(&json!({ "file": path, "ok": true }));
            } else {
                app.out.line(&format!("{} is fine", path.display()));
            }
        }
        ConfigAction::Show => show(app)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show(app: &App) -> Result<(), CliError> {
    let config = app.config()?;
    let mut providers = cofferdam_daemon::config::builtin_providers();
    providers.extend(config.providers.clone());
    let providers: serde_json::Map<String, serde_json::Value> = providers
        .iter()
        .map(|(name, p)| {
            let value = json!({
                "dialect": p.dialect, "base_url": p.base_url, "key_env": p.key_env,
                "local": p.local, "default_model": p.default_model,
            });
            (name.clone(), value)
        })
        .collect();
    let value = json!({
        "file": app.config_path,
        "file_exists": app.config_path.exists(),
        "data_dir": app.data_dir(),
        "run": {
            "engine": config.run.engine.unwrap_or(cofferdam_run::EngineKind::Native),
            "model": config.run.model,
            "budgets": config.budgets().map_err(HostError::from)?,
            "resources": config.resources().map_err(HostError::from)?,
            "max_steps": config.run.max_steps,
            "accept_degraded": config.run.accept_degraded,
        },
        "egress": { "allow": config.egress.allow, "deny": config.egress.deny },
        "services": config.services,
        "providers": providers,
        "gateway": { "opened": config.gateway.opened(), "prices": config.gateway.prices },
        "docker": { "host": config.docker.host, "base": config.docker.base },
        "podman": { "host": config.podman.host, "base": config.podman.base },
        "gvisor": { "runtime": config.gvisor.runtime },
        "native": { "root": config.native.root },
        "retention": { "salvage": config.retention.salvage },
    });
    app.out.json(&value);
    Ok(())
}

pub(crate) fn completions(app: &App, shell: clap_complete::Shell) -> Result<ExitCode, CliError> {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "cofferdam", &mut bytes);
    app.out.raw(&bytes);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn manual(folder: &Path) -> Result<ExitCode, CliError> {
    std::fs::create_dir_all(folder).map_err(CliError::other)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(CliError::other)?;
    Ok(ExitCode::SUCCESS)
}
