//! The two bundles that travel: the snapshot in, the result out.
//!
//! It must never write more than was announced and admitted.

use std::path::Path;

use cofferdam_link::{Link, LinkStream};
use cofferdam_wire::StreamOpen;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

/// Largest bundle that is taken from a guest, bytes. A larger one is refused and stays in salvage.
pub(crate) const MAX_BUNDLE_BYTES: u64 = 4 << 30;

pub(super) async fn send_bundle(link: &Link, path: &Path, bytes: u64) -> Result<(), String> {
    let header = serde_json::to_vec(&StreamOpen::BundleIn { bytes }).map_err(|e| e.to_string())?;
    let mut stream = link.open(&header).await.map_err(|e| e.to_string())?;
    let mut file = tokio::fs::File::open(path).await.map_err(|e| e.to_string())?;
    tokio::io::copy(&mut file, &mut stream).await.map_err(|e| e.to_string())?;
    stream.shutdown().await.map_err(|e| e.to_string())
}

pub(super) async fn receive_bundle(
    bundles: &mut mpsc::Receiver<LinkStream>,
    path: &Path,
    bytes: u64,
) -> Result<(), String> {
    if bytes > MAX_BUNDLE_BYTES {
        return Err(format!("the bundle has {bytes} bytes; at most {MAX_BUNDLE_BYTES} are taken"));
    }
    let stream = bundles.recv().await.ok_or("the link closed before the bundle came")?;
    let mut file = tokio::fs::File::create(path).await.map_err(|e| e.to_string())?;
    // One byte more than announced, to see a bundle that does not end where it should.
    let got =
        tokio::io::copy(&mut stream.take(bytes + 1), &mut file).await.map_err(|e| e.to_string())?;
    file.sync_all().await.map_err(|e| e.to_string())?;
    if got == bytes {
        Ok(())
    } else {
        Err(format!("the bundle has {got} bytes, announced were {bytes}"))
    }
}
