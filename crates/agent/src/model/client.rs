//! Carries out model calls: the one place that retries.
//!
//! Failures and rate limits have separate budgets: a call that fails often ends soon, a call that is
//! told to wait waits. `Retry-After` is followed; a wait that does not fit the budget is not begun.
//! Must never retry a refusal, nor hand out a turn that the provider had not completed.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::StatusCode;
use http_body_util::{BodyExt, BodyStream};
use hyper::body::Frame;
use sse_stream::SseByteStream;

use super::endpoint::{Endpoint, Reply, SendError};
use super::error::{ModelError, ProviderError, StreamFault};
use super::failure::{Failure, classify, fault};
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
