//! Tasks: make, list, look, try again, stop. Each attempt at a task is a run.

use cofferdam_daemon::{HostError, reach};
use cofferdam_ledger::store::work::{self, Created, Retried, TaskFilter};
use cofferdam_run::task::{PRIORITIES, RetryRefusal, Task, TaskState};
use cofferdam_run::trigger::IdempotencyKey;
use cofferdam_run::{Actor, TaskId};
use http::StatusCode;

use super::{page, paged};
use crate::access::Via;
use crate::endpoint::{Call, Nothing};
use crate::problem::Problem;
use crate::types::{
    AttemptView, ListTasks, NewTask, RetryTask, StartedTask, TaskDetail, TaskList, TreeCancelled,
};

/// Most variables handed over with a task, and most bytes of one. Past either API-005.
pub(crate) const MAX_SECRETS: usize = 64;
/// See [`MAX_SECRETS`].
pub(crate) const MAX_SECRET_BYTES: usize = 64 << 10;

fn secrets_fit(call: &Call<Nothing, NewTask>) -> Result<(), Problem> {
    let secrets = &call.body.secrets;
    if !secrets.is_empty() && call.caller.is_none_or(|c| c.via != Via::Socket) {
        let title = "secrets are taken over the local socket alone";
        return Err(Problem::new(StatusCode::FORBIDDEN, "API-011", title)
            .hint("set the variable where the service is started"));
    }
    if secrets.len() > MAX_SECRETS || secrets.values().any(|v| v.len() > MAX_SECRET_BYTES) {
        return Err(Problem::malformed(format!(
            "at most {MAX_SECRETS} variables of at most {MAX_SECRET_BYTES} bytes"
        )));
    }
    Ok(())
}

fn actor(by: &str) -> Result<Actor, Problem> {
    format!("person:{by}").parse().map_err(Problem::malformed)
}

pub(super) async fn create(call: Call<Nothing, NewTask>) -> Result<StartedTask, Problem> {
    secrets_fit(&call)?;
    let new = &call.body;
    if !new.wish.checkout.starts_with('/') {
        return Err(Problem::malformed("checkout must be an absolute path"));
    }
    if !PRIORITIES.contains(&new.priority) {
        return Err(Problem::malformed("priority must be -100 to 100"));
    }
    let service = &call.service;
    if service.stopping.is_cancelled() {
        return Err(Problem::stopping());
    }
    let key = call.idempotency_key()?;
    // The values are left out: a key is bound to what is asked for, and a value may be fetched anew.
    let body = serde_json::json!({
        "wish": new.wish, "project": new.project, "thread": new.thread, "priority": new.priority,
        "retry": new.retry, "title": new.title,
    });
    let key = key
        .map(|key| IdempotencyKey::new("api/v1/tasks", &key, body.to_string().as_bytes()))
        .transpose()
        .map_err(Problem::malformed)?;
    let value = |name: &str| new.secrets.get(name).cloned().or_else(|| (service.environment)(name));
    let host = &service.host;
    let request = new.wish.request(host.config().clone(), &value)?;
    let checked = host.check(request).await?;
    let mut entropy = [0u8; 5];
    getrandom::fill(&mut entropy).map_err(|e| HostError::Internal(e.to_string()))?;
    let id = TaskId::from_entropy(entropy);
    // Before the task is there to be taken.
    service.handed.keep(&id, new.secrets.clone());
    let made = work::NewTask {
        id: id.clone(),
        title: new.title.clone().unwrap_or_else(|| checked.title()),
        origin: actor(call.by())?,
        project: new.project.clone(),
        thread: new.thread.clone(),
        agent: None,
        priority: new.priority,
        spec: checked.spec().clone(),
        retry: new.retry.clone().unwrap_or_default(),
        created_at: call.now(),
    };
    let reach = reach(&made.spec);
    let created = host.durable().create_task(made, key).await;
    let (task, repeated) = match created {
        Ok(Created::New(task)) => (task, false),
        other => {
            service.handed.forget(&id);
            match other? {
                Created::New(task) | Created::Same(task) => (task, true),
                Created::Conflict { .. } => return Err(Problem::key_reused()),
                Created::Refused(refusal) => {
                    let title = refusal.to_string();
                    return Err(Problem::new(StatusCode::CONFLICT, "API-015", title));
                }
            }
        }
    };
    service.changed.notify_one();
    Ok(StartedTask { task: task.id.clone(), run: task.state.run().clone(), reach, repeated })
}

async fn known(call: &Call<impl Sized, impl Sized>) -> Result<Task, Problem> {
    let text = call.part("task");
    let id: TaskId = text.parse().map_err(|_| Problem::no_such(format!("task {text}")))?;
    Ok(call.service.host.durable().task(&id).await?)
}

pub(super) async fn list(call: Call<ListTasks>) -> Result<TaskList, Problem> {
    let query = &call.query;
    let states: Vec<String> = query
        .state
        .iter()
        .flat_map(|text| text.split(','))
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    if let Some(unknown) = states.iter().find(|s| !TaskState::NAMES.contains(&s.as_str())) {
        return Err(Problem::malformed(format!("no task is ever {unknown:?}")));
    }
    let filter = TaskFilter {
        states,
        project: query.project.clone(),
        thread: query.thread.clone(),
        parent: query.parent.clone(),
        roots_only: query.roots_only,
    };
    let found = call.service.host.durable().tasks(filter, page(query.before, query.limit)?).await?;
    let (tasks, next) = paged(found);
    Ok(TaskList { tasks, next })
}

pub(super) async fn one(call: Call) -> Result<TaskDetail, Problem> {
    let task = known(&call).await?;
    let attempts = call.service.host.durable().attempts(&task.id).await?;
    let attempts = attempts.into_iter().map(AttemptView::of).collect();
    Ok(TaskDetail { task, attempts })
}

pub(super) async fn retry(call: Call<Nothing, RetryTask>) -> Result<StartedTask, Problem> {
    let task = known(&call).await?;
    let service = &call.service;
    let host = &service.host;
    let edited = match &call.body.wish {
        None => None,
        Some(wish) => {
            let value = |name: &str| (service.environment)(name);
            let request = wish.request(host.config().clone(), &value)?;
            Some(host.check(request).await?.spec().clone())
        }
    };
    let spec = edited.as_ref().unwrap_or(&task.spec);
    let reach = reach(spec);
    let by = actor(call.by())?;
    match host.durable().retry_task(&task.id, &by, edited.clone(), call.now()).await? {
        Retried::Queued { task, run } => {
            service.changed.notify_one();
            Ok(StartedTask { task: task.id.clone(), run, reach, repeated: false })
        }
        Retried::Refused(refusal) => Err(refused(&refusal)),
    }
}

fn refused(refusal: &RetryRefusal) -> Problem {
    Problem::new(StatusCode::CONFLICT, "API-016", format!("it is not tried again: {refusal}"))
}

pub(super) async fn cancel(call: Call<Nothing, Nothing>) -> Result<TreeCancelled, Problem> {
    let task = known(&call).await?;
    let done = call.service.host.durable().cancel_task(&task.id, call.by(), call.now()).await?;
    for run in &done.requested {
        call.service.nudge(run);
    }
    call.service.handed.forget(&task.id);
    call.service.changed.notify_one();
    Ok(TreeCancelled { requested: done.requested, over: done.over })
}
