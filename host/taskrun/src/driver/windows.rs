//! The context windows of a run's models, as far as its questions have met them.

use std::collections::BTreeMap;

/// The fewest bytes of a conversation that are shown, however small a window seems to be: where so
/// little has no room, something else fills it.
const BYTES_MIN: usize = 4_000;

/// Most bytes of a conversation by the names of models, where one of them had no room for a question.
///
/// A window that a question meets counts from the next step on: a step that runs again is given what it was
/// given before.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows {
    known: BTreeMap<String, usize>,
    met: Vec<(String, usize)>,
}

impl Windows {
    /// Takes into account that a model had no room for a question with so many bytes of messages.
    pub(super) fn met(&mut self, model: &str, bytes: u64) {
        self.met.push((model.to_owned(), usize::try_from(bytes).unwrap_or(usize::MAX)));
    }

    /// The step is over.
    pub(super) fn end_step(&mut self) {
        for (model, bytes) in self.met.drain(..) {
            // With a quarter less there is room for what a question has beside its conversation.
            let bytes = (bytes - bytes / 4).max(BYTES_MIN);
            let known = self.known.entry(model).or_insert(bytes);
            *known = bytes.min(*known);
        }
    }

    /// Most bytes of a conversation for a model of which the policy says that it has room for
    /// `stated`.
    pub(super) fn of(&self, model: Option<&str>, stated: Option<usize>) -> Option<usize> {
        let known = model.and_then(|model| self.known.get(model)).copied();
        stated.into_iter().chain(known).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_window_that_was_met_counts_from_the_next_step_on() {
        let mut windows = Windows::default();
        windows.met("a", 80_000);
        assert_eq!(windows.of(Some("a"), None), None);
        windows.end_step();
        assert_eq!(windows.of(Some("a"), None), Some(60_000));
        assert_eq!(windows.of(Some("b"), None), None);
        assert_eq!(windows.of(None, Some(9_000)), Some(9_000));
        for (bytes, expected) in [(90_000, 60_000), (40_000, 30_000), (8, BYTES_MIN)] {
            windows.met("a", bytes);
            windows.end_step();
            assert_eq!(windows.of(Some("a"), Some(1 << 20)), Some(expected));
        }
        assert_eq!(windows.of(Some("a"), Some(2_000)), Some(2_000));
    }
}
