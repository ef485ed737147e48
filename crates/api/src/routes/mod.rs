//! Every route of the service. A route that is not in this list does not exist.

mod review;
mod runs;
mod system;

use http::StatusCode;

use crate::access::{Access, Role};
use crate::endpoint::{Endpoint, Row};
use crate::stream;
use crate::types::{Event, From};

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
        Endpoint::get(row("list_runs", "/api/v1/runs", VIEWER, "Runs, newest first."), runs::list),
        Endpoint::post(
            row("new_run", "/api/v1/runs", OPERATOR, "Starts a run, or queues it."),
            StatusCode::CREATED,
            runs::create,
        ),
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
