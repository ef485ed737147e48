//! Retries: which failures are tried again, when, and how often. Pure; it never waits.
//!
//! Three classes. A *transient* failure counts against the attempts and is tried again after a
//! pause that grows. A *wait* was asked for by the provider: it uses up a budget of time and no
//! attempt, so that a storm of 429 neither ends a task nor goes on for ever. Everything else is
//! permanent. What a guest claims alone never causes a retry.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fact::{Fact, StopCause};
use crate::ids::TimestampMs;
use crate::state::{Due, Wait};
use crate::verdict::{Cause, Outcome, Verdict};

/// How a task's failures are treated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RetryPolicy {
    /// Attempts that may fail, the first included. 1: no retry.
    pub max_attempts: u32,
    /// Pause after the first failure, milliseconds; doubled with each further one.
    pub base_ms: u64,
    /// Longest pause, milliseconds.
    pub max_ms: u64,
    /// A pause is made shorter by up to this many thousandths, so that many tasks do not come back
    /// at the same instant.
    pub jitter_permille: u64,
    /// All waits of a task together, milliseconds. Past it the task is given up.
    pub wait_budget_ms: u64,
    /// Wait when the provider names no time, milliseconds; doubled with each further one in a row.
    pub wait_base_ms: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            base_ms: 10_000,
            max_ms: 10 * 60 * 1000,
            jitter_permille: 200,
            wait_budget_ms: 2 * 60 * 60 * 1000,
            wait_base_ms: 30_000,
        }
    }
}

impl RetryPolicy {
    /// Nothing is tried again.
    #[must_use]
    pub fn never() -> Self {
        Self { max_attempts: 1, wait_budget_ms: 0, ..Self::default() }
    }
}

/// What kind of failure ended an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "class", rename_all = "snake_case")]
pub enum Class {
    /// The same may go well another time.
    Transient,
    /// The provider asks for patience.
    Wait {
        /// As long as the provider said, when it did.
        retry_after_ms: Option<u64>,
    },
    /// It would fail again.
    Permanent,
}

/// Classifies a failed run by what the host saw.
#[must_use]
pub fn classify<'a>(
    verdict: &Verdict,
    facts: impl IntoIterator<Item = &'a Fact, IntoIter: Clone>,
) -> Class {
    let facts = facts.into_iter();
    let Some(cause) = &verdict.cause else { return Class::Permanent };
    if verdict.outcome != Outcome::Failed {
        return Class::Permanent;
    }
    match cause {
        // The machine, not the task.
        Cause::HostLost | Cause::HostError { .. } | Cause::NoHello | Cause::LinkLost => {
            Class::Transient
        }
        // What follows from a lost host: nobody was there to fetch and to search. The work is kept, and
        // the same may go well another time.
        Cause::CollectFailed { .. } | Cause::CollectMissing | Cause::CanaryUnsearched
            if host_was_lost(facts.clone()) && nothing_worse(verdict) =>
        {
            Class::Transient
        }
        // The agent gave up. Whether its provider made it do so the gateway has seen.
        Cause::ExitCode { .. } => upstream(facts),
        Cause::Leak { .. }
        | Cause::CollectFailed { .. }
        | Cause::CollectMissing
        | Cause::WorkMissing { .. }
        | Cause::LayerNotHeld { .. }
        | Cause::PostureMissing
        | Cause::PostureRefused { .. }
        | Cause::CanaryUnsearched
        | Cause::EgressOpen { .. }
        | Cause::EgressUntested
        | Cause::TeardownFailed { .. }
        | Cause::TeardownMissing
        | Cause::PromptsUnanswered { .. }
        | Cause::Cancelled
        | Cause::BudgetReached { .. }
        | Cause::OutOfMemory
        | Cause::Protocol { .. }
        | Cause::GuestError { .. }
        | Cause::ProcessLimit { .. }
        | Cause::ExitSignal { .. }
        | Cause::ExitUnknown
        | Cause::WrongBase { .. }
        | Cause::Incomplete { .. } => Class::Permanent,
    }
}

fn host_was_lost<'a>(mut facts: impl Iterator<Item = &'a Fact>) -> bool {
    facts.any(|fact| matches!(fact, Fact::Stopped { cause: StopCause::HostLost }))
}

/// Nothing is tried again beside a sandbox that may still be there, or after the wall did not hold.
fn nothing_worse(verdict: &Verdict) -> bool {
    let worse = ["RUN-020", "RUN-021", "RUN-022", "RUN-024", "RUN-025", "RUN-030", "RUN-031"];
    !verdict.warnings.iter().any(|warning| worse.contains(&warning.code.as_str()))
}

/// The last call that reached the provider decides: a later success means that it had recovered.
fn upstream<'a>(facts: impl IntoIterator<Item = &'a Fact>) -> Class {
    let mut class = Class::Permanent;
    for fact in facts {
        if let Fact::ModelCall { status, refusal: None, retry_after_ms, .. } = fact {
            class = match status {
                429 | 529 => Class::Wait { retry_after_ms: *retry_after_ms },
                503 if retry_after_ms.is_some() => Class::Wait { retry_after_ms: *retry_after_ms },
                408 | 500 | 502 | 503 | 504 => Class::Transient,
                _ => Class::Permanent,
            };
        } else if let Fact::Truncated { kind, .. } = fact
            && kind == "model_call"
        {
            // The last calls were not kept, so nobody knows.
            class = Class::Permanent;
        }
    }
    class
}

/// What a task has used up of its policy. Starts anew when an operator retries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tally {
    /// Attempts that failed and count.
    pub failures: u32,
    /// Waits in a row.
    pub waits: u32,
    /// All waits together, milliseconds.
    pub waited_ms: u64,
}

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Ruling {
    /// A new attempt.
    Again {
        /// When and why not before.
        due: Due,
        /// The tally from now on.
        tally: Tally,
    },
    /// It would have been tried again, and nothing is left to try it with.
    GiveUp {
        /// What is used up: `attempts` or `waits`.
        exhausted: Exhausted,
        /// The final tally.
        tally: Tally,
    },
    /// It is not tried again.
    Final,
}

/// Which bound ended a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Exhausted {
    /// `max_attempts`.
    Attempts,
    /// `wait_budget_ms`.
    Waits,
    /// Tokens, money or calls of the task: earlier attempts spent them.
    Spend,
}

impl Exhausted {
    /// The name in storage and output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Waits => "waits",
            Self::Spend => "spend",
        }
    }
}

impl RetryPolicy {
    /// What follows a failure of that class. `seed` spreads the pauses; the same seed gives the same
    /// answer.
    #[must_use]
    pub fn rule(&self, class: Class, before: Tally, seed: u64, now: TimestampMs) -> Ruling {
        match class {
            Class::Permanent => Ruling::Final,
            Class::Transient => {
                let failures = before.failures.saturating_add(1);
                let tally = Tally { failures, waits: 0, waited_ms: before.waited_ms };
                if failures >= self.max_attempts {
                    return Ruling::GiveUp { exhausted: Exhausted::Attempts, tally };
                }
                let pause = self.jittered(doubled(self.base_ms, failures - 1, self.max_ms), seed);
                Ruling::Again { due: Due { at: now.plus_ms(pause), why: Wait::Backoff }, tally }
            }
            Class::Wait { retry_after_ms } => {
                // The header is authoritative: never come back earlier than it says.
                let pause = retry_after_ms
                    .unwrap_or_else(|| doubled(self.wait_base_ms, before.waits, self.max_ms));
                let waited_ms = before.waited_ms.saturating_add(pause);
                let tally = Tally {
                    failures: before.failures,
                    waits: before.waits.saturating_add(1),
                    waited_ms,
                };
                if waited_ms > self.wait_budget_ms {
                    return Ruling::GiveUp { exhausted: Exhausted::Waits, tally };
                }
                Ruling::Again { due: Due { at: now.plus_ms(pause), why: Wait::RateLimit }, tally }
            }
        }
    }

    fn jittered(&self, pause_ms: u64, seed: u64) -> u64 {
        let most = pause_ms.saturating_mul(self.jitter_permille.min(1_000)) / 1_000;
        // SplitMix64, so that neighbouring seeds are far apart.
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        pause_ms - (z ^ (z >> 31)) % (most + 1)
    }
}

fn doubled(base_ms: u64, times: u32, max_ms: u64) -> u64 {
    base_ms.saturating_mul(1u64.checked_shl(times.min(63)).unwrap_or(u64::MAX)).min(max_ms)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::Spend;

    fn failed(cause: Cause) -> Verdict {
        Verdict {
            outcome: Outcome::Failed,
            cause: Some(cause),
            warnings: vec![],
            summary: String::new(),
        }
    }

    fn call(status: u16, retry_after_ms: Option<u64>) -> Fact {
        Fact::ModelCall {
            request: "POST /v1/messages".into(),
            model: "m".into(),
            status,
            refusal: None,
            usage: Spend::default(),
            bytes_out: 0,
            bytes_in: 0,
            retry_after_ms,
        }
    }

    #[test]
    fn the_machine_is_transient_and_the_task_is_not() {
        assert_eq!(classify(&failed(Cause::HostLost), &[]), Class::Transient);
        assert_eq!(classify(&failed(Cause::LinkLost), &[]), Class::Transient);
        for cause in [
            Cause::OutOfMemory,
            Cause::BudgetReached { budget: "tokens".into() },
            Cause::ExitCode { exit_code: 1 },
        ] {
            assert_eq!(classify(&failed(cause), &[]), Class::Permanent);
        }
        let cancelled = Verdict { outcome: Outcome::Cancelled, ..failed(Cause::Cancelled) };
        assert_eq!(classify(&cancelled, &[]), Class::Permanent);
    }

    #[test]
    fn an_agent_that_gave_up_is_classified_by_its_last_call() {
        let exit = failed(Cause::ExitCode { exit_code: 1 });
        let of = |facts: &[Fact]| classify(&exit, facts);
        assert_eq!(
            of(&[call(200, None), call(429, Some(7_000))]),
            Class::Wait { retry_after_ms: Some(7_000) }
        );
        assert_eq!(of(&[call(429, Some(7_000)), call(200, None)]), Class::Permanent);
        assert_eq!(of(&[call(502, None)]), Class::Transient);
        assert_eq!(of(&[call(401, None)]), Class::Permanent);
        // The gateway's own 429 is not the provider's.
        let mut own = call(429, None);
        if let Fact::ModelCall { refusal, .. } = &mut own {
            *refusal = Some("MODEL-021".into());
        }
        assert_eq!(of(&[own]), Class::Permanent);
    }

    #[test]
    fn waits_use_up_time_and_no_attempt() {
        let policy = RetryPolicy { wait_budget_ms: 10_000, ..RetryPolicy::default() };
        let mut tally = Tally { failures: 2, ..Tally::default() };
        let wait = Class::Wait { retry_after_ms: Some(4_000) };
        for n in 1..=2 {
            let Ruling::Again { due, tally: next } = policy.rule(wait, tally, 1, TimestampMs(0))
            else {
                panic!("given up")
            };
            assert_eq!((due.at, due.why), (TimestampMs(4_000), Wait::RateLimit));
            assert_eq!((next.failures, next.waits), (2, n));
            tally = next;
        }
        let ruling = policy.rule(wait, tally, 1, TimestampMs(0));
        assert!(matches!(ruling, Ruling::GiveUp { exhausted: Exhausted::Waits, .. }));
    }

    #[test]
    fn a_lost_host_is_tried_again_unless_its_sandbox_may_still_be_there() {
        use crate::fact::{CollectOutcome, TeardownOutcome};
        let lost = |teardown| {
            let mut facts = crate::fixtures::good_facts(crate::spec::Mode::Unattended);
            facts.retain(|f| !matches!(f, Fact::Teardown { .. } | Fact::Collected { .. }));
            facts.push(Fact::Stopped { cause: StopCause::HostLost });
            facts.push(Fact::Collected {
                head_claim: None,
                commits_claim: 0,
                outcome: CollectOutcome::Failed {
                    reason: "the host was lost".into(),
                    salvage: None,
                },
                not_taken_claim: vec![],
            });
            facts.push(Fact::Teardown { outcome: teardown });
            let verdict = crate::judge(&facts);
            assert_eq!(verdict.cause.as_ref().map(Cause::code), Some("RUN-010"));
            classify(&verdict, &facts)
        };
        assert_eq!(lost(TeardownOutcome::Removed), Class::Transient);
        let left = TeardownOutcome::Failed { detail: "busy".into() };
        assert_eq!(lost(left), Class::Permanent);
    }

    #[test]
    fn attempts_end() {
        let policy = RetryPolicy::default();
        let one = Tally { failures: 1, ..Tally::default() };
        let two = Tally { failures: 2, ..Tally::default() };
        assert!(matches!(
            policy.rule(Class::Transient, one, 1, TimestampMs(0)),
            Ruling::Again { .. }
        ));
        assert!(matches!(
            policy.rule(Class::Transient, two, 1, TimestampMs(0)),
            Ruling::GiveUp { exhausted: Exhausted::Attempts, .. }
        ));
        let never =
            RetryPolicy::never().rule(Class::Transient, Tally::default(), 1, TimestampMs(0));
        assert!(matches!(never, Ruling::GiveUp { .. }));
    }

    proptest! {
        #[test]
        fn every_policy_comes_to_an_end(
            max_attempts in 0u32..10, base_ms in 0u64..1_000_000, max_ms in 0u64..1_000_000,
            jitter_permille in 0u64..2_000, wait_budget_ms in 0u64..1_000_000,
            classes in prop::collection::vec(prop_oneof![
                Just(Class::Transient), Just(Class::Wait { retry_after_ms: Some(50_000) }),
                Just(Class::Wait { retry_after_ms: None }),
            ], 60),
        ) {
            let policy = RetryPolicy {
                max_attempts, base_ms, max_ms, jitter_permille, wait_budget_ms, wait_base_ms: 100_000.min(max_ms).max(1),
            };
            let (mut tally, mut now, mut over) = (Tally::default(), TimestampMs(0), false);
            for (seed, class) in (0u64..).zip(classes) {
                match policy.rule(class, tally, seed, now) {
                    Ruling::Again { due, tally: next } => {
                        prop_assert!(due.at >= now);
                        prop_assert!(next.failures < max_attempts.max(1));
                        prop_assert!(next.waited_ms <= wait_budget_ms);
                        (tally, now) = (next, due.at);
                    }
                    Ruling::GiveUp { .. } => { over = true; break }
                    Ruling::Final => prop_assert!(false, "not permanent"),
                }
            }
            prop_assert!(over || max_ms == 0 || wait_budget_ms > 0);
        }
    }
}
