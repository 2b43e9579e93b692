//! An agent that has a model sort a letter: the answer is data of a form that programs can rely
//! on, as the host holds it to the schema.

use taskrun_guest::{
    agent::{Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError, ask_model},
    model::{CompletionRequest, ToolAccess},
    types::{Message, Role},
};

/// The form of the answer.
const SORTED: &str = r#"{
  "type": "object",
  "properties": {
    "about": {"enum": ["order", "invoice", "complaint", "other"]},
    "urgent": {"type": "boolean"},
    "summary": {"type": "string", "maxLength": 200}
  },
  "required": ["about", "urgent", "summary"]
}"#;

struct Sorter;

taskrun_guest::export_agent!(Sorter);

impl Agent for Sorter {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        let mut messages = input.messages;
        messages.insert(0, Message::text(Role::System, "Sort this letter. Answer in JSON."));
        let mut request = CompletionRequest::new(messages);
        request.tools = ToolAccess::None;
        request.response_schema = Some(SORTED.into());
        let answer = ask_model(request)?;
        Ok(PlanResult::final_message(answer.into_message()).streamed())
    }

    fn resume(_: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        Err(PlannerError::new("it calls no tools and asks nobody"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{model::Chunk, native, run};

    #[test]
    fn the_model_is_asked_for_the_form() {
        native::reset();
        let answer = r#"{"about":"order","urgent":false,"summary":"Two pears."}"#;
        native::host(|host| host.completions.push_back(Ok(vec![Chunk::Text(answer.into())])));
        Sorter::start(PlanInput {
            messages: vec![Message::text(Role::User, "Please send two pears.")],
            run: run::context(),
            reminders: Vec::new(),
        })
        .expect("a decision");
        let schema = native::host(|host| host.completion_requests[0].response_schema.clone());
        assert_eq!(schema.as_deref(), Some(SORTED));
    }
}
