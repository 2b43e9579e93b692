//! Money, in whole millionths of a US dollar: what a model's answers cost, and what a run may.
//! Nothing here is a floating-point number, so sums are what their parts are.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::message::Usage;

/// Millionths in a dollar, and digits that may follow its point.
const MICROUSD: u64 = 1_000_000;
const DIGITS: usize = 6;
/// Most dollars that a budget or a price names: beyond any use of one run, and far from where sums
/// would be too large.
pub(crate) const USD_MAX: u64 = 1_000_000;

/// Reads an amount such as `1.50`.
///
/// # Errors
/// The fault, in words.
pub fn parse_usd(text: &str) -> Result<u64, &'static str> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(part) {
        return Err("it is not a decimal number such as 1.50");
    }
    if part.len() > DIGITS {
        return Err("it has more than six digits after its point");
    }
    let dollars = whole.parse::<u64>().ok().filter(|dollars| *dollars <= USD_MAX);
    let dollars = dollars.ok_or("it is more than 1000000")?;
    let padded = format!("{part:0<DIGITS$}");
    let part = padded.parse::<u64>().expect("six digits");
    Ok(dollars * MICROUSD + part)
}

/// Prints an amount in dollars, with as many digits as it has and at least two: `1.50`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsdDisplay(pub u64);

impl fmt::Display for UsdDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = format!("{:06}", self.0 % MICROUSD);
        let shown = part.trim_end_matches('0').len().max(2);
        write!(f, "{}.{}", self.0 / MICROUSD, &part[..shown])
    }
}

/// The price of a model's tokens: millionths of a dollar for a million of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    /// Tokens read.
    pub prompt: u64,
    /// Tokens written.
    pub completion: u64,
    /// Of those read, the tokens that the provider had in its cache.
    pub cached: u64,
    /// Of those read, the tokens that the provider put into its cache.
    pub cache_write: u64,
}

impl Price {
    /// A price at which the cache makes no difference.
    #[must_use]
    pub const fn new(prompt: u64, completion: u64) -> Self {
        Self { prompt, completion, cached: prompt, cache_write: prompt }
    }

    /// The usage with its cost, rounded up to a whole millionth, and with what that added.
    #[must_use]
    pub fn applied(self, usage: Usage) -> Usage {
        let of = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        // A provider may say that its cache had more than was read.
        let cached = usage.cached_tokens.min(usage.prompt_tokens);
        let written = usage.cache_write_tokens.min(usage.prompt_tokens - cached);
        let sum = of(usage.prompt_tokens - cached - written, self.prompt)
            .saturating_add(of(cached, self.cached))
            .saturating_add(of(written, self.cache_write))
            .saturating_add(of(usage.completion_tokens, self.completion));
        let cost = sum.div_ceil(u128::from(MICROUSD));
        match u64::try_from(cost) {
            Ok(cost_microusd) => {
                let rest = sum % u128::from(MICROUSD);
                let cost_rounding = u64::try_from(rest).map_or(0, |rest| match rest {
                    0 => 0,
                    rest => MICROUSD - rest,
                });
                Usage { cost_microusd, cost_rounding, ..usage }
            }
            Err(_) => Usage { cost_microusd: u64::MAX, cost_rounding: 0, ..usage },
        }
    }

    /// The tokens that may be written for so much money, after a question of so many was read at
    /// the least that these may cost; `None` if any number may.
    #[must_use]
    pub fn affords(self, cost_microusd: u64, question: u64) -> Option<u64> {
        let least = self.prompt.min(self.cached).min(self.cache_write);
        let money = u128::from(cost_microusd) * u128::from(MICROUSD);
        let rest = money.saturating_sub(u128::from(question) * u128::from(least));
        match rest.checked_div(u128::from(self.completion)) {
            Some(tokens) => Some(u64::try_from(tokens).unwrap_or(u64::MAX)),
            None => (rest == 0).then_some(0),
        }
    }
}

/// The sum of two costs, each rounded up to whole millionths with what that added: rounded up once,
/// with what that added.
pub(crate) fn sum_of_costs(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    let rounding = one.1.saturating_add(other.1);
    let cost = one.0.saturating_add(other.0);
    (cost.saturating_sub(rounding / MICROUSD), rounding % MICROUSD)
}

/// The part of a cost beyond another one, in the same form; nothing where that is as much or more.
pub(crate) fn cost_beyond(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    let whole = u128::from(MICROUSD);
    let exact = |(cost, rounding): (u64, u64)| {
        (u128::from(cost) * whole).saturating_sub(u128::from(rounding))
    };
    let rest = exact(one).saturating_sub(exact(other));
    let cost = rest.div_ceil(whole);
    let part = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
    (part(cost), part(cost * whole - rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_to_the_millionth_and_shown_as_they_are_written() {
        let table = [
            ("0", 0, "0.00"),
            ("1.5", 1_500_000, "1.50"),
            ("0.000001", 1, "0.000001"),
            ("12.345", 12_345_000, "12.345"),
            ("1000000", 1_000_000_000_000, "1000000.00"),
        ];
        for (text, amount, shown) in table {
            assert_eq!(parse_usd(text), Ok(amount), "{text}");
            assert_eq!(UsdDisplay(amount).to_string(), shown);
        }
        for text in ["", ".5", "-1", "1e3", "nan", "1.0000001", "1000001", "99999999999999999999"] {
            assert!(parse_usd(text).is_err(), "{text}");
        }
    }

    #[test]
    fn m_61_a_cost_is_exact_and_rounded_up() {
        let price = Price::new(150_000, 600_000);
        let used = |prompt_tokens, completion_tokens| Usage {
            prompt_tokens,
            completion_tokens,
            ..Usage::default()
        };
        for (prompt, completion, cost) in [
            (0, 0, 0),
            (1, 0, 1),
            (1_000_000, 0, 150_000),
            (10, 10, 8),
            (u64::MAX, 1, u64::MAX / 20 * 3),
        ] {
            let applied = price.applied(used(prompt, completion));
            let close = applied.cost_microusd.abs_diff(cost) <= u64::from(prompt == u64::MAX) * 8;
            assert!(close, "{prompt} {completion}: {}", applied.cost_microusd);
        }
        let dear = Price::new(u64::MAX, u64::MAX);
        assert_eq!(dear.applied(used(u64::MAX, u64::MAX)).cost_microusd, u64::MAX);
    }

    #[test]
    fn m_50_money_pays_for_so_many_tokens_after_the_question() {
        let price = Price { cached: 100_000, ..Price::new(1_000_000, 5_000_000) };
        // The question costs at least a tenth of a millionth for each token.
        for (money, question, tokens) in [
            (0, 0, Some(0)),
            (4, 0, Some(0)),
            (5, 0, Some(1)),
            (14, 0, Some(2)),
            (14, 40, Some(2)),
            (14, 50, Some(1)),
            (14, 1_000, Some(0)),
        ] {
            assert_eq!(price.affords(money, question), tokens, "{money} {question}");
        }
        let free = Price::new(1_000_000, 0);
        assert_eq!((free.affords(10, 9), free.affords(10, 10)), (None, Some(0)));
        assert_eq!(Price::new(0, 1).affords(u64::MAX, 0), Some(u64::MAX));
    }

    #[test]
    fn m_61_a_sum_of_costs_is_rounded_up_once() {
        let price = Price::new(300_000, 0);
        let one = price.applied(Usage { prompt_tokens: 1, ..Usage::default() });
        assert_eq!((one.cost_microusd, one.cost_rounding), (1, 700_000));
        let mut sum = Usage::default();
        for tokens in 1..=100_u64 {
            sum = sum.plus(one);
            assert_eq!(sum.cost_microusd, (tokens * 3).div_ceil(10), "{tokens}");
        }
        assert_eq!(sum.cost_rounding, 0);
    }

    #[test]
    fn m_61_the_part_of_a_cost_beyond_another_one_makes_that_whole_again() {
        for (one, other) in [
            ((10, 0), (3, 0)),
            ((10, 200_000), (3, 700_000)),
            ((10, 700_000), (3, 200_000)),
            ((3, 0), (3, 999_999)),
            ((u64::MAX, 0), (0, 0)),
        ] {
            let rest = cost_beyond(one, other);
            assert_eq!(sum_of_costs(rest, other), one, "{rest:?}");
        }
        for (one, other) in [((3, 700_000), (3, 0)), ((3, 0), (4, 0)), ((3, 5), (3, 5))] {
            assert_eq!(cost_beyond(one, other), (0, 0));
        }
    }

    #[test]
    fn m_61_tokens_of_the_cache_have_a_price_of_their_own() {
        let price = Price { cached: 15_000, cache_write: 187_500, ..Price::new(150_000, 600_000) };
        let cost = |prompt_tokens, cached_tokens, cache_write_tokens| {
            let used =
                Usage { prompt_tokens, cached_tokens, cache_write_tokens, ..Usage::default() };
            price.applied(used).cost_microusd
        };
        let million = 1_000_000;
        for (prompt, cached, written, expected) in [
            (10 * million, 0, 0, 1_500_000),
            (10 * million, 8 * million, 0, 300_000 + 120_000),
            (10 * million, 8 * million, 2 * million, 120_000 + 375_000),
            // What cannot be is counted as what can be nearest to it.
            (million, 2 * million, 2 * million, 15_000),
            (0, million, million, 0),
        ] {
            assert_eq!(cost(prompt, cached, written), expected, "{prompt} {cached} {written}");
        }
    }
}
