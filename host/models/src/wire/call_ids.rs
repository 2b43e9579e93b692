//! Ids of calls that no other call of a conversation has.
//!
//! A run knows calls by their ids: results, answers and what was left out of a conversation are
//! found by them. Some servers give none, and some begin to count again with each answer.

use std::collections::{BTreeMap, BTreeSet};

/// The beginning of an id of our own, before sixteen digits.
const OURS: &str = "call_";

/// True for an id of our own.
pub(super) fn is_ours(id: &str) -> bool {
    let digits = id.strip_prefix(OURS).unwrap_or_default();
    let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    digits.len() == 16 && digits.chars().all(is_digit)
}

/// The ids of the calls of one answer.
#[derive(Debug, Default)]
pub(crate) struct CallIds {
    /// Those that the conversation has already.
    taken: BTreeSet<String>,
    /// The id in the place of one that is taken, for the call that is under way.
    instead: BTreeMap<String, String>,
    /// The number of the next id of our own.
    next: u64,
}

impl CallIds {
    /// Of an answer to a conversation with these ids. `first` is drawn at random for each answer:
    /// calls that a conversation no longer shows have ids as well.
    pub(crate) fn new(taken: BTreeSet<String>, first: u64) -> Self {
        Self { taken, instead: BTreeMap::new(), next: first }
    }

    /// An id that no other call has.
    pub(crate) fn fresh(&mut self) -> String {
        let id = format!("{OURS}{:016x}", self.next);
        self.next = self.next.wrapping_add(1);
        id
    }

    /// The id of a call that is under way, which its server calls so.
    pub(crate) fn of(&mut self, id: &str) -> String {
        if !self.taken.contains(id) {
            return id.to_owned();
        }
        if let Some(ours) = self.instead.get(id) {
            return ours.clone();
        }
        let ours = self.fresh();
        self.instead.insert(id.to_owned(), ours.clone());
        ours
    }

    /// The id of a whole call. The next one that its server calls so is another.
    pub(crate) fn end(&mut self, id: &str) -> String {
        let ours = if id.is_empty() { self.fresh() } else { self.of(id) };
        self.instead.remove(id);
        self.taken.insert(ours.clone());
        ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_calls_have_the_same_id_whatever_their_server_says() {
        let taken = BTreeSet::from(["a".to_owned()]);
        let mut ids = CallIds::new(taken, u64::MAX);
        let all: Vec<String> = ["a", "b", "b", "", "", "a"].map(|id| ids.end(id)).into();
        assert_eq!(all[1], "b", "what is free stays");
        let unique: BTreeSet<&str> = all.iter().map(String::as_str).chain(["a"]).collect();
        assert_eq!(unique.len(), 7, "{all:?}");
    }

    #[test]
    fn the_pieces_of_a_call_have_its_id() {
        let mut ids = CallIds::new(BTreeSet::from(["a".to_owned()]), 7);
        let first = ids.of("a");
        assert_eq!((ids.of("a"), ids.end("a")), (first.clone(), first.clone()));
        assert_ne!(ids.of("a"), first, "another call");
    }
}
