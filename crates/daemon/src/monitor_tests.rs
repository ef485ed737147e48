//! The watches beside a run, each by itself, with a real ledger.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cofferdam_ledger::{Ledger, NewRun, Store};
use cofferdam_run::fact::{Fact, StopCause};
use cofferdam_run::{RunId, TimestampMs};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{LEASE_TTL_MS, Monitor};
use crate::facts::Facts;
use crate::progress::Silent;
use crate::pulse::Pulse;
use crate::testing::{Hand, spec};

struct World {
    clock: Arc<Hand>,
    ledger: Arc<dyn Store>,
    id: RunId,
    stops: mpsc::Receiver<StopCause>,
    cancel: CancellationToken,
    pulse: Pulse,
    facts: Facts,
    _dir: tempfile::TempDir,
}

/// A monitored run.
async fn world(wall_clock: Duration, silence: Option<Duration>) -> World {
    let dir = tempfile::tempdir().unwrap();
    let ledger: Arc<dyn Store> = Arc::new(Ledger::open(dir.path()).await.unwrap());
    let clock = Arc::new(Hand::default());
    clock.now_ms.store(1_000_000, Ordering::SeqCst);
    let id = RunId::from_entropy([9; 5]);
    let at = TimestampMs(1_000_000);
    let new = NewRun { id: id.clone(), spec: spec(), created_at: at, title: "t".into() };
    ledger.create_run(new).await.unwrap();
    let lease = ledger.claim(&id, "test", at, LEASE_TTL_MS).await.unwrap().unwrap();
    let (sender, stops) = mpsc::channel(16);
    let facts = Facts::start(
        Arc::clone(&ledger),
        id.clone(),
        lease.epoch,
        Arc::<Hand>::clone(&clock),
        Arc::new(Silent),
        sender.clone(),
    );
    let (cancel, pulse) = (CancellationToken::new(), Pulse::new());
    let monitor = Monitor {
        ledger: Arc::clone(&ledger),
        clock: Arc::<Hand>::clone(&clock),
        run: id.clone(),
        epoch: lease.epoch,
        deadline: Instant::now() + wall_clock,
        silence,
        pulse: pulse.clone(),
        facts: facts.clone(),
        stops: sender,
        cancel: cancel.clone(),
    };
    tokio::spawn(monitor.watch());
    // Each watch has looked once: what changes from here on is seen.
    tokio::task::yield_now().await;
    World { clock, ledger, id, stops, cancel, pulse, facts, _dir: dir }
}

fn budget(name: &str) -> StopCause {
    StopCause::Budget { budget: name.to_owned() }
}

const LONG: Duration = Duration::from_secs(3_600);

/// R73: a slept machine costs the run nothing, its lease is renewed at once, and the record says so.
#[tokio::test]
async fn sleep_of_the_machine_is_no_silence_and_is_said() {
    let mut world = world(LONG, Some(LONG)).await;
    world.pulse.start();
    // Eight hours by the calendar, none by the clock that waits.
    world.clock.now_ms.fetch_add(8 * 3_600_000, Ordering::SeqCst);
    world.clock.slept_ms.fetch_add(8 * 3_600_000, Ordering::SeqCst);
    let now = TimestampMs(world.clock.now_ms.load(Ordering::SeqCst));
    let told = async {
        loop {
            let facts = world.ledger.facts(&world.id).await.unwrap();
            let lease = world.ledger.run(&world.id).await.unwrap().state.lease().cloned().unwrap();
            let text = facts.iter().find_map(|(_, fact)| match fact {
                Fact::Note { text } => Some(text.clone()),
                _ => None,
            });
            if let Some(text) = text
                && !lease.is_expired(now)
            {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let text = tokio::time::timeout(Duration::from_secs(30), told).await.unwrap();
    assert!(text.contains("slept for 28800 s"), "{text}");
    assert!(world.stops.try_recv().is_err(), "nothing stops the run");
    assert!(world.facts.flush().await.is_none());
}

#[tokio::test]
async fn the_wall_clock_and_silence_stop_a_run_each_by_its_name() {
    let mut first = world(Duration::from_millis(50), None).await;
    assert_eq!(first.stops.recv().await, Some(budget("wall_clock")));
    let mut second = world(LONG, Some(Duration::from_millis(200))).await;
    second.pulse.start();
    assert_eq!(second.stops.recv().await, Some(budget("silence")));
}

/// R16: the stop does not wait for the ledger, which another process has locked.
#[tokio::test]
async fn a_locked_ledger_holds_up_neither_deadline_nor_cancel() {
    let mut world = world(Duration::from_millis(300), None).await;
    let path = world._dir.path().join("ledger.db");
    let lock = HeldLock::take(&path);
    world.cancel.cancel();
    let stops = async { [world.stops.recv().await, world.stops.recv().await] };
    let got = tokio::time::timeout(Duration::from_secs(4), stops).await.expect("both stops");
    assert!(got.contains(&Some(StopCause::Cancelled)), "{got:?}");
    assert!(got.contains(&Some(budget("wall_clock"))), "{got:?}");
    drop(lock);
}

/// Another process that holds the write lock until it is dropped.
struct HeldLock(std::process::Child);

impl HeldLock {
    #[expect(clippy::disallowed_methods, reason = "the lock has to be another process's")]
    fn take(path: &std::path::Path) -> Self {
        use std::io::{BufRead as _, BufReader};
        use std::process::{Command, Stdio};
        let hold = "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
                    c.execute('BEGIN IMMEDIATE')\nprint('held', flush=True)\nsys.stdin.read()";
        let mut child = Command::new("python3")
            .args(["-c", hold])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Self(child)
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
