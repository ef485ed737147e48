//! Approvals: a question of a run that one person answers once.
//!
//! The pure machine. A decision never changes, an approval is used at most once, only by the run
//! that asked and only for what was asked; whoever asked does not decide. A broken connection, a
//! restart or silence is never a yes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::actor::{Actor, Decider};
use crate::ids::{ApprovalId, Digest, RunId, TimestampMs};
use crate::record::canonical_json;

/// Milliseconds that a question stays open unless it says otherwise: a day. Then it is answered no.
pub const DEFAULT_EXPIRY_MS: u64 = 24 * 60 * 60 * 1000;

/// Characters of what a person is shown of one question. The rest is cut.
pub const MAX_TEXT_CHARS: usize = 2_000;

/// What is asked for. Two subjects are the same when action and arguments are: the text for people
/// is not part of the digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Subject {
    /// What would be done, for example `file_delete`.
    pub action: String,
    /// With what; meaning only, no descriptions.
    pub arguments: Value,
    /// Digest of action and arguments in canonical form.
    pub digest: Digest,
    /// For people.
    pub text: String,
}

impl Subject {
    /// A subject with its digest.
    #[must_use]
    pub fn new(action: &str, arguments: Value, text: &str) -> Self {
        let meaning = serde_json::json!({ "action": action, "arguments": arguments });
        Self {
            action: action.to_owned(),
            digest: Digest::of(canonical_json(&meaning).as_bytes()),
            arguments,
            text: text.chars().take(MAX_TEXT_CHARS).collect(),
        }
    }

    /// False when the digest does not follow from the rest.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        Self::new(&self.action, self.arguments.clone(), &self.text).digest == self.digest
    }
}

/// Yes or no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Do it, once.
    Approve,
    /// Do not.
    Reject,
}

/// Where a question stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ApprovalState {
    /// Nobody has decided.
    Pending,
    /// Yes, and not used yet.
    Approved {
        /// Who said so.
        by: Actor,
        /// When.
        at: TimestampMs,
    },
    /// No.
    Rejected {
        /// Who said so.
        by: Actor,
        /// When.
        at: TimestampMs,
        /// Why, for the agent and for people; empty when nothing was said.
        reason: String,
    },
    /// Yes, and used. Nothing follows.
    Consumed {
        /// Who said yes.
        by: Actor,
        /// When.
        at: TimestampMs,
        /// When it was used.
        used_at: TimestampMs,
    },
    /// Nobody decided in time: no.
    Expired {
        /// When that was found.
        at: TimestampMs,
    },
    /// The run no longer asks: it is over or was taken over.
    Withdrawn {
        /// When.
        at: TimestampMs,
        /// Why, for people.
        why: String,
    },
}

impl ApprovalState {
    /// The name in storage and output.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved { .. } => "approved",
            Self::Rejected { .. } => "rejected",
            Self::Consumed { .. } => "consumed",
            Self::Expired { .. } => "expired",
            Self::Withdrawn { .. } => "withdrawn",
        }
    }

    /// Every name, in the order of a life.
    pub const NAMES: &'static [&'static str] =
        &["pending", "approved", "rejected", "consumed", "expired", "withdrawn"];

    /// Who decided, when somebody did.
    #[must_use]
    pub fn decided_by(&self) -> Option<&Actor> {
        match self {
            Self::Approved { by, .. } | Self::Rejected { by, .. } | Self::Consumed { by, .. } => {
                Some(by)
            }
            Self::Pending | Self::Expired { .. } | Self::Withdrawn { .. } => None,
        }
    }
}

/// A question and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Approval {
    /// Its id; links carry it, so they survive a restart.
    pub id: ApprovalId,
    /// The run that asks and that alone may use a yes.
    pub run: RunId,
    /// Names the question within the run.
    pub ask: String,
    /// What is asked for.
    pub subject: Subject,
    /// Who asks.
    pub asked_by: Actor,
    /// When.
    pub asked_at: TimestampMs,
    /// From this instant on nobody can say yes.
    pub expires_at: TimestampMs,
    /// Where it stands.
    pub state: ApprovalState,
}

/// Why a decision or a use does not count. A result, not a fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Somebody was first; the state says who and when.
    #[error("it was decided before: {}", state.name())]
    Decided {
        /// The state that stands.
        state: Box<ApprovalState>,
    },
    /// It was open too long.
    #[error("it expired at {}", at.0)]
    Expired {
        /// When.
        at: TimestampMs,
    },
    /// The run no longer asks.
    #[error("the run no longer asks: {why}")]
    Withdrawn {
        /// Why.
        why: String,
    },
    /// Whoever asks does not decide.
    #[error("whoever asked cannot decide")]
    OwnRequest,
    /// There is no yes to use.
    #[error("it is {state}, not approved")]
    NotApproved {
        /// What it is.
        state: &'static str,
    },
    /// The yes was another run's.
    #[error("the approval belongs to the run {run}")]
    OtherRun {
        /// Whose.
        run: RunId,
    },
    /// The yes was to something else.
    #[error("something else was approved")]
    OtherSubject,
}

impl Approval {
    /// A person answers.
    ///
    /// # Errors
    /// When the answer does not count; what stands is in the error.
    pub fn decide(
        self,
        by: &Decider,
        decision: Decision,
        reason: &str,
        at: TimestampMs,
    ) -> Result<Self, Refusal> {
        match &self.state {
            ApprovalState::Pending => {}
            ApprovalState::Expired { at } => return Err(Refusal::Expired { at: *at }),
            ApprovalState::Withdrawn { why, .. } => {
                return Err(Refusal::Withdrawn { why: why.clone() });
            }
            ApprovalState::Approved { .. }
            | ApprovalState::Rejected { .. }
            | ApprovalState::Consumed { .. } => {
                return Err(Refusal::Decided { state: Box::new(self.state) });
            }
        }
        if at >= self.expires_at {
            return Err(Refusal::Expired { at: self.expires_at });
        }
        let by = by.actor();
        if by == self.asked_by {
            return Err(Refusal::OwnRequest);
        }
        let state = match decision {
            Decision::Approve => ApprovalState::Approved { by, at },
            Decision::Reject => ApprovalState::Rejected {
                by,
                at,
                reason: reason.chars().take(MAX_TEXT_CHARS).collect(),
            },
        };
        Ok(Self { state, ..self })
    }

    /// The run uses the yes for what it asked. Once.
    ///
    /// # Errors
    /// When there is no unused yes of this run to this subject.
    pub fn consume(self, run: &RunId, subject: &Digest, at: TimestampMs) -> Result<Self, Refusal> {
        if *run != self.run {
            return Err(Refusal::OtherRun { run: self.run });
        }
        if *subject != self.subject.digest {
            return Err(Refusal::OtherSubject);
        }
        match self.state {
            ApprovalState::Approved { by, at: decided } => {
                let state = ApprovalState::Consumed { by, at: decided, used_at: at };
                Ok(Self { state, ..self })
            }
            ApprovalState::Pending
            | ApprovalState::Rejected { .. }
            | ApprovalState::Consumed { .. }
            | ApprovalState::Expired { .. }
            | ApprovalState::Withdrawn { .. } => {
                Err(Refusal::NotApproved { state: self.state.name() })
            }
        }
    }

    /// Nobody decided in time. Unchanged when it is not open or not due.
    #[must_use]
    pub fn expired(self, now: TimestampMs) -> Self {
        match self.state {
            ApprovalState::Pending if now >= self.expires_at => {
                Self { state: ApprovalState::Expired { at: now }, ..self }
            }
            ApprovalState::Pending
            | ApprovalState::Approved { .. }
            | ApprovalState::Rejected { .. }
            | ApprovalState::Consumed { .. }
            | ApprovalState::Expired { .. }
            | ApprovalState::Withdrawn { .. } => self,
        }
    }

    /// The run no longer asks. A yes that was not used goes with it; what was decided or used
    /// otherwise stands.
    #[must_use]
    pub fn withdrawn(self, why: &str, at: TimestampMs) -> Self {
        match self.state {
            ApprovalState::Pending | ApprovalState::Approved { .. } => {
                let why = why.chars().take(MAX_TEXT_CHARS).collect();
                Self { state: ApprovalState::Withdrawn { at, why }, ..self }
            }
            ApprovalState::Rejected { .. }
            | ApprovalState::Consumed { .. }
            | ApprovalState::Expired { .. }
            | ApprovalState::Withdrawn { .. } => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::run_id;

    fn pending() -> Approval {
        Approval {
            id: ApprovalId::from_entropy([1; 5]),
            run: run_id(),
            ask: "a1".into(),
            subject: Subject::new("file_delete", serde_json::json!({ "path": "x" }), "delete x?"),
            asked_by: Actor::Agent(run_id()),
            asked_at: TimestampMs(0),
            expires_at: TimestampMs(1_000),
            state: ApprovalState::Pending,
        }
    }

    fn ada() -> Decider {
        Decider::person("ada").unwrap()
    }

    #[test]
    fn the_first_decision_stands_and_says_whose_it_is() {
        let yes = pending().decide(&ada(), Decision::Approve, "", TimestampMs(1)).unwrap();
        let bob = Decider::person("bob").unwrap();
        let late = yes.decide(&bob, Decision::Reject, "", TimestampMs(2)).unwrap_err();
        let Refusal::Decided { state } = late else { panic!("{late:?}") };
        assert_eq!(state.decided_by(), Some(&Actor::Person("ada".into())));
    }

    #[test]
    fn a_yes_is_used_once_by_its_run_for_its_subject() {
        let yes = pending().decide(&ada(), Decision::Approve, "", TimestampMs(1)).unwrap();
        let digest = yes.subject.digest.clone();
        let other = RunId::from_entropy([9; 5]);
        let refused = |a: Approval, run: &RunId, digest: &Digest| {
            a.consume(run, digest, TimestampMs(2)).unwrap_err()
        };
        assert!(matches!(refused(yes.clone(), &other, &digest), Refusal::OtherRun { .. }));
        assert_eq!(refused(yes.clone(), &run_id(), &Digest::of(b"x")), Refusal::OtherSubject);
        let used = yes.consume(&run_id(), &digest, TimestampMs(2)).unwrap();
        assert_eq!(refused(used, &run_id(), &digest), Refusal::NotApproved { state: "consumed" });
        assert!(matches!(refused(pending(), &run_id(), &digest), Refusal::NotApproved { .. }));
    }

    #[test]
    fn silence_is_no() {
        let late = pending().decide(&ada(), Decision::Approve, "", TimestampMs(1_000));
        assert_eq!(late.unwrap_err(), Refusal::Expired { at: TimestampMs(1_000) });
        assert_eq!(pending().expired(TimestampMs(999)).state, ApprovalState::Pending);
        assert_eq!(pending().expired(TimestampMs(1_000)).state.name(), "expired");
    }

    #[test]
    fn whoever_asked_cannot_decide() {
        let own = Approval { asked_by: Actor::Person("ada".into()), ..pending() };
        let refused = own.decide(&ada(), Decision::Approve, "", TimestampMs(1)).unwrap_err();
        assert_eq!(refused, Refusal::OwnRequest);
    }

    #[test]
    fn the_digest_covers_meaning_and_not_words() {
        let one = Subject::new("push", serde_json::json!({ "a": 1, "b": 2 }), "push it?");
        let two = Subject::new("push", serde_json::json!({ "b": 2, "a": 1 }), "May I push?");
        let other = Subject::new("push", serde_json::json!({ "a": 1, "b": 3 }), "push it?");
        assert_eq!(one.digest, two.digest);
        assert_ne!(one.digest, other.digest);
        assert!(one.is_sound());
    }

    #[test]
    fn an_unused_yes_goes_with_its_run_and_a_used_one_stands() {
        let yes = pending().decide(&ada(), Decision::Approve, "", TimestampMs(1)).unwrap();
        assert_eq!(yes.clone().withdrawn("over", TimestampMs(2)).state.name(), "withdrawn");
        let used = yes.clone().consume(&run_id(), &yes.subject.digest, TimestampMs(2)).unwrap();
        assert_eq!(used.clone().withdrawn("over", TimestampMs(3)), used);
    }
}
