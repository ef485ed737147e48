//! The engines of this host, each made ready when it is first asked for.

use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_run::EngineKind;
use cofferdam_sandbox::docker::{Base, DockerConfig, DockerEngine};
use cofferdam_sandbox::native::{NativeConfig, NativeEngine};
use cofferdam_sandbox::{Engine, RootSource, SandboxError};

use crate::config::Config;
use crate::paths::Paths;

/// How to reach the engines.
#[derive(Debug, Clone)]
pub struct Engines {
    launcher: PathBuf,
    runs: PathBuf,
    state: PathBuf,
    docker_host: Option<String>,
    docker_base: Option<String>,
    native_root: Option<PathBuf>,
}

impl Engines {
    /// From the configuration; `docker_host` is what `DOCKER_HOST` says.
    #[must_use]
    pub fn new(
        config: &Config,
        paths: &Paths,
        launcher: PathBuf,
        docker_host: Option<String>,
    ) -> Self {
        Self {
            launcher,
            runs: paths.runs(),
            state: paths.engine_state(),
            docker_host: config.docker.host.clone().or(docker_host),
            docker_base: config.docker.base.clone(),
            native_root: config.native.root.clone(),
        }
    }

    /// The engine of that kind.
    ///
    /// # Errors
    /// [`SandboxError`] with the way out when it cannot be reached.
    pub async fn get(&self, kind: EngineKind) -> Result<Arc<dyn Engine>, SandboxError> {
        match kind {
            EngineKind::Native => Ok(Arc::new(NativeEngine::new(NativeConfig {
                launcher: Some(self.launcher.clone()),
                runs_root: self.runs.clone(),
            }))),
            EngineKind::Docker | EngineKind::Podman | EngineKind::Gvisor => {
                let base = self.docker_base.clone().map_or(Base::HostFiles, Base::Image);
                let config = DockerConfig {
                    host: self.docker_host.clone(),
                    base,
                    state_dir: self.state.clone(),
                };
                Ok(Arc::new(DockerEngine::connect(config).await?))
            }
        }
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
