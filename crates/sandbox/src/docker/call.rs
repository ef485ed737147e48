//! Every call to the engine goes through here: bounded in time, with one reading of its errors.
//!
//! It must never take a failed question for an answer: only an explicit "no such thing" counts as
//! gone.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use cofferdam_run::engine::EngineKind;

use crate::error::SandboxError;

/// Longest wait for an ordinary call (create, inspect, start, list); past it the call fails with
/// `SANDBOX-006`.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for one removal; past it the teardown reports what is left.
pub const REMOVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for a kill; past it the teardown that follows tries by force.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest an image may take to load, build or be pulled; past it the preparation fails.
pub const IMAGE_TIMEOUT: Duration = Duration::from_secs(900);
/// Longest wait for one answer about what a container uses; past it that look shows nothing.
pub const USAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most characters kept of an engine's error text; the rest is cut.
pub const MAX_DETAIL: usize = 2_000;

/// What came of a call that did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The engine refused, with an HTTP status.
    #[error("{message} (status {status})")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Its text, cut.
        message: String,
    },
    /// No answer in time.
    #[error("no answer within {} ms", limit.as_millis())]
    Late {
        /// The limit.
        limit: Duration,
    },
    /// The connection or the answer broke.
    #[error("{0}")]
    Broken(String),
}

impl CallError {
    /// True only when the engine itself said that the object does not exist.
    pub(crate) fn says_gone(&self) -> bool {
        match self {
            Self::Refused { status: 404, message } => message.to_lowercase().contains("no such"),
            Self::Refused { .. } | Self::Late { .. } | Self::Broken(_) => false,
        }
    }

    /// The room's error for it.
    pub(crate) fn during(self, attempt: &'static str) -> SandboxError {
        let engine = EngineKind::Docker;
        match self {
            Self::Late { limit } => SandboxError::Timeout {
                engine,
                attempt,
                limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            },
            other => SandboxError::Engine { engine, attempt, detail: other.to_string() },
        }
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        match error {
            Error::DockerResponseServerError { status_code, message } => {
                Self::Refused { status: status_code, message: cut(&message) }
            }
            other => {
                // The cause (refused, no permission) sits below the client's own wording.
                let mut text = other.to_string();
                let mut source = std::error::Error::source(&other);
                while let Some(cause) = source {
                    text.push_str(": ");
                    text.push_str(&cause.to_string());
                    source = cause.source();
                }
                Self::Broken(cut(&text))
            }
        }
    }
}

/// A client whose every call has a limit.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    /// For making requests; waiting for their answers goes through [`Client::ask`].
    pub(crate) docker: Docker,
    /// Ceiling over all limits, milliseconds, shared by all clones. Only tests lower it.
    longest_ms: Arc<AtomicU64>,
}

impl Client {
    /// A client with the limits above.
    pub(crate) fn new(docker: Docker) -> Self {
        Self { docker, longest_ms: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    /// Lowers every limit, also those of calls made through clones.
    pub(crate) fn wait_at_most(&self, longest: Duration) {
        let ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        self.longest_ms.store(ms, Ordering::Relaxed);
    }

    /// Waits for an answer, at most `limit`.
    pub(crate) async fn ask<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, CallError> {
        let longest = Duration::from_millis(self.longest_ms.load(Ordering::Relaxed));
        bounded(limit.min(longest), call).await
    }
}

/// Runs a call with a limit.
pub(crate) async fn bounded<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result.map_err(CallError::from),
        Err(_elapsed) => Err(CallError::Late { limit }),
    }
}

/// The first [`MAX_DETAIL`] characters, control characters replaced.
pub(crate) fn cut(text: &str) -> String {
    text.trim().chars().take(MAX_DETAIL).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, message: &str) -> CallError {
        CallError::Refused { status, message: message.to_owned() }
    }

    #[test]
    fn only_an_explicit_no_such_thing_counts_as_gone() {
        assert!(refused(404, "No such container: x").says_gone());
        assert!(refused(404, "get x: no such volume").says_gone());
        assert!(!refused(404, "page not found").says_gone());
        assert!(!refused(500, "no such container").says_gone());
        assert!(!CallError::Late { limit: CALL_TIMEOUT }.says_gone());
        assert!(!CallError::Broken("no such file or directory".to_owned()).says_gone());
    }

    #[tokio::test]
    async fn a_hung_engine_is_given_up_on() {
        let limit = Duration::from_millis(10);
        let error = bounded(limit, std::future::pending::<Result<(), Error>>()).await.unwrap_err();
        assert_eq!(error.during("list containers").code(), "SANDBOX-006");
    }
}
