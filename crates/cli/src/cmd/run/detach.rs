//! `cofferdam run --detach`: the service runs it, and this command is done.

use std::collections::BTreeMap;
use std::process::ExitCode;

use cofferdam_api::NewTask;
use cofferdam_daemon::wish::RunWish;
use serde_json::json;

use crate::app::App;
use crate::cmd::service;
use crate::env;
use crate::error::CliError;
use crate::out::Tone;

pub(super) async fn detach(app: &App, wish: RunWish) -> Result<ExitCode, CliError> {
    // Made here too, so that what makes no sense is told before a service is started, and to learn
    // which variables the run needs: this shell has them, the service may not.
    let request = wish.request(app.config()?, &env::text)?;
    let names = request.spec.credentials.iter().chain(&request.spec.env_names);
    let secrets: BTreeMap<String, String> =
        names.filter_map(|name| Some((name.clone(), env::text(name)?))).collect();
    let new = NewTask { wish, secrets, ..NewTask::default() };
    let client = service::client(app).await?;
    let started = client.start(&key()?, &new).await?;
    if app.out.json {
        app.out.json(&json!({
            "task": started.task, "run": started.run, "reach": started.reach,
        }));
        return Ok(ExitCode::SUCCESS);
    }
    let run = &started.run;
    app.out.line(&format!(
        "run {}  handed to the service, reachable: {}",
        app.out.tone(Tone::Strong, run.as_str()),
        started.reach
    ));
    app.out.note(&format!("watch it: cofferdam logs -f {run}   stop it: cofferdam cancel {run}"));
    Ok(ExitCode::SUCCESS)
}

/// One key per call: a connection that breaks may be tried again without making a second task.
fn key() -> Result<String, CliError> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|e| CliError::other(std::io::Error::other(e)))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
