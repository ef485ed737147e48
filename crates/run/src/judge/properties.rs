//! What holds for the judge whatever the facts are.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

use super::judge;
use super::tests::ranks;
use crate::fact::Fact;
use crate::fixtures::good_facts;
use crate::limits::Spend;
use crate::spec::Mode;
use crate::verdict::{Cause, Outcome};

/// Any run: some facts missing, some damage done, all in any order.
fn any_facts() -> impl Strategy<Value = Vec<Fact>> {
    let good = good_facts(Mode::Unattended);
    let most = subsequence(good.clone(), (good.len() - 3)..=good.len());
    let damages: Vec<_> = ranks().into_iter().flatten().collect();
    let some = vec(select(damages), 0..4);
    (most, some)
        .prop_map(|(mut facts, damages)| {
            for (_, damage) in damages {
                damage(&mut facts);
            }
            facts
        })
        .prop_shuffle()
}

fn irrelevant() -> impl Strategy<Value = Fact> {
    select(vec![
        Fact::AgentClaim { kind: "message".into(), text: "all tests pass".into() },
        Fact::Note { text: "hm".into() },
        Fact::Retained { kind: "bundle".into(), place: "/x".into(), until_ms: 1 },
        Fact::Egress {
            target: "a.example:443".into(),
            admitted: true,
            reason: "allow".into(),
            address: None,
            bytes_out: 1,
            bytes_in: 1,
            outcome: "closed".into(),
            principal: Some(crate::spec::Principal::Shell),
        },
        Fact::ModelCall {
            request: "POST /v1/messages".into(),
            model: "a-model".into(),
            status: 200,
            refusal: None,
            usage: Spend::default(),
            bytes_out: 1,
            bytes_in: 1,
            retry_after_ms: None,
        },
    ])
}

proptest! {
    #[test]
    fn a_leak_outranks_everything(mut facts in any_facts(), place in any::<Index>()) {
        let leak = Fact::Canary { found_in: vec!["output".into()], searched: vec!["output".into()], unsearched: vec![] };
        facts.insert(place.index(facts.len() + 1), leak);
        let verdict = judge(&facts);
        prop_assert_eq!(verdict.outcome, Outcome::Failed);
        prop_assert_eq!(verdict.cause.map(|c| c.code()), Some("RUN-001"));
    }

    #[test]
    fn without_a_teardown_nothing_completes(mut facts in any_facts()) {
        facts.retain(|f| f.kind() != "teardown");
        prop_assert_ne!(judge(&facts).outcome, Outcome::Completed);
    }

    #[test]
    fn without_any_one_needed_fact_nothing_completes(mut facts in any_facts(), which in 0usize..11) {
        let kind = good_facts(Mode::Unattended)[which].kind();
        facts.retain(|f| f.kind() != kind);
        prop_assert_ne!(judge(&facts).outcome, Outcome::Completed, "without {}", kind);
    }

    #[test]
    fn outcome_and_cause_agree(facts in any_facts()) {
        let verdict = judge(&facts);
        match verdict.outcome {
            Outcome::Completed => prop_assert_eq!(verdict.cause, None),
            Outcome::Cancelled => prop_assert_eq!(verdict.cause, Some(Cause::Cancelled)),
            Outcome::Failed => {
                prop_assert!(verdict.cause.is_some());
                prop_assert_ne!(verdict.cause, Some(Cause::Cancelled));
            }
        }
    }

    #[test]
    fn irrelevant_facts_do_not_matter(
        facts in any_facts(),
        extra in vec((irrelevant(), any::<Index>()), 0..20),
    ) {
        let before = judge(&facts);
        let mut with = facts;
        for (fact, place) in extra {
            with.insert(place.index(with.len() + 1), fact);
        }
        prop_assert_eq!(judge(&with), before);
    }

    #[test]
    fn the_order_of_single_facts_does_not_matter(facts in Just(good_facts(Mode::Unattended)).prop_shuffle()) {
        prop_assert_eq!(judge(&facts), judge(&good_facts(Mode::Unattended)));
    }

    /// Whatever the guest says about exit, commits and base: what the host saw stays a failure.
    #[test]
    fn claims_never_turn_a_failure_into_success(
        mut facts in any_facts(),
        code in any::<Option<i32>>(),
        commits in 0u64..5,
    ) {
        let host_saw_failure = {
            // The kindest claims that a guest could make.
            let mut kind = facts.clone();
            set_claims(&mut kind, Some(0), 0);
            judge(&kind).outcome != Outcome::Completed
        };
        set_claims(&mut facts, code, commits);
        if host_saw_failure {
            prop_assert_ne!(judge(&facts).outcome, Outcome::Completed);
        }
    }
}

fn set_claims(facts: &mut [Fact], code: Option<i32>, commits: u64) {
    for fact in facts {
        if let Fact::AgentEnded { code_claim, signal_claim, .. } = fact {
            *code_claim = code;
            *signal_claim = None;
        } else if let Fact::Collected { commits_claim, head_claim, .. } = fact {
            *commits_claim = commits;
            *head_claim = None;
        }
    }
}
