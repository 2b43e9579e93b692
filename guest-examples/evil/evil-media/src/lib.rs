//! An agent that names an image which it was never shown. Its task is `ask HASH`, to put it before
//! its model, `result HASH`, to do so in a result of a tool, or `say HASH`, to have it in its answer.

use taskrun_guest::{
    agent::{
        Agent, Decision, FinalResponse, PlanInput, PlanResult, PlanResumeInput, PlannerError,
        ask_model, task,
    },
    model::CompletionRequest,
    types::{Media, Message, Part, Role, ToolAnswer, ToolUse},
};

struct Namer;

taskrun_guest::export_agent!(Namer);

impl Agent for Namer {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        let task = task(&input.messages).unwrap_or_default();
        let (how, hash) = task.split_once(' ').unwrap_or_default();
        let media = Media { media_type: "image/png".into(), hash: hash.into(), size: 1 };
        let asked = match how {
            "say" => {
                let parts = vec![Part::Text("Look.".into()), Part::Media(media)];
                let message = Message { role: Role::Assistant, parts };
                return Ok(PlanResult::new(Decision::FinalResponse(FinalResponse { message })));
            }
            "result" => called(media),
            _ => {
                let parts = vec![Part::Text("Look.".into()), Part::Media(media)];
                vec![Message { role: Role::User, parts }]
            }
        };
        let answer = ask_model(CompletionRequest::new(asked))?;
        Ok(PlanResult::final_message(answer.into_message()).streamed())
    }

    fn resume(_: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        Err(PlannerError::new("it calls no tools and asks nobody"))
    }
}

/// A call that was never made, with the image in its result.
fn called(media: Media) -> Vec<Message> {
    let id = String::from("c");
    let call = ToolUse { tool_call_id: id.clone(), name: "t/f".into(), payload: "{}".into() };
    let answer =
        ToolAnswer { tool_call_id: id, content: "1".into(), is_error: false, media: vec![media] };
    vec![
        Message::text(Role::User, "Look."),
        Message { role: Role::Assistant, parts: vec![Part::ToolUse(call)] },
        Message { role: Role::Tool, parts: vec![Part::ToolAnswer(answer)] },
    ]
}
