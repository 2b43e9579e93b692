//! The limits of which too little is left for questions to models, as a call meets them.

use taskrun_journal::plan::TerminationReason;

/// The beginning of the words for a refusal, by what is missing.
pub(super) const NO_TOKENS: &str = "no tokens are left";
pub(super) const NO_MONEY: &str = "no money is left";

/// A limit of which too little is left for a question to a model, or for the whole of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The limit.
    pub limit: TerminationReason,
    /// The key of the budget that has it.
    pub key: &'static str,
}

impl Shortage {
    /// That of tokens written.
    pub(super) const WRITTEN: Self =
        Self { limit: TerminationReason::TokenCap, key: "completion_tokens" };
    /// That of tokens read and written.
    pub(super) const TOKENS: Self = Self { limit: TerminationReason::TokenCap, key: "tokens" };
    /// That of money.
    pub(super) const MONEY: Self = Self { limit: TerminationReason::CostCap, key: "usd" };

    /// The shortage for which a question was refused in these words. A question can leave too little
    /// only of tokens in all; where another bound of them is met, nothing of that is left.
    pub(super) fn of_refusal(words: &str) -> Option<Self> {
        let all = [(NO_TOKENS, Self::TOKENS), (NO_MONEY, Self::MONEY)];
        all.into_iter().find(|(begin, _)| words.starts_with(begin)).map(|(_, shortage)| shortage)
    }

    /// The beginning of the words for such a refusal.
    pub(super) fn words(self) -> &'static str {
        if self == Self::MONEY { NO_MONEY } else { NO_TOKENS }
    }
}

/// The shortages that the questions of a call have met.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shortages {
    /// A question was answered.
    has_answer: bool,
    /// The one at which the last answer was cut off.
    of_answer: Option<Shortage>,
    /// The one for which a question was refused after the last answer.
    of_refusal: Option<Shortage>,
}

impl Shortages {
    /// An answer is at its end, be it cut off at a shortage.
    pub(super) fn answered(&mut self, cut_off: Option<Shortage>) {
        *self = Self { has_answer: true, of_answer: cut_off, of_refusal: None };
    }

    /// A question was refused.
    pub(super) fn refused(&mut self, why: Option<Shortage>) {
        self.of_refusal = why.or(self.of_refusal);
    }

    /// The shortage that leaves no room for another step. A step that came to a plan by one answer,
    /// though another question was refused, may do so again.
    pub(crate) fn ending(self, has_plan: bool) -> Option<Shortage> {
        let of_refusal = self.of_refusal.filter(|_| !(has_plan && self.has_answer));
        self.of_answer.or(of_refusal)
    }
}
