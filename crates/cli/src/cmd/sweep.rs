//! `cofferdam sweep`: settles runs whose process is gone and removes what nobody owns any more.

use std::process::ExitCode;

use serde_json::json;

use crate::app::App;
use crate::error::CliError;

pub(crate) async fn sweep(app: &App, dry_run: bool) -> Result<ExitCode, CliError> {
    let host = app.host().await?;
    let report = if dry_run { host.sweep_dry().await? } else { host.sweep().await? };
    let code = if report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) };
    if app.out.json {
        app.out.json(&json!(report));
        return Ok(code);
    }
    if report.is_empty() {
        app.out.line("nothing to sweep");
    }
    if !report.live.is_empty() {
        app.out.line(&format!("live     {}", report.live.join(", ")));
    }
    let (settled, removed) =
        if dry_run { ("would settle", "would remove") } else { ("settled ", "removed ") };
    for (word, list) in [
        (settled, &report.settled),
        (removed, &report.removed),
        (removed, &report.directories),
        ("FAILED  ", &report.failed),
    ] {
        for item in list {
            app.out.line(&format!("{word} {item}"));
        }
    }
    for run in &report.stuck {
        app.out.note(&format!(
            "run {run} has a living process that does not renew its lease: cancel it, or end the process"
        ));
    }
    for engine in &report.unreachable {
        app.out.note(&format!("not asked: {engine}"));
    }
    Ok(code)
}
