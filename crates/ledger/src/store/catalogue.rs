//! Projects, threads and named profiles.

use async_trait::async_trait;
use cofferdam_run::project::{
    AgentProfile, Named, NamedAgent, NamedPolicy, PolicyProfile, Project, Switches, Thread,
};
use cofferdam_run::{AgentId, PolicyId, ProjectId, ThreadId, TimestampMs};

use super::work::{Page, Paged};
use super::{Result, Store};

/// What may change of a project. `None` leaves it.
#[derive(Debug, Clone, Default)]
pub struct ProjectChange {
    /// Its name.
    pub name: Option<String>,
    /// Its switches.
    pub switches: Option<Switches>,
    /// Runs at once; the inner `None`: the daemon's default.
    pub max_parallel: Option<Option<u32>>,
    /// Archives it at that instant.
    pub archive: Option<TimestampMs>,
}

/// Result of making or changing something with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Stored<T> {
    /// Durable.
    Done(T),
    /// Name or checkout belong to another.
    Taken {
        /// `name` or `checkout`.
        what: &'static str,
    },
    /// Somebody changed it since it was read.
    Changed {
        /// Its version now.
        version: u64,
    },
}

/// Projects, threads, agents, policies. Every method either is durable when it returns or changed
/// nothing.
#[async_trait]
pub trait Catalogue: Store {
    /// Makes a project.
    async fn create_project(&self, new: Project) -> Result<Stored<Project>>;
    /// Changes it.
    async fn change_project(
        &self,
        id: &ProjectId,
        change: ProjectChange,
    ) -> Result<Stored<Project>>;
    /// The project as it stands.
    async fn project(&self, id: &ProjectId) -> Result<Project>;
    /// The project of that checkout that is not archived.
    async fn project_at(&self, checkout: &str) -> Result<Option<Project>>;
    /// Projects, newest first.
    async fn projects(&self, page: Page) -> Result<Paged<Project>>;

    /// Opens a thread.
    async fn create_thread(&self, new: Thread) -> Result<Thread>;
    /// Lets it take no further turn; what was made goes on. Closing twice is harmless.
    async fn close_thread(&self, id: &ThreadId, at: TimestampMs) -> Result<Thread>;
    /// The thread as it stands.
    async fn thread(&self, id: &ThreadId) -> Result<Thread>;
    /// Threads, newest first.
    async fn threads(&self, project: Option<ProjectId>, page: Page) -> Result<Paged<Thread>>;

    /// Makes an agent profile (`expected` 0), or changes the version that the caller has read.
    async fn put_agent(
        &self,
        named: Named<AgentId, AgentProfile>,
        expected: u64,
    ) -> Result<Stored<NamedAgent>>;
    /// The agent profile as it stands.
    async fn agent(&self, id: &AgentId) -> Result<NamedAgent>;
    /// Agent profiles, newest first.
    async fn agents(&self, page: Page) -> Result<Paged<NamedAgent>>;

    /// Makes a policy (`expected` 0), or changes the version that the caller has read.
    async fn put_policy(
        &self,
        named: Named<PolicyId, PolicyProfile>,
        expected: u64,
    ) -> Result<Stored<NamedPolicy>>;
    /// The policy as it stands.
    async fn policy(&self, id: &PolicyId) -> Result<NamedPolicy>;
    /// Policies, newest first.
    async fn policies(&self, page: Page) -> Result<Paged<NamedPolicy>>;
}
