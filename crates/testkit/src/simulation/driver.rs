//! What a daemon does about a run: the next thing that its state asks for, after its lease was
//! renewed. Everything can be repeated, so a daemon that lost an answer reads and goes on.

use cofferdam_ledger::store::approvals::{Approvals as _, Asked, NewApproval, Used};
use cofferdam_ledger::store::work::{Delegated, NewChild, RunFilter, Work as _};
use cofferdam_ledger::{Appended, Applied, Beat, LedgerError, Settlement, Store as _};
use cofferdam_run::approval::{ApprovalState, Subject};
use cofferdam_run::delegate::DelegationLimits;
use cofferdam_run::fact::{Fact, StopCause};
use cofferdam_run::state::{Ending, Preparation};
use cofferdam_run::{ApprovalId, Budgets, Run, RunEvent, RunId, State, TaskId};

use super::agent::{Act, script};
use super::process::{Daemon, TTL_MS, known};
use super::random::Random;
use super::world::{Stop, World};
use super::{Sabotage, facts};

/// Moves a run that the daemon believes to hold.
pub(super) async fn step(world: &mut World, daemon: &mut Daemon, id: &RunId) -> Result<(), Stop> {
    let Some(epoch) = daemon.held.get(id).copied() else { return Ok(()) };
    let (ledger, now) = (daemon.ledger.clone(), world.now);
    // No effect without a lease that holds now.
    let beat =
        world.write("heartbeat", async { ledger.heartbeat(id, epoch, now, TTL_MS).await }).await?;
    let cancel = match beat {
        Beat::Held { cancel, .. } => cancel,
        Beat::Lost(lost) => {
            world.note(format!("{}: lost {id}: {lost:?}", daemon.name));
            daemon.held.remove(id);
            return Ok(());
        }
    };
    let run = ledger.run(id).await.map_err(Stop::Broken)?;
    let winding_up = matches!(run.state, State::Collecting { .. });
    if !winding_up && run.state.lease().is_some_and(|l| l.epoch > 1) {
        // Taken over: nothing of the former owner goes on.
        return apply(world, daemon, id, epoch, RunEvent::HostLost).await;
    }
    if cancel.is_some() && !winding_up {
        let event = RunEvent::StopRequested { cause: StopCause::Cancelled };
        return apply(world, daemon, id, epoch, event).await;
    }
    match run.state.clone() {
        State::Preparing { stage: Preparation::Creating, .. } => {
            let task = ledger.task_of(id).await.map_err(Stop::Broken)?;
            let sandbox = world.effect("create", |w| w.engine.create(id, task.clone(), epoch))?;
            apply(world, daemon, id, epoch, RunEvent::SandboxIdentified { sandbox }).await
        }
        State::Preparing { stage: Preparation::Starting { sandbox }, .. } => {
            let up = world.effect("start", |w| w.engine.start(&sandbox))?;
            let event = if up {
                RunEvent::GuestReady
            } else {
                RunEvent::StopRequested { cause: StopCause::NoHello }
            };
            apply(world, daemon, id, epoch, event).await
        }
        State::Preparing { stage: Preparation::Ready { sandbox }, .. } => {
            start_agent(world, id, &sandbox)?;
            apply(world, daemon, id, epoch, RunEvent::AgentStarted).await
        }
        State::Planning { .. } => apply(world, daemon, id, epoch, RunEvent::PlanMade).await,
        State::Executing { sandbox, .. } => act(world, daemon, &run, epoch, &sandbox).await,
        State::AwaitingApproval { .. } | State::Paused { .. } => Ok(()),
        State::Collecting { ending, .. } => wind_up(world, daemon, &run, epoch, &ending).await,
        State::Queued { .. }
        | State::Completed { .. }
        | State::Failed { .. }
        | State::DeadLetter { .. }
        | State::Cancelled { .. } => {
            world.violation(format!("run {id} is {} and held", run.state.name()));
            Ok(())
        }
    }
}

fn start_agent(world: &mut World, id: &RunId, sandbox: &str) -> Result<(), Stop> {
    // The same run has the same agent, whoever starts it.
    let seed =
        id.as_str().bytes().fold(world.config.seed, |a, b| a.wrapping_mul(31) ^ u64::from(b));
    let script = script(&mut Random::new(seed), true);
    let started = world.effect("start agent", |w| w.engine.start_agent(sandbox, script))?;
    if let Err(Some(other)) = started {
        world.violation(format!("double claim: run {id} works in {sandbox} and in {other}"));
    }
    Ok(())
}

async fn apply(
    world: &mut World,
    daemon: &mut Daemon,
    id: &RunId,
    epoch: u64,
    event: RunEvent,
) -> Result<(), Stop> {
    let (ledger, now, name) = (daemon.ledger.clone(), world.now, event.name());
    let applied =
        world.write(name, async { ledger.apply(id, Some(epoch), event, now).await }).await?;
    match applied {
        Applied::Done { run, .. } => world.note(format!("{id}: {name}, now {}", run.state.name())),
        Applied::Lost(lost) => {
            world.note(format!("{}: lost {id}: {lost:?}", daemon.name));
            daemon.held.remove(id);
        }
        Applied::Illegal(error) => world.violation(format!("run {id}: {error}")),
    }
    Ok(())
}

async fn append(
    world: &mut World,
    daemon: &mut Daemon,
    id: &RunId,
    epoch: u64,
    fact: Fact,
) -> Result<(), Stop> {
    let (ledger, now) = (daemon.ledger.clone(), world.now);
    let text = serde_json::to_string(&fact).unwrap_or_default();
    if world.is(Sabotage::LostEvent) && world.random.chance(100) {
        // Confirmed, and never made.
        let seq = ledger.events(id, 0, 10_000).await.map_err(Stop::Broken)?.len() as u64 + 1;
        world.journal.kept.insert((id.clone(), seq), text);
        return Ok(());
    }
    let work = async { ledger.append_fact(id, epoch, now, fact).await };
    match world.write("fact", work).await? {
        Appended::Kept { seq } => {
            if let Some(other) = world.journal.kept.insert((id.clone(), seq), text) {
                world.violation(format!("run {id}: event {seq} was given twice, first to {other}"));
            }
        }
        Appended::Counted => {}
        Appended::Lost(_) => {
            daemon.held.remove(id);
        }
    }
    Ok(())
}

/// The agent has gone on.
fn went_on(world: &mut World, sandbox: &str) {
    if let Some(agent) = world.engine.agent(sandbox) {
        agent.place += 1;
    }
}

async fn act(
    world: &mut World,
    daemon: &mut Daemon,
    run: &Run,
    epoch: u64,
    sandbox: &str,
) -> Result<(), Stop> {
    let id = &run.id;
    let next = world.engine.agent(sandbox).and_then(|a| Some((*a.script.get(a.place)?, a.place)));
    let Some((act, place)) = next else {
        let event = RunEvent::StopRequested { cause: StopCause::LinkLost };
        return apply(world, daemon, id, epoch, event).await;
    };
    match act {
        Act::Call(tokens) => {
            append(world, daemon, id, epoch, facts::call(tokens, 200, None)).await?;
        }
        Act::RateLimited => {
            append(world, daemon, id, epoch, facts::call(0, 429, Some(5_000))).await?;
            if let Some(agent) = world.engine.agent(sandbox) {
                agent.script.truncate(place + 1);
                agent.script.push(Act::End(1));
            }
        }
        Act::Say => {
            let text = format!("{} {place}", world.random.number());
            append(world, daemon, id, epoch, Fact::Note { text }).await?;
        }
        Act::Ask => {
            if !ask(world, daemon, run, epoch, place).await? {
                return Ok(());
            }
        }
        Act::Delegate => delegate(world, daemon, run, epoch, place).await?,
        Act::UseUp => {
            // The agent is past it, whatever the host makes of it.
            went_on(world, sandbox);
            let event = RunEvent::BudgetReached { budget: "tokens".into() };
            return apply(world, daemon, id, epoch, event).await;
        }
        Act::Die => {
            world.effect("sandbox dies", |w| w.engine.remove(sandbox))?;
            return Ok(());
        }
        Act::End(code) => {
            let ended = facts::lived(&run.spec, sandbox, code);
            let told = daemon.ledger.facts(id).await.map_err(Stop::Broken)?;
            if !told.iter().any(|(_, f)| matches!(f, Fact::AgentEnded { .. })) {
                for fact in ended {
                    append(world, daemon, id, epoch, fact).await?;
                }
            }
            return apply(world, daemon, id, epoch, RunEvent::AgentEnded).await;
        }
    }
    went_on(world, sandbox);
    Ok(())
}

/// An id that follows from a run and a place in its script, so that a repeated write makes the same.
fn of_place(id: &RunId, place: usize) -> [u8; 5] {
    let seed = id.as_str().bytes().fold(place as u64, |a, b| a.wrapping_mul(131) ^ u64::from(b));
    Random::new(seed).id()
}

/// True once the question is behind the agent.
async fn ask(
    world: &mut World,
    daemon: &mut Daemon,
    run: &Run,
    epoch: u64,
    place: usize,
) -> Result<bool, Stop> {
    let (ledger, now, id) = (daemon.ledger.clone(), world.now, &run.id);
    if run.spec.mode == cofferdam_run::spec::Mode::Unattended {
        return Ok(true);
    }
    let approval = ApprovalId::from_entropy(of_place(id, place));
    let subject = Subject::new("file_delete", serde_json::json!({ "path": place }), "delete it?");
    let known = match ledger.approval(&approval).await {
        Ok(found) => Some(found),
        Err(LedgerError::NotFound { .. }) => None,
        Err(error) => return Err(Stop::Broken(error)),
    };
    let Some(found) = known else {
        let new = NewApproval {
            id: approval,
            ask: format!("ask {place}"),
            subject,
            expires_at: now.plus_ms(90_000),
        };
        let asked = world.write("ask", async { ledger.ask(id, epoch, new, now).await }).await?;
        if let Asked::Lost(_) = asked {
            daemon.held.remove(id);
        }
        return Ok(false);
    };
    match found.state {
        ApprovalState::Pending => Ok(false),
        ApprovalState::Approved { .. } => {
            let early = world.is(Sabotage::DoubleEffect);
            if early {
                perform(world, &approval)?;
            }
            let digest = subject.digest;
            let work = async { ledger.consume(&approval, id, epoch, &digest, now).await };
            match world.write("consume", work).await? {
                Used::Granted(_) if early => Ok(true),
                Used::Granted(_) => {
                    // Not again when it fails: whether it was done nobody knows.
                    match perform(world, &approval) {
                        Ok(()) | Err(Stop::Failed) => Ok(true),
                        Err(stop) => Err(stop),
                    }
                }
                Used::Refused(_) => Ok(true),
                Used::Lost(_) => Ok(false),
            }
        }
        ApprovalState::Rejected { .. }
        | ApprovalState::Consumed { .. }
        | ApprovalState::Expired { .. }
        | ApprovalState::Withdrawn { .. } => Ok(true),
    }
}

fn perform(world: &mut World, approval: &ApprovalId) -> Result<(), Stop> {
    let approval = approval.clone();
    world.effect("delete the file", move |w| {
        *w.journal.effects.entry(approval).or_insert(0) += 1;
    })
}

async fn delegate(
    world: &mut World,
    daemon: &mut Daemon,
    run: &Run,
    epoch: u64,
    place: usize,
) -> Result<(), Stop> {
    let (ledger, now, id) = (daemon.ledger.clone(), world.now, &run.id);
    let mut spec = facts::spec(run.spec.mode, &format!("part {place} of {id}"));
    spec.budgets = Budgets { tokens: 50_000, model_calls: 50, ..Budgets::default() };
    let child = NewChild {
        id: TaskId::from_entropy(of_place(id, place)),
        title: "a part".into(),
        agent: None,
        spec,
        retry: Default::default(),
        turn: place as u64,
    };
    let limits = DelegationLimits::default();
    let work = async {
        match ledger.delegate(id, epoch, child, limits, now).await {
            // The answer to the first time was lost.
            Err(error) if known(&error) => Ok(None),
            other => other.map(Some),
        }
    };
    let delegated = world.write("delegate", work).await?;
    if let Some(Delegated::Queued { task, .. }) = delegated {
        world.note(format!("{id}: delegated {}", task.id));
    }
    Ok(())
}

async fn wind_up(
    world: &mut World,
    daemon: &mut Daemon,
    run: &Run,
    epoch: u64,
    ending: &Ending,
) -> Result<(), Stop> {
    let (ledger, now, id) = (daemon.ledger.clone(), world.now, &run.id);
    if !world.is(Sabotage::Orphan) {
        for sandbox in world.engine.of_run(id) {
            world.effect("remove", |w| w.engine.remove(&sandbox))?;
        }
        if !world.engine.of_run(id).is_empty() {
            return Ok(());
        }
    }
    let told = ledger.facts(id).await.map_err(Stop::Broken)?;
    if !told.iter().any(|(_, f)| matches!(f, Fact::Teardown { .. })) {
        append(world, daemon, id, epoch, facts::removed()).await?;
        let worked = matches!(ending, Ending::Stopped { cause: StopCause::Budget { .. } });
        if worked {
            world.note(format!("{id}: its budget ran out"));
        }
    }
    match world.write("settle", async { ledger.settle(id, epoch, now).await }).await? {
        Settlement::Done { run, .. } => {
            world.note(format!("{id}: settled as {}", run.state.name()));
            daemon.held.remove(id);
            seen_over(world, &run);
        }
        Settlement::Lost(_) => {
            daemon.held.remove(id);
        }
        Settlement::Illegal(error) => world.violation(format!("run {id}: {error}")),
    }
    Ok(())
}

/// Notes that a run was seen to be over. It stays what it was then.
pub(super) fn seen_over(world: &mut World, run: &Run) {
    let state = run.state.name();
    if let Some(before) = world.journal.over.insert(run.id.clone(), state)
        && before != state
    {
        world.violation(format!("run {} was {before} and is {state}", run.id));
    }
}

/// The mistake of a daemon that acts on a run which another one holds.
pub(super) async fn steal(world: &mut World, daemon: &mut Daemon) -> Result<(), Stop> {
    let filter = RunFilter { live_only: true, ..Default::default() };
    let live = daemon.ledger.runs(filter, Default::default()).await.map_err(Stop::Broken)?;
    for row in live.items {
        let id = row.run.id;
        let other_works = world.engine.sandboxes.values().any(|s| s.run == id && s.agent.is_some());
        if other_works && !daemon.held.contains_key(&id) {
            let sandbox = world.engine.create(&id, row.task, 1_000);
            world.engine.start(&sandbox);
            return start_agent(world, &id, &sandbox);
        }
    }
    Ok(())
}
