//! Project tooling: `cargo xtask COMMAND`. CI and people run the same commands.
//!
//! Logic lives here, not in shell; `./dev` only makes sure that a toolchain is there.

mod bench;
mod build;
mod conformance;
mod demo;
mod engine;
mod fuzz;
mod lanes;
mod podman;
mod security_table;
mod sh;
mod soak;
mod test;
mod tidy;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "Checks, builds, lanes and benchmarks of Cofferdam")]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build the static sandbox binaries and the command.
    Build {
        /// With optimisation, into target/cofferdam/, ready to copy.
        #[arg(long)]
        dist: bool,
    },
    /// Everything that CI runs.
    Test,
    /// A sealed run on a small sample repository, start to finish.
    Demo {
        /// Use the real provider whose key is in the environment.
        #[arg(long)]
        live: bool,
        /// Engine to run on.
        #[arg(long, default_value = "native")]
        engine: String,
        /// Keep the sample repository and the data directory, and say where they are.
        #[arg(long)]
        keep: bool,
    },
    /// House rules: arrows between rooms, file headers, sizes, licences, error pages.
    Tidy,
    /// A long suite that is not part of CI.
    Lane {
        /// Its name; without one, the list.
        name: Option<String>,
        /// Lane `fuzz`: for each target.
        #[arg(long, default_value_t = 120)]
        seconds: u32,
        /// Lane `fuzz`: write what was found back to tests/fuzz/corpora, minimised.
        #[arg(long)]
        keep: bool,
    },
    /// Simulated lives of durable runs; prints the seed of each that breaks a rule.
    Simulate {
        /// How many.
        #[arg(long, default_value_t = 500)]
        seeds: u64,
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        from: u64,
    },
    /// Benchmarks, beside a peer in the same run.
    Bench {
        /// Only the benchmarks whose name contains this.
        filter: Option<String>,
        /// Also write every sample to this file.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Many runs, most of them killed at a random moment; then a count of everything that is left.
    Soak {
        /// How many.
        #[arg(long, default_value_t = 50)]
        runs: u32,
        /// Kill the host process of most of them.
        #[arg(long)]
        kill: bool,
        /// Engine to run on; others than native need COFFERDAM_TEST_DOCKER_HOST.
        #[arg(long, default_value = "native")]
        engine: String,
        /// Seed of everything that is random.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Runs at once.
        #[arg(long, default_value_t = 3)]
        jobs: u32,
        /// Run this program instead of one that is built now.
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
        /// Keep the directory, and say where it is.
        #[arg(long)]
        keep: bool,
    },
    /// Write the table of attempts in SECURITY.md from tests/security.
    SecurityTable {
        /// Only say whether it is up to date.
        #[arg(long)]
        check: bool,
    },
    /// The suite that every sandbox engine passes, on engines that it starts itself.
    Conformance {
        /// One engine: native, docker, podman, podman-rootless or gvisor.
        #[arg(long, conflicts_with = "all")]
        engine: Option<String>,
        /// Every engine.
        #[arg(long)]
        all: bool,
        /// Write what was seen into docs/engines.md; alone, what was seen last.
        #[arg(long)]
        write_docs: bool,
    },
    /// A private Docker engine for tests.
    Engine {
        #[command(subcommand)]
        action: EngineAction,
    },
}

#[derive(Subcommand)]
enum EngineAction {
    /// Install what is missing, start it, print DOCKER_HOST.
    Up {
        /// Directory for its data, socket and log.
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Stop it and what runs on it.
    Down {
        /// The same directory.
        #[arg(long)]
        dir: Option<PathBuf>,
    },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Task::Build { dist } => build::build(dist).map(|_| ()),
        Task::Test => test::test(),
        Task::Demo { live, engine, keep } => demo::demo(&demo::Options { live, engine, keep }),
        Task::Tidy => tidy::tidy(),
        Task::SecurityTable { check } => security_table::security_table(check),
        Task::Soak { runs, kill, engine, seed, jobs, program, keep } => {
            soak::soak(&soak::Options { runs, kill, engine, seed, jobs, program, keep })
        }
        Task::Lane { name, seconds, keep } => {
            lanes::lane(name.as_deref(), fuzz::Options { seconds, keep })
        }
        Task::Simulate { seeds, from } => sh::step("simulate", || {
            let (seeds, from) = (seeds.to_string(), from.to_string());
            sh::run(sh::cargo().args([
                "run",
                "--quiet",
                "--release",
                "--package",
                "cofferdam-testkit",
                "--features",
                "simulation",
                "--bin",
                "simulate",
                "--",
                "--seeds",
                &seeds,
                "--from",
                &from,
            ]))
        }),
        Task::Bench { filter, json } => bench::bench(filter.as_deref(), json.as_deref()),
        Task::Conformance { engine, all, write_docs } => {
            conformance::conformance(&conformance::Options { engine, all, write_docs })
        }
        Task::Engine { action: EngineAction::Up { dir } } => {
            let host = engine::up(&dir.unwrap_or_else(sh::engine_dir))?;
            sh::say(&format!("DOCKER_HOST={host}"));
            Ok(())
        }
        Task::Engine { action: EngineAction::Down { dir } } => {
            engine::down(&dir.unwrap_or_else(sh::engine_dir));
            Ok(())
        }
    }
}
