//! What persons, clients and senders of webhooks do: at any time, and some of it twice.

use cofferdam_ledger::store::approvals::{ApprovalFilter, Approvals as _, Decided};
use cofferdam_ledger::store::triggers::{Received, Triggers as _};
use cofferdam_ledger::store::work::{Created, NewTask, TaskFilter, Work as _};
use cofferdam_ledger::{ListFilter, Store as _};
use cofferdam_run::approval::{Decision, Refusal};
use cofferdam_run::retry::RetryPolicy;
use cofferdam_run::spec::Mode;
use cofferdam_run::trigger::{Delivery, IdempotencyKey};
use cofferdam_run::{Actor, Budgets, Decider, RunEvent, State, TaskId};

use super::facts;
use super::process::Daemon;
use super::random::Random;
use super::world::{Stop, World};

/// Different requests in one life. Then only the same ones come again.
const MOST_REQUESTS: u32 = 4;

pub(super) async fn act(world: &mut World, daemon: &mut Daemon) -> Result<(), Stop> {
    match world.random.below(10) {
        0..3 => create(world, daemon).await,
        3..6 => decide(world, daemon).await,
        6 => cancel(world, daemon).await,
        7 => retry(world, daemon).await,
        8 => deliver(world, daemon).await,
        _ => go_on(world, daemon).await,
    }
}

fn new_task(world: &mut World, n: u32, origin: Actor) -> NewTask {
    // What request `n` asks for is the same each time.
    let mut random = Random::new(world.config.seed ^ (u64::from(n) << 20));
    let mode = if random.chance(750) { Mode::Supervised } else { Mode::Unattended };
    let thread = if random.chance(500) { random.pick(&world.threads).cloned() } else { None };
    NewTask {
        id: TaskId::from_entropy(random.id()),
        title: format!("task {n}"),
        origin,
        project: world.project.clone(),
        thread,
        agent: None,
        priority: i32::try_from(random.below(5)).unwrap_or(0),
        spec: facts::spec(mode, &format!("task {n}")),
        retry: RetryPolicy { base_ms: 1_000, max_ms: 8_000, ..RetryPolicy::default() },
        created_at: world.now,
    }
}

async fn create(world: &mut World, daemon: &mut Daemon) -> Result<(), Stop> {
    let ledger = daemon.ledger.clone();
    // A client whose answer was lost asks again.
    let again = world.requests >= MOST_REQUESTS || world.random.chance(250);
    let n = if world.requests > 0 && again {
        u32::try_from(world.random.below(u64::from(world.requests))).unwrap_or(0)
    } else {
        world.requests += 1;
        world.requests - 1
    };
    let name = format!("r{n}");
    let key = IdempotencyKey::new("tasks", &name, name.as_bytes()).ok();
    let new = new_task(world, n, Actor::Person("ada".into()));
    let made = world.write("create", async { ledger.create_task(new, key).await }).await?;
    match made {
        Created::New(task) | Created::Same(task) => {
            world.note(format!("request {n} is task {}", task.id));
            if let Some(before) = world.journal.tasks.insert(name.clone(), task.id.clone())
                && before != task.id
            {
                world.violation(format!("request {name} made {before} and {}", task.id));
            }
        }
        other => world.violation(format!("request {name}: {other:?}")),
    }
    Ok(())
}

pub(super) async fn decide(world: &mut World, daemon: &mut Daemon) -> Result<(), Stop> {
    let (ledger, now) = (daemon.ledger.clone(), world.now);
    let filter = ApprovalFilter { state: Some("pending".into()), ..Default::default() };
    let open = ledger.approvals(filter, Default::default()).await.map_err(Stop::Broken)?;
    let Some(approval) = world.random.pick(&open.items).cloned() else { return Ok(()) };
    // Two persons click at once.
    for name in ["ada", "bob"] {
        let decision = if world.random.chance(700) { Decision::Approve } else { Decision::Reject };
        let Ok(by) = Decider::person(name) else { return Ok(()) };
        let id = approval.id.clone();
        let work = async { ledger.decide(&id, &by, decision, "", now).await };
        match world.write("decide", work).await {
            Ok(Decided::Counts { approval, .. }) => {
                world.note(format!("{name} decided {id}: {}", approval.state.name()));
                if let Some(before) = world.journal.decided.insert(id, name.to_owned()) {
                    world.violation(format!("{before} and {name} both decided"));
                }
            }
            Ok(Decided::Refused { refusal: Refusal::Decided { state }, .. }) => {
                if state.decided_by().is_none() {
                    world.violation("a loser does not learn who decided".to_owned());
                }
            }
            Ok(Decided::Refused { .. }) | Err(Stop::Failed) => {}
            Err(stop) => return Err(stop),
        }
    }
    Ok(())
}

async fn cancel(world: &mut World, daemon: &mut Daemon) -> Result<(), Stop> {
    let (ledger, now) = (daemon.ledger.clone(), world.now);
    let open = TaskFilter { states: vec!["open".into()], ..Default::default() };
    let open = ledger.tasks(open, Default::default()).await.map_err(Stop::Broken)?;
    let Some(task) = world.random.pick(&open.items).cloned() else { return Ok(()) };
    world.note(format!("ada cancels {}", task.id));
    if world.random.chance(500) {
        let run = task.state.run().clone();
        let work = async { ledger.request_cancel(&run, "ada", now).await };
        let _ = world.write("cancel run", work).await?;
    } else {
        let work = async { ledger.cancel_task(&task.id, "ada", now).await };
        world.write("cancel task", work).await?;
    }
    Ok(())
}

async fn retry(world: &mut World, daemon: &mut Daemon) -> Result<(), Stop> {
    let (ledger, now) = (daemon.ledger.clone(), world.now);
    let over = TaskFilter {
        states: vec!["failed".into(), "dead_letter".into(), "cancelled".into()],
        ..Default::default()
    };
    let over = ledger.tasks(over, Default::default()).await.map_err(Stop::Broken)?;
    let Some(task) = world.random.pick(&over.items).cloned() else { return Ok(()) };
    let by = Actor::Person("ada".into());
    let work = async { ledger.retry_task(&task.id, &by, None, now).await };
    let retried = world.write("retry", work).await?;
    world.note(format!("retry of {}: {retried:.40?}", task.id));
    Ok(())
}

async fn deliver(world: &mut World, daemon: &mut Daemon) -> Result<(), Stop> {
    let ledger = daemon.ledger.clone();
    let (id, version) = (world.random.below(4), world.random.below(2));
    let Ok(delivery) = Delivery::new(
        "hook",
        &format!("d{id}-{version}"),
        Some(("issue/1", &format!("v{version}"))),
    ) else {
        return Ok(());
    };
    let n = u32::try_from(500 + id * 10 + version).unwrap_or(0);
    let new = new_task(world, n, Actor::Webhook("hook".into()));
    let received = world.write("deliver", async { ledger.receive(delivery, new).await }).await?;
    let (Received::New(_) | Received::Again { .. } | Received::SameVersion { .. }) = &received
    else {
        world.violation(format!("a delivery was refused: {received:?}"));
        return Ok(());
    };
    let task = match received {
        Received::New(task) => task.id,
        Received::Again { task } | Received::SameVersion { task } => task,
        Received::Refused(_) => return Ok(()),
    };
    let name = format!("version {version}");
    if let Some(before) = world.journal.tasks.insert(name.clone(), task.clone())
        && before != task
    {
        world.violation(format!("{name} made {before} and {task}"));
    }
    Ok(())
}

/// Lets waiting and paused runs go on.
async fn go_on(world: &mut World, daemon: &mut Daemon) -> Result<(), Stop> {
    let (ledger, now) = (daemon.ledger.clone(), world.now);
    let live = ListFilter { live_only: true, ..Default::default() };
    let live = ledger.list(live, 100).await.map_err(Stop::Broken)?;
    let Some(row) = world.random.pick(&live).cloned() else { return Ok(()) };
    let run = ledger.run(&row.id).await.map_err(Stop::Broken)?;
    let by = "ada".to_owned();
    let event = match run.state {
        State::Queued { due: Some(_) } => RunEvent::Hastened { by },
        State::Paused { .. } if world.random.chance(500) => RunEvent::Resumed { by },
        State::Paused { .. } => {
            let budgets = Budgets { tokens: run.spec.budgets.tokens, ..run.spec.budgets };
            RunEvent::Extended { by, budgets }
        }
        _ => return Ok(()),
    };
    let work = async { ledger.apply(&row.id, None, event, now).await };
    let _ = world.write("let go on", work).await?;
    Ok(())
}

/// The operator uses the exit of whatever waits for a person.
pub(super) async fn operate(world: &mut World, daemon: &mut Daemon) -> Result<(), Stop> {
    let (ledger, now) = (daemon.ledger.clone(), world.now);
    let paused =
        ListFilter { states: vec![cofferdam_run::StateName::Paused], ..Default::default() };
    for row in ledger.list(paused, 100).await.map_err(Stop::Broken)? {
        let work = async { ledger.request_cancel(&row.id, "operator", now).await };
        let _ = world.write("operator cancels", work).await?;
    }
    Ok(())
}
