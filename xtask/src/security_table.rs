//! The table of attempts in `SECURITY.md`, written from the attempts themselves: which promise and which
//! layer each goes against, and which negative control shows that the layer is what holds it.
//!
//! It reads the suite's own text for the controls, so a control that goes away goes from the table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, bail};
use cofferdam_security::{Attempt, Place, all};

use crate::sh;

const PAGE: &str = "SECURITY.md";
const BEGIN: &str = "<!-- attempts: written by cargo xtask security-table -->";
const END: &str = "<!-- end of attempts -->";
const SUITE: &str = "tests/security/tests/suite";

/// Writes the table, or only says whether it is up to date.
pub(crate) fn security_table(check: bool) -> anyhow::Result<()> {
    let path = sh::root().join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("read {PAGE}"))?;
    let (before, rest) = page.split_once(BEGIN).with_context(|| format!("{PAGE} lacks {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{PAGE} lacks {END}"))?;
    let fresh = format!("{before}{BEGIN}\n\n{}\n{END}{after}", table()?);
    if fresh == page {
        return Ok(());
    }
    if check {
        bail!(
            "the attempts in {PAGE} are not those of tests/security: run cargo xtask security-table"
        );
    }
    fs::write(&path, fresh).with_context(|| format!("write {PAGE}"))
}

fn table() -> anyhow::Result<String> {
    let controls = controls()?;
    let mut rows: BTreeMap<(u8, &str), Vec<&Attempt>> = BTreeMap::new();
    for attempt in all() {
        rows.entry((attempt.promise.number(), attempt.layer)).or_default().push(attempt);
    }
    let mut text = format!(
        "{} attempts. Those marked ¹ run beside guest and broker in a whole run, ² under tight limits, ³ against\n\
         things planted in the work volume (native); all others both ways, bare and in a whole run. What is marked ⁴\n\
         only the native engine holds.\n\n\
         | Promise | Layer | Attempts | Shown to be held by it |\n|---|---|---|---|\n",
        all().count()
    );
    for ((promise, layer), attempts) in rows {
        let names: Vec<String> = attempts.iter().map(|attempt| shown(attempt)).collect();
        let held: BTreeSet<&str> = controls
            .iter()
            .filter(|(_, flips)| attempts.iter().any(|a| flips.contains(a.name)))
            .map(|(test, _)| test.as_str())
            .collect();
        let held: Vec<String> = held.into_iter().map(|test| format!("`{test}`")).collect();
        text.push_str(&format!(
            "| {promise} | {} | {} | {} |\n",
            layer.replace('_', " "),
            names.join(", "),
            held.join(", ")
        ));
    }
    Ok(text)
}

fn shown(attempt: &Attempt) -> String {
    let mark = match attempt.place {
        Place::Anywhere => "",
        Place::Product => "¹",
        Place::Tight => "²",
        Place::Planted => "³",
    };
    let alone = if attempt.native_only.is_empty() { "" } else { "⁴" };
    let case = if attempt.case.is_empty() { String::new() } else { format!(" ({})", attempt.case) };
    format!("`{}`{mark}{alone}{case}", attempt.name)
}

/// Each control's test with the attempts that it flips.
fn controls() -> anyhow::Result<Vec<(String, BTreeSet<String>)>> {
    let path = sh::root().join(SUITE).join("controls.rs");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut flips: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for part in text.split("\nconst ").skip(1) {
        let Some((name, body)) = part.split_once(": Control") else { continue };
        // A blank line ends it: closures inside have ends of statements of their own.
        let body = body.split_once("\n\n").map_or(body, |(body, _)| body);
        let quoted = body.split('"').skip(1).step_by(2).filter(|word| word.contains('.'));
        flips.insert(name, quoted.map(str::to_owned).collect());
    }
    let known: BTreeSet<&str> = all().map(|attempt| attempt.name).collect();
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((test, constant)) = line.trim().trim_end_matches(',').split_once(" = ") else {
            continue;
        };
        let Some(names) = flips.get(constant) else { continue };
        if let Some(stray) = names.iter().find(|name| !known.contains(name.as_str())) {
            bail!("the control {test} names {stray}, which is no attempt");
        }
        found.push((test.to_owned(), names.clone()));
    }
    if found.len() < 20 {
        bail!("only {} controls found in {}: the reading is broken", found.len(), path.display());
    }
    Ok(found)
}
