//! The sandbox's image: looked up by fingerprint, built when there is none, checked after either.
//!
//! The fingerprint covers everything that goes in. An image whose content is not what the fingerprint
//! stands for is never used, whatever its labels say.

mod archive;
mod cache;
mod layered;
mod loaded;
mod prune;
mod tree;
mod userland;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use bollard::models::ImageInspect;
use bollard::query_parameters::ListImagesOptionsBuilder;
use cofferdam_run::engine::EngineKind;
use cofferdam_run::ids::Digest;
use cofferdam_wire::layout;
use serde_json::json;

pub use layered::MAX_REFERENCE;
pub use prune::KEPT_IMAGES;
pub use tree::{MAX_LAYER_BYTES, MAX_LAYER_ENTRIES};

use super::call::{CALL_TIMEOUT, Client};
use super::{Base, labels};
use crate::error::SandboxError;
use tree::{LayerDigest, Node, Tree};

/// Version of how images are made; part of the fingerprint.
const SCHEMA: &str = "cofferdam-image-1";
/// Largest guest binary, bytes; a larger one is refused with `SANDBOX-002`.
pub const MAX_GUEST_BYTES: u64 = 1 << 30;

/// An image that is there and was checked.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    /// The engine's id for it.
    pub(crate) id: String,
    /// Digest of the guest binary in it.
    pub(crate) guest: Digest,
    /// Its variables, `NAME=value`.
    pub(crate) environment: Vec<String>,
}

/// What an image is made of.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    /// Static guest binary on the host.
    pub(crate) guest: PathBuf,
    /// What lies under it.
    pub(crate) base: Base,
    /// Digest of the hardening, resources aside: an image must not outlive the rules it was made for.
    pub(crate) hardening: Digest,
}

/// Makes and finds images on one engine.
#[derive(Debug)]
pub(crate) struct Images {
    client: Client,
    state_dir: PathBuf,
    /// One build at a time in this process; a file lock does the same between processes.
    building: tokio::sync::Mutex<()>,
}

/// The guest's layer, planned.
struct GuestLayer {
    tree: Tree,
    layer: LayerDigest,
    binary: Digest,
}

impl Images {
    pub(crate) fn new(client: Client, state_dir: PathBuf) -> Self {
        Self { client, state_dir, building: tokio::sync::Mutex::new(()) }
    }

    /// The image for this recipe, built when there is none.
    pub(crate) async fn ensure(&self, recipe: &Recipe) -> Result<Image, SandboxError> {
        let guest = {
            let path = recipe.guest.clone();
            blocking(move || guest_layer(&path)).await?
        };
        match &recipe.base {
            Base::HostFiles => self.ensure_loaded(recipe, guest).await,
            Base::Image(reference) => self.ensure_layered(recipe, reference, guest).await,
        }
    }

    /// Where locks and digests are kept.
    pub(crate) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// An image with this fingerprint that passes `check`. One that fails it is as good as absent.
    async fn find(
        &self,
        fingerprint: &Digest,
        check: impl Fn(&ImageInspect) -> bool,
    ) -> Result<Option<(String, Vec<String>)>, SandboxError> {
        // One label: Podman finds nothing when asked for two.
        let label = format!("{}={fingerprint}", labels::FINGERPRINT);
        let filters = HashMap::from([("label".to_owned(), vec![label])]);
        let options = ListImagesOptionsBuilder::default().filters(&filters).build();
        let found = self
            .client
            .ask(CALL_TIMEOUT, self.client.docker.list_images(Some(options)))
            .await
            .map_err(|error| error.during("list images"))?;
        for image in found {
            match self.client.ask(CALL_TIMEOUT, self.client.docker.inspect_image(&image.id)).await {
                Ok(seen) if check(&seen) => {
                    let environment = seen.config.and_then(|config| config.env).unwrap_or_default();
                    return Ok(Some((image.id, environment)));
                }
                Ok(_) => {}
                // Removed between the two questions.
                Err(error) if error.says_gone() => {}
                Err(error) => return Err(error.during("inspect an image")),
            }
        }
        Ok(None)
    }
}

/// What every image carries.
fn image_labels(fingerprint: &Digest) -> BTreeMap<String, String> {
    BTreeMap::from([
        (labels::MANAGED.to_owned(), "1".to_owned()),
        (labels::FINGERPRINT.to_owned(), fingerprint.to_string()),
    ])
}

fn tag(fingerprint: &Digest) -> String {
    format!("cofferdam/sandbox:{}", &archive::hex_of(fingerprint)[..16])
}

fn fingerprint(recipe: &Recipe, guest: &GuestLayer, base: &serde_json::Value) -> Digest {
    let parts = json!({
        "schema": SCHEMA,
        "uid": layout::UID,
        "guest": guest.layer.digest.as_str(),
        "base": base,
        "hardening": recipe.hardening.as_str(),
    });
    Digest::of(parts.to_string().as_bytes())
}

fn user() -> String {
    format!("{0}:{0}", layout::UID)
}

/// Layers of an image, base first.
fn layers_of(image: &ImageInspect) -> Vec<String> {
    image.root_fs.as_ref().and_then(|fs| fs.layers.clone()).unwrap_or_default()
}

/// The configuration that everything later relies on.
fn is_ours(image: &ImageInspect, fingerprint: &Digest) -> bool {
    image.config.as_ref().is_some_and(|config| {
        config.user.as_deref() == Some(user().as_str())
            && config.entrypoint.as_deref() == Some(&[layout::GUEST_BIN.to_owned()])
            && config.volumes.as_ref().is_none_or(Vec::is_empty)
            && config.healthcheck.as_ref().is_none_or(|check| {
                check.test.as_ref().is_none_or(|test| test.first().is_none_or(|t| t == "NONE"))
            })
            && config
                .labels
                .as_ref()
                .and_then(|all| all.get(labels::FINGERPRINT))
                .is_some_and(|value| value == fingerprint.as_str())
    })
}

/// Plans the guest's layer: the binary, the mount points, and `/work` with the owner that a fresh
/// volume inherits from it.
fn guest_layer(path: &Path) -> Result<GuestLayer, SandboxError> {
    let io = |source| SandboxError::Io {
        attempt: "read the guest binary",
        path: path.to_owned(),
        source,
    };
    let source = std::fs::canonicalize(path).map_err(io)?;
    let meta = std::fs::metadata(&source).map_err(io)?;
    if !meta.is_file() || meta.len() > MAX_GUEST_BYTES {
        return Err(SandboxError::Root {
            engine: EngineKind::Docker,
            reason: format!(
                "{} is no regular file of at most {MAX_GUEST_BYTES} bytes",
                path.display()
            ),
        });
    }
    let binary = digest_of_file(&source).map_err(io)?;
    let root = |mode| Node::Directory { mode, owner: 0 };
    let entries = [
        (layout::WORK, Node::Directory { mode: 0o755, owner: layout::UID }),
        (layout::TMP, root(0o1777)),
        ("/proc", root(0o555)),
        ("/dev", root(0o755)),
        ("/sys", root(0o555)),
        (layout::GUEST_BIN, Node::Host { source, len: meta.len(), executable: true }),
    ];
    let mut tree = Tree::default();
    for (place, node) in entries {
        tree.add(Path::new(place), node).map_err(io)?;
    }
    let layer = tree.write_tar(std::io::sink()).map_err(io)?;
    // The record names the binary by this digest, so it must be what the layer holds.
    if digest_of_file(path).map_err(io)? != binary {
        return Err(io(std::io::Error::other("it changed while it was read")));
    }
    Ok(GuestLayer { tree, layer, binary })
}

fn digest_of_file(path: &Path) -> std::io::Result<Digest> {
    use sha2::Digest as _;
    let mut hash = sha2::Sha256::new();
    let mut file = std::fs::File::open(path)?;
    let mut buf = vec![0u8; 256 << 10];
    loop {
        match std::io::Read::read(&mut file, &mut buf)? {
            0 => return Ok(Digest::from_sha256(hash.finalize().into())),
            n => hash.update(&buf[..n]),
        }
    }
}

/// Runs blocking work; a panic in it is an error of the host, not of the engine.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(SandboxError::Engine {
            engine: EngineKind::Docker,
            attempt: "prepare the image",
            detail: error.to_string(),
        })
    })
}
