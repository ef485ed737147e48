//! What a person sees while a run goes on: one line per thing that happened, on standard error.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cofferdam_daemon::{Progress, Watcher};
use cofferdam_run::fact::StopCause;

use crate::lines::LineJoiner;
use crate::out::{Out, Tone, count};

/// Prints lines with the time since the start.
pub(crate) struct Lines {
    out: Out,
    begin: Instant,
    joiner: Mutex<LineJoiner>,
}

impl Lines {
    pub(crate) fn new(out: Out) -> Self {
        #[expect(clippy::disallowed_methods, reason = "the elapsed time that a person sees")]
        let begin = Instant::now();
        Self { out, begin, joiner: Mutex::default() }
    }

    fn joiner(&self) -> MutexGuard<'_, LineJoiner> {
        self.joiner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, what: &str, detail: &str) {
        let seconds = self.begin.elapsed().as_secs();
        let clock =
            self.out.note_tone(Tone::Dim, &format!("{:02}:{:02}", seconds / 60, seconds % 60));
        self.out.note(format!("  {clock}  {what:<14} {detail}").trim_end());
    }
}

/// Words for a stop.
pub(crate) fn cause(cause: &StopCause) -> String {
    match cause {
        StopCause::Cancelled => "cancelled".to_owned(),
        StopCause::Budget { budget } => {
            format!("the {} budget is used up", budget.replace('_', " "))
        }
        StopCause::LinkLost => "the sandbox is gone before the agent had finished".to_owned(),
        StopCause::NoHello => "the sandbox did not come up".to_owned(),
        StopCause::PostureRefused { layer, detail } => {
            format!("the layer {layer} does not hold: {detail}")
        }
        StopCause::EgressOpen { detail } => {
            format!("something got out that no rule admits: {detail}")
        }
        StopCause::Protocol { detail }
        | StopCause::HostError { detail }
        | StopCause::GuestFailed { detail_claim: detail } => detail.clone(),
        StopCause::HostLost => "the supervising process was lost".to_owned(),
    }
}

impl Watcher for Lines {
    fn tell(&self, progress: Progress) {
        if !matches!(progress, Progress::Output { .. }) {
            for line in self.joiner().rest() {
                self.out.note(&format!("         │ {line}"));
            }
        }
        match progress {
            Progress::Armed { run, engine, reach, passed } => {
                let inside = if passed.is_empty() {
                    "no credential inside".to_owned()
                } else {
                    format!("passed in by you and readable inside: {}", passed.join(", "))
                };
                self.out.note(&format!(
                    "run {}  sealed: {engine} sandbox, {inside}, reachable: {reach}",
                    self.out.note_tone(Tone::Strong, run.as_str()),
                ));
            }
            Progress::Preparing { what } => self.line("preparing", &what),
            Progress::Snapshot { base, uncommitted_paths } => {
                let short: String = base.as_str().chars().take(10).collect();
                let extra = match uncommitted_paths {
                    0 => String::new(),
                    n => format!(" ({} included)", count(n, "uncommitted path")),
                };
                self.line("snapshot", &format!("{short}{extra}"));
            }
            Progress::Note { text } => self.line(&self.out.note_tone(Tone::Warn, "note"), &text),
            Progress::Sealed { enforced, degraded } if degraded.is_empty() => {
                self.line("sandbox up", &format!("{} hold", count(enforced as u64, "layer")));
            }
            Progress::Sealed { enforced, degraded } => self.line(
                "sandbox up",
                &format!(
                    "{} hold; accepted as missing: {}",
                    count(enforced as u64, "layer"),
                    degraded.join(", ")
                ),
            ),
            Progress::AgentStarted { program } => self.line("agent started", &program),
            Progress::Agent { kind, text } if kind == "tool_result" => self.line("result", &text),
            Progress::Agent { kind, text } => self.line(&kind, &text),
            Progress::Output { stderr, text } => {
                for line in self.joiner().feed(stderr, &text) {
                    self.out.note(&format!("         │ {line}"));
                }
            }
            Progress::Refused { target, reason } => {
                self.line(
                    &self.out.note_tone(Tone::Warn, "refused"),
                    &format!("{target}  {reason}"),
                );
            }
            Progress::Stopping { cause: why } => {
                self.line(&self.out.note_tone(Tone::Warn, "stopping"), &cause(&why));
            }
            Progress::AgentEnded { code: Some(0) } => self.line("agent ended", ""),
            Progress::AgentEnded { code: Some(code) } => {
                self.line("agent ended", &format!("exit code {code}"))
            }
            Progress::AgentEnded { code: None } => self.line("agent ended", "killed"),
            Progress::Fetched { commits } => self.line("fetched", &count(commits, "commit")),
            Progress::Teardown { clean: true } => self.line("sandbox gone", "teardown verified"),
            Progress::Teardown { clean: false } => {
                self.line(
                    &self.out.note_tone(Tone::Bad, "sandbox left"),
                    "teardown failed; see the record",
                );
            }
        }
    }
}
