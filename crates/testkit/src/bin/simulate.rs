//! `simulate`: lives as many simulated lives as one likes, and prints the seed of each that goes wrong.
//!
//! `cargo xtask simulate --seeds N [--from S]` starts it.

use anyhow::{Context as _, bail};
use cofferdam_testkit::simulation::{Config, Template, live};

const USAGE: &str = "usage: simulate --seeds N [--from S]";

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let (mut seeds, mut from) = (500u64, 0u64);
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().with_context(|| format!("{name} needs a value\n{USAGE}"))?;
        match name.as_str() {
            "--seeds" => seeds = value.parse().context(USAGE)?,
            "--from" => from = value.parse().context(USAGE)?,
            _ => bail!("unknown argument {name}\n{USAGE}"),
        }
    }
    let template = Template::new().await?;
    let (mut boundaries, mut crashes, mut faults, mut wrong) = (0, 0, 0, 0u64);
    for seed in from..from.saturating_add(seeds) {
        let report = live(&template, Config::of_seed(seed)).await?;
        boundaries += report.boundaries;
        crashes += report.crashes;
        faults += report.faults;
        if !report.violations.is_empty() {
            wrong += 1;
            say(&format!("seed {seed}:"));
            report.violations.iter().for_each(|v| say(&format!("  {v}")));
            report.trace.iter().for_each(|t| say(&format!("    {t}")));
        }
    }
    say(&format!(
        "{seeds} lives from seed {from}: {boundaries} boundaries, {crashes} stops, {faults} faults, \
         {wrong} went wrong"
    ));
    if wrong > 0 {
        bail!("{wrong} of {seeds} lives broke a rule");
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "this program's output is its result")]
fn say(line: &str) {
    println!("{line}");
}
