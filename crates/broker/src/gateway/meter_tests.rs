//! The account under arbitrary interleavings: what is spent and held never exceeds the budget while
//! providers keep to the bound that they were given.

use std::sync::Arc;

use cofferdam_run::Budgets;
use proptest::prelude::*;

use super::*;
use crate::log::MemoryLog;

#[derive(Debug, Clone)]
enum Step {
    Reserve { input: u64, output: u64 },
    Settle { which: usize, share: u64 },
    Release { which: usize },
    Drop { which: usize, sent: bool },
    Cover { which: usize, extra: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u64..400, 1u64..4_000).prop_map(|(input, output)| Step::Reserve { input, output }),
        (any::<usize>(), 0u64..=100).prop_map(|(which, share)| Step::Settle { which, share }),
        any::<usize>().prop_map(|which| Step::Release { which }),
        (any::<usize>(), any::<bool>()).prop_map(|(which, sent)| Step::Drop { which, sent }),
        (any::<usize>(), 0u64..2_000).prop_map(|(which, extra)| Step::Cover { which, extra }),
    ]
}

fn price() -> Price {
    serde_json::from_str(r#"{"input":1000000,"cache_read":1000000,"output":3000000}"#).unwrap()
}

fn used(reservation: &Reservation, share: u64) -> Tokens {
    Tokens {
        input: reservation.input() * share / 100,
        output: reservation.output() * share / 100,
        ..Tokens::default()
    }
}

proptest! {
    #[test]
    fn what_is_spent_and_held_stays_within_the_budget(
        steps in prop::collection::vec(step(), 1..80),
        money in prop::option::of(1_000u64..20_000),
    ) {
        let budgets = Budgets { tokens: 10_000, micro_usd: money, ..Budgets::default() };
        let log = Arc::new(MemoryLog::default());
        let meter = Meter::new(&budgets, true, Arc::clone(&log) as Arc<dyn BrokerLog>);
        let price = price();
        let mut open: Vec<Reservation> = Vec::new();
        for step in steps {
            match step {
                Step::Reserve { input, output } => {
                    let ask = Ask { input, output, least_output: output.min(16), price: Some(&price) };
                    match meter.reserve(ask) {
                        Ok(reservation) => open.push(reservation),
                        Err(Shortage::Held) => prop_assert!(!open.is_empty(), "nobody holds anything"),
                        Err(Shortage::Exhausted(_)) => {}
                    }
                }
                Step::Settle { which, share } if !open.is_empty() => {
                    let reservation = open.swap_remove(which % open.len());
                    let used = used(&reservation, share);
                    reservation.settle(Cost::Reported(used));
                }
                Step::Release { which } if !open.is_empty() => {
                    open.swap_remove(which % open.len()).release();
                }
                Step::Drop { which, sent } if !open.is_empty() => {
                    let mut reservation = open.swap_remove(which % open.len());
                    if sent {
                        reservation.mark_sent();
                    }
                }
                Step::Cover { which, extra } if !open.is_empty() => {
                    let at = which % open.len();
                    let mut more = used(&open[at], 100);
                    more.output += extra;
                    // Without room the call is cut; here it keeps what it had.
                    let _ = open[at].cover(more);
                }
                _ => {}
            }
            let account = meter.account();
            prop_assert!(account.spend.tokens() + account.held_tokens <= budgets.tokens);
            if let Some(money) = money {
                prop_assert!(account.cost + account.held_cost <= Amount::from(money) * MICRO_USD);
            }
        }
        open.clear();
        let account = meter.account();
        prop_assert_eq!((account.held_tokens, account.held_cost), (0, 0));
        prop_assert!(log.exhausted_budgets().len() <= 1);
    }
}

#[test]
fn a_lone_call_may_use_the_very_last_token() {
    let budgets = Budgets { tokens: 1_000, ..Budgets::default() };
    let log = Arc::new(MemoryLog::default());
    let meter = Meter::new(&budgets, false, Arc::clone(&log) as Arc<dyn BrokerLog>);
    let ask = Ask { input: 10, output: 100, least_output: 16, price: None };
    let mut reservation = meter.reserve(ask).unwrap();
    let all = Tokens { input: 10, output: 990, ..Tokens::default() };
    assert_eq!(reservation.cover(all), Ok(()));
    let over = Tokens { output: 991, ..all };
    assert_eq!(reservation.cover(over), Err(Shortage::Exhausted("tokens")));
    assert!(meter.spent().is_cancelled());
}
