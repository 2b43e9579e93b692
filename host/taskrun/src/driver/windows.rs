//! The context windows of a run's models, as far as its questions have met them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use taskrun_journal::completion::Chunk;
use taskrun_journal::event::{HostAnswer, ModelAnswer};
use taskrun_journal::message::Usage;

use crate::compaction::{TokenCount, Window};

/// The fewest bytes of a conversation that are shown, however small a window seems to be: where so
/// little has no room, something else fills it.
const BYTES_MIN: usize = 4_000;

/// Most bytes of a conversation by the names of models, where one of them had no room for a question.
///
/// A window that a question meets counts from the next step on: a step that runs again is given what it was
/// given before.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Windows {
    known: BTreeMap<String, usize>,
    met: Vec<(String, usize)>,
    /// The counts of the steps before.
    counts: Vec<TokenCount>,
    /// The most tokens that a provider counted of a question of the step under way.
    counted: u64,
}

impl Windows {
    /// Takes into account that a model had no room for a question with so many bytes of messages, or
    /// with more.
    pub(super) fn met(&mut self, model: &str, bytes: u64) {
        self.met.push((model.to_owned(), usize::try_from(bytes).unwrap_or(usize::MAX)));
    }

    /// Takes into account what a question of a step was answered.
    pub(super) fn answered(&mut self, answer: &HostAnswer) {
        self.counted = self.counted.max(prompt_tokens(answer));
    }

    /// The step is over, which was given so many messages. Of several questions the largest has the
    /// conversation in it; where one had no room, what was counted is of a part of it.
    pub(super) fn end_step(&mut self, messages: usize) {
        let tokens = std::mem::take(&mut self.counted);
        if tokens > 0 && self.met.is_empty() {
            self.counts.push(TokenCount { messages, tokens });
        }
        for (model, bytes) in self.met.drain(..) {
            // With a quarter less there is room for what a question has beside its conversation.
            let bytes = (bytes - bytes / 4).max(BYTES_MIN);
            let known = self.known.entry(model).or_insert(bytes);
            *known = bytes.min(*known);
        }
    }

    /// The counts are void, as the messages that they are of are left out for good: the next step
    /// makes another.
    pub(super) fn forget_counts(&mut self) {
        self.counts.clear();
    }

    /// The window of a model of which the policy says that it has so many tokens.
    pub(super) fn of(&self, model: Option<&str>, tokens: Option<u32>) -> Window<'_> {
        let bytes = model.and_then(|model| self.known.get(model)).copied();
        Window { bytes, tokens, counts: &self.counts }
    }
}

/// The tokens of a question to a model, as its provider counted them; 0 if it did not. A provider
/// counts them in one part of its answer, and again where it was asked once more.
fn prompt_tokens(answer: &HostAnswer) -> u64 {
    let counted = |usage: &Usage| if usage.estimated { 0 } else { usage.prompt_tokens };
    match answer {
        HostAnswer::Model(ModelAnswer::Whole(completion)) => counted(&completion.usage),
        HostAnswer::Model(ModelAnswer::Parts(batches) | ModelAnswer::Broken(batches, _)) => {
            let told = batches.iter().flatten().map(|chunk| match chunk {
                Chunk::Usage(usage) => counted(usage),
                Chunk::Text(_)
                | Chunk::Thinking(_)
                | Chunk::ToolCallDelta { .. }
                | Chunk::ToolCall(_)
                | Chunk::Stop { .. } => 0,
            });
            told.max().unwrap_or_default()
        }
        HostAnswer::Model(ModelAnswer::Error(_))
        | HostAnswer::Controller { .. }
        | HostAnswer::Memory(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(windows: &Windows, model: &str) -> Option<usize> {
        windows.of(Some(model), None).bytes
    }

    fn parts(usages: &[Usage]) -> HostAnswer {
        let batches = usages.iter().map(|usage| vec![Chunk::Usage(*usage)]).collect();
        HostAnswer::Model(ModelAnswer::Parts(batches))
    }

    #[test]
    fn the_smallest_window_that_was_met_counts_from_the_next_step_on() {
        let mut windows = Windows::default();
        windows.met("a", 80_000);
        assert_eq!(bytes(&windows, "a"), None);
        windows.end_step(1);
        assert_eq!(bytes(&windows, "a"), Some(60_000));
        assert_eq!(bytes(&windows, "b"), None);
        for (met, expected) in [(90_000, 60_000), (40_000, 30_000), (8, BYTES_MIN)] {
            windows.met("a", met);
            windows.end_step(1);
            assert_eq!(bytes(&windows, "a"), Some(expected));
        }
    }

    #[test]
    fn of_the_questions_of_a_step_the_largest_is_counted_where_its_provider_did() {
        let read = |prompt_tokens| Usage { prompt_tokens, ..Usage::default() };
        let mut windows = Windows::default();
        windows.answered(&parts(&[read(20)]));
        windows.answered(&parts(&[read(900), read(0)]));
        windows.answered(&parts(&[Usage { estimated: true, ..read(5_000) }]));
        assert_eq!(windows.of(Some("a"), None).counts, [], "the step is not over");
        windows.end_step(3);
        windows.end_step(5);
        windows.met("a", 80_000);
        windows.answered(&parts(&[read(400)]));
        windows.end_step(7);
        assert_eq!(windows.of(None, None).counts, [TokenCount { messages: 3, tokens: 900 }]);
    }
}
