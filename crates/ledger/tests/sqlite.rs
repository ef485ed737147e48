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
use cofferdam_ledger::store::approvals::*;
use cofferdam_ledger::store::catalogue::*;
use cofferdam_ledger::store::stream::*;
use cofferdam_ledger::store::triggers::*;
use cofferdam_ledger::store::work::*;
use cofferdam_ledger::{
    Appended, Applied, Beat, CancelOutcome, Item, Ledger, LedgerError, ListFilter, NewRun,
    OutputStream, RunRow, Settlement, Store, StoredEvent,
};
use cofferdam_run::approval::{Approval, Decision};
use cofferdam_run::delegate::{DelegationLimits, Share};
use cofferdam_run::fact::Fact;
use cofferdam_run::project::{
    AgentProfile, Named, NamedAgent, NamedPolicy, PolicyProfile, Project, Thread,
};
use cofferdam_run::trigger::{Delivery, IdempotencyKey};
use cofferdam_run::{
    Actor, AgentId, ApprovalId, CancelRequest, Decider, Digest, InstanceId, Lease, PolicyId,
    ProjectId, Run, RunEvent, RunId, RunSpec, ScheduleId, Task, TaskId, ThreadId, TimestampMs,
};
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
    ($($trait:ident { $($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)* })*) => {
        $(#[async_trait]
        impl $trait for Alternating {
            $(async fn $name(&self, $($arg: $ty),*) -> Result<$out> {
                self.pick().$name($($arg),*).await
            })*
        })*
    };
}

forward! {
    Store {
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
    Work {
        create_task(new: NewTask, key: Option<IdempotencyKey>) -> Created;
        task(id: &TaskId) -> Task;
        task_of(run: &RunId) -> Option<TaskId>;
        attempts(id: &TaskId) -> Vec<Attempt>;
        tasks(filter: TaskFilter, page: Page) -> Paged<Task>;
        runs(filter: RunFilter, page: Page) -> Paged<BoardRow>;
        claim_next(owner: &str, limits: ClaimLimits, now: TimestampMs, ttl_ms: u64) -> Option<Claimed>;
        next_due() -> Option<TimestampMs>;
        retry_task(id: &TaskId, by: &Actor, edited: Option<RunSpec>, at: TimestampMs) -> Retried;
        cancel_task(id: &TaskId, by: &str, at: TimestampMs) -> TreeCancelled;
        delegate(parent: &RunId, epoch: u64, child: NewChild, limits: DelegationLimits, at: TimestampMs) -> Delegated;
        allowance(run: &RunId) -> Share;
    }
    Approvals {
        ask(run: &RunId, epoch: u64, new: NewApproval, at: TimestampMs) -> Asked;
        decide(id: &ApprovalId, by: &Decider, decision: Decision, reason: &str, at: TimestampMs) -> Decided;
        consume(id: &ApprovalId, run: &RunId, epoch: u64, subject: &Digest, at: TimestampMs) -> Used;
        approval(id: &ApprovalId) -> Approval;
        approvals(filter: ApprovalFilter, page: Page) -> Paged<Approval>;
        approvals_pending() -> u64;
        expire_approvals(now: TimestampMs) -> Vec<Approval>;
    }
    Triggers {
        create_schedule(new: Schedule) -> Schedule;
        enable_schedule(id: &ScheduleId, enabled: bool, at: TimestampMs) -> Schedule;
        schedule(id: &ScheduleId) -> Schedule;
        schedules(project: Option<ProjectId>, page: Page) -> Paged<Schedule>;
        slots(id: &ScheduleId, limit: u32) -> Vec<Slot>;
        fire_due(now: TimestampMs, limit: u32) -> Vec<Slot>;
        next_slot() -> Option<TimestampMs>;
        receive(delivery: Delivery, new: NewTask) -> Received;
    }
    Stream {
        events_after(after: u64, filter: EventFilter, limit: u32) -> EventPage;
        last_event() -> u64;
        compact(retention: Retention, now: TimestampMs) -> Compacted;
    }
    Catalogue {
        create_project(new: Project) -> Stored<Project>;
        change_project(id: &ProjectId, change: ProjectChange) -> Stored<Project>;
        project(id: &ProjectId) -> Project;
        project_at(checkout: &str) -> Option<Project>;
        projects(page: Page) -> Paged<Project>;
        create_thread(new: Thread) -> Thread;
        close_thread(id: &ThreadId, at: TimestampMs) -> Thread;
        thread(id: &ThreadId) -> Thread;
        threads(project: Option<ProjectId>, page: Page) -> Paged<Thread>;
        put_agent(named: Named<AgentId, AgentProfile>, expected: u64) -> Stored<NamedAgent>;
        agent(id: &AgentId) -> NamedAgent;
        agents(page: Page) -> Paged<NamedAgent>;
        put_policy(named: Named<PolicyId, PolicyProfile>, expected: u64) -> Stored<NamedPolicy>;
        policy(id: &PolicyId) -> NamedPolicy;
        policies(page: Page) -> Paged<NamedPolicy>;
    }
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
            tasks::a_task_queues_its_first_attempt,
            tasks::the_same_request_makes_one_task,
            tasks::a_transient_failure_waits_and_is_tried_again_with_what_is_left,
            tasks::exhausted_attempts_end_as_a_dead_letter_with_cause_and_spend,
            tasks::a_permanent_failure_is_final,
            tasks::a_rate_limit_uses_time_and_no_attempt,
            tasks::a_waiting_attempt_is_claimed_when_it_is_due_or_hastened,
            tasks::a_cancel_clears_the_waiting_attempt_too,
            tasks::of_many_operators_one_retries,
            tasks::a_retry_is_refused_while_a_successor_or_a_later_turn_lives,
            tasks::turns_of_a_thread_follow_one_another,
            tasks::switches_hold_whatever_a_client_asks,
            trees::a_child_spends_what_was_taken_from_its_parent,
            trees::the_rules_of_delegation_hold,
            trees::a_child_is_not_extended_beyond_its_share,
            trees::a_tree_is_cancelled_in_one_transaction,
            trees::children_end_with_their_parent,
            trees::a_stopping_parent_delegates_nothing,
            queue::of_two_hundred_claimants_each_gets_another_run,
            queue::limits_hold_and_free_again,
            queue::projects_take_turns_and_priority_orders_within,
            queue::waiting_raises_a_task,
            queue::of_many_claimants_one_gets_the_thread,
            approvals::a_question_is_stored_decided_and_used_once,
            approvals::of_a_thousand_decisions_one_counts,
            approvals::silence_is_no_and_lets_the_run_go_on,
            approvals::a_question_closes_with_its_run,
            approvals::a_yes_is_not_used_by_a_run_that_is_being_stopped,
            approvals::approvals_have_their_own_door,
            approvals::two_runs_cannot_spend_one_approval,
            triggers::of_many_schedulers_a_slot_fires_once,
            triggers::a_slot_during_an_earlier_task_is_skipped,
            triggers::slots_that_nobody_was_there_for_are_noted,
            triggers::a_project_without_the_switch_fires_nothing,
            triggers::a_schedule_that_is_off_makes_up_for_nothing,
            triggers::a_delivery_makes_one_task,
            stream::ids_grow_over_all_runs_in_the_order_of_commits,
            stream::a_stream_is_taken_up_where_it_was,
            stream::compaction_says_so_and_keeps_the_record,
            stream::what_is_not_over_is_not_compacted,
            catalogue::names_and_checkouts_are_given_once,
            catalogue::profiles_count_their_versions,
            catalogue::lists_are_paged,
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
