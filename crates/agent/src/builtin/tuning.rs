//! Times and sizes that tests shorten. What ships is [`Tuning::default`], the constants of
//! [`limits`](crate::limits); nothing that a model, a repository or a configuration says changes them.

use std::time::Duration;

use crate::model::RetryPolicy;

/// Times that tests shorten. [`Tuning::default`] is what ships.
#[derive(Debug, Clone, Default)]
pub struct Tuning {
    pub(super) policy: RetryPolicy,
    pub(super) context_bytes_max: Option<usize>,
}

impl Tuning {
    /// Waits of at most `backoff`, streams that may be silent for `idle` and last for `total`, and
    /// rate limits waited out for `rate_limit` at most.
    #[must_use]
    pub fn with_times(
        backoff: Duration,
        idle: Duration,
        total: Duration,
        rate_limit: Duration,
    ) -> Self {
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let policy = RetryPolicy {
            backoff_first_ms: ms(backoff),
            backoff_max_ms: ms(backoff),
            idle_timeout: idle,
            total_timeout: total,
            rate_limit_wait_max_ms: ms(rate_limit),
            ..RetryPolicy::default()
        };
        Self { policy, context_bytes_max: None }
    }

    /// The same with another size at which old results are shortened, bytes.
    #[must_use]
    pub fn with_context_bytes(mut self, bytes: usize) -> Self {
        self.context_bytes_max = Some(bytes);
        self
    }
}
