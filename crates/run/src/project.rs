//! Projects, threads and named profiles: what tasks belong to and are made from.
//!
//! Pure. The operator's switches are asked here, so no client and no trigger goes around them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::actor::Actor;
use crate::delegate::DelegationLimits;
use crate::ids::{AgentId, PolicyId, ProjectId, ThreadId, TimestampMs};
use crate::limits::Budgets;
use crate::retry::RetryPolicy;
use crate::spec::{AgentSpec, Mode, ModelSpec, Resources};

/// Characters of a name of a project, thread, agent or policy. A longer one is refused.
pub const MAX_NAME_CHARS: usize = 100;

/// What the operator lets happen in a project without a person who starts it by hand. All off until
/// switched on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Switches {
    /// Runs that wait for nobody.
    pub unattended: bool,
    /// Runs that a schedule starts.
    pub scheduled: bool,
    /// Runs that a webhook starts.
    pub remote: bool,
}

/// A switch that is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operator has not switched on {switch} runs for this project")]
pub struct SwitchedOff {
    /// Which: `unattended`, `scheduled`, `remote`.
    pub switch: &'static str,
}

impl Switches {
    /// Whether somebody may start a run of that mode.
    ///
    /// # Errors
    /// The first switch that stands in the way.
    pub fn admit(&self, origin: &Actor, mode: Mode) -> Result<(), SwitchedOff> {
        let off = |switch| Err(SwitchedOff { switch });
        match origin {
            Actor::Schedule(_) if !self.scheduled => return off("scheduled"),
            Actor::Webhook(_) if !self.remote => return off("remote"),
            Actor::Schedule(_)
            | Actor::Webhook(_)
            | Actor::Person(_)
            | Actor::Agent(_)
            | Actor::Host => {}
        }
        match mode {
            Mode::Unattended if !self.unattended => off("unattended"),
            Mode::Unattended | Mode::Supervised => Ok(()),
        }
    }
}

/// One checkout that work is done for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Project {
    /// Its id.
    pub id: ProjectId,
    /// For people; unique among projects that are not archived.
    pub name: String,
    /// Absolute path of the checkout; likewise.
    pub checkout: String,
    /// What may happen by itself.
    pub switches: Switches,
    /// Runs at once; `None`: the daemon's default.
    pub max_parallel: Option<u32>,
    /// When it was made.
    pub created_at: TimestampMs,
    /// Since when nothing new is made for it.
    pub archived_at: Option<TimestampMs>,
}

/// Turns of work that follow one another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Thread {
    /// Its id.
    pub id: ThreadId,
    /// Its project.
    pub project: Option<ProjectId>,
    /// One line for people.
    pub title: String,
    /// When it was made.
    pub created_at: TimestampMs,
    /// Since when it takes no further turn.
    pub closed_at: Option<TimestampMs>,
}

/// An agent, as it may be named by tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentProfile {
    /// What runs inside.
    pub agent: AgentSpec,
    /// Its model.
    pub model: Option<ModelSpec>,
    /// Resource limits.
    #[serde(default)]
    pub resources: Resources,
    /// What it may use up.
    #[serde(default)]
    pub budgets: Budgets,
    /// Runs of it at once; `None`: the daemon's default.
    #[serde(default)]
    pub max_parallel: Option<u32>,
}

/// Rules, as they may be named by tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyProfile {
    /// Egress rules, canonical form.
    #[serde(default)]
    pub egress_allow: Vec<String>,
    /// Egress rules that beat the allow list.
    #[serde(default)]
    pub egress_deny: Vec<String>,
    /// Posture layers that may be missing.
    #[serde(default)]
    pub accept_degraded: Vec<String>,
    /// How failures are treated.
    #[serde(default)]
    pub retry: RetryPolicy,
    /// Bounds of delegation.
    #[serde(default)]
    pub delegation: DelegationLimits,
}

/// A profile under a name, with a version that each change counts up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Named<I, T> {
    /// Its id.
    pub id: I,
    /// For people and configuration; unique.
    pub name: String,
    /// Counts from 1.
    pub version: u64,
    /// What it says.
    pub body: T,
    /// When it last changed.
    pub updated_at: TimestampMs,
}

/// An agent under a name.
pub type NamedAgent = Named<AgentId, AgentProfile>;

/// A policy under a name.
pub type NamedPolicy = Named<PolicyId, PolicyProfile>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ScheduleId;

    #[test]
    fn everything_that_happens_by_itself_is_off_until_switched_on() {
        let person = Actor::Person("ada".into());
        let schedule = Actor::Schedule(ScheduleId::from_entropy([1; 5]));
        let hook = Actor::Webhook("github".into());
        let off = Switches::default();
        assert_eq!(off.admit(&person, Mode::Supervised), Ok(()));
        assert_eq!(off.admit(&person, Mode::Unattended).unwrap_err().switch, "unattended");
        assert_eq!(off.admit(&schedule, Mode::Supervised).unwrap_err().switch, "scheduled");
        assert_eq!(off.admit(&hook, Mode::Supervised).unwrap_err().switch, "remote");
        let some = Switches { scheduled: true, ..off };
        assert_eq!(some.admit(&schedule, Mode::Unattended).unwrap_err().switch, "unattended");
        let all = Switches { unattended: true, scheduled: true, remote: true };
        for origin in [person, schedule, hook, Actor::Host] {
            assert_eq!(all.admit(&origin, Mode::Unattended), Ok(()));
        }
    }
}
