//! The room of a context window, as a provider states it that has none for a question.

/// Fewest tokens that are taken for those of a window or of a question that it has no room for:
/// smaller numbers are a status, or part of a name.
const TOKENS_MIN: u64 = 1_000;
/// The most windows that a question is long, as far as words are believed: in longer ones another
/// number, such as that of a request, stands in the place of one of the two.
const WINDOWS_MAX: u64 = 16;
/// Words by which the tokens of the answer are a number of their own: those of a sum, and vLLM's.
const ANSWER_WORDS: [&str; 3] = [" + ", "max_tokens", "output tokens"];

/// The tokens of a question that has no room, and those of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StatedRoom {
    question: u64,
    window: u64,
}

impl StatedRoom {
    /// The room that a provider's words state; `None` if they do not name both numbers.
    pub(super) fn of(words: &str) -> Option<Self> {
        if ANSWER_WORDS.iter().any(|of_answer| words.contains(of_answer)) {
            return None;
        }
        let words = words.split(|c: char| c.is_whitespace() || "():=".contains(c));
        let words = words.map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()));
        let numbers = words.filter_map(|word| word.replace(',', "").parse::<u64>().ok());
        let mut tokens = numbers.filter(|number| *number >= TOKENS_MIN);
        // Providers name the two in either order, and parts of the question behind them.
        let (first, second) = (tokens.next()?, tokens.next()?);
        let (question, window) = (first.max(second), first.min(second));
        let is_likely = question > window && window.saturating_mul(WINDOWS_MAX) >= question;
        is_likely.then_some(Self { question, window })
    }

    /// True if there is room for half of the question or more.
    pub(super) fn is_half(self) -> bool {
        self.window.saturating_mul(2) >= self.question
    }

    /// The part of so many bytes of the question for which there is room.
    pub(super) fn share_of(self, bytes: usize) -> usize {
        let share = bytes as u128 * u128::from(self.window) / u128::from(self.question);
        usize::try_from(share).unwrap_or(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_is_found_in_the_words_of_providers_that_state_it() {
        let stated = [
            "status 400: This model's maximum context length is 2000 tokens. However, your messages \
             resulted in 2500 tokens. Please reduce the length of the messages.",
            "This model's maximum context length is 2000 tokens. However, you requested 2500 tokens \
             (1500 in the messages, 1000 in the completion).",
            "status 400: prompt is too long: 2500 tokens > 2000 maximum",
            "The input token count (2500) exceeds the maximum number of tokens allowed (2000).",
            "Your request exceeded model token limit: 2000 (requested: 2500)",
            "This model's maximum prompt length is 2,000 but the request contains 2,500 tokens.",
            "The input (2500 tokens) is longer than the model's context length (2000 tokens).",
            "The decoder prompt (length 2500) is longer than the maximum model length of 2000.",
            "status 400: request (2500 tokens) exceeds the available context size (2000 tokens)",
        ];
        for words in stated {
            let room = StatedRoom::of(words);
            assert_eq!(room, Some(StatedRoom { question: 2_500, window: 2_000 }), "{words}");
            assert_eq!(room.map(|room| room.share_of(10_000)), Some(8_000));
        }
    }

    #[test]
    fn words_without_both_numbers_state_no_room() {
        let silent = [
            "",
            "status 400: prompt is too long",
            "status 413: gpt-4-32000 has a context window that is too small for 250 files",
            "the request exceeds the available context size (4096 tokens)",
            "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000",
            "the maximum context length is 8192 tokens, and 8192 were sent",
            "999999999999999999999999 tokens > 2000 maximum",
            "request 87654321: 2500 tokens > 2000 maximum",
            "2000 tokens of 18446744073709551615",
            "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context \
             length is 8192 tokens and your request has 7000 input tokens (4096 > 8192 - 7000).",
            "This model's maximum context length is 8192 tokens. However, you requested 4096 output \
             tokens and your prompt contains at least 4097 input tokens.",
        ];
        for words in silent {
            assert_eq!(StatedRoom::of(words), None, "{words}");
        }
    }

    #[test]
    fn a_question_of_sixteen_windows_is_the_longest_that_words_are_believed_for() {
        let room = |question: u64| StatedRoom::of(&format!("{question} tokens > 2000 maximum"));
        let is_half = |question: u64| room(question).map(StatedRoom::is_half);
        assert_eq!(is_half(4_000), Some(true));
        assert_eq!(is_half(4_001), Some(false));
        assert_eq!(is_half(32_000), Some(false));
        assert_eq!(room(32_001), None);
    }
}
