//! Conversations for which there is no room: the oldest results of tools are left out first, then the
//! oldest turns become a summary, and with them what was said before by others.
//!
//! That happens in large steps, and always at the same places: what is left out is decided as the
//! conversation grows, message after message, so that from one compaction to the next what is shown
//! of it only grows. Otherwise no cache of a provider would ever find its beginning.

mod layout;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use taskrun_journal::artifact::{Artifact, ArtifactRef, digest};
use taskrun_journal::media::MEDIA_WEIGHT;
use taskrun_journal::message::{Message, Part, Role, ToolAnswer};
use taskrun_journal::text::{cut, first_chars};

pub(crate) use self::layout::Layout;

/// Bytes of the words that stand instead of a result; shorter ones stay as they are.
const OMITTED_BYTES: usize = 192;
/// The words that stand instead of the images of a result.
const IMAGES_OMITTED: &str = "\n[The images of this result are left out.]";
/// Bytes that are left of the text of an error.
const ERROR_BYTES: usize = 1 << 10;
/// Least bytes that are shown of a result of the newest turn, where it is shown in part.
const NEWEST_BYTES_MIN: usize = 1 << 10;
/// Most characters of a line in a summary, and most bytes of a summary.
const LINE_CHARS_MAX: usize = 200;
const SUMMARY_BYTES_MAX: usize = 2 << 10;
/// The first line of a summary.
const SUMMARY: &str =
    "Earlier turns are left out here. First and last lines of the answers in them:";
/// The first line of one in which there is more than answers.
const SUMMARY_OF_WORDS: &str = "[Earlier messages are left out here. First and last lines of them, \
                                those of the user marked so:]";
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
    /// The number of messages, from the first one on, of which nothing but the task and instructions
    /// is shown; 0 as long as no words of others than the assistant are left out.
    pub(crate) words: usize,
}

impl Compaction {
    /// All that one of two leaves out.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            results: self.results.max(other.results),
            turns: self.turns.max(other.turns),
            words: self.words.max(other.words),
        }
    }

    /// True for each message of a conversation that is left out as a whole, by their places; nothing
    /// where none is. `task` is the place of the task.
    pub(crate) fn gone(self, messages: &[Message], task: Option<usize>) -> Vec<bool> {
        if self.turns == 0 && self.words == 0 {
            return Vec::new();
        }
        let is_gone = |(at, message): (usize, &Message)| {
            at < self.words && Some(at) != task && message.role != Role::System
        };
        let mut gone: Vec<bool> = messages.iter().enumerate().map(is_gone).collect();
        for turn in turns(messages).into_iter().take(self.turns) {
            gone[turn].fill(true);
        }
        gone
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

/// Tokens as bytes of a conversation.
pub(crate) fn weight(tokens: u64) -> usize {
    usize::try_from(tokens).unwrap_or(usize::MAX).saturating_mul(BYTES_PER_TOKEN)
}

/// The messages that are left out of a conversation, as they were: one a line, as JSON. Nothing, if
/// none is.
pub(crate) fn left_out(messages: &[Message], gone: &[bool]) -> Option<Artifact> {
    let mut text = String::new();
    for message in gone_of(messages, gone) {
        text.push_str(&serde_json::to_string(message).ok()?);
        text.push('\n');
    }
    (!text.is_empty()).then(|| Artifact::new(text.into_bytes()))
}

fn gone_of<'a>(
    messages: &'a [Message],
    gone: &'a [bool],
) -> impl DoubleEndedIterator<Item = &'a Message> {
    messages.iter().zip(gone).filter(|(_, gone)| **gone).map(|(message, _)| message)
}

/// A conversation without what is left out of it, for this reason; `gone` are the messages of it.
/// `whole` names them, where they can be read.
pub(crate) fn shown(
    messages: &[Message],
    (compaction, gone): (Compaction, &[bool]),
    reason: &str,
    whole: Option<&ArtifactRef>,
) -> Vec<Message> {
    let mut summary = gone.contains(&true).then(|| summary_of(messages, (compaction, gone), whole));
    let is_answer = |part: &Part| matches!(part, Part::ToolAnswer(_));
    let mut results_out = compaction.results;
    let mut shown = Vec::with_capacity(messages.len());
    for (at, message) in messages.iter().enumerate() {
        let answers = message.parts.iter().filter(|part| is_answer(part)).count();
        let out = answers.min(results_out);
        results_out -= out;
        if gone.get(at).is_some_and(|gone| *gone) {
            shown.extend(summary.take());
            continue;
        }
        let mut message = message.clone();
        // One that stays as it is shares its parts.
        if out > 0 {
            for part in message.parts.iter_mut().filter(|part| is_answer(part)).take(out) {
                let Part::ToolAnswer(answer) = part else { continue };
                leave_out(answer, reason);
            }
        }
        shown.push(message);
    }
    shown
}

/// The message that stands instead of those which are left out: first and last lines, by a rule of the
/// host, as no model is asked for it, and the name of the whole.
fn summary_of(
    messages: &[Message],
    (compaction, gone): (Compaction, &[bool]),
    whole: Option<&ArtifactRef>,
) -> Message {
    let lines = gone_of(messages, gone).filter_map(line);
    let (heading, role) = heading(compaction);
    let mut summary = last_of(heading, lines);
    if let Some(whole) = whole {
        let name = serde_json::json!({ "hash": whole.hash, "size": whole.size });
        summary.push_str(&format!("\nAll of them: {}", serde_json::json!({ "artifact": name })));
    }
    Message::text(role, summary)
}

/// The first line of a summary, and its speaker. Words of others than the assistant are no
/// instructions, and may stand where those begin.
fn heading(compaction: Compaction) -> (&'static str, Role) {
    match compaction.words {
        0 => (SUMMARY, Role::System),
        _ => (SUMMARY_OF_WORDS, Role::User),
    }
}

/// Cuts the results of the newest turn that has some, where a conversation has more than `max` bytes
/// even without what can be left out of it: all to one length, as far as they are longer. Where little
/// would be left of each, the oldest are left out.
pub(crate) fn cut_newest(messages: &mut [Message], max: usize, reason: &str) {
    let bytes: usize = messages.iter().map(Message::bytes).sum();
    let mut over = bytes.saturating_sub(max);
    let Some(last) = answers(messages).map(|(at, ..)| at).last().filter(|_| over > 0) else {
        return;
    };
    let turn = turns(messages).into_iter().rfind(|turn| turn.contains(&last));
    let turn = turn.unwrap_or(last..last + 1);
    let parts = messages[turn].iter_mut().flat_map(|message| message.parts.iter_mut());
    let mut newest: Vec<&mut ToolAnswer> = parts.filter_map(answer_of).collect();
    let mut oldest = 0;
    while oldest + 1 < newest.len()
        && length_of_each(&newest[oldest..], over) < NEWEST_BYTES_MIN + OMITTED_BYTES
    {
        let before = bytes_of(newest[oldest]);
        leave_out(newest[oldest], reason);
        over = over.saturating_sub(before.saturating_sub(bytes_of(newest[oldest])));
        oldest += 1;
    }
    let most = length_of_each(&newest[oldest..], over);
    newest[oldest..].iter_mut().for_each(|answer| cut_to(answer, most, reason));
}

/// The most bytes of each of some results that all of them together have so many bytes fewer.
fn length_of_each(answers: &[&mut ToolAnswer], over: usize) -> usize {
    let mut sizes: Vec<usize> = answers.iter().map(|answer| answer.content.len()).collect();
    sizes.sort_unstable();
    let mut room = sizes.iter().sum::<usize>().saturating_sub(over);
    for (at, size) in sizes.iter().enumerate() {
        let each = room / (sizes.len() - at);
        if *size > each {
            return each;
        }
        room -= size;
    }
    usize::MAX
}

/// Cuts a result to at most so many bytes, with the words that stand around what is left.
fn cut_to(answer: &mut ToolAnswer, most: usize, reason: &str) {
    let left = most.saturating_sub(OMITTED_BYTES).max(NEWEST_BYTES_MIN);
    // Quotes and controls are written longer within the words that stand around it.
    if left.saturating_add(OMITTED_BYTES) >= answer.content.len() {
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

/// Bytes of a result that may be left out of it.
fn bytes_of(answer: &ToolAnswer) -> usize {
    answer.content.len() + answer.media.len() * MEDIA_WEIGHT
}

fn answer_of(part: &mut Part) -> Option<&mut ToolAnswer> {
    match part {
        Part::ToolAnswer(answer) => Some(answer),
        Part::Text(_) | Part::Thinking(_) | Part::ToolUse(_) | Part::Json(_) | Part::Media(_) => {
            None
        }
    }
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
fn turns(messages: &[Message]) -> Vec<Range<usize>> {
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
    Message::text(Role::System, last_of(SUMMARY, lines))
}

/// A summary of the last of these lines, as those are the nearest.
fn last_of<I>(heading: &str, all: I) -> String
where
    I: IntoIterator<Item = String, IntoIter: DoubleEndedIterator>,
{
    let (mut lines, mut bytes) = (Vec::new(), heading.len());
    for line in all.into_iter().rev() {
        bytes += line.len() + 1;
        if bytes > SUMMARY_BYTES_MAX {
            break;
        }
        lines.push(line);
    }
    lines.push(heading.to_owned());
    lines.reverse();
    lines.join("\n")
}

/// An answer of the assistant, or words of the user, in a summary: the first and the last line; `None`
/// without text.
fn line(message: &Message) -> Option<String> {
    let text = message.joined_text();
    let said = text.lines().map(str::trim).filter(|line| !line.is_empty());
    match message.role {
        Role::Assistant => Some(format!("- {}", first_and_last(said)?)),
        Role::User => {
            // A report ends with the fence around what it says.
            let said = said.filter(|line| line.bytes().any(|byte| byte != b'`'));
            Some(format!("- user: {}", first_and_last(said)?))
        }
        Role::System | Role::Tool => None,
    }
}

fn first_and_last<'t>(mut said: impl DoubleEndedIterator<Item = &'t str>) -> Option<String> {
    let first = first_chars(said.next()?, LINE_CHARS_MAX);
    Some(match said.next_back() {
        Some(last) => format!("{first} … {}", first_chars(last, LINE_CHARS_MAX)),
        None => first.to_owned(),
    })
}

#[cfg(test)]
mod tests;
