//! The command line, in one definition: parsing, help, completions and manual pages come from it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use cofferdam_run::EngineKind;
use cofferdam_run::spec::ShellNetwork;

/// Runs AI coding agents unattended in a sealed sandbox and brings back commits to review.
#[derive(Debug, Parser)]
#[command(
    name = "cofferdam",
    version,
    about,
    after_help = "Exit codes: 0 done or completed, 1 the run failed, 2 wrong use or configuration, \
                  3 refused before anything started, 4 conflict, 5 not found, 6 a record does not verify, \
                  130 cancelled."
)]
pub(crate) struct Cli {
    /// Print machine-readable JSON on standard output.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Configuration file [default: ~/.config/cofferdam/config.toml].
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Data directory [default: ~/.local/share/cofferdam].
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run an agent on this checkout: the built-in one with a task, or any command after `--`.
    Run(Box<RunArgs>),
    /// List runs, newest first.
    Ps {
        /// Only those that are not over.
        #[arg(long)]
        live: bool,
        /// How many.
        #[arg(short = 'n', long, default_value_t = 20)]
        limit: u32,
    },
    /// Output and events of a run.
    Logs {
        /// Run id, or its beginning.
        run: String,
        /// Go on until the run is over.
        #[arg(short, long)]
        follow: bool,
        /// Only the agent's own output.
        #[arg(long)]
        output: bool,
    },
    /// What came of a run: verdict, commits, spend, egress, posture.
    Show {
        /// Run id, or its beginning.
        run: String,
    },
    /// The review record of a run.
    Record {
        #[command(subcommand)]
        action: RecordAction,
    },
    /// Connections that the run asked for.
    Egress {
        #[command(subcommand)]
        action: EgressAction,
    },
    /// What the run changed, risky files first.
    Diff {
        /// Run id, or its beginning.
        run: String,
        /// Only the list of files.
        #[arg(long)]
        stat: bool,
    },
    /// Put the run's commits onto the current branch of this checkout.
    Apply {
        /// Run id, or its beginning.
        run: String,
        /// Make a branch at the run's commits instead; the checkout stays as it is.
        #[arg(long, value_name = "NAME")]
        as_branch: Option<String>,
    },
    /// Try again what a run of the service did not bring about, as it was, with fresh budgets.
    Retry {
        /// A run of it, or the beginning of its id.
        run: String,
    },
    /// Stop a run; what it made so far is brought back.
    Cancel {
        /// Run id, or its beginning.
        run: String,
    },
    /// Settle runs whose process is gone and remove what they left behind.
    Sweep {
        /// Only say what there is to do.
        #[arg(long)]
        dry_run: bool,
    },
    /// Serve the page and the API on this machine, and supervise runs that outlive their terminal.
    Serve(crate::cmd::serve::ServeArgs),
    /// Print an address for one browser; starts the service when none is up.
    Web,
    /// End the service; live runs are cancelled and their work brought back.
    Stop,
    /// Print the OpenAPI document of the API.
    Openapi,
    /// Which engines work here, which layers hold, what is missing and how to mend it.
    Doctor,
    /// The configuration.
    Config {
        #[command(subcommand)]
        action: ConfigAction,
    },
    /// Print completions for a shell.
    Completions {
        /// Which.
        shell: clap_complete::Shell,
    },
    /// Write manual pages into a folder.
    #[command(hide = true)]
    Man {
        /// Which.
        folder: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecordAction {
    /// Print it.
    Show {
        /// Run id, or its beginning.
        run: String,
    },
    /// Check chain and verdict of a record file, offline.
    Verify {
        /// The file, or `-` for standard input.
        file: PathBuf,
    },
    /// Print the JSON Schema of records.
    Schema,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EgressAction {
    /// Every decision of a run.
    Show {
        /// Run id, or its beginning.
        run: String,
        /// Only what was refused.
        #[arg(long)]
        refused: bool,
    },
    /// Rules that would have admitted what was refused, for you to review.
    Suggest {
        /// Run id, or its beginning.
        run: String,
        /// Never one wildcard instead of several names.
        #[arg(long)]
        exact: bool,
    },
    /// What other rules would have decided about everything that a run asked for.
    Replay {
        /// Run id, or its beginning.
        run: String,
        /// A configuration file; its [egress] and [services] are taken.
        #[arg(long, value_name = "FILE")]
        policy: PathBuf,
        /// Exit with 1 when anything would have been decided otherwise.
        #[arg(long)]
        fail_on_change: bool,
    },
    /// Run a file of policy vectors through the real proxy, without any network.
    Check {
        /// One JSON object a line.
        file: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigAction {
    /// Print where it is read from and what it says after defaults.
    Show,
    /// Print the path.
    Path,
    /// Check a file.
    Check {
        /// Which; the usual one otherwise.
        file: Option<PathBuf>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineArg {
    /// Linux namespaces, no daemon.
    Native,
    /// A Docker engine.
    Docker,
    /// A Podman engine.
    Podman,
    /// A Docker engine whose sandboxes run under gVisor.
    Gvisor,
}

impl From<EngineArg> for EngineKind {
    fn from(arg: EngineArg) -> Self {
        match arg {
            EngineArg::Native => Self::Native,
            EngineArg::Docker => Self::Docker,
            EngineArg::Podman => Self::Podman,
            EngineArg::Gvisor => Self::Gvisor,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShellNetworkArg {
    /// Nothing.
    Off,
    /// What the egress rules admit.
    Rules,
}

impl From<ShellNetworkArg> for ShellNetwork {
    fn from(arg: ShellNetworkArg) -> Self {
        match arg {
            ShellNetworkArg::Off => Self::Off,
            ShellNetworkArg::Rules => Self::Rules,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  cofferdam run \"Make the flaky test pass\"\n  \
                        cofferdam run --allow static.crates.io:443 \"Update the lock file\"\n  \
                        cofferdam run -- ./scripts/codemod.sh --all")]
pub(crate) struct RunArgs {
    /// The task for the built-in agent.
    #[arg(conflicts_with = "command")]
    pub(crate) task: Option<String>,
    /// Any command instead of the built-in agent, after `--`.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// The checkout [default: the current directory].
    #[arg(short = 'C', long, value_name = "DIR")]
    pub(crate) checkout: Option<String>,
    /// Engine.
    #[arg(long, value_enum)]
    pub(crate) engine: Option<EngineArg>,
    /// Model, as PROVIDER/MODEL.
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Admit a host, as host:port or *.suffix:port. Repeatable.
    #[arg(long, value_name = "RULE")]
    pub(crate) allow: Vec<String>,
    /// Refuse a host even if another rule admits it. Repeatable.
    #[arg(long, value_name = "RULE")]
    pub(crate) deny: Vec<String>,
    /// Pass an environment variable of yours into the sandbox, by name. Its value is readable inside.
    #[arg(long, value_name = "NAME")]
    pub(crate) env: Vec<String>,
    /// Wall clock, for example 30m.
    #[arg(long, value_name = "TIME")]
    pub(crate) wall_clock: Option<String>,
    /// Longest silence of a working agent, for example 30m, or off.
    #[arg(long, value_name = "TIME")]
    pub(crate) silence: Option<String>,
    /// Model tokens.
    #[arg(long)]
    pub(crate) tokens: Option<u64>,
    /// Money in US dollars.
    #[arg(long, value_name = "USD")]
    pub(crate) money: Option<String>,
    /// Turns of the built-in agent.
    #[arg(long)]
    pub(crate) max_steps: Option<u32>,
    /// Memory, for example 4GiB.
    #[arg(long)]
    pub(crate) memory: Option<String>,
    /// Processes and threads.
    #[arg(long)]
    pub(crate) pids: Option<u64>,
    /// Cores.
    #[arg(long)]
    pub(crate) cpus: Option<f64>,
    /// Processor time of all processes together, for example 30m.
    #[arg(long, value_name = "TIME")]
    pub(crate) cpu_time: Option<String>,
    /// Bytes that the work may take on the disk, for example 20G.
    #[arg(long, value_name = "SIZE")]
    pub(crate) work_size: Option<String>,
    /// Files and directories of the work.
    #[arg(long, value_name = "N")]
    pub(crate) work_files: Option<u64>,
    /// What the commands of the built-in agent may reach.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) shell_network: Option<ShellNetworkArg>,
    /// Refuse to run where agent and shell cannot be kept apart.
    #[arg(long)]
    pub(crate) require_shell_separation: bool,
    /// Run although these posture layers do not hold (names, separated by commas).
    #[arg(long, value_delimiter = ',', value_name = "LAYER")]
    pub(crate) accept_degraded: Vec<String>,
    /// Hand it to the service, which is started when none is up, and do not wait: the run outlives
    /// this terminal.
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Show only the result.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
