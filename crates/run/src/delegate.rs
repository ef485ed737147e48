//! Delegation: whether a run may hand part of its task to a child.
//!
//! Pure. A child's budget is taken from its parent's before it may spend any of it; depth, children
//! per turn and tasks per tree are bounded; a task that is its own ancestor, or that lives already in
//! the same tree, is refused.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Digest, TaskId};
use crate::limits::{Budgets, Spend};

/// Bounds of a tree of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DelegationLimits {
    /// Levels below the root. 0: no delegation.
    pub max_depth: u32,
    /// Children that one turn of an agent may make.
    pub per_turn: u32,
    /// Delegated tasks of a whole tree, over its whole life.
    pub per_tree: u32,
}

impl Default for DelegationLimits {
    fn default() -> Self {
        Self { max_depth: 2, per_turn: 4, per_tree: 16 }
    }
}

/// A part of a budget: what can be shared between runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Share {
    /// Model tokens.
    pub tokens: u64,
    /// Money in micro-dollars; `None` where none is counted.
    pub micro_usd: Option<u64>,
    /// Model calls.
    pub model_calls: u64,
}

impl Share {
    /// What budgets ask for.
    #[must_use]
    pub fn of(budgets: &Budgets) -> Self {
        Self {
            tokens: budgets.tokens,
            micro_usd: budgets.micro_usd,
            model_calls: budgets.model_calls,
        }
    }

    /// What was spent.
    #[must_use]
    pub fn spent(spend: &Spend) -> Self {
        Self { tokens: spend.tokens(), micro_usd: spend.micro_usd, model_calls: spend.model_calls }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            micro_usd: match (self.micro_usd, other.micro_usd) {
                (None, None) => None,
                (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
            },
            model_calls: self.model_calls.saturating_add(other.model_calls),
        }
    }

    /// What is left of `self` without `other`, never below zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_sub(other.tokens),
            micro_usd: self.micro_usd.map(|all| all.saturating_sub(other.micro_usd.unwrap_or(0))),
            model_calls: self.model_calls.saturating_sub(other.model_calls),
        }
    }

    /// The name of a budget that `other` would take more of than there is.
    #[must_use]
    pub fn lacks(self, other: Self) -> Option<&'static str> {
        if other.tokens > self.tokens {
            return Some("tokens");
        }
        if other.model_calls > self.model_calls {
            return Some("model_calls");
        }
        match (self.micro_usd, other.micro_usd) {
            (Some(all), Some(part)) if part > all => Some("money"),
            // A child without a bound on money under a parent with one.
            (Some(_), None) => Some("money"),
            _ => None,
        }
    }
}

/// What is known of the tree when a run asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Depth of the run that asks; 0 for the root.
    pub depth: u32,
    /// The asking task and its ancestors.
    pub ancestors: Vec<(TaskId, Digest)>,
    /// Other tasks of the tree that are open.
    pub open: Vec<(TaskId, Digest)>,
    /// Tasks ever delegated in the tree.
    pub delegated: u32,
    /// Tasks delegated by this run in this turn.
    pub this_turn: u32,
    /// What the asking run may still spend itself.
    pub allowance: Share,
}

/// Why a run may not delegate. A result for the agent, not a fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DelegationRefusal {
    /// Too deep.
    #[error("at most {max} levels of delegation are allowed")]
    Depth {
        /// The bound.
        max: u32,
    },
    /// Too many at once.
    #[error("a turn may delegate at most {max} tasks")]
    Turn {
        /// The bound.
        max: u32,
    },
    /// Too many altogether.
    #[error("a tree may have at most {max} delegated tasks")]
    TreeFull {
        /// The bound.
        max: u32,
    },
    /// It would delegate itself.
    #[error("the task {task} above it is the same")]
    Cycle {
        /// The ancestor.
        task: TaskId,
    },
    /// The same is being done.
    #[error("the task {task} of the same tree is the same and not over")]
    SameIntent {
        /// Which.
        task: TaskId,
    },
    /// The parent has not that much.
    #[error("not enough is left of the budget {budget}")]
    Budget {
        /// Which.
        budget: &'static str,
    },
    /// Nothing is asked for.
    #[error("a child needs tokens and model calls of its own")]
    EmptyShare,
}

/// Whether a child of that intent and share may be made.
///
/// # Errors
/// The first rule that it breaks.
pub fn admit(
    limits: &DelegationLimits,
    tree: &Tree,
    intent: &Digest,
    share: Share,
) -> Result<(), DelegationRefusal> {
    if tree.depth >= limits.max_depth {
        return Err(DelegationRefusal::Depth { max: limits.max_depth });
    }
    let same = |list: &[(TaskId, Digest)]| {
        list.iter().find(|(_, known)| known == intent).map(|(task, _)| task.clone())
    };
    if let Some(task) = same(&tree.ancestors) {
        return Err(DelegationRefusal::Cycle { task });
    }
    if let Some(task) = same(&tree.open) {
        return Err(DelegationRefusal::SameIntent { task });
    }
    if tree.this_turn >= limits.per_turn {
        return Err(DelegationRefusal::Turn { max: limits.per_turn });
    }
    if tree.delegated >= limits.per_tree {
        return Err(DelegationRefusal::TreeFull { max: limits.per_tree });
    }
    if share.tokens == 0 || share.model_calls == 0 {
        return Err(DelegationRefusal::EmptyShare);
    }
    match tree.allowance.lacks(share) {
        Some(budget) => Err(DelegationRefusal::Budget { budget }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(n: u8) -> TaskId {
        TaskId::from_entropy([n; 5])
    }

    fn intent(n: u8) -> Digest {
        Digest::of(&[n])
    }

    fn share(tokens: u64) -> Share {
        Share { tokens, micro_usd: None, model_calls: 1 }
    }

    fn tree() -> Tree {
        Tree {
            depth: 1,
            ancestors: vec![(task(1), intent(1)), (task(0), intent(0))],
            open: vec![(task(2), intent(2))],
            delegated: 3,
            this_turn: 0,
            allowance: Share { tokens: 100, micro_usd: None, model_calls: 10 },
        }
    }

    fn check(tree: &Tree, n: u8, tokens: u64, expect: Result<(), DelegationRefusal>) {
        assert_eq!(admit(&DelegationLimits::default(), tree, &intent(n), share(tokens)), expect);
    }

    #[test]
    fn a_new_intent_within_the_bounds_is_admitted() {
        check(&tree(), 9, 100, Ok(()));
    }

    #[test]
    fn each_rule_refuses() {
        check(&Tree { depth: 2, ..tree() }, 9, 1, Err(DelegationRefusal::Depth { max: 2 }));
        check(&tree(), 0, 1, Err(DelegationRefusal::Cycle { task: task(0) }));
        check(&tree(), 1, 1, Err(DelegationRefusal::Cycle { task: task(1) }));
        check(&tree(), 2, 1, Err(DelegationRefusal::SameIntent { task: task(2) }));
        check(&Tree { this_turn: 4, ..tree() }, 9, 1, Err(DelegationRefusal::Turn { max: 4 }));
        check(
            &Tree { delegated: 16, ..tree() },
            9,
            1,
            Err(DelegationRefusal::TreeFull { max: 16 }),
        );
        check(&tree(), 9, 101, Err(DelegationRefusal::Budget { budget: "tokens" }));
        check(&tree(), 9, 0, Err(DelegationRefusal::EmptyShare));
    }

    #[test]
    fn a_child_without_a_bound_on_money_cannot_escape_its_parents() {
        let all = Share { tokens: 1, micro_usd: Some(5), model_calls: 1 };
        assert_eq!(all.lacks(Share { micro_usd: None, ..all }), Some("money"));
        assert_eq!(all.lacks(Share { micro_usd: Some(6), ..all }), Some("money"));
        assert_eq!(all.lacks(all), None);
    }
}
