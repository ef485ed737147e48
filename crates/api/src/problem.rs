//! Errors at the HTTP edge, as `application/problem+json` (RFC 9457) with a stable code.
//!
//! The caller gets words that it may show; what only the operator should see goes to the log.

use axum::response::{IntoResponse, Response};
use cofferdam_daemon::HostError;
use cofferdam_ledger::LedgerError;
use http::{HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A refusal or failure, as the caller gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Where the code is explained, relative to the documentation: `docs/errors/api.md`.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// HTTP status.
    pub status: u16,
    /// Stable code, for example `API-001`.
    pub code: Box<str>,
    /// One sentence for people.
    pub title: String,
    /// What lies beneath, outermost first; empty when the title says all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// The way out, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &str, title: impl Into<String>) -> Self {
        let page = code.split('-').next().unwrap_or(code).to_ascii_lowercase();
        Self {
            kind: format!("docs/errors/{page}.md").into(),
            status: status.as_u16(),
            code: code.into(),
            title: title.into(),
            causes: Vec::new(),
            hint: None,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn unauthorised() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "API-001", "this needs a valid token")
            .hint("open the address that `cofferdam web` prints, or use the command line")
    }

    pub(crate) fn forbidden(needs: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "API-002", format!("this needs the right of: {needs}"))
    }

    pub(crate) fn foreign(what: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "API-003", format!("{what} is not one of this service's"))
            .hint("use the address exactly as printed; name others with serve --host-name")
    }

    pub(crate) fn not_json() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "API-004",
            "the request must be application/json",
        )
    }

    pub(crate) fn malformed(detail: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "API-005", format!("the request is not valid: {detail}"))
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let title = format!("the request is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "API-006", title)
    }

    pub(crate) fn no_such(what: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, "API-007", format!("there is no {what}"))
    }

    pub(crate) fn too_many(what: &str) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "API-008", what.to_owned())
    }

    pub(crate) fn stopping() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "API-009", "the service is stopping")
            .hint("try again; the command line starts it anew")
    }

    pub(crate) fn key_reused() -> Self {
        let title = "this idempotency key was used for another request";
        Self::new(StatusCode::CONFLICT, "API-010", title).hint("send a fresh Idempotency-Key")
    }
}

fn status(error: &HostError) -> StatusCode {
    match error {
        HostError::Config(_) | HostError::NoTask | HostError::Rule(_) | HostError::Service(_) => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        HostError::Workspace(_)
        | HostError::Gateway(_)
        | HostError::NoKey { .. }
        | HostError::DataInCheckout(_) => StatusCode::UNPROCESSABLE_ENTITY,
        HostError::Ledger(LedgerError::NoSuchRun { .. } | LedgerError::NotFound { .. })
        | HostError::NoCommits(_) => StatusCode::NOT_FOUND,
        HostError::Ledger(LedgerError::Ambiguous { .. })
        | HostError::NotOver(_)
        | HostError::TakenOver(_) => StatusCode::CONFLICT,
        HostError::Sandbox(_) | HostError::PartMissing { .. } => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<HostError> for Problem {
    fn from(error: HostError) -> Self {
        let status = status(&error);
        if status.is_server_error() {
            tracing::error!(code = error.code(), error = %error, "request failed");
        }
        let mut problem = Self::new(status, error.code(), error.to_string());
        problem.hint = error.hint();
        let mut next = std::error::Error::source(&error);
        while let Some(cause) = next {
            problem.causes.push(cause.to_string());
            next = cause.source();
        }
        problem
    }
}

impl From<LedgerError> for Problem {
    fn from(error: LedgerError) -> Self {
        HostError::from(error).into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Invariant: strings and integers always serialise.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (status, [(header::CONTENT_TYPE, kind)], body).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}
