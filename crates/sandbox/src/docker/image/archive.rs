//! The archive that `POST /images/load` takes: layers, configuration, and both manifests (Docker's own
//! and an OCI index, since engines differ in which one they read).
//!
//! The image id of a classic engine is the SHA-256 of the configuration written here, so everything in
//! it must be a function of the inputs: it must never hold a time, a host name or a path of the host.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use cofferdam_run::Digest;
use serde_json::json;

use super::tree::LayerDigest;

/// `PATH` of the image.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// What the configuration is made of.
pub(crate) struct ImageConfig<'a> {
    /// Diff ids, base first.
    pub(crate) layers: &'a [LayerDigest],
    /// Labels.
    pub(crate) labels: &'a BTreeMap<String, String>,
    /// `UID:GID`.
    pub(crate) user: &'a str,
    /// Absolute path of the program.
    pub(crate) entrypoint: &'a str,
    /// Working directory.
    pub(crate) working_dir: &'a str,
}

impl ImageConfig<'_> {
    /// The configuration's exact bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // serde_json sorts object keys here (no `preserve_order`), so that equal values give equal bytes.
        let history: Vec<_> = ["base", "guest"]
            .iter()
            .take(self.layers.len())
            .map(|what| json!({ "created": EPOCH, "created_by": format!("cofferdam {what}") }))
            .collect();
        json!({
            "architecture": architecture(),
            "os": "linux",
            "created": EPOCH,
            "config": {
                "Env": [format!("PATH={PATH}")],
                "Entrypoint": [self.entrypoint],
                "User": self.user,
                "WorkingDir": self.working_dir,
                "Labels": self.labels,
            },
            "rootfs": {
                "type": "layers",
                "diff_ids": self.layers.iter().map(|layer| layer.digest.as_str()).collect::<Vec<_>>(),
            },
            "history": history,
        })
        .to_string()
        .into_bytes()
    }
}

const EPOCH: &str = "1970-01-01T00:00:00Z";

/// This machine's architecture as Go names it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Writes the archive: `layers` in the order of the configuration, each with its bytes; without them
/// where the engine is thought to have the layer already.
///
/// # Errors
/// When a layer's bytes cannot be read in full or `out` fails.
pub(crate) fn write(
    out: impl Write,
    tag: &str,
    config: &[u8],
    layers: Vec<(LayerDigest, Option<Box<dyn Read>>)>,
) -> io::Result<()> {
    let blob = |digest: &Digest| format!("blobs/sha256/{}", hex_of(digest));
    let config_digest = Digest::of(config);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": config_digest.as_str(),
            "size": config.len(),
        },
        "layers": layers.iter().map(|(layer, _)| json!({
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": layer.digest.as_str(),
            "size": layer.len,
        })).collect::<Vec<_>>(),
    })
    .to_string();
    let manifest_digest = Digest::of(manifest.as_bytes());
    let (_, version) = tag.rsplit_once(':').unwrap_or((tag, "latest"));
    let index = json!({
        "schemaVersion": 2,
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": manifest_digest.as_str(),
            "size": manifest.len(),
            "annotations": {
                "io.containerd.image.name": format!("docker.io/{tag}"),
                "org.opencontainers.image.ref.name": version,
            },
        }],
    })
    .to_string();
    let docker_manifest = json!([{
        "Config": blob(&config_digest),
        "RepoTags": [tag],
        "Layers": layers.iter().map(|(layer, _)| blob(&layer.digest)).collect::<Vec<_>>(),
    }])
    .to_string();

    let mut tar = tar::Builder::new(out);
    append(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#.as_slice(), 30)?;
    append(&mut tar, "index.json", index.as_bytes(), index.len() as u64)?;
    append(&mut tar, "manifest.json", docker_manifest.as_bytes(), docker_manifest.len() as u64)?;
    append(&mut tar, &blob(&manifest_digest), manifest.as_bytes(), manifest.len() as u64)?;
    append(&mut tar, &blob(&config_digest), config, config.len() as u64)?;
    for (layer, bytes) in layers {
        if let Some(bytes) = bytes {
            append(&mut tar, &blob(&layer.digest), bytes, layer.len)?;
        }
    }
    tar.into_inner()?.flush()
}

fn append(
    tar: &mut tar::Builder<impl Write>,
    name: &str,
    bytes: impl Read,
    len: u64,
) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mode(0o644);
    header.set_size(len);
    header.set_entry_type(tar::EntryType::Regular);
    tar.append_data(&mut header, name, bytes)
}

/// A digest without its `sha256:`.
pub(crate) fn hex_of(digest: &Digest) -> &str {
    let text = digest.as_str();
    text.strip_prefix("sha256:").unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_a_function_of_its_inputs() {
        let layer = LayerDigest { digest: Digest::of(b"x"), len: 1 };
        let labels =
            BTreeMap::from([("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1".to_owned())]);
        let config = |layers: &[LayerDigest]| {
            ImageConfig { layers, labels: &labels, user: "1:1", entrypoint: "/x", working_dir: "/" }
                .to_bytes()
        };
        assert_eq!(config(std::slice::from_ref(&layer)), config(std::slice::from_ref(&layer)));
        let other = LayerDigest { digest: Digest::of(b"y"), len: 1 };
        assert_ne!(config(&[layer]), config(&[other]));
    }
}
