//! The engine under test, and what it is known to give.

use std::path::{Path, PathBuf};

use cofferdam_run::EngineKind;
use cofferdam_run::posture::Layer;
use cofferdam_sandbox::Engine;
use cofferdam_sandbox::docker::{Base, Behind, DockerConfig, DockerEngine};
use cofferdam_sandbox::native::{NativeConfig, NativeEngine};

/// Which engine, in which of its ways to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Under {
    /// Namespaces, as root.
    Native,
    /// Docker with runc.
    Docker,
    /// Podman as root.
    Podman,
    /// Podman of an ordinary user.
    PodmanRootless,
    /// Docker with runsc.
    Gvisor,
}

/// Names the engine: `COFFERDAM_TEST_ENGINE`.
pub const ENGINE: &str = "COFFERDAM_TEST_ENGINE";
/// Its socket: `COFFERDAM_TEST_ENGINE_HOST`.
pub const HOST: &str = "COFFERDAM_TEST_ENGINE_HOST";
/// Where it keeps what it built between tests: `COFFERDAM_TEST_STATE`.
pub const STATE: &str = "COFFERDAM_TEST_STATE";

pub(crate) fn variable(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "a suite is told what to test")]
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Under {
    /// Each of them.
    pub const ALL: [Self; 5] =
        [Self::Native, Self::Docker, Self::Podman, Self::PodmanRootless, Self::Gvisor];

    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::PodmanRootless => "podman-rootless",
            Self::Gvisor => "gvisor",
        }
    }

    /// The engine that the environment names; the native one when it names none.
    ///
    /// # Panics
    /// When the name is none of an engine.
    #[must_use]
    pub fn test() -> Self {
        let name = variable(ENGINE).unwrap_or_else(|| "native".to_owned());
        Self::ALL
            .into_iter()
            .find(|under| under.name() == name)
            .unwrap_or_else(|| panic!("{ENGINE}={name}: no such engine"))
    }

    /// The product's name for it.
    #[must_use]
    pub fn kind(self) -> EngineKind {
        match self {
            Self::Native => EngineKind::Native,
            Self::Docker => EngineKind::Docker,
            Self::Podman | Self::PodmanRootless => EngineKind::Podman,
            Self::Gvisor => EngineKind::Gvisor,
        }
    }

    /// Layers that it does not give on the machine on which the suite runs in CI, so that a run that
    /// requires them is refused. The suite is red when it gives more, too: then this list is out of date.
    #[must_use]
    pub fn lacks(self) -> &'static [Layer] {
        match self {
            Self::Native | Self::Docker | Self::Podman => &[],
            // Cgroup version 1 knows no delegation; limits per process are left out with the others.
            Self::PodmanRootless => {
                &[Layer::User, Layer::MemoryLimit, Layer::PidsLimit, Layer::CpuLimit]
            }
            Self::Gvisor => &[Layer::Landlock],
        }
    }

    /// Its limits hold.
    #[must_use]
    pub fn limits(self) -> bool {
        !self.lacks().contains(&Layer::MemoryLimit)
    }

    /// The engine. `command` takes the guest's place in it; without one the guest itself runs.
    ///
    /// # Panics
    /// When it cannot be reached.
    pub async fn engine(self, runs: &Path, command: &[&str]) -> Box<dyn Engine> {
        let behind = match self {
            Self::Native => {
                let config = NativeConfig {
                    launcher: Some(binary("cofferdam-launch")),
                    runs_root: runs.to_owned(),
                };
                let engine = NativeEngine::new(config);
                return if command.is_empty() {
                    Box::new(engine)
                } else {
                    Box::new(engine.with_command(command))
                };
            }
            Self::Docker => Behind::Docker,
            Self::Podman | Self::PodmanRootless => Behind::Podman,
            Self::Gvisor => Behind::Gvisor { runtime: "runsc".to_owned() },
        };
        let engine = DockerEngine::connect(self.config(behind)).await.unwrap();
        if command.is_empty() {
            Box::new(engine)
        } else {
            Box::new(engine.with_entrypoint(command))
        }
    }

    fn config(self, behind: Behind) -> DockerConfig {
        let host = variable(HOST).or_else(|| variable("COFFERDAM_TEST_DOCKER_HOST"));
        let host = host.unwrap_or_else(|| {
            panic!("{HOST} is not set: run `cargo xtask conformance --engine {}`", self.name())
        });
        DockerConfig {
            host: Some(host),
            base: Base::HostFiles,
            state_dir: self.state_dir(),
            behind,
        }
    }

    /// A directory that an engine of another user can read too.
    fn state_dir(self) -> PathBuf {
        let dir = variable(STATE)
            .map_or_else(|| std::env::temp_dir().join("cofferdam-conformance"), PathBuf::from);
        let dir = dir.join(self.name());
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }
}

/// One of the binaries that go into, or start, a sandbox.
pub(crate) fn binary(name: &str) -> PathBuf {
    let dir = variable("COFFERDAM_BIN_DIR").expect("COFFERDAM_BIN_DIR is not set: run it by cargo");
    let path = PathBuf::from(dir).join(name);
    assert!(path.is_file(), "{} is missing: run `cargo xtask build`", path.display());
    path
}
