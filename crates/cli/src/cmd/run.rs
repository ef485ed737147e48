//! `cofferdam run`: arms a run, supervises it in this process, tells how it goes, gives its verdict.

use std::process::ExitCode;
use std::sync::Arc;

use cofferdam_daemon::wish::RunWish;
use cofferdam_daemon::{RunReport, Watcher};
use cofferdam_run::Outcome;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::args::RunArgs;
use crate::cmd::show;
use crate::env;
use crate::error::{CANCELLED, CliError};
use crate::out::Out;

mod detach;
mod watch;

pub(crate) use watch::cause as watch_cause;

pub(crate) async fn run(app: &App, args: RunArgs) -> Result<ExitCode, CliError> {
    let wish = wish(&args)?;
    if args.detach {
        return detach::detach(app, wish).await;
    }
    let request = wish.request(app.config()?, &env::text)?;
    let host = app.host().await?;
    // What a killed process left comes first: its work is saved before new work is taken.
    let before = host.reconcile().await?;
    for run in &before.settled {
        app.out
            .note(&format!("run {run} had lost its process and is settled: cofferdam show {run}"));
    }
    let armed = host.arm(request).await?;
    let cancel = CancellationToken::new();
    let signals = tokio::spawn(cancel_on_signal(cancel.clone(), app.out));
    let watcher: Arc<dyn Watcher> = if args.quiet || app.out.json {
        Arc::new(cofferdam_daemon::Silent)
    } else {
        Arc::new(watch::Lines::new(app.out))
    };
    let report = host.supervise(armed, watcher, cancel).await;
    signals.abort();
    finish(app, &report?)
}

fn finish(app: &App, report: &RunReport) -> Result<ExitCode, CliError> {
    let verdict = &report.record.verdict;
    if app.out.json {
        let view = show::view(&report.record);
        app.out.json(&view);
    } else {
        show::result(app.out, &report.record);
    }
    Ok(match verdict.outcome {
        Outcome::Completed => ExitCode::SUCCESS,
        Outcome::Failed => ExitCode::from(1),
        Outcome::Cancelled => ExitCode::from(CANCELLED),
    })
}

/// The first signal cancels, the second is left to the system.
async fn cancel_on_signal(cancel: CancellationToken, out: Out) {
    let terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
    let Ok(mut terminate) = terminate else { return };
    let hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup());
    let Ok(mut hangup) = hangup else { return };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    out.note("cancelling: the agent is ended and its work brought back (this takes some seconds)");
    cancel.cancel();
}

/// What the command line wishes for; everything else comes from the configuration.
fn wish(args: &RunArgs) -> Result<RunWish, CliError> {
    let checkout = match args.checkout.as_deref() {
        // What names another machine is no path, and is refused as what it is.
        Some(remote) if remote.contains(':') => remote.to_owned(),
        Some(path) => std::path::absolute(path).map_err(CliError::other)?.display().to_string(),
        None => std::env::current_dir().map_err(CliError::other)?.display().to_string(),
    };
    Ok(RunWish {
        checkout,
        task: args.task.clone(),
        command: args.command.clone(),
        engine: args.engine.map(Into::into),
        model: args.model.clone(),
        allow: args.allow.clone(),
        deny: args.deny.clone(),
        env: args.env.clone(),
        wall_clock: args.wall_clock.clone(),
        silence: args.silence.clone(),
        tokens: args.tokens,
        money: args.money.clone(),
        max_steps: args.max_steps,
        memory: args.memory.clone(),
        pids: args.pids,
        cpus: args.cpus,
        cpu_time: args.cpu_time.clone(),
        work_size: args.work_size.clone(),
        work_files: args.work_files,
        shell_network: args.shell_network.map(Into::into),
        require_shell_separation: args.require_shell_separation,
        accept_degraded: args.accept_degraded.clone(),
    })
}
