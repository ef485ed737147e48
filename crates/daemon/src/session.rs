//! The host's end of the guest protocol, from `Hello` to `Done`.
//!
//! Everything that comes from the guest is a claim: it is bounded, recorded as such, and believed
//! only where the host checks it itself. Messages out of order end the session.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_link::frames::{FrameReader, FrameWriter};
use cofferdam_link::{Incoming, Link, LinkStream};
use cofferdam_run::fact::{Fact, StopCause};
use cofferdam_run::posture::{LayerReport, Probe};
use cofferdam_run::{ObjectId, RunId};
use cofferdam_wire::{
    AgentEnd, Down, Manifest, OutputStream, PROTOCOL_VERSION, StartSpec, StreamOpen, Up,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::canary::Needles;
use crate::doors::{self, Doors};
use crate::facts::Facts;
use crate::progress::{Progress, Watcher};
use crate::text;

/// From the start of the sandbox to the guest's first word.
pub(crate) const HELLO_LIMIT: Duration = Duration::from_secs(20);
/// Carrying the workspace in, from the first byte to the guest's confirmation.
pub(crate) const IMPORT_LIMIT: Duration = Duration::from_secs(600);
/// From the agent's end to the last byte of the result.
pub(crate) const COLLECT_LIMIT: Duration = Duration::from_secs(600);
/// The same after a stop: what cannot be brought out by then is salvaged from outside.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Largest bundle that is taken from a guest, bytes. A larger one is refused and stays in salvage.
pub(crate) const MAX_BUNDLE_BYTES: u64 = 4 << 30;
/// Refs in a manifest; more end the session as a protocol error.
pub(crate) const MAX_MANIFEST_REFS: usize = 10_000;

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
    end: End,
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
    posture: &dyn PostureCheck,
    stages: &mut dyn Stages,
    stops: &'a mut mpsc::Receiver<StopCause>,
) -> End {
    let until = Instant::now() + HELLO_LIMIT;
    let (mut up, down) = match tokio::time::timeout_at(until, control(&mut incoming)).await {
        Ok(Some(control)) => control,
        Ok(None) => return stopped(&plan.facts, plan.watcher, StopCause::LinkLost).await,
        Err(_) => return stopped(&plan.facts, plan.watcher, StopCause::NoHello).await,
    };
    let (bundle_sender, bundles) = mpsc::channel(1);
    let serving = tokio::spawn(doors::serve(incoming, doors.clone(), bundle_sender));
    let output_left = plan.output_bytes;
    let mut session = Session {
        stdout_scan: plan.needles.scan(),
        stderr_scan: plan.needles.scan(),
        plan,
        phase: Phase::Hello,
        until,
        down,
        bundles,
        end: End::default(),
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
    for (name, scan) in [("stdout", &session.stdout_scan), ("stderr", &session.stderr_scan)] {
        if let Some(what) = scan.found() {
            session.end.leaks.push(format!("agent output, {name} ({what})"));
        }
    }
    doors.cut();
    serving.abort();
    session.end
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

async fn stopped(facts: &Facts, watcher: &dyn Watcher, cause: StopCause) -> End {
    facts.host(Fact::Stopped { cause: cause.clone() }).await;
    watcher.tell(Progress::Stopping { cause: cause.clone() });
    End { stop: Some(cause), ..End::default() }
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
        self.until = Instant::now() + STOP_LIMIT;
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

    async fn on(
        &mut self,
        message: Up,
        link: &Link,
        posture: &dyn PostureCheck,
        stages: &mut dyn Stages,
    ) {
        match (self.phase, message) {
            (Phase::Hello, Up::Hello { protocol, version: _, probe }) => {
                self.hello(protocol, *probe, link, posture, stages).await;
            }
            (Phase::Importing, Up::WorkspaceReady { head }) => {
                self.plan.facts.host(Fact::WorkspaceIn { head_claim: head.clone() }).await;
                if head == self.plan.base {
                    self.enter(Phase::Starting, HELLO_LIMIT);
                } else {
                    self.protocol(&format!("checked out {head}, not {}", self.plan.base), stages)
                        .await;
                }
            }
            (Phase::Starting, Up::AgentStarted { program }) => {
                let program = text::line(&program, 200);
                self.plan.facts.host(Fact::AgentStarted { program: program.clone() }).await;
                self.plan.watcher.tell(Progress::AgentStarted { program });
                self.end.agent_started = true;
                stages.agent_started().await;
                self.phase = Phase::Working;
                if self.end.stop.is_none() {
                    // From here on the wall clock of the run is the bound; it comes as a stop.
                    self.until = Instant::now() + Duration::from_secs(30 * 86_400);
                }
            }
            (Phase::Working | Phase::Starting, Up::Output { stream, text }) => {
                self.output(stream, text).await
            }
            (Phase::Working, Up::Agent { kind, text }) => {
                if kind == "plan" && !self.planned {
                    self.planned = true;
                    stages.plan_made().await;
                }
                self.claim(&kind, &text);
            }
            (Phase::Working, Up::Prompt { text }) => {
                let text = text::line(&text, 2_000);
                self.plan.facts.guest(Fact::PromptUnanswered { text });
            }
            (Phase::Working | Phase::Starting, Up::AgentEnded(end)) => {
                self.agent_ended(end, stages).await
            }
            (Phase::Collecting, Up::Manifest(manifest)) => self.manifest(manifest, stages).await,
            (Phase::Finishing, Up::Done) => self.phase = Phase::Over,
            (_, Up::Failed { code, message }) => {
                tracing::warn!(run = %self.plan.run, ?code, "the guest cannot go on");
                let message = text::line(&self.plan.needles.redact(&message), 2_000);
                self.plan.facts.host(Fact::GuestError { message_claim: message.clone() }).await;
                self.end.guest_error = Some(message.clone());
                self.record_stop(StopCause::GuestFailed { detail_claim: message }, stages).await;
                self.phase = Phase::Over;
            }
            (phase, message) => {
                let kind = format!("{message:?}");
                let kind: String = kind.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
                self.protocol(&format!("unexpected {kind} in phase {phase:?}"), stages).await;
            }
        }
    }

    async fn hello(
        &mut self,
        protocol: u32,
        probe: Probe,
        link: &Link,
        posture: &dyn PostureCheck,
        stages: &mut dyn Stages,
    ) {
        if protocol != PROTOCOL_VERSION {
            let detail =
                format!("the guest speaks protocol {protocol}, the host {PROTOCOL_VERSION}");
            return self.protocol(&detail, stages).await;
        }
        let (layers, verdict) = posture.check(&probe);
        let enforced = layers.iter().filter(|l| l.status.is_enforced()).count();
        let degraded: Vec<String> = layers
            .iter()
            .filter(|l| !l.status.is_enforced())
            .map(|l| l.layer.as_str().to_owned())
            .collect();
        self.plan.facts.host(Fact::Posture { probe_claim: probe, layers }).await;
        if let Err(cause) = verdict {
            self.record_stop(cause, stages).await;
            self.phase = Phase::Over;
            return;
        }
        self.plan.watcher.tell(Progress::Sealed { enforced, degraded });
        stages.guest_ready().await;
        let start = Down::Start(Box::new(self.plan.start.clone()));
        self.enter(Phase::Importing, IMPORT_LIMIT);
        let (down, stops) = (&mut self.down, &mut self.stops);
        let (bundle, bytes) = (self.plan.bundle_in, self.plan.bundle_in_bytes);
        let carried = async {
            down.send(&start).await.map_err(|e| e.to_string())?;
            send_bundle(link, bundle, bytes).await
        };
        let outcome = tokio::select! {
            biased;
            Some(cause) = stops.recv() => Err(Some(cause)),
            carried = tokio::time::timeout(IMPORT_LIMIT, carried) => carried.map_err(|_| None),
        };
        match outcome {
            Ok(Ok(())) => {}
            // The guest may have told why before it closed the stream: its own message decides.
            Ok(Err(error)) => {
                tracing::warn!(run = %self.plan.run, error, "workspace not carried in")
            }
            Err(Some(cause)) => self.stop(cause, stages).await,
            Err(None) => self.protocol("the workspace was not taken in time", stages).await,
        }
    }

    async fn output(&mut self, stream: OutputStream, text: String) {
        match stream {
            OutputStream::Stdout => self.stdout_scan.feed(text.as_bytes()),
            OutputStream::Stderr => self.stderr_scan.feed(text.as_bytes()),
        }
        let size = text.len() as u64;
        // The guest cuts at the same bound; a guest that does not is cut here.
        if size > self.output_left {
            self.output_left = 0;
            return;
        }
        self.output_left -= size;
        let text = self.plan.needles.redact(&text).into_owned();
        self.plan.watcher.tell(Progress::Output {
            stderr: stream == OutputStream::Stderr,
            text: text::block(&text),
        });
        self.plan.facts.output(stream, text).await;
    }

    fn look_for_secrets(&mut self, text: &str, place: &str) {
        if let Some(what) = self.plan.needles.find_in(text.as_bytes()) {
            let leak = format!("{place} ({what})");
            if !self.end.leaks.contains(&leak) {
                self.end.leaks.push(leak);
            }
        }
    }

    fn claim(&mut self, kind: &str, text: &str) {
        let kind = text::line(kind, 40);
        self.look_for_secrets(text, "what the agent said");
        let text = text::line(&self.plan.needles.redact(text), 2_000);
        self.plan.watcher.tell(Progress::Agent { kind: kind.clone(), text: text.clone() });
        self.plan.facts.guest(Fact::AgentClaim { kind, text });
    }

    async fn agent_ended(&mut self, mut end: AgentEnd, stages: &mut dyn Stages) {
        self.look_for_secrets(&end.report, "the agent's report");
        end.report = text::block(&text::cut(&self.plan.needles.redact(&end.report), 8_000));
        self.plan
            .facts
            .host(Fact::AgentEnded {
                code_claim: end.code,
                signal_claim: end.signal,
                report_claim: end.report.clone(),
                output_cut_bytes: end.output_cut_bytes,
            })
            .await;
        if self.end.agent_started {
            self.plan.watcher.tell(Progress::AgentEnded { code: end.code });
            stages.agent_ended().await;
        }
        self.end.agent = Some(end);
        self.enter(Phase::Collecting, COLLECT_LIMIT);
    }

    async fn manifest(&mut self, manifest: Manifest, stages: &mut dyn Stages) {
        if manifest.refs.len() > MAX_MANIFEST_REFS {
            return self.protocol("the manifest names too many refs", stages).await;
        }
        let bytes = manifest.bundle_bytes;
        self.end.manifest = Some(manifest);
        if bytes > 0 {
            let mut wish = None;
            let outcome = {
                let Self { bundles, stops, until, plan, .. } = self;
                let mut received = std::pin::pin!(receive_bundle(bundles, &plan.bundle_out, bytes));
                loop {
                    tokio::select! {
                        done = tokio::time::timeout_at(*until, &mut received) => break done,
                        Some(cause) = stops.recv(), if wish.is_none() => {
                            *until = Instant::now() + STOP_LIMIT;
                            wish = Some(cause);
                        }
                    }
                }
            };
            if let Some(cause) = wish {
                self.record_stop(cause, stages).await;
            }
            match outcome {
                Ok(Ok(())) => self.end.bundle = true,
                Ok(Err(error)) => self.end.bundle_error = Some(error),
                Err(_) => {
                    self.end.bundle_error = Some("the bundle did not arrive in time".to_owned())
                }
            }
        }
        self.phase = Phase::Finishing;
    }
}

async fn send_bundle(link: &Link, path: &Path, bytes: u64) -> Result<(), String> {
    let header = serde_json::to_vec(&StreamOpen::BundleIn { bytes }).map_err(|e| e.to_string())?;
    let mut stream = link.open(&header).await.map_err(|e| e.to_string())?;
    let mut file = tokio::fs::File::open(path).await.map_err(|e| e.to_string())?;
    tokio::io::copy(&mut file, &mut stream).await.map_err(|e| e.to_string())?;
    stream.shutdown().await.map_err(|e| e.to_string())
}

async fn receive_bundle(
    bundles: &mut mpsc::Receiver<LinkStream>,
    path: &Path,
    bytes: u64,
) -> Result<(), String> {
    if bytes > MAX_BUNDLE_BYTES {
        return Err(format!("the bundle has {bytes} bytes; at most {MAX_BUNDLE_BYTES} are taken"));
    }
    let stream = bundles.recv().await.ok_or("the link closed before the bundle came")?;
    let mut file = tokio::fs::File::create(path).await.map_err(|e| e.to_string())?;
    // One byte more than announced, to see a bundle that does not end where it should.
    let got =
        tokio::io::copy(&mut stream.take(bytes + 1), &mut file).await.map_err(|e| e.to_string())?;
    file.sync_all().await.map_err(|e| e.to_string())?;
    if got == bytes {
        Ok(())
    } else {
        Err(format!("the bundle has {got} bytes, announced were {bytes}"))
    }
}
