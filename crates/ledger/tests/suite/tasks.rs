//! Tasks: creation, attempts, retries, threads.

use cofferdam_ledger::store::work::{
    ClaimLimits, Claimed, CreateRefusal, Created, NewTask, Retried, RunFilter,
};
use cofferdam_ledger::{CancelOutcome, EventBody, Settlement};
use cofferdam_run::fact::{Fact, TeardownOutcome};
use cofferdam_run::limits::Spend;
use cofferdam_run::project::{Project, Switches, Thread};
use cofferdam_run::retry::{Exhausted, RetryPolicy};
use cofferdam_run::spec::Mode;
use cofferdam_run::task::{RetryRefusal, TaskState};
use cofferdam_run::trigger::IdempotencyKey;
use cofferdam_run::{
    Actor, ProjectId, RunEvent, RunId, StateName, Task, TaskId, ThreadId, Waker, verify,
};
use tokio::task::JoinSet;

use super::fixtures::{TTL_MS, at, good_facts, spec, to_executing};
use super::{AnyStore, done};

pub(crate) fn task_id(n: u32) -> TaskId {
    let [a, b, c, d] = n.to_be_bytes();
    TaskId::from_entropy([a, b, c, d, 9])
}

pub(crate) fn new_task(n: u32, mode: Mode) -> NewTask {
    let mut spec = spec(mode);
    spec.task = format!("task {n}");
    NewTask {
        id: task_id(n),
        title: format!("task {n}"),
        origin: Actor::Person("ada".into()),
        project: None,
        thread: None,
        agent: None,
        priority: 0,
        spec,
        retry: RetryPolicy { jitter_permille: 0, ..RetryPolicy::default() },
        created_at: at(0),
    }
}

pub(crate) async fn created(store: &AnyStore, new: NewTask) -> Task {
    match store.create_task(new, None).await.unwrap() {
        Created::New(task) => *task,
        other => panic!("not made: {other:?}"),
    }
}

pub(crate) async fn next(store: &AnyStore, ms: u64) -> Option<Claimed> {
    store.claim_next("owner", ClaimLimits::default(), at(ms), TTL_MS).await.unwrap()
}

/// Leads a claimed run to `executing`.
pub(crate) async fn executing(store: &AnyStore, claimed: &Claimed, ms: u64) {
    for event in to_executing() {
        done(store, &claimed.run.id, Some(claimed.lease.epoch), event, ms).await;
    }
}

async fn settled(store: &AnyStore, claimed: &Claimed, ms: u64) -> StateName {
    match store.settle(&claimed.run.id, claimed.lease.epoch, at(ms)).await.unwrap() {
        Settlement::Done { run, .. } => run.state.name(),
        other => panic!("not settled: {other:?}"),
    }
}

async fn facts(store: &AnyStore, claimed: &Claimed, facts: Vec<Fact>, ms: u64) {
    for fact in facts {
        let id = &claimed.run.id;
        let _ = store.append_fact(id, claimed.lease.epoch, at(ms), fact).await.unwrap();
    }
}

/// Ends a claimed run as one whose host was lost, after it spent some tokens.
pub(crate) async fn lose(store: &AnyStore, claimed: &Claimed, tokens: u64, ms: u64) -> StateName {
    executing(store, claimed, ms).await;
    let spend = Spend { input_tokens: tokens, model_calls: 1, ..Spend::default() };
    let removed = Fact::Teardown { outcome: TeardownOutcome::Removed };
    facts(store, claimed, vec![Fact::Spent { spend }, removed], ms).await;
    done(store, &claimed.run.id, Some(claimed.lease.epoch), RunEvent::HostLost, ms).await;
    settled(store, claimed, ms).await
}

/// Ends a claimed run well.
pub(crate) async fn complete(store: &AnyStore, claimed: &Claimed, ms: u64) -> StateName {
    executing(store, claimed, ms).await;
    facts(store, claimed, good_facts(Mode::Unattended), ms).await;
    done(store, &claimed.run.id, Some(claimed.lease.epoch), RunEvent::AgentEnded, ms).await;
    settled(store, claimed, ms).await
}

/// Ends a claimed run whose agent gave up; the provider's last answer was `status`.
async fn give_up(store: &AnyStore, claimed: &Claimed, status: u16, wait: Option<u64>, ms: u64) {
    executing(store, claimed, ms).await;
    let mut all = good_facts(Mode::Unattended);
    for fact in &mut all {
        if let Fact::AgentEnded { code_claim, .. } = fact {
            *code_claim = Some(1);
        }
    }
    all.push(Fact::ModelCall {
        request: "POST /v1/messages".into(),
        model: "m".into(),
        status,
        refusal: None,
        usage: Spend::default(),
        bytes_out: 1,
        bytes_in: 1,
        retry_after_ms: wait,
    });
    facts(store, claimed, all, ms).await;
    done(store, &claimed.run.id, Some(claimed.lease.epoch), RunEvent::AgentEnded, ms).await;
    assert_eq!(settled(store, claimed, ms).await, StateName::Failed);
}

pub(crate) async fn a_task_queues_its_first_attempt(store: AnyStore) {
    let task = created(&store, new_task(1, Mode::Unattended)).await;
    assert_eq!(store.task(&task.id).await.unwrap(), task);
    let claimed = next(&store, 1).await.unwrap();
    assert_eq!(claimed.task, Some(task.id.clone()));
    assert_eq!((claimed.attempt, &claimed.run.id), (1, task.state.run()));
    assert_eq!(store.task_of(&claimed.run.id).await.unwrap(), Some(task.id.clone()));
    assert_eq!(next(&store, 1).await, None);
    assert_eq!(complete(&store, &claimed, 2).await, StateName::Completed);
    let over = store.task(&task.id).await.unwrap();
    assert_eq!(over.state, TaskState::Completed { run: claimed.run.id });
    assert_eq!(store.attempts(&task.id).await.unwrap().len(), 1);
}

pub(crate) async fn the_same_request_makes_one_task(store: AnyStore) {
    let key = |body: &[u8]| Some(IdempotencyKey::new("cli/tasks", "k1", body).unwrap());
    let mut asking = JoinSet::new();
    for n in 0..50 {
        let (store, key) = (store.clone(), key(b"a"));
        asking.spawn(async move { store.create_task(new_task(n, Mode::Unattended), key).await });
    }
    let mut ids = Vec::new();
    let mut new = 0;
    while let Some(answer) = asking.join_next().await {
        match answer.unwrap().unwrap() {
            Created::New(task) => {
                new += 1;
                ids.push(task.id);
            }
            Created::Same(task) => ids.push(task.id),
            other => panic!("{other:?}"),
        }
    }
    ids.dedup();
    assert_eq!((new, ids.len()), (1, 1));
    let other = store.create_task(new_task(99, Mode::Unattended), key(b"b")).await.unwrap();
    assert_eq!(other, Created::Conflict { task: ids.remove(0) });
}

pub(crate) async fn a_transient_failure_waits_and_is_tried_again_with_what_is_left(
    store: AnyStore,
) {
    let task = created(&store, new_task(1, Mode::Unattended)).await;
    let first = next(&store, 1).await.unwrap();
    assert_eq!(lose(&store, &first, 500_000, 2).await, StateName::Failed);
    let open = store.task(&task.id).await.unwrap();
    assert_eq!((open.attempts, open.tally.failures, open.spent.tokens()), (2, 1, 500_000));
    let attempts = store.attempts(&task.id).await.unwrap();
    assert_eq!(attempts[1].retried_from.as_ref(), Some(&first.run.id));
    assert_eq!(attempts[1].due_at, Some(at(10_002)));
    assert_eq!(store.next_due().await.unwrap(), Some(at(10_002)));
    let waiting = store.run(&attempts[1].run).await.unwrap();
    assert_eq!(waiting.state.waker(), Some(Waker::Clock { at: at(10_002) }));
    assert_eq!(next(&store, 10_001).await, None);
    let second = next(&store, 10_002).await.unwrap();
    assert_eq!(second.attempt, 2);
    assert_eq!(second.run.spec.budgets.tokens, 1_500_000);
    assert_eq!(complete(&store, &second, 10_003).await, StateName::Completed);
    assert_eq!(store.task(&task.id).await.unwrap().state.name(), "completed");
}

pub(crate) async fn exhausted_attempts_end_as_a_dead_letter_with_cause_and_spend(store: AnyStore) {
    let task = created(&store, new_task(1, Mode::Unattended)).await;
    let mut now = 1;
    let mut last = None;
    for state in [StateName::Failed, StateName::Failed, StateName::DeadLetter] {
        let claimed = next(&store, now).await.unwrap();
        assert_eq!(lose(&store, &claimed, 1_000, now).await, state);
        now += 1_000_000;
        last = Some(claimed.run.id);
    }
    assert_eq!(next(&store, now).await, None);
    let dead = store.task(&task.id).await.unwrap();
    let run = last.unwrap();
    assert_eq!(
        dead.state,
        TaskState::DeadLetter { run: run.clone(), exhausted: Exhausted::Attempts }
    );
    assert_eq!(dead.spent.tokens(), 3_000);
    let record = verify(&store.record(&run).await.unwrap().unwrap()).unwrap().record;
    assert_eq!(record.verdict.cause.unwrap().code(), "RUN-053");
    let events = store.events(&run, 0, 1_000).await.unwrap();
    let EventBody::Transition { event, state } = &events.last().unwrap().body else { panic!() };
    assert_eq!((event.name(), *state), ("given_up", StateName::DeadLetter));
}

pub(crate) async fn a_permanent_failure_is_final(store: AnyStore) {
    let task = created(&store, new_task(1, Mode::Unattended)).await;
    let claimed = next(&store, 1).await.unwrap();
    give_up(&store, &claimed, 200, None, 2).await;
    assert_eq!(store.task(&task.id).await.unwrap().state.name(), "failed");
    assert_eq!(next(&store, 1_000_000).await, None);
}

pub(crate) async fn a_rate_limit_uses_time_and_no_attempt(store: AnyStore) {
    let retry = RetryPolicy { max_attempts: 1, wait_budget_ms: 100_000, ..RetryPolicy::default() };
    let task = created(&store, NewTask { retry, ..new_task(1, Mode::Unattended) }).await;
    let mut now = 1;
    for n in 1..=2 {
        let claimed = next(&store, now).await.unwrap();
        give_up(&store, &claimed, 429, Some(40_000), now).await;
        let waits = store.task(&task.id).await.unwrap();
        assert_eq!((waits.tally.failures, waits.tally.waits), (0, n));
        assert_eq!(next(&store, now + 39_999).await, None);
        now += 40_000;
    }
    // The third would pass the budget of waits.
    let claimed = next(&store, now).await.unwrap();
    executing(&store, &claimed, now).await;
    let call = Fact::ModelCall {
        request: "POST /v1/messages".into(),
        model: "m".into(),
        status: 429,
        refusal: None,
        usage: Spend::default(),
        bytes_out: 1,
        bytes_in: 1,
        retry_after_ms: Some(40_000),
    };
    let mut all = good_facts(Mode::Unattended);
    for fact in &mut all {
        if let Fact::AgentEnded { code_claim, .. } = fact {
            *code_claim = Some(1);
        }
    }
    all.push(call);
    facts(&store, &claimed, all, now).await;
    done(&store, &claimed.run.id, Some(claimed.lease.epoch), RunEvent::AgentEnded, now).await;
    assert_eq!(settled(&store, &claimed, now).await, StateName::DeadLetter);
    let dead = store.task(&task.id).await.unwrap();
    assert!(matches!(dead.state, TaskState::DeadLetter { exhausted: Exhausted::Waits, .. }));
}

/// A task whose second attempt waits until 10,002.
async fn waiting(store: &AnyStore, n: u32) -> (TaskId, RunId) {
    let task = created(store, new_task(n, Mode::Unattended)).await;
    let first = next(store, 1).await.unwrap();
    lose(store, &first, 1, 2).await;
    let run = store.task(&task.id).await.unwrap().state.run().clone();
    (task.id, run)
}

pub(crate) async fn a_waiting_attempt_is_claimed_when_it_is_due_or_hastened(store: AnyStore) {
    let (_, run) = waiting(&store, 1).await;
    assert_eq!(store.claim(&run, "owner", at(10_001), TTL_MS).await.unwrap(), None);
    done(&store, &run, None, RunEvent::Hastened { by: "ada".into() }, 5).await;
    assert_eq!(store.next_due().await.unwrap(), None);
    assert_eq!(next(&store, 6).await.unwrap().run.id, run);
}

pub(crate) async fn a_cancel_clears_the_waiting_attempt_too(store: AnyStore) {
    let (task, run) = waiting(&store, 1).await;
    let cancelled = store.cancel_task(&task, "ada", at(5)).await.unwrap();
    assert_eq!((cancelled.over, cancelled.requested), (vec![run.clone()], vec![]));
    assert_eq!(store.task(&task).await.unwrap().state, TaskState::Cancelled { run });
    assert_eq!(next(&store, 1_000_000).await, None);
    // And by the run: a running attempt that fails then is not tried again.
    let task = created(&store, new_task(2, Mode::Unattended)).await;
    let claimed = next(&store, 6).await.unwrap();
    let wish = store.request_cancel(&claimed.run.id, "ada", at(7)).await.unwrap();
    assert!(matches!(wish, CancelOutcome::Requested(_)));
    done(&store, &claimed.run.id, Some(1), RunEvent::HostLost, 8).await;
    settled(&store, &claimed, 9).await;
    assert!(!store.task(&task.id).await.unwrap().state.is_open());
    assert_eq!(next(&store, 1_000_000).await, None);
}

pub(crate) async fn of_many_operators_one_retries(store: AnyStore) {
    let task = created(&store, new_task(1, Mode::Unattended)).await;
    let claimed = next(&store, 1).await.unwrap();
    give_up(&store, &claimed, 200, None, 2).await;
    let mut asking = JoinSet::new();
    for n in 0..50 {
        let (store, id) = (store.clone(), task.id.clone());
        asking.spawn(async move {
            let mut edited = spec(Mode::Unattended);
            edited.task = format!("differently {n}");
            let by = Actor::Person(format!("operator {n}"));
            store.retry_task(&id, &by, Some(edited), at(3)).await.unwrap()
        });
    }
    let mut runs = Vec::new();
    let mut refused = 0;
    while let Some(answer) = asking.join_next().await {
        match answer.unwrap() {
            Retried::Queued { run, task } => {
                assert_eq!((task.attempts, task.state.run()), (2, &run));
                runs.push((run, task.spec.task));
            }
            Retried::Refused(RetryRefusal::Lives { .. }) => refused += 1,
            Retried::Refused(other) => panic!("{other:?}"),
        }
    }
    assert_eq!((runs.len(), refused), (1, 49));
    let claimed = next(&store, 4).await.unwrap();
    let (run, text) = runs.remove(0);
    assert_eq!((claimed.run.id, claimed.attempt), (run, 2));
    assert_eq!(claimed.run.spec.task, text);
    assert_eq!(claimed.run.spec.budgets, spec(Mode::Unattended).budgets);
    let filter = RunFilter { task: Some(task.id), ..RunFilter::default() };
    assert_eq!(store.runs(filter, Default::default()).await.unwrap().items.len(), 2);
}

pub(crate) async fn a_retry_is_refused_while_a_successor_or_a_later_turn_lives(store: AnyStore) {
    let by = Actor::Person("ada".into());
    let (task, run) = waiting(&store, 1).await;
    let refused = store.retry_task(&task, &by, None, at(3)).await.unwrap();
    assert_eq!(refused, Retried::Refused(RetryRefusal::Lives { run }));
    let thread = thread(&store, None).await;
    let on = |n| NewTask { thread: Some(thread.clone()), ..new_task(n, Mode::Unattended) };
    let first = created(&store, on(2)).await;
    let claimed = next(&store, 4).await.unwrap();
    give_up(&store, &claimed, 200, None, 5).await;
    let second = created(&store, on(3)).await;
    let refused = store.retry_task(&first.id, &by, None, at(6)).await.unwrap();
    assert_eq!(refused, Retried::Refused(RetryRefusal::ThreadBusy { task: second.id }));
    let done = created(&store, new_task(4, Mode::Unattended)).await;
    while let Some(claimed) = next(&store, 7).await {
        complete(&store, &claimed, 8).await;
    }
    let refused = store.retry_task(&done.id, &by, None, at(9)).await.unwrap();
    assert_eq!(refused, Retried::Refused(RetryRefusal::Completed));
}

pub(crate) async fn thread(store: &AnyStore, project: Option<ProjectId>) -> ThreadId {
    let id = ThreadId::from_entropy([5; 5]);
    let thread = Thread {
        id: id.clone(),
        project,
        title: "a thread".into(),
        created_at: at(0),
        closed_at: None,
    };
    store.create_thread(thread).await.unwrap();
    id
}

pub(crate) async fn turns_of_a_thread_follow_one_another(store: AnyStore) {
    let thread = thread(&store, None).await;
    let on = |n| NewTask { thread: Some(thread.clone()), ..new_task(n, Mode::Unattended) };
    let first = created(&store, on(1)).await;
    let second = created(&store, on(2)).await;
    let claimed = next(&store, 1).await.unwrap();
    assert_eq!(claimed.task, Some(first.id));
    // Neither from the queue nor by its id.
    assert_eq!(next(&store, 1).await, None);
    let later = second.state.run();
    assert_eq!(store.claim(later, "owner", at(1), TTL_MS).await.unwrap(), None);
    // While the first waits for its next attempt it is still the first's turn.
    lose(&store, &claimed, 1, 2).await;
    assert_eq!(next(&store, 3).await, None);
    let again = next(&store, 10_002).await.unwrap();
    assert_eq!(again.attempt, 2);
    complete(&store, &again, 10_003).await;
    assert_eq!(next(&store, 10_004).await.unwrap().task, Some(second.id));
    // A closed thread takes no further turn.
    store.close_thread(&thread, at(10_005)).await.unwrap();
    let refused = store.create_task(on(3), None).await.unwrap();
    assert_eq!(refused, Created::Refused(CreateRefusal::ThreadClosed(thread)));
}

pub(crate) async fn project(store: &AnyStore, n: u8, switches: Switches) -> ProjectId {
    let id = ProjectId::from_entropy([n; 5]);
    let project = Project {
        id: id.clone(),
        name: format!("project {n}"),
        checkout: format!("/home/ada/{n}"),
        switches,
        max_parallel: None,
        created_at: at(0),
        archived_at: None,
    };
    let _ = store.create_project(project).await.unwrap();
    id
}

pub(crate) async fn switches_hold_whatever_a_client_asks(store: AnyStore) {
    let id = project(&store, 1, Switches::default()).await;
    let on = |n, mode| NewTask { project: Some(id.clone()), ..new_task(n, mode) };
    let refused = store.create_task(on(1, Mode::Unattended), None).await.unwrap();
    let Created::Refused(CreateRefusal::SwitchedOff(off)) = refused else { panic!("{refused:?}") };
    assert_eq!(off.switch, "unattended");
    created(&store, on(2, Mode::Supervised)).await;
    let hook = NewTask { origin: Actor::Webhook("github".into()), ..on(3, Mode::Supervised) };
    let refused = store.create_task(hook, None).await.unwrap();
    assert!(matches!(refused, Created::Refused(CreateRefusal::SwitchedOff(_))));
}
