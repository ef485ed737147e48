//! The simulation of durable runs: storms that must do no harm, and mistakes that must be found.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a step that fails is a test that fails"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cofferdam_testkit::simulation::{Config, Report, Sabotage, Template, live};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

fn shown(report: &Report) -> String {
    format!(
        "seed {}:\n  {}\n    {}\nagain with: cargo xtask simulate --seeds 1 --from {}",
        report.seed,
        report.violations.join("\n  "),
        report.trace.join("\n    "),
        report.seed
    )
}

/// Lives all of them on two threads. Each life by itself is on one thread and knows no other.
fn all(configs: Vec<Config>) -> Vec<Report> {
    let template = Arc::new(runtime().block_on(Template::new()).unwrap());
    let (configs, next) = (Arc::new(configs), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (template, configs, next) =
                (Arc::clone(&template), Arc::clone(&configs), Arc::clone(&next));
            std::thread::spawn(move || {
                let runtime = runtime();
                let mut reports = Vec::new();
                loop {
                    let place = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap();
                    let Some(config) = configs.get(place) else { break reports };
                    reports.push(runtime.block_on(live(&template, *config)).unwrap());
                }
            })
        })
        .collect();
    threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
}

#[test]
fn five_hundred_lives_break_no_rule() {
    let reports = all((0..500).map(Config::of_seed).collect());
    for report in &reports {
        assert!(report.violations.is_empty(), "{}", shown(report));
    }
    // The storm was one, and everything that can happen did.
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let (crashes, faults, effects) = (sum(|r| r.crashes), sum(|r| r.faults), sum(|r| r.effects));
    assert!(crashes > 500 && faults > 500 && effects > 50, "{crashes} {faults} {effects}");
    for state in ["completed", "failed", "dead_letter", "cancelled"] {
        let ended: u64 = reports.iter().filter_map(|r| r.ended.get(state)).sum();
        assert!(ended > 5, "only {ended} runs ended as {state}");
    }
}

#[test]
fn the_same_seed_gives_the_same_life() {
    let reports = all(vec![Config::of_seed(7), Config::of_seed(7)]);
    assert_eq!(reports[0].trace, reports[1].trace);
    assert!(!reports[0].trace.is_empty());
}

#[test]
fn a_life_may_be_stopped_at_each_of_its_boundaries() {
    // A rich life, and not a longer one than a test may take.
    let lives = all((0..12).map(|seed| Config::calm(seed, None)).collect());
    let fits = lives.into_iter().filter(|life| life.boundaries <= 500);
    let whole = fits.max_by_key(|life| life.boundaries).unwrap();
    assert!(whole.violations.is_empty(), "{}", shown(&whole));
    assert!(whole.boundaries > 150, "{}", whole.boundaries);
    let stopped = |n| Config::calm(whole.seed, Some(n));
    let reports = all((1..=whole.boundaries).map(stopped).collect());
    for report in &reports {
        assert!(report.violations.is_empty(), "{}", shown(report));
        assert_eq!(report.crashes, 1);
    }
}

/// The mistake is found within a few lives, by the rule that it breaks.
fn found(sabotage: Sabotage, rule: &str) {
    // In a worse and longer storm than usual, so that few lives are enough.
    let config = |seed| Config {
        sabotage: Some(sabotage),
        steps: 250,
        fault_permille: 150,
        ..Config::of_seed(seed)
    };
    let reports = all((0..40).map(config).collect());
    let caught = reports.iter().filter(|r| r.violations.iter().any(|v| v.contains(rule))).count();
    assert!(caught > 0, "no life of 40 noticed {sabotage:?}");
}

#[test]
fn a_double_claim_is_found() {
    found(Sabotage::DoubleClaim, "double claim");
}

#[test]
fn a_lost_event_is_found() {
    found(Sabotage::LostEvent, "lost event");
}

#[test]
fn a_revived_terminal_run_is_found() {
    found(Sabotage::RevivedTerminal, "revived");
}

#[test]
fn an_orphan_is_found() {
    found(Sabotage::Orphan, "orphan");
}

#[test]
fn a_double_effect_is_found() {
    found(Sabotage::DoubleEffect, "double effect");
}
