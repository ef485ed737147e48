//! What a failed attempt means: another attempt, or the end.
//!
//! Must never make a refusal look as if it could pass: what is not known to pass is final.

use http::{HeaderMap, StatusCode};

use super::error::{
    ModelError, ProviderError, StreamFault, gateway_is_busy, gateway_may_pass, seconds_to_ms,
};

/// Why one attempt brought no turn.
pub(super) enum Failure {
    /// Another attempt may do better.
    Transient { why: String, wait_ms: Option<u64>, limited: bool },
    /// The provider refused a feature of ours or the call as such.
    Refused { status: StatusCode, error: ProviderError },
    /// No attempt will do better.
    Final(ModelError),
}

impl Failure {
    pub(super) fn transient(why: impl ToString) -> Self {
        Self::Transient { why: why.to_string(), wait_ms: None, limited: false }
    }
}

/// What a fault inside a stream means.
pub(super) fn fault(fault: StreamFault) -> Failure {
    match fault {
        StreamFault::Cut | StreamFault::Garbage(_) => Failure::transient(fault),
        StreamFault::Provider(error) => {
            if let Some(code) = error.gateway_code().map(str::to_owned) {
                gateway(code, error, None)
            } else if error.is_too_long() {
                Failure::Final(ModelError::TooLong(error))
            } else if error.is_transient() {
                Failure::Transient {
                    limited: error.is_limited(),
                    wait_ms: error.retry_after_ms,
                    why: error.to_string(),
                }
            } else {
                Failure::Final(ModelError::Refused { status: StatusCode::OK.as_u16(), error })
            }
        }
    }
}

/// What a refusal of our own gateway means: the end, unless it is about the way to the provider.
fn gateway(code: String, error: ProviderError, wait_ms: Option<u64>) -> Failure {
    if gateway_may_pass(&code) {
        let limited = gateway_is_busy(&code);
        return Failure::Transient { why: error.to_string(), wait_ms, limited };
    }
    Failure::Final(ModelError::Gateway { code, error })
}

/// What a response other than 200 means.
pub(super) fn classify(status: StatusCode, headers: &HeaderMap, error: ProviderError) -> Failure {
    if let Some(code) = error.gateway_code().map(str::to_owned) {
        return gateway(code, error, retry_after_ms(headers));
    }
    let told_not_to = headers.get("x-should-retry").is_some_and(|v| v == "false");
    let number = status.as_u16();
    let limited = number == 429 || number == 529 || error.is_limited();
    let transient = limited || matches!(number, 408 | 409 | 425) || status.is_server_error();
    if transient && !told_not_to && !error.is_out_of_money() {
        let wait_ms = retry_after_ms(headers).or(error.retry_after_ms);
        return Failure::Transient { why: format!("HTTP {number}: {error}"), wait_ms, limited };
    }
    if error.is_too_long() || status == StatusCode::PAYLOAD_TOO_LARGE {
        return Failure::Final(ModelError::TooLong(error));
    }
    Failure::Refused { status, error }
}

/// `retry-after-ms`, or `Retry-After` in seconds. Its date form, which no model provider sends, is not
/// read: the agent has no clock that the date could be compared with.
fn retry_after_ms(headers: &HeaderMap) -> Option<u64> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    text("retry-after-ms")
        .and_then(|t| t.trim().parse().ok())
        .or_else(|| text("retry-after").and_then(seconds_to_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(status: u16, headers: &[(&'static str, &str)], body: &str) -> String {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        match classify(StatusCode::from_u16(status).unwrap(), &map, ProviderError::parse(body)) {
            Failure::Transient { wait_ms, limited, .. } => {
                format!("again limited={limited} wait={wait_ms:?}")
            }
            Failure::Refused { .. } => "refused".to_owned(),
            Failure::Final(ModelError::Gateway { code, .. }) => code,
            Failure::Final(ModelError::TooLong(_)) => "too long".to_owned(),
            Failure::Final(error) => error.to_string(),
        }
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        assert_eq!(kind(429, &[("retry-after", "3")], "{}"), "again limited=true wait=Some(3000)");
        assert_eq!(
            kind(429, &[("retry-after-ms", "250"), ("retry-after", "3")], ""),
            "again limited=true wait=Some(250)"
        );
        assert_eq!(
            kind(429, &[("retry-after", "Fri, 31 Dec 1999 23:59:59 GMT")], ""),
            "again limited=true wait=None"
        );
        assert_eq!(
            kind(529, &[], r#"{"error":{"type":"overloaded_error"}}"#),
            "again limited=true wait=None"
        );
        assert_eq!(kind(500, &[], "oops"), "again limited=false wait=None");
        assert_eq!(kind(503, &[("retry-after", "1")], ""), "again limited=false wait=Some(1000)");
        assert_eq!(kind(500, &[("x-should-retry", "false")], ""), "refused");
        assert_eq!(kind(429, &[], r#"{"error":{"type":"insufficient_quota"}}"#), "refused");
        assert_eq!(kind(400, &[], "{}"), "refused");
        assert_eq!(kind(401, &[], "{}"), "refused");
        assert_eq!(kind(302, &[], ""), "refused");
        assert_eq!(
            kind(400, &[], r#"{"error":{"message":"prompt is too long: 210000 tokens"}}"#),
            "too long"
        );
        let both = "input length and `max_tokens` exceed context limit: 195000 + 16384 > 200000";
        assert_eq!(kind(400, &[], &format!(r#"{{"error":{{"message":"{both}"}}}}"#)), "too long");
        let gateway = |code: &str| format!(r#"{{"error":{{"code":"{code}","message":"m"}}}}"#);
        for code in ["MODEL-001", "MODEL-010", "MODEL-014", "MODEL-017"] {
            for status in [403, 429, 502] {
                assert_eq!(kind(status, &[], &gateway(code)), code);
            }
        }
        let busy = "again limited=true wait=Some(1000)";
        assert_eq!(kind(429, &[("retry-after", "1")], &gateway("MODEL-012")), busy);
        let unreachable = "again limited=false wait=None";
        assert_eq!(kind(502, &[("x-should-retry", "false")], &gateway("MODEL-013")), unreachable);
    }
}
