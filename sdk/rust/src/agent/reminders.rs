//! Putting the notes of a turn before a model.

use crate::agent::{Message, Part, Reminder, Role};
use crate::types::Attachment;

/// The messages for a model: the conversation with the notes of this turn in it, as messages of
/// role `system`, in the order given. Notes for the run's start are added to the first message if
/// that is one of instructions, or else become the first. The others stand together at the end: they
/// differ from turn to turn, and a provider finds in its cache only what stands before the first
/// difference.
#[must_use]
pub fn with_reminders(mut messages: Vec<Message>, reminders: &[Reminder]) -> Vec<Message> {
    if let Some(text) = texts(reminders, Attachment::UserTurn) {
        messages.push(Message::text(Role::System, text));
    }
    if let Some(text) = texts(reminders, Attachment::RunStart) {
        instruct(&mut messages, text);
    }
    messages
}

/// Adds instructions to the first message if that is one of instructions, or else before it.
pub(crate) fn instruct(messages: &mut Vec<Message>, text: String) {
    match messages.first_mut().filter(|first| first.role == Role::System) {
        Some(first) => add(first, text),
        None => messages.insert(0, Message::text(Role::System, text)),
    }
}

/// The notes of one kind, joined.
pub(super) fn texts(reminders: &[Reminder], attachment: Attachment) -> Option<String> {
    let texts: Vec<&str> = reminders
        .iter()
        .filter(|reminder| reminder.attachment == attachment)
        .map(|reminder| reminder.text.as_str())
        .collect();
    (!texts.is_empty()).then(|| texts.join("\n\n"))
}

/// Adds to the instructions, a paragraph of its own.
fn add(message: &mut Message, text: String) {
    match message.parts.last_mut() {
        Some(Part::Text(before)) => {
            before.push_str("\n\n");
            before.push_str(&text);
        }
        Some(
            Part::Thinking(_)
            | Part::ToolUse(_)
            | Part::ToolAnswer(_)
            | Part::Json(_)
            | Part::Media(_),
        )
        | None => {
            message.parts.push(Part::Text(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ToolAnswer, ToolUse};

    fn note(id: &str, attachment: Attachment) -> Reminder {
        Reminder { id: id.into(), text: format!("note {id}"), attachment }
    }

    fn shown(messages: Vec<Message>, reminders: &[Reminder]) -> Vec<(Role, String)> {
        with_reminders(messages, reminders).iter().map(|m| (m.role, m.plain_text())).collect()
    }

    fn called() -> Vec<Message> {
        let (id, name) = ("c".to_owned(), "t/f".to_owned());
        let call = ToolUse { tool_call_id: id.clone(), name, payload: "{}".into() };
        let answer =
            ToolAnswer { tool_call_id: id, content: "1".into(), is_error: false, media: vec![] };
        vec![
            Message::text(Role::System, "preamble"),
            Message::text(Role::User, "question"),
            Message { role: Role::Assistant, parts: vec![Part::ToolUse(call)] },
            Message { role: Role::Tool, parts: vec![Part::ToolAnswer(answer)] },
        ]
    }

    #[test]
    fn ls_20_four_messages_become_five_and_no_result_is_parted_from_its_request() {
        let notes = [note("r1", Attachment::RunStart), note("r2", Attachment::UserTurn)];
        let before = called();
        let after = with_reminders(before.clone(), &notes);
        assert_eq!(after.len(), 5);
        assert_eq!(after[0].plain_text(), "preamble\n\nnote r1");
        assert_eq!(after[1..4], before[1..4]);
        assert_eq!((after[4].role, after[4].plain_text()), (Role::System, "note r2".into()));
    }

    #[test]
    fn ls_20_notes_stand_behind_what_was_said_last() {
        let messages = vec![
            Message::text(Role::User, "first"),
            Message::text(Role::Assistant, "answer"),
            Message::text(Role::User, "second"),
        ];
        let notes = [note("a", Attachment::UserTurn), note("b", Attachment::UserTurn)];
        let shown = shown(messages, &notes);
        assert_eq!(shown[2], (Role::User, "second".to_owned()));
        assert_eq!(shown[3], (Role::System, "note a\n\nnote b".to_owned()));
    }

    #[test]
    fn without_notes_for_the_start_only_the_end_differs_from_turn_to_turn() {
        let mut longer = called();
        longer.push(Message::text(Role::Assistant, "answer"));
        let notes = |id| [note(id, Attachment::UserTurn)];
        let first = with_reminders(called(), &notes("a"));
        let next = with_reminders(longer, &notes("b"));
        assert_eq!(first[..4], next[..4]);
    }

    #[test]
    fn without_instructions_notes_for_the_start_are_the_first_message() {
        let messages = vec![Message::text(Role::User, "question")];
        let shown = shown(messages, &[note("a", Attachment::RunStart)]);
        assert_eq!(shown[0], (Role::System, "note a".to_owned()));
        assert_eq!(shown.len(), 2);
    }

    #[test]
    fn without_notes_nothing_changes() {
        assert_eq!(with_reminders(called(), &[]), called());
        let none = with_reminders(Vec::new(), &[note("a", Attachment::UserTurn)]);
        assert_eq!(none.len(), 1, "a note is shown also where nothing was said");
    }
}
