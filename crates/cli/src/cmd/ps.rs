//! `cofferdam ps`: runs, newest first.

use std::process::ExitCode;

use cofferdam_ledger::{ListFilter, RunRow};
use serde_json::{Value, json};

use crate::app::App;
use crate::cmd::show::LOST;
use crate::error::CliError;
use crate::out::{Tone, ago, table};

pub(crate) async fn ps(app: &App, live: bool, limit: u32) -> Result<ExitCode, CliError> {
    let host = app.host().await?;
    let filter = ListFilter { live_only: live, ..ListFilter::default() };
    let rows = host.ledger().list(filter, limit).await?;
    let lost = host.lost().await?;
    if app.out.json {
        let runs: Vec<Value> =
            rows.iter().map(|row| row_json(row, lost.contains(&row.id))).collect();
        app.out.json(&json!({ "runs": runs }));
        return Ok(ExitCode::SUCCESS);
    }
    if rows.is_empty() {
        app.out.note("no runs yet: start one with cofferdam run \"…\"");
        return Ok(ExitCode::SUCCESS);
    }
    let now = app.now_ms();
    let mut lines =
        vec![["RUN", "STATE", "AGE", "COMMITS", "TOKENS", "TASK"].map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| {
        vec![
            row.id.to_string(),
            if lost.contains(&row.id) { "lost" } else { row.state.as_str() }.to_owned(),
            ago(now.saturating_sub(row.created_at.0)),
            row.commits.map_or_else(|| "-".to_owned(), |n| n.to_string()),
            row.spend.tokens().to_string(),
            row.title.clone(),
        ]
    }));
    for (i, line) in table(&lines).into_iter().enumerate() {
        app.out.line(&if i == 0 { app.out.tone(Tone::Dim, &line) } else { line });
    }
    if rows.iter().any(|row| lost.contains(&row.id)) {
        app.out.note(&format!("lost: {LOST}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn row_json(row: &RunRow, lost: bool) -> Value {
    json!({
        "run": row.id,
        "lost": lost,
        "state": row.state,
        "task": row.title,
        "checkout": row.checkout,
        "created_at_ms": row.created_at,
        "updated_at_ms": row.updated_at,
        "cancel_requested": row.cancel_requested,
        "commits": row.commits,
        "reference": row.reference,
        "verdict": row.verdict,
        "spend": row.spend,
    })
}
