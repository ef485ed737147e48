//! The way of a run's facts into the ledger: one queue, one writer, in order.
//!
//! The broker and the session only put things into the queue and never wait for the disk. What a
//! guest can cause is bounded here too: past the bounds it is counted, and the count is recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cofferdam_broker::BrokerLog;
use cofferdam_ledger::{Appended, Applied, Item, LedgerError, Store};
use cofferdam_run::fact::{Fact, StopCause};
use cofferdam_run::{RunEvent, RunId, TimestampMs};
use cofferdam_wire::OutputStream;
use tokio::sync::{mpsc, oneshot};

use crate::clock::Clock;
use crate::progress::{Progress, Watcher};

/// Facts waiting for the disk; past it, facts that a guest can cause are counted and not kept.
pub(crate) const MAX_QUEUED_FACTS: usize = 4096;

/// Messages that are written together; the others wait.
const MAX_BATCH: usize = 256;

enum Message {
    Fact(TimestampMs, Box<Fact>),
    Output(TimestampMs, OutputStream, String),
    Move(TimestampMs, Box<RunEvent>),
    Flush(oneshot::Sender<Option<String>>),
}

/// Puts facts into the queue. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Facts {
    queue: mpsc::Sender<Message>,
    clock: Arc<dyn Clock>,
    watcher: Arc<dyn Watcher>,
    stops: mpsc::Sender<StopCause>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    dropped: [AtomicU64; 4],
}

const KINDS: [&str; 4] = ["egress", "model_call", "agent_claim", "prompt_unanswered"];

impl Facts {
    /// Starts the writer.
    pub(crate) fn start(
        ledger: Arc<dyn Store>,
        run: RunId,
        epoch: u64,
        clock: Arc<dyn Clock>,
        watcher: Arc<dyn Watcher>,
        stops: mpsc::Sender<StopCause>,
    ) -> Self {
        let (queue, receiver) = mpsc::channel(MAX_QUEUED_FACTS);
        let writer = Writer { ledger, run, epoch, stops: stops.clone(), failure: None };
        // Ends when the last clone of the queue is gone; the supervisor flushes before it drops its own.
        tokio::spawn(writer.run(receiver));
        Self { queue, clock, watcher, stops, counts: Arc::default() }
    }

    /// Records what the host itself saw. Waits for room in the queue.
    pub(crate) async fn host(&self, fact: Fact) {
        // The writer lives as long as any queue end; a closed queue means the runtime is going down.
        let _ = self.queue.send(Message::Fact(self.clock.now(), Box::new(fact))).await;
    }

    /// Moves the run on, after everything that is queued already. Waits for room in the queue, never
    /// for the disk: a locked ledger must not hold up a stop.
    pub(crate) async fn transition(&self, event: RunEvent) {
        let _ = self.queue.send(Message::Move(self.clock.now(), Box::new(event))).await;
    }

    /// Relays a piece of output.
    pub(crate) async fn output(&self, stream: OutputStream, text: String) {
        let _ = self.queue.send(Message::Output(self.clock.now(), stream, text)).await;
    }

    /// Waits until everything so far is durable. Gives what went wrong in writing, if anything did.
    pub(crate) async fn flush(&self) -> Option<String> {
        for (kind, dropped) in KINDS.iter().zip(&self.counts.dropped) {
            let count = dropped.swap(0, Ordering::SeqCst);
            if count > 0 {
                self.host(Fact::Truncated { kind: (*kind).to_owned(), count }).await;
            }
        }
        let (reply, answer) = oneshot::channel();
        if self.queue.send(Message::Flush(reply)).await.is_err() {
            return Some("the fact writer is gone".to_owned());
        }
        answer.await.unwrap_or_else(|_| Some("the fact writer is gone".to_owned()))
    }

    /// Records something that a guest can cause as often as it likes. The ledger keeps a bounded
    /// number of each kind and counts the rest.
    pub(crate) fn guest(&self, fact: Fact) {
        let slot = match &fact {
            Fact::Egress { .. } => 0,
            Fact::ModelCall { .. } => 1,
            Fact::PromptUnanswered { .. } => 3,
            _ => 2,
        };
        if self.queue.try_send(Message::Fact(self.clock.now(), Box::new(fact))).is_err() {
            self.counts.dropped[slot].fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl BrokerLog for Facts {
    fn fact(&self, fact: Fact) {
        if let Fact::Egress { target, admitted: false, reason, .. } = &fact {
            self.watcher.tell(Progress::Refused { target: target.clone(), reason: reason.clone() });
        }
        self.guest(fact);
    }

    fn exhausted(&self, budget: &'static str) {
        // A full queue means that a stop is on its way already.
        let _ = self.stops.try_send(StopCause::Budget { budget: budget.to_owned() });
    }
}

struct Writer {
    ledger: Arc<dyn Store>,
    run: RunId,
    epoch: u64,
    stops: mpsc::Sender<StopCause>,
    failure: Option<String>,
}

impl Writer {
    /// Writes what is waiting together: one flush to the disk for many.
    async fn run(mut self, mut queue: mpsc::Receiver<Message>) {
        let mut waiting = Vec::new();
        while queue.recv_many(&mut waiting, MAX_BATCH).await > 0 {
            let mut items = Vec::new();
            for message in waiting.drain(..) {
                match message {
                    Message::Fact(at, fact) => items.push((at, Item::Fact(fact))),
                    Message::Output(at, stream, text) => {
                        let stream = match stream {
                            OutputStream::Stdout => cofferdam_ledger::OutputStream::Stdout,
                            OutputStream::Stderr => cofferdam_ledger::OutputStream::Stderr,
                        };
                        items.push((at, Item::Output { stream, bytes: text.into_bytes() }));
                    }
                    Message::Move(at, event) => {
                        self.write(std::mem::take(&mut items)).await;
                        self.step(at, *event).await;
                    }
                    Message::Flush(reply) => {
                        self.write(std::mem::take(&mut items)).await;
                        // Nobody waiting any more is no fault.
                        let _ = reply.send(self.failure.clone());
                    }
                }
            }
            self.write(items).await;
        }
    }

    /// What cannot be moved any more (a terminal run, a lost lease) is told by the ledger at settling;
    /// until then the facts go on.
    async fn step(&self, at: TimestampMs, event: RunEvent) {
        let name = event.name();
        match self.ledger.apply(&self.run, Some(self.epoch), event, at).await {
            Ok(Applied::Done { .. }) => {}
            Ok(other) => {
                tracing::warn!(run = %self.run, event = name, result = ?other, "transition not made")
            }
            Err(error) => {
                tracing::error!(run = %self.run, event = name, error = %error, "transition not stored")
            }
        }
    }

    async fn write(&mut self, items: Vec<(TimestampMs, Item)>) {
        if items.is_empty() {
            return;
        }
        let refused = match self.ledger.append_batch(&self.run, self.epoch, items).await {
            Ok(answers) => answers.into_iter().find_map(refusal),
            Err(error) => Some(format!("{}: {error}", error.code())),
        };
        if let Some(detail) = refused
            && self.failure.is_none()
        {
            let detail = format!("a fact could not be stored: {detail}");
            tracing::error!(run = %self.run, detail, "fact not stored");
            // An unrecorded run must not go on.
            let _ = self.stops.try_send(StopCause::HostError { detail: detail.clone() });
            self.failure = Some(detail);
        }
    }
}

fn refusal(answer: Result<Appended, LedgerError>) -> Option<String> {
    match answer {
        Ok(Appended::Kept { .. } | Appended::Counted) => None,
        Ok(Appended::Lost(lost)) => Some(format!("the run was lost to another process: {lost:?}")),
        Err(error) => Some(format!("{}: {error}", error.code())),
    }
}
