//! Questions of runs, and the one answer that each gets.

use async_trait::async_trait;
use cofferdam_run::approval::{Approval, Decision, Refusal, Subject};
use cofferdam_run::{Action, ApprovalId, Decider, Digest, Run, RunId, StepError, TimestampMs};

use super::work::{Page, Paged};
use super::{Lost, Result, Store};

/// A question to be asked.
#[derive(Debug, Clone)]
pub struct NewApproval {
    /// Its id, minted by the caller.
    pub id: ApprovalId,
    /// Names it within the run.
    pub ask: String,
    /// What is asked for.
    pub subject: Subject,
    /// From this instant on nobody can say yes.
    pub expires_at: TimestampMs,
}

/// Result of [`Approvals::ask`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Asked {
    /// Durable; only now may it be shown to anyone.
    Waiting {
        /// The question.
        approval: Box<Approval>,
        /// What to do about it.
        actions: Vec<Action>,
    },
    /// Not the caller's run any more.
    Lost(Lost),
    /// The run cannot ask now.
    Illegal(StepError),
}

/// Result of [`Approvals::decide`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Decided {
    /// This answer counts; the run has moved in the same transaction.
    Counts {
        /// The question with its answer.
        approval: Box<Approval>,
        /// The run as it stands now.
        run: Box<Run>,
        /// What its owner has to do.
        actions: Vec<Action>,
    },
    /// It does not; says what stands and who decided.
    Refused {
        /// Why.
        refusal: Refusal,
        /// The question as it stands.
        approval: Box<Approval>,
    },
}

/// Result of [`Approvals::consume`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Used {
    /// The yes is used up, and what it allows may be done once.
    Granted(Box<Approval>),
    /// There is no unused yes.
    Refused(Refusal),
    /// Not the caller's run any more, or it is being stopped.
    Lost(Lost),
}

/// Which questions a list shows. The default shows all.
#[derive(Debug, Clone, Default)]
pub struct ApprovalFilter {
    /// Only in this state, by [`cofferdam_run::approval::ApprovalState::NAMES`].
    pub state: Option<String>,
    /// Only of this run.
    pub run: Option<RunId>,
}

/// Approvals. Every method either is durable when it returns or changed nothing.
#[async_trait]
pub trait Approvals: Store {
    /// Stores the question and lets the run wait, in one transaction. Needs the epoch and a valid
    /// lease.
    async fn ask(
        &self,
        run: &RunId,
        epoch: u64,
        new: NewApproval,
        at: TimestampMs,
    ) -> Result<Asked>;

    /// A person answers. Of any number of answers exactly one counts, and moves the run in the same
    /// transaction; the others learn who decided.
    async fn decide(
        &self,
        id: &ApprovalId,
        by: &Decider,
        decision: Decision,
        reason: &str,
        at: TimestampMs,
    ) -> Result<Decided>;

    /// The run uses a yes for what it asked. Once, and not when somebody wishes to stop it.
    async fn consume(
        &self,
        id: &ApprovalId,
        run: &RunId,
        epoch: u64,
        subject: &Digest,
        at: TimestampMs,
    ) -> Result<Used>;

    /// The question as it stands.
    async fn approval(&self, id: &ApprovalId) -> Result<Approval>;

    /// Questions, newest first.
    async fn approvals(&self, filter: ApprovalFilter, page: Page) -> Result<Paged<Approval>>;

    /// How many wait for somebody.
    async fn approvals_pending(&self) -> Result<u64>;

    /// Answers no to whatever was open too long, and lets those runs go on.
    async fn expire_approvals(&self, now: TimestampMs) -> Result<Vec<Approval>>;
}
