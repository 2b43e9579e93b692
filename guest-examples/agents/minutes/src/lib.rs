//! An agent that ends its answer with minutes: a line for each message of its run. Its model decides,
//! and is asked about the conversation that the host has; the agent reads that only for the minutes,
//! page by page. The last line says how much its last step was shown.

use taskrun_guest::{
    agent::{
        Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError, Termination, ToolRequest,
    },
    conversation,
    model::{CompletionRequest, ToolAccess},
    types::{Message, Part, Role},
};

/// The agent's own instructions.
const INSTRUCTIONS: &str = "Answer in one sentence.";
/// Messages of a page of the conversation.
const PAGE: u32 = 4;
/// Characters of a message that stand in the minutes.
const SHOWN_CHARS: usize = 60;

struct Minutes;

taskrun_guest::export_agent!(Minutes);

impl Agent for Minutes {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        step((input.messages.len(), 0), None)
    }

    fn resume(input: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        let shown = (input.messages.len(), input.tool_outputs.len());
        step(shown, input.finalize.as_ref())
    }
}

fn step(
    (messages, results): (usize, usize),
    finalize: Option<&Termination>,
) -> Result<PlanResult, PlannerError> {
    let mut request = CompletionRequest::new(Vec::new());
    if let Some(termination) = finalize {
        request.messages.push(Message::text(Role::System, &termination.message));
        request.tools = ToolAccess::None;
    }
    let answer = conversation::complete(Some(INSTRUCTIONS), &request)
        .map_err(|error| PlannerError::new(error.text()).code(error.code()))?;
    let calls: Vec<ToolRequest> = answer.message.parts.iter().filter_map(call).collect();
    if finalize.is_none() && !calls.is_empty() {
        return Ok(PlanResult::tool_calls(calls));
    }
    let (text, minutes) = (answer.message.plain_text(), minutes());
    let shown = format!("{messages} messages and {results} results were new");
    Ok(PlanResult::final_text(format!("{text}\n\n{minutes}\n{shown}")))
}

fn call(part: &Part) -> Option<ToolRequest> {
    match part {
        Part::ToolUse(call) => {
            Some(ToolRequest::new(&call.name, &call.payload).id(&call.tool_call_id))
        }
        Part::Text(_)
        | Part::Thinking(_)
        | Part::ToolAnswer(_)
        | Part::Json(_)
        | Part::Media(_) => None,
    }
}

/// A line for each message of the conversation.
fn minutes() -> String {
    let mut lines: Vec<String> = Vec::new();
    loop {
        let place = u32::try_from(lines.len()).unwrap_or(u32::MAX);
        let page = conversation::read(place, PAGE);
        if page.is_empty() {
            return lines.join("\n");
        }
        lines.extend(page.iter().map(line));
    }
}

fn line(message: &Message) -> String {
    let who = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let said = message.parts.iter().map(|part| match part {
        Part::Text(text) | Part::Json(text) => text.clone(),
        Part::Thinking(_) => "(thinks)".to_owned(),
        Part::ToolUse(call) => format!("calls {}", call.name),
        Part::ToolAnswer(answer) => answer.content.clone(),
        Part::Media(_) => "(an image)".to_owned(),
    });
    let said = said.collect::<Vec<_>>().join(" ").replace('\n', " ");
    format!("{who}: {}", said.chars().take(SHOWN_CHARS).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{
        agent::{Decision, TerminationReason},
        model::{Chunk, ModelError},
        native, run,
        types::ToolUse,
    };

    fn resume(finalize: Option<Termination>) -> Result<PlanResult, PlannerError> {
        Minutes::resume(PlanResumeInput {
            messages: vec![Message::text(Role::User, "More.")],
            run: run::context(),
            reminders: Vec::new(),
            tool_outputs: Vec::new(),
            finalize,
        })
    }

    /// A conversation of so many messages, and the model's next answer about it.
    fn answer_with(messages: usize, answer: Result<Vec<Chunk>, ModelError>) {
        native::reset();
        native::host(|host| {
            let said = (0..messages).map(|number| format!("message {number}"));
            host.conversation = said.map(|text| Message::text(Role::User, text)).collect();
            host.completions.push_back(answer);
        });
    }

    #[test]
    fn the_minutes_have_each_message_and_the_model_is_asked_about_all_of_them() {
        answer_with(9, Ok(vec![Chunk::Text("Nine.".into())]));
        let Decision::FinalResponse(last) = resume(None).expect("a decision").decision else {
            panic!("not final")
        };
        let text = last.message.plain_text();
        assert!(text.starts_with("Nine.\n\nuser: message 0\nuser: message 1\n"), "{text}");
        assert!(text.ends_with("message 8\n1 messages and 0 results were new"), "{text}");
        native::host(|host| {
            let asked = &host.completion_requests[0].messages;
            assert_eq!(asked.len(), 10);
            assert_eq!(asked[0], Message::text(Role::System, INSTRUCTIONS));
        });
    }

    #[test]
    fn the_models_calls_are_made_but_for_a_last_answer() {
        let call =
            ToolUse { tool_call_id: "a".into(), name: "words/count".into(), payload: "{}".into() };
        answer_with(1, Ok(vec![Chunk::ToolCall(call.clone())]));
        let decision = resume(None).expect("a decision").decision;
        assert!(matches!(decision, Decision::ToolCalls(calls) if calls.len() == 1));
        answer_with(1, Ok(vec![Chunk::ToolCall(call)]));
        let message = "No turns are left.".into();
        let end = Termination { reason: TerminationReason::TurnCap, message };
        let decision = resume(Some(end)).expect("a decision").decision;
        assert!(matches!(decision, Decision::FinalResponse(_)));
        answer_with(1, Err(ModelError::Timeout));
        assert_eq!(resume(None).expect_err("it fails").code.as_deref(), Some("timeout"));
    }
}
