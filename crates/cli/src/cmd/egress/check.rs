//! `cofferdam egress check`: policy vectors through the real proxy, without any network.

use std::process::ExitCode;

use cofferdam_broker::egress::check::{self, Vector};
use serde_json::json;

use crate::app::App;
use crate::error::CliError;

pub(super) async fn check_file(app: &App, file: &std::path::Path) -> Result<ExitCode, CliError> {
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
