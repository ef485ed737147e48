//! The specification of a run: everything that was decided before it started.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::EngineKind;
use crate::limits::Budgets;

/// Who answers when something wants a person. Unattended and supervised exclude one another by type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Nobody is there: nothing waits for a person, outward effects are deferred.
    Unattended,
    /// A person is there: the run waits for decisions.
    Supervised,
}

/// The wire dialect of a model provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// Anthropic Messages, `POST /v1/messages`.
    Anthropic,
    /// OpenAI Chat Completions, `POST /v1/chat/completions`.
    OpenaiChat,
    /// OpenAI Responses, `POST /v1/responses`.
    OpenaiResponses,
    /// Gemini, `POST /v1beta/models/MODEL:streamGenerateContent`.
    Gemini,
}

/// The model that a run is pinned to. Holds no key: keys stay with the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelSpec {
    /// The provider's name in the configuration, for example `anthropic`.
    pub provider: String,
    /// The wire dialect that the guest speaks.
    pub dialect: Dialect,
    /// The one model id that the gateway admits.
    pub model: String,
    /// Upstream base URL, `https://host[:port][/prefix]`; plain `http` only for a local service that
    /// the host's own configuration names.
    pub base_url: String,
}

/// What runs inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AgentSpec {
    /// The built-in agent: plan, then tools.
    Builtin {
        /// Upper bound of model turns.
        max_steps: u32,
    },
    /// Any command, as its argument vector. No shell is put around it.
    Command {
        /// Program and arguments; never empty.
        argv: Vec<String>,
    },
}

/// Resource limits of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Resources {
    /// Memory of all processes together, bytes; swap is not added.
    pub memory_bytes: u64,
    /// Processes and threads together.
    pub pids: u64,
    /// Processor time per wall time, thousandths: 2000 is two cores.
    pub cpu_millis: u64,
    /// Size of `/tmp`, bytes.
    pub tmp_bytes: u64,
    /// Open files per process.
    pub open_files: u64,
    /// Bytes that the work volume may take on the disk. A quota where the file system has one, else
    /// watched from the host: past it the run is stopped; the overshoot is stated in the limits.
    #[serde(default = "default_work_bytes")]
    pub work_bytes: u64,
    /// Files and directories that the work volume may hold, likewise.
    #[serde(default = "default_work_files")]
    pub work_files: u64,
}

fn default_work_bytes() -> u64 {
    Resources::default().work_bytes
}

fn default_work_files() -> u64 {
    Resources::default().work_files
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            memory_bytes: 4 << 30,
            pids: 512,
            cpu_millis: 2000,
            tmp_bytes: 1 << 30,
            open_files: 4096,
            work_bytes: 20 << 30,
            work_files: 2_000_000,
        }
    }
}

/// What the shell children of the agent may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShellNetwork {
    /// Nothing: not the egress door, not the model gateway.
    Off,
    /// The egress door under the run's rules, with a token of its own; never the model gateway.
    #[default]
    Rules,
}

/// How far agent and shell are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShellSeparation {
    /// Shell children live in a network namespace of their own, made before privileges went.
    Enforced,
    /// One user and one namespace hold both: each could take the other's token. Told, not enforced.
    #[default]
    Advisory,
}

/// Who inside a sandbox asked: the broker knows them by their tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Principal {
    /// The agent itself; for a command, everything that it starts.
    Agent,
    /// A command that the built-in agent started.
    Shell,
}

impl Principal {
    /// The stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Shell => "shell",
        }
    }
}

/// The agent's shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ShellSpec {
    /// What it may reach.
    pub network: ShellNetwork,
    /// How far that is kept.
    pub separation: ShellSeparation,
}

/// Everything that was decided before the run started. Stored, shown, hashed: holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunSpec {
    /// The task, as the person wrote it; empty for a bare command.
    pub task: String,
    /// Unattended or supervised.
    pub mode: Mode,
    /// What runs inside.
    pub agent: AgentSpec,
    /// The model, when one is used.
    pub model: Option<ModelSpec>,
    /// The engine that carries it.
    pub engine: EngineKind,
    /// Resource limits.
    pub resources: Resources,
    /// What may be used up.
    pub budgets: Budgets,
    /// Egress rules, `host:port` or `*.suffix:port`, canonical form.
    pub egress_allow: Vec<String>,
    /// Egress rules that beat the allow list.
    pub egress_deny: Vec<String>,
    /// Absolute path of the checkout on the host.
    pub checkout: String,
    /// Posture layers that may be missing without stopping the run, accepted by name.
    pub accept_degraded: Vec<String>,
    /// Names (never values) of the credentials that the broker may use for this run.
    pub credentials: Vec<String>,
    /// Names of environment variables passed into the sandbox by the person.
    pub env_names: Vec<String>,
    /// What the operator's configuration opens in the model gateway beyond plain generation, such as
    /// `types: web_search`. Empty by default.
    #[serde(default)]
    pub gateway_opened: Vec<String>,
    /// A target that no rule admits is tried before the agent starts. Records from before this
    /// existed have `false`.
    #[serde(default)]
    pub egress_test: bool,
    /// What the agent's shell may reach.
    #[serde(default)]
    pub shell: ShellSpec,
    /// Local services that the host's configuration opens to the run, `NAME = ADDRESS`.
    #[serde(default)]
    pub services: Vec<String>,
}
