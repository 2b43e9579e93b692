//! Messages that stand before the task of a run.

use taskrun_journal::message::{Message, Role};
use taskrun_journal::spec::TASK_BYTES_MAX;

use super::text::text;
use crate::failure::{Failure, Outcome};

/// The messages that these arguments stand for, in their order.
///
/// # Errors
/// If one cannot be read or is empty, or if more than one text, the task included, is to be read
/// from stdin.
pub(super) fn context_messages(task: Option<&str>, given: &[String]) -> Outcome<Vec<Message>> {
    let all = task.into_iter().chain(given.iter().map(String::as_str));
    if all.filter(|argument| *argument == "-").count() > 1 {
        let message = "more than one text is to be read from stdin";
        return Err(Failure::usage("invalid", message)
            .hint("stdin is one text: give the others as arguments, or as `@FILE`"));
    }
    given.iter().map(|argument| message(argument)).collect()
}

fn message(argument: &str) -> Outcome<Message> {
    let text = text(argument, "context", TASK_BYTES_MAX)?;
    if text.trim().is_empty() {
        return Err(Failure::usage("invalid", "empty context")
            .hint("leave out --context, or say what is to stand before the task"));
    }
    Ok(Message::text(Role::User, text))
}
