//! An image made whole by us, from the host's own files, and loaded into the engine. No registry,
//! no builder.
//!
//! Everything about it is known before the engine sees it, so the engine's copy is compared with
//! what was sent, layer digests and all.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use bollard::query_parameters::ImportImageOptionsBuilder;
use bytes::Bytes;
use cofferdam_run::engine::EngineKind;
use cofferdam_run::ids::Digest;
use cofferdam_wire::layout;
use futures::StreamExt;
use serde_json::json;
use tokio::sync::mpsc;

use super::archive::{self, ImageConfig};
use super::cache::{self, BuildLock};
use super::tree::{LayerDigest, Tree};
use super::userland;
use super::{
    GuestLayer, Image, Images, Recipe, blocking, fingerprint, image_labels, is_ours, layers_of,
    tag, user,
};
use crate::docker::call::IMAGE_TIMEOUT;
use crate::error::SandboxError;

/// Bytes per piece sent to the engine.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces waiting for the engine; past it the writer waits.
const PIECES_WAITING: usize = 8;

/// The base layer, planned; its digest when nothing was touched since last time.
struct Base {
    tree: Tree,
    key: Digest,
    known: Option<LayerDigest>,
    /// When the plan was begun.
    planned: cache::Moment,
}

impl Base {
    fn remember(&self, state_dir: &Path, layer: &LayerDigest) -> io::Result<()> {
        cache::remember(state_dir, &self.key, layer, userland::places(&self.tree), self.planned)
    }
}

impl Images {
    pub(super) async fn ensure_loaded(
        &self,
        recipe: &Recipe,
        guest: GuestLayer,
    ) -> Result<Image, SandboxError> {
        // The usual case makes no plan and asks no lock: nothing was touched and the image is there.
        let state_dir = self.state_dir().to_owned();
        if let Some(layer) = blocking(move || Ok(cache::recall_unplanned(&state_dir))).await?
            && let Some(image) = self.find_loaded(recipe, &guest, &layer).await?
        {
            return Ok(image);
        }
        let mut base = self.plan_base().await?;
        if let Some(layer) = &base.known
            && let Some(image) = self.find_loaded(recipe, &guest, layer).await?
        {
            // Something beside the files was touched: the next run need not plan again.
            if let Err(error) = base.remember(self.state_dir(), layer) {
                tracing::debug!(%error, "the base's files could not be remembered");
            }
            return Ok(image);
        }
        let _here = self.building.lock().await;
        let _elsewhere = BuildLock::take(self.state_dir()).await?;
        // Whoever held the lock before may have read the same files. A file that changed meanwhile fails
        // the write below.
        base.known = cache::recall(self.state_dir(), &base.key);
        if let Some(layer) = &base.known
            && let Some(image) = self.find_loaded(recipe, &guest, layer).await?
        {
            return Ok(image);
        }
        // After a change of the guest alone the engine has the base's layer from the image before, and
        // then takes an archive without its bytes. An engine that does not, refuses it.
        if let Some(layer) = &base.known {
            match self.load(recipe, &guest, layer, None).await {
                Ok(()) => {
                    if let Some(image) = self.find_loaded(recipe, &guest, layer).await? {
                        self.built(&image.id).await;
                        return Ok(image);
                    }
                }
                Err(error) => tracing::debug!(%error, "the base's layer has to be sent"),
            }
        }
        let state_dir = self.state_dir().to_owned();
        let (layer, file) = blocking(move || write_base(&state_dir, &base)).await?;
        if let Some(image) = self.find_loaded(recipe, &guest, &layer).await? {
            return Ok(image);
        }
        self.load(recipe, &guest, &layer, Some(file)).await?;
        let Some(image) = self.find_loaded(recipe, &guest, &layer).await? else {
            return Err(SandboxError::Engine {
                engine: EngineKind::Docker,
                attempt: "load the image",
                detail: "the engine took the image but shows none with the same content".to_owned(),
            });
        };
        self.built(&image.id).await;
        Ok(image)
    }

    async fn plan_base(&self) -> Result<Base, SandboxError> {
        let state_dir = self.state_dir().to_owned();
        blocking(move || {
            let planned = cache::now(&state_dir).map_err(|source| SandboxError::Io {
                attempt: "write in",
                path: state_dir.clone(),
                source,
            })?;
            let tree = userland::plan().map_err(|error| SandboxError::Root {
                engine: EngineKind::Docker,
                reason: chain(&error),
            })?;
            let key = userland::stat_key(&tree).map_err(|source| SandboxError::Io {
                attempt: "examine the base's files below",
                path: "/usr".into(),
                source,
            })?;
            let known = cache::recall(&state_dir, &key);
            Ok(Base { tree, key, known, planned })
        })
        .await
    }

    async fn find_loaded(
        &self,
        recipe: &Recipe,
        guest: &GuestLayer,
        base: &LayerDigest,
    ) -> Result<Option<Image>, SandboxError> {
        let print = print_of(recipe, guest, base);
        let expected = [base.digest.to_string(), guest.layer.digest.to_string()];
        let found = self
            .find(&print, |image| is_ours(image, &print) && layers_of(image) == expected)
            .await?;
        Ok(found.map(|(id, environment)| Image { id, guest: guest.binary.clone(), environment }))
    }

    async fn load(
        &self,
        recipe: &Recipe,
        guest: &GuestLayer,
        base: &LayerDigest,
        base_file: Option<File>,
    ) -> Result<(), SandboxError> {
        let print = print_of(recipe, guest, base);
        let layers = [base.clone(), guest.layer.clone()];
        let config = ImageConfig {
            layers: &layers,
            labels: &image_labels(&print),
            user: &user(),
            entrypoint: layout::GUEST_BIN,
            working_dir: layout::WORK,
        }
        .to_bytes();
        let tag = tag(&print);
        let mut guest_tar = Vec::new();
        guest.tree.write_tar(&mut guest_tar).map_err(|source| SandboxError::Io {
            attempt: "read the guest binary",
            path: recipe.guest.clone(),
            source,
        })?;
        let [base_layer, guest_layer] = layers;
        let (send, receive) = mpsc::channel::<io::Result<Bytes>>(PIECES_WAITING);
        let writer = tokio::task::spawn_blocking(move || {
            let mut pieces = Pieces { send, buffer: Vec::with_capacity(PIECE_BYTES) };
            let base_bytes = base_file.map(|file| Box::new(file) as Box<dyn Read>);
            let guest_bytes: Box<dyn Read> = Box::new(io::Cursor::new(guest_tar));
            let layers = vec![(base_layer, base_bytes), (guest_layer, Some(guest_bytes))];
            let result = archive::write(&mut pieces, &tag, &config, layers);
            if let Err(error) = result {
                // The engine sees a broken body, never a short archive that looks whole.
                let _ = pieces.send.blocking_send(Err(error));
            }
        });
        let body = futures::stream::unfold(receive, |mut receive| async move {
            receive.recv().await.map(|piece| (piece, receive))
        });
        let options = ImportImageOptionsBuilder::default().quiet(true).build();
        let answer = self.client.docker.import_image(options, bollard::body_try_stream(body), None);
        let drained = async {
            let mut answer = std::pin::pin!(answer);
            while let Some(step) = answer.next().await {
                step?;
            }
            Ok::<(), bollard::errors::Error>(())
        };
        let result = self.client.ask(IMAGE_TIMEOUT, drained).await;
        // The channel's other end is gone by now, so the writer ends too.
        let _ = writer.await;
        result.map_err(|error| error.during("load the image"))
    }
}

fn print_of(recipe: &Recipe, guest: &GuestLayer, base: &LayerDigest) -> Digest {
    fingerprint(recipe, guest, &json!({ "host_files": base.digest.as_str() }))
}

/// Writes the base layer into a nameless file and remembers its digest.
fn write_base(state_dir: &Path, base: &Base) -> Result<(LayerDigest, File), SandboxError> {
    let io = |source| SandboxError::Io {
        attempt: "write the base layer in",
        path: state_dir.to_owned(),
        source,
    };
    std::fs::create_dir_all(state_dir).map_err(io)?;
    let mut file = tempfile::tempfile_in(state_dir).map_err(io)?;
    let layer = base.tree.write_tar(&mut file).map_err(io)?;
    file.seek(SeekFrom::Start(0)).map_err(io)?;
    base.remember(state_dir, &layer).map_err(io)?;
    Ok((layer, file))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// A blocking writer into the request's body.
struct Pieces {
    send: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = buf.len().min(PIECE_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&buf[..n]);
        if self.buffer.len() == PIECE_BYTES {
            self.flush()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE_BYTES));
        self.send.blocking_send(Ok(Bytes::from(piece))).map_err(|_closed| {
            io::Error::new(io::ErrorKind::BrokenPipe, "the engine stopped reading")
        })
    }
}
