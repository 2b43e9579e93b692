//! The sizes of a conversation, and what of it is left out where there is no room.

use std::ops::Range;

use taskrun_journal::media::MEDIA_WEIGHT;
use taskrun_journal::message::{Message, Role};

use super::{
    Compaction, NAME_BYTES, NEWEST_BYTES_MIN, SUMMARY_BYTES_MAX, TokenCount, answers, heading,
    left_of, line, turns, weight,
};

/// A bound of bytes, and the bytes that are left where a conversation has more.
#[derive(Clone, Copy)]
struct Bound {
    max: usize,
    target: usize,
}

impl Bound {
    /// The same beside something else that counts, or with what counts too much taken off.
    fn beside(self, offset: isize) -> Self {
        let rest = |bytes: usize| bytes.saturating_add_signed(offset.saturating_neg());
        Self { max: rest(self.max), target: rest(self.target) }
    }
}

/// The sizes of a conversation.
#[derive(Clone)]
pub(crate) struct Layout<'a> {
    conversation: &'a [Message],
    /// The place of the task, where it is known.
    task: Option<usize>,
    /// The number of messages before the task that are of earlier runs, or of whoever asked. The
    /// words that the run was told before its first step stand behind them.
    earlier: usize,
    /// Bytes of the words of the user, but for the task, in so many messages from the first one on.
    said: Vec<usize>,
    /// Bytes of each message.
    messages: Vec<usize>,
    /// Bytes that count beside each message.
    beside: Vec<usize>,
    /// The results of tools.
    results: Vec<ResultSize>,
    turns: Vec<Range<usize>>,
    /// The number of messages, from the first one on, that were looked at for words to leave out.
    looked: usize,
    /// Bytes of the lines of the messages that are left out.
    lines: usize,
    /// Bytes of their summary.
    summary: usize,
}

/// A result of a tool: where it stands, and the bytes that are saved without it.
#[derive(Clone, Copy)]
struct ResultSize {
    message: usize,
    saves: usize,
    saves_beside: usize,
}

impl<'a> Layout<'a> {
    /// The layout of a conversation, whose task is at this place. Where that is not known, words of the
    /// user are never left out.
    pub(crate) fn of(messages: &'a [Message], task: Option<usize>) -> Self {
        let results = answers(messages).map(|(message, _, answer)| ResultSize {
            message,
            saves: answer.content.len().saturating_sub(left_of(answer))
                + answer.media.len() * MEDIA_WEIGHT,
            saves_beside: 0,
        });
        let before = &messages[..task.unwrap_or_default()];
        let last_answer = before.iter().rposition(|message| message.role != Role::User);
        let mut said = vec![0];
        for (at, message) in messages.iter().enumerate() {
            let is_word = message.role == Role::User && task != Some(at);
            said.push(said[at] + if is_word { message.bytes() } else { 0 });
        }
        Self {
            conversation: messages,
            task,
            earlier: last_answer.map_or(0, |place| place + 1),
            said,
            messages: messages.iter().map(Message::bytes).collect(),
            beside: vec![0; messages.len()],
            results: results.collect(),
            turns: turns(messages),
            looked: 0,
            lines: 0,
            summary: 0,
        }
    }

    /// The layout whose last results count with this too: all bytes of each, and those of them that are
    /// saved without it.
    pub(crate) fn with_beside(
        mut self,
        beside: impl ExactSizeIterator<Item = (usize, usize)>,
    ) -> Self {
        let first = self.results.len().saturating_sub(beside.len());
        for (result, (bytes, saves)) in self.results[first..].iter_mut().zip(beside) {
            result.saves_beside = saves;
            self.beside[result.message] += bytes;
        }
        self
    }

    /// The number of results of tools.
    pub(crate) fn results(&self) -> usize {
        self.results.len()
    }

    /// Bytes of all of it.
    pub(crate) fn bytes(&self) -> usize {
        self.messages.iter().chain(&self.beside).sum()
    }

    /// The compaction of a conversation that never has more than `max` bytes, as far as that can be,
    /// and its bytes then. Where it would have more, half of that is left.
    pub(crate) fn within(mut self, max: usize) -> (Compaction, usize) {
        let (compaction, bytes, _) = self.grow(Bound { max, target: max / 2 }, &[]);
        (compaction, bytes)
    }

    /// The same for a window of so many tokens, of which a quarter is kept for the answer, and the
    /// most bytes that the conversation may have at its end. The count that a provider made of a
    /// question tells of what stands beside the conversation as that was shown, and how far its
    /// bytes are from tokens; the messages since are estimated. A count changes nothing about what
    /// was shown with it.
    pub(crate) fn within_tokens(
        mut self,
        tokens: u32,
        counts: &[TokenCount],
    ) -> (Compaction, usize) {
        let whole = weight(u64::from(tokens));
        // No more than the window can be full.
        let counts: Vec<_> = counts
            .iter()
            .map(|count| TokenCount { tokens: count.tokens.min(u64::from(tokens)), ..*count })
            .collect();
        let bound = Bound { max: whole - whole / 4, target: whole / 2 };
        let (compaction, _, offset) = self.grow(bound, &counts);
        (compaction, bound.beside(offset).max)
    }

    /// Leaves out what there is no room for, message after message. Gives the bytes at the end, and
    /// those that count beside them.
    fn grow(&mut self, bound: Bound, counts: &[TokenCount]) -> (Compaction, usize, isize) {
        let (mut compaction, mut bytes, mut offset) = (Compaction::default(), 0, 0);
        let mut counts = counts.iter().peekable();
        for end in 1..=self.messages.len() {
            while let Some(count) = counts.next_if(|count| count.messages < end) {
                offset = offset_of(weight(count.tokens), bytes);
            }
            bytes += self.messages[end - 1] + self.beside[end - 1];
            let Bound { max, target } = bound.beside(offset);
            if bytes > max {
                bytes = self.tighten(end, bytes, (max, target), &mut compaction);
            }
        }
        (compaction, bytes, offset)
    }

    /// The compaction of a conversation to so many bytes, as far as that can be.
    pub(crate) fn to(mut self, target: usize) -> Compaction {
        let mut compaction = Compaction::default();
        let (end, bytes) = (self.messages.len(), self.bytes());
        self.tighten(end, bytes, (target, target), &mut compaction);
        compaction
    }

    /// Leaves out of the first messages what is oldest, until at most `target` bytes are left: results
    /// of the turns before the newest, then these turns, as far as that is not the fault of the
    /// newest results, then the words of earlier runs. Where more than `max` are left all the same, the
    /// rest goes as [`Self::squeeze`] has it. Gives the bytes that are left.
    fn tighten(
        &mut self,
        end: usize,
        mut bytes: usize,
        (max, target): (usize, usize),
        compaction: &mut Compaction,
    ) -> usize {
        let turns = self.turns.partition_point(|turn| turn.start < end);
        let newest = turns.checked_sub(1).map_or(0, |last| self.turns[last].start);
        let results = self.results.partition_point(|result| result.message < end);
        // A model has seen those before the newest turn.
        let seen = self.results.partition_point(|result| result.message < newest);
        let seen = seen.min(results.saturating_sub(1));
        while bytes > target && compaction.results < seen {
            bytes = self.without_result(bytes, compaction);
        }
        let bytes_of_newest = self.bytes_of_newest(newest, results);
        let half = target;
        let target = target.max(bytes_of_newest.saturating_add(target / 2)).min(max);
        while bytes > target && compaction.turns + 1 < turns {
            bytes = self.without_turn(bytes, compaction);
        }
        let bounds = Bound { max, target: half };
        let Some(task) = self.task else {
            return self.squeeze(bytes, bounds, (0, results), compaction);
        };
        // The message that comes last is new.
        let before_last = end.saturating_sub(1);
        bytes = self.without_words(bytes, target, self.earlier.min(before_last), compaction);
        // The last words before the newest turn are what that is about.
        let is_said = |message: &Message| message.role == Role::User;
        let last_said = self.conversation[..newest].iter().rposition(is_said);
        let told = task.min(before_last).max(last_said.unwrap_or_default());
        self.squeeze(bytes, bounds, (told, results), compaction)
    }

    /// Leaves out what a conversation is to be without only if it has more than `max` bytes in any
    /// other way: of the words that the run was told those among the first `told` messages, where
    /// even shortened results would not do and these words are enough, and of the results of the
    /// newest turn the oldest, where that is enough for the last one to be whole. Otherwise all of
    /// these are to be shortened. Where words go, `target` bytes are left beside what is to be
    /// shortened.
    fn squeeze(
        &mut self,
        mut bytes: usize,
        Bound { max, target }: Bound,
        (told, results): (usize, usize),
        compaction: &mut Compaction,
    ) -> usize {
        if bytes <= max {
            return bytes;
        }
        let newest = self.results.get(compaction.results..results).unwrap_or_default();
        let saves = |result: &ResultSize| result.saves.min(self.messages[result.message]);
        let all: usize = newest.iter().map(saves).sum();
        let but_last = &newest[..newest.len().saturating_sub(1)];
        let but_last: usize = but_last.iter().map(|one| saves(one) + one.saves_beside).sum();
        let shortened = all.saturating_sub(NEWEST_BYTES_MIN);
        let most = max.saturating_add(shortened);
        let words = self.said[told].saturating_sub(self.said[self.looked]);
        if bytes > most && bytes.saturating_sub(words) <= most {
            let (mut without, mut gone) = (self.clone(), *compaction);
            let target = target.saturating_add(shortened);
            let left = without.without_words(bytes, target, told, &mut gone);
            // Their summary has bytes, too.
            if left <= most {
                (*self, *compaction, bytes) = (without, gone, left);
            }
        }
        if bytes.saturating_sub(but_last) <= max {
            while bytes > max && compaction.results + 1 < results {
                bytes = self.without_result(bytes, compaction);
            }
        }
        bytes
    }

    /// Bytes of the newest results: those of the turn that begins at this place, or the last one before
    /// it, in a message each or in one.
    fn bytes_of_newest(&self, newest: usize, results: usize) -> usize {
        let Some(last) = results.checked_sub(1) else { return 0 };
        let last = self.results[last].message;
        let first = if newest < last { newest + 1 } else { last };
        (first..=last).map(|message| self.messages[message] + self.beside[message]).sum()
    }

    /// Leaves the next result out, and gives the bytes that are left.
    fn without_result(&mut self, bytes: usize, compaction: &mut Compaction) -> usize {
        let ResultSize { message, saves, saves_beside } = self.results[compaction.results];
        // That of a turn that is left out is gone already.
        let saves = saves.min(self.messages[message]);
        self.messages[message] -= saves;
        self.beside[message] -= saves_beside.min(self.beside[message]);
        compaction.results += 1;
        bytes.saturating_sub(saves + saves_beside)
    }

    /// Leaves the next turn out, and gives the bytes that are left.
    fn without_turn(&mut self, mut bytes: usize, compaction: &mut Compaction) -> usize {
        let turn = self.turns[compaction.turns].clone();
        compaction.turns += 1;
        let first = turn.start;
        for message in turn {
            bytes -= std::mem::take(&mut self.messages[message]).min(bytes);
        }
        self.with_line(first, bytes, *compaction)
    }

    /// Leaves out the oldest words of others among the first `limit` messages, until at most `most`
    /// bytes are left, and a turn that is whole among them. Gives the bytes that are left.
    fn without_words(
        &mut self,
        mut bytes: usize,
        most: usize,
        limit: usize,
        compaction: &mut Compaction,
    ) -> usize {
        while bytes > most && self.looked < limit {
            let at = self.looked;
            let turn = self.turns.get(compaction.turns).filter(|turn| turn.contains(&at)).cloned();
            if let Some(turn) = turn {
                if turn.end > limit {
                    break;
                }
                bytes = self.without_turn(bytes, compaction);
                self.looked = turn.end;
                compaction.words = turn.end;
                continue;
            }
            self.looked += 1;
            if self.conversation[at].role == Role::User && self.task != Some(at) {
                compaction.words = self.looked;
                bytes -= std::mem::take(&mut self.messages[at]).min(bytes);
                bytes = self.with_line(at, bytes, *compaction);
            }
        }
        bytes
    }

    /// Bytes with a line more in the summary, that of the message at this place.
    fn with_line(&mut self, at: usize, bytes: usize, compaction: Compaction) -> usize {
        self.lines += line(&self.conversation[at]).map_or(0, |line| line.len() + 1);
        let summary = heading(compaction).0.len() + self.lines;
        let before = self.summary;
        self.summary = summary.min(SUMMARY_BYTES_MAX) + NAME_BYTES;
        bytes.saturating_sub(before) + self.summary
    }
}

/// The bytes that count beside those that were shown, by the weight of a question. A question of less
/// than half the weight did not have the conversation in it.
fn offset_of(weight: usize, shown: usize) -> isize {
    let signed = |bytes: usize| isize::try_from(bytes).unwrap_or(isize::MAX);
    signed(weight.max(shown / 2)).saturating_sub(signed(shown))
}
