//! Which engine a sandbox runs on.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A sandbox engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// Linux namespaces, Landlock, seccomp and cgroups, set up by Cofferdam itself. No daemon.
    Native,
    /// A Docker engine through its API.
    Docker,
    /// A Podman engine, rootful or rootless, through its Docker-compatible API.
    Podman,
    /// A Docker engine that runs the sandbox under gVisor (`runsc`): a kernel of its own.
    Gvisor,
}

impl EngineKind {
    /// Every engine, in order of preference.
    pub const ALL: [Self; 4] = [Self::Native, Self::Docker, Self::Podman, Self::Gvisor];

    /// The name used in configuration, labels and output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Gvisor => "gvisor",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for EngineKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|k| k.as_str() == text)
            .ok_or_else(|| format!("unknown engine {text:?}: use native, docker, podman or gvisor"))
    }
}
