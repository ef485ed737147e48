//! The host's end of the guest protocol, from `Hello` to `Done`.
//!
//! Everything that comes from the guest is a claim: it is bounded, recorded as such, and believed
//! only where the host checks it itself. Messages out of order end the session.

mod bundle;
mod messages;

use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_link::frames::{FrameReader, FrameWriter};
use cofferdam_link::{Incoming, Link, LinkStream};
use cofferdam_run::fact::{Fact, StopCause};
use cofferdam_run::posture::{LayerReport, Probe};
use cofferdam_run::{ObjectId, RunId};
use cofferdam_wire::{AgentEnd, Down, Manifest, StartSpec, StreamOpen, Up};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::canary::Needles;
use crate::doors::{self, Doors};
use crate::facts::Facts;
use crate::progress::{Progress, Watcher};
use crate::pulse::Pulse;
use crate::text;
use crate::wall::Wall;

/// From the start of the sandbox to the guest's first word.
pub(crate) const HELLO_LIMIT: Duration = Duration::from_secs(20);
/// Carrying the workspace in, from the first byte to the guest's confirmation.
pub(crate) const IMPORT_LIMIT: Duration = Duration::from_secs(600);
/// From the agent's end to the last byte of the result.
pub(crate) const COLLECT_LIMIT: Duration = Duration::from_secs(600);
/// From a stop to the last byte of the result: what is not out by then is saved from outside, after
/// everything in the sandbox was killed.
pub(crate) const HANDOVER_LIMIT: Duration = Duration::from_secs(6);
/// What the session itself gets to notice that. Past it the session is dropped wherever it waits.
pub(crate) const HANDOVER_SLACK: Duration = Duration::from_millis(500);

/// What the session needs besides the link.
pub(crate) struct Plan<'a> {
    pub(crate) run: &'a RunId,
    pub(crate) start: StartSpec,
    pub(crate) base: ObjectId,
    pub(crate) bundle_in: &'a Path,
    pub(crate) bundle_in_bytes: u64,
    pub(crate) bundle_out: PathBuf,
    pub(crate) output_bytes: u64,
    pub(crate) needles: &'a Needles,
    pub(crate) facts: Facts,
    pub(crate) watcher: &'a dyn Watcher,
    pub(crate) posture: &'a dyn PostureCheck,
    /// Signs of life of the agent.
    pub(crate) pulse: Pulse,
    /// The wall test, until it is over. The agent does not start before.
    pub(crate) wall: Option<Wall>,
}

/// Judges the posture: the layers as evaluated, and the first required one that does not hold.
pub(crate) trait PostureCheck: Send + Sync {
    /// `Ok` when the agent may start.
    fn check(&self, probe: &Probe) -> (Vec<LayerReport>, Result<(), StopCause>);
}

/// Told when the run passes from one stage to the next.
#[async_trait::async_trait]
pub(crate) trait Stages: Send {
    /// The guest's posture holds.
    async fn guest_ready(&mut self);
    /// The agent runs.
    async fn agent_started(&mut self);
    /// The built-in agent has its plan.
    async fn plan_made(&mut self);
    /// The agent ended.
    async fn agent_ended(&mut self);
    /// The host stops the run.
    async fn stopping(&mut self, cause: &StopCause);
}

/// What the session brought.
#[derive(Debug, Default)]
pub(crate) struct End {
    pub(crate) agent: Option<AgentEnd>,
    pub(crate) manifest: Option<Manifest>,
    /// The bundle is on disk, whole.
    pub(crate) bundle: bool,
    pub(crate) bundle_error: Option<String>,
    pub(crate) guest_error: Option<String>,
    pub(crate) stop: Option<StopCause>,
    pub(crate) agent_started: bool,
    pub(crate) leaks: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Hello,
    Importing,
    Starting,
    Working,
    Collecting,
    Finishing,
    Over,
}

type Control = (FrameReader<Up, ReadHalf<LinkStream>>, FrameWriter<Down, WriteHalf<LinkStream>>);

struct Session<'a> {
    plan: Plan<'a>,
    phase: Phase,
    until: Instant,
    down: FrameWriter<Down, WriteHalf<LinkStream>>,
    bundles: mpsc::Receiver<LinkStream>,
    /// Lies with the caller: what was learned so far outlives a session that is dropped.
    end: &'a mut End,
    output_left: u64,
    planned: bool,
    stdout_scan: crate::canary::Scan<'a>,
    stderr_scan: crate::canary::Scan<'a>,
    stops: &'a mut mpsc::Receiver<StopCause>,
}

/// Runs the protocol. Returns when the guest is done, the link is gone, or a bound was reached; the
/// caller then closes the link.
pub(crate) async fn run<'a>(
    link: &Link,
    mut incoming: Incoming,
    doors: &Doors,
    plan: Plan<'a>,
    end: &'a mut End,
    stages: &mut dyn Stages,
    stops: &'a mut mpsc::Receiver<StopCause>,
) {
    let posture = plan.posture;
    let until = Instant::now() + HELLO_LIMIT;
    let (mut up, down) = match tokio::time::timeout_at(until, control(&mut incoming)).await {
        Ok(Some(control)) => control,
        Ok(None) => return stopped(&plan, StopCause::LinkLost, end, stages).await,
        Err(_) => return stopped(&plan, StopCause::NoHello, end, stages).await,
    };
    let (bundle_sender, bundles) = mpsc::channel(1);
    let serving =
        tokio::spawn(doors::serve(incoming, doors.clone(), bundle_sender, plan.pulse.clone()));
    let output_left = plan.output_bytes;
    let mut session = Session {
        stdout_scan: plan.needles.scan(),
        stderr_scan: plan.needles.scan(),
        plan,
        phase: Phase::Hello,
        until,
        down,
        bundles,
        end,
        output_left,
        planned: false,
        stops,
    };
    while session.phase != Phase::Over {
        tokio::select! {
            biased;
            Some(cause) = session.stops.recv(), if session.end.stop.is_none() => {
                doors.cut();
                session.stop(cause, stages).await;
            }
            () = tokio::time::sleep_until(session.until) => session.timed_out(stages).await,
            message = up.next() => match message {
                Ok(Some(message)) => session.on(message, link, posture, stages).await,
                Ok(None) | Err(cofferdam_link::frames::FrameError::Io(_)) => session.link_lost(stages).await,
                Err(error) => session.protocol(&error.to_string(), stages).await,
            },
        }
    }
    doors.cut();
    serving.abort();
}

async fn control(incoming: &mut Incoming) -> Option<Control> {
    let (header, stream) = incoming.next().await?;
    match doors::opening(&header) {
        Some(StreamOpen::Control) => {
            let (read, write) = tokio::io::split(stream);
            Some((FrameReader::new(read), FrameWriter::new(write)))
        }
        _ => None,
    }
}

async fn stopped(plan: &Plan<'_>, cause: StopCause, end: &mut End, stages: &mut dyn Stages) {
    plan.facts.host(Fact::Stopped { cause: cause.clone() }).await;
    plan.watcher.tell(Progress::Stopping { cause: cause.clone() });
    stages.stopping(&cause).await;
    end.stop = Some(cause);
}

impl Session<'_> {
    fn enter(&mut self, phase: Phase, limit: Duration) {
        self.phase = phase;
        // After a stop there is one bound for all that is left.
        if self.end.stop.is_none() {
            self.until = Instant::now() + limit;
        }
    }

    async fn record_stop(&mut self, cause: StopCause, stages: &mut dyn Stages) {
        if self.end.stop.is_some() {
            return;
        }
        self.plan.facts.host(Fact::Stopped { cause: cause.clone() }).await;
        self.plan.watcher.tell(Progress::Stopping { cause: cause.clone() });
        stages.stopping(&cause).await;
        self.end.stop = Some(cause);
    }

    /// A stop from outside: the guest ends the agent and brings out what there is.
    async fn stop(&mut self, cause: StopCause, stages: &mut dyn Stages) {
        let reason = format!("{cause:?}");
        self.record_stop(cause, stages).await;
        self.until = Instant::now() + HANDOVER_LIMIT;
        if matches!(self.phase, Phase::Hello | Phase::Importing) {
            // Nothing has been made yet: there is nothing to collect.
            self.phase = Phase::Over;
            return;
        }
        if tokio::time::timeout(Duration::from_secs(2), self.down.send(&Down::Cancel { reason }))
            .await
            .is_err()
        {
            self.phase = Phase::Over;
        }
    }

    async fn timed_out(&mut self, stages: &mut dyn Stages) {
        let cause = match self.phase {
            Phase::Hello => StopCause::NoHello,
            phase => StopCause::Protocol {
                detail: format!("the guest did not finish in time ({phase:?})"),
            },
        };
        self.record_stop(cause, stages).await;
        self.phase = Phase::Over;
    }

    async fn link_lost(&mut self, stages: &mut dyn Stages) {
        if self.phase != Phase::Over {
            self.record_stop(StopCause::LinkLost, stages).await;
            self.phase = Phase::Over;
        }
    }

    async fn protocol(&mut self, detail: &str, stages: &mut dyn Stages) {
        let detail = text::line(detail, 500);
        self.record_stop(StopCause::Protocol { detail }, stages).await;
        self.phase = Phase::Over;
    }
}
