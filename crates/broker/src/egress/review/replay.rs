//! What other rules would have decided about the targets of a run.
//!
//! Decides by text, as the door does before any lookup: what would then have been looked up, vetted
//! and dialled cannot be replayed. A request that was refused for its own shape stays refused.

use std::collections::BTreeMap;

use cofferdam_policy::{Authority, EgressPolicy, RefusalCode, Services, Stage};
use serde::Serialize;

use super::Decision;

/// How the decision about a target compares with the recorded one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Was refused, would be admitted.
    NewlyAdmitted,
    /// Was admitted, would be refused.
    NewlyRefused,
    /// Was and would be admitted.
    StillAdmitted,
    /// Was and would be refused.
    StillRefused,
}

impl Change {
    /// A phrase for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NewlyAdmitted => "newly admitted",
            Self::NewlyRefused => "newly refused",
            Self::StillAdmitted => "still admitted",
            Self::StillRefused => "still refused",
        }
    }

    /// The two sets of rules disagree.
    #[must_use]
    pub fn is_change(self) -> bool {
        matches!(self, Self::NewlyAdmitted | Self::NewlyRefused)
    }
}

/// One target, before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decided {
    /// As recorded.
    pub target: String,
    /// How often.
    pub count: u64,
    /// What changes.
    pub change: Change,
    /// Rule, or code and reason, of the record.
    pub before: String,
    /// Rule, or code and reason, under the given rules.
    pub after: String,
}

/// Every target under the given rules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Replay {
    /// Changes first, most asked first.
    pub targets: Vec<Decided>,
}

impl Replay {
    /// Attempts with that change.
    #[must_use]
    pub fn count(&self, change: Change) -> u64 {
        self.targets.iter().filter(|one| one.change == change).map(|one| one.count).sum()
    }

    /// Something would have been decided otherwise.
    #[must_use]
    pub fn changes(&self) -> bool {
        self.targets.iter().any(|one| one.change.is_change())
    }
}

/// Decides every recorded target under `policy`. `gatewayed` are the hosts of the run's model
/// gateway, `services` those of the configuration that the rules come with.
#[must_use]
pub fn replay(
    decisions: &[Decision<'_>],
    policy: &EgressPolicy,
    services: &Services,
    gatewayed: &[Authority],
) -> Replay {
    let mut targets: BTreeMap<(&str, bool, &str), Decided> = BTreeMap::new();
    for decision in decisions {
        let key = (decision.target, decision.admitted, decision.reason);
        targets
            .entry(key)
            .or_insert_with(|| {
                let after = decide(decision, policy, services, gatewayed);
                let change = match (decision.admitted, after.is_ok()) {
                    (true, true) => Change::StillAdmitted,
                    (true, false) => Change::NewlyRefused,
                    (false, true) => Change::NewlyAdmitted,
                    (false, false) => Change::StillRefused,
                };
                Decided {
                    target: decision.target.to_owned(),
                    count: 0,
                    change,
                    before: decision.reason.to_owned(),
                    after: after.unwrap_or_else(|refusal| refusal),
                }
            })
            .count += 1;
    }
    let mut targets: Vec<Decided> = targets.into_values().collect();
    targets.sort_by(|a, b| (a.change, b.count, &a.target).cmp(&(b.change, a.count, &b.target)));
    Replay { targets }
}

/// The rule that admits, or code and reason of the refusal.
fn decide(
    decision: &Decision<'_>,
    policy: &EgressPolicy,
    services: &Services,
    gatewayed: &[Authority],
) -> Result<String, String> {
    let as_before = || Err(decision.reason.to_owned());
    let Ok(authority) = Authority::parse(decision.target) else { return as_before() };
    // Refused before the rules were asked, or for what the request was: no rule changes that.
    if let Some(code) = decision.code
        && (code.stage() < Stage::Policy
            || matches!(
                code,
                RefusalCode::Upgrade | RefusalCode::PlainOnTls | RefusalCode::TooManyStreams
            ))
    {
        return as_before();
    }
    if gatewayed.iter().any(|gateway| gateway.host() == authority.host()) {
        return Err(format!("{}: a host of the model gateway", RefusalCode::Gatewayed));
    }
    let permit = policy.decide(&authority).map_err(|refusal| refusal.to_string())?;
    let rule = permit.rule().to_string();
    if authority.host().literal().is_some() && services.address_of(&authority).is_none() {
        permit.vet(&[]).map_err(|refusal| refusal.to_string())?;
    }
    // Admitted by name then as now, and stopped further on: whether it would be again is not for
    // rules to say, so the record stands.
    match decision.code {
        Some(code) if code.stage() > Stage::Policy => as_before(),
        _ => Ok(rule),
    }
}
