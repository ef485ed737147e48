//! `cofferdam record`: the review record itself, its check, its schema.

use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use cofferdam_run::record::MAX_RECORD_BYTES;
use serde_json::json;

use crate::app::App;
use crate::args::RecordAction;
use crate::error::{CliError, NOT_VERIFIED};
use crate::out::Tone;

pub(crate) async fn record(app: &App, action: RecordAction) -> Result<ExitCode, CliError> {
    match action {
        RecordAction::Show { run } => {
            let host = app.host().await?;
            let id = app.resolve(&host, &run).await?;
            let text = host
                .ledger()
                .record(&id)
                .await?
                .ok_or_else(|| CliError::from(cofferdam_daemon::HostError::NotOver(id)))?;
            app.out.line(&text);
            Ok(ExitCode::SUCCESS)
        }
        RecordAction::Verify { file } => verify(app, &file),
        RecordAction::Schema => {
            app.out.json(&cofferdam_run::record_schema());
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn read(file: &Path) -> Result<String, CliError> {
    let fault = |e: std::io::Error| CliError::usage(format!("cannot read {}: {e}", file.display()));
    let limit = MAX_RECORD_BYTES as u64 + 1;
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().take(limit).read_to_string(&mut text).map_err(fault)?;
    } else {
        std::fs::File::open(file)
            .map_err(fault)?
            .take(limit)
            .read_to_string(&mut text)
            .map_err(fault)?;
    }
    Ok(text)
}

fn verify(app: &App, file: &Path) -> Result<ExitCode, CliError> {
    let text = read(file)?;
    match cofferdam_run::verify(&text) {
        Ok(verified) => {
            let record = &verified.record;
            if app.out.json {
                app.out.json(&json!({
                    "ok": true, "run": record.run, "entries": record.entries.len(),
                    "head": record.head, "outcome": record.verdict.outcome,
                }));
            } else {
                app.out.line(&format!(
                    "{}  run {}, {} entries, head {}, verdict {}",
                    app.out.tone(Tone::Good, "verified"),
                    record.run,
                    record.entries.len(),
                    record.head,
                    record.verdict.outcome,
                ));
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            if app.out.json {
                app.out.json(
                    &json!({ "ok": false, "code": error.code(), "message": error.to_string() }),
                );
                return Ok(ExitCode::from(NOT_VERIFIED));
            }
            Err(CliError::coded(
                error.code(),
                format!("{} does not verify: {error}", file.display()),
                Some("the file was changed after it was sealed, or is no record".to_owned()),
                NOT_VERIFIED,
            ))
        }
    }
}
