//! Start to exit of a trivial program in a Docker sandbox, beside bare calls of the engine's API.
//!
//! The first peer asks for the very same container, flags and volume included, as the engine shows
//! ours; what is left between the two is this project's own part. It removes what it makes: an image
//! that was not there before goes too.

use std::collections::BTreeSet;

use anyhow::Context as _;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    ListImagesOptionsBuilder, RemoveContainerOptionsBuilder, RemoveImageOptionsBuilder,
    RemoveVolumeOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use cofferdam_sandbox::docker::{Base, Behind, DockerConfig, DockerEngine};
use futures::TryStreamExt as _;

use crate::Outcome;
use crate::outside::{self, Watch};
use crate::report::{Table, Unit};
use crate::world::{SandboxMaker, World, instance, interruptible, run_id};

const ROUNDS: usize = 12;
const PROGRAM: &str = "/usr/bin/true";
const TIMEOUT_S: u64 = 120;

pub(crate) async fn measure(world: &World) -> anyhow::Result<Outcome> {
    let Some(host) = outside::docker_host() else {
        return Ok(Outcome::Impossible(
            "no engine: set DOCKER_HOST or COFFERDAM_TEST_DOCKER_HOST (`cargo xtask engine up`)"
                .to_owned(),
        ));
    };
    let docker = connect(&host).await?;
    let before = images(&docker).await?;
    let dir = world.directory()?;
    let config = DockerConfig {
        host: Some(host),
        base: Base::HostFiles,
        state_dir: dir.path().join("state"),
        behind: Behind::Docker,
    };
    let engine = DockerEngine::connect(config).await?.with_entrypoint(&[PROGRAM]);
    let instance = instance()?;
    let runs = dir.path().join("runs");
    let maker =
        SandboxMaker { engine: &engine, instance: &instance, guest: world.guest(), runs: &runs };
    let mut made = Made::default();
    let result = interruptible(rounds(&maker, &docker, &mut made)).await;
    maker.sweep().await?;
    made.remove(&docker).await;
    if let Some(image) = made.image.filter(|image| !before.contains(image)) {
        let options = RemoveImageOptionsBuilder::default().build();
        docker.remove_image(&image, Some(options), None).await?;
    }
    result.map(Outcome::Measured)
}

async fn connect(host: &str) -> anyhow::Result<Docker> {
    let docker = match host.strip_prefix("unix://") {
        Some(path) => Docker::connect_with_unix(path, TIMEOUT_S, API_DEFAULT_VERSION)?,
        None => Docker::connect_with_http(host, TIMEOUT_S, API_DEFAULT_VERSION)?,
    };
    docker.negotiate_version().await.with_context(|| format!("no engine answers at {host}"))
}

async fn images(docker: &Docker) -> anyhow::Result<BTreeSet<String>> {
    let options = ListImagesOptionsBuilder::default().all(true).build();
    let list = docker.list_images(Some(options)).await?;
    Ok(list.into_iter().map(|image| image.id).collect())
}

/// What the peers made and has to go, also after a failure.
#[derive(Default)]
struct Made {
    image: Option<String>,
    containers: Vec<String>,
    volumes: Vec<String>,
}

impl Made {
    async fn remove(&self, docker: &Docker) {
        for container in &self.containers {
            // Gone already unless the measurement ended early.
            let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
            let _ = docker.remove_container(container, Some(options)).await;
        }
        for volume in &self.volumes {
            let options = RemoveVolumeOptionsBuilder::default().build();
            let _ = docker.remove_volume(volume, Some(options)).await;
        }
    }
}

async fn rounds(
    maker: &SandboxMaker<'_>,
    docker: &Docker,
    made: &mut Made,
) -> anyhow::Result<Table> {
    let version = docker.version().await?.version.unwrap_or_default();
    let mut table =
        Table::new("start-docker", format!("container around {PROGRAM}, Docker {version}"));
    let first = Watch::start();
    let prepared = maker.engine.prepare(&maker.spec()?).await?;
    let first = first.ms();
    let image = prepared.evidence().root.clone();
    made.image = Some(image.clone());
    let ours = same_container(docker, prepared.identity()).await?;
    let plain = ContainerCreateBody {
        image: Some(image),
        entrypoint: Some(vec![PROGRAM.to_owned()]),
        host_config: Some(HostConfig {
            network_mode: Some("none".to_owned()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    prepared.teardown().await;

    let same = table.row("engine API, same flags and volume", Unit::Ms);
    let bare = table.beside(same, "engine API, no flags but no network", Unit::Ms);
    let to_exit = table.beside(same, "cofferdam, prepare to exit", Unit::Ms);
    let to_gone = table.beside(same, "cofferdam, prepare to proven removal", Unit::Ms);
    maker.life().await?;
    for _ in 0..ROUNDS {
        table.add(same, peer(docker, made, ours.clone()).await?);
        table.add(bare, peer(docker, made, plain.clone()).await?);
        let (exit, gone) = maker.life().await?;
        table.add(to_exit, exit);
        table.add(to_gone, gone);
    }
    let row = table.row("cofferdam, first preparation (builds the image if new)", Unit::Ms);
    table.add(row, first);
    Ok(table)
}

/// The request that would make the container `name` again.
async fn same_container(docker: &Docker, name: &str) -> anyhow::Result<ContainerCreateBody> {
    let seen = docker.inspect_container(name, None).await?;
    let config = seen.config.context("the engine shows no configuration")?;
    Ok(ContainerCreateBody {
        hostname: config.hostname,
        user: config.user,
        image: config.image,
        entrypoint: config.entrypoint,
        cmd: config.cmd,
        env: config.env,
        working_dir: config.working_dir,
        tty: config.tty,
        healthcheck: config.healthcheck,
        host_config: seen.host_config,
        ..ContainerCreateBody::default()
    })
}

/// Create, start, wait, remove: milliseconds. Takes the volume, if one is asked for, as its own.
async fn peer(
    docker: &Docker,
    made: &mut Made,
    mut body: ContainerCreateBody,
) -> anyhow::Result<f64> {
    let mount = body.host_config.as_mut().and_then(|host| host.mounts.as_mut()?.first_mut());
    let volume = match mount {
        Some(mount) => {
            let name = format!("cofferdam-bench-{}", run_id()?);
            mount.source = Some(name.clone());
            made.volumes.push(name.clone());
            Some(name)
        }
        None => None,
    };
    let watch = Watch::start();
    let id = docker.create_container(None, body).await?.id;
    made.containers.push(id.clone());
    docker.start_container(&id, None).await?;
    let ended = docker.wait_container(&id, None).try_collect::<Vec<_>>().await?;
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    docker.remove_container(&id, Some(options)).await?;
    made.containers.pop();
    if let Some(volume) = volume {
        let options = RemoveVolumeOptionsBuilder::default().build();
        docker.remove_volume(&volume, Some(options)).await?;
        made.volumes.pop();
    }
    let ms = watch.ms();
    anyhow::ensure!(
        ended.first().is_some_and(|end| end.status_code == 0),
        "the peer's container ended with {ended:?}"
    );
    Ok(ms)
}
