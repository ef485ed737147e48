//! Durable transitions of the ledger, beside bare SQLite that commits one row at a time.
//!
//! Both write to the same disk with a write-ahead log and `synchronous=FULL`, so that each
//! acknowledged write has been flushed. With many runs at once the ledger shares flushes.

use std::path::Path;

use anyhow::Context as _;
use cofferdam_ledger::{Applied, Ledger, NewRun, Store as _};
use cofferdam_run::spec::{AgentSpec, Mode, Resources, RunSpec};
use cofferdam_run::{Budgets, EngineKind, RunEvent, RunId, TimestampMs};
use tokio::task::JoinSet;

use crate::outside::{self, Watch};
use crate::report::{Table, Unit};
use crate::world::{World, run_id};

/// Runs at once, and transitions of all together in one sample.
const LOADS: [(u32, u32); 3] = [(1, 400), (16, 1600), (64, 3200)];
const BARE_INSERTS: u32 = 400;
const ROUNDS: usize = 5;
/// About what one stored event takes.
const BARE_ROW: &str = r#"{"type":"budget_reached","budget":"tokens","at":1,"epoch":1,"run":"k7","more":"and some of what else an event holds, to be fair"}"#;

pub(crate) async fn measure(world: &World) -> anyhow::Result<Table> {
    // What others wrote before would be flushed with the first transaction.
    outside::timed(&mut outside::command("sync"))?;
    let dir = world.directory()?;
    let bare = bare(&dir.path().join("bare.sqlite"))?;
    let ledger = Ledger::open(dir.path().join("ledger")).await?;
    let mut table = Table::new("ledger", "durable transitions, each acknowledged after its flush");
    let peer = table.row("bare SQLite, one insert per transaction", Unit::PerS);
    let mut loads = Vec::new();
    for (runs, transitions) in LOADS {
        let mut ready = Vec::new();
        for _ in 0..runs {
            ready.push(executing(&ledger).await?);
        }
        let row = table.beside(peer, format!("ledger, runs at once: {runs}"), Unit::PerS);
        loads.push((row, transitions, ready));
    }
    // Round zero does not count: afterwards both logs have their full length and are written over.
    for round in 0..=ROUNDS {
        let rate = inserts(&bare)?;
        if round > 0 {
            table.add(peer, rate);
        }
        for (row, transitions, ready) in &loads {
            let rate = transitions_per_second(&ledger, ready, *transitions).await?;
            if round > 0 {
                table.add(*row, rate);
            }
        }
    }
    Ok(table)
}

fn bare(file: &Path) -> anyhow::Result<rusqlite::Connection> {
    let bare = rusqlite::Connection::open(file)?;
    bare.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
         CREATE TABLE event (id INTEGER PRIMARY KEY, run TEXT NOT NULL, body TEXT NOT NULL);",
    )?;
    Ok(bare)
}

/// Rows per second.
fn inserts(bare: &rusqlite::Connection) -> anyhow::Result<f64> {
    let mut insert = bare.prepare("INSERT INTO event (run, body) VALUES (?1, ?2)")?;
    let watch = Watch::start();
    for _ in 0..BARE_INSERTS {
        insert.execute(("k7", BARE_ROW))?;
    }
    Ok(f64::from(BARE_INSERTS) / watch.seconds())
}

/// Each run pauses at its budget and is resumed, over and over. An even number each, so that all
/// execute again afterwards.
async fn transitions_per_second(
    ledger: &Ledger,
    ready: &[(RunId, u64)],
    transitions: u32,
) -> anyhow::Result<f64> {
    let pairs = transitions / u32::try_from(ready.len())?.max(1) / 2;
    let watch = Watch::start();
    let mut work = JoinSet::new();
    for (id, epoch) in ready.iter().cloned() {
        let ledger = ledger.clone();
        work.spawn(async move {
            for _ in 0..pairs {
                done(&ledger, &id, epoch, RunEvent::BudgetReached { budget: "tokens".into() })
                    .await?;
                done(&ledger, &id, epoch, RunEvent::Resumed { by: "bench".into() }).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = work.join_next().await {
        ended??;
    }
    let count = pairs * 2 * u32::try_from(ready.len())?;
    Ok(f64::from(count) / watch.seconds())
}

async fn done(ledger: &Ledger, id: &RunId, epoch: u64, event: RunEvent) -> anyhow::Result<()> {
    match ledger.apply(id, Some(epoch), event, TimestampMs(1)).await? {
        Applied::Done { .. } => Ok(()),
        other => anyhow::bail!("not applied: {other:?}"),
    }
}

/// A run whose agent works.
async fn executing(ledger: &Ledger) -> anyhow::Result<(RunId, u64)> {
    let id = run_id()?;
    let spec = RunSpec {
        task: "bench".into(),
        mode: Mode::Supervised,
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
    };
    let title = "bench".to_owned();
    ledger.create_run(NewRun { id: id.clone(), spec, created_at: TimestampMs(0), title }).await?;
    let lease = ledger
        .claim(&id, "bench", TimestampMs(0), 1_000_000)
        .await?
        .context("a fresh run was not claimed")?;
    for event in [
        RunEvent::SandboxIdentified { sandbox: "box".into() },
        RunEvent::GuestReady,
        RunEvent::AgentStarted,
    ] {
        done(ledger, &id, lease.epoch, event).await?;
    }
    Ok((id, lease.epoch))
}
