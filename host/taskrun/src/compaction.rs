//! Conversations for which there is no room: the oldest results of tools are left out first, then the
//! oldest turns become a summary.
//!
//! That happens in large steps, and always at the same places: what is left out is decided as the
//! conversation grows, message after message, so that from one compaction to the next what is shown
//! of it only grows. Otherwise no cache of a provider would ever find its beginning.

use std::ops::Range;

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

/// The sizes of a conversation.
pub(crate) struct Layout {
    /// Bytes of each message.
    messages: Vec<usize>,
    /// Bytes that count beside each message.
    beside: Vec<usize>,
    /// The results of tools.
    results: Vec<ResultSize>,
    turns: Vec<Range<usize>>,
    /// Bytes of each turn in a summary.
    lines: Vec<usize>,
    /// Bytes of the summary of the turns that are left out.
    summary: usize,
}

/// A result of a tool: where it stands, and the bytes that are saved without it.
struct ResultSize {
    message: usize,
    saves: usize,
    saves_beside: usize,
}

impl Layout {
    /// The layout of a conversation. Its last results count with `beside` too: all bytes of each,
    /// and those of them that are saved without it.
    pub(crate) fn of(messages: &[Message], beside: &[(usize, usize)]) -> Self {
        let mut results: Vec<_> = answers(messages)
            .map(|(message, _, answer)| ResultSize {
                message,
                saves: answer.content.len().saturating_sub(left_of(answer))
                    + answer.media.len() * MEDIA_WEIGHT,
                saves_beside: 0,
            })
            .collect();
        let mut all_beside = vec![0; messages.len()];
        let first = results.len().saturating_sub(beside.len());
        for (result, (bytes, saves)) in results[first..].iter_mut().zip(beside) {
            result.saves_beside = *saves;
            all_beside[result.message] += bytes;
        }
        let bytes = messages.iter().map(Message::bytes).collect();
        let turns = turns(messages);
        let line =
            |turn: &Range<usize>| line(&messages[turn.start]).map_or(0, |line| line.len() + 1);
        let lines = turns.iter().map(line).collect();
        Self { messages: bytes, beside: all_beside, results, turns, lines, summary: 0 }
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
        let (mut compaction, mut bytes) = (Compaction::default(), 0);
        for end in 1..=self.messages.len() {
            bytes += self.messages[end - 1] + self.beside[end - 1];
            if bytes > max {
                bytes = self.tighten(end, bytes, (max, max / 2), &mut compaction);
            }
        }
        (compaction, bytes)
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
        let results = self.results.iter().take_while(|result| result.message < end).count();
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
        let turns = self.turns.iter().take_while(|turn| turn.start < end).count();
        while bytes > target && compaction.turns + 1 < turns {
            for message in self.turns[compaction.turns].clone() {
                bytes -= std::mem::take(&mut self.messages[message]).min(bytes);
            }
            compaction.turns += 1;
            bytes -= self.summary.min(bytes);
            let lines: usize = self.lines[..compaction.turns].iter().sum();
            self.summary = (SUMMARY.len() + lines).min(SUMMARY_BYTES_MAX) + NAME_BYTES;
            bytes += self.summary;
        }
        bytes
    }
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
    let mut shown = messages.to_vec();
    let places: Vec<_> = answers(messages).map(|(message, part, _)| (message, part)).collect();
    for (message, part) in places.into_iter().take(compaction.results) {
        if let Part::ToolAnswer(answer) = &mut shown[message].parts[part] {
            leave_out(answer, reason);
        }
    }
    let left_out: Vec<_> = turns(messages).into_iter().take(compaction.turns).collect();
    let Some(first) = left_out.first().map(|turn| turn.start) else { return shown };
    let mut summary = summary(messages, &left_out);
    if let Some(whole) = whole {
        let name = serde_json::json!({ "hash": whole.hash, "size": whole.size });
        summary.push_str(&format!("\nAll of them: {}", serde_json::json!({ "artifact": name })));
    }
    let summary = Message::text(Role::System, summary);
    let is_out = |at: usize| left_out.iter().any(|turn| turn.contains(&at));
    let mut kept = Vec::with_capacity(shown.len());
    for (at, message) in shown.into_iter().enumerate() {
        if at == first {
            kept.push(summary.clone());
        }
        if !is_out(at) {
            kept.push(message);
        }
    }
    kept
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

/// The first and last lines of answers, by a rule of the host: no model is asked for it. The last of
/// them, as those are the nearest.
fn summary(messages: &[Message], turns: &[Range<usize>]) -> String {
    let (mut lines, mut bytes) = (Vec::new(), SUMMARY.len());
    for line in turns.iter().rev().filter_map(|turn| line(&messages[turn.start])) {
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
mod tests {
    use taskrun_journal::message::ToolUse;

    use super::*;

    /// A turn in which `id` is called and answered with so many bytes.
    fn turn(id: &str, bytes: usize) -> [Message; 2] {
        let (tool_call_id, name) = (id.to_owned(), "t/f".to_owned());
        let call = ToolUse { tool_call_id: tool_call_id.clone(), name, payload: "{}".to_owned() };
        let parts = vec![Part::Text(format!("I look.\nAgain.\nat {bytes}")), Part::ToolUse(call)];
        let content = format!("\"{}\"", "x".repeat(bytes - 2));
        let answer = ToolAnswer { tool_call_id, content, is_error: false, media: Vec::new() };
        let answered = Message { role: Role::Tool, parts: vec![Part::ToolAnswer(answer)] };
        [Message { role: Role::Assistant, parts }, answered]
    }

    fn talk(sizes: impl IntoIterator<Item = usize>) -> Vec<Message> {
        let mut messages = vec![Message::text(Role::User, "task")];
        messages.extend(sizes.into_iter().flat_map(|bytes| turn("c", bytes)));
        messages
    }

    fn contents(messages: &[Message]) -> Vec<&str> {
        answers(messages).map(|(_, _, answer)| answer.content.as_str()).collect()
    }

    fn bytes(messages: &[Message]) -> usize {
        messages.iter().map(Message::bytes).sum()
    }

    fn within(messages: &[Message], max: usize) -> Vec<Message> {
        let (compaction, _) = Layout::of(messages, &[]).within(max);
        let mut shown = shown(messages, compaction, "test", None);
        cut_newest(&mut shown, max, "test");
        shown
    }

    #[test]
    fn results_are_named_by_their_own_bytes_though_all_ids_are_alike() {
        let messages = talk([3_000, 3_001, 3_002]);
        let shown = within(&messages, 8_000);
        let all = contents(&messages);
        let kept = contents(&shown);
        for (whole, left) in all.iter().zip(&kept[..2]) {
            let words: serde_json::Value = serde_json::from_str(left).expect("JSON");
            assert_eq!(words["artifact"]["hash"], digest(whole.as_bytes()), "{left}");
            assert_eq!(words["artifact"]["size"], whole.len());
        }
        assert_eq!(kept[2], all[2], "the newest is whole");
    }

    #[test]
    fn what_was_left_out_before_keeps_its_name() {
        let mut messages = talk([3_000, 300]);
        let Part::ToolAnswer(answer) = &mut messages[2].parts[0] else { panic!("a result") };
        let name = serde_json::json!({ "hash": "abc", "size": 99_999 });
        let preview = "p".repeat(2_000);
        answer.content = serde_json::json!({
            "omitted": true, "reason": "size_limit", "preview": preview, "artifact": name
        })
        .to_string();
        let shown = within(&messages, 2_300);
        let words: serde_json::Value = serde_json::from_str(contents(&shown)[0]).expect("JSON");
        assert_eq!((&words["artifact"], &words["preview"]), (&name, &serde_json::Value::Null));
    }

    #[test]
    fn from_one_compaction_to_the_next_what_is_shown_only_grows() {
        let max = 20_000;
        let (mut before, mut compactions) = (Vec::new(), 0);
        for turns in 1..=200 {
            let messages = talk((0..turns).map(|turn| 500 + turn * 7 % 900));
            let shown = within(&messages, max);
            assert!(bytes(&shown) <= max, "{} of {max} in turn {turns}", bytes(&shown));
            if !shown.starts_with(&before) {
                compactions += 1;
                assert!(bytes(&shown) <= max * 2 / 3, "{} after one", bytes(&shown));
            }
            assert_eq!(shown.last(), messages.last(), "the newest result is whole");
            before = shown;
        }
        assert!((2..=30).contains(&compactions), "{compactions} in 200 turns");
    }

    #[test]
    fn turns_that_are_left_out_are_summed_up_and_no_result_is_without_its_call() {
        let mut messages = talk([300; 40]);
        messages.insert(5, Message::text(Role::User, "[Inbox]\nbe brief"));
        let shown = within(&messages, 6_000);
        assert_eq!(shown[0], messages[0], "the task stays");
        let text: String = shown.iter().map(Message::joined_text).collect();
        assert!(text.contains(SUMMARY) && text.contains("- I look. … at 300"), "{text}");
        assert!(text.contains("be brief"), "what people said stays");
        let calls = shown.iter().flat_map(Message::tool_uses).count();
        assert_eq!(calls, contents(&shown).len());
        assert!((1..30).contains(&calls), "{calls}");
    }

    #[test]
    fn a_newest_result_that_is_larger_than_the_window_is_shown_in_part() {
        let messages = talk([300, 50_000]);
        let shown = within(&messages, 10_000);
        let words: serde_json::Value =
            serde_json::from_str(contents(&shown).last().expect("one")).expect("JSON");
        assert_eq!(words["bytes"], 50_000);
        assert!(words["preview"].as_str().is_some_and(|text| text.len() > 8_000));
        assert!(bytes(&shown) <= 10_000, "{}", bytes(&shown));
    }

    #[test]
    fn errors_are_cut_and_have_no_name() {
        let mut messages = talk([300, 300]);
        let Part::ToolAnswer(answer) = &mut messages[2].parts[0] else { panic!("a result") };
        (answer.content, answer.is_error) = ("é".repeat(2_000), true);
        let compaction = Layout::of(&messages, &[]).to(2_000);
        assert_eq!(compaction, Compaction { results: 1, turns: 0 });
        let shown = shown(&messages, compaction, "test", None);
        assert_eq!(contents(&shown)[0], "é".repeat(512));
    }
}
