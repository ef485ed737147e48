//! What must hold, whatever happened. Reads the ledger and the journal, changes nothing.

use cofferdam_ledger::store::approvals::{ApprovalFilter, Approvals as _};
use cofferdam_ledger::store::work::{Page, TaskFilter, Work as _};
use cofferdam_ledger::{EventBody, Ledger, ListFilter, Store as _};
use cofferdam_run::{RunId, State, Waker};

use super::driver::seen_over;
use super::process::TTL_MS;
use super::world::World;

/// Holds at every instant.
pub(super) async fn always(world: &mut World, ledger: &Ledger) -> anyhow::Result<()> {
    let rows = ledger.list(ListFilter::default(), 10_000).await?;
    for row in &rows {
        let run = ledger.run(&row.id).await?;
        if let Some(before) = world.journal.over.get(&run.id)
            && *before != run.state.name()
        {
            let now = run.state.name();
            world.violation(format!("revived: run {} was {before} and is {now}", run.id));
        }
        let spent = row.spend.tokens();
        let before = world.journal.spent.insert(run.id.clone(), spent).unwrap_or(0);
        if spent < before {
            world.violation(format!("run {} spent {before} tokens and now {spent}", run.id));
        }
        if run.state.is_terminal() {
            seen_over(world, &run);
            if ledger.record(&run.id).await?.is_none() {
                world.violation(format!("run {} is over without a record", run.id));
            }
        } else {
            waker(world, ledger, &run.state, &run.id).await?;
        }
        events(world, ledger, &run.id).await?;
    }
    let tasks = ledger.tasks(TaskFilter::default(), Page::default()).await?;
    for task in &tasks.items {
        let open: Vec<_> = ledger
            .attempts(&task.id)
            .await?
            .into_iter()
            .filter(|a| !a.state.is_terminal())
            .collect();
        if open.len() != usize::from(task.state.is_open()) {
            let id = &task.id;
            world.violation(format!("task {id} is {} with {open:?}", task.state.name()));
        }
        if let Some(parent) = &task.parent
            && task.state.is_open()
        {
            let above = ledger.run(&parent.run).await?;
            let stopping = above.state.is_terminal() || above.cancel.is_some();
            if stopping && task.cancel.is_none() {
                let id = &task.id;
                world.violation(format!("orphan: task {id} goes on without {}", parent.run));
            }
        }
    }
    for (key, task) in world.journal.tasks.clone() {
        if !tasks.items.iter().any(|t| t.id == task) {
            world.violation(format!("lost: {key} was told that it made {task}"));
        }
    }
    for (approval, times) in world.journal.effects.clone() {
        if times > 1 {
            world.violation(format!("double effect: {approval} was used {times} times"));
        }
        let found = ledger.approval(&approval).await?;
        if found.state.decided_by().is_none() && found.state.name() != "withdrawn" {
            world.violation(format!("{approval} was used and is {}", found.state.name()));
        }
    }
    Ok(())
}

/// A run that waits names what wakes it, and that exists.
async fn waker(
    world: &mut World,
    ledger: &Ledger,
    state: &State,
    id: &RunId,
) -> anyhow::Result<()> {
    let soon = |deadline: cofferdam_run::TimestampMs| deadline <= world.now.plus_ms(TTL_MS);
    let live = match state.waker() {
        None => false,
        Some(Waker::Claim) => ledger.queued(10_000).await?.contains(id),
        Some(Waker::Clock { at }) => ledger.next_due().await?.is_some_and(|due| due <= at),
        Some(Waker::Owner { deadline } | Waker::Extension { deadline, .. }) => soon(deadline),
        Some(Waker::Decision { ask, deadline }) => {
            let filter = ApprovalFilter { state: Some("pending".into()), run: Some(id.clone()) };
            let open = ledger.approvals(filter, Page::default()).await?;
            soon(deadline) && open.items.iter().any(|a| a.ask == ask)
        }
    };
    if !live {
        world.violation(format!("run {id} is {} and nothing wakes it", state.name()));
    }
    Ok(())
}

/// Every event that was confirmed is there, under its number, and there is no gap.
async fn events(world: &mut World, ledger: &Ledger, id: &RunId) -> anyhow::Result<()> {
    let events = ledger.events(id, 0, 10_000).await?;
    for (expected, event) in (1u64..).zip(&events) {
        if event.seq != expected {
            world.violation(format!("run {id} has no event {expected}"));
        }
    }
    let of_run: Vec<(u64, String)> = world
        .journal
        .kept
        .range((id.clone(), 0)..=(id.clone(), u64::MAX))
        .map(|((_, seq), text)| (*seq, text.clone()))
        .collect();
    for (seq, text) in of_run {
        let found = events.iter().find(|e| e.seq == seq).is_some_and(|e| match &e.body {
            EventBody::Fact(fact) => serde_json::to_string(fact).is_ok_and(|f| f == text),
            EventBody::Transition { .. } | EventBody::Output { .. } => false,
        });
        if !found {
            world.violation(format!("lost event: run {id}, {seq}: {text}"));
        }
    }
    Ok(())
}

/// Holds once everything has come to rest.
pub(super) async fn at_rest(world: &mut World, ledger: &Ledger) -> anyhow::Result<()> {
    for (name, sandbox) in world.engine.sandboxes.clone() {
        world.violation(format!("orphan: the sandbox {name} of run {} is left", sandbox.run));
    }
    let pending = ApprovalFilter { state: Some("pending".into()), ..Default::default() };
    for approval in ledger.approvals(pending, Page::default()).await?.items {
        world.violation(format!("{} waits for a run that is over", approval.id));
    }
    let open = TaskFilter { states: vec!["open".into()], ..Default::default() };
    for task in ledger.tasks(open, Page::default()).await?.items {
        world.violation(format!("task {} is open and nobody works on it", task.id));
    }
    Ok(())
}
