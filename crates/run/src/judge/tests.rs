//! Each rule, and each pair of rules in its order.

use super::judge;
use crate::fact::{CollectOutcome, Fact, ResourceUse, StopCause, TeardownOutcome};
use crate::fixtures::{REFERENCE, good_facts, layers, object, spec};
use crate::posture::{Layer, LayerStatus};
use crate::spec::Mode;
use crate::verdict::{Cause, Outcome};

pub(super) type Damage = (&'static str, fn(&mut Vec<Fact>));

fn drop_kind(facts: &mut Vec<Fact>, kind: &str) {
    facts.retain(|f| f.kind() != kind);
}

fn collected(facts: &mut Vec<Fact>, claimed: u64, outcome: CollectOutcome) {
    drop_kind(facts, "collected");
    facts.push(Fact::Collected {
        head_claim: None,
        commits_claim: claimed,
        outcome,
        not_taken_claim: vec![],
    });
}

fn fetched(commits: u64) -> CollectOutcome {
    CollectOutcome::Fetched {
        reference: REFERENCE.into(),
        head: object(3),
        commits,
        subjects: vec![],
        sides: vec![],
        side_commits: 0,
    }
}

fn beside(commits: u64, beside: u64) -> CollectOutcome {
    let mut outcome = fetched(commits);
    if let CollectOutcome::Fetched { side_commits, .. } = &mut outcome {
        *side_commits = beside;
    }
    outcome
}

fn not_taken(facts: &mut [Fact], names: &[&str]) {
    for fact in facts {
        if let Fact::Collected { not_taken_claim, .. } = fact {
            *not_taken_claim = names.iter().map(|&n| n.to_owned()).collect();
        }
    }
}

fn ended(facts: &mut Vec<Fact>, code: Option<i32>, signal: Option<i32>) {
    drop_kind(facts, "agent_ended");
    facts.push(Fact::AgentEnded {
        code_claim: code,
        signal_claim: signal,
        report_claim: "all done, great success".into(),
        output_cut_bytes: 0,
    });
}

fn stop(facts: &mut Vec<Fact>, cause: StopCause) {
    facts.push(Fact::Stopped { cause });
}

fn absent() -> LayerStatus {
    LayerStatus::Absent { reason: "not there".into() }
}

/// Highest rank first. Each inner list are ways to break the same rule: they exclude one another.
pub(super) fn ranks() -> Vec<Vec<Damage>> {
    vec![
        vec![("RUN-001", |f| {
            f.push(Fact::Canary {
                found_in: vec!["bundle".into()],
                searched: vec!["bundle".into()],
                unsearched: vec![],
            });
        })],
        vec![
            ("RUN-010", |f| {
                let reason = "the bundle is broken".into();
                collected(f, 2, CollectOutcome::Failed { reason, salvage: None });
            }),
            ("RUN-011", |f| drop_kind(f, "collected")),
            ("RUN-012", |f| collected(f, 2, CollectOutcome::NoCommits)),
            ("RUN-012", |f| collected(f, 3, fetched(2))),
            ("RUN-012", |f| collected(f, 4, beside(2, 1))),
            ("RUN-012", |f| not_taken(f, &["big.bin: too large"])),
        ],
        vec![("RUN-020", |f| {
            for fact in f.iter_mut() {
                if let Fact::SandboxPrepared { read_back, .. } = fact {
                    read_back[3].status = absent();
                }
            }
        })],
        vec![("RUN-021", |f| drop_kind(f, "posture"))],
        vec![("RUN-022", |f| {
            stop(f, StopCause::PostureRefused { layer: "seccomp".into(), detail: "off".into() });
        })],
        vec![("RUN-023", |f| {
            f.retain(|f| !matches!(f, Fact::Canary { found_in, .. } if found_in.is_empty()))
        })],
        vec![("RUN-024", |f| stop(f, StopCause::EgressOpen { detail: "dns answered".into() }))],
        vec![
            ("RUN-025", |f| drop_kind(f, "egress_test")),
            ("RUN-025", |f| {
                drop_kind(f, "egress_test");
                f.push(Fact::EgressTest {
                    target: "denied.invalid:443".into(),
                    refused: false,
                    status_claim: Some(403),
                    open_claim: vec![],
                });
            }),
        ],
        vec![
            ("RUN-030", |f| {
                let outcome = TeardownOutcome::Failed { detail: "busy".into() };
                f.push(Fact::Teardown { outcome });
            }),
            ("RUN-031", |f| drop_kind(f, "teardown")),
        ],
        vec![
            ("RUN-040", |f| f.push(Fact::PromptUnanswered { text: "may I?".into() })),
            ("RUN-040", |f| f.push(Fact::Truncated { kind: "prompt_unanswered".into(), count: 7 })),
        ],
        vec![("RUN-050", |f| stop(f, StopCause::Cancelled))],
        vec![("RUN-051", |f| stop(f, StopCause::Budget { budget: "tokens".into() }))],
        vec![
            ("RUN-052", |f| f.push(Fact::SandboxEnded { exit: Some(137), oom_killed: true })),
            ("RUN-052", |f| {
                let usage = ResourceUse { oom_kills: Some(1), ..ResourceUse::default() };
                f.push(Fact::Resources { usage });
            }),
        ],
        vec![("RUN-053", |f| stop(f, StopCause::HostLost))],
        vec![("RUN-054", |f| stop(f, StopCause::HostError { detail: "no space".into() }))],
        vec![("RUN-055", |f| stop(f, StopCause::Protocol { detail: "frame too long".into() }))],
        vec![("RUN-056", |f| stop(f, StopCause::NoHello))],
        vec![("RUN-057", |f| stop(f, StopCause::LinkLost))],
        vec![
            ("RUN-058", |f| f.push(Fact::GuestError { message_claim: "no git".into() })),
            ("RUN-058", |f| stop(f, StopCause::GuestFailed { detail_claim: "no git".into() })),
        ],
        vec![
            ("RUN-059", |f| {
                let usage = ResourceUse { pids_refused: Some(7), ..ResourceUse::default() };
                f.push(Fact::Resources { usage });
                ended(f, Some(2), None);
            }),
            ("RUN-060", |f| ended(f, Some(3), None)),
            ("RUN-061", |f| ended(f, None, Some(9))),
            ("RUN-062", |f| ended(f, None, None)),
            ("RUN-062", |f| drop_kind(f, "agent_ended")),
        ],
        vec![("RUN-070", |f| {
            drop_kind(f, "workspace_in");
            f.push(Fact::WorkspaceIn { head_claim: object(9) });
        })],
        vec![
            ("RUN-071", |f| drop_kind(f, "snapshot")),
            ("RUN-071", |f| drop_kind(f, "sandbox_prepared")),
            ("RUN-071", |f| drop_kind(f, "armed")),
        ],
    ]
}

fn code(facts: &[Fact]) -> &'static str {
    judge(facts).cause.map_or("none", |c| c.code())
}

#[test]
fn a_run_that_did_everything_is_completed() {
    let verdict = judge(&good_facts(Mode::Unattended));
    assert_eq!(verdict.outcome, Outcome::Completed);
    assert_eq!(verdict.cause, None);
    assert_eq!(verdict.warnings, []);
    assert_eq!(verdict.summary, "completed: 2 commits on refs/cofferdam/runs/7k2m9qxc");
}

#[test]
fn a_run_without_commits_is_completed_and_says_so() {
    let mut facts = good_facts(Mode::Unattended);
    collected(&mut facts, 0, CollectOutcome::NoCommits);
    let verdict = judge(&facts);
    assert_eq!(verdict.outcome, Outcome::Completed);
    assert_eq!(verdict.summary, "completed: the agent made no commits");
}

#[test]
fn each_rule_gives_its_code() {
    for (expected, damage) in ranks().into_iter().flatten() {
        let mut facts = good_facts(Mode::Unattended);
        damage(&mut facts);
        assert_eq!(code(&facts), expected);
        let expected_outcome =
            if expected == "RUN-050" { Outcome::Cancelled } else { Outcome::Failed };
        assert_eq!(judge(&facts).outcome, expected_outcome, "{expected}");
    }
}

#[test]
fn an_earlier_rule_outranks_a_later_one_whichever_happened_first() {
    let ranks = ranks();
    for (high, first) in ranks.iter().enumerate() {
        for second in &ranks[high + 1..] {
            for (high_code, high_damage) in first {
                for (low_code, low_damage) in second {
                    for order in [[high_damage, low_damage], [low_damage, high_damage]] {
                        let mut facts = good_facts(Mode::Unattended);
                        for damage in order {
                            damage(&mut facts);
                        }
                        // A dropped fact can take with it what was wrong in or beside it.
                        if ["RUN-020", "RUN-070"].contains(high_code) && *low_code == "RUN-071" {
                            assert_ne!(code(&facts), "none");
                            continue;
                        }
                        assert_eq!(code(&facts), *high_code, "with {low_code}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_outranked_becomes_a_warning() {
    let mut facts = good_facts(Mode::Unattended);
    stop(&mut facts, StopCause::Cancelled);
    facts.push(Fact::Teardown { outcome: TeardownOutcome::Failed { detail: "busy".into() } });
    let verdict = judge(&facts);
    assert_eq!(verdict.outcome, Outcome::Failed);
    let codes: Vec<&str> = verdict.warnings.iter().map(|w| w.code.as_str()).collect();
    assert_eq!(codes, ["RUN-050"]);
}

#[test]
fn codes_are_listed_in_rank_order() {
    assert!(Cause::CODES.is_sorted());
    let tested: Vec<&str> = ranks().into_iter().flatten().map(|(code, _)| code).collect();
    for code in Cause::CODES {
        assert!(tested.contains(code), "{code} has no test");
    }
}

#[test]
fn no_single_layer_may_be_missing_or_unreported() {
    for (index, layer) in Layer::ALL.into_iter().enumerate() {
        for status in
            [Some(absent()), Some(LayerStatus::Degraded { reason: "in part".into() }), None]
        {
            let mut facts = good_facts(Mode::Unattended);
            for fact in &mut facts {
                if let Fact::Posture { layers, .. } = fact {
                    match &status {
                        Some(status) => layers[index].status = status.clone(),
                        None => layers.retain(|r| r.layer != layer),
                    }
                }
            }
            assert_eq!(code(&facts), "RUN-020", "{layer:?} {status:?}");
            if let Fact::Armed { spec, .. } = &mut facts[0] {
                spec.accept_degraded.push(layer.as_str().into());
            }
            assert_eq!(code(&facts), "none", "{layer:?} accepted");
        }
    }
}

#[test]
fn a_second_posture_cannot_hide_a_bad_first_one() {
    let mut facts = good_facts(Mode::Unattended);
    let bad = Fact::Posture { probe_claim: Default::default(), layers: layers(&absent()) };
    facts.insert(3, bad);
    assert_eq!(code(&facts), "RUN-020");
}

#[test]
fn supervised_runs_may_leave_questions_open() {
    let mut facts = good_facts(Mode::Supervised);
    facts.push(Fact::PromptUnanswered { text: "may I?".into() });
    let verdict = judge(&facts);
    assert_eq!(verdict.outcome, Outcome::Completed);
    assert_eq!(verdict.warnings[0].code, "RUN-104");
}

#[test]
fn a_run_cancelled_before_an_agent_ran_is_cancelled() {
    let armed = Fact::Armed { version: "0.1.0".into(), spec: spec(Mode::Unattended) };
    let mut facts = vec![armed, Fact::Stopped { cause: StopCause::Cancelled }];
    assert_eq!(judge(&facts).outcome, Outcome::Cancelled);
    // Once there is a sandbox, it must be gone.
    facts.push(good_facts(Mode::Unattended).swap_remove(2));
    assert_eq!(code(&facts), "RUN-031");
    facts.push(Fact::Teardown { outcome: TeardownOutcome::AlreadyGone });
    assert_eq!(judge(&facts).outcome, Outcome::Cancelled);
}

#[test]
fn nothing_known_is_not_success() {
    let verdict = judge(&[]);
    assert_eq!(verdict.cause, Some(Cause::Incomplete { missing: "armed".into() }));
}

#[test]
fn refused_connections_are_counted_and_do_not_decide() {
    let mut facts = good_facts(Mode::Unattended);
    for _ in 0..3 {
        facts.push(Fact::Egress {
            target: "evil.example:443".into(),
            admitted: false,
            reason: "EGRESS-001".into(),
            address: None,
            bytes_out: 0,
            bytes_in: 0,
            outcome: String::new(),
            principal: None,
        });
    }
    let verdict = judge(&facts);
    assert_eq!(verdict.outcome, Outcome::Completed);
    assert_eq!(verdict.warnings[0].text, "3 connections were refused");
}

#[test]
fn endless_guest_errors_do_not_swell_the_verdict() {
    let mut facts = good_facts(Mode::Unattended);
    for _ in 0..1_000 {
        facts.push(Fact::GuestError { message_claim: "x".repeat(100_000) });
    }
    let verdict = judge(&facts);
    assert!(serde_json::to_string(&verdict).unwrap().len() < 20_000);
    assert!(verdict.warnings.iter().any(|w| w.text == "the guest reported 999 more errors"));
}

#[test]
fn a_later_collection_replaces_an_earlier_failure() {
    let mut facts = good_facts(Mode::Unattended);
    let failed = CollectOutcome::Failed { reason: "link".into(), salvage: None };
    let failed = Fact::Collected {
        head_claim: None,
        commits_claim: 2,
        outcome: failed,
        not_taken_claim: vec![],
    };
    facts.insert(7, failed);
    assert_eq!(code(&facts), "none");
}

#[test]
fn commits_beside_the_head_count_as_fetched_and_are_told() {
    let mut facts = good_facts(Mode::Unattended);
    collected(&mut facts, 3, beside(1, 2));
    let verdict = judge(&facts);
    assert_eq!(verdict.outcome, Outcome::Completed);
    assert_eq!(verdict.warnings, []);
    let expected = "completed: 1 commit on refs/cofferdam/runs/7k2m9qxc, 2 more beside it";
    assert_eq!(verdict.summary, expected);
}

#[test]
fn what_was_not_taken_is_never_completed_and_is_named() {
    for outcome in [CollectOutcome::NoCommits, fetched(0)] {
        let mut facts = good_facts(Mode::Unattended);
        collected(&mut facts, 0, outcome);
        not_taken(&mut facts, &["one", "two"]);
        let verdict = judge(&facts);
        assert_eq!(verdict.outcome, Outcome::Failed);
        assert!(verdict.summary.contains("could not be taken: one; two"), "{}", verdict.summary);
    }
    let mut facts = good_facts(Mode::Unattended);
    not_taken(&mut facts, &["x"; 60]);
    assert!(judge(&facts).summary.contains("and 50 more"));
}

#[test]
fn a_collection_from_before_these_fields_is_read_and_written_unchanged() {
    let facts = good_facts(Mode::Unattended);
    let old = facts.iter().find(|f| f.kind() == "collected").unwrap();
    let text = serde_json::to_string(old).unwrap();
    assert!(!text.contains("not_taken") && !text.contains("side_commits"), "{text}");
    assert_eq!(&serde_json::from_str::<Fact>(&text).unwrap(), old);
}
