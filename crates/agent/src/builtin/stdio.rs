//! The agent as a process: configuration on standard input, events on standard output.
//!
//! Standard output carries nothing but events; standard error carries only why a run failed. A polite
//! end signal ends the commands in flight before the process ends.

use std::io::Write;
use std::os::fd::OwnedFd;

use cofferdam_wire::layout;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

use super::config::BuiltinConfig;
use super::event::{Event, EventKind, Sink};
use super::outcome::{AgentOutcome, Failure};
use super::run::{no_shell_host, run_through};
use super::tuning::Tuning;
use crate::limits::CONFIG_BYTES_MAX;
use crate::shell_host::fds;

/// Exit code after SIGTERM or SIGINT.
const CODE_SIGNALLED: i32 = 143;

/// Reads a [`BuiltinConfig`] as JSON from standard input until its end, runs the agent, writes one
/// JSON object per event and line to standard output. Returns the exit code: 0 finished, 1 failed,
/// 2 out of steps, 143 told to end.
///
/// The caller ends its runtime with `shutdown_background`: after a signal a read of standard input may
/// still be pending.
pub async fn run_stdio() -> i32 {
    let mut sink = Lines;
    let work = async {
        match configured().await {
            Ok((config, host)) => run_through(host, config, Tuning::default(), &mut sink).await,
            Err(failure) => {
                // When nobody listens the exit code still tells.
                let _ = sink.event(Event::new(EventKind::Error, &failure.to_string()));
                AgentOutcome::Failed(failure)
            }
        }
    };
    tokio::select! {
        outcome = work => outcome.exit_code(),
        () = told_to_end() => CODE_SIGNALLED,
    }
}

async fn told_to_end() {
    let (Ok(mut term), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // Without handlers the signals end the process by themselves.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// The configuration, and the channel of the shell host when it names one.
async fn configured() -> Result<(BuiltinConfig, Option<OwnedFd>), Failure> {
    let config = read_config().await?;
    let host = if config.shell_host {
        Some(fds::inherited(layout::SHELL_FD).map_err(no_shell_host)?)
    } else {
        None
    };
    Ok((config, host))
}

async fn read_config() -> Result<BuiltinConfig, Failure> {
    let invalid = |message: String| {
        Failure::new(
            "AGENT-001",
            message,
            "the configuration comes from the host; check its version",
        )
    };
    let mut text = Vec::new();
    tokio::io::stdin()
        .take(CONFIG_BYTES_MAX as u64 + 1)
        .read_to_end(&mut text)
        .await
        .map_err(|e| invalid(format!("the configuration could not be read: {e}")))?;
    if text.len() > CONFIG_BYTES_MAX {
        return Err(invalid(format!("the configuration is over {CONFIG_BYTES_MAX} bytes")));
    }
    serde_json::from_slice(&text)
        .map_err(|e| invalid(format!("the configuration could not be parsed: {e}")))
}

/// Standard output, one event per line; the error that ends a run on standard error as well.
struct Lines;

impl Sink for Lines {
    fn event(&mut self, event: Event) -> std::io::Result<()> {
        if event.kind == EventKind::Error {
            // The last words, for whoever looks for them on standard error.
            let _ = writeln!(std::io::stderr(), "{}", event.text);
        }
        let mut line = serde_json::to_vec(&event)?;
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        out.write_all(&line)?;
        out.flush()
    }
}
