//! Measures durable transitions per second: `cargo run --release -p cofferdam-ledger --example
//! transitions -- DIRECTORY`. The directory should be on the disk that is meant.
//!
//! It asserts nothing about time.

use std::io::Write as _;
use std::path::PathBuf;

use cofferdam_ledger::{Applied, Ledger, NewRun, Store};
use cofferdam_run::spec::{AgentSpec, Mode, Resources, RunSpec};
use cofferdam_run::{Budgets, EngineKind, RunEvent, RunId, TimestampMs};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const TRANSITIONS: u32 = 4_000;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let dir = PathBuf::from(std::env::args().nth(1).ok_or("give a directory")?);
    let ledger = Ledger::open(dir).await?;
    for (round, runs) in [1u32, 4, 16, 64, 256].into_iter().enumerate() {
        let seconds = measure(&ledger, u8::try_from(round)?, runs).await?;
        let rate = f64::from(TRANSITIONS) / seconds;
        writeln!(std::io::stdout(), "{runs:>4} runs at once: {rate:>8.0} durable transitions/s")?;
    }
    Ok(())
}

/// Each run pauses at its budget and is resumed, over and over.
async fn measure(ledger: &Ledger, round: u8, runs: u32) -> Result<f64, Failure> {
    let mut ready = Vec::new();
    for n in 0..runs {
        ready.push(executing(ledger, round, n).await?);
    }
    #[expect(clippy::disallowed_methods, reason = "measuring is what this is for")]
    let started = std::time::Instant::now();
    let mut tasks = Vec::new();
    for (id, epoch) in ready {
        let ledger = ledger.clone();
        tasks.push(tokio::spawn(async move {
            for n in 0..TRANSITIONS / runs {
                let event = if n % 2 == 0 {
                    RunEvent::BudgetReached { budget: "tokens".into() }
                } else {
                    RunEvent::Resumed { by: "bench".into() }
                };
                done(&ledger, &id, epoch, event).await?;
            }
            Ok::<_, Failure>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(started.elapsed().as_secs_f64())
}

async fn done(ledger: &Ledger, id: &RunId, epoch: u64, event: RunEvent) -> Result<(), Failure> {
    match ledger.apply(id, Some(epoch), event, TimestampMs(1)).await? {
        Applied::Done { .. } => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

async fn executing(ledger: &Ledger, round: u8, n: u32) -> Result<(RunId, u64), Failure> {
    let [_, _, high, low] = n.to_be_bytes();
    let entropy = std::process::id().to_be_bytes();
    let id = RunId::from_entropy([entropy[2], entropy[3], round, high, low]);
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
    };
    let title = "bench".to_owned();
    ledger.create_run(NewRun { id: id.clone(), spec, created_at: TimestampMs(0), title }).await?;
    let lease =
        ledger.claim(&id, "bench", TimestampMs(0), 1_000_000).await?.ok_or("not claimed")?;
    for event in [
        RunEvent::SandboxIdentified { sandbox: "box".into() },
        RunEvent::GuestReady,
        RunEvent::AgentStarted,
    ] {
        done(ledger, &id, lease.epoch, event).await?;
    }
    Ok((id, lease.epoch))
}
