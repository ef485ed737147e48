//! The store's suite on SQLite: with one handle, and with two handles on one file, which is what
//! several processes are.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a step that fails is a test that fails"
)]

mod suite;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use cofferdam_ledger::{
    Appended, Applied, Beat, CancelOutcome, Item, Ledger, LedgerError, ListFilter, NewRun,
    OutputStream, RunRow, Settlement, Store, StoredEvent,
};
use cofferdam_run::fact::Fact;
use cofferdam_run::{CancelRequest, InstanceId, Lease, Run, RunEvent, RunId, TimestampMs};
use suite::AnyStore;
use tempfile::TempDir;

async fn one() -> (AnyStore, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).await.unwrap();
    (Arc::new(ledger), dir)
}

async fn two() -> (AnyStore, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = tokio::join!(Ledger::open(dir.path()), Ledger::open(dir.path()));
    let next = AtomicUsize::new(0);
    (Arc::new(Alternating { handles: [a.unwrap(), b.unwrap()], next }), dir)
}

/// Sends each call to the other of two handles.
#[derive(Debug)]
struct Alternating {
    handles: [Ledger; 2],
    next: AtomicUsize,
}

impl Alternating {
    fn pick(&self) -> &Ledger {
        &self.handles[self.next.fetch_add(1, Ordering::Relaxed) % 2]
    }
}

type Result<T> = std::result::Result<T, LedgerError>;

macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        #[async_trait]
        impl Store for Alternating {
            $(async fn $name(&self, $($arg: $ty),*) -> Result<$out> {
                self.pick().$name($($arg),*).await
            })*
        }
    };
}

forward! {
    instance_id() -> InstanceId;
    create_run(new: NewRun) -> Run;
    claim(id: &RunId, owner: &str, now: TimestampMs, ttl_ms: u64) -> Option<Lease>;
    heartbeat(id: &RunId, epoch: u64, now: TimestampMs, ttl_ms: u64) -> Beat;
    apply(id: &RunId, epoch: Option<u64>, event: RunEvent, at: TimestampMs) -> Applied;
    append_fact(id: &RunId, epoch: u64, at: TimestampMs, fact: Fact) -> Appended;
    append_output(id: &RunId, epoch: u64, at: TimestampMs, stream: OutputStream, bytes: Vec<u8>) -> Appended;
    append_batch(id: &RunId, epoch: u64, items: Vec<(TimestampMs, Item)>) -> Vec<Result<Appended>>;
    output_cut_bytes(id: &RunId) -> u64;
    request_cancel(id: &RunId, by: &str, at: TimestampMs) -> CancelOutcome;
    cancel_requested(id: &RunId) -> Option<CancelRequest>;
    run(id: &RunId) -> Run;
    resolve_prefix(prefix: &str) -> RunId;
    list(filter: ListFilter, limit: u32) -> Vec<RunRow>;
    events(id: &RunId, after_seq: u64, limit: u32) -> Vec<StoredEvent>;
    facts(id: &RunId) -> Vec<(TimestampMs, Fact)>;
    settle(id: &RunId, epoch: u64, at: TimestampMs) -> Settlement;
    record(id: &RunId) -> Option<String>;
    expired(now: TimestampMs) -> Vec<Run>;
    queued(limit: u32) -> Vec<RunId>;
}

macro_rules! whole_suite {
    ($open:path) => {
        store_suite! { $open:
            runs::an_armed_run_is_queued_and_found_again,
            runs::an_id_is_given_once,
            runs::a_run_that_is_not_there_is_a_coded_error,
            runs::a_whole_life_ends_with_a_record_that_verifies,
            runs::every_transition_is_an_event,
            runs::an_illegal_event_changes_nothing,
            runs::expired_lease_cannot_commit,
            runs::expired_lease_cannot_settle,
            runs::a_new_claim_shuts_the_old_owner_out,
            runs::the_owners_events_need_its_epoch,
            runs::ending_and_claiming_have_their_own_doors,
            runs::a_run_is_not_settled_before_it_was_wound_up,
            runs::a_queued_run_is_cancelled_at_once_and_has_a_record,
            runs::a_wish_to_cancel_reaches_the_owner,
            runs::a_wish_to_cancel_blocks_success_even_at_the_last_moment,
            runs::a_stop_is_in_the_record_though_nobody_noted_it,
            runs::the_first_terminal_state_stands,
            runs::a_person_decides_without_a_lease_and_after_it_expired,
            runs::extended_budgets_are_stored,
            runs::expired_runs_are_found_for_reconciliation,
            lists::a_prefix_names_one_run_or_says_why_not,
            lists::lists_are_newest_first_and_filtered,
            lists::a_list_shows_what_the_run_brought,
            lists::spend_adds_up_while_the_run_goes_on,
            lists::the_instance_id_stays,
            bounds::output_is_kept_up_to_the_budget_and_counted_past_it,
            bounds::a_large_chunk_of_output_becomes_several_events,
            bounds::an_oversized_repeatable_fact_is_counted_and_still_judged,
            bounds::other_facts_past_their_bounds_are_refused,
            bounds::titles_are_cut_by_characters,
            bounds::a_specification_without_bound_is_refused,
            bounds::a_batch_answers_for_each_item,
            bounds::a_batch_without_bound_is_refused,
            runs::a_sandbox_known_only_to_the_state_is_not_forgotten,
            races::of_a_thousand_appliers_one_wins,
            races::of_a_hundred_claimants_one_wins,
            races::sequences_have_no_gaps_under_concurrency,
            races::cancel_and_settle_at_once_agree,
        }
    };
}

mod one_handle {
    use super::suite::{self, store_suite};
    whole_suite!(super::one);
}

mod two_handles {
    use super::suite::{self, store_suite};
    whole_suite!(super::two);
}
