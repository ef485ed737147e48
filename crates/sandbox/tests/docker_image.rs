//! The image is a function of its inputs, and a stale one is never used. needs: docker

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

mod docker_support;

use std::collections::HashMap;

use bollard::Docker;
use bollard::query_parameters::{BuildImageOptionsBuilder, RemoveImageOptionsBuilder};
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_sandbox::docker::{Base, DockerConfig, DockerEngine, FINGERPRINT, KEPT_IMAGES};
use cofferdam_sandbox::{Engine as _, Evidence, RootSource, SandboxSpec};
use docker_support::{Lab, config, small};
use futures::{StreamExt as _, TryStreamExt as _};

async fn evidence(engine: &DockerEngine, spec: &SandboxSpec) -> Evidence {
    let prepared = engine.prepare(spec).await.unwrap();
    let evidence = prepared.evidence().clone();
    assert_eq!(prepared.teardown().await, TeardownOutcome::Removed);
    evidence
}

async fn labels_of(docker: &Docker, image: &str) -> HashMap<String, String> {
    docker.inspect_image(image).await.unwrap().config.unwrap().labels.unwrap()
}

async fn remove_image(docker: &Docker, image: &str) {
    let options = RemoveImageOptionsBuilder::default().force(true).build();
    match docker.remove_image(image, Some(options), None).await {
        Ok(_) => {}
        // Gone together with the image that was built on it.
        Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {}
        Err(error) => panic!("{image}: {error}"),
    }
}

/// A guest that no other test uses, so that its image can be removed.
fn own_guest(lab: &Lab, content: &str) -> SandboxSpec {
    let spec = lab.spec();
    std::fs::write(&spec.guest_binary, format!("{content} {}", spec.run)).unwrap();
    spec
}

#[tokio::test]
async fn the_same_inputs_give_the_same_image_after_it_was_lost() {
    let lab = Lab::shell("true").await;
    let spec = own_guest(&lab, "same");
    let first = evidence(&lab.engine, &spec).await;
    assert_eq!(evidence(&lab.engine, &spec).await, first);
    remove_image(&lab.docker, &first.root).await;
    // Nothing is remembered either: a state directory of its own.
    let state = tempfile::tempdir().unwrap();
    let engine =
        DockerEngine::connect(DockerConfig { state_dir: state.path().join("new"), ..config() })
            .await
            .unwrap();
    assert_eq!(evidence(&engine, &spec).await.root, first.root);
    remove_image(&lab.docker, &first.root).await;
}

#[tokio::test]
async fn a_changed_guest_gives_a_new_image() {
    let lab = Lab::shell("true").await;
    let spec = own_guest(&lab, "old");
    let old = evidence(&lab.engine, &spec).await;
    std::fs::write(&spec.guest_binary, format!("new {}", spec.run)).unwrap();
    let new = evidence(&lab.engine, &spec).await;
    assert_ne!(old.root, new.root);
    assert_ne!(old.guest, new.guest);
    for image in [old.root, new.root] {
        remove_image(&lab.docker, &image).await;
    }
}

#[tokio::test]
async fn an_image_that_only_claims_the_fingerprint_is_not_used() {
    let lab = Lab::shell("true").await;
    let spec = own_guest(&lab, "genuine");
    let genuine = evidence(&lab.engine, &spec).await.root;
    let claim = labels_of(&lab.docker, &genuine).await;
    remove_image(&lab.docker, &genuine).await;
    // Same labels, user and entrypoint, other content.
    let dockerfile = "FROM scratch\nADD Dockerfile /work/\nUSER 10001:10001\nENTRYPOINT [\"/cofferdam/guest\"]\n";
    let forged = build(&lab.docker, dockerfile, &claim).await;
    assert_eq!(labels_of(&lab.docker, &forged).await.get(FINGERPRINT), claim.get(FINGERPRINT));
    let used = evidence(&lab.engine, &spec).await.root;
    assert_eq!(used, genuine);
    for image in [forged, genuine] {
        remove_image(&lab.docker, &image).await;
    }
}

async fn build(docker: &Docker, dockerfile: &str, labels: &HashMap<String, String>) -> String {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(dockerfile.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, "Dockerfile", dockerfile.as_bytes()).unwrap();
    let context = bollard::body_full(tar.into_inner().unwrap().into());
    let options = BuildImageOptionsBuilder::default().labels(labels).networkmode("none").build();
    let steps: Vec<_> =
        docker.build_image(options, None, Some(context)).try_collect().await.unwrap();
    steps.into_iter().find_map(|step| step.aux.and_then(|aux| aux.id)).unwrap()
}

#[tokio::test]
async fn preparations_at_once_share_one_build_and_all_succeed() {
    let lab = Lab::shell("true").await;
    let spec = own_guest(&lab, "shared");
    let specs: Vec<SandboxSpec> =
        (0..6).map(|_| SandboxSpec { run: docker_support::fresh_run(), ..spec.clone() }).collect();
    // Half of them through a second engine on the same state directory, as another process would.
    let second = DockerEngine::connect(config()).await.unwrap();
    let engines = [&lab.engine, &second];
    let all = futures::stream::iter(specs.iter().enumerate())
        .map(|(n, spec)| evidence(engines[n % 2], spec))
        .buffer_unordered(6)
        .collect::<Vec<_>>()
        .await;
    assert!(all.iter().all(|one| one.root == all[0].root));
    remove_image(&lab.docker, &all[0].root).await;
}

#[tokio::test]
async fn an_image_named_by_digest_is_built_on_and_works() {
    let lab =
        Lab::shell("stat -c '%u:%g %a %n' /work /cofferdam/guest; cat /etc/marker; id -u").await;
    let under = evidence(&lab.engine, &lab.spec()).await.root;
    let base = build(
        &lab.docker,
        &format!("FROM {under}\nCOPY Dockerfile /etc/marker\n"),
        &HashMap::new(),
    )
    .await;
    let spec = SandboxSpec { root: RootSource::Image(base.clone()), ..lab.spec() };
    let prepared = lab.engine.prepare(&spec).await.unwrap();
    let root = prepared.evidence().root.clone();
    assert_eq!(docker_support::not_enforced(&prepared.evidence().read_back), Vec::<&_>::new());
    assert_eq!(prepared.teardown().await, TeardownOutcome::Removed);
    assert_eq!(
        evidence(&lab.engine, &SandboxSpec { run: docker_support::fresh_run(), ..spec.clone() })
            .await
            .root,
        root
    );

    let onto = DockerEngine::connect(DockerConfig { base: Base::Image(base.clone()), ..config() })
        .await
        .unwrap()
        .with_entrypoint(&[
            "/bin/sh",
            "-c",
            "stat -c '%u:%g %a %n' /work /cofferdam/guest; head -c 4 /etc/marker",
        ]);
    let outcome = Lab { engine: onto, ..lab }.run(small()).await;
    assert_eq!(outcome.stdout, "10001:10001 755 /work\n0:0 755 /cofferdam/guest\nFROM");
    assert_eq!(outcome.evidence.root, root);
    let docker = docker_support::client();
    remove_image(&docker, &root).await;
    remove_image(&docker, &base).await;
}

#[tokio::test]
async fn a_base_that_brings_volumes_or_build_steps_is_refused_before_a_build() {
    let lab = Lab::shell("true").await;
    for (more, named) in [("VOLUME /data", "/data"), ("ONBUILD RUN touch /x", "ONBUILD")] {
        let dockerfile = format!("FROM scratch\nCOPY Dockerfile /x\n{more}\n");
        let base = build(&lab.docker, &dockerfile, &HashMap::new()).await;
        let spec = SandboxSpec { root: RootSource::Image(base.clone()), ..lab.spec() };
        let error = lab.engine.prepare(&spec).await.err().unwrap();
        assert_eq!(error.code(), "SANDBOX-002");
        assert!(error.to_string().contains(named), "{error}");
        // Would fail if anything had been built on it.
        remove_image(&lab.docker, &base).await;
    }
}

#[tokio::test]
async fn an_image_without_a_digest_or_that_is_not_there_is_refused() {
    let lab = Lab::shell("true").await;
    let absent = format!("sha256:{}", "0".repeat(64));
    for reference in ["debian", "debian:12", "", absent.as_str()] {
        let spec = SandboxSpec { root: RootSource::Image(reference.to_owned()), ..lab.spec() };
        let error = lab.engine.prepare(&spec).await.err().unwrap();
        assert_eq!(error.code(), "SANDBOX-002", "{reference}: {error}");
    }
}

#[tokio::test]
async fn images_built_before_the_last_few_are_removed_and_others_images_stay() {
    let lab = Lab::shell("true").await;
    // Two directories of this test's own: tests beside it build too, and would push images out.
    let (elsewhere, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |dir: &tempfile::TempDir| {
        DockerEngine::connect(DockerConfig { state_dir: dir.path().to_owned(), ..config() })
    };
    let other = at(&elsewhere).await.unwrap();
    let others = evidence(&other, &own_guest(&lab, "of another state directory")).await.root;
    let engine = at(&state).await.unwrap();
    let in_use = engine.prepare(&own_guest(&lab, "in use")).await.unwrap();
    let mut built = vec![in_use.evidence().root.clone()];
    for n in 0..=KEPT_IMAGES {
        built.push(evidence(&engine, &own_guest(&lab, &n.to_string())).await.root);
    }
    let mut there = Vec::new();
    for image in &built {
        there.push(lab.docker.inspect_image(image).await.is_ok());
    }
    // The first is in use, so it stays; the second was too many.
    assert_eq!(there[..3], [true, false, true], "{there:?}");
    assert!(there[3..].iter().all(|is| *is), "{there:?}");
    assert!(lab.docker.inspect_image(&others).await.is_ok());
    assert_eq!(in_use.teardown().await, TeardownOutcome::Removed);
    for image in built.iter().chain([&others]) {
        remove_image(&lab.docker, image).await;
    }
}
