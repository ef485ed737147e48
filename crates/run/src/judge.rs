//! The judge: from the facts of a run to its verdict. Pure, ordered, recomputable offline.
//!
//! All problems are collected and ranked; the highest decides, the rest become warnings. What the
//! guest claims can turn a success into a failure and never the other way round, and a fact that is
//! missing counts against the run: unknown is not a state.

mod findings;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use crate::fact::{CollectOutcome, Fact};
use crate::verdict::{Cause, Outcome, Verdict, Warning};
use findings::Seen;

/// Judges a run by its facts. Their order matters only where a later fact of one kind replaces an
/// earlier one: `collected`, `teardown`, `agent_ended`.
#[must_use]
pub fn judge<'a>(facts: impl IntoIterator<Item = &'a Fact>) -> Verdict {
    let seen = Seen::of(facts);
    let mut problems = seen.problems().into_iter();
    let cause = problems.next();
    let outcome = match &cause {
        None => Outcome::Completed,
        Some(Cause::Cancelled) => Outcome::Cancelled,
        Some(_) => Outcome::Failed,
    };
    let mut warnings: Vec<Warning> =
        problems.map(|c| Warning { code: c.code().to_owned(), text: c.to_string() }).collect();
    warnings.extend(seen.remarks());
    let summary = summary(outcome, cause.as_ref(), &seen);
    Verdict { outcome, cause, warnings, summary }
}

fn summary(outcome: Outcome, cause: Option<&Cause>, seen: &Seen<'_>) -> String {
    let work = match seen.collected.map(|c| c.outcome) {
        Some(CollectOutcome::Fetched { reference, commits, side_commits, .. }) => {
            let plural = if *commits == 1 { "" } else { "s" };
            let mut text = format!("{commits} commit{plural} on {reference}");
            if *side_commits > 0 {
                text.push_str(&format!(", {side_commits} more beside it"));
            }
            Some(text)
        }
        Some(CollectOutcome::NoCommits) => Some("the agent made no commits".to_owned()),
        Some(CollectOutcome::Failed { .. }) | None => None,
    };
    let mut line = outcome.as_str().to_owned();
    if let Some(cause) = cause {
        line.push_str(&format!(" ({}): {cause}", cause.code()));
    }
    match (cause, work) {
        (None, Some(work)) => line.push_str(&format!(": {work}")),
        (Some(_), Some(work)) => line.push_str(&format!("; {work}")),
        (_, None) => {}
    }
    line
}
