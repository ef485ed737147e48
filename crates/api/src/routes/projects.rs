//! Projects with their switches, and threads whose turns follow one another.

use cofferdam_daemon::HostError;
use cofferdam_ledger::store::catalogue::{ProjectChange, Stored};
use cofferdam_run::project::{MAX_NAME_CHARS, Project, Thread};
use cofferdam_run::{ProjectId, ThreadId};
use http::StatusCode;

use super::{page, paged};
use crate::endpoint::{Call, Nothing};
use crate::problem::Problem;
use crate::types::{
    ChangeProject, ListThreads, NewProject, NewThread, PageQuery, ProjectList, ThreadList,
};

fn entropy() -> Result<[u8; 5], Problem> {
    let mut bytes = [0u8; 5];
    getrandom::fill(&mut bytes).map_err(|e| HostError::Internal(e.to_string()))?;
    Ok(bytes)
}

fn name(text: &str) -> Result<String, Problem> {
    let text = text.trim();
    let fine = !text.is_empty()
        && text.chars().count() <= MAX_NAME_CHARS
        && !text.chars().any(char::is_control);
    if fine {
        return Ok(text.to_owned());
    }
    Err(Problem::malformed(format!("a name has 1 to {MAX_NAME_CHARS} characters on one line")))
}

fn stored(outcome: Stored<Project>) -> Result<Project, Problem> {
    match outcome {
        Stored::Done(project) => Ok(project),
        Stored::Taken { what } => {
            let title = format!("another project has this {what}");
            Err(Problem::new(StatusCode::CONFLICT, "API-017", title))
        }
        Stored::Changed { version } => {
            let title = format!("somebody changed it meanwhile: it is at version {version}");
            Err(Problem::new(StatusCode::CONFLICT, "API-017", title))
        }
    }
}

fn project_id(call: &Call<impl Sized, impl Sized>) -> Result<ProjectId, Problem> {
    let text = call.part("project");
    text.parse().map_err(|_| Problem::no_such(format!("project {text}")))
}

pub(super) async fn list(call: Call<PageQuery>) -> Result<ProjectList, Problem> {
    let part = page(call.query.before, call.query.limit)?;
    let (projects, next) = paged(call.service.host.durable().projects(part).await?);
    Ok(ProjectList { projects, next })
}

pub(super) async fn create(call: Call<Nothing, NewProject>) -> Result<Project, Problem> {
    let new = &call.body;
    let checkout = cofferdam_workspace::Checkout::open(std::path::Path::new(&new.checkout))
        .await
        .map_err(HostError::from)?;
    let project = Project {
        id: ProjectId::from_entropy(entropy()?),
        name: name(&new.name)?,
        checkout: checkout.top().display().to_string(),
        switches: new.switches,
        max_parallel: new.max_parallel,
        created_at: call.now(),
        archived_at: None,
    };
    stored(call.service.host.durable().create_project(project).await?)
}

pub(super) async fn one(call: Call) -> Result<Project, Problem> {
    let id = project_id(&call)?;
    Ok(call.service.host.durable().project(&id).await?)
}

pub(super) async fn change(call: Call<Nothing, ChangeProject>) -> Result<Project, Problem> {
    let id = project_id(&call)?;
    let wish = &call.body;
    let change = ProjectChange {
        name: wish.name.as_deref().map(name).transpose()?,
        switches: wish.switches,
        max_parallel: wish.max_parallel.map(|n| (n > 0).then_some(n)),
        archive: wish.archive.then(|| call.now()),
    };
    let changed = stored(call.service.host.durable().change_project(&id, change).await?)?;
    // More may run at once now.
    call.service.changed.notify_one();
    Ok(changed)
}

pub(super) async fn threads(call: Call<ListThreads>) -> Result<ThreadList, Problem> {
    let part = page(call.query.before, call.query.limit)?;
    let found = call.service.host.durable().threads(call.query.project.clone(), part).await?;
    let (threads, next) = paged(found);
    Ok(ThreadList { threads, next })
}

pub(super) async fn open_thread(call: Call<Nothing, NewThread>) -> Result<Thread, Problem> {
    let new = Thread {
        id: ThreadId::from_entropy(entropy()?),
        project: call.body.project.clone(),
        title: name(&call.body.title)?,
        created_at: call.now(),
        closed_at: None,
    };
    Ok(call.service.host.durable().create_thread(new).await?)
}

pub(super) async fn close_thread(call: Call<Nothing, Nothing>) -> Result<Thread, Problem> {
    let text = call.part("thread");
    let id: ThreadId = text.parse().map_err(|_| Problem::no_such(format!("thread {text}")))?;
    Ok(call.service.host.durable().close_thread(&id, call.now()).await?)
}
