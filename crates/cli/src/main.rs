//! The `cofferdam` command: parses, asks the daemon library, prints, chooses an exit code.
//!
//! It holds no logic that the library lacks: whatever it can do, an API can do later.

mod app;
mod args;
mod cmd;
mod env;
mod error;
mod lines;
mod out;

use std::process::ExitCode;

use clap::Parser as _;

use crate::app::App;
use crate::args::{Cli, Command};
use crate::error::CliError;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap prints each where it belongs.
            let json = std::env::args_os().any(|a| a == "--json");
            if error.use_stderr() && json {
                let text = error.to_string();
                let message = text.strip_prefix("error: ").unwrap_or(&text).trim();
                return error::report(out::Out::new(true), &CliError::usage(message));
            }
            let code = if error.use_stderr() { 2 } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    logging();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return error::report(out::Out::new(cli.json), &CliError::other(error)),
    };
    let out = out::Out::new(cli.json);
    let result = runtime.block_on(dispatch(cli));
    // Tasks that still wait (a watcher, a reader) have nothing left to do.
    runtime.shutdown_background();
    match result {
        Ok(code) => code,
        Err(error) => error::report(out, &error),
    }
}

fn logging() {
    let filter = env::text(env::LOG).unwrap_or_else(|| "off".to_owned());
    let filter = tracing_subscriber::EnvFilter::try_new(filter).unwrap_or_default();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

async fn dispatch(cli: Cli) -> Result<ExitCode, CliError> {
    let app = App::new(&cli)?;
    match cli.command {
        Command::Run(args) => cmd::run::run(&app, *args).await,
        Command::Ps { live, limit } => cmd::ps::ps(&app, live, limit).await,
        Command::Logs { run, follow, output } => cmd::logs::logs(&app, &run, follow, output).await,
        Command::Show { run } => cmd::show::show(&app, &run).await,
        Command::Record { action } => cmd::record::record(&app, action).await,
        Command::Egress { action } => cmd::egress::egress(&app, action).await,
        Command::Diff { run, stat } => cmd::review::diff(&app, &run, stat).await,
        Command::Apply { run, as_branch } => cmd::review::apply(&app, &run, as_branch).await,
        Command::Cancel { run } => cmd::cancel::cancel(&app, &run).await,
        Command::Sweep { dry_run } => cmd::sweep::sweep(&app, dry_run).await,
        Command::Retry { run } => cmd::serve::retry(&app, &run).await,
        Command::Serve(args) => cmd::serve::serve(&app, args).await,
        Command::Web => cmd::serve::web(&app).await,
        Command::Stop => cmd::serve::stop(&app).await,
        Command::Openapi => Ok(cmd::serve::openapi(&app)),
        Command::Doctor => cmd::doctor::doctor(&app).await,
        Command::Config { action } => cmd::config::config(&app, action),
        Command::Completions { shell } => cmd::config::completions(&app, shell),
        Command::Man { folder } => cmd::config::manual(&folder),
    }
}
