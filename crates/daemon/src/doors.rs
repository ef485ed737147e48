//! Streams that the guest opens: each goes to the door that its first message names.
//!
//! Hostile-facing: a stream that names nothing known, or comes at the wrong time, is dropped.

use std::sync::Arc;

use cofferdam_broker::egress::EgressDoor;
use cofferdam_broker::gateway::ModelGateway;
use cofferdam_link::{Incoming, LinkStream};
use cofferdam_policy::Authority;
use cofferdam_run::RunSpec;
use cofferdam_run::spec::Principal;
use cofferdam_wire::StreamOpen;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::pulse::{Pulse, Pulsing};

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

/// Where the model gateway of a run connects to; the egress door admits no host of these.
#[must_use]
pub fn gatewayed(spec: &RunSpec) -> Vec<Authority> {
    spec.model.iter().filter_map(|model| authority_of(&model.base_url)).collect()
}

fn authority_of(base_url: &str) -> Option<Authority> {
    let (scheme, rest) = base_url.split_once("://")?;
    let text = rest.split('/').next()?;
    let port = if scheme == "https" { 443 } else { 80 };
    Authority::parse(text).or_else(|_| Authority::parse(&format!("{text}:{port}"))).ok()
}

/// What a stream of the guest's is for.
pub(crate) fn opening(header: &[u8]) -> Option<StreamOpen> {
    serde_json::from_slice(header).ok()
}

/// Serves streams until the link ends. Bundle streams go to `bundles`, at most one at a time.
pub(crate) async fn serve(
    mut incoming: Incoming,
    doors: Doors,
    bundles: mpsc::Sender<LinkStream>,
    pulse: Pulse,
) {
    let tasks = TaskTracker::new();
    while let Some((header, stream)) = incoming.next().await {
        match opening(&header) {
            Some(StreamOpen::Egress) => {
                let door = Arc::clone(&doors.egress);
                let stream = Pulsing { stream, pulse: pulse.clone() };
                tasks.spawn(async move { door.serve(stream).await });
            }
            Some(StreamOpen::ShellEgress) => {
                let door = Arc::clone(&doors.egress);
                tasks.spawn(async move { door.serve_at(stream, Principal::Shell).await });
            }
            Some(StreamOpen::Model) => {
                if let Some(model) = &doors.model {
                    let model = Arc::clone(model);
                    let stream = Pulsing { stream, pulse: pulse.clone() };
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
