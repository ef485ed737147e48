//! Every route of the service. A route that is not in this list does not exist.

mod projects;
mod review;
mod runs;
mod schedules;
mod system;
mod tasks;

use cofferdam_ledger::store::work::{Page, Paged};
use http::StatusCode;

use crate::access::{Access, Role};
use crate::endpoint::{Endpoint, Row};
use crate::problem::Problem;
use crate::stream;
use crate::types::{Event, From, FromLog, LoggedEvent};

/// Most entries of a list or a page. A larger wish is refused with API-005.
pub(crate) const MAX_PAGE: u32 = 1000;
/// Entries when nothing is wished for.
const USUAL_PAGE: u32 = 50;

fn limit(wish: Option<u32>, usual: u32) -> Result<u32, Problem> {
    match wish {
        None => Ok(usual),
        Some(limit @ 1..=MAX_PAGE) => Ok(limit),
        Some(_) => Err(Problem::malformed(format!("limit must be 1 to {MAX_PAGE}"))),
    }
}

fn page(before: Option<u64>, wish: Option<u32>) -> Result<Page, Problem> {
    Ok(Page { before, limit: limit(wish, USUAL_PAGE)? })
}

fn paged<T>(found: Paged<T>) -> (Vec<T>, Option<u64>) {
    (found.items, found.next)
}

const VIEWER: Access = Access::AtLeast(Role::Viewer);
const OPERATOR: Access = Access::AtLeast(Role::Operator);

const fn row(id: &'static str, path: &'static str, access: Access, summary: &'static str) -> Row {
    Row { id, path, access, summary }
}

/// All of them.
pub(crate) fn all() -> Vec<Endpoint> {
    vec![
        Endpoint::document(
            row("page", "/", Access::Anyone, "A page that says what this is."),
            "text/html; charset=utf-8",
            system::page,
        ),
        Endpoint::get(
            row("health", "/healthz", Access::Anyone, "Whether the service is up."),
            system::health,
        ),
        Endpoint::document(
            row("openapi", "/api/v1/openapi.json", Access::Anyone, "This document."),
            "application/json",
            system::openapi,
        ),
        Endpoint::get(
            row("service", "/api/v1/service", VIEWER, "What answers here, and who is asking."),
            system::info,
        ),
        Endpoint::post(
            row(
                "stop_service",
                "/api/v1/service/stop",
                Access::LocalSocket,
                "Ends the service; live runs are cancelled and wound up first.",
            ),
            StatusCode::ACCEPTED,
            system::stop,
        ),
        Endpoint::post(
            row(
                "new_code",
                "/api/v1/codes",
                Access::LocalSocket,
                "A code for one browser session.",
            ),
            StatusCode::OK,
            system::new_code,
        ),
        Endpoint::post(
            row("new_session", "/api/v1/session", Access::Anyone, "Exchanges a code, once."),
            StatusCode::OK,
            system::new_session,
        ),
        Endpoint::post(
            row("end_session", "/api/v1/session/end", VIEWER, "Ends the caller's session."),
            StatusCode::OK,
            system::end_session,
        ),
        Endpoint::get(
            row("engines", "/api/v1/engines", VIEWER, "What each engine can do here. Slow."),
            system::engines,
        ),
        Endpoint::get(
            row("list_tasks", "/api/v1/tasks", VIEWER, "Tasks, newest first."),
            tasks::list,
        ),
        Endpoint::post(
            row("new_task", "/api/v1/tasks", OPERATOR, "Makes a task and queues its first run."),
            StatusCode::CREATED,
            tasks::create,
        ),
        Endpoint::get(
            row("task", "/api/v1/tasks/{task}", VIEWER, "One task with its attempts."),
            tasks::one,
        ),
        Endpoint::post(
            row(
                "retry_task",
                "/api/v1/tasks/{task}/retry",
                OPERATOR,
                "Tries a task again, as it was or edited. Of several askers one wins.",
            ),
            StatusCode::OK,
            tasks::retry,
        ),
        Endpoint::post(
            row(
                "cancel_task",
                "/api/v1/tasks/{task}/cancel",
                OPERATOR,
                "Stops a task and everything below it; no further attempt is made.",
            ),
            StatusCode::OK,
            tasks::cancel,
        ),
        Endpoint::get(
            row("list_projects", "/api/v1/projects", VIEWER, "Projects, newest first."),
            projects::list,
        ),
        Endpoint::post(
            row("new_project", "/api/v1/projects", OPERATOR, "Makes a project of a checkout."),
            StatusCode::OK,
            projects::create,
        ),
        Endpoint::get(
            row("project", "/api/v1/projects/{project}", VIEWER, "One project."),
            projects::one,
        ),
        Endpoint::post(
            row(
                "change_project",
                "/api/v1/projects/{project}",
                OPERATOR,
                "Changes name, switches or bound of a project, or archives it.",
            ),
            StatusCode::OK,
            projects::change,
        ),
        Endpoint::get(
            row("list_threads", "/api/v1/threads", VIEWER, "Threads, newest first."),
            projects::threads,
        ),
        Endpoint::post(
            row("new_thread", "/api/v1/threads", OPERATOR, "Opens a thread."),
            StatusCode::OK,
            projects::open_thread,
        ),
        Endpoint::post(
            row(
                "close_thread",
                "/api/v1/threads/{thread}/close",
                OPERATOR,
                "Lets a thread take no further turn.",
            ),
            StatusCode::OK,
            projects::close_thread,
        ),
        Endpoint::get(
            row("list_schedules", "/api/v1/schedules", VIEWER, "Schedules, newest first."),
            schedules::list,
        ),
        Endpoint::post(
            row("new_schedule", "/api/v1/schedules", OPERATOR, "Makes a schedule, switched off."),
            StatusCode::OK,
            schedules::create,
        ),
        Endpoint::get(
            row(
                "schedule",
                "/api/v1/schedules/{schedule}",
                VIEWER,
                "One schedule, with its slots.",
            ),
            schedules::one,
        ),
        Endpoint::post(
            row(
                "enable_schedule",
                "/api/v1/schedules/{schedule}/enable",
                OPERATOR,
                "Switches a schedule on or off.",
            ),
            StatusCode::OK,
            schedules::enable,
        ),
        Endpoint::events::<FromLog, LoggedEvent, _, _, _>(
            row(
                "log",
                "/api/v1/stream",
                VIEWER,
                "Events of all runs as they happen. After the event `rebase` read anew what was built from it.",
            ),
            stream::log,
        ),
        Endpoint::get(row("list_runs", "/api/v1/runs", VIEWER, "Runs, newest first."), runs::list),
        Endpoint::get(row("run", "/api/v1/runs/{run}", VIEWER, "One run."), runs::one),
        Endpoint::post(
            row("cancel_run", "/api/v1/runs/{run}/cancel", OPERATOR, "Wishes to stop a run."),
            StatusCode::OK,
            runs::cancel,
        ),
        Endpoint::get(
            row("events", "/api/v1/runs/{run}/events", VIEWER, "A page of a run's events."),
            runs::events,
        ),
        Endpoint::events::<From, Event, _, _, _>(
            row(
                "stream",
                "/api/v1/runs/{run}/stream",
                VIEWER,
                "A run's events as they happen. Take it up again with Last-Event-ID. Ends with the event `end`.",
            ),
            stream::run,
        ),
        Endpoint::document(
            row("record", "/api/v1/runs/{run}/record", VIEWER, "The sealed review record."),
            "application/json",
            review::record,
        ),
        Endpoint::get(
            row(
                "diff",
                "/api/v1/runs/{run}/diff",
                VIEWER,
                "What the run changed, risky files first.",
            ),
            review::diff,
        ),
    ]
}
