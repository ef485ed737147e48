//! Benchmarks of Cofferdam: each measures one room or the whole beside a peer, interleaved in the
//! same run, and prints a table. Run by hand through `cargo xtask bench [FILTER]`.
//!
//! It must never be part of CI, judge a figure, or leave anything behind: directories, sandboxes,
//! images.

mod broker;
mod carry;
mod gateway;
mod ledger;
mod ledger_scale;
mod outside;
mod report;
mod repository;
mod run_native;
mod start_docker;
mod start_native;
mod tunnel;
mod world;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use report::Table;
use serde_json::json;
use world::World;

/// Benchmarks, each beside a peer in the same run. Medians; p90 is what nine samples in ten reach.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    part: Option<Inner>,
    /// Only the benchmarks whose name contains this.
    filter: Option<String>,
    /// List the names and do nothing.
    #[arg(long)]
    list: bool,
    /// Also write every sample to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Directory for everything that is made on the way [default: the system's temporary one].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Folder of the static guest and launcher.
    #[arg(long, value_name = "DIR", default_value = "target/sandbox-bin")]
    bin_dir: PathBuf,
    /// The optimised command.
    #[arg(long, value_name = "FILE", default_value = "target/release/cofferdam")]
    command: PathBuf,
}

/// What the program starts itself as.
#[derive(Debug, Subcommand)]
enum Inner {
    /// One of the processes of a measurement.
    #[command(hide = true)]
    Part {
        #[command(subcommand)]
        part: tunnel::Part,
    },
}

/// What came of one benchmark.
enum Outcome {
    Measured(Table),
    /// Something that it needs is not here; the text says what.
    Impossible(String),
}

/// In the order in which they run: what writes many files comes last, so that its writing back does
/// not slow the flushes of the ledger.
const NAMES: [&str; 9] = [
    "broker-connect",
    "tunnel",
    "gateway",
    "ledger",
    "ledger-scale",
    "start-native",
    "start-docker",
    "carry",
    "run-native",
];

async fn measure(name: &str, world: &World) -> anyhow::Result<Outcome> {
    let table = match name {
        // These make sandboxes, and remove them also when they are interrupted.
        "start-native" => start_native::measure(world).await?,
        "start-docker" => return start_docker::measure(world).await,
        "run-native" => world::interruptible(run_native::measure(world)).await?,
        "broker-connect" => world::interruptible(broker::measure()).await?,
        "tunnel" => world::interruptible(tunnel::measure(world)).await?,
        "gateway" => world::interruptible(gateway::measure()).await?,
        "carry" => world::interruptible(carry::measure(world)).await?,
        "ledger" => world::interruptible(ledger::measure(world)).await?,
        "ledger-scale" => world::interruptible(ledger_scale::measure(world)).await?,
        other => anyhow::bail!("there is no benchmark {other:?}"),
    };
    Ok(Outcome::Measured(table))
}

fn say(text: &str) {
    // A closed pipe on the other side is no reason to stop measuring.
    let _ = writeln!(std::io::stdout(), "{text}");
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    if let Some(Inner::Part { part }) = cli.part {
        return tunnel::run_part(part).await.map(|()| ExitCode::SUCCESS);
    }
    let filter = cli.filter.as_deref().unwrap_or("");
    let chosen: Vec<&str> = NAMES.into_iter().filter(|name| name.contains(filter)).collect();
    if cli.list || chosen.is_empty() {
        say(&NAMES.join("\n"));
        return Ok(if cli.list { ExitCode::SUCCESS } else { ExitCode::from(2) });
    }
    let place = cli.dir.unwrap_or_else(std::env::temp_dir);
    let world = World::new(place, cli.bin_dir, cli.command)?;
    let files = outside::file_system(world.place());
    say(&format!("{}; files on {files}", outside::machine()));

    let mut reports = Vec::new();
    let mut bad = false;
    for name in chosen {
        let load = outside::load();
        match measure(name, &world).await {
            Ok(Outcome::Measured(table)) => {
                say(table.text(&load).trim_end());
                reports.push(table.json(&load));
            }
            Ok(Outcome::Impossible(why)) => {
                say(&format!("\n{name}: {why}"));
                // Left out silently only where nobody asked for it by name.
                bad |= !filter.is_empty();
            }
            Err(error) if error.is::<world::Interrupted>() => return Err(error),
            Err(error) => {
                say(&format!("\n{name} failed: {error:#}"));
                bad = true;
            }
        }
    }
    if let Some(file) = cli.json {
        let text = json!({ "machine": outside::machine(), "files": files, "benchmarks": reports });
        std::fs::write(&file, format!("{text:#}\n"))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
