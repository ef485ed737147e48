//! What tokens cost: a table of data, and exact integer arithmetic over it.
//!
//! Amounts are kept in millionths of a micro-dollar, so that nothing is rounded before the sum is
//! shown; the sum is rounded up. It must never guess a price: a model that is not listed has none.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::usage::Tokens;

/// Millionths of a micro-dollar.
pub(super) type Amount = u128;

/// One micro-dollar.
pub(super) const MICRO_USD: Amount = 1_000_000;

/// Prices by model id. An entry also holds for dated ids of its model (`-20250929`, `-2025-09-29`,
/// `-latest`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// Where the table is from, for people.
    #[serde(default)]
    pub note: String,
    /// The table.
    pub models: BTreeMap<String, Price>,
}

/// Micro-dollars per million tokens, per class.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Input that no cache served.
    pub input: u64,
    /// Input served from a cache.
    pub cache_read: u64,
    /// Input written to a cache; the input price where absent.
    pub cache_write: Option<u64>,
    /// Input written to a cache that lives for an hour; as `cache_write` where absent.
    pub cache_write_long: Option<u64>,
    /// Output, reasoning included.
    pub output: u64,
    /// Higher prices of calls with a long input.
    pub above: Option<Box<PriceAbove>>,
}

/// Prices of calls whose whole input exceeds a length.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceAbove {
    /// The length, tokens of all input classes.
    pub input_tokens: u64,
    /// As in [`Price`].
    pub input: u64,
    /// As in [`Price`].
    pub cache_read: u64,
    /// As in [`Price`].
    pub cache_write: Option<u64>,
    /// As in [`Price`].
    pub cache_write_long: Option<u64>,
    /// As in [`Price`].
    pub output: u64,
}

/// The built-in table did not parse; a test holds it to be impossible.
#[derive(Debug, thiserror::Error)]
#[error("the price table is not valid: {0}")]
pub struct PricesError(#[from] serde_json::Error);

impl Prices {
    /// The table that ships with this build.
    ///
    /// # Errors
    /// Never in a build whose tests passed.
    pub fn built_in() -> Result<Self, PricesError> {
        Self::parse(include_str!("prices.json"))
    }

    /// Parses a table in the form of the built-in one.
    ///
    /// # Errors
    /// [`PricesError`] with the line.
    pub fn parse(text: &str) -> Result<Self, PricesError> {
        Ok(serde_json::from_str(text)?)
    }

    /// The price of a model id.
    #[must_use]
    pub fn find(&self, model: &str) -> Option<&Price> {
        self.models.get(model).or_else(|| self.models.get(undated(model)?))
    }
}

/// The id without its date.
fn undated(model: &str) -> Option<&str> {
    if let Some(base) = model.strip_suffix("-latest") {
        return Some(base);
    }
    let all_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let (base, last) = model.rsplit_once('-')?;
    if last.len() == 8 && all_digits(last) {
        return Some(base);
    }
    let (base, month) = base.rsplit_once('-')?;
    let (base, year) = base.rsplit_once('-')?;
    let dated =
        [(year, 4), (month, 2), (last, 2)].iter().all(|(t, len)| t.len() == *len && all_digits(t));
    dated.then_some(base)
}

impl Price {
    /// What these tokens cost.
    pub(super) fn cost(&self, tokens: &Tokens) -> Amount {
        let (input, read, write, long, output) = self.rates(tokens.all_input());
        [
            (tokens.input, input),
            (tokens.cache_read, read),
            (tokens.cache_write, write),
            (tokens.cache_write_long, long),
            (tokens.output, output),
        ]
        .into_iter()
        .map(|(count, rate)| Amount::from(count) * Amount::from(rate))
        .fold(0, Amount::saturating_add)
    }

    /// The most that `input` tokens of input can cost, whichever class they turn out to be.
    pub(super) fn worst_input(&self, input: u64) -> Amount {
        let (plain, read, write, long, _) = self.rates(input);
        let rate = plain.max(read).max(write).max(long);
        Amount::from(input) * Amount::from(rate)
    }

    /// What one token of output costs after `input` tokens of input; at least one unit, so that it
    /// can divide.
    pub(super) fn output_token(&self, input: u64) -> Amount {
        Amount::from(self.rates(input).4).max(1)
    }

    fn rates(&self, all_input: u64) -> (u64, u64, u64, u64, u64) {
        match self.above.as_deref().filter(|above| all_input > above.input_tokens) {
            Some(p) => {
                let write = p.cache_write.unwrap_or(p.input);
                (p.input, p.cache_read, write, p.cache_write_long.unwrap_or(write), p.output)
            }
            None => {
                let write = self.cache_write.unwrap_or(self.input);
                (
                    self.input,
                    self.cache_read,
                    write,
                    self.cache_write_long.unwrap_or(write),
                    self.output,
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_is_valid_and_orders_its_classes() {
        let prices = Prices::built_in().unwrap();
        assert!(prices.models.len() > 20);
        for (name, price) in &prices.models {
            assert!(price.cache_read < price.input && price.input < price.output, "{name}");
            assert!(price.cache_write.is_none_or(|w| w > price.input), "{name}");
            assert!(price.above.as_ref().is_none_or(|a| a.input > price.input), "{name}");
        }
    }

    #[test]
    fn dated_ids_are_found_and_other_models_are_not_guessed() {
        let prices = Prices::built_in().unwrap();
        let sonnet = prices.find("claude-sonnet-4-5").unwrap();
        for id in ["claude-sonnet-4-5-20250929", "claude-sonnet-4-5-latest"] {
            assert_eq!(prices.find(id), Some(sonnet), "{id}");
        }
        assert_eq!(prices.find("gpt-4o-2024-08-06"), prices.find("gpt-4o"));
        for id in ["claude-sonnet-9", "gpt-4o-audio", "gpt-4o-2024", "claude-sonnet-4-5-2025", ""] {
            assert!(prices.find(id).is_none(), "{id}");
        }
    }

    #[test]
    fn each_class_is_billed_once_at_its_own_rate() {
        let prices = Prices::built_in().unwrap();
        let price = prices.find("claude-sonnet-4-5").unwrap();
        let tokens = Tokens {
            input: 1_000,
            cache_read: 10_000,
            cache_write: 2_000,
            cache_write_long: 100,
            output: 500,
        };
        // 3,000 + 3,000 + 7,500 + 600 + 7,500 micro-dollars.
        assert_eq!(price.cost(&tokens), 21_600 * MICRO_USD);
        let long = Tokens { input: 200_001, ..Tokens::default() };
        assert_eq!(price.cost(&long), 200_001 * 6 * MICRO_USD);
    }
}
