//! The consumption of models.

use serde::{Deserialize, Serialize};

use crate::money::{cost_beyond, sum_of_costs};

/// Tokens consumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read.
    pub prompt_tokens: u64,
    /// Tokens written.
    pub completion_tokens: u64,
    /// Both, or what the provider says.
    pub total_tokens: u64,
    /// Of those read, the tokens that the provider had in its cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
    /// Of those read, the tokens that the provider put into its cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// Of those written, the tokens of reasoning.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
    /// The cost, in millionths of a US dollar and rounded up, as far as prices are known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cost_microusd: u64,
    /// The part of that which is there by rounding, in millionths of a millionth: sums of many
    /// answers are exact by it. Less than a million.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cost_rounding: u64,
    /// True if any of it is the host's estimate, as a provider did not count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// Of the total, the tokens that a component says it consumed elsewhere, which nobody checked.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reported_tokens: u64,
    /// The part of those read that is said so.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reported_prompt_tokens: u64,
    /// The part of those written that is said so.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reported_completion_tokens: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the serialiser wants a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Usage {
    /// The sum of two, saturating.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let (cost_microusd, cost_rounding) = sum_of_costs(
            (self.cost_microusd, self.cost_rounding),
            (other.cost_microusd, other.cost_rounding),
        );
        Self {
            prompt_tokens: self.prompt_tokens.saturating_add(other.prompt_tokens),
            completion_tokens: self.completion_tokens.saturating_add(other.completion_tokens),
            total_tokens: self.total_tokens.saturating_add(other.total_tokens),
            cached_tokens: self.cached_tokens.saturating_add(other.cached_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_add(other.reasoning_tokens),
            cost_microusd,
            cost_rounding,
            estimated: self.estimated || other.estimated,
            reported_tokens: self.reported_tokens.saturating_add(other.reported_tokens),
            reported_prompt_tokens: self
                .reported_prompt_tokens
                .saturating_add(other.reported_prompt_tokens),
            reported_completion_tokens: self
                .reported_completion_tokens
                .saturating_add(other.reported_completion_tokens),
        }
    }

    /// The part beyond another one, of each amount.
    #[must_use]
    pub fn beyond(self, other: Self) -> Self {
        let (cost_microusd, cost_rounding) = cost_beyond(
            (self.cost_microusd, self.cost_rounding),
            (other.cost_microusd, other.cost_rounding),
        );
        let part = |of: fn(&Self) -> u64| of(&self).saturating_sub(of(&other));
        Self {
            prompt_tokens: part(|usage| usage.prompt_tokens),
            completion_tokens: part(|usage| usage.completion_tokens),
            total_tokens: part(|usage| usage.total_tokens),
            cached_tokens: part(|usage| usage.cached_tokens),
            cache_write_tokens: part(|usage| usage.cache_write_tokens),
            reasoning_tokens: part(|usage| usage.reasoning_tokens),
            cost_microusd,
            cost_rounding,
            estimated: self.estimated,
            reported_tokens: part(|usage| usage.reported_tokens),
            reported_prompt_tokens: part(|usage| usage.reported_prompt_tokens),
            reported_completion_tokens: part(|usage| usage.reported_completion_tokens),
        }
    }

    /// The part that the host counted. No other one counts against the budget of anybody but the
    /// run that speaks of itself.
    #[must_use]
    pub fn counted(self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.saturating_sub(self.reported_prompt_tokens),
            completion_tokens: self
                .completion_tokens
                .saturating_sub(self.reported_completion_tokens),
            total_tokens: self.total_tokens.saturating_sub(self.reported_tokens),
            reported_tokens: 0,
            reported_prompt_tokens: 0,
            reported_completion_tokens: 0,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_merely_said_is_in_no_count_of_the_host() {
        let answer = Usage {
            prompt_tokens: 20,
            completion_tokens: 10,
            total_tokens: 30,
            ..Usage::default()
        };
        let said = Usage {
            prompt_tokens: 500,
            completion_tokens: 40,
            total_tokens: 540,
            reported_tokens: 540,
            reported_prompt_tokens: 500,
            reported_completion_tokens: 40,
            ..Usage::default()
        };
        assert_eq!(answer.plus(said).counted(), answer);
        assert_eq!(said.plus(answer).counted(), answer);
    }

    #[test]
    fn a_journal_of_before_counts_as_it_did() {
        let text =
            r#"{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"reported_tokens":7}"#;
        let usage: Usage = serde_json::from_str(text).expect("a usage");
        assert_eq!(serde_json::to_string(&usage).expect("JSON"), text);
        let counted = usage.counted();
        let tokens = (counted.prompt_tokens, counted.completion_tokens, counted.total_tokens);
        assert_eq!(tokens, (5, 2, 0));
    }
}
