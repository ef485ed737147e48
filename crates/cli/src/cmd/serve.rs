//! `cofferdam serve`, `web` and `openapi`: the local service, its page's address, its description.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use cofferdam_api::{Client, ServeOptions, Server};
use serde_json::json;

use crate::app::App;
use crate::cmd::service;
use crate::env;
use crate::error::CliError;

/// What `serve` was asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Address of the page and the API; port 0 takes any free one.
    #[arg(long, value_name = "ADDRESS", default_value_t = ServeOptions::default_address())]
    pub(crate) listen: SocketAddr,
    /// A further name under which a reverse proxy reaches it, as HOST or HOST:PORT. Repeatable.
    #[arg(long, value_name = "NAME")]
    pub(crate) host_name: Vec<String>,
    /// Runs at once; further ones wait.
    #[arg(long, value_name = "N", default_value_t = ServeOptions::default().live)]
    pub(crate) runs: u32,
    /// Only the local socket, for the command line; no page.
    #[arg(long)]
    pub(crate) socket_only: bool,
}

pub(crate) async fn serve(app: &App, args: ServeArgs) -> Result<ExitCode, CliError> {
    let host = Arc::new(app.host().await?);
    let options = ServeOptions {
        listen: (!args.socket_only).then_some(args.listen),
        names: args.host_name,
        live: args.runs,
    };
    let environment = Box::new(env::text);
    let (server, bound) = Server::bind(Arc::clone(&host), environment, options).await?;
    // Before any new run: what a service or a command that was killed left behind.
    let swept = host.sweep().await?;
    for item in swept.settled.iter().chain(&swept.removed) {
        app.out.note(&format!("swept {item}"));
    }
    if app.out.json {
        app.out.json(&json!({
            "address": bound.address.map(|a| a.to_string()),
            "url": bound.url,
            "data_dir": app.data_dir(),
            "pid": std::process::id(),
        }));
    } else {
        match &bound.url {
            Some(url) => {
                app.out.line(url);
                app.out.note("good for one browser within ten minutes; another: cofferdam web");
            }
            None => app.out.note("serving the local socket"),
        }
        app.out.note("stop with Ctrl-C: live runs are cancelled and their work brought back");
    }
    server.run(service::stop_signal()).await;
    app.out.note("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Prints an address for one more browser; starts the service when none is up.
pub(crate) async fn web(app: &App) -> Result<ExitCode, CliError> {
    let client = service::client(app).await?;
    let code = client.new_code().await?;
    let Some(url) = code.url else {
        return Err(CliError::coded(
            "API-014",
            "the service was started without a page",
            Some("stop it and start it with: cofferdam serve".to_owned()),
            crate::error::CONFLICT,
        ));
    };
    if app.out.json {
        app.out.json(&json!({ "url": url, "expires_in_ms": code.expires_in_ms }));
    } else {
        app.out.line(&url);
        app.out.note("good for one browser within ten minutes");
    }
    Ok(ExitCode::SUCCESS)
}

/// A further attempt at the task of a run.
pub(crate) async fn retry(app: &App, run: &str) -> Result<ExitCode, CliError> {
    let host = app.host().await?;
    let id = app.resolve(&host, run).await?;
    let Some(task) = host.durable().task_of(&id).await? else {
        return Err(CliError::coded(
            "API-018",
            format!("run {id} was no run of the service"),
            Some("start it again with: cofferdam run …".to_owned()),
            crate::error::CONFLICT,
        ));
    };
    drop(host);
    let started = service::client(app).await?.retry(&task).await?;
    if app.out.json {
        app.out.json(&json!({ "task": started.task, "run": started.run }));
    } else {
        app.out.line(&format!("run {} is the next attempt of {task}", started.run));
        app.out.note(&format!("watch it: cofferdam logs -f {}", started.run));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a service is up, and ends it.
pub(crate) async fn stop(app: &App) -> Result<ExitCode, CliError> {
    let place = app.place();
    let Some(client) = Client::find(&place).await else {
        app.out.note("no service is up");
        return Ok(ExitCode::SUCCESS);
    };
    let live = client.info().await?.live;
    client.stop().await?;
    service::wait_gone(&place).await?;
    if app.out.json {
        app.out.json(&json!({ "stopped": true, "runs_cancelled": live }));
    } else {
        app.out.line("stopped");
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn openapi(app: &App) -> ExitCode {
    app.out.json(&cofferdam_api::document());
    ExitCode::SUCCESS
}
