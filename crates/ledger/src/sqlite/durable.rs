//! The SQLite backend of the traits above runs: work, approvals, triggers, stream, catalogue.
//!
//! Each method hands one closure to the writer or to a reader; the closures live in `ops`.

use async_trait::async_trait;
use cofferdam_run::approval::{Approval, Decision};
use cofferdam_run::delegate::{DelegationLimits, Share};
use cofferdam_run::project::{
    AgentProfile, Named, NamedAgent, NamedPolicy, PolicyProfile, Project, Thread,
};
use cofferdam_run::task::Task;
use cofferdam_run::trigger::{Delivery, IdempotencyKey};
use cofferdam_run::{
    Actor, AgentId, ApprovalId, Decider, Digest, PolicyId, ProjectId, RunId, RunSpec, ScheduleId,
    TaskId, ThreadId, TimestampMs,
};

use super::Ledger;
use super::ops;
use super::ops::catalogue::Kind;
use crate::store::Result;
use crate::store::approvals::{ApprovalFilter, Approvals, Asked, Decided, NewApproval, Used};
use crate::store::catalogue::{Catalogue, ProjectChange, Stored};
use crate::store::stream::{Compacted, EventFilter, EventPage, Retention, Stream};
use crate::store::triggers::{Received, Schedule, Slot, Triggers};
use crate::store::work::{
    Attempt, BoardRow, ClaimLimits, Claimed, Created, Delegated, NewChild, NewTask, Page, Paged,
    Retried, RunFilter, TaskFilter, TreeCancelled, Work,
};

#[async_trait]
impl Work for Ledger {
    async fn create_task(&self, new: NewTask, key: Option<IdempotencyKey>) -> Result<Created> {
        self.write(move |c| ops::task::create::create_task(c, &new, key.as_ref())).await
    }

    async fn task(&self, id: &TaskId) -> Result<Task> {
        let id = id.clone();
        self.read(move |c| ops::task::query::task(c, &id)).await
    }

    async fn task_of(&self, run: &RunId) -> Result<Option<TaskId>> {
        let run = run.clone();
        self.read(move |c| ops::task::query::task_of(c, &run)).await
    }

    async fn attempts(&self, id: &TaskId) -> Result<Vec<Attempt>> {
        let id = id.clone();
        self.read(move |c| ops::task::query::attempts(c, &id)).await
    }

    async fn tasks(&self, filter: TaskFilter, page: Page) -> Result<Paged<Task>> {
        self.read(move |c| ops::task::query::tasks(c, &filter, page)).await
    }

    async fn runs(&self, filter: RunFilter, page: Page) -> Result<Paged<BoardRow>> {
        self.read(move |c| ops::task::query::runs(c, &filter, page)).await
    }

    async fn claim_next(
        &self,
        owner: &str,
        limits: ClaimLimits,
        now: TimestampMs,
        ttl_ms: u64,
    ) -> Result<Option<Claimed>> {
        let owner = owner.to_owned();
        self.write(move |c| ops::task::queue::claim_next(c, &owner, limits, now, ttl_ms)).await
    }

    async fn next_due(&self) -> Result<Option<TimestampMs>> {
        self.read(ops::task::queue::next_due).await
    }

    async fn retry_task(
        &self,
        id: &TaskId,
        by: &Actor,
        edited: Option<RunSpec>,
        at: TimestampMs,
    ) -> Result<Retried> {
        let (id, by) = (id.clone(), by.clone());
        self.write(move |c| ops::task::retry::retry_task(c, &id, edited.as_ref(), &by, at)).await
    }

    async fn cancel_task(&self, id: &TaskId, by: &str, at: TimestampMs) -> Result<TreeCancelled> {
        let (id, by) = (id.clone(), by.to_owned());
        self.write(move |c| ops::task::retry::cancel_task(c, &id, &by, at)).await
    }

    async fn delegate(
        &self,
        parent: &RunId,
        epoch: u64,
        child: NewChild,
        limits: DelegationLimits,
        at: TimestampMs,
    ) -> Result<Delegated> {
        let parent = parent.clone();
        self.write(move |c| ops::task::delegate::delegate(c, &parent, epoch, &child, &limits, at))
            .await
    }

    async fn allowance(&self, run: &RunId) -> Result<Share> {
        let run = run.clone();
        self.read(move |c| ops::task::delegate::allowance(c, &run)).await
    }
}

#[async_trait]
impl Approvals for Ledger {
    async fn ask(
        &self,
        run: &RunId,
        epoch: u64,
        new: NewApproval,
        at: TimestampMs,
    ) -> Result<Asked> {
        let run = run.clone();
        self.write(move |c| ops::approvals::ask(c, &run, epoch, &new, at)).await
    }

    async fn decide(
        &self,
        id: &ApprovalId,
        by: &Decider,
        decision: Decision,
        reason: &str,
        at: TimestampMs,
    ) -> Result<Decided> {
        let (id, by, reason) = (id.clone(), by.clone(), reason.to_owned());
        self.write(move |c| ops::approvals::decide(c, &id, &by, decision, &reason, at)).await
    }

    async fn consume(
        &self,
        id: &ApprovalId,
        run: &RunId,
        epoch: u64,
        subject: &Digest,
        at: TimestampMs,
    ) -> Result<Used> {
        let (id, run, subject) = (id.clone(), run.clone(), subject.clone());
        self.write(move |c| ops::approvals::consume(c, &id, &run, epoch, &subject, at)).await
    }

    async fn approval(&self, id: &ApprovalId) -> Result<Approval> {
        let id = id.clone();
        self.read(move |c| ops::approvals::approval(c, &id)).await
    }

    async fn approvals(&self, filter: ApprovalFilter, page: Page) -> Result<Paged<Approval>> {
        self.read(move |c| ops::approvals::list(c, &filter, page)).await
    }

    async fn approvals_pending(&self) -> Result<u64> {
        self.read(ops::approvals::pending).await
    }

    async fn expire_approvals(&self, now: TimestampMs) -> Result<Vec<Approval>> {
        self.write(move |c| ops::approvals::expire(c, now)).await
    }
}

#[async_trait]
impl Triggers for Ledger {
    async fn create_schedule(&self, new: Schedule) -> Result<Schedule> {
        self.write(move |c| ops::triggers::create(c, &new)).await
    }

    async fn enable_schedule(
        &self,
        id: &ScheduleId,
        enabled: bool,
        at: TimestampMs,
    ) -> Result<Schedule> {
        let id = id.clone();
        self.write(move |c| ops::triggers::enable(c, &id, enabled, at)).await
    }

    async fn schedule(&self, id: &ScheduleId) -> Result<Schedule> {
        let id = id.clone();
        self.read(move |c| ops::triggers::schedule(c, &id)).await
    }

    async fn schedules(&self, project: Option<ProjectId>, page: Page) -> Result<Paged<Schedule>> {
        self.read(move |c| ops::triggers::schedules(c, project.as_ref(), page)).await
    }

    async fn slots(&self, id: &ScheduleId, limit: u32) -> Result<Vec<Slot>> {
        let id = id.clone();
        self.read(move |c| ops::triggers::slots(c, &id, limit)).await
    }

    async fn fire_due(&self, now: TimestampMs, limit: u32) -> Result<Vec<Slot>> {
        self.write(move |c| ops::triggers::fire_due(c, now, limit)).await
    }

    async fn next_slot(&self) -> Result<Option<TimestampMs>> {
        self.read(ops::triggers::next_slot).await
    }

    async fn receive(&self, delivery: Delivery, new: NewTask) -> Result<Received> {
        self.write(move |c| ops::triggers::receive(c, &delivery, &new)).await
    }
}

#[async_trait]
impl Stream for Ledger {
    async fn events_after(&self, after: u64, filter: EventFilter, limit: u32) -> Result<EventPage> {
        self.read(move |c| ops::stream::events_after(c, after, &filter, limit)).await
    }

    async fn last_event(&self) -> Result<u64> {
        self.read(ops::stream::last_event).await
    }

    async fn compact(&self, retention: Retention, now: TimestampMs) -> Result<Compacted> {
        let mut out = self.write(move |c| ops::stream::compact(c, &retention, now)).await?;
        // Outside the transaction: a file that no row names is nobody's, and files are slow.
        let blobs = self.inner.blobs.clone();
        out.blobs = self.read(move |c| blobs.sweep(c, now)).await?;
        Ok(out)
    }
}

#[async_trait]
impl Catalogue for Ledger {
    async fn create_project(&self, new: Project) -> Result<Stored<Project>> {
        self.write(move |c| ops::catalogue::create_project(c, &new)).await
    }

    async fn change_project(
        &self,
        id: &ProjectId,
        change: ProjectChange,
    ) -> Result<Stored<Project>> {
        let id = id.clone();
        self.write(move |c| ops::catalogue::change_project(c, &id, &change)).await
    }

    async fn project(&self, id: &ProjectId) -> Result<Project> {
        let id = id.clone();
        self.read(move |c| Ok(ops::catalogue::load_project(c, &id)?.1)).await
    }

    async fn project_at(&self, checkout: &str) -> Result<Option<Project>> {
        let checkout = checkout.to_owned();
        self.read(move |c| ops::catalogue::project_at(c, &checkout)).await
    }

    async fn projects(&self, page: Page) -> Result<Paged<Project>> {
        self.read(move |c| ops::catalogue::projects(c, page)).await
    }

    async fn create_thread(&self, new: Thread) -> Result<Thread> {
        self.write(move |c| ops::catalogue::create_thread(c, &new)).await
    }

    async fn close_thread(&self, id: &ThreadId, at: TimestampMs) -> Result<Thread> {
        let id = id.clone();
        self.write(move |c| ops::catalogue::close_thread(c, &id, at)).await
    }

    async fn thread(&self, id: &ThreadId) -> Result<Thread> {
        let id = id.clone();
        self.read(move |c| Ok(ops::catalogue::load_thread(c, &id)?.1)).await
    }

    async fn threads(&self, project: Option<ProjectId>, page: Page) -> Result<Paged<Thread>> {
        self.read(move |c| ops::catalogue::threads(c, project.as_ref(), page)).await
    }

    async fn put_agent(
        &self,
        named: Named<AgentId, AgentProfile>,
        expected: u64,
    ) -> Result<Stored<NamedAgent>> {
        let parallel = named.body.max_parallel;
        self.write(move |c| ops::catalogue::put(c, Kind::Agent, &named, parallel, expected)).await
    }

    async fn agent(&self, id: &AgentId) -> Result<NamedAgent> {
        let id = id.clone();
        self.read(move |c| ops::catalogue::profile_of(c, Kind::Agent, id.as_str())).await
    }

    async fn agents(&self, page: Page) -> Result<Paged<NamedAgent>> {
        self.read(move |c| ops::catalogue::profiles(c, Kind::Agent, page)).await
    }

    async fn put_policy(
        &self,
        named: Named<PolicyId, PolicyProfile>,
        expected: u64,
    ) -> Result<Stored<NamedPolicy>> {
        self.write(move |c| ops::catalogue::put(c, Kind::Policy, &named, None, expected)).await
    }

    async fn policy(&self, id: &PolicyId) -> Result<NamedPolicy> {
        let id = id.clone();
        self.read(move |c| ops::catalogue::profile_of(c, Kind::Policy, id.as_str())).await
    }

    async fn policies(&self, page: Page) -> Result<Paged<NamedPolicy>> {
        self.read(move |c| ops::catalogue::profiles(c, Kind::Policy, page)).await
    }
}
