//! Answers that are refused: what is asked, and by which run.

use taskrun::controller::Client;
use taskrun::error::ControllerError;
use taskrun_journal::ids::RunId;
use taskrun_journal::question::{AnswerRefusal, Item};
use taskrun_journal::run::Run;

use super::{AnswerWords, asked_text};
use crate::context::Context;
use crate::failure::{Failure, refusal_of};
use crate::output::escape::escaped_line;
use crate::resolve::asked_beneath;

/// The refusal of the answer that these words are to a run which asks this.
pub(super) async fn refused(
    context: &Context,
    client: &Client,
    (run, asked): (&Run, &[Item]),
    words: &AnswerWords<'_>,
    error: ControllerError,
) -> Box<Failure> {
    let unknown = AnswerRefusal::UnknownItem;
    let is_unknown = matches!(&error, ControllerError::NotAwaitable { why, .. } if *why == unknown);
    if is_unknown && asked.is_empty() {
        return asks_nothing(context, client, run).await;
    }
    if is_unknown && is_unquoted(words, asked) {
        return unquoted(error, run.id());
    }
    let names_none = matches!(&error, ControllerError::Invalid { field, .. } if *field == "item");
    let mut failure = refusal_of(error, run.id());
    if names_none {
        let all: Vec<String> = asked.iter().map(asked_text).collect();
        failure.report = Some(all.join("\n"));
    }
    failure
}

/// The refusal of an answer to a run that asks nothing, with the one that asks where it waits for
/// such a one.
async fn asks_nothing(context: &Context, client: &Client, run: &Run) -> Box<Failure> {
    let id = run.id();
    // Where that cannot be read, it is refused all the same.
    let asking = asked_beneath(context, client, run).await.ok().flatten();
    let (message, hint) = match asking {
        Some(asking) => {
            let (agent, other) = (escaped_line(&asking.spec.agent_name), asking.id());
            (
                format!("run {id} asks nothing itself: it waits for {agent} {other}, which asks"),
                format!("answer that one with `taskrun answer {other}`"),
            )
        }
        None => (
            format!("run {id} asks nothing"),
            format!(
                "see what it is at with `taskrun get {id}`, and all that is asked with `taskrun \
                 inbox`"
            ),
        ),
    };
    Failure::usage("unknown-item", message).about(id).hint(hint)
}

/// True if the first of several words was taken for the name of an item, and is most likely the
/// beginning of the answer to the only one.
fn is_unquoted(words: &AnswerWords<'_>, asked: &[Item]) -> bool {
    asked.len() == 1 && words.item.is_some() && !words.answer.is_empty()
}

fn unquoted(error: ControllerError, run: &RunId) -> Box<Failure> {
    refusal_of(error, run).hint(format!(
        "put an answer of several words in quotes, `taskrun answer {run} \"TEXT\"`, or see what is \
         asked, and under which names, with `taskrun inbox`"
    ))
}
