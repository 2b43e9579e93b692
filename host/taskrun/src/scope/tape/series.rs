//! The answers to requests of one kind that a step numbers by themselves.

use std::collections::BTreeMap;

use super::super::digest::{DigestsSince, Named, named};

/// Answers on a tape, each by the number of its request.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::scope) struct Series<A> {
    answers: BTreeMap<u32, Taped<A>>,
    /// Answers whose numbers other requests have got since.
    replaced: Vec<Taped<A>>,
}

/// An answer on the tape.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::scope) struct Taped<A> {
    /// The name of its request.
    pub(in crate::scope) request: String,
    /// The answer.
    pub(in crate::scope) answer: A,
    /// True if the request may have followed from an answer that was cut off; then it may be
    /// another one, and this answer is void if it is.
    doubtful: bool,
}

/// The outcome of looking for the answer to a request.
#[derive(Debug, PartialEq)]
pub(in crate::scope) enum Found<A> {
    /// Its answer.
    Answer(A),
    /// Its answer, which was given under another number, as the rules were others.
    Moved(A),
    /// Nothing: the step was cut off before there was an answer.
    Nothing,
    /// Another request was made here.
    Other,
}

impl<A> Default for Series<A> {
    fn default() -> Self {
        Self { answers: BTreeMap::new(), replaced: Vec::new() }
    }
}

impl<A> Series<A> {
    /// Adds the next one.
    pub(super) fn push(&mut self, number: u32, request: &str, answer: A) {
        let taped = Taped { request: request.to_owned(), answer, doubtful: false };
        self.replaced.extend(self.answers.insert(number, taped));
    }

    /// The answer to a request, by its number and its digest; `since` a format digests are made as
    /// this one was. Of an answer that an earlier program recorded, to a request that it named in
    /// another way, the number alone counts: the same code that was told the same asks the same.
    pub(super) fn find(
        &mut self,
        number: u32,
        digest: &str,
        since: DigestsSince,
        other_rules: bool,
    ) -> Found<A> {
        let found = self.answers.get(&number);
        let named = found.map(|kept| (named(&kept.request, digest, since), kept.doubtful));
        match named {
            Some((Named::Same, _)) => self.take(number),
            Some((Named::Unknown, false)) if !other_rules => self.take(number),
            _ if other_rules => self.moved(digest, since).map_or(Found::Nothing, Found::Moved),
            Some((Named::Other, false)) => Found::Other,
            Some((Named::Other | Named::Unknown, _)) | None => {
                self.answers.remove(&number);
                Found::Nothing
            }
        }
    }

    fn take(&mut self, number: u32) -> Found<A> {
        let kept = self.answers.remove(&number);
        kept.map_or(Found::Nothing, |kept| Found::Answer(kept.answer))
    }

    /// The first answer to this request, whatever its number: nothing is paid or done twice as the
    /// step goes another way.
    fn moved(&mut self, digest: &str, since: DigestsSince) -> Option<A> {
        let is_it = |kept: &Taped<A>| named(&kept.request, digest, since) == Named::Same;
        if let Some(at) = self.replaced.iter().position(is_it) {
            return Some(self.replaced.remove(at).answer);
        }
        let number = *self.answers.iter().find(|(_, kept)| is_it(kept))?.0;
        let kept = self.answers.remove(&number)?;
        Some(kept.answer)
    }

    /// The answer with a number, if there is one.
    pub(super) fn at(&self, number: u32) -> Option<&Taped<A>> {
        self.answers.get(&number)
    }

    /// The first number without an answer that is sure.
    pub(super) fn first_missing(&self) -> u32 {
        let settled = |number: &u32| self.answers.get(number).is_some_and(|kept| !kept.doubtful);
        (0..).find(|number| !settled(number)).unwrap_or_default()
    }

    /// Takes the answers from a number on for those of requests that may not be made again.
    pub(super) fn doubt_from(&mut self, number: u32) {
        for (_, later) in self.answers.range_mut(number..) {
            later.doubtful = true;
        }
    }

    /// True if nothing was answered.
    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.replaced.is_empty()
    }

    /// The next request that the step has to make, by its number.
    pub(super) fn left(&self) -> Option<(u32, &Taped<A>)> {
        let mut sure = self.answers.iter().filter(|(_, kept)| !kept.doubtful);
        sure.next().map(|(number, kept)| (*number, kept))
    }
}
