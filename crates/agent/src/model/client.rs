//! Carries out model calls: the one place that retries.
//!
//! Failures and rate limits have separate budgets: a call that fails often ends soon, a call that is
//! told to wait waits. `Retry-After` is followed; a wait that does not fit the budget is not begun.
//! Must never retry a refusal, nor hand out a turn that the provider had not completed.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, BodyStream};
use hyper::body::Frame;
use sse_stream::SseByteStream;

use super::endpoint::{Endpoint, Reply, SendError};
use super::error::{
    ModelError, ProviderError, StreamFault, gateway_is_busy, gateway_may_pass, seconds_to_ms,
};
use super::{Prompt, Protocol, Turn};
use crate::limits;

/// Times and counts of model calls.
#[derive(Debug, Clone)]
pub(crate) struct RetryPolicy {
    pub(crate) connect_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) total_timeout: Duration,
    pub(crate) tail_timeout: Duration,
    pub(crate) attempts_max: u32,
    pub(crate) rate_limit_wait_max_ms: u64,
    pub(crate) backoff_first_ms: u64,
    pub(crate) backoff_max_ms: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_millis(limits::CONNECT_TIMEOUT_MS),
            idle_timeout: Duration::from_millis(limits::MODEL_IDLE_TIMEOUT_MS),
            total_timeout: Duration::from_millis(limits::MODEL_TOTAL_TIMEOUT_MS),
            tail_timeout: Duration::from_millis(limits::MODEL_TAIL_TIMEOUT_MS),
            attempts_max: limits::MODEL_ATTEMPTS_MAX,
            rate_limit_wait_max_ms: limits::RATE_LIMIT_WAIT_MS_MAX,
            backoff_first_ms: limits::BACKOFF_FIRST_MS,
            backoff_max_ms: limits::BACKOFF_MS_MAX,
        }
    }
}

/// Speaks to one model.
pub(crate) struct ModelClient {
    endpoint: Endpoint,
    protocol: Box<dyn Protocol>,
    policy: RetryPolicy,
}

/// Why one attempt brought no turn.
enum Failure {
    /// Another attempt may do better.
    Transient { why: String, wait_ms: Option<u64>, limited: bool },
    /// The provider refused a feature of ours or the call as such.
    Refused { status: StatusCode, error: ProviderError },
    /// No attempt will do better.
    Final(ModelError),
}

impl Failure {
    fn transient(why: impl ToString) -> Self {
        Self::Transient { why: why.to_string(), wait_ms: None, limited: false }
    }
}

impl ModelClient {
    pub(crate) fn new(
        endpoint: Endpoint,
        protocol: Box<dyn Protocol>,
        policy: RetryPolicy,
    ) -> Self {
        Self { endpoint, protocol, policy }
    }

    /// One turn of the model. `note` hears, on one line each, of every wait.
    pub(crate) async fn turn(
        &mut self,
        prompt: &Prompt<'_>,
        note: &mut (dyn FnMut(String) + Send),
    ) -> Result<Turn, ModelError> {
        let mut failures = 0;
        let mut waits = 0;
        let mut waited_ms = 0u64;
        loop {
            let attempt =
                tokio::time::timeout(self.policy.total_timeout, self.attempt(prompt)).await;
            let failure = match attempt {
                Ok(Ok(turn)) => return Ok(turn),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::transient(format!(
                    "no complete answer in {} ms",
                    self.policy.total_timeout.as_millis()
                )),
            };
            let (why, wait_ms, limited) = match failure {
                Failure::Final(error) => return Err(error),
                Failure::Refused { status, error } => {
                    if self.protocol.concede(&error.message) {
                        continue;
                    }
                    return Err(ModelError::Refused { status: status.as_u16(), error });
                }
                Failure::Transient { why, wait_ms, limited } => (why, wait_ms, limited),
            };
            // However short a wait was asked for, there is one: a busy provider is not hammered.
            let least = self.policy.backoff_first_ms;
            let wait = wait_ms.map_or_else(|| self.backoff_ms(waits), |ms| ms.max(least));
            waits += 1;
            if limited || wait_ms.is_some() {
                waited_ms = waited_ms.saturating_add(wait);
                if waited_ms > self.policy.rate_limit_wait_max_ms {
                    return Err(ModelError::RateLimited { wait_ms: wait, last: why });
                }
            }
            if limited {
                note(format!("the model is busy ({why}); next attempt in {wait} ms"));
            } else {
                failures += 1;
                let max = self.policy.attempts_max;
                if failures >= max {
                    return Err(ModelError::Unreachable { attempts: failures, last: why });
                }
                note(format!(
                    "model call failed, attempt {failures} of {max} ({why}); next attempt in {wait} ms"
                ));
            }
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    }

    /// Doubling waits with up to a quarter on top, so that runs which share a key spread out.
    fn backoff_ms(&self, before: u32) -> u64 {
        let base = self
            .policy
            .backoff_first_ms
            .saturating_mul(1 << before.min(16))
            .min(self.policy.backoff_max_ms);
        base + RandomState::new().hash_one(before) % (base / 4 + 1)
    }

    async fn attempt(&self, prompt: &Prompt<'_>) -> Result<Turn, Failure> {
        let body = self.protocol.body(prompt).to_string().into_bytes();
        let reply = self
            .endpoint
            .post(
                &self.protocol.path(),
                self.protocol.headers(),
                body,
                self.policy.connect_timeout,
                self.policy.idle_timeout,
            )
            .await
            .map_err(|error| match error {
                SendError::Request(_) => Failure::Final(ModelError::Refused {
                    status: 0,
                    error: ProviderError { message: error.to_string(), ..ProviderError::default() },
                }),
                _ => Failure::transient(with_sources(&error)),
            })?;
        if reply.status == StatusCode::OK {
            self.stream(reply, prompt).await
        } else {
            Err(self.refusal(reply).await)
        }
    }

    async fn refusal(&self, mut reply: Reply) -> Failure {
        let mut text = Vec::new();
        while let Ok(Some(Ok(frame))) =
            tokio::time::timeout(self.policy.idle_timeout, reply.body.frame()).await
        {
            if let Ok(data) = frame.into_data() {
                let room = limits::ERROR_BODY_BYTES_MAX - text.len();
                text.extend_from_slice(&data[..data.len().min(room)]);
            }
            if text.len() == limits::ERROR_BODY_BYTES_MAX {
                break;
            }
        }
        classify(
            reply.status,
            &reply.headers,
            ProviderError::parse(&String::from_utf8_lossy(&text)),
        )
    }

    async fn stream(&self, reply: Reply, prompt: &Prompt<'_>) -> Result<Turn, Failure> {
        let Reply { body, connection, .. } = reply;
        let mut seen = 0usize;
        let frames = TryStreamExt::map_err(BodyStream::new(body), |e| StreamEnd(with_sources(&e)));
        let bytes = frames.try_filter_map(move |frame: Frame<Bytes>| {
            let data: Option<Bytes> = frame.into_data().ok();
            seen = seen.saturating_add(data.as_ref().map_or(0, Bytes::len));
            let over = seen > limits::STREAM_BYTES_MAX;
            async move {
                if over {
                    return Err(StreamEnd(format!(
                        "the answer is over {} bytes",
                        limits::STREAM_BYTES_MAX
                    )));
                }
                Ok(data)
            }
        });
        // The idle timer sits under the event parser, so that comments and pings count as life.
        let idle = self.policy.idle_timeout;
        let bytes = futures::stream::unfold(Box::pin(bytes), move |mut bytes| async move {
            match tokio::time::timeout(idle, bytes.next()).await {
                Ok(None) => None,
                Ok(Some(item)) => Some((item, bytes)),
                Err(_) => {
                    Some((Err(StreamEnd(format!("no byte for {} ms", idle.as_millis()))), bytes))
                }
            }
        });
        let mut events = SseByteStream::new(Box::pin(bytes));
        let mut assembler = self.protocol.assembler(prompt.conversation.entries().len());
        let mut ended = None;
        while !assembler.is_done() {
            match events.next().await {
                None => break,
                Some(Ok(event)) => {
                    let Some(data) = event.data.filter(|d| !d.is_empty()) else { continue };
                    assembler
                        .take(event.event.as_deref().unwrap_or_default(), &data)
                        .map_err(fault)?;
                }
                Some(Err(error)) => {
                    ended = Some(with_sources(&error));
                    break;
                }
            }
        }
        if assembler.is_done() {
            // What follows is for the gateway's meter; its loss does no harm.
            let rest = async { while events.next().await.is_some() {} };
            let _ = tokio::time::timeout(self.policy.tail_timeout, rest).await;
        }
        drop(connection);
        assembler.turn().map_err(|error| match (error, ended) {
            (StreamFault::Cut, Some(why)) => {
                Failure::transient(format!("{}: {why}", StreamFault::Cut))
            }
            (error, _) => fault(error),
        })
    }
}

/// Why the bytes of an answer ended before their end.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct StreamEnd(String);

fn fault(fault: StreamFault) -> Failure {
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
fn classify(status: StatusCode, headers: &HeaderMap, error: ProviderError) -> Failure {
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

/// An error and what it came from, on one line.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = inner.source();
    }
    text
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
