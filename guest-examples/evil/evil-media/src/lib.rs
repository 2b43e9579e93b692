//! An agent that names an image which it was never shown. Its task is `ask HASH`, to put it before
//! its model, `result HASH`, to do so in a result of a tool, `say HASH`, to have it in its answer,
//! or `start HASH`, to give it to a run of its own agent. With `fill` its answer has the images of its
//! conversation, over and over. `relay` puts the images of an answer of `talker` before its model, as it
//! may; `sibling` has a run of its own agent name one of them that was not given it.

use taskrun_guest::{
    agent::{
        Agent, Decision, FinalResponse, PlanInput, PlanResult, PlanResumeInput, PlannerError,
        ask_model, task,
    },
    controller::{self, ControllerError, RunRecord, SpawnRequest},
    model::CompletionRequest,
    types::{Media, Message, Part, Role, ToolAnswer, ToolUse},
};

/// The task of a run whose answer has an image.
const LOOK: &str = "What is on the picture?";
/// Images of an answer that is filled with them.
const FILL: usize = 2_000;

struct Namer;

taskrun_guest::export_agent!(Namer);

impl Agent for Namer {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        let task = task(&input.messages).unwrap_or_default();
        let (how, hash) = task.split_once(' ').unwrap_or((&task, ""));
        let media = Media { media_type: "image/png".into(), hash: hash.into(), size: 1 };
        let asked = match how {
            "say" => {
                let parts = vec![Part::Text("Look.".into()), Part::Media(media)];
                let message = Message { role: Role::Assistant, parts };
                return Ok(PlanResult::new(Decision::FinalResponse(FinalResponse { message })));
            }
            "start" => {
                let request = SpawnRequest::new(input.run.agent_name, "say").images([media]);
                let run = controller::spawn(&request).map_err(failed)?;
                return Ok(PlanResult::final_text(run.id));
            }
            "relay" => {
                let images = ended("talker", LOOK.into())?.images.into_iter().map(Part::Media);
                let parts = [Part::Text("Look.".into())].into_iter().chain(images).collect();
                vec![Message { role: Role::User, parts }]
            }
            "sibling" => {
                let image = ended("talker", LOOK.into())?.images.remove(0);
                let other = ended(&input.run.agent_name, format!("ask {}", image.hash))?;
                let said = other.error.or(other.result).unwrap_or_default();
                return Ok(PlanResult::final_text(said));
            }
            "fill" => {
                let shown = input.messages.iter().flat_map(|message| &message.parts);
                let images = shown.filter(|part| matches!(part, Part::Media(_))).cloned();
                let images: Vec<_> = images.collect();
                let parts = [Part::Text("Look.".into())].into_iter();
                let parts = parts.chain(images.into_iter().cycle().take(FILL)).collect();
                let message = Message { role: Role::Assistant, parts };
                return Ok(PlanResult::final_message(message));
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

/// A run of another agent at its end.
fn ended(agent: &str, task: String) -> Result<RunRecord, PlannerError> {
    let run = controller::spawn(&SpawnRequest::new(agent, task)).map_err(failed)?;
    Ok(controller::wait(&run.id, None).map_err(failed)?.run)
}

fn failed(error: ControllerError) -> PlannerError {
    PlannerError::new(error.text()).code(error.code())
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
