//! The labels by which sandboxes are found again, and the names of what belongs to a run.
//!
//! A label that cannot be read is never guessed: such an object is not ours to touch.

use std::collections::HashMap;

use cofferdam_run::ids::{InstanceId, RunId, TimestampMs};

use crate::engine::SandboxSpec;

/// On everything that Cofferdam made; always `1`.
pub const MANAGED: &str = "cofferdam.managed";
/// The run.
pub const RUN: &str = "cofferdam.run";
/// The instance.
pub const INSTANCE: &str = "cofferdam.instance";
/// When a sweep may remove it, Unix milliseconds.
pub const EXPIRES_MS: &str = "cofferdam.expires_ms";
/// On images: what went in.
pub const FINGERPRINT: &str = "cofferdam.fingerprint";

/// Labels of a container or volume.
pub(crate) fn for_spec(spec: &SandboxSpec) -> HashMap<String, String> {
    HashMap::from([
        (MANAGED.to_owned(), "1".to_owned()),
        (RUN.to_owned(), spec.run.to_string()),
        (INSTANCE.to_owned(), spec.instance.to_string()),
        (EXPIRES_MS.to_owned(), spec.expires_at.0.to_string()),
    ])
}

/// Whose an object is, read from its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) run: RunId,
    pub(crate) instance: InstanceId,
    pub(crate) expires_at: TimestampMs,
}

impl Owner {
    /// `None` when a label is missing or malformed.
    pub(crate) fn read(labels: &HashMap<String, String>) -> Option<Self> {
        if labels.get(MANAGED).map(String::as_str) != Some("1") {
            return None;
        }
        Some(Self {
            run: labels.get(RUN)?.parse().ok()?,
            instance: labels.get(INSTANCE)?.parse().ok()?,
            expires_at: TimestampMs(labels.get(EXPIRES_MS)?.parse().ok()?),
        })
    }
}

/// Filter for everything of an instance. One label, since engines differ in what several mean; whoever
/// asks looks at all labels of what comes back.
pub(crate) fn filter(instance: &InstanceId) -> HashMap<String, Vec<String>> {
    HashMap::from([("label".to_owned(), vec![format!("{INSTANCE}={instance}")])])
}

/// Filter for everything of a run, likewise.
pub(crate) fn filter_run(run: &RunId) -> HashMap<String, Vec<String>> {
    HashMap::from([("label".to_owned(), vec![format!("{RUN}={run}")])])
}

/// Name of a run's container; the sandbox's identity.
pub(crate) fn container_name(run: &RunId) -> String {
    format!("cofferdam-{run}")
}

/// Name of a run's volume.
pub(crate) fn volume_name(run: &RunId) -> String {
    format!("cofferdam-{run}-work")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_with_a_missing_or_foreign_label_is_nobodys() {
        let good = HashMap::from([
            (MANAGED.to_owned(), "1".to_owned()),
            (RUN.to_owned(), RunId::from_entropy([1; 5]).to_string()),
            (INSTANCE.to_owned(), InstanceId::from_entropy([2; 10]).to_string()),
            (EXPIRES_MS.to_owned(), "17".to_owned()),
        ]);
        assert_eq!(Owner::read(&good).unwrap().expires_at, TimestampMs(17));
        for label in [MANAGED, RUN, INSTANCE, EXPIRES_MS] {
            let mut bad = good.clone();
            bad.insert(label.to_owned(), "../x".to_owned());
            assert_eq!(Owner::read(&bad), None, "{label}");
            bad.remove(label);
            assert_eq!(Owner::read(&bad), None, "{label}");
        }
    }
}
