//! An agent that has its model think before it decides, by the prompt `brief` of the policy: in each
//! turn the model is asked for its thoughts, in which it calls no tool, and then, with these before it,
//! for what is to be done. Where the host dies between the two, the thoughts are not asked for again.

use taskrun_guest::{
    agent::{
        Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError, Termination, ToolRequest,
        ask_model,
    },
    model::{CompletionRequest, ToolChoice},
    prompts,
    types::{Message, Role},
};

/// The prompt that stands before the conversation.
const BRIEF: &str = "brief";

struct Thinker;

taskrun_guest::export_agent!(Thinker);

impl Agent for Thinker {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        step(input.messages, None)
    }

    fn resume(input: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        step(input.messages, input.finalize.as_ref())
    }
}

fn step(
    mut messages: Vec<Message>,
    finalize: Option<&Termination>,
) -> Result<PlanResult, PlannerError> {
    let brief = prompts::render(BRIEF, "{}")
        .map_err(|error| PlannerError::new(error.text()).code(error.code()))?;
    messages.insert(0, Message::text(Role::System, brief));
    if let Some(termination) = finalize {
        messages.push(Message::text(Role::User, &termination.message));
        return Ok(PlanResult::final_text(ask(messages)?).streamed());
    }
    let mut think = messages.clone();
    think.push(Message::text(Role::User, "What is to be done next, and why?"));
    let thoughts = ask(think)?;
    messages.push(Message::text(Role::User, format!("You thought: {thoughts}")));
    let answer = ask_model(CompletionRequest::new(messages))?;
    let calls: Vec<ToolRequest> = answer
        .tool_calls()
        .map(|call| ToolRequest::new(&call.name, &call.payload).id(&call.tool_call_id))
        .collect();
    if !calls.is_empty() {
        return Ok(PlanResult::tool_calls(calls));
    }
    Ok(PlanResult::final_message(answer.into_message()).streamed())
}

/// A text of the model. It is shown its tools as in any other question, so that a provider finds the
/// beginning of that in its cache, and calls none.
fn ask(messages: Vec<Message>) -> Result<String, PlannerError> {
    let mut request = CompletionRequest::new(messages);
    request.tool_choice = ToolChoice::None;
    ask_model(request).map(|answer| answer.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{agent::Decision, model::Chunk, native, run};

    #[test]
    fn what_the_model_thinks_is_before_it_when_it_decides() {
        native::reset();
        native::host(|host| {
            host.prompts.insert("brief".into(), "Be brief.".into());
            for text in ["It is a greeting.", "Hello."] {
                host.completions.push_back(Ok(vec![Chunk::Text(text.into())]));
            }
        });
        let result = Thinker::start(PlanInput {
            messages: vec![Message::text(Role::User, "Hi")],
            run: run::context(),
            reminders: Vec::new(),
        });
        let Decision::FinalResponse(last) = result.expect("a decision").decision else {
            panic!("not final")
        };
        assert_eq!(last.message.plain_text(), "Hello.");
        native::host(|host| {
            let decides = &host.completion_requests[1];
            let shown: Vec<String> = decides.messages.iter().map(Message::plain_text).collect();
            assert_eq!(shown, ["Be brief.", "Hi", "You thought: It is a greeting."]);
            assert_eq!(host.completion_requests[0].tool_choice, ToolChoice::None);
            assert_eq!(decides.tool_choice, ToolChoice::Auto);
        });
    }
}
