//! `cofferdam doctor`: which engines work, which layers hold, what is missing and how to mend it.

use std::process::ExitCode;

use cofferdam_run::posture::LayerStatus;
use cofferdam_sandbox::EngineReport;
use serde_json::{Value, json};

use crate::app::App;
use crate::env;
use crate::error::CliError;
use crate::out::Tone;

pub(crate) async fn doctor(app: &App) -> Result<ExitCode, CliError> {
    let host = app.host().await?;
    let reports = host.doctor().await;
    let usable = reports.iter().any(|r| r.usable);
    let code = if usable { ExitCode::SUCCESS } else { ExitCode::from(1) };
    let mut providers = cofferdam_daemon::config::builtin_providers();
    providers.extend(host.config().providers.clone());
    let keys: Vec<(String, String, bool)> = providers
        .iter()
        .filter_map(|(name, p)| {
            let variable = p.key_env.clone()?;
            let set = env::raw(&variable).is_some();
            Some((name.clone(), variable, set))
        })
        .collect();
    let floor = host.config().disk_floor().ok().flatten();
    let place = cofferdam_daemon::watch::WorkPlace::of(app.data_dir(), floor);
    if app.out.json {
        let engines: Vec<Value> = reports.iter().map(report_json).collect();
        let keys: Vec<Value> = keys
            .iter()
            .map(|(name, variable, set)| json!({ "provider": name, "variable": variable, "set": set }))
            .collect();
        app.out.json(&json!({ "engines": engines, "keys": keys, "data_dir": app.data_dir(), "work_volume": place }));
        return Ok(code);
    }
    for report in &reports {
        print(app, report);
    }
    app.out.line("model keys (they stay on the host)");
    for (name, variable, set) in keys {
        app.out.line(&format!(
            "  {name:<14} {variable} {}",
            if set { "is set" } else { "is not set" }
        ));
    }
    app.out.line(&format!("data directory {}", app.data_dir().display()));
    if let Some(place) = place {
        app.out.line(&format!("work volume {place}"));
    }
    Ok(code)
}

fn print(app: &App, report: &EngineReport) {
    let word = if report.usable {
        app.out.tone(Tone::Good, "works")
    } else {
        app.out.tone(Tone::Bad, "does not work")
    };
    app.out.line(format!("engine {}  {word}  {}", report.kind, report.version).trim_end());
    for layer in &report.layers {
        let (mark, reason) = match &layer.status {
            LayerStatus::Enforced => ("enforced", ""),
            LayerStatus::Degraded { reason } => ("degraded", reason.as_str()),
            LayerStatus::Absent { reason } => ("ABSENT", reason.as_str()),
        };
        app.out.line(format!("  {:<18} {mark:<9} {reason}", layer.layer.as_str()).trim_end());
    }
    for problem in &report.problems {
        app.out.line(&format!("  {} {}", app.out.tone(Tone::Warn, "problem:"), problem.what));
        if !problem.fix.is_empty() {
            app.out.line(&format!("    fix: {}", problem.fix));
        }
    }
}

fn report_json(report: &EngineReport) -> Value {
    let problems: Vec<Value> =
        report.problems.iter().map(|p| json!({ "what": p.what, "fix": p.fix })).collect();
    json!({
        "engine": report.kind, "version": report.version, "usable": report.usable,
        "layers": report.layers, "problems": problems,
    })
}
