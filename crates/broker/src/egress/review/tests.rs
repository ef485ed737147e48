//! Suggestions and replays, as tables.

use cofferdam_policy::{Authority, EgressPolicy, Services};
use cofferdam_run::Fact;

use super::{Change, decisions, left_out, replay, suggest};

fn fact(target: &str, admitted: bool, reason: &str) -> Fact {
    serde_json::from_value(serde_json::json!({
        "type": "egress", "target": target, "admitted": admitted, "reason": reason,
        "address": null, "bytes_out": 0, "bytes_in": 0, "outcome": "",
    }))
    .unwrap()
}

fn refused(target: &str) -> Fact {
    fact(target, false, "EGRESS-020: no rule admits it")
}

fn rules(facts: &[Fact], grouped: bool) -> Vec<(String, u64)> {
    let found = suggest(&decisions(facts), grouped);
    found.rules.into_iter().map(|one| (one.rule, one.count)).collect()
}

fn pairs(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected.iter().map(|(rule, count)| ((*rule).to_owned(), *count)).collect()
}

#[test]
fn refused_targets_become_exact_rules_most_asked_first() {
    let facts = [
        refused("static.crates.io:443"),
        refused("pypi.org:443"),
        refused("static.crates.io:443"),
        fact("index.crates.io:443", true, "index.crates.io:443"),
    ];
    let expected = pairs(&[("static.crates.io:443", 2), ("pypi.org:443", 1)]);
    assert_eq!(rules(&facts, true), expected);
}

#[test]
fn several_names_of_one_owner_become_one_wildcard_as_low_as_they_agree() {
    let facts = [
        refused("a.cdn.example.com:443"),
        refused("b.cdn.example.com:443"),
        refused("c.d.cdn.example.com:443"),
        refused("cdn.example.com:443"),
        refused("a.cdn.example.com:80"),
    ];
    // The suffix itself and the other port are not what the star stands for.
    assert_eq!(
        rules(&facts, true),
        pairs(&[
            ("*.cdn.example.com:443", 3),
            ("a.cdn.example.com:80", 1),
            ("cdn.example.com:443", 1)
        ])
    );
    assert_eq!(rules(&facts, false).len(), 5);
    let found = suggest(&decisions(&facts), true);
    assert_eq!(found.rules[0].targets.len(), 3);
    assert!(found.rules[0].note.as_ref().unwrap().contains("instead of 3 names"));
    // Two are not several.
    assert_eq!(rules(&facts[..2], true).len(), 2);
}

#[test]
fn no_wildcard_ever_spans_a_public_suffix() {
    for suffix in
        ["co.uk", "github.io", "s3.amazonaws.com", "pages.dev", "com", "compute.amazonaws.com"]
    {
        let facts: Vec<Fact> =
            (0..9).map(|n| refused(&format!("customer{n}.{suffix}:443"))).collect();
        let rules = rules(&facts, true);
        assert_eq!(rules.len(), 9, "{suffix}: {rules:?}");
        assert!(rules.iter().all(|(rule, _)| !rule.contains('*')), "{suffix}: {rules:?}");
    }
    // Below one customer it may.
    let facts: Vec<Fact> = (0..3).map(|n| refused(&format!("h{n}.me.github.io:443"))).collect();
    assert_eq!(rules(&facts, true), pairs(&[("*.me.github.io:443", 3)]));
}

#[test]
fn every_suggested_rule_loads_and_admits_just_what_it_is_for() {
    let facts: Vec<Fact> = ["a.x.example.org:443", "b.x.example.org:443", "c.x.example.org:443"]
        .into_iter()
        .chain(["93.184.216.34:443", "pypi.org:80", "x.example.org:443"])
        .map(refused)
        .collect();
    let found = suggest(&decisions(&facts), true);
    let allow: Vec<String> = found.rules.iter().map(|one| one.rule.clone()).collect();
    let policy = EgressPolicy::load(&allow, &[]).unwrap();
    for one in &found.rules {
        for asked in &one.targets {
            policy.decide(&Authority::parse(&asked.target).unwrap()).unwrap();
        }
    }
    let again = replay(&decisions(&facts), &policy, &Services::default(), &[]);
    assert_eq!(again.count(Change::NewlyAdmitted), facts.len() as u64);
}

#[test]
fn what_no_rule_should_open_is_explained_instead() {
    let service = "[services]";
    for (target, reason, why) in [
        ("127.0.0.1:8080", "EGRESS-020: no rule admits it", service),
        ("10.1.2.3:443", "EGRESS-020: no rule admits it", service),
        ("localhost:3000", "EGRESS-020: no rule admits it", service),
        ("db.internal:5432", "EGRESS-020: no rule admits it", service),
        ("printer.local:80", "EGRESS-020: no rule admits it", service),
        ("mirror:80", "EGRESS-020: no rule admits it", service),
        ("169.254.169.254:80", "EGRESS-020: no rule admits it", "metadata"),
        ("tracker.example.com:443", "EGRESS-021: denied by *.example.com:443", "deny beats allow"),
        ("a.example:443", "EGRESS-032: 10.0.0.1 is a private address", service),
        ("a.example:443", "EGRESS-023: plain HTTP to port 443", "https"),
        ("api.model.example:443", "EGRESS-024: a host of the model gateway", "gateway"),
        ("[2001:db8::1]:443", "EGRESS-025: IPv6 literals cannot be listed", "host name"),
        ("GET", "EGRESS-001: the request is malformed", "rules were not asked"),
        ("a.example:443", "EGRESS-010: the token is missing", "token"),
        ("not a target", "EGRESS-020: no rule admits it", "cannot be read"),
        ("a.example:443", "something else", "does not say why"),
    ] {
        let facts = [fact(target, false, reason)];
        let found = suggest(&decisions(&facts), true);
        assert!(found.rules.is_empty(), "{target} {reason}: {:?}", found.rules);
        assert!(found.left_out[0].why.contains(why), "{target} {reason}: {:?}", found.left_out);
    }
}

#[test]
fn replay_tells_what_becomes_of_each_target() {
    let facts = [
        fact("a.example:443", true, "a.example:443"),
        fact("b.example:443", true, "*.example:443"),
        refused("c.example:443"),
        refused("c.example:443"),
        refused("d.example:443"),
        // Stopped further on, or before the rules: other rules change nothing about that.
        fact("c.example:443", false, "EGRESS-032: 10.0.0.1 is a private address"),
        fact("c.example:443", false, "EGRESS-023: plain HTTP to port 443"),
        fact("c.example:443", false, "EGRESS-010: the token is missing or wrong"),
        refused("10.0.0.1:443"),
        refused("api.model.example:443"),
    ];
    let allow = ["a.example:443", "c.example:443", "10.0.0.1:443", "api.model.example:443"];
    let policy = EgressPolicy::load(&allow.map(str::to_owned), &[]).unwrap();
    let gatewayed = ["api.model.example:443".parse().unwrap()];
    let found = replay(&decisions(&facts), &policy, &Services::default(), &gatewayed);
    let of = |target: &str, before: &str| {
        let one = found.targets.iter().find(|o| o.target == target && o.before.starts_with(before));
        let one = one.unwrap();
        (one.change, one.count, one.after.split(':').next().unwrap().to_owned())
    };
    assert_eq!(of("a.example:443", "a.").0, Change::StillAdmitted);
    assert_eq!(of("b.example:443", "*").0, Change::NewlyRefused);
    assert_eq!(of("c.example:443", "EGRESS-020"), (Change::NewlyAdmitted, 2, "c.example".into()));
    assert_eq!(of("d.example:443", "EGRESS-020").0, Change::StillRefused);
    for code in ["EGRESS-032", "EGRESS-023", "EGRESS-010"] {
        assert_eq!(of("c.example:443", code), (Change::StillRefused, 1, code.into()));
    }
    // Listed, and still at an address that nothing is sent to, or at the model gateway's host.
    assert_eq!(of("10.0.0.1:443", "EGRESS-020").2, "EGRESS-032");
    assert_eq!(of("api.model.example:443", "EGRESS-020").2, "EGRESS-024");
    assert!(found.changes() && found.targets[0].change == Change::NewlyAdmitted);
    assert_eq!(found.count(Change::NewlyRefused), 1);
}

#[test]
fn decisions_that_were_only_counted_are_said() {
    let truncated = |kind: &str, count| Fact::Truncated { kind: kind.to_owned(), count };
    let facts = [truncated("egress", 7), truncated("model_call", 3), truncated("egress", 2)];
    assert_eq!(left_out(&facts), 9);
}
