//! `cofferdam cancel`: asks the process that has a run to stop it; one whose process is gone is settled
//! here.

use std::process::ExitCode;

use cofferdam_ledger::CancelOutcome;
use cofferdam_run::TimestampMs;
use serde_json::json;

use crate::app::App;
use crate::error::{CONFLICT, CliError};

pub(crate) async fn cancel(app: &App, run: &str) -> Result<ExitCode, CliError> {
    let host = app.host().await?;
    let id = app.resolve(&host, run).await?;
    if host.settle_if_lost(&id).await? {
        let text = format!("run {id} had lost its process; it is settled now: cofferdam show {id}");
        if app.out.json {
            app.out.json(&json!({ "run": id, "cancel": "settled" }));
        } else {
            app.out.line(&text);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let outcome = host
        .ledger()
        .request_cancel(&id, "the person at the terminal", TimestampMs(app.now_ms()))
        .await?;
    let (word, text, code) = match outcome {
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
