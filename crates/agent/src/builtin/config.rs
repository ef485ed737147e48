//! Configuration of the built-in agent, as the guest hands it over.
//!
//! Must never hold a credential: the model door adds the key outside.

use std::collections::BTreeMap;
use std::fmt;

use cofferdam_run::spec::Dialect;
use cofferdam_wire::layout;
use serde::{Deserialize, Serialize};

/// Everything that the agent needs to know.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuiltinConfig {
    /// The task, as the person wrote it.
    pub task: String,
    /// Dialect spoken on the model door.
    pub dialect: Dialect,
    /// Model id.
    pub model: String,
    /// The model door: `http://` and a loopback address with a port, optionally a path prefix.
    #[serde(default = "default_base_url")]
    pub base_url: String,
    /// Upper bound of model turns.
    pub max_steps: u32,
    /// Where the work is: an absolute path.
    #[serde(default = "default_cwd")]
    pub cwd: String,
    /// Environment of commands: exactly this.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Commands run in the shell host, whose channel is at descriptor
    /// [`layout::SHELL_FD`](cofferdam_wire::layout::SHELL_FD).
    #[serde(default)]
    pub shell_host: bool,
}

impl BuiltinConfig {
    /// The configuration for the sandbox's own layout.
    #[must_use]
    pub fn new(task: String, dialect: Dialect, model: String, max_steps: u32) -> Self {
        Self {
            task,
            dialect,
            model,
            base_url: default_base_url(),
            max_steps,
            cwd: default_cwd(),
            env: BTreeMap::new(),
            shell_host: false,
        }
    }
}

/// Names of variables, never their values: the proxy's token is among them.
impl fmt::Debug for BuiltinConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuiltinConfig")
            .field("task", &self.task)
            .field("dialect", &self.dialect)
            .field("model", &self.model)
            .field("base_url", &self.base_url)
            .field("max_steps", &self.max_steps)
            .field("cwd", &self.cwd)
            .field("env", &self.env.keys())
            .field("shell_host", &self.shell_host)
            .finish()
    }
}

fn default_base_url() -> String {
    format!("http://127.0.0.1:{}", layout::MODEL_PORT)
}

fn default_cwd() -> String {
    layout::REPO.to_owned()
}
