//! An agent that has a model draft an answer and criticise it, asks a person what to change, and
//! has the model write it anew. Two questions to a model in one step: where the host dies between
//! them, the first is not asked again.

use taskrun_guest::{
    agent::{self, Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError, ask_model},
    model::CompletionRequest,
    state,
    types::{Message, Role},
};

/// Key of the run's state that holds the draft.
const DRAFT: &str = "draft";

struct Editor;

taskrun_guest::export_agent!(Editor);

impl Agent for Editor {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        let task = agent::task(&input.messages).unwrap_or_default();
        let draft = ask(&task)?;
        let critique = ask(&format!("What is the weakest point of this text?\n\n{draft}"))?;
        state::set(DRAFT, Some(&draft))
            .map_err(|error| PlannerError::new(error.to_string()).code("too-long"))?;
        let question = format!("{draft}\n\nA critic says: {critique}\n\nWhat is to be changed?");
        Ok(PlanResult::ask("changes", question))
    }

    fn resume(input: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        let draft = state::get(DRAFT).unwrap_or_default();
        if input.finalize.is_some() {
            return Ok(PlanResult::final_text(draft));
        }
        let changes = agent::task(&input.messages).unwrap_or_default();
        let text = ask(&format!("{draft}\n\nWrite this anew, with a change: {changes}"))?;
        Ok(PlanResult::final_text(text).streamed())
    }
}

/// Asks the model; its answer is streamed to observers of the run.
fn ask(question: &str) -> Result<String, PlannerError> {
    let request = CompletionRequest::new(vec![Message::text(Role::User, question)]);
    ask_model(request).map(|answer| answer.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{
        agent::{AwaitItem, Decision},
        model::Chunk,
        native, run,
    };

    #[test]
    fn it_asks_the_model_twice_and_then_a_person() {
        native::reset();
        native::host(|host| {
            for text in ["A draft.", "Too short."] {
                host.completions.push_back(Ok(vec![Chunk::Text(text.into())]));
            }
        });
        let input = PlanInput {
            messages: vec![Message::text(Role::User, "Write.")],
            run: run::context(),
            reminders: Vec::new(),
        };
        let Decision::Await(request) = Editor::start(input).expect("a decision").decision else {
            panic!("no question")
        };
        let [asked] = &request.items[..] else { panic!("one question") };
        let AwaitItem::Clarification(asked) = &asked.what else { panic!("{asked:?}") };
        assert!(asked.question.starts_with("A draft.\n\nA critic says: Too short."));
        assert_eq!(state::get(DRAFT).as_deref(), Some("A draft."));
    }
}
