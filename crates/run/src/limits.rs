//! Budgets: what a run may use up before the host stops it. All are metered on the host.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Mandatory for an unattended run. Money is in millionths of a US dollar, so that no float is
/// ever stored or hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Budgets {
    /// Wall clock of the whole run, milliseconds.
    pub wall_clock_ms: u64,
    /// Model tokens, input plus output, over the whole run.
    pub tokens: u64,
    /// Model spend in micro-dollars; `None` where no price is known and none was asked for.
    pub micro_usd: Option<u64>,
    /// Model calls.
    pub model_calls: u64,
    /// Bytes that the guest may send to admitted hosts.
    pub egress_bytes_out: u64,
    /// Processor time of all processes of the sandbox together, milliseconds; `None`: bounded by the
    /// wall clock alone.
    #[serde(default)]
    pub cpu_ms: Option<u64>,
    /// Longest time in which nothing is heard of a working agent (no output, no message, no byte
    /// through a door), milliseconds; `None`: bounded by the wall clock alone. An hour by default: no
    /// command of the built-in agent may take longer than half of that.
    #[serde(default)]
    pub silence_ms: Option<u64>,
    /// Bytes of agent output kept and relayed; past it the output is cut, loudly, and the run goes on.
    pub output_bytes: u64,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            wall_clock_ms: 120 * 60 * 1000,
            tokens: 2_000_000,
            micro_usd: None,
            model_calls: 2_000,
            egress_bytes_out: 256 << 20,
            cpu_ms: None,
            silence_ms: Some(60 * 60 * 1000),
            output_bytes: 16 << 20,
        }
    }
}

/// What was used up so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Spend {
    /// Input tokens that were not read from a cache.
    pub input_tokens: u64,
    /// Input tokens read from a provider's cache.
    pub cache_read_tokens: u64,
    /// Input tokens written to a provider's cache.
    pub cache_write_tokens: u64,
    /// Output tokens, reasoning included.
    pub output_tokens: u64,
    /// Calls whose usage the provider did not report and that were counted by size instead.
    pub calls_counted_by_size: u64,
    /// Model calls admitted.
    pub model_calls: u64,
    /// Spend in micro-dollars where a price is known.
    pub micro_usd: Option<u64>,
}

impl Spend {
    /// All token classes together.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.input_tokens
            .saturating_add(self.cache_read_tokens)
            .saturating_add(self.cache_write_tokens)
            .saturating_add(self.output_tokens)
    }
}
