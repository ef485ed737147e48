//! Whether the posture is what the run demands.
//!
//! It decides nothing about what may be missing: that is the specification's, layer by layer and by
//! name.

use cofferdam_run::fact::StopCause;
use cofferdam_run::posture::{LayerReport, LayerStatus, Probe};
use cofferdam_run::spec::RunSpec;

use crate::session::PostureCheck;

/// Compares the posture with what the run demands.
pub(super) struct Required<'a> {
    pub(super) spec: &'a RunSpec,
    pub(super) read_back: &'a [LayerReport],
    pub(super) outside: &'a [LayerReport],
}

/// The first layer that does not hold and was not accepted by name.
pub(super) fn first_missing(spec: &RunSpec, layers: &[LayerReport]) -> Option<StopCause> {
    layers.iter().find_map(|report| {
        let detail = match &report.status {
            LayerStatus::Enforced => return None,
            LayerStatus::Degraded { reason } | LayerStatus::Absent { reason } => reason.clone(),
        };
        let layer = report.layer.as_str().to_owned();
        if spec.accept_degraded.contains(&layer) {
            return None;
        }
        Some(StopCause::PostureRefused { layer, detail })
    })
}

impl PostureCheck for Required<'_> {
    fn check(&self, probe: &Probe) -> (Vec<LayerReport>, Result<(), StopCause>) {
        let layers = cofferdam_sandbox::posture::judge(
            self.spec.engine,
            &self.spec.resources,
            probe,
            self.read_back,
            self.outside,
        );
        let verdict = first_missing(self.spec, &layers).map_or(Ok(()), Err);
        (layers, verdict)
    }
}
