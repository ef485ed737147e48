//! Whether the posture is what the run demands.
//!
//! It decides nothing about what may be missing: that is the specification's, layer by layer and by
//! name.

use cofferdam_run::fact::StopCause;
use cofferdam_run::posture::{Layer, LayerReport, LayerStatus, Probe};
use cofferdam_run::spec::RunSpec;

use crate::session::PostureCheck;

/// Compares the posture with what the run demands.
pub(super) struct Required<'a> {
    pub(super) spec: &'a RunSpec,
    pub(super) read_back: &'a [LayerReport],
    pub(super) outside: &'a [LayerReport],
}

impl Required<'_> {
    /// A limit that cannot be seen from inside (no `/sys` there) holds when the host read it back.
    fn seen_by_host(&self, layer: Layer) -> bool {
        self.read_back
            .iter()
            .chain(self.outside)
            .any(|r| r.layer == layer && r.status.is_enforced())
    }
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
        let mut layers = cofferdam_sandbox::evaluate(self.spec.engine, &self.spec.resources, probe);
        for report in &mut layers {
            let unseen = match report.layer {
                Layer::MemoryLimit => probe.memory_limit.is_none(),
                Layer::PidsLimit => probe.pids_limit.is_none(),
                Layer::CpuLimit => probe.cpu_millis.is_none(),
                _ => false,
            };
            if unseen && self.seen_by_host(report.layer) {
                report.status = LayerStatus::Enforced;
            }
        }
        let verdict = first_missing(self.spec, &layers).map_or(Ok(()), Err);
        (layers, verdict)
    }
}
