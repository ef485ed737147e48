//! Messages between host and guest, protocol version 2.
//!
//! Order on the control stream: guest `Hello` → host `Start` → (host opens `BundleIn`) → guest
//! `WallTested` (when `Start` asks for it) → `WorkspaceReady` → `AgentStarted` → any number of `Output`, `Agent`, `Prompt` → `AgentEnded` →
//! `Manifest` (with a `BundleOut` stream when it names anything) → `Done` → host closes the link.
//! `Failed` may stand in place of any later message of the guest. The host may send `Cancel` at any time
//! after `Start`; the guest then ends the agent and goes on with `AgentEnded`.

use std::collections::BTreeMap;

use cofferdam_run::ids::ObjectId;
use cofferdam_run::posture::Probe;
use cofferdam_run::spec::Dialect;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Version spoken by this build. A peer with another version is refused.
pub const PROTOCOL_VERSION: u32 = 2;

/// Entries of [`Manifest::not_taken`]. Further ones are counted.
pub const NOT_TAKEN: usize = 50;

/// Characters of one such entry. The rest is cut.
pub const NOT_TAKEN_CHARS: usize = 300;

/// First message on each stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "stream", rename_all = "snake_case")]
pub enum StreamOpen {
    /// Guest to host, exactly once, first: [`Up`] and [`Down`] in length-delimited JSON frames.
    Control,
    /// Guest to host, one per connection accepted on the proxy port; then raw bytes both ways.
    Egress,
    /// The same for the proxy port in the shell's own network namespace: the host takes the shell's
    /// token there and no other.
    ShellEgress,
    /// Guest to host, one per connection accepted on the model port; then raw HTTP/1.1 both ways.
    Model,
    /// Host to guest: the bundle, raw bytes, ends with the host's half-close.
    BundleIn {
        /// Exact size.
        bytes: u64,
    },
    /// Guest to host: the bundle, raw bytes, ends with the guest's half-close.
    BundleOut,
}

/// From the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Up {
    /// First message.
    Hello {
        /// Protocol version of the guest.
        protocol: u32,
        /// Build version, for people.
        version: String,
        /// What the guest sees of itself.
        probe: Box<Probe>,
    },
    /// The guest tried what must not work, see [`WallTest`]. Comes before `WorkspaceReady`.
    WallTested {
        /// Status of the answer to CONNECT; `None` when there was none in time.
        tunnel: Option<u16>,
        /// Status of the answer to plain HTTP, likewise.
        plain: Option<u16>,
        /// Ways around the door that are open; empty when there is none.
        open: Vec<String>,
    },
    /// The bundle was imported and checked out.
    WorkspaceReady {
        /// Commit at `HEAD`.
        head: ObjectId,
    },
    /// The agent runs.
    AgentStarted {
        /// Program.
        program: String,
    },
    /// Output of the agent. Bytes are decoded lossily, split at most every 64 KiB.
    Output {
        /// Which stream.
        stream: OutputStream,
        /// Text.
        text: String,
    },
    /// Something that the agent says about its work.
    Agent {
        /// `plan`, `tool`, `message` or `finish`.
        kind: String,
        /// One line.
        text: String,
    },
    /// The agent asked for a decision and was refused, since nobody is there.
    Prompt {
        /// One line.
        text: String,
    },
    /// The agent ended.
    AgentEnded(AgentEnd),
    /// What there is to bring back.
    Manifest(Manifest),
    /// All is told; the guest waits for the link to close.
    Done,
    /// The guest cannot go on.
    Failed {
        /// Stable code.
        code: ErrorCode,
        /// For people.
        message: String,
    },
}

/// From the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Down {
    /// Begin.
    Start(Box<StartSpec>),
    /// End the agent, collect, finish.
    Cancel {
        /// For people.
        reason: String,
    },
}

/// Which output stream of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How the agent ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentEnd {
    /// Exit code, when it exited.
    pub code: Option<i32>,
    /// Signal, when it was killed.
    pub signal: Option<i32>,
    /// True when the guest ended it after `Cancel`.
    pub cancelled: bool,
    /// The agent's last words, at most 8,000 characters.
    pub report: String,
    /// Bytes of output that were cut.
    pub output_cut_bytes: u64,
}

/// Everything that the guest needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StartSpec {
    /// The run, for prompts and logs.
    pub run: String,
    /// The repository.
    pub workspace: WorkspaceSpec,
    /// What to start.
    pub agent: AgentStart,
    /// Environment of the agent: exactly this, nothing inherited.
    pub env: BTreeMap<String, String>,
    /// Most bytes of agent output to relay; the rest is cut and counted.
    pub output_bytes: u64,
    /// What to try before the agent starts; `None` outside a sandbox, where much would be open.
    #[serde(default)]
    pub wall_test: Option<WallTest>,
    /// The commands of the built-in agent; `None` when the agent is a command itself.
    #[serde(default)]
    pub shell: Option<ShellStart>,
}

/// How the commands of the built-in agent are started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShellStart {
    /// Their environment: exactly this, nothing inherited.
    pub env: BTreeMap<String, String>,
    /// They are started in the network namespace that was made for them. A guest that was started
    /// without one fails.
    pub separate: bool,
    /// The egress proxy is reachable from there. Without `separate` it always is.
    pub proxy: bool,
}

/// Things that must not work from inside, tried before any agent runs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WallTest {
    /// A host name that no rule admits, to be asked for through the proxy.
    pub target: String,
    /// Value of `Proxy-Authorization` that the door accepts.
    pub proxy_authorization: String,
    /// A port on which the host listens on its own loopback while the test runs.
    pub host_port: Option<u16>,
    /// Name of an abstract socket on which the host listens while the test runs.
    pub host_socket: Option<String>,
}

/// Leaves the credential out.
impl std::fmt::Debug for WallTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WallTest").field("target", &self.target).finish_non_exhaustive()
    }
}

/// The repository that comes in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkspaceSpec {
    /// Commit to check out; the bundle contains it.
    pub base: ObjectId,
    /// Name of the ref in the bundle that points to `base`.
    pub bundle_ref: String,
    /// Local branch to put it on.
    pub branch: String,
    /// `sha1` or `sha256`.
    pub object_format: String,
    /// Identity for commits.
    pub identity: GitIdentity,
}

/// Name and address for commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GitIdentity {
    /// Name.
    pub name: String,
    /// Address.
    pub email: String,
}

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AgentStart {
    /// The built-in agent, as `guest agent`, with this configuration.
    Builtin {
        /// The task.
        task: String,
        /// Dialect spoken on the model port.
        dialect: Dialect,
        /// Model id.
        model: String,
        /// Upper bound of model turns.
        max_steps: u32,
    },
    /// A command.
    Command {
        /// Program and arguments.
        argv: Vec<String>,
    },
}

/// What there is to bring back. A claim: the host checks every line of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// Commit at `HEAD`; `None` when it could not be read.
    pub head: Option<ObjectId>,
    /// Refs in the bundle.
    pub refs: Vec<ManifestRef>,
    /// Commits over the base.
    pub commits: u64,
    /// A last commit was made of files that the agent had left uncommitted.
    pub leftovers_committed: bool,
    /// Size of the bundle that follows on `BundleOut`; zero when none follows.
    pub bundle_bytes: u64,
    /// What is in the work tree and not in the bundle, with why: at most [`NOT_TAKEN`] entries of at
    /// most [`NOT_TAKEN_CHARS`] characters. What is ignored on purpose is not named.
    #[serde(default)]
    pub not_taken: Vec<String>,
    /// How many there are; more than the list has when it was cut.
    #[serde(default)]
    pub not_taken_count: u64,
    /// Why the files that the agent left uncommitted could not be committed; `None` when they were,
    /// or there were none.
    #[serde(default)]
    pub leftovers_error: Option<String>,
}

/// One ref of the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestRef {
    /// Full name, or `HEAD`.
    pub name: String,
    /// Object.
    pub oid: ObjectId,
}

/// Why the guest cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The bundle did not import, or `HEAD` is not the base.
    WorkspaceIn,
    /// The agent's program did not start.
    AgentStart,
    /// The result could not be packed.
    Collect,
    /// The host sent something unexpected.
    Protocol,
}
