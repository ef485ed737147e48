//! `cofferdam cancel` and `cofferdam sweep`.

use std::process::ExitCode;

use cofferdam_ledger::CancelOutcome;
use cofferdam_run::TimestampMs;
use serde_json::json;

use crate::app::App;
use crate::cmd::show::LOST;
use crate::error::{CONFLICT, CliError};

pub(crate) async fn cancel(app: &App, run: &str) -> Result<ExitCode, CliError> {
    let host = app.host().await?;
    let id = app.resolve(&host, run).await?;
    let lost = host.lost().await?.contains(&id);
    let outcome = host
        .ledger()
        .request_cancel(&id, "the person at the terminal", TimestampMs(app.now_ms()))
        .await?;
    let (word, text, code) = match outcome {
        CancelOutcome::Requested(_) | CancelOutcome::AlreadyRequested(_) if lost => {
            ("lost", format!("run {id} cannot be cancelled: {LOST}"), CONFLICT)
        }
        CancelOutcome::Requested(_) => (
            "requested",
            format!("run {id} is being cancelled; watch it with: cofferdam logs -f {id}"),
            0,
        ),
        CancelOutcome::AlreadyRequested(_) => {
            ("already_requested", format!("run {id} is being cancelled already"), 0)
        }
        CancelOutcome::CancelledAtOnce => ("cancelled", format!("run {id} is cancelled"), 0),
        CancelOutcome::AlreadyOver(state) => {
            ("already_over", format!("run {id} is over: {state}"), CONFLICT)
        }
    };
    if app.out.json {
        app.out.json(&json!({ "run": id, "cancel": word }));
    } else {
        app.out.line(&text);
    }
    Ok(ExitCode::from(code))
}

pub(crate) async fn sweep(app: &App) -> Result<ExitCode, CliError> {
    let host = app.host().await?;
    let report = host.sweep().await?;
    let code = if report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) };
    if app.out.json {
        app.out.json(&json!(report));
        return Ok(code);
    }
    if report.is_empty() {
        app.out.line("nothing to sweep");
    }
    if !report.live.is_empty() {
        app.out.line(&format!(
            "live     {} (a run whose process was killed is taken for live for 30 s)",
            report.live.join(", ")
        ));
    }
    for (word, list) in [
        ("settled", &report.settled),
        ("removed", &report.removed),
        ("removed", &report.directories),
        ("FAILED ", &report.failed),
    ] {
        for item in list {
            app.out.line(&format!("{word}  {item}"));
        }
    }
    for engine in &report.unreachable {
        app.out.note(&format!("not asked: {engine}"));
    }
    Ok(code)
}
