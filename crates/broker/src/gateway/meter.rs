//! The run's one account: reserves before a call, settles after it.
//!
//! A reservation is taken under one lock, so that calls which race for the rest cannot both have it.
//! What a call used is written when it is settled; a reservation that is dropped unsettled after its
//! request left is spent whole, because nobody can tell what it cost. It never asks the guest.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_run::Budgets;
use cofferdam_run::limits::Spend;
use tokio_util::sync::CancellationToken;

use super::limits::GROWTH_TOKENS;
use super::prices::{Amount, MICRO_USD, Price};
use super::usage::{Cost, Tokens};
use crate::log::BrokerLog;

/// Why there is no reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shortage {
    /// The budget of that name is used up.
    Exhausted(&'static str),
    /// The rest is held by calls in flight.
    Held,
}

/// What a call wants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    /// Estimated tokens of input.
    pub(super) input: u64,
    /// Most tokens of output.
    pub(super) output: u64,
    /// Least tokens of output worth a call.
    pub(super) least_output: u64,
    /// The model's price, where one is known.
    pub(super) price: Option<&'a Price>,
}

pub(super) struct Meter {
    tokens: u64,
    model_calls: u64,
    money: Option<Amount>,
    priced: bool,
    account: Mutex<Account>,
    log: Arc<dyn BrokerLog>,
    /// Cancelled when tokens or money are used up: calls in flight end.
    spent: CancellationToken,
}

#[derive(Debug, Default)]
struct Account {
    spend: Spend,
    cost: Amount,
    held_tokens: u64,
    held_cost: Amount,
    exhausted: Option<&'static str>,
}

impl Meter {
    pub(super) fn new(budgets: &Budgets, priced: bool, log: Arc<dyn BrokerLog>) -> Arc<Self> {
        Arc::new(Self {
            tokens: budgets.tokens,
            model_calls: budgets.model_calls,
            money: budgets.micro_usd.map(|m| Amount::from(m) * MICRO_USD),
            priced,
            account: Mutex::default(),
            log,
            spent: CancellationToken::new(),
        })
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancelled once tokens or money are used up.
    pub(super) fn spent(&self) -> &CancellationToken {
        &self.spent
    }

    /// The budget that is used up, if one is.
    pub(super) fn exhausted(&self) -> Option<&'static str> {
        self.account().exhausted
    }

    /// What was settled so far.
    pub(super) fn spend(&self) -> Spend {
        let account = self.account();
        Spend { micro_usd: self.priced.then(|| micro_usd(account.cost)), ..account.spend.clone() }
    }

    /// Takes a reservation and counts the call.
    pub(super) fn reserve(self: &Arc<Self>, ask: Ask<'_>) -> Result<Reservation, Shortage> {
        let mut account = self.account();
        if let Some(budget) = account.exhausted {
            return Err(Shortage::Exhausted(budget));
        }
        if account.spend.model_calls >= self.model_calls {
            return Err(self.exhaust(account, "model_calls"));
        }
        // `free` counts what others hold as gone; `left` does not.
        let left = self.tokens.saturating_sub(account.spend.tokens());
        let free = left.saturating_sub(account.held_tokens);
        let fits =
            |room: u64| room.checked_sub(ask.input).is_some_and(|rest| rest >= ask.least_output);
        if !fits(free) {
            return Err(if fits(left) { Shortage::Held } else { self.exhaust(account, "tokens") });
        }
        let mut output = ask.output.min(free - ask.input);
        let mut cost = 0;
        if let Some(price) = ask.price {
            let input_cost = price.worst_input(ask.input);
            let per_token = price.output_token(ask.input);
            if let Some(budget) = self.money {
                let left = budget.saturating_sub(account.cost);
                let free = left.saturating_sub(account.held_cost);
                let affordable =
                    |room: Amount| room.checked_sub(input_cost).map(|rest| rest / per_token);
                let least = Amount::from(ask.least_output);
                match affordable(free).filter(|tokens| *tokens >= least) {
                    Some(tokens) => output = output.min(u64::try_from(tokens).unwrap_or(u64::MAX)),
                    None if affordable(left).is_some_and(|tokens| tokens >= least) => {
                        return Err(Shortage::Held);
                    }
                    None => return Err(self.exhaust(account, "money")),
                }
            }
            cost = input_cost.saturating_add(per_token.saturating_mul(Amount::from(output)));
        }
        account.spend.model_calls += 1;
        account.held_tokens = account.held_tokens.saturating_add(ask.input + output);
        account.held_cost = account.held_cost.saturating_add(cost);
        drop(account);
        Ok(Reservation {
            meter: Arc::clone(self),
            input: ask.input,
            output,
            cost,
            price: ask.price.cloned(),
            sent: false,
            open: true,
        })
    }

    /// Whether so many tokens fit beside what is spent.
    fn has_tokens(&self, account: &Account, held: u64) -> bool {
        account.spend.tokens().saturating_add(held) <= self.tokens
    }

    /// Whether so much money fits beside what is spent.
    fn has_money(&self, account: &Account, held: Amount) -> bool {
        self.money.is_none_or(|budget| account.cost.saturating_add(held) <= budget)
    }

    fn exhaust(&self, mut account: MutexGuard<'_, Account>, budget: &'static str) -> Shortage {
        let first = account.exhausted.is_none();
        let budget = *account.exhausted.get_or_insert(budget);
        drop(account);
        if first {
            // The last admitted calls may end when only their number is used up.
            if budget != "model_calls" {
                self.spent.cancel();
            }
            self.log.exhausted(budget);
        }
        Shortage::Exhausted(budget)
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("account", &*self.account()).finish_non_exhaustive()
    }
}

/// What one call may use. Ends by [`Reservation::settle`], [`Reservation::release`] or drop.
#[derive(Debug)]
pub(super) struct Reservation {
    meter: Arc<Meter>,
    input: u64,
    output: u64,
    cost: Amount,
    price: Option<Price>,
    sent: bool,
    open: bool,
}

impl Reservation {
    /// Tokens of output that it covers.
    pub(super) fn output(&self) -> u64 {
        self.output
    }

    /// Estimated tokens of input.
    pub(super) fn input(&self) -> u64 {
        self.input
    }

    /// The request is about to leave: from here on dropping it unsettled costs all of it.
    pub(super) fn mark_sent(&mut self) {
        self.sent = true;
    }

    /// Whether the request left.
    pub(super) fn is_sent(&self) -> bool {
        self.sent
    }

    /// Grows it to cover a call that runs past it. Says the shortage when it cannot grow.
    pub(super) fn cover(&mut self, used: Tokens) -> Result<(), Shortage> {
        let input = self.input.max(used.all_input());
        if used.all_input() <= self.input
            && used.output <= self.output
            && self.cost_of(self.forfeited(used)) <= self.cost
        {
            return Ok(());
        }
        let mut account = self.meter.account();
        // As much as it had; else some room ahead, so that not each piece takes the lock; else exactly
        // what it used. What was reserved for output may turn out to be needed for input.
        for output in [self.output, used.output.saturating_add(GROWTH_TOKENS), used.output] {
            let output = output.max(used.output);
            let cost = self.cost_of(whole(used, input, output));
            let held = input.saturating_add(output);
            let held_tokens = account.held_tokens.saturating_sub(self.held()).saturating_add(held);
            let held_cost = account.held_cost.saturating_sub(self.cost).saturating_add(cost);
            if self.meter.has_tokens(&account, held_tokens)
                && self.meter.has_money(&account, held_cost)
            {
                account.held_tokens = held_tokens;
                account.held_cost = held_cost;
                drop(account);
                (self.input, self.output, self.cost) = (input, output, cost);
                return Ok(());
            }
        }
        // Alone it might still fit: then others hold the rest.
        let alone = whole(used, input, used.output);
        if !self.meter.has_tokens(&account, alone.total()) {
            Err(self.meter.exhaust(account, "tokens"))
        } else if !self.meter.has_money(&account, self.cost_of(alone)) {
            Err(self.meter.exhaust(account, "money"))
        } else {
            Err(Shortage::Held)
        }
    }

    fn held(&self) -> u64 {
        self.input.saturating_add(self.output)
    }

    fn cost_of(&self, tokens: Tokens) -> Amount {
        self.price.as_ref().map_or(0, |p| p.cost(&tokens))
    }

    /// The call ended and cost this much. Answers what goes into the record.
    pub(super) fn settle(mut self, cost: Cost) -> Spend {
        match cost {
            Cost::Reported(tokens) => self.close(tokens, false),
            Cost::BySize(tokens) => self.close(tokens, true),
        }
    }

    /// The call cost nothing: it was not sent, or the provider refused it.
    pub(super) fn release(mut self) -> Spend {
        self.close(Tokens::default(), false)
    }

    /// The call ended and nobody said what it cost: what was reserved is spent, and what was seen
    /// beyond it.
    pub(super) fn forfeit(mut self, seen: Tokens) -> Spend {
        let tokens = self.forfeited(seen);
        self.close(tokens, true)
    }

    fn forfeited(&self, seen: Tokens) -> Tokens {
        whole(seen, self.input, self.output)
    }

    fn close(&mut self, tokens: Tokens, by_size: bool) -> Spend {
        self.open = false;
        let cost = self.cost_of(tokens);
        let mut account = self.meter.account();
        account.held_tokens = account.held_tokens.saturating_sub(self.held());
        account.held_cost = account.held_cost.saturating_sub(self.cost);
        account.cost = account.cost.saturating_add(cost);
        let spend = &mut account.spend;
        spend.input_tokens = spend.input_tokens.saturating_add(tokens.input);
        spend.cache_read_tokens = spend.cache_read_tokens.saturating_add(tokens.cache_read);
        let written = tokens.cache_write.saturating_add(tokens.cache_write_long);
        spend.cache_write_tokens = spend.cache_write_tokens.saturating_add(written);
        spend.output_tokens = spend.output_tokens.saturating_add(tokens.output);
        spend.calls_counted_by_size += u64::from(by_size);
        let over_tokens = account.spend.tokens() >= self.meter.tokens;
        let over_money = self.meter.money.is_some_and(|budget| account.cost >= budget);
        if over_tokens || over_money {
            self.meter.exhaust(account, if over_tokens { "tokens" } else { "money" });
        }
        Spend {
            input_tokens: tokens.input,
            cache_read_tokens: tokens.cache_read,
            cache_write_tokens: written,
            output_tokens: tokens.output,
            calls_counted_by_size: u64::from(by_size),
            model_calls: 1,
            micro_usd: self.price.is_some().then(|| micro_usd(cost)),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.open {
            let tokens =
                if self.sent { self.forfeited(Tokens::default()) } else { Tokens::default() };
            let by_size = self.sent;
            self.close(tokens, by_size);
        }
    }
}

/// A call that used so much input and output in all, of which this was seen: input of which nobody
/// said the class is uncached.
fn whole(seen: Tokens, input: u64, output: u64) -> Tokens {
    let uncached = input.saturating_sub(seen.all_input()).saturating_add(seen.input);
    Tokens { input: uncached, output: seen.output.max(output), ..seen }
}

fn micro_usd(cost: Amount) -> u64 {
    u64::try_from(cost.div_ceil(MICRO_USD)).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
