//! `cofferdam show`: what came of a run, in words. Also the views that other commands share.

use std::process::ExitCode;

use cofferdam_run::fact::{CollectOutcome, Fact, ResourceUse, TeardownOutcome};
use cofferdam_run::limits::Spend;
use cofferdam_run::posture::LayerStatus;
use cofferdam_run::spec::{AgentSpec, RunSpec, ShellNetwork, ShellSeparation};
use cofferdam_run::{Cause, EngineKind, Outcome, Record, RunId};
use serde_json::{Value, json};

use crate::app::App;
use crate::cmd::run::watch_cause;
use crate::error::CliError;
use crate::out::{Out, Tone, bytes, count, money};

/// What is said of a run whose process is gone.
pub(crate) const LOST: &str =
    "the process that supervised it is gone; settle it and save its work with: cofferdam sweep";

pub(crate) async fn show(app: &App, run: &str) -> Result<ExitCode, CliError> {
    let host = app.host().await?;
    let id = app.resolve(&host, run).await?;
    let Some(record) = stored_record(&host, &id).await? else {
        let live = host.ledger().run(&id).await?;
        let lost = host.lost().await?.contains(&id);
        let state = live.state.name();
        if app.out.json {
            let cancel_requested = live.cancel.is_some();
            app.out.json(&json!({
                "run": id, "state": state, "lost": lost, "cancel_requested": cancel_requested,
            }));
        } else if lost {
            app.out.line(&format!("run {id} was {state}; {LOST}"));
        } else {
            app.out.line(&format!("run {id} is {state}; watch it with: cofferdam logs -f {id}"));
        }
        return Ok(ExitCode::SUCCESS);
    };
    if app.out.json {
        app.out.json(&view(&record));
    } else {
        details(app.out, &record);
    }
    Ok(ExitCode::SUCCESS)
}

/// The sealed record of a run that is over.
pub(crate) async fn stored_record(
    host: &cofferdam_daemon::Host,
    id: &RunId,
) -> Result<Option<Record>, CliError> {
    match host.ledger().record(id).await? {
        None => Ok(None),
        Some(text) => serde_json::from_str(&text).map(Some).map_err(CliError::other),
    }
}

/// The final result, in two or three lines.
pub(crate) fn result(out: Out, record: &Record) {
    let verdict = &record.verdict;
    let tone = match verdict.outcome {
        Outcome::Completed => Tone::Good,
        Outcome::Failed => Tone::Bad,
        Outcome::Cancelled => Tone::Warn,
    };
    // The summary begins with the outcome.
    let word = verdict.outcome.as_str();
    let rest = verdict.summary.strip_prefix(word).unwrap_or(&verdict.summary);
    out.line(&format!("{}{rest}", out.tone(tone, word)));
    if !has_commits(record) {
        out.line(&format!("  run      {}", record.run));
    }
    for warning in &verdict.warnings {
        out.line(&format!("  warning  {} {}", warning.code, warning.text));
    }
    if let Some(Cause::PostureRefused { .. }) = &verdict.cause {
        for way_out in ways_out(record) {
            out.line(&format!("  hint     {way_out}"));
        }
    }
    if let Some(cause) = &verdict.cause {
        if let Some(last) = last_words(record) {
            out.line(&format!("  said     {last}"));
        }
        out.line(&format!("  look     cofferdam logs {}", record.run));
        out.line(&format!("  more     docs/errors/run.md, section {}", cause.code()));
    }
    if has_commits(record) {
        out.line(&format!(
            "  review   cofferdam diff {0}   then   cofferdam apply {0}",
            record.run
        ));
    }
    if let Some(spend) = spend(record) {
        out.line(&format!("  spend    {}", spend_line(spend)));
    }
}

/// What to do about each layer that does not hold, as the sandbox or its engine showed them, on the
/// engine of the run.
fn ways_out(record: &Record) -> Vec<String> {
    let engine = record.facts().find_map(|fact| match fact {
        Fact::Armed { spec, .. } => Some(spec.engine),
        _ => None,
    });
    let mut ways: Vec<String> = Vec::new();
    for fact in record.facts() {
        let (Fact::Posture { layers, .. } | Fact::SandboxPrepared { read_back: layers, .. }) = fact
        else {
            continue;
        };
        for report in layers.iter().filter(|r| !r.status.is_enforced()) {
            let engine = engine.unwrap_or(EngineKind::Native);
            let way = format!(
                "{}: {}",
                report.layer.as_str(),
                cofferdam_sandbox::posture::fix(engine, report.layer)
            );
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
    }
    ways
}

/// The last line of what the agent reported. A claim.
fn last_words(record: &Record) -> Option<String> {
    record.facts().find_map(|fact| match fact {
        Fact::AgentEnded { report_claim, .. } => {
            let line = report_claim.lines().rev().find(|l| !l.trim().is_empty())?;
            Some(cofferdam_daemon::text::line(line, 300))
        }
        _ => None,
    })
}

fn spend_line(spend: &Spend) -> String {
    let mut text =
        format!("{} tokens in {}", spend.tokens(), count(spend.model_calls, "model call"));
    if let Some(micro_usd) = spend.micro_usd {
        text.push_str(&format!(", {}", money(micro_usd)));
    }
    if spend.calls_counted_by_size > 0 {
        text.push_str(&format!(" ({} counted by size)", spend.calls_counted_by_size));
    }
    text
}

fn details(out: Out, record: &Record) {
    out.line(&format!("run {}", out.tone(Tone::Strong, record.run.as_str())));
    result(out, record);
    if let Some(CollectOutcome::Fetched { subjects, sides, .. }) = collected(record) {
        for subject in subjects {
            out.line(&format!("  commit   {subject}"));
        }
        for side in sides {
            out.line(&format!("  beside   {} on {}", side.name_claim, side.reference));
        }
    }
    for fact in record.facts() {
        if let Fact::Collected { not_taken_claim, .. } = fact {
            for name in not_taken_claim {
                out.line(&format!("  left out {name}"));
            }
        }
    }
    for fact in record.facts() {
        match fact {
            Fact::Armed { version, spec } => {
                if !spec.task.is_empty() {
                    out.line(&format!(
                        "  task     {}",
                        cofferdam_daemon::text::line(&spec.task, 300)
                    ));
                }
                out.line(&format!("  made by  cofferdam {version}, {} engine", spec.engine));
                out.line(&format!("  checkout {}", spec.checkout));
                for service in &spec.services {
                    out.line(&format!("  service  {service} (of this host's configuration)"));
                }
                out.line(&format!("  shell    {}", shell(spec)));
            }
            Fact::Snapshot { base, branch, uncommitted_paths, .. } => {
                let branch = branch.as_deref().unwrap_or("detached HEAD");
                out.line(&format!(
                    "  base     {base} ({branch}, {} included)",
                    count(*uncommitted_paths, "uncommitted path"),
                ));
            }
            Fact::Posture { layers, .. } => {
                let held = layers.iter().filter(|l| l.status.is_enforced()).count();
                out.line(&format!("  posture  {held} of {} layers enforced", layers.len()));
                for report in layers {
                    if let LayerStatus::Degraded { reason } | LayerStatus::Absent { reason } =
                        &report.status
                    {
                        out.line(&format!("           {}: {reason}", report.layer.as_str()));
                    }
                }
            }
            Fact::AgentEnded { report_claim, .. } if !report_claim.is_empty() => {
                out.line("  the agent reports (a claim):");
                for line in report_claim.lines().take(40) {
                    out.line(&format!("           {line}"));
                }
            }
            Fact::Canary { found_in, searched, unsearched } => {
                if !unsearched.is_empty() {
                    out.line(&format!("  secrets  COULD NOT SEARCH {}", unsearched.join(", ")));
                }
                let found = if found_in.is_empty() {
                    "no secret found in"
                } else {
                    "SECRET FOUND; searched"
                };
                out.line(&format!("  secrets  {found} {}", searched.join(", ")));
            }
            Fact::Teardown { .. }
            | Fact::EgressTest { .. }
            | Fact::Retained { .. }
            | Fact::Stopped { .. }
            | Fact::Note { .. } => {
                let (kind, line) = fact_line(fact);
                out.line(&format!("  {kind:<8} {line}"));
            }
            _ => {}
        }
    }
    let (admitted, refused) = egress_counts(record);
    out.line(&format!(
        "  egress   {admitted} admitted, {refused} refused   (cofferdam egress show {})",
        record.run
    ));
}

/// What the commands of the agent could reach, and how far that held.
fn shell(spec: &RunSpec) -> String {
    if matches!(spec.agent, AgentSpec::Command { .. }) {
        return "one with the agent, which is a command".to_owned();
    }
    let network = match spec.shell.network {
        ShellNetwork::Off => "off",
        ShellNetwork::Rules => "rules",
    };
    match spec.shell.separation {
        ShellSeparation::Enforced => format!("{network}, enforced"),
        ShellSeparation::Advisory => format!("{network}, advisory"),
    }
}

fn egress_counts(record: &Record) -> (u64, u64) {
    let mut counts = (0, 0);
    for fact in record.facts() {
        match fact {
            Fact::Egress { admitted: true, .. } => counts.0 += 1,
            Fact::Egress { admitted: false, .. } => counts.1 += 1,
            _ => {}
        }
    }
    counts
}

fn collected(record: &Record) -> Option<&CollectOutcome> {
    record.facts().find_map(|f| match f {
        Fact::Collected { outcome, .. } => Some(outcome),
        _ => None,
    })
}

fn spend(record: &Record) -> Option<&Spend> {
    record.facts().find_map(|f| match f {
        Fact::Spent { spend } => Some(spend),
        _ => None,
    })
}

/// Commit that the run started from.
pub(crate) fn base(record: &Record) -> Option<cofferdam_run::ObjectId> {
    record.facts().find_map(|f| match f {
        Fact::Snapshot { base, .. } => Some(base.clone()),
        _ => None,
    })
}

/// Checkout that the run was started on.
pub(crate) fn checkout(record: &Record) -> Option<String> {
    record.facts().find_map(|f| match f {
        Fact::Armed { spec, .. } => Some(spec.checkout.clone()),
        _ => None,
    })
}

/// The run brought commits back.
pub(crate) fn has_commits(record: &Record) -> bool {
    matches!(collected(record), Some(CollectOutcome::Fetched { .. }))
}

/// What `--json` gives.
pub(crate) fn view(record: &Record) -> Value {
    let (admitted, refused) = egress_counts(record);
    let layers = record.facts().find_map(|f| match f {
        Fact::Posture { layers, .. } => Some(layers),
        _ => None,
    });
    let report = record.facts().find_map(|f| match f {
        Fact::AgentEnded { report_claim, .. } => Some(report_claim),
        _ => None,
    });
    let shell_spec = record.facts().find_map(|f| match f {
        Fact::Armed { spec, .. } => Some(spec.shell),
        _ => None,
    });
    json!({
        "run": record.run,
        "outcome": record.verdict.outcome,
        "verdict": record.verdict,
        "base": base(record),
        "checkout": checkout(record),
        "collected": collected(record),
        "spend": spend(record),
        "egress": { "admitted": admitted, "refused": refused },
        "shell": shell_spec,
        "posture": layers,
        "report_claim": report,
        "record_head": record.head,
    })
}

/// A fact as kind and line.
pub(crate) fn fact_line(fact: &Fact) -> (&'static str, String) {
    let text = |kind, line: String| (kind, line);
    match fact {
        Fact::Armed { spec, .. } => {
            text("armed", format!("{} engine, {}", spec.engine, spec.checkout))
        }
        Fact::Snapshot { base, uncommitted_paths, bundle_bytes, .. } => text(
            "snapshot",
            format!(
                "{base}, {}, {}",
                count(*uncommitted_paths, "uncommitted path"),
                bytes(*bundle_bytes)
            ),
        ),
        Fact::SandboxPrepared { engine, engine_version, sandbox, .. } => {
            text("prepared", format!("{engine} ({engine_version}) {sandbox}"))
        }
        Fact::Posture { layers, .. } => {
            let held = layers.iter().filter(|l| l.status.is_enforced()).count();
            text("posture", format!("{held} of {} layers enforced", layers.len()))
        }
        Fact::WorkspaceIn { head_claim } => text("workspace in", head_claim.to_string()),
        Fact::AgentStarted { program } => text("agent started", program.clone()),
        Fact::AgentClaim { kind, text: line } => text("agent", format!("{kind}: {line}")),
        Fact::Egress {
            target, admitted, reason, bytes_out, bytes_in, outcome, principal, ..
        } => {
            let verb = if *admitted { "admitted" } else { "refused" };
            let by = principal.map(|by| format!("{}: ", by.as_str())).unwrap_or_default();
            text(
                "egress",
                format!(
                    "{by}{verb} {target} ({reason}) out {} in {} {outcome}",
                    bytes(*bytes_out),
                    bytes(*bytes_in)
                ),
            )
        }
        Fact::ModelCall { request, model, status, refusal, usage, .. } => {
            let refused = refusal.as_ref().map(|r| format!(" refused {r}")).unwrap_or_default();
            text(
                "model call",
                format!("{request} {model} {status}{refused}, {} tokens", usage.tokens()),
            )
        }
        Fact::Truncated { kind, count } => {
            text("truncated", format!("{count} more of {kind} were not kept"))
        }
        Fact::PromptUnanswered { text: line } => text("prompt", format!("unanswered: {line}")),
        Fact::Stopped { cause } => text("stopped", watch_cause(cause)),
        Fact::AgentEnded { code_claim, signal_claim, .. } => match (code_claim, signal_claim) {
            (Some(code), _) => text("agent ended", format!("exit code {code}")),
            (None, Some(signal)) => text("agent ended", format!("killed by signal {signal}")),
            (None, None) => text("agent ended", "unknown".to_owned()),
        },
        Fact::GuestError { message_claim } => text("guest error", message_claim.clone()),
        Fact::Collected { outcome, .. } => match outcome {
            CollectOutcome::NoCommits => text("collected", "no commits".to_owned()),
            CollectOutcome::Fetched { reference, commits, .. } => {
                text("collected", format!("{} on {reference}", count(*commits, "commit")))
            }
            CollectOutcome::Failed { reason, .. } => text("collected", format!("FAILED: {reason}")),
        },
        Fact::SandboxEnded { exit, oom_killed } => {
            let oom = if *oom_killed { ", out of memory" } else { "" };
            text(
                "sandbox ended",
                format!(
                    "{}{oom}",
                    exit.map_or_else(|| "by a signal".to_owned(), |c| format!("exit code {c}"))
                ),
            )
        }
        Fact::EgressTest { target, refused, open_claim, .. } => {
            let door = if *refused { "refused" } else { "NOT REFUSED" };
            let around = match open_claim.as_slice() {
                [] => "no way around the door".to_owned(),
                open => format!("OPEN: {}", open.join(", ")),
            };
            text("wall test", format!("{target} {door}, {around}"))
        }
        Fact::Resources { usage } => text("used", usage_line(usage)),
        Fact::Teardown { outcome } => match outcome {
            TeardownOutcome::Removed => text("teardown", "removed, verified".to_owned()),
            TeardownOutcome::AlreadyGone => text("teardown", "was gone already".to_owned()),
            TeardownOutcome::Failed { detail } => text("teardown", format!("FAILED: {detail}")),
        },
        Fact::Canary { found_in, .. } if found_in.is_empty() => {
            text("secrets", "none found".to_owned())
        }
        Fact::Canary { found_in, .. } => {
            text("secrets", format!("FOUND in {}", found_in.join(", ")))
        }
        Fact::Spent { spend } => text("spent", spend_line(spend)),
        Fact::Retained { kind, place, .. } => text("kept", format!("{kind} at {place}")),
        Fact::Note { text: line } => text("note", line.clone()),
    }
}

/// What the host counted, in the order of the limits; what it could not see is left out.
fn usage_line(usage: &ResourceUse) -> String {
    let seconds = |ms: u64| format!("{}.{} s", ms / 1000, ms % 1000 / 100);
    let parts = [
        usage.cpu_ms.map(|ms| format!("cpu {}", seconds(ms))),
        usage.cpu_throttled_ms.filter(|ms| *ms > 0).map(|ms| format!("throttled {}", seconds(ms))),
        usage.memory_peak_bytes.map(|n| format!("memory {}", bytes(n))),
        usage.oom_kills.filter(|n| *n > 0).map(|n| format!("{n} killed by the memory limit")),
        usage.pids_peak.map(|n| format!("at most {n} processes")),
        usage.pids_refused.filter(|n| *n > 0).map(|n| format!("{n} refused")),
        usage.work_bytes.map(|n| format!("work {}", bytes(n))),
        usage.work_files.map(|n| count(n, "file")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "not known".to_owned() } else { parts.join(", ") }
}
