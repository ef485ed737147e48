//! Old images of this state directory go when newer ones were built, so that updates of the host or
//! of the guest do not fill the engine's disk.
//!
//! Only images that this state directory itself had built are removed, only without force: one that a
//! container uses stays, and so does everybody else's.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bollard::query_parameters::RemoveImageOptionsBuilder;

use super::Images;
use crate::docker::call::REMOVE_TIMEOUT;

/// Images kept per state directory; when one more is built, the one built longest ago is removed.
pub const KEPT_IMAGES: usize = 4;

impl Images {
    /// Notes a freshly built image and removes what is too many. Called under the build lock. Failing
    /// to remove is no reason to fail a run: it is tried again at the next build.
    pub(super) async fn built(&self, id: &str) {
        let mut known = read(self.state_dir());
        known.retain(|other| other != id);
        known.push(id.to_owned());
        let mut kept = Vec::new();
        let surplus = known.len().saturating_sub(KEPT_IMAGES);
        for (index, old) in known.into_iter().enumerate() {
            if index >= surplus || !self.remove_unused(&old).await {
                kept.push(old);
            }
        }
        if let Err(error) = write(self.state_dir(), &kept) {
            tracing::warn!(%error, "the list of built images could not be written");
        }
    }

    /// True when it is gone.
    async fn remove_unused(&self, id: &str) -> bool {
        let options = RemoveImageOptionsBuilder::default().force(false).build();
        let removal = self.client.docker.remove_image(id, Some(options), None);
        match self.client.ask(REMOVE_TIMEOUT, removal).await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(%error, id, "an old image stays for now");
                error.says_gone()
            }
        }
    }
}

fn place(state_dir: &Path) -> PathBuf {
    state_dir.join("docker-images.json")
}

/// What cannot be read is forgotten: then the images merely stay.
fn read(state_dir: &Path) -> Vec<String> {
    fs::read(place(state_dir))
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default()
}

fn write(state_dir: &Path, ids: &[String]) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(state_dir)?;
    serde_json::to_writer(&mut file, ids)?;
    file.persist(place(state_dir)).map_err(|error| error.error)?;
    Ok(())
}
