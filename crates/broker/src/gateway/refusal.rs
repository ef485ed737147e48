//! Refusals: one code each, in the error shape of the provider that the guest believes it talks to.
//!
//! They are written for whoever reads the agent's log hours later. A refusal must never carry a
//! credential, nor anything of the host but the names that the operator chose.

use bytes::Bytes;
use cofferdam_run::spec::Dialect;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

/// Codes of the gateway. Each has a page in `docs/errors/`.
pub mod codes {
    /// No such endpoint behind this gateway.
    pub const ENDPOINT: &str = "MODEL-001";
    /// WebSocket is not carried.
    pub const UPGRADE: &str = "MODEL-002";
    /// The request body is too large.
    pub const TOO_LARGE: &str = "MODEL-003";
    /// The request is no unambiguous JSON object, or did not arrive.
    pub const MALFORMED: &str = "MODEL-004";
    /// Another model than the run's.
    pub const MODEL: &str = "MODEL-005";
    /// A field, value or query parameter that the gateway does not admit.
    pub const FIELD: &str = "MODEL-006";
    /// A tool that the provider would run, or of an unknown type.
    pub const TOOL: &str = "MODEL-007";
    /// Content that the provider would fetch, or of an unknown type.
    pub const CONTENT: &str = "MODEL-008";
    /// State kept at the provider: stored answers, conversations, files, caches.
    pub const STORED: &str = "MODEL-009";
    /// A budget of the run is used up.
    pub const BUDGET: &str = "MODEL-010";
    /// What is left of the budget is reserved by calls in flight.
    pub const RESERVED: &str = "MODEL-011";
    /// Too many calls at once.
    pub const BUSY: &str = "MODEL-012";
    /// The provider cannot be reached.
    pub const UNREACHABLE: &str = "MODEL-013";
    /// The provider does not accept the host's key.
    pub const KEY: &str = "MODEL-014";
    /// The provider answered something that is no answer.
    pub const BROKEN: &str = "MODEL-015";
    /// The provider fell silent.
    pub const SILENT: &str = "MODEL-016";
    /// The run has ended.
    pub const ENDED: &str = "MODEL-017";
}

/// Why a call was not carried, or not to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) code: &'static str,
    pub(super) message: String,
    /// Seconds after which a retry makes sense; `None`: never.
    pub(super) retry_after: Option<u32>,
}

impl Refusal {
    pub(super) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), retry_after: None }
    }

    /// Refused by what it asks for; a retry would be refused again.
    pub(super) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(403, code, message)
    }

    /// Cannot be carried now.
    pub(super) fn later(code: &'static str, message: impl Into<String>) -> Self {
        Self { retry_after: Some(1), ..Self::new(429, code, message) }
    }

    fn text(&self) -> String {
        format!("Cofferdam {}: {}", self.code, self.message)
    }

    /// The error document in the dialect's shape.
    pub(super) fn document(&self, dialect: Dialect) -> Value {
        let (text, code, status) = (self.text(), self.code, self.status);
        match dialect {
            Dialect::Anthropic => {
                let kind = match status {
                    401 => "authentication_error",
                    403 => "permission_error",
                    404 => "not_found_error",
                    413 => "request_too_large",
                    429 => "rate_limit_error",
                    400..=499 => "invalid_request_error",
                    _ => "api_error",
                };
                json!({"type": "error", "error": {"type": kind, "message": text, "code": code}})
            }
            Dialect::OpenaiChat | Dialect::OpenaiResponses => {
                let kind = match status {
                    429 => "requests",
                    400..=499 => "invalid_request_error",
                    _ => "server_error",
                };
                json!({"error": {"message": text, "type": kind, "param": null, "code": code}})
            }
            Dialect::Gemini => {
                let name = match status {
                    401 => "UNAUTHENTICATED",
                    403 => "PERMISSION_DENIED",
                    404 => "NOT_FOUND",
                    429 => "RESOURCE_EXHAUSTED",
                    502 => "UNAVAILABLE",
                    504 => "DEADLINE_EXCEEDED",
                    400..=499 => "INVALID_ARGUMENT",
                    _ => "INTERNAL",
                };
                let detail = json!({
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": "cofferdam",
                });
                json!({"error": {"code": status, "message": text, "status": name, "details": [detail]}})
            }
        }
    }

    /// The event that tells it within a stream, in the dialect's shape.
    pub(super) fn event(&self, dialect: Dialect) -> Bytes {
        let document = self.document(dialect);
        Bytes::from(match dialect {
            Dialect::Anthropic => format!("event: error\ndata: {document}\n\n"),
            Dialect::OpenaiResponses => {
                let event = json!({"type": "error", "code": self.code, "message": self.text(), "param": null});
                format!("event: error\ndata: {event}\n\n")
            }
            Dialect::OpenaiChat | Dialect::Gemini => format!("data: {document}\n\n"),
        })
    }

    /// The whole answer.
    pub(super) fn response(&self, dialect: Dialect) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(self.document(dialect).to_string()));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // The providers' own clients obey this header before they look at the status.
        // A provider that fails is left to their own habits.
        let retry = if self.retry_after.is_some() { Some("true") } else { None };
        if let Some(retry) = retry.or((self.status < 500).then_some("false")) {
            headers.insert("x-should-retry", HeaderValue::from_static(retry));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialect_finds_message_and_code_where_its_clients_look() {
        let refusal = Refusal::forbidden(codes::TOOL, "no web search");
        for (dialect, message, code) in [
            (Dialect::Anthropic, "/error/message", "/error/code"),
            (Dialect::OpenaiChat, "/error/message", "/error/code"),
            (Dialect::OpenaiResponses, "/error/message", "/error/code"),
            (Dialect::Gemini, "/error/message", "/error/details/0/reason"),
        ] {
            let document = refusal.document(dialect);
            assert_eq!(document.pointer(message).unwrap(), "Cofferdam MODEL-007: no web search");
            assert_eq!(document.pointer(code).unwrap(), "MODEL-007");
        }
        let response = refusal.response(Dialect::Anthropic);
        assert_eq!(response.headers()["x-should-retry"], "false");
        assert_eq!(
            Refusal::later(codes::BUSY, "x").response(Dialect::Gemini).headers()["retry-after"],
            "1"
        );
    }
}
