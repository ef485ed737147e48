//! `cofferdam egress`: what a run asked to connect to, and the check of policy vectors.

use std::process::ExitCode;

use cofferdam_broker::egress::check::{self, Vector};
use cofferdam_run::Fact;
use serde_json::{Value, json};

use crate::app::App;
use crate::args::EgressAction;
use crate::error::CliError;
use crate::out::{Tone, bytes, count, table};

pub(crate) async fn egress(app: &App, action: EgressAction) -> Result<ExitCode, CliError> {
    match action {
        EgressAction::Show { run, refused } => show(app, &run, refused).await,
        EgressAction::Check { file } => check_file(app, &file).await,
    }
}

async fn show(app: &App, run: &str, only_refused: bool) -> Result<ExitCode, CliError> {
    let host = app.host().await?;
    let id = app.resolve(&host, run).await?;
    let facts = host.ledger().facts(&id).await?;
    let mut rows =
        vec![["", "TARGET", "WHY", "OUT", "IN", "HOW IT ENDED"].map(str::to_owned).to_vec()];
    let mut values: Vec<Value> = Vec::new();
    let mut calls = 0;
    for (_, fact) in &facts {
        match fact {
            Fact::Egress { target, admitted, reason, bytes_out, bytes_in, outcome, .. } => {
                if only_refused && *admitted {
                    continue;
                }
                let verb = if *admitted { "admitted" } else { "refused" };
                rows.push(vec![
                    verb.to_owned(),
                    target.clone(),
                    reason.clone(),
                    bytes(*bytes_out),
                    bytes(*bytes_in),
                    outcome.clone(),
                ]);
                values.push(json!(fact));
            }
            Fact::ModelCall { .. } => calls += 1,
            _ => {}
        }
    }
    if app.out.json {
        app.out.json(&json!({ "run": id, "egress": values, "model_calls": calls }));
        return Ok(ExitCode::SUCCESS);
    }
    if rows.len() == 1 {
        app.out.line("no connection was asked for");
    } else {
        for (i, line) in table(&rows).into_iter().enumerate() {
            app.out.line(&if i == 0 { app.out.tone(Tone::Dim, &line) } else { line });
        }
    }
    if calls > 0 {
        app.out.line(&format!("{} through the model gateway", count(calls, "call")));
    }
    Ok(ExitCode::SUCCESS)
}

async fn check_file(app: &App, file: &std::path::Path) -> Result<ExitCode, CliError> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| CliError::usage(format!("cannot read {}: {e}", file.display())))?;
    let (mut right, mut wrong) = (0u64, 0u64);
    for (number, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let vector: Vector = serde_json::from_str(line).map_err(|e| {
            CliError::usage(format!("{}, line {}: {e}", file.display(), number + 1))
        })?;
        let result = check::check_vector(&vector).await;
        if result.ok {
            right += 1;
        } else {
            wrong += 1;
        }
        if app.out.json {
            app.out.line(&json!(result).to_string());
        } else {
            let mark = if result.ok { "ok  " } else { "FAIL" };
            let status = result.status.map_or_else(|| "-".to_owned(), |s| s.to_string());
            let stage = result.stage.as_deref().unwrap_or("-");
            let line =
                format!("{mark} {} {} {status} {stage} {}", result.id, result.got, result.detail);
            app.out.line(line.trim_end());
        }
    }
    app.out.note(&format!("{right} right, {wrong} wrong"));
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
