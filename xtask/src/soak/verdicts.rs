//! Every run has a terminal verdict and a record that verifies; none is called completed with work
//! that was not fetched; no commit that the agent told of is lost.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;

use serde_json::Value;

use super::fate::{Ending, Fate};
use super::{Options, World};
use crate::sh;

/// Checks them all. Gives what does not hold.
pub(super) fn check(world: &World, options: &Options) -> anyhow::Result<Vec<String>> {
    let listed = world.json(&["ps", "--json", "-n", "10000"])?;
    let runs = listed["runs"].as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    for run in &runs {
        let id = run["run"].as_str().unwrap_or_default();
        let state = run["state"].as_str().unwrap_or_default();
        *outcomes.entry(state.to_owned()).or_default() += 1;
        if !matches!(state, "completed" | "failed" | "cancelled") {
            found.push(format!("{id} has no verdict: {run}"));
            continue;
        }
        // One that nobody ever claimed ends without a record of work.
        match record(world, id) {
            Ok(record) => judge(world, options, id, run, &record, &mut found)?,
            Err(error) => found.push(format!("{id}: {error:#}")),
        }
    }
    sh::say(&format!("   {} runs: {outcomes:?}", runs.len()));
    Ok(found)
}

/// The record, verified.
fn record(world: &World, id: &str) -> anyhow::Result<Value> {
    let text = sh::output(&mut world.cofferdam(&["record", "show", id]))?;
    let file = world.place.join("out/record.json");
    fs::write(&file, &text)?;
    let path = file.display().to_string();
    sh::run(world.cofferdam(&["record", "verify", &path]).stdout(Stdio::null()))?;
    Ok(serde_json::from_str(&text)?)
}

fn judge(
    world: &World,
    options: &Options,
    id: &str,
    run: &Value,
    record: &Value,
    found: &mut Vec<String>,
) -> anyhow::Result<()> {
    let title = run["task"].as_str().unwrap_or_default();
    let number = title.split("soak-").nth(1).and_then(|t| t.split(' ').next()?.parse().ok());
    let Some(number) = number else {
        found.push(format!("{id} is none of ours: {title}"));
        return Ok(());
    };
    let fate = Fate::of(options.seed, number, options.kill);
    let entries = record["entries"].as_array().cloned().unwrap_or_default();
    let last = |kind: &str| entries.iter().rev().find(|e| e["type"] == kind).cloned();
    let collected = last("collected").unwrap_or_default();
    let outcome = &collected["outcome"];
    let fetched = outcome["outcome"] == "fetched";
    if run["state"] == "completed" && fate.has_commits() {
        let commits = outcome["commits"].as_u64().unwrap_or(0)
            + outcome["side_commits"].as_u64().unwrap_or(0);
        if !fetched || commits == 0 {
            found.push(format!("{id} ({fate:?}) is completed without its commits: {outcome}"));
        }
    }
    if fetched {
        let reference = outcome["reference"].as_str().unwrap_or_default();
        let head = world.git(&["rev-parse", "--verify", "--quiet", reference]).unwrap_or_default();
        if outcome["head"] != head.as_str() {
            found.push(format!("{id}: {reference} is {head:?}, the record says {outcome}"));
        }
    }
    // The agent said that it had committed, and the host heard it: then it is somewhere.
    let logs = sh::output(&mut world.cofferdam(&["logs", "--output", id]))?;
    let salvage = outcome["salvage"].as_str();
    if logs.contains("COMMITTED") && !fetched {
        match salvage {
            Some(place) if std::path::Path::new(place).exists() => {}
            _ => found.push(format!("{id} ({fate:?}): committed work is lost: {collected}")),
        }
    }
    if matches!(fate.ending, Ending::Itself) && run["state"] == "failed" {
        let cause = record["verdict"]["cause"]["code"].as_str().unwrap_or_default();
        // An agent that fails, and one that is ended by its wall clock.
        if !matches!(cause, "RUN-051" | "RUN-060" | "RUN-061") {
            found.push(format!("{id} ({fate:?}) failed by itself: {}", record["verdict"]));
        }
    }
    Ok(())
}
