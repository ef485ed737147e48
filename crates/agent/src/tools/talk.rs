//! `plan` and `finish`: the tools that touch nothing.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Outcome, ToolError, parse, schema};
use crate::limits::{PLAN_STEPS_MAX, REPORT_CHARS_MAX};
use crate::model::ToolSpec;
use crate::text::{clip, one_line, printable};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    steps: Vec<String>,
}

pub(super) fn plan_spec() -> ToolSpec {
    ToolSpec {
        name: "plan",
        description: "States the plan, in order, one short line per step. Call it first, and again when the plan \
                      changes."
            .to_owned(),
        schema: schema(&[("steps", "array", true, "The steps, in order.")]),
    }
}

pub(super) fn plan(arguments: Map<String, Value>) -> Result<Outcome, ToolError> {
    let Plan { steps } = parse(arguments)?;
    if steps.is_empty() || steps.len() > PLAN_STEPS_MAX {
        return Err(ToolError(format!(
            "A plan has 1 to {PLAN_STEPS_MAX} steps; this one has {}.",
            steps.len()
        )));
    }
    Ok(Outcome::Plan(steps.iter().map(|s| one_line(s)).collect()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Finish {
    report: String,
}

pub(super) fn finish_spec() -> ToolSpec {
    ToolSpec {
        name: "finish",
        description: "Ends the work. Call it alone, once everything is done and committed, or when it cannot be done."
            .to_owned(),
        schema: schema(&[(
            "report",
            "string",
            true,
            "What was done, how it was checked, and what is left or doubtful. The person reads this hours later.",
        )]),
    }
}

pub(super) fn finish(arguments: Map<String, Value>) -> Result<Outcome, ToolError> {
    let Finish { report } = parse(arguments)?;
    let report = printable(report.trim());
    if report.is_empty() {
        return Err(ToolError::new("The report is empty. Say what was done and what is left."));
    }
    Ok(Outcome::Finish(clip(&report, REPORT_CHARS_MAX)))
}
