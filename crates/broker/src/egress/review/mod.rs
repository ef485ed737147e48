//! Looking back at what a run asked for: which rules would have admitted what was refused, and what
//! other rules would have decided.
//!
//! Works on recorded targets alone and decides by text, as the door does before any lookup. It must
//! never look up or connect to anything, and never propose what no rule should open.

mod replay;
mod suggest;

use cofferdam_policy::RefusalCode;
use cofferdam_run::Fact;

pub use replay::{Change, Decided, Replay, replay};
pub use suggest::{Asked, GROUP_FROM, LeftOut, Suggestion, Suggestions, suggest};

/// One recorded decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision<'a> {
    /// The target as recorded: a canonical authority, or what was left of an unreadable request.
    pub target: &'a str,
    /// It was admitted.
    pub admitted: bool,
    /// The code of the refusal; `None` when admitted or when the record is of an unknown kind.
    pub code: Option<RefusalCode>,
    /// The rule, or code and reason.
    pub reason: &'a str,
}

/// The decisions among the facts of a run, in order.
pub fn decisions<'a>(facts: impl IntoIterator<Item = &'a Fact>) -> Vec<Decision<'a>> {
    facts
        .into_iter()
        .filter_map(|fact| match fact {
            Fact::Egress { target, admitted, reason, .. } => Some(Decision {
                target,
                admitted: *admitted,
                code: if *admitted { None } else { code_of(reason) },
                reason,
            }),
            _ => None,
        })
        .collect()
}

/// How many decisions the record counts and does not hold.
pub fn left_out<'a>(facts: impl IntoIterator<Item = &'a Fact>) -> u64 {
    facts
        .into_iter()
        .map(|fact| match fact {
            Fact::Truncated { kind, count } if kind == "egress" => *count,
            _ => 0,
        })
        .sum()
}

fn code_of(reason: &str) -> Option<RefusalCode> {
    RefusalCode::parse(reason.split(':').next().unwrap_or_default())
}

#[cfg(test)]
mod tests;
