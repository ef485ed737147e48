//! An image on top of somebody else's, named by digest, through the engine's classic builder.
//!
//! Nothing is run during the build, and a reference without a digest is refused: a tag may mean
//! something else tomorrow.

use std::io;

use bollard::models::ImageInspect;
use bollard::query_parameters::{BuildImageOptionsBuilder, CreateImageOptionsBuilder};
use bytes::Bytes;
use cofferdam_run::engine::EngineKind;
use cofferdam_run::ids::Digest;
use cofferdam_wire::layout;
use futures::StreamExt;
use serde_json::json;

use super::cache::BuildLock;
use super::{
    GuestLayer, Image, Images, Recipe, fingerprint, image_labels, is_ours, layers_of, tag, user,
};
use crate::docker::call::{CALL_TIMEOUT, IMAGE_TIMEOUT};
use crate::error::SandboxError;

/// Longest image reference, bytes; a longer one is refused with `SANDBOX-002`.
pub const MAX_REFERENCE: usize = 512;

impl Images {
    pub(super) async fn ensure_layered(
        &self,
        recipe: &Recipe,
        reference: &str,
        guest: GuestLayer,
    ) -> Result<Image, SandboxError> {
        let reference = pinned(reference)?;
        let print = fingerprint(recipe, &guest, &json!({ "image": reference }));
        let base = self.base_layers(reference).await?;
        let check = |image: &ImageInspect| {
            let layers = layers_of(image);
            is_ours(image, &print) && layers.len() == base.len() + 1 && layers.starts_with(&base)
        };
        let found = |(id, environment)| Image { id, guest: guest.binary.clone(), environment };
        if let Some(image) = self.find(&print, check).await? {
            return Ok(found(image));
        }
        let _here = self.building.lock().await;
        let _elsewhere = BuildLock::take(self.state_dir()).await?;
        if let Some(image) = self.find(&print, check).await? {
            return Ok(found(image));
        }
        self.build(reference, &print, &guest).await?;
        let Some(image) = self.find(&print, check).await? else {
            return Err(SandboxError::Root {
                engine: EngineKind::Docker,
                reason: format!("the image built on {reference} is not one layer on top of it"),
            });
        };
        self.built(&image.0).await;
        Ok(found(image))
    }

    /// Layers of the base, pulled first when the engine lacks it.
    async fn base_layers(&self, reference: &str) -> Result<Vec<String>, SandboxError> {
        match self.client.ask(CALL_TIMEOUT, self.client.docker.inspect_image(reference)).await {
            Ok(image) => return usable_layers(reference, &image),
            Err(error) if error.says_gone() => {}
            Err(error) => return Err(error.during("inspect the base image")),
        }
        if let Some((name, digest)) = reference.rsplit_once('@') {
            let options = CreateImageOptionsBuilder::default().from_image(name).tag(digest).build();
            let pull = async {
                let mut steps =
                    std::pin::pin!(self.client.docker.create_image(Some(options), None, None));
                while let Some(step) = steps.next().await {
                    step?;
                }
                Ok(())
            };
            self.client.ask(IMAGE_TIMEOUT, pull).await.map_err(|error| SandboxError::Root {
                engine: EngineKind::Docker,
                reason: format!(
                    "the base image {reference} is not there and cannot be pulled: {error}"
                ),
            })?;
        }
        match self.client.ask(CALL_TIMEOUT, self.client.docker.inspect_image(reference)).await {
            Ok(image) => usable_layers(reference, &image),
            Err(error) if error.says_gone() => Err(SandboxError::Root {
                engine: EngineKind::Docker,
                reason: format!("the engine has no image {reference}"),
            }),
            Err(error) => Err(error.during("inspect the base image")),
        }
    }

    async fn build(
        &self,
        reference: &str,
        print: &Digest,
        guest: &GuestLayer,
    ) -> Result<(), SandboxError> {
        let context = context(reference, guest).map_err(|source| SandboxError::Io {
            attempt: "pack the build of",
            path: layout::GUEST_BIN.into(),
            source,
        })?;
        let labels = image_labels(print).into_iter().collect();
        let options = BuildImageOptionsBuilder::default()
            .dockerfile("Dockerfile")
            .t(&tag(print))
            .labels(&labels)
            .networkmode("none")
            .rm(true)
            .forcerm(true)
            .build();
        let build = async {
            let body = bollard::body_full(Bytes::from(context));
            let mut steps =
                std::pin::pin!(self.client.docker.build_image(options, None, Some(body)));
            while let Some(step) = steps.next().await {
                step?;
            }
            Ok(())
        };
        self.client.ask(IMAGE_TIMEOUT, build).await.map_err(|error| error.during("build the image"))
    }
}

/// The base's layers, unless it would mount more than it was asked to.
fn usable_layers(reference: &str, image: &ImageInspect) -> Result<Vec<String>, SandboxError> {
    let refuse = |reason: String| Err(SandboxError::Root { engine: EngineKind::Docker, reason });
    let Some(config) = &image.config else {
        return refuse(format!("the engine shows no configuration of {reference}"));
    };
    if let Some(volumes) = config.volumes.as_ref().filter(|all| !all.is_empty()) {
        // Each would become an anonymous volume: writable, without a limit and without our labels.
        return refuse(format!("{reference} declares volumes of its own: {}", volumes.join(", ")));
    }
    if config.on_build.as_ref().is_some_and(|triggers| !triggers.is_empty()) {
        return refuse(format!(
            "{reference} runs steps of its own in every build on top of it (ONBUILD)"
        ));
    }
    Ok(layers_of(image))
}

/// The reference, when it names content: `NAME@sha256:…`, or the id of an image on this engine.
fn pinned(reference: &str) -> Result<&str, SandboxError> {
    let digest = reference.rsplit_once('@').map_or(reference, |(_, digest)| digest);
    // It becomes a line of a Dockerfile: nothing but the characters of references.
    let plain = reference.len() <= MAX_REFERENCE
        && reference.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/:@".contains(&b))
        && !reference.starts_with('@');
    if plain && digest.parse::<Digest>().is_ok() {
        return Ok(reference);
    }
    Err(SandboxError::Root {
        engine: EngineKind::Docker,
        reason: format!(
            "{:?} has no digest: name the image as IMAGE@sha256:…, which `docker image inspect` shows as RepoDigests",
            reference.chars().take(MAX_REFERENCE).collect::<String>()
        ),
    })
}

/// `ADD` unpacks the guest's layer with its owners and modes; no step runs a program.
fn context(reference: &str, guest: &GuestLayer) -> io::Result<Vec<u8>> {
    let dockerfile = format!(
        "FROM {reference}\nADD guest.tar /\nUSER {user}\nWORKDIR {work}\nENTRYPOINT [\"{bin}\"]\nCMD []\nHEALTHCHECK NONE\n",
        user = user(),
        work = layout::WORK,
        bin = layout::GUEST_BIN,
    );
    let mut layer = Vec::new();
    guest.tree.write_tar(&mut layer)?;
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in [("Dockerfile", dockerfile.as_bytes()), ("guest.tar", layer.as_slice())] {
        let mut header = tar::Header::new_gnu();
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        header.set_entry_type(tar::EntryType::Regular);
        tar.append_data(&mut header, name, bytes)?;
    }
    tar.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_that_does_not_pin_content_is_refused() {
        let hex = "a".repeat(64);
        for (text, good) in [
            (format!("debian@sha256:{hex}"), true),
            (format!("registry.example:5000/a/b:tag@sha256:{hex}"), true),
            (format!("sha256:{hex}"), true),
            ("debian".to_owned(), false),
            ("debian:12".to_owned(), false),
            (format!("debian@sha256:{}", &hex[1..]), false),
            (format!("debian@sha512:{hex}"), false),
            (format!("debian\nRUN x@sha256:{hex}"), false),
            (format!("--platform=x debian@sha256:{hex}"), false),
            (format!("@sha256:{hex}"), false),
            (String::new(), false),
        ] {
            let outcome = pinned(&text);
            assert_eq!(outcome.is_ok(), good, "{text}");
            if let Err(error) = outcome {
                assert_eq!(error.code(), "SANDBOX-002");
            }
        }
    }
}
