//! Reading a request body: bounded, never waiting for a guest that has stopped.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::limits::{BODY_IDLE_TIMEOUT, MAX_REQUEST_BYTES, SMALL_REQUEST_BYTES};
use super::refusal::{Refusal, codes};

/// A body and, for a large one, the permit that allows to hold it.
pub(super) struct Read {
    pub(super) bytes: Bytes,
    _large: Option<OwnedSemaphorePermit>,
}

/// Reads the body to its end.
pub(super) async fn read(
    headers: &HeaderMap,
    mut incoming: Incoming,
    large_bodies: &Arc<Semaphore>,
) -> Result<Read, Refusal> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(Refusal::new(400, codes::MALFORMED, "send the body without content-encoding"));
    }
    if incoming.size_hint().lower() > MAX_REQUEST_BYTES as u64 {
        return Err(too_large());
    }
    let mut bytes = BytesMut::new();
    let mut large = None;
    loop {
        let frame = match timeout(BODY_IDLE_TIMEOUT, incoming.frame()).await {
            Err(_) => return Err(Refusal::new(408, codes::MALFORMED, "the body stopped arriving")),
            Ok(None) => return Ok(Read { bytes: bytes.freeze(), _large: large }),
            Ok(Some(Err(_))) => {
                return Err(Refusal::new(400, codes::MALFORMED, "the body broke off"));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        let total = bytes.len() + data.len();
        if total > MAX_REQUEST_BYTES {
            return Err(too_large());
        }
        if total > SMALL_REQUEST_BYTES && large.is_none() {
            large = Arc::clone(large_bodies).acquire_owned().await.ok();
        }
        bytes.extend_from_slice(&data);
    }
}

fn too_large() -> Refusal {
    Refusal::new(
        413,
        codes::TOO_LARGE,
        format!(
            "the request is larger than {} MiB; shorten the conversation",
            MAX_REQUEST_BYTES >> 20
        ),
    )
}
