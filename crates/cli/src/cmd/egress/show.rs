//! `cofferdam egress show`: every decision of a run.

use std::process::ExitCode;

use cofferdam_run::Fact;
use cofferdam_run::spec::Principal;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::CliError;
use crate::out::{Tone, bytes, count, table};

pub(super) async fn show(app: &App, run: &str, only_refused: bool) -> Result<ExitCode, CliError> {
    let host = app.host().await?;
    let id = app.resolve(&host, run).await?;
    let facts = host.ledger().facts(&id).await?;
    let mut rows =
        vec![["", "BY", "TARGET", "WHY", "OUT", "IN", "HOW IT ENDED"].map(str::to_owned).to_vec()];
    let mut values: Vec<Value> = Vec::new();
    let mut calls = 0;
    for (_, fact) in &facts {
        match fact {
            Fact::Egress {
                target,
                admitted,
                reason,
                bytes_out,
                bytes_in,
                outcome,
                principal,
                ..
            } => {
                if only_refused && *admitted {
                    continue;
                }
                let verb = if *admitted { "admitted" } else { "refused" };
                rows.push(vec![
                    verb.to_owned(),
                    principal.map_or("-", Principal::as_str).to_owned(),
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
