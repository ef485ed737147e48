//! What can go wrong with a model, and what of it is worth another attempt.
//!
//! Must never turn a refusal into a retry: a provider's 4xx and the gateway's own `MODEL-…` codes
//! are final, and their words are shown.

use serde_json::Value;

use crate::limits::ERROR_MESSAGE_CHARS_MAX;
use crate::text::{clip, one_line};

/// A fault inside a stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StreamFault {
    /// It ended early.
    #[error("the answer was cut off")]
    Cut,
    /// It held something that is no event of the dialect.
    #[error("the answer could not be read: {0}")]
    Garbage(String),
    /// The provider reported an error in the middle of it.
    #[error("{0}")]
    Provider(ProviderError),
}

/// An error in a provider's words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProviderError {
    /// Type, code and status, as far as they were given.
    pub(crate) codes: Vec<String>,
    /// The message, on one line.
    pub(crate) message: String,
    /// Seconds to wait that the body asked for (Gemini's `RetryInfo`).
    pub(crate) retry_after_ms: Option<u64>,
}

impl std::fmt::Display for ProviderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.codes.is_empty() {
            write!(f, "{}: ", self.codes.join("/"))?;
        }
        f.write_str(&self.message)
    }
}

impl ProviderError {
    /// Reads an error body of any of the dialects; text that is none of them is taken as the message.
    pub(crate) fn parse(body: &str) -> Self {
        match serde_json::from_str::<Value>(body) {
            Ok(value) => Self::from_value(&value),
            Err(_) => Self { message: message(body), ..Self::default() },
        }
    }

    /// Reads the JSON form: `{"error": {…}}`, `{"error": "text"}`, `[{"error": …}]`, or the inner
    /// object itself.
    pub(crate) fn from_value(value: &Value) -> Self {
        let value = value.get(0).unwrap_or(value);
        let inner = match value.get("error") {
            Some(inner) if !inner.is_null() => inner,
            _ => value,
        };
        if let Some(text) = inner.as_str() {
            return Self { message: message(text), ..Self::default() };
        }
        let mut codes = Vec::new();
        for key in ["type", "code", "status"] {
            let code = match inner.get(key) {
                Some(Value::String(text)) if !text.is_empty() && text != "error" => one_line(text),
                Some(Value::Number(number)) => number.to_string(),
                _ => continue,
            };
            if !codes.contains(&code) {
                codes.push(clip(&code, 60));
            }
        }
        // Where our own gateway puts its code in Gemini's shape.
        if let Some(reason) = inner.pointer("/details/0/reason").and_then(Value::as_str) {
            codes.push(clip(&one_line(reason), 60));
        }
        let text = inner
            .get("message")
            .and_then(Value::as_str)
            .map_or_else(|| inner.to_string(), str::to_owned);
        Self { codes, message: message(&text), retry_after_ms: retry_delay_ms(inner) }
    }

    /// True when the code says that the same call may do better later. No code at all in the middle
    /// of a stream counts as such.
    pub(crate) fn is_transient(&self) -> bool {
        self.is_limited()
            || self.codes.is_empty()
            || self.codes.iter().any(|code| {
                matches!(
                    code.as_str(),
                    "api_error"
                        | "server_error"
                        | "internal_error"
                        | "timeout_error"
                        | "INTERNAL"
                        | "UNAVAILABLE"
                        | "DEADLINE_EXCEEDED"
                        | "ABORTED"
                ) || code.len() == 3 && code.starts_with('5')
            })
    }

    /// True when the code says "too many calls", which waiting cures.
    pub(crate) fn is_limited(&self) -> bool {
        !self.is_out_of_money()
            && self.codes.iter().any(|code| {
                matches!(
                    code.as_str(),
                    "overloaded_error"
                        | "overloaded"
                        | "rate_limit_error"
                        | "rate_limit_exceeded"
                        | "slow_down"
                        | "RESOURCE_EXHAUSTED"
                        | "429"
                        | "529"
                )
            })
    }

    /// True when the account is out of money, which waiting does not cure although some providers
    /// answer 429.
    pub(crate) fn is_out_of_money(&self) -> bool {
        self.codes
            .iter()
            .any(|code| matches!(code.as_str(), "insufficient_quota" | "billing_error"))
    }

    /// True when the conversation is longer than the model's window.
    pub(crate) fn is_too_long(&self) -> bool {
        let text = self.message.to_ascii_lowercase();
        self.codes
            .iter()
            .any(|code| code == "context_length_exceeded" || code == "request_too_large")
            || text.contains("prompt is too long")
            || text.contains("context length")
            || text.contains("context window")
            || text.contains("context limit")
            || text.contains("input token count") && text.contains("exceeds")
    }

    /// The code of a refusal of our own gateway (`MODEL-001` and so on), when this is one. It stands
    /// where each provider's clients look for a code, and in front of the message.
    pub(crate) fn gateway_code(&self) -> Option<&str> {
        let message = self.message.strip_prefix("Cofferdam ").unwrap_or(&self.message);
        self.codes.iter().map(String::as_str).chain(message.split([':', ' ']).take(1)).find(
            |code| {
                code.strip_prefix("MODEL-")
                    .is_some_and(|n| n.len() == 3 && n.bytes().all(|b| b.is_ascii_digit()))
            },
        )
    }
}

/// True for the gateway's codes that tell of the way to the provider, not of the call: too many calls
/// or too much reserved at once, provider unreachable, broken or silent.
pub(crate) fn gateway_may_pass(code: &str) -> bool {
    gateway_is_busy(code) || matches!(code, "MODEL-013" | "MODEL-015" | "MODEL-016")
}

/// True for those of them that waiting cures: what is in flight ends by itself.
pub(crate) fn gateway_is_busy(code: &str) -> bool {
    matches!(code, "MODEL-011" | "MODEL-012")
}

fn message(text: &str) -> String {
    let text = clip(&one_line(text), ERROR_MESSAGE_CHARS_MAX);
    if text.is_empty() { "no message".to_owned() } else { text }
}

/// Gemini's `{"details": [{"@type": "….RetryInfo", "retryDelay": "37s"}]}`.
fn retry_delay_ms(error: &Value) -> Option<u64> {
    let details = error.get("details")?.as_array()?;
    let text = details.iter().find_map(|d| d.get("retryDelay")?.as_str())?;
    seconds_to_ms(text.strip_suffix('s')?)
}

/// Decimal seconds (`37`, `1.5`) to whole milliseconds, rounded up.
pub(crate) fn seconds_to_ms(text: &str) -> Option<u64> {
    let (whole, part) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let seconds: u64 = whole.parse().ok()?;
    if !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let mut ms = 0;
    for (digit, worth) in part.bytes().zip([100, 10, 1]) {
        ms += u64::from(digit - b'0') * worth;
    }
    if part.len() > 3 {
        ms += 1;
    }
    seconds.checked_mul(1_000)?.checked_add(ms)
}

/// Why a model call gave nothing, after all attempts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ModelError {
    /// The gateway refused, with one of its own codes.
    #[error("{error}")]
    Gateway { code: String, error: ProviderError },
    /// The provider refused for good.
    #[error("the model provider refused the call (HTTP {status}): {error}")]
    Refused { status: u16, error: ProviderError },
    /// The conversation is longer than the model takes.
    #[error("the conversation is longer than the model takes: {0}")]
    TooLong(ProviderError),
    /// Every attempt failed.
    #[error("the model gave no answer in {attempts} attempts; the last one: {last}")]
    Unreachable { attempts: u32, last: String },
    /// Waiting out rate limits would take longer than one call may wait.
    #[error("the model asks for a wait of {wait_ms} ms, more than a call may still wait: {last}")]
    RateLimited { wait_ms: u64, last: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_every_provider_are_read() {
        let check =
            |body: &str, shown: &str| assert_eq!(ProviderError::parse(body).to_string(), shown);
        check(
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_1"}"#,
            "overloaded_error: Overloaded",
        );
        check(
            r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
            "insufficient_quota: You exceeded your current quota",
        );
        check(
            r#"[{"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}]"#,
            "503/UNAVAILABLE: The model is overloaded.",
        );
        check(r#"{"error":"model 'x' not found"}"#, "model 'x' not found");
        check(
            r#"{"type":"error","code":"server_error","message":"oops","param":null}"#,
            "server_error: oops",
        );
        check("<html>\n502 Bad Gateway</html>", "<html> 502 Bad Gateway</html>");
        check("", "no message");
    }

    #[test]
    fn a_quota_that_is_spent_is_not_a_rate_limit() {
        let spent = ProviderError::parse(
            r#"{"error":{"message":"m","type":"insufficient_quota","code":"429"}}"#,
        );
        assert!(!spent.is_limited());
        let limited =
            ProviderError::parse(r#"{"error":{"message":"m","code":"rate_limit_exceeded"}}"#);
        assert!(limited.is_limited() && limited.is_transient());
    }

    #[test]
    fn gateway_refusals_are_told_from_provider_errors() {
        let code = |body: &str| ProviderError::parse(body).gateway_code().map(str::to_owned);
        assert_eq!(
            code(r#"{"error":{"code":"MODEL-004","message":"model is pinned"}}"#).as_deref(),
            Some("MODEL-004")
        );
        assert_eq!(
            code(r#"{"error":{"type":"MODEL-012","message":"x"}}"#).as_deref(),
            Some("MODEL-012")
        );
        assert_eq!(code("MODEL-003: not a path of this dialect").as_deref(), Some("MODEL-003"));
        assert_eq!(code(r#"{"error":{"code":"x","message":"see MODEL-004"}}"#), None);
        let gemini = r#"{"error":{"code":403,"message":"m","details":[{"reason":"MODEL-007"}]}}"#;
        assert_eq!(code(gemini).as_deref(), Some("MODEL-007"));
        let text = r#"{"error":{"message":"Cofferdam MODEL-010: the budget is used up"}}"#;
        assert_eq!(code(text).as_deref(), Some("MODEL-010"));
    }

    #[test]
    fn waits_are_read_to_the_millisecond() {
        assert_eq!(seconds_to_ms("37"), Some(37_000));
        assert_eq!(seconds_to_ms("1.5"), Some(1_500));
        assert_eq!(seconds_to_ms("0.0421"), Some(43));
        assert_eq!(seconds_to_ms("Fri, 31 Dec 1999"), None);
        assert_eq!(seconds_to_ms("1.x"), None);
        let body = r#"{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED","details":[
            {"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"37.5s"}]}}"#;
        assert_eq!(ProviderError::parse(body).retry_after_ms, Some(37_500));
    }
}
