//! Conversations for which there is no room: the oldest results of tools are left out first, then the
//! oldest turns become a summary.
//!
//! That happens in large steps, and always at the same places: what is left out is decided as the
//! conversation grows, message after message, so that from one compaction to the next what is shown
//! of it only grows. Otherwise no cache of a provider would ever find its beginning.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use taskrun_journal::artifact::{Artifact, ArtifactRef, digest};
use taskrun_journal::media::MEDIA_WEIGHT;
use taskrun_journal::message::{Message, Part, Role, ToolAnswer};
use taskrun_journal::text::{cut, first_chars};

/// Bytes of the words that stand instead of a result; shorter ones stay as they are.
const OMITTED_BYTES: usize = 192;
/// The words that stand instead of the images of a result.
const IMAGES_OMITTED: &str = "\n[The images of this result are left out.]";
/// Bytes that are left of the text of an error.
const ERROR_BYTES: usize = 1 << 10;
/// Least bytes that are shown of the newest result.
const NEWEST_BYTES_MIN: usize = 1 << 10;
/// Most characters of a line in a summary, and most bytes of a summary.
const LINE_CHARS_MAX: usize = 200;
const SUMMARY_BYTES_MAX: usize = 2 << 10;
/// The first line of a summary.
const SUMMARY: &str =
    "Earlier turns are left out here. First and last lines of the answers in them:";
/// Bytes of the line of a summary that names the whole of what it stands for.
const NAME_BYTES: usize = 160;
/// Bytes of a conversation for a token of what its provider has not counted: fewer than English
/// text has, and about what JSON and other languages have.
const BYTES_PER_TOKEN: usize = 3;

/// The part of a conversation that is not shown, from its beginning on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Compaction {
    /// The number of results of tools that are left out.
    pub(crate) results: usize,
    /// The number of turns that are left out: answers of the assistant, each with its results.
    pub(crate) turns: usize,
}

impl Compaction {
    /// All that one of two leaves out.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { results: self.results.max(other.results), turns: self.turns.max(other.turns) }
    }
}

/// The tokens that a provider counted of a question, which was asked when there were so many messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenCount {
    pub(crate) messages: usize,
    pub(crate) tokens: u64,
}

/// The room of a model for a conversation; the default is without end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window<'a> {
    /// Most bytes, as far as a question has met an end of it.
    pub(crate) bytes: Option<usize>,
    /// Its tokens, as far as the policy says.
    pub(crate) tokens: Option<u32>,
    /// The counts of earlier questions, in their order.
    pub(crate) counts: &'a [TokenCount],
}

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
    /// Bytes of each message.
    messages: Vec<usize>,
    /// Bytes that count beside each message.
    beside: Vec<usize>,
    /// The results of tools.
    results: Vec<ResultSize>,
    turns: Vec<Range<usize>>,
    /// Bytes of the lines of the turns that are left out.
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
    /// The layout of a conversation.
    pub(crate) fn of(messages: &'a [Message]) -> Self {
        let results = answers(messages).map(|(message, _, answer)| ResultSize {
            message,
            saves: answer.content.len().saturating_sub(left_of(answer))
                + answer.media.len() * MEDIA_WEIGHT,
            saves_beside: 0,
        });
        Self {
            conversation: messages,
            messages: messages.iter().map(Message::bytes).collect(),
            beside: vec![0; messages.len()],
            results: results.collect(),
            turns: turns(messages),
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
    /// most bytes that the conversation may have at its end. What a provider counted of a question
    /// tells what stands beside the conversation as that was shown, and how far its bytes are from
    /// tokens; what was said since is estimated. A count changes nothing about what was shown with
    /// it.
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

    /// Leaves out of the first messages what is oldest, but for the newest result and the last turn,
    /// until at most `target` bytes are left; turns only as far as that is not the fault of the
    /// newest result. Gives the bytes that are left.
    fn tighten(
        &mut self,
        end: usize,
        mut bytes: usize,
        (max, target): (usize, usize),
        compaction: &mut Compaction,
    ) -> usize {
        let results = self.results.partition_point(|result| result.message < end);
        while bytes > target && compaction.results + 1 < results {
            let ResultSize { message, saves, saves_beside } = self.results[compaction.results];
            // That of a turn that is left out is gone already.
            let saves = saves.min(self.messages[message]);
            self.messages[message] -= saves;
            self.beside[message] -= saves_beside.min(self.beside[message]);
            bytes -= (saves + saves_beside).min(bytes);
            compaction.results += 1;
        }
        let newest = results.checked_sub(1).map_or(0, |last| {
            let message = self.results[last].message;
            self.messages[message] + self.beside[message]
        });
        let target = target.max(newest.saturating_add(target / 2)).min(max);
        let turns = self.turns.partition_point(|turn| turn.start < end);
        while bytes > target && compaction.turns + 1 < turns {
            let turn = self.turns[compaction.turns].clone();
            self.lines += line(&self.conversation[turn.start]).map_or(0, |line| line.len() + 1);
            for message in turn {
                bytes -= std::mem::take(&mut self.messages[message]).min(bytes);
            }
            compaction.turns += 1;
            bytes -= self.summary.min(bytes);
            self.summary = (SUMMARY.len() + self.lines).min(SUMMARY_BYTES_MAX) + NAME_BYTES;
            bytes += self.summary;
        }
        bytes
    }
}

/// Tokens as bytes of a conversation.
fn weight(tokens: u64) -> usize {
    usize::try_from(tokens).unwrap_or(usize::MAX).saturating_mul(BYTES_PER_TOKEN)
}

/// The bytes that count beside those that were shown, by the weight of a question. A question of less
/// than half the weight did not have the conversation in it.
fn offset_of(weight: usize, shown: usize) -> isize {
    let signed = |bytes: usize| isize::try_from(bytes).unwrap_or(isize::MAX);
    signed(weight.max(shown / 2)).saturating_sub(signed(shown))
}

/// The turns that are left out of a conversation, as they were: a message a line, as JSON. Nothing,
/// if none is.
pub(crate) fn left_out(messages: &[Message], compaction: Compaction) -> Option<Artifact> {
    let mut text = String::new();
    for turn in turns(messages).into_iter().take(compaction.turns) {
        for message in &messages[turn] {
            text.push_str(&serde_json::to_string(message).ok()?);
            text.push('\n');
        }
    }
    (!text.is_empty()).then(|| Artifact::new(text.into_bytes()))
}

/// A conversation without what is left out of it, for this reason. `whole` names the turns that are
/// left out, where they can be read.
pub(crate) fn shown(
    messages: &[Message],
    compaction: Compaction,
    reason: &str,
    whole: Option<&ArtifactRef>,
) -> Vec<Message> {
    let left_out: Vec<_> = turns(messages).into_iter().take(compaction.turns).collect();
    let mut summary = (!left_out.is_empty()).then(|| summary_of(messages, &left_out, whole));
    let is_answer = |part: &Part| matches!(part, Part::ToolAnswer(_));
    let (mut turns_out, mut results_out) = (left_out.iter().peekable(), compaction.results);
    let mut shown = Vec::with_capacity(messages.len());
    for (at, message) in messages.iter().enumerate() {
        let answers = message.parts.iter().filter(|part| is_answer(part)).count();
        let gone = answers.min(results_out);
        results_out -= gone;
        turns_out.next_if(|turn| turn.end <= at);
        if turns_out.peek().is_some_and(|turn| turn.contains(&at)) {
            shown.extend(summary.take());
            continue;
        }
        let mut message = message.clone();
        // One that stays as it is shares its parts.
        if gone > 0 {
            for part in message.parts.iter_mut().filter(|part| is_answer(part)).take(gone) {
                let Part::ToolAnswer(answer) = part else { continue };
                leave_out(answer, reason);
            }
        }
        shown.push(message);
    }
    shown
}

/// The message that stands instead of turns which are left out: the first and last lines of answers,
/// by a rule of the host, as no model is asked for it, and the name of the whole.
fn summary_of(
    messages: &[Message],
    left_out: &[Range<usize>],
    whole: Option<&ArtifactRef>,
) -> Message {
    let mut summary = last_of(left_out.iter().filter_map(|turn| line(&messages[turn.start])));
    if let Some(whole) = whole {
        let name = serde_json::json!({ "hash": whole.hash, "size": whole.size });
        summary.push_str(&format!("\nAll of them: {}", serde_json::json!({ "artifact": name })));
    }
    Message::text(Role::System, summary)
}

/// Cuts the newest result, where a conversation has more than `max` bytes even without what can be
/// left out of it.
pub(crate) fn cut_newest(messages: &mut [Message], max: usize, reason: &str) {
    let bytes: usize = messages.iter().map(Message::bytes).sum();
    let Some((message, part)) = answers(messages).map(|(at, part, _)| (at, part)).last() else {
        return;
    };
    let Part::ToolAnswer(answer) = &mut messages[message].parts[part] else { return };
    let over = bytes.saturating_sub(max);
    let left = answer.content.len().saturating_sub(over + OMITTED_BYTES).max(NEWEST_BYTES_MIN);
    // Quotes and controls are written longer within the words that stand around it.
    if over == 0 || left + OMITTED_BYTES >= answer.content.len() {
        return;
    }
    answer.content = serde_json::json!({
        "omitted": true,
        "reason": reason,
        "bytes": answer.content.len(),
        "preview": cut(&answer.content, left),
        "artifact": artifact(answer),
    })
    .to_string();
}

/// The results of tools, with their places.
fn answers(messages: &[Message]) -> impl Iterator<Item = (usize, usize, &ToolAnswer)> {
    messages.iter().enumerate().flat_map(|(at, message)| {
        message.parts.iter().enumerate().filter_map(move |(part, one)| match one {
            Part::ToolAnswer(answer) => Some((at, part, answer)),
            Part::Text(_)
            | Part::Thinking(_)
            | Part::ToolUse(_)
            | Part::Json(_)
            | Part::Media(_) => None,
        })
    })
}

/// The turns: each answer of the assistant with the results that follow on it.
pub(crate) fn turns(messages: &[Message]) -> Vec<Range<usize>> {
    let mut turns: Vec<Range<usize>> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        match message.role {
            Role::Assistant => turns.push(at..at + 1),
            Role::Tool => {
                if let Some(turn) = turns.last_mut().filter(|turn| turn.end == at) {
                    turn.end = at + 1;
                }
            }
            Role::User | Role::System => {}
        }
    }
    turns
}

/// Bytes that are left of a result that is left out.
fn left_of(answer: &ToolAnswer) -> usize {
    if answer.is_error { ERROR_BYTES } else { OMITTED_BYTES }
}

fn leave_out(answer: &mut ToolAnswer, reason: &str) {
    let media = std::mem::take(&mut answer.media);
    if answer.content.len() <= left_of(answer) {
        if !media.is_empty() {
            answer.content.push_str(IMAGES_OMITTED);
        }
        return;
    }
    if answer.is_error {
        answer.content.truncate(cut(&answer.content, ERROR_BYTES).len());
        return;
    }
    let artifact = artifact(answer);
    let words = serde_json::json!({ "omitted": true, "reason": reason, "artifact": artifact });
    answer.content = words.to_string();
}

/// The name of a result, by which it can be read: that of what stands there, or the one that stands
/// there instead of it.
fn artifact(answer: &ToolAnswer) -> Option<serde_json::Value> {
    if answer.is_error {
        return None;
    }
    let words = serde_json::from_str::<serde_json::Value>(&answer.content).ok();
    let omitted = words.filter(|words| words["omitted"] == true && words["artifact"].is_object());
    if let Some(mut words) = omitted {
        return Some(words["artifact"].take());
    }
    let (hash, size) = (digest(answer.content.as_bytes()), answer.content.len() as u64);
    serde_json::to_value(ArtifactRef { hash, size }).ok()
}

/// The message that stands instead of messages that are left out for good. One of these may be such a
/// message itself: it comes first then, and its lines stay as far as there is room.
pub(crate) fn in_short(messages: &[Message]) -> Message {
    let before = messages.first().filter(|first| first.role == Role::System);
    let before = before.map(Message::joined_text).unwrap_or_default();
    let known = before.strip_prefix(SUMMARY).map(|lines| lines.trim_start_matches('\n'));
    let mut lines: Vec<_> = known.into_iter().flat_map(str::lines).map(str::to_owned).collect();
    lines.extend(turns(messages).iter().filter_map(|turn| line(&messages[turn.start])));
    Message::text(Role::System, last_of(lines))
}

/// A summary of the last of these lines, as those are the nearest.
fn last_of<I>(all: I) -> String
where
    I: IntoIterator<Item = String, IntoIter: DoubleEndedIterator>,
{
    let (mut lines, mut bytes) = (Vec::new(), SUMMARY.len());
    for line in all.into_iter().rev() {
        bytes += line.len() + 1;
        if bytes > SUMMARY_BYTES_MAX {
            break;
        }
        lines.push(line);
    }
    lines.push(SUMMARY.to_owned());
    lines.reverse();
    lines.join("\n")
}

/// An answer in a summary: its first and its last line; `None` if it has no text.
fn line(answer: &Message) -> Option<String> {
    let text = answer.joined_text();
    let mut said = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = first_chars(said.next()?, LINE_CHARS_MAX);
    Some(match said.next_back() {
        Some(last) => format!("- {first} … {}", first_chars(last, LINE_CHARS_MAX)),
        None => format!("- {first}"),
    })
}

#[cfg(test)]
mod tests;
