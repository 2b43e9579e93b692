//! The result that a run said it is done with, which it gives in place of its answer.

use serde_json::Value;

use super::view::summary;
use super::{Run, RunView};
use crate::ending::Ending;
use crate::reply::RESULT_CHARS_MAX;
use crate::text::first_chars;

impl Run {
    /// The result that the run said it is done with, where it gave one. The callers of the run are
    /// given that, and its answer only where there is none.
    #[must_use]
    pub fn returned(&self) -> Option<Value> {
        let done = self.state.rounds.done.as_ref()?;
        let result: Value = serde_json::from_str(done.result.as_deref()?).ok()?;
        // A text that says nothing takes the place of no answer.
        let is_blank = result.as_str().is_some_and(|text| text.trim().is_empty());
        (!is_blank).then_some(result)
    }

    /// The same result as a text: JSON, unless it is a text itself.
    #[must_use]
    pub fn returned_text(&self) -> Option<String> {
        Some(match self.returned()? {
            Value::String(text) => text,
            result @ (Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_)) => result.to_string(),
        })
    }
}

impl RunView {
    /// The run as its callers see it: a result that it returned stands in the place of its answer,
    /// held to the same bound, and its error names no place of the host.
    #[must_use]
    pub fn for_callers(run: &Run) -> Self {
        let mut view = Self::from(run);
        let told = run.ending().and_then(Ending::told).map(str::to_owned);
        if view.error.is_some() && view.error != told {
            view.summary = summary(view.status, told.as_deref(), view.result.as_deref());
            view.error = told;
        }
        let Some(text) = run.returned_text() else { return view };
        let result = first_chars(&text, RESULT_CHARS_MAX).to_owned();
        let truncated = result.len() < text.len();
        Self {
            summary: summary(view.status, view.error.as_deref(), Some(result.as_str())),
            result: Some(result),
            result_bytes: truncated.then_some(text.len() as u64),
            truncated,
            // That is the whole of the answer.
            artifact: None,
            ..view
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::autonomy::Done;
    use crate::event::Event;
    use crate::machine::tests::run;
    use crate::message::{Message, Role};

    /// A run that answered `bye`, and is done with this result.
    fn done(result: Option<&Value>) -> Run {
        let mut run = run(Vec::new());
        let message = Message::text(Role::Assistant, "bye");
        let said = Event::AssistantMessage { message, usage: None, model: None, streamed: false };
        run.state.reply.count(&said);
        let result = result.map(Value::to_string);
        run.state.rounds.done = Some(Done { detail: "it".to_owned(), result, failed: None });
        run
    }

    #[test]
    fn r_047_a_result_that_was_returned_stands_in_the_place_of_the_answer() {
        let answer = |run: &Run| RunView::for_callers(run).result;
        assert_eq!(answer(&done(None)).as_deref(), Some("bye"));
        assert_eq!(answer(&done(Some(&json!("  ")))).as_deref(), Some("bye"));
        assert_eq!(answer(&done(Some(&json!("RCA: the disk")))).as_deref(), Some("RCA: the disk"));
        let run = done(Some(&json!({ "answer": 42 })));
        let view = RunView::for_callers(&run);
        assert_eq!((view.result.as_deref(), view.truncated), (Some("{\"answer\":42}"), false));
        assert_eq!(RunView::from(&run).result.as_deref(), Some("bye"), "its own record has both");
    }

    #[test]
    fn a_long_result_that_was_returned_is_cut_as_an_answer_is() {
        let run = done(Some(&json!("ä".repeat(RESULT_CHARS_MAX + 1))));
        let view = RunView::for_callers(&run);
        let shown = view.result.expect("it is shown");
        assert_eq!((shown.chars().count(), view.truncated), (RESULT_CHARS_MAX, true));
        assert_eq!(view.result_bytes, Some(2 * (RESULT_CHARS_MAX as u64 + 1)));
    }
}
