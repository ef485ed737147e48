//! The ledger when it is full: reconciliation of many lost runs, queries of one run among a million
//! events, claims from a long queue.
//!
//! There is no peer that does the same; the figures stand by themselves.

use std::sync::Arc;

use anyhow::Context as _;
use cofferdam_ledger::store::stream::{EventFilter, Stream as _};
use cofferdam_ledger::store::work::{ClaimLimits, NewTask, Work as _};
use cofferdam_ledger::{Item, Ledger, NewRun, Store as _};
use cofferdam_run::fact::Fact;
use cofferdam_run::spec::{AgentSpec, Mode, Resources, RunSpec};
use cofferdam_run::{Actor, Budgets, EngineKind, RunId, TaskId, TimestampMs};
use tokio::task::JoinSet;

use crate::outside::Watch;
use crate::report::{Table, Unit};
use crate::world::World;

const RUNS: u32 = 10_000;
/// Runs that share the million events.
const TALKERS: u32 = 100;
const EVENTS: u32 = 1_000_000;
const ROUNDS: u32 = 20;
const TTL_MS: u64 = 1_000;

fn id(n: u32) -> RunId {
    let [a, b, c, d] = n.to_be_bytes();
    RunId::from_entropy([a, b, c, d, 1])
}

fn spec(n: u32) -> RunSpec {
    RunSpec {
        task: format!("bench {n}"),
        mode: Mode::Unattended,
        agent: AgentSpec::Command { argv: vec!["true".into()] },
        model: None,
        engine: EngineKind::Native,
        resources: Resources::default(),
        budgets: Budgets::default(),
        egress_allow: vec![],
        egress_deny: vec![],
        checkout: "/".into(),
        accept_degraded: vec![],
        credentials: vec![],
        env_names: vec![],
        gateway_opened: vec![],
        shell: Default::default(),
        services: vec![],
        egress_test: false,
    }
}

pub(crate) async fn measure(world: &World) -> anyhow::Result<Table> {
    let dir = world.directory()?;
    let ledger = Arc::new(Ledger::open(dir.path()).await?);
    let mut table = Table::new("ledger-scale", "a full ledger on this disk");

    claimed(&ledger).await?;
    let row = table.row(format!("{RUNS} lost runs found and loaded at the start"), Unit::Ms);
    for _ in 0..ROUNDS {
        let watch = Watch::start();
        let lost = ledger.expired(TimestampMs(10 * TTL_MS)).await?;
        table.add(row, watch.ms());
        anyhow::ensure!(lost.len() == RUNS as usize, "{} lost runs", lost.len());
    }

    talk(&ledger).await?;
    let page = table.row(format!("100 events of one run among {EVENTS}"), Unit::Ms);
    let tail = table.row(format!("the newest of one run after a cursor, among {EVENTS}"), Unit::Ms);
    let all = table.row(format!("100 events of all runs after a cursor, among {EVENTS}"), Unit::Ms);
    for n in 0..ROUNDS {
        let run = id(n % TALKERS);
        let watch = Watch::start();
        let events = ledger.events(&run, 5_000, 100).await?;
        table.add(page, watch.ms());
        anyhow::ensure!(events.len() == 100, "{} events", events.len());
        let newest = ledger.last_event().await?;
        let filter = EventFilter { run: Some(run), ..Default::default() };
        let watch = Watch::start();
        ledger.events_after(newest - 1_000, filter, 100).await?;
        table.add(tail, watch.ms());
        let watch = Watch::start();
        let events = ledger.events_after(u64::from(n) * 40_000, Default::default(), 100).await?;
        table.add(all, watch.ms());
        anyhow::ensure!(events.events.len() == 100, "{} events", events.events.len());
    }

    queue(&ledger).await?;
    let row = table.row(format!("a claim from a queue of {RUNS}"), Unit::Ms);
    let limits = ClaimLimits { daemon: 1_000_000, project: 1_000_000, ..Default::default() };
    for _ in 0..ROUNDS {
        let watch = Watch::start();
        let claimed = ledger.claim_next("bench", limits, TimestampMs(1), TTL_MS).await?;
        table.add(row, watch.ms());
        claimed.context("the queue is empty")?;
    }
    Ok(table)
}

/// As many runs as there are, each under a lease that runs out.
async fn claimed(ledger: &Arc<Ledger>) -> anyhow::Result<()> {
    each(RUNS, |n| {
        let ledger = Arc::clone(ledger);
        async move {
            let new = NewRun {
                id: id(n),
                spec: spec(n),
                created_at: TimestampMs(0),
                title: "bench".into(),
            };
            ledger.create_run(new).await?;
            ledger.claim(&id(n), "bench", TimestampMs(0), TTL_MS).await?.context("not claimed")?;
            anyhow::Ok(())
        }
    })
    .await
}

async fn talk(ledger: &Arc<Ledger>) -> anyhow::Result<()> {
    let batches = EVENTS / TALKERS / 1_000;
    each(TALKERS, |n| {
        let ledger = Arc::clone(ledger);
        async move {
            for batch in 0..batches {
                let items = (0..1_000)
                    .map(|line| {
                        let bytes = format!("line {line} of batch {batch} of run {n}\n").into();
                        let stream = cofferdam_ledger::OutputStream::Stdout;
                        (TimestampMs(1), Item::Output { stream, bytes })
                    })
                    .collect();
                for answer in ledger.append_batch(&id(n), 1, items).await? {
                    let _ = answer?;
                }
            }
            let fact = Fact::Note { text: "the end".into() };
            let _ = ledger.append_fact(&id(n), 1, TimestampMs(2), fact).await?;
            anyhow::Ok(())
        }
    })
    .await
}

async fn queue(ledger: &Arc<Ledger>) -> anyhow::Result<()> {
    each(RUNS, |n| {
        let ledger = Arc::clone(ledger);
        async move {
            let [a, b, c, d] = n.to_be_bytes();
            let new = NewTask {
                id: TaskId::from_entropy([a, b, c, d, 2]),
                title: "bench".into(),
                origin: Actor::Host,
                project: None,
                thread: None,
                agent: None,
                priority: 0,
                spec: spec(n),
                retry: Default::default(),
                created_at: TimestampMs(0),
            };
            let _ = ledger.create_task(new, None).await?;
            anyhow::Ok(())
        }
    })
    .await
}

/// Many at once, so that they share flushes.
async fn each<F: Future<Output = anyhow::Result<()>> + Send + 'static>(
    count: u32,
    work: impl Fn(u32) -> F,
) -> anyhow::Result<()> {
    let mut running = JoinSet::new();
    for n in 0..count {
        if running.len() >= 256
            && let Some(ended) = running.join_next().await
        {
            ended??;
        }
        running.spawn(work(n));
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}
