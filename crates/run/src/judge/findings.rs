//! What the judge sees in the facts: one pass collects, then problems are named in rank order.
//!
//! Nothing here decides between problems; the order in [`Seen::problems`] is the order of
//! [`Cause`], and a test holds the two together.

use crate::fact::{CollectOutcome, Fact, StopCause, TeardownOutcome};
use crate::ids::ObjectId;
use crate::posture::{Layer, LayerReport, LayerStatus};
use crate::spec::{Mode, RunSpec};
use crate::verdict::{Cause, Warning};

/// Characters of a guest's error message in a verdict. The rest is cut; the entry has all of it.
const MAX_MESSAGE_CHARS: usize = 2_000;

/// Names of things not taken in a verdict. The rest is counted; the entry has all of them.
const MAX_NAMED: usize = 10;

pub(super) struct Collected<'a> {
    pub(super) head_claim: Option<&'a ObjectId>,
    pub(super) commits_claim: u64,
    pub(super) outcome: &'a CollectOutcome,
    pub(super) not_taken: &'a [String],
}

impl Clone for Collected<'_> {
    fn clone(&self) -> Self {
        *self
    }
}
impl Copy for Collected<'_> {}

impl Collected<'_> {
    /// What the guest speaks of and the host has not.
    fn missing(&self) -> Option<String> {
        let mut details = Vec::new();
        let claimed = self.commits_claim;
        match self.outcome {
            CollectOutcome::NoCommits if claimed > 0 => {
                details.push(format!("the guest counted {claimed} commits and none was fetched"));
            }
            CollectOutcome::Fetched { commits, side_commits, .. }
                if claimed > commits.saturating_add(*side_commits) =>
            {
                let fetched = commits.saturating_add(*side_commits);
                details
                    .push(format!("the guest counted {claimed} commits, {fetched} were fetched"));
            }
            CollectOutcome::Fetched { head, .. } => {
                if let Some(named) = self.head_claim.filter(|&named| named != head) {
                    details.push(format!("the guest named {named}, {head} was fetched"));
                }
            }
            CollectOutcome::NoCommits | CollectOutcome::Failed { .. } => {}
        }
        if !self.not_taken.is_empty() {
            let named = &self.not_taken[..self.not_taken.len().min(MAX_NAMED)];
            let mut text = format!("could not be taken: {}", named.join("; "));
            if self.not_taken.len() > named.len() {
                text.push_str(&format!("; and {} more", self.not_taken.len() - named.len()));
            }
            details.push(text);
        }
        (!details.is_empty()).then(|| details.join("; "))
    }
}

#[derive(Default)]
pub(super) struct Seen<'a> {
    spec: Option<&'a RunSpec>,
    base: Option<&'a ObjectId>,
    prepared: Vec<&'a [LayerReport]>,
    postures: Vec<&'a [LayerReport]>,
    workspace_in: Option<&'a ObjectId>,
    agent_started: bool,
    stops: Vec<&'a StopCause>,
    agent_ended: Option<(Option<i32>, Option<i32>)>,
    guest_errors: Vec<&'a str>,
    pub(super) collected: Option<Collected<'a>>,
    sandbox_ended: bool,
    oom_killed: bool,
    pids_refused: u64,
    egress_tested: bool,
    teardown: Option<&'a TeardownOutcome>,
    canary_found: Vec<&'a str>,
    canary_searched: bool,
    spent: bool,
    prompts: u64,
    egress_refused: u64,
    model_refused: u64,
    calls_by_size: u64,
    output_cut_bytes: u64,
    truncated: Vec<(&'a str, u64)>,
}

/// `1 connection was refused`, `3 connections were refused`.
fn counted(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what} was refused") } else { format!("{n} {what}s were refused") }
}

impl<'a> Seen<'a> {
    pub(super) fn of(facts: impl IntoIterator<Item = &'a Fact>) -> Self {
        let mut seen = Self::default();
        for fact in facts {
            seen.take(fact);
        }
        seen
    }

    fn take(&mut self, fact: &'a Fact) {
        match fact {
            // The first one was written before anything ran.
            Fact::Armed { spec, version: _ } => self.spec = self.spec.or(Some(spec)),
            Fact::Snapshot { base, .. } => self.base = Some(base),
            Fact::SandboxPrepared { read_back, .. } => self.prepared.push(read_back),
            Fact::Posture { layers, probe_claim: _ } => self.postures.push(layers),
            Fact::WorkspaceIn { head_claim } => self.workspace_in = Some(head_claim),
            Fact::AgentStarted { program: _ } => self.agent_started = true,
            Fact::Egress { admitted, .. } => self.egress_refused += u64::from(!admitted),
            Fact::ModelCall { refusal, .. } => self.model_refused += u64::from(refusal.is_some()),
            Fact::Truncated { kind, count } => {
                if kind == "prompt_unanswered" {
                    self.prompts = self.prompts.saturating_add(*count);
                }
                self.truncated.push((kind, *count));
            }
            Fact::PromptUnanswered { text: _ } => self.prompts = self.prompts.saturating_add(1),
            Fact::Stopped { cause } => self.stops.push(cause),
            Fact::AgentEnded { code_claim, signal_claim, output_cut_bytes, report_claim: _ } => {
                self.agent_ended = Some((*code_claim, *signal_claim));
                self.output_cut_bytes = *output_cut_bytes;
            }
            Fact::GuestError { message_claim } => self.guest_errors.push(message_claim),
            Fact::Collected { head_claim, commits_claim, outcome, not_taken_claim } => {
                self.collected = Some(Collected {
                    head_claim: head_claim.as_ref(),
                    commits_claim: *commits_claim,
                    outcome,
                    not_taken: not_taken_claim,
                });
            }
            Fact::SandboxEnded { oom_killed, exit: _ } => {
                self.sandbox_ended = true;
                self.oom_killed |= oom_killed;
            }
            Fact::Resources { usage } => {
                self.pids_refused = self.pids_refused.max(usage.pids_refused.unwrap_or(0));
                self.oom_killed |= usage.oom_kills.is_some_and(|kills| kills > 0);
            }
            Fact::EgressTest { refused, open_claim, status_claim: _, target: _ } => {
                self.egress_tested |= *refused && open_claim.is_empty();
            }
            Fact::Teardown { outcome } => self.teardown = Some(outcome),
            Fact::Canary { found_in, searched, unsearched } => {
                self.canary_found.extend(found_in.iter().map(String::as_str));
                self.canary_searched |= !searched.is_empty() && unsearched.is_empty();
            }
            Fact::Spent { spend } => {
                self.spent = true;
                self.calls_by_size = spend.calls_counted_by_size;
            }
            Fact::AgentClaim { .. } | Fact::Retained { .. } | Fact::Note { .. } => {}
        }
    }

    /// Everything that speaks against the run, highest rank first.
    pub(super) fn problems(&self) -> Vec<Cause> {
        let mut out = Vec::new();
        if !self.canary_found.is_empty() {
            let found_in = self.canary_found.iter().map(|&s| s.to_owned()).collect();
            out.push(Cause::Leak { found_in });
        }
        self.lost_work(&mut out);
        self.containment(&mut out);
        match self.teardown {
            Some(TeardownOutcome::Removed | TeardownOutcome::AlreadyGone) => {}
            Some(TeardownOutcome::Failed { detail }) => {
                out.push(Cause::TeardownFailed { detail: detail.clone() });
            }
            None if self.sandbox_was_made() => out.push(Cause::TeardownMissing),
            None => {}
        }
        if self.prompts > 0 && self.mode() == Mode::Unattended {
            out.push(Cause::PromptsUnanswered { count: self.prompts });
        }
        self.stops(&mut out);
        self.exit(&mut out);
        if let (Some(sent), Some(claimed)) = (self.base, self.workspace_in)
            && sent != claimed
        {
            out.push(Cause::WrongBase { sent: sent.to_string(), claimed: claimed.to_string() });
        }
        if out.is_empty()
            && let Some(missing) = self.missing()
        {
            out.push(Cause::Incomplete { missing: missing.to_owned() });
        }
        out
    }

    /// Without the specification the stricter mode is assumed.
    fn mode(&self) -> Mode {
        self.spec.map_or(Mode::Unattended, |s| s.mode)
    }

    fn accepts(&self, layer: Layer) -> bool {
        self.spec.is_some_and(|s| s.accept_degraded.iter().any(|a| a == layer.as_str()))
    }

    /// A guest cannot have spoken, nor an agent have run, without a sandbox.
    fn sandbox_was_made(&self) -> bool {
        !self.prepared.is_empty()
            || !self.postures.is_empty()
            || self.workspace_in.is_some()
            || self.sandbox_ended
            || self.agent_ran()
    }

    fn agent_ran(&self) -> bool {
        self.agent_started || self.agent_ended.is_some()
    }

    fn lost_work(&self, out: &mut Vec<Cause>) {
        let Some(collected) = &self.collected else {
            if self.agent_ran() {
                out.push(Cause::CollectMissing);
            }
            return;
        };
        if let CollectOutcome::Failed { reason, salvage } = collected.outcome {
            let (reason, salvage) = (reason.clone(), salvage.clone());
            out.push(Cause::CollectFailed { reason, salvage });
        }
        if let Some(detail) = collected.missing() {
            out.push(Cause::WorkMissing { detail });
        }
    }

    fn containment(&self, out: &mut Vec<Cause>) {
        if self.agent_ran() {
            for (layer, detail) in self.layers_not_held() {
                out.push(Cause::LayerNotHeld { layer: layer.as_str().to_owned(), detail });
            }
            if self.postures.is_empty() {
                out.push(Cause::PostureMissing);
            }
        }
        for stop in &self.stops {
            if let StopCause::PostureRefused { layer, detail } = stop {
                let (layer, detail) = (layer.clone(), detail.clone());
                out.push(Cause::PostureRefused { layer, detail });
            }
        }
        if self.agent_ran() && !self.canary_searched {
            out.push(Cause::CanaryUnsearched);
        }
        for stop in &self.stops {
            if let StopCause::EgressOpen { detail } = stop {
                out.push(Cause::EgressOpen { detail: detail.clone() });
            }
        }
        if self.agent_ran() && !self.egress_tested && self.spec.is_none_or(|s| s.egress_test) {
            out.push(Cause::EgressUntested);
        }
    }

    /// Every required layer must be reported as held by the evaluation of the guest's probe; an
    /// engine's read-back need not know each layer, but what it reports must hold too.
    fn layers_not_held(&self) -> Vec<(Layer, String)> {
        let mut out = Vec::new();
        for layer in Layer::ALL.into_iter().filter(|&l| !self.accepts(l)) {
            let inside = self.postures.iter().map(|reports| {
                let mut found = reports.iter().filter(|r| r.layer == layer).peekable();
                if found.peek().is_none() {
                    return Some("nothing was reported about it".to_owned());
                }
                found.find_map(|r| shortfall(&r.status))
            });
            let outside = self.prepared.iter().map(|reports| {
                let mut found = reports.iter().filter(|r| r.layer == layer);
                found
                    .find_map(|r| shortfall(&r.status))
                    .map(|s| format!("as the engine shows: {s}"))
            });
            if let Some(detail) = inside.chain(outside).flatten().next() {
                out.push((layer, detail));
            }
        }
        out
    }

    fn stops(&self, out: &mut Vec<Cause>) {
        let first = out.len();
        for stop in &self.stops {
            let cause = match stop {
                StopCause::Cancelled => Cause::Cancelled,
                StopCause::Budget { budget } => Cause::BudgetReached { budget: budget.clone() },
                StopCause::LinkLost => Cause::LinkLost,
                StopCause::NoHello => Cause::NoHello,
                // Ranked under containment.
                StopCause::PostureRefused { .. } | StopCause::EgressOpen { .. } => continue,
                StopCause::Protocol { detail } => Cause::Protocol { detail: detail.clone() },
                // Its own fact says it better, where there is one.
                StopCause::GuestFailed { .. } if !self.guest_errors.is_empty() => continue,
                StopCause::GuestFailed { detail_claim } => {
                    Cause::GuestError { message: detail_claim.clone() }
                }
                StopCause::HostError { detail } => Cause::HostError { detail: detail.clone() },
                StopCause::HostLost => Cause::HostLost,
            };
            out.push(cause);
        }
        if self.oom_killed {
            out.push(Cause::OutOfMemory);
        }
        // A guest may send errors without end; the first is the one that explains the others.
        if let Some(first) = self.guest_errors.first() {
            let message = first.chars().take(MAX_MESSAGE_CHARS).collect();
            out.push(Cause::GuestError { message });
        }
        // Codes are numbered by rank.
        out[first..].sort_by_key(Cause::code);
    }

    fn exit(&self, out: &mut Vec<Cause>) {
        if !self.agent_ran() {
            return;
        }
        let ended_badly = match self.agent_ended {
            Some((code, signal)) => signal.is_some() || code != Some(0),
            None => true,
        };
        if self.pids_refused > 0 && ended_badly && self.stops.is_empty() {
            out.push(Cause::ProcessLimit { refused: self.pids_refused });
        }
        match self.agent_ended {
            Some((_, Some(signal))) if self.stops.is_empty() => {
                out.push(Cause::ExitSignal { signal });
            }
            Some((Some(exit_code), None)) if exit_code != 0 && self.stops.is_empty() => {
                out.push(Cause::ExitCode { exit_code });
            }
            None | Some((None, None)) if self.stops.is_empty() => out.push(Cause::ExitUnknown),
            // How an agent ends that the host stopped says nothing.
            None | Some(_) => {}
        }
    }

    /// The first fact that a completed run must have and this one has not.
    fn missing(&self) -> Option<&'static str> {
        let needed = [
            (self.spec.is_some(), "armed"),
            (self.base.is_some(), "snapshot"),
            (!self.prepared.is_empty(), "sandbox_prepared"),
            (!self.postures.is_empty(), "posture"),
            (self.workspace_in.is_some(), "workspace_in"),
            (self.agent_started, "agent_started"),
            (self.agent_ended.is_some(), "agent_ended"),
            (self.collected.is_some(), "collected"),
            (self.sandbox_ended, "sandbox_ended"),
            (self.teardown.is_some(), "teardown"),
            (self.canary_searched, "canary"),
        ];
        needed.into_iter().find(|(there, _)| !there).map(|(_, kind)| kind)
    }

    /// What did not decide and is still worth knowing.
    pub(super) fn remarks(&self) -> Vec<Warning> {
        let mut out = Vec::new();
        let mut remark = |code: &str, text: String| {
            out.push(Warning { code: code.to_owned(), text });
        };
        if self.egress_refused > 0 {
            remark("RUN-100", counted(self.egress_refused, "connection"));
        }
        if self.model_refused > 0 {
            remark("RUN-101", counted(self.model_refused, "model call"));
        }
        for (kind, count) in &self.truncated {
            remark("RUN-102", format!("{count} more {kind} entries were counted and not kept"));
        }
        for layer in Layer::ALL.into_iter().filter(|&l| self.accepts(l)) {
            let reports = self.postures.iter().chain(&self.prepared).copied().flatten();
            let mut shortfalls =
                reports.filter(|r| r.layer == layer).filter_map(|r| shortfall(&r.status));
            if let Some(reason) = shortfalls.next() {
                let layer = layer.as_str();
                remark("RUN-103", format!("the layer {layer} was accepted as degraded: {reason}"));
            }
        }
        if self.prompts > 0 && self.mode() == Mode::Supervised {
            remark("RUN-104", format!("{} questions were not answered", self.prompts));
        }
        if self.guest_errors.len() > 1 {
            let more = self.guest_errors.len() - 1;
            remark("RUN-109", format!("the guest reported {more} more errors"));
        }
        if self.pids_refused > 0 {
            let refused = self.pids_refused;
            remark("RUN-110", format!("the process limit refused {refused} new processes"));
        }
        if self.output_cut_bytes > 0 {
            remark("RUN-105", format!("{} bytes of output were cut", self.output_cut_bytes));
        }
        if self.calls_by_size > 0 {
            let calls = self.calls_by_size;
            remark(
                "RUN-106",
                format!("{calls} model calls reported no usage and were counted by size"),
            );
        }
        if !self.spent && self.agent_ran() && self.spec.is_none_or(|s| s.model.is_some()) {
            remark("RUN-107", "what the run spent is not known".to_owned());
        }
        if let Some(Collected {
            commits_claim,
            outcome: CollectOutcome::Fetched { commits, side_commits, .. },
            ..
        }) = &self.collected
            && *commits_claim < commits.saturating_add(*side_commits)
        {
            let fetched = commits.saturating_add(*side_commits);
            let text = format!("the guest counted {commits_claim} commits, {fetched} were fetched");
            remark("RUN-108", text);
        }
        out
    }
}

fn shortfall(status: &LayerStatus) -> Option<String> {
    match status {
        LayerStatus::Enforced => None,
        LayerStatus::Degraded { reason } => Some(format!("degraded: {reason}")),
        LayerStatus::Absent { reason } => Some(format!("absent: {reason}")),
    }
}
