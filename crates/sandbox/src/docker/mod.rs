//! Engines that speak Docker's API: Docker itself, Podman, and Docker with gVisor as runtime.
//!
//! One engine, one instance: it creates, compares, starts and removes containers and volumes that
//! carry this instance's labels, and must never touch any other, nor run the `docker` command. What the
//! three differ in is one value, [`flavour::Flavour`].

mod address;
mod beyond;
mod call;
mod create;
mod flavour;
mod image;
mod labels;
mod outside;
mod probe;
mod profile;
mod readback;
mod remove;
mod running;
mod salvage;
mod stdio;
mod usage;
mod view;
mod words;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListContainersOptionsBuilder, ListVolumesOptionsBuilder,
};
use cofferdam_run::engine::EngineKind;
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::ids::{InstanceId, RunId};
use cofferdam_run::posture::LayerReport;
use cofferdam_run::spec::Resources;
use cofferdam_wire::layout;

pub use address::{CONNECT_TIMEOUT, OLDEST_API};
pub use call::{
    CALL_TIMEOUT, IMAGE_TIMEOUT, KILL_TIMEOUT, MAX_DETAIL, REMOVE_TIMEOUT, USAGE_TIMEOUT,
};
pub use flavour::{Behind, GVISOR_LEAST_PIDS};
pub use image::{KEPT_IMAGES, MAX_GUEST_BYTES, MAX_LAYER_BYTES, MAX_LAYER_ENTRIES, MAX_REFERENCE};
pub use labels::{EXPIRES_MS, FINGERPRINT, INSTANCE, MANAGED, RUN};
pub use probe::MAX_WARNINGS;
pub use remove::{GONE_LOOKS, GONE_PAUSE};
pub use running::{WAIT_AGAIN, WAIT_LOOK};
pub use salvage::{MAX_SALVAGE_BYTES, MAX_SALVAGE_ENTRIES, SALVAGE_TIMEOUT};
pub use stdio::STREAM_BUFFER;
pub use usage::COUNT_EVERY;

use crate::engine::{Engine, EngineReport, Evidence, Found, Prepared, RootSource, SandboxSpec};
use crate::error::SandboxError;
use crate::spec::Hardening;
use address::Contact;
use call::{CallError, Client};
use create::{Asked, ProfileFile};
use flavour::{Flavour, SeccompForm};
use image::{Image, Images, Recipe};
use labels::Owner;
use probe::Facts;
use remove::Remains;
use running::PreparedContainer;

/// Most sandboxes that a listing returns; the rest shows when these are removed.
pub const MAX_LISTED: usize = 10_000;

/// What lies under the guest in the image of [`RootSource::HostUserland`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// The host's own programs and libraries: no registry is needed.
    HostFiles,
    /// `IMAGE@sha256:…`, or the id `sha256:…` of an image that the engine has.
    Image(String),
}

/// How to reach an engine and what to build on.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// As in `DOCKER_HOST`: `unix:///PATH` or `tcp://LOOPBACK:PORT`. `None`: the usual sockets.
    pub host: Option<String>,
    /// What lies under the guest, where the run does not name an image itself.
    pub base: Base,
    /// Directory for locks, profiles and remembered digests. Created when missing; one engine each,
    /// Docker and gVisor on it together.
    pub state_dir: PathBuf,
    /// Which engine answers there.
    pub behind: Behind,
}

/// An engine behind Docker's API.
#[derive(Debug)]
pub struct DockerEngine {
    client: Client,
    facts: Facts,
    contact: Contact,
    flavour: Flavour,
    state_dir: PathBuf,
    base: Base,
    images: Images,
    entrypoint: Vec<String>,
}

impl DockerEngine {
    /// Connects, negotiates the API version, and reads what the engine offers.
    ///
    /// # Errors
    /// `SANDBOX-001` when there is no engine, it is on another machine, may not be used, or is too
    /// old; the error says what was tried.
    pub async fn connect(config: DockerConfig) -> Result<Self, SandboxError> {
        let flavour = Flavour::of(&config.behind);
        let (contact, client, facts) =
            Self::reach(&config, &flavour).await.map_err(|error| error.on(flavour.kind))?;
        Ok(Self {
            images: Images::new(client.clone(), config.state_dir.clone()),
            client,
            facts,
            contact,
            flavour,
            state_dir: config.state_dir,
            base: config.base,
            entrypoint: vec![layout::GUEST_BIN.to_owned()],
        })
    }

    async fn reach(
        config: &DockerConfig,
        flavour: &Flavour,
    ) -> Result<(Contact, Client, Facts), SandboxError> {
        let contact = address::contact(config.host.as_deref(), flavour).await?;
        let client = Client::new(contact.docker.clone());
        let facts = Facts::read(&client, &contact, flavour).await?;
        Ok((contact, client, facts))
    }

    /// The report for `doctor`, also when there is no engine.
    pub async fn diagnose(config: DockerConfig) -> EngineReport {
        let kind = Flavour::of(&config.behind).kind;
        match Self::connect(config).await {
            Ok(engine) => engine.facts.report(),
            Err(error) => probe::unusable(&error, kind),
        }
    }

    /// Starts this instead of the guest. For tests of the engine itself.
    #[doc(hidden)]
    #[must_use]
    pub fn with_entrypoint(mut self, argv: &[&str]) -> Self {
        self.entrypoint = argv.iter().map(|arg| (*arg).to_owned()).collect();
        self
    }

    /// Lowers every limit on a call to the engine, also for sandboxes that exist already. For tests of
    /// the engine itself.
    #[doc(hidden)]
    pub fn wait_at_most(&self, longest: Duration) {
        self.client.wait_at_most(longest);
    }

    fn base_for(&self, root: &RootSource) -> Result<Base, SandboxError> {
        match root {
            RootSource::HostUserland => Ok(self.base.clone()),
            RootSource::Image(reference) => Ok(Base::Image(reference.clone())),
            RootSource::Directory(path) => Err(SandboxError::Root {
                engine: EngineKind::Docker,
                reason: format!(
                    "{} is a directory: this engine takes an image or the host's files",
                    path.display()
                ),
            }),
        }
    }

    async fn image(&self, spec: &SandboxSpec) -> Result<Image, SandboxError> {
        let recipe = Recipe {
            guest: spec.guest_binary.clone(),
            base: self.base_for(&spec.root)?,
            // Limits are the run's, not the image's: one image serves runs of every size.
            hardening: Hardening::for_run(&Resources::default()).digest(),
        };
        self.images.ensure(&recipe).await
    }

    /// A fresh volume. The API answers with an existing one of the same name, so it is asked first.
    async fn create_volume(&self, spec: &SandboxSpec, name: &str) -> Result<(), SandboxError> {
        match self.client.ask(CALL_TIMEOUT, self.client.docker.inspect_volume(name)).await {
            Err(error) if error.says_gone() => {}
            Err(error) => return Err(error.during("inspect the run's volume")),
            Ok(_) => return Err(SandboxError::Exists { sandbox: name.to_owned() }),
        }
        let request = VolumeCreateRequest {
            name: Some(name.to_owned()),
            driver: Some("local".to_owned()),
            labels: Some(labels::for_spec(spec)),
            ..VolumeCreateRequest::default()
        };
        self.client
            .ask(CALL_TIMEOUT, self.client.docker.create_volume(request))
            .await
            .map(|_| ())
            .map_err(|error| error.during("create the run's volume"))
    }

    /// Creates the container and compares it. On an error something may exist: the caller removes it.
    async fn create(
        &self,
        spec: &SandboxSpec,
        asked: &Asked,
    ) -> Result<(String, Vec<LayerReport>), Refusal> {
        let name = labels::container_name(&spec.run);
        let options = CreateContainerOptionsBuilder::default().name(&name).build();
        let created = self
            .client
            .ask(
                CALL_TIMEOUT,
                self.client.docker.create_container(Some(options), asked.body.clone()),
            )
            .await
            .map_err(|error| match error {
                CallError::Refused { status: 409, .. } => {
                    Refusal::Error(SandboxError::Exists { sandbox: name.clone() })
                }
                gone if gone.says_gone() => Refusal::ImageGone,
                other => Refusal::Error(other.during("create the container")),
            })?;
        for warning in &created.warnings {
            tracing::warn!(warning = %call::cut(warning), "the engine warns about a sandbox");
        }
        let seen = self
            .client
            .ask(CALL_TIMEOUT, self.client.docker.inspect_container(&created.id, None))
            .await
            .map_err(|error| Refusal::Error(error.during("read the container back")))?;
        let shown =
            if self.flavour.is_podman() { words::podman(asked, seen) } else { words::docker(seen) };
        let compared = readback::compare(asked, &shown, &created.warnings, &self.facts);
        if !compared.other.is_empty() {
            return Err(Refusal::Error(SandboxError::Differs {
                engine: self.flavour.kind,
                detail: call::cut(&compared.other.join("; ")),
            }));
        }
        Ok((created.id, compared.layers))
    }

    /// One try with one image. What a failed try made is removed again.
    async fn try_prepare(
        &self,
        spec: &SandboxSpec,
        image: Image,
    ) -> Result<PreparedContainer, Refusal> {
        let profile = self.profile(spec).map_err(Refusal::Error)?;
        let asked = create::request(spec, &image, &self.entrypoint, &self.flavour, profile);
        self.create_volume(spec, &asked.volume).await.map_err(Refusal::Error)?;
        match self.create(spec, &asked).await {
            Ok((id, read_back)) => Ok(PreparedContainer {
                flavour: self.flavour.clone(),
                hardening: spec.hardening.clone(),
                client: self.client.clone(),
                id,
                name: labels::container_name(&spec.run),
                volume: asked.volume,
                evidence: Evidence {
                    engine_version: self.facts.version.clone(),
                    hardening: spec.hardening.digest(),
                    root: image.id,
                    guest: image.guest,
                    read_back,
                },
            }),
            Err(refusal) => {
                // By label rather than by id: an answer that came too late may still have made something.
                let outcome = match Remains::of(&self.client, &spec.instance, &spec.run).await {
                    Ok(remains) => remains.remove(&self.client).await,
                    Err(error) => TeardownOutcome::Failed { detail: error.to_string() },
                };
                if let TeardownOutcome::Failed { detail } = outcome {
                    tracing::warn!(%detail, "what a failed preparation left could not be removed");
                }
                Err(refusal)
            }
        }
    }
}

impl DockerEngine {
    /// The profile as a file, where this engine takes no text.
    fn profile(&self, spec: &SandboxSpec) -> Result<Option<ProfileFile>, SandboxError> {
        if self.flavour.seccomp == SeccompForm::Text {
            return Ok(None);
        }
        let content = self.flavour.profile(&spec.hardening.seccomp);
        match profile::write(&self.state_dir, &content) {
            Ok(place) => Ok(Some(ProfileFile { place, content })),
            Err(source) => Err(SandboxError::Io {
                attempt: "write the system-call profile in",
                path: self.state_dir.clone(),
                source,
            }),
        }
    }

    async fn prepared(&self, spec: &SandboxSpec) -> Result<PreparedContainer, SandboxError> {
        if spec.shell_host {
            return Err(SandboxError::Limits {
                engine: self.flavour.kind,
                reason: "it cannot give the agent's commands a network of their own".to_owned(),
                fix: "use the native engine, or [run] shell_separation = \"preferred\"".to_owned(),
            });
        }
        self.facts.require_runtime()?;
        self.flavour.fits(&spec.hardening.limits)?;
        let image = self.image(spec).await?;
        match self.try_prepare(spec, image).await {
            Ok(prepared) => return Ok(prepared),
            Err(Refusal::Error(error)) => return Err(error),
            Err(Refusal::ImageGone) => {}
        }
        let image = self.image(spec).await?;
        match self.try_prepare(spec, image).await {
            Ok(prepared) => Ok(prepared),
            Err(Refusal::Error(error)) => Err(error),
            Err(Refusal::ImageGone) => Err(SandboxError::Engine {
                engine: self.flavour.kind,
                attempt: "keep the image that was just built",
                detail: "something on this machine removes images at once".to_owned(),
            }),
        }
    }

    async fn listed(&self, instance: &InstanceId) -> Result<Vec<Found>, SandboxError> {
        let filters = labels::filter(instance);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let containers = self
            .client
            .ask(CALL_TIMEOUT, self.client.docker.list_containers(Some(options)))
            .await
            .map_err(|error| error.during("list containers"))?;
        let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
        let volumes = self
            .client
            .ask(CALL_TIMEOUT, self.client.docker.list_volumes(Some(options)))
            .await
            .map_err(|error| error.during("list volumes"))?;
        let mut found: BTreeMap<RunId, Found> = BTreeMap::new();
        let containers = containers.into_iter().filter_map(|c| {
            use bollard::models::ContainerSummaryStateEnum as State;
            let alive = matches!(c.state, Some(State::RUNNING | State::PAUSED | State::RESTARTING));
            Some((Owner::read(c.labels.as_ref()?)?, alive))
        });
        let volumes = volumes
            .volumes
            .into_iter()
            .flatten()
            .filter_map(|v| Some((Owner::read(&v.labels)?, false)));
        for (owner, alive) in
            containers.chain(volumes).filter(|(owner, _)| owner.instance == *instance)
        {
            let entry = found.entry(owner.run.clone()).or_insert_with(|| Found {
                sandbox: labels::container_name(&owner.run),
                run: owner.run,
                instance: owner.instance,
                running: false,
                expires_at: owner.expires_at,
            });
            entry.running |= alive;
        }
        Ok(found.into_values().take(MAX_LISTED).collect())
    }
}

/// Why a container was not created.
enum Refusal {
    /// Somebody removed the image between the look and the creation.
    ImageGone,
    /// Anything else.
    Error(SandboxError),
}

#[async_trait]
impl Engine for DockerEngine {
    fn kind(&self) -> EngineKind {
        self.flavour.kind
    }

    async fn probe(&self) -> EngineReport {
        // Asked anew: the engine may have been restarted with other settings since.
        match Facts::read(&self.client, &self.contact, &self.flavour).await {
            Ok(facts) => facts.report(),
            Err(error) => probe::unusable(&error.on(self.flavour.kind), self.flavour.kind),
        }
    }

    async fn prepare(&self, spec: &SandboxSpec) -> Result<Box<dyn Prepared>, SandboxError> {
        match self.prepared(spec).await {
            Ok(prepared) => Ok(Box::new(prepared)),
            Err(error) => Err(error.on(self.flavour.kind)),
        }
    }

    async fn list(&self, instance: &InstanceId) -> Result<Vec<Found>, SandboxError> {
        self.listed(instance).await.map_err(|error| error.on(self.flavour.kind))
    }

    async fn salvage(&self, found: &Found, to: &Path) -> Result<bool, SandboxError> {
        let kind = self.flavour.kind;
        let remains = Remains::of(&self.client, &found.instance, &found.run)
            .await
            .map_err(|error| error.during("list what is left of the run").on(kind))?;
        for id in &remains.containers {
            // Nothing may write there while it is read.
            remove::stop(&self.client, id).await;
            if salvage::work(&self.client, id, to).await.map_err(|error| error.on(kind))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn remove(&self, found: &Found) -> TeardownOutcome {
        match Remains::of(&self.client, &found.instance, &found.run).await {
            Ok(remains) => remains.remove(&self.client).await,
            Err(error) => {
                TeardownOutcome::Failed { detail: format!("the engine did not list it: {error}") }
            }
        }
    }
}
