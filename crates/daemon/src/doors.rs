//! Streams that the guest opens: each goes to the door that its first message names.
//!
//! Hostile-facing: a stream that names nothing known, or comes at the wrong time, is dropped.

use std::sync::Arc;

use cofferdam_broker::egress::EgressDoor;
use cofferdam_broker::gateway::ModelGateway;
use cofferdam_link::{Incoming, LinkStream};
use cofferdam_wire::StreamOpen;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

/// The doors of one run.
#[derive(Clone)]
pub(crate) struct Doors {
    pub(crate) egress: Arc<EgressDoor>,
    pub(crate) model: Option<Arc<ModelGateway>>,
}

impl Doors {
    /// Ends every connection and admits nothing more.
    pub(crate) fn cut(&self) {
        self.egress.cut();
        if let Some(model) = &self.model {
            model.cut();
        }
    }
}

/// What a stream of the guest's is for.
pub(crate) fn opening(header: &[u8]) -> Option<StreamOpen> {
    serde_json::from_slice(header).ok()
}

/// Serves streams until the link ends. Bundle streams go to `bundles`, at most one at a time.
pub(crate) async fn serve(mut incoming: Incoming, doors: Doors, bundles: mpsc::Sender<LinkStream>) {
    let tasks = TaskTracker::new();
    while let Some((header, stream)) = incoming.next().await {
        match opening(&header) {
            Some(StreamOpen::Egress) => {
                let door = Arc::clone(&doors.egress);
                tasks.spawn(async move { door.serve(stream).await });
            }
            Some(StreamOpen::Model) => {
                if let Some(model) = &doors.model {
                    let model = Arc::clone(model);
                    tasks.spawn(async move { model.serve(stream).await });
                }
            }
            // A second bundle while one is being read is dropped, which resets it.
            Some(StreamOpen::BundleOut) => drop(bundles.try_send(stream)),
            Some(StreamOpen::Control | StreamOpen::BundleIn { .. }) | None => {
                tracing::warn!("a stream of the guest's was not understood and was dropped");
            }
        }
    }
    // What was served last may still have a fact to tell.
    tasks.close();
    tasks.wait().await;
}
