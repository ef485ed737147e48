//! Finding the service of the data directory, and starting one when none is up.

use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Duration;

use cofferdam_api::{Client, Place};

use crate::app::App;
use crate::error::{self, CliError};

/// How long a service that was started on demand may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Until a stopped service has wound up its runs and let go of the data directory.
const STOP_LIMIT: Duration = Duration::from_secs(150);
/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

fn silent(what: &str) -> CliError {
    let hint = "look into service/service.log in the data directory, or run: cofferdam serve";
    CliError::coded("API-014", what, Some(hint.to_owned()), error::REFUSED)
}

/// The service, started when none is up.
pub(crate) async fn client(app: &App) -> Result<Client, CliError> {
    let place = app.place();
    if let Some(client) = Client::find(&place).await {
        return Ok(client);
    }
    place.create().map_err(CliError::other)?;
    start(app, &place)?;
    let waited = tokio::time::timeout(START_LIMIT, async {
        loop {
            if let Some(client) = Client::find(&place).await {
                return client;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
    waited.await.map_err(|_| silent("the service did not come up"))
}

/// Starts `cofferdam serve` as a process of its own: it outlives this one and its terminal.
fn start(app: &App, place: &Place) -> Result<(), CliError> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(place.log())
        .map_err(CliError::other)?;
    let program = std::env::current_exe().map_err(CliError::other)?;
    #[expect(clippy::disallowed_methods, reason = "the command starts itself as a service")]
    let mut command = std::process::Command::new(program);
    command
        .arg("serve")
        .args(["--listen", "127.0.0.1:0"])
        .arg("--data-dir")
        .arg(app.data_dir())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(CliError::other)?)
        .stderr(log)
        .process_group(0);
    if let Some(config) = app.named_config() {
        command.arg("--config").arg(config);
    }
    command.spawn().map_err(CliError::other)?;
    Ok(())
}

/// Waits until nothing answers any more.
pub(crate) async fn wait_gone(place: &Place) -> Result<(), CliError> {
    let waited = tokio::time::timeout(STOP_LIMIT, async {
        while Client::find(place).await.is_some() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
    waited.await.map_err(|_| silent("the service does not end"))
}

/// Ends at the first signal that asks for an end. A terminal that goes away is none: runs survive it.
pub(crate) async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut hangup)) =
        (signal(SignalKind::terminate()), signal(SignalKind::hangup()))
    else {
        return std::future::pending().await;
    };
    loop {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => return,
            _ = terminate.recv() => return,
            _ = hangup.recv() => {}
        }
    }
}

impl From<cofferdam_api::ServeError> for CliError {
    fn from(error: cofferdam_api::ServeError) -> Self {
        match error {
            cofferdam_api::ServeError::Host(error) => error.into(),
            other => {
                let exit = match &other {
                    cofferdam_api::ServeError::AlreadyServed(_) => error::CONFLICT,
                    _ => error::REFUSED,
                };
                let (code, hint) = (other.code(), other.hint());
                Self::other(&other).with(code, hint, exit)
            }
        }
    }
}

impl From<cofferdam_api::ClientError> for CliError {
    fn from(error: cofferdam_api::ClientError) -> Self {
        match error {
            cofferdam_api::ClientError::Problem(problem) => {
                let exit = match problem.status {
                    404 => error::NOT_FOUND,
                    409 => error::CONFLICT,
                    400 | 422 => error::USAGE,
                    _ => error::REFUSED,
                };
                Self::coded(&problem.code, problem.title, problem.hint, exit)
                    .because(problem.causes)
            }
            other @ cofferdam_api::ClientError::Talk(_) => silent(&other.to_string()),
        }
    }
}
