//! `cofferdam egress suggest`: rules that would have admitted what was refused, for review.

use std::process::ExitCode;

use cofferdam_broker::egress::review::{self, Suggestions};
use serde_json::json;

use super::source::Source;
use crate::app::App;
use crate::error::CliError;
use crate::out::{Out, Tone, count, table};

pub(super) async fn suggest(app: &App, run: &str, exact: bool) -> Result<ExitCode, CliError> {
    let source = Source::of(app, run).await?;
    let found = review::suggest(&review::decisions(&source.facts), !exact);
    if app.out.json {
        app.out.json(&json!({
            "run": source.run,
            "over": source.over,
            "left_out_of_record": source.left_out(),
            "rules": found.rules,
            "no_rule_for": found.left_out,
            "flags": flags(&found),
            "config": config(&source.spec.egress_allow, &found),
        }));
        return Ok(ExitCode::SUCCESS);
    }
    print(app.out, &source, &found);
    Ok(ExitCode::SUCCESS)
}

/// As `cofferdam run` takes them. Rules hold no character that a shell would read otherwise but the
/// star.
fn flags(found: &Suggestions) -> String {
    let flags: Vec<String> = found
        .rules
        .iter()
        .map(|one| match one.rule.contains('*') {
            true => format!("--allow '{}'", one.rule),
            false => format!("--allow {}", one.rule),
        })
        .collect();
    flags.join(" ")
}

/// The whole list for the configuration: what the run had, and what is new.
fn config(allowed: &[String], found: &Suggestions) -> String {
    let mut text = "[egress]\nallow = [\n".to_owned();
    for rule in allowed {
        text.push_str(&format!("  {rule:?},\n"));
    }
    for one in &found.rules {
        text.push_str(&format!("  {:?},  # refused {}\n", one.rule, times(one.count)));
    }
    text.push(']');
    text
}

fn times(n: u64) -> String {
    if n == 1 { "once".to_owned() } else { format!("{n} times") }
}

fn print(out: Out, source: &Source, found: &Suggestions) {
    let mut rows = Vec::new();
    for one in &found.rules {
        let note = one.note.as_deref().unwrap_or_default();
        rows.push(vec![one.rule.clone(), times(one.count), note.to_owned()]);
        if one.targets.len() > 1 {
            for asked in &one.targets {
                rows.push(vec![format!("  {}", asked.target), times(asked.count), String::new()]);
            }
        }
    }
    match found.rules.len() as u64 {
        0 => out.line("no rule to suggest"),
        n => {
            out.line(&format!("{} for review, most asked first:", count(n, "rule")));
            rows.insert(0, ["RULE", "REFUSED", "NOTE"].map(str::to_owned).to_vec());
            for (i, line) in table(&rows).into_iter().enumerate() {
                out.line(&if i == 0 { out.tone(Tone::Dim, &line) } else { line });
            }
        }
    }
    if !found.left_out.is_empty() {
        out.line("");
        out.line("no rule is suggested for:");
        let rows: Vec<Vec<String>> = found
            .left_out
            .iter()
            .map(|one| {
                vec![one.target.clone(), times(one.count), one.code.clone(), one.why.clone()]
            })
            .collect();
        table(&rows).into_iter().for_each(|line| out.line(&format!("  {line}")));
    }
    if !found.rules.is_empty() {
        out.line("");
        out.line("for one run:");
        out.line(&format!("  {}", flags(found)));
        out.line("for every run, in the configuration:");
        config(&source.spec.egress_allow, found)
            .lines()
            .for_each(|line| out.line(&format!("  {line}")));
        out.note("what an admitted host can take, the agent can send: admit what you need, not what was asked for");
    }
    source.caveats().iter().for_each(|caveat| out.note(&format!("note: {caveat}")));
}
