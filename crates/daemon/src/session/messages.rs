//! What the guest says, message by message.
//!
//! A message out of order ends the session. Nothing said here is believed: it is bounded, redacted
//! and recorded as a claim.

use std::time::Duration;

use cofferdam_link::Link;
use cofferdam_run::fact::{Fact, StopCause};
use cofferdam_run::posture::Probe;
use cofferdam_wire::{AgentEnd, Down, Manifest, OutputStream, PROTOCOL_VERSION, Up};
use tokio::time::Instant;

use super::bundle::{receive_bundle, send_bundle};
use super::{
    COLLECT_LIMIT, HANDOVER_LIMIT, HELLO_LIMIT, IMPORT_LIMIT, Phase, PostureCheck, Session, Stages,
};
use crate::progress::Progress;
use crate::text;

/// Refs in a manifest; more end the session as a protocol error.
pub(crate) const MAX_MANIFEST_REFS: usize = 10_000;

impl Session<'_> {
    pub(super) async fn on(
        &mut self,
        message: Up,
        link: &Link,
        posture: &dyn PostureCheck,
        stages: &mut dyn Stages,
    ) {
        self.plan.pulse.beat();
        match (self.phase, message) {
            (Phase::Hello, Up::Hello { protocol, version: _, probe }) => {
                self.hello(protocol, *probe, link, posture, stages).await;
            }
            (Phase::Importing, Up::WallTested { tunnel, plain, open }) => {
                self.wall_tested(tunnel, plain, &open, stages).await;
            }
            (Phase::Importing, Up::WorkspaceReady { .. }) if self.plan.wall.is_some() => {
                let detail = "the guest did not try it".to_owned();
                self.record_stop(StopCause::EgressOpen { detail }, stages).await;
                self.phase = Phase::Over;
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
                self.plan.pulse.start();
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

    async fn wall_tested(
        &mut self,
        tunnel: Option<u16>,
        plain: Option<u16>,
        open: &[String],
        stages: &mut dyn Stages,
    ) {
        let Some(wall) = self.plan.wall.take() else {
            return self.protocol("the wall was tested twice", stages).await;
        };
        let (fact, fault) = wall.end(tunnel, plain, open);
        self.plan.facts.host(fact).await;
        if let Some(cause) = fault {
            self.record_stop(cause, stages).await;
            self.phase = Phase::Over;
        }
    }

    async fn output(&mut self, stream: OutputStream, text: String) {
        match stream {
            OutputStream::Stdout => self.stdout_scan.feed(text.as_bytes()),
            OutputStream::Stderr => self.stderr_scan.feed(text.as_bytes()),
        }
        let (name, scan) = match stream {
            OutputStream::Stdout => ("stdout", &self.stdout_scan),
            OutputStream::Stderr => ("stderr", &self.stderr_scan),
        };
        // At once: a session that is dropped has told already what it found.
        if let Some(what) = scan.found() {
            let leak = format!("agent output, {name} ({what})");
            if !self.end.leaks.contains(&leak) {
                self.end.leaks.push(leak);
            }
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
        self.plan.pulse.rest();
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
                            *until = Instant::now() + HANDOVER_LIMIT;
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
