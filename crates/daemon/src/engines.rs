//! The engines of this host, each made ready when it is first asked for.

use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_run::EngineKind;
use cofferdam_sandbox::docker::{Base, Behind, DockerConfig, DockerEngine};
use cofferdam_sandbox::native::{NativeConfig, NativeEngine};
use cofferdam_sandbox::{Engine, RootSource, SandboxError};

use crate::config::Config;
use crate::paths::Paths;

/// Name that gVisor's own documentation gives to its runtime.
const RUNSC: &str = "runsc";

/// What the environment says of the engines, read by the command.
#[derive(Debug, Clone, Default)]
pub struct EngineHosts {
    /// `DOCKER_HOST`.
    pub docker: Option<String>,
    /// `CONTAINER_HOST`, which Podman's own command reads.
    pub podman: Option<String>,
}

/// How to reach the engines.
#[derive(Debug, Clone)]
pub struct Engines {
    launcher: PathBuf,
    runs: PathBuf,
    state: PathBuf,
    hosts: EngineHosts,
    docker_base: Option<String>,
    podman_base: Option<String>,
    runtime: String,
    native_root: Option<PathBuf>,
}

impl Engines {
    /// From the configuration, and from `hosts` where that says nothing.
    #[must_use]
    pub fn new(config: &Config, paths: &Paths, launcher: PathBuf, hosts: EngineHosts) -> Self {
        Self {
            launcher,
            runs: paths.runs(),
            state: paths.engine_state(),
            hosts: EngineHosts {
                docker: config.docker.host.clone().or(hosts.docker),
                podman: config.podman.host.clone().or(hosts.podman),
            },
            docker_base: config.docker.base.clone(),
            podman_base: config.podman.base.clone(),
            runtime: config.gvisor.runtime.clone().unwrap_or_else(|| RUNSC.to_owned()),
            native_root: config.native.root.clone(),
        }
    }

    /// The engine of that kind.
    ///
    /// # Errors
    /// [`SandboxError`] with the way out when it cannot be reached.
    pub async fn get(&self, kind: EngineKind) -> Result<Arc<dyn Engine>, SandboxError> {
        let behind = match kind {
            EngineKind::Native => {
                return Ok(Arc::new(NativeEngine::new(NativeConfig {
                    launcher: Some(self.launcher.clone()),
                    runs_root: self.runs.clone(),
                })));
            }
            EngineKind::Docker => Behind::Docker,
            EngineKind::Podman => Behind::Podman,
            EngineKind::Gvisor => Behind::Gvisor { runtime: self.runtime.clone() },
        };
        let podman = behind == Behind::Podman;
        let (host, base, state_dir) = if podman {
            // What one engine has built says nothing about another.
            (&self.hosts.podman, &self.podman_base, self.state.join(kind.as_str()))
        } else {
            (&self.hosts.docker, &self.docker_base, self.state.clone())
        };
        let config = DockerConfig {
            host: host.clone(),
            base: base.clone().map_or(Base::HostFiles, Base::Image),
            state_dir,
            behind,
        };
        Ok(Arc::new(DockerEngine::connect(config).await?))
    }

    /// Where the root file system of a sandbox comes from.
    #[must_use]
    pub fn root(&self, kind: EngineKind) -> RootSource {
        match (kind, &self.native_root) {
            (EngineKind::Native, Some(root)) => RootSource::Directory(root.clone()),
            _ => RootSource::HostUserland,
        }
    }
}
