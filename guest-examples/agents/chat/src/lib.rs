//! An agent whose model decides: it asks the model about the conversation, passes on what the model
//! says while it says it, and does what the model wants. The answer has the images of the results on
//! which it was given. A run with the label `reminder` has it before its model in each turn but the
//! first.
//!
//! The conversation stays with the host, and later steps are shown what is new of it, so that a turn
//! late in a long run costs hardly more than one at its beginning.

use taskrun_guest::{
    agent::{
        Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError, Reminder, Termination,
        ToolRequest, ask_conversation, result_images,
    },
    model::{CompletionRequest, ToolAccess},
    reminders::{self, Attachment, ReminderSpec, Tier},
    types::{Message, Part, Role, RunContext},
};

/// The label of a run that is a note to its model, and the id of that note.
const REMINDER: &str = "reminder";

struct Chat;

taskrun_guest::export_agent!(Chat);

impl Agent for Chat {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        remind(&input.run)?;
        step(&input.messages, &input.reminders, None)
    }

    fn resume(input: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        step(&input.messages, &input.reminders, input.finalize.as_ref())
    }
}

/// Leaves the note of a run's label for all turns that follow.
fn remind(run: &RunContext) -> Result<(), PlannerError> {
    let Some((_, text)) = run.labels.iter().find(|(key, _)| key == REMINDER) else { return Ok(()) };
    reminders::add(&ReminderSpec {
        id: REMINDER.into(),
        text: text.clone(),
        priority: Tier::Safety,
        attachment: Attachment::UserTurn,
        max_per_run: None,
        min_turns_between: 0,
    })
    .map_err(|error| PlannerError::new(format!("{error}")).code("limit"))
}

/// `new` is the conversation, or what is new of it.
fn step(
    new: &[Message],
    reminders: &[Reminder],
    finalize: Option<&Termination>,
) -> Result<PlanResult, PlannerError> {
    let images = result_images(new);
    let mut request = CompletionRequest::new(Vec::new());
    if let Some(termination) = finalize {
        request.messages.push(Message::text(Role::System, &termination.message));
        request.tools = ToolAccess::None;
    }
    let answer = ask_conversation(reminders, request)?;
    let calls: Vec<ToolRequest> = answer
        .tool_calls()
        .map(|call| ToolRequest::new(&call.name, &call.payload).id(&call.tool_call_id))
        .collect();
    if finalize.is_none() && !calls.is_empty() {
        return Ok(PlanResult::tool_calls(calls));
    }
    let mut message = answer.into_message();
    message.parts.extend(images.into_iter().map(Part::Media));
    Ok(PlanResult::final_message(message).streamed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{
        agent::{Decision, TerminationReason},
        model::{Chunk, CompletionStop, ModelError},
        native::{self, Event},
        run,
        types::{Attachment, Media, Thinking, ToolAnswer, ToolUse},
    };

    fn answer_with(chunks: Vec<Chunk>) {
        native::reset();
        native::host(|host| host.completions.push_back(Ok(chunks)));
    }

    fn start() -> Result<PlanResult, PlannerError> {
        let messages =
            vec![Message::text(Role::System, "Be brief."), Message::text(Role::User, "Hello")];
        native::host(|host| host.conversation.clone_from(&messages));
        Chat::start(PlanInput {
            messages,
            run: run::context(),
            reminders: vec![Reminder {
                id: "r".into(),
                text: "It is late.".into(),
                attachment: Attachment::UserTurn,
            }],
        })
    }

    #[test]
    fn text_and_reasoning_are_streamed_and_then_the_answer() {
        let thinking = Thinking { text: "hm".into(), signature: Some("s".into()) };
        answer_with(vec![
            Chunk::Thinking(thinking.clone()),
            Chunk::Text("Hel".into()),
            Chunk::Text("lo.".into()),
            Chunk::Thinking(thinking.clone()),
            Chunk::Stop(CompletionStop::EndTurn),
        ]);
        let result = start().expect("a decision");
        assert!(result.streamed);
        let Decision::FinalResponse(last) = result.decision else { panic!("not final") };
        let thought = Part::Thinking(thinking.clone());
        let expected = [thought.clone(), Part::Text("Hello.".into()), thought];
        assert_eq!(last.message.parts, expected);
        native::host(|host| {
            let thought = Event::Thinking(thinking);
            assert_eq!(host.events, [thought.clone(), Event::Chunk("Hello.".into()), thought]);
            let shown: Vec<String> =
                host.completion_requests[0].messages.iter().map(Message::plain_text).collect();
            assert_eq!(shown, ["Be brief.", "Hello", "It is late."]);
        });
    }

    #[test]
    fn the_label_of_a_run_is_a_note_for_later_turns() {
        answer_with(vec![Chunk::Text("Hello.".into())]);
        let run = RunContext {
            labels: vec![("reminder".into(), "Answer in French.".into())],
            ..run::context()
        };
        let messages = vec![Message::text(Role::User, "Hello")];
        Chat::start(PlanInput { messages, run, reminders: Vec::new() }).expect("a decision");
        native::host(|host| assert_eq!(host.reminders["reminder"].text, "Answer in French."));
    }

    #[test]
    fn the_models_calls_keep_their_ids_and_order() {
        let call = |id: &str| {
            Chunk::ToolCall(ToolUse {
                tool_call_id: id.into(),
                name: "workspace/read".into(),
                payload: "{}".into(),
            })
        };
        answer_with(vec![call("a"), call("b"), Chunk::Stop(CompletionStop::ToolUse)]);
        let Decision::ToolCalls(calls) = start().expect("a decision").decision else {
            panic!("no calls")
        };
        let ids: Vec<_> = calls.iter().filter_map(|call| call.tool_call_id.as_deref()).collect();
        assert_eq!(ids, ["a", "b"]);
    }

    fn image(hash: &str) -> Media {
        Media { media_type: "image/png".into(), hash: hash.into(), size: 1 }
    }

    fn called(id: &str, media: Vec<Media>) -> [Message; 2] {
        let (id, content) = (id.to_owned(), "1".to_owned());
        let call = ToolUse { tool_call_id: id.clone(), name: "t/f".into(), payload: "{}".into() };
        let answer = ToolAnswer { tool_call_id: id, content, is_error: false, media };
        [
            Message { role: Role::Assistant, parts: vec![Part::ToolUse(call)] },
            Message { role: Role::Tool, parts: vec![Part::ToolAnswer(answer)] },
        ]
    }

    #[test]
    fn images_are_shown_to_the_model_and_those_of_the_last_results_come_with_the_answer() {
        answer_with(vec![Chunk::Text("Two cats.".into()), Chunk::Stop(CompletionStop::EndTurn)]);
        let task = vec![Part::Text("What is this?".into()), Part::Media(image("of the task"))];
        let mut all = vec![Message { role: Role::User, parts: task }];
        all.extend(called("a", vec![image("of before")]));
        let new = called("b", vec![image("one"), image("two"), image("one")]);
        all.extend(new.clone());
        native::host(|host| host.conversation.clone_from(&all));
        let result = Chat::resume(PlanResumeInput {
            messages: new.into(),
            run: run::context(),
            reminders: Vec::new(),
            tool_outputs: Vec::new(),
            finalize: None,
        });
        let Decision::FinalResponse(last) = result.expect("a decision").decision else {
            panic!("not final")
        };
        let expected =
            [Part::Text("Two cats.".into()), Part::Media(image("one")), Part::Media(image("two"))];
        assert_eq!(last.message.parts, expected);
        native::host(|host| assert_eq!(host.completion_requests[0].messages, all));
        // Without results there is nothing to pass on: whoever asks has the images of the task.
        answer_with(vec![Chunk::Text("A cat.".into())]);
        let Decision::FinalResponse(last) = start().expect("a decision").decision else {
            panic!("not final")
        };
        assert_eq!(last.message.parts, [Part::Text("A cat.".into())]);
    }

    #[test]
    fn an_answer_that_is_cut_off_is_gone_on_with_and_its_reasoning_kept() {
        let thought = |text: &str| Thinking { text: text.into(), signature: Some("s".into()) };
        native::reset();
        native::host(|host| {
            host.completions.push_back(Ok(vec![
                Chunk::Thinking(thought("1")),
                Chunk::Text("One, ".into()),
                Chunk::Stop(CompletionStop::MaxTokens),
            ]));
            host.completions.push_back(Ok(vec![
                Chunk::Thinking(thought("2")),
                Chunk::Text("two.".into()),
                Chunk::Stop(CompletionStop::EndTurn),
            ]));
        });
        let result = start().expect("a decision");
        let Decision::FinalResponse(last) = result.decision else { panic!("not final") };
        let said = [
            Part::Thinking(thought("1")),
            Part::Text("One, ".into()),
            Part::Thinking(thought("2")),
            Part::Text("two.".into()),
        ];
        assert_eq!(last.message.parts, said);
        native::host(|host| {
            let again = &host.completion_requests[1].messages;
            let before = &again[again.len() - 2];
            assert_eq!((before.role, &before.parts[..]), (Role::Assistant, &said[..2]));
        });
        let cut = || vec![Chunk::Text("More ".into()), Chunk::Stop(CompletionStop::MaxTokens)];
        native::reset();
        native::host(|host| host.completions.extend((0..9).map(|_| Ok(cut()))));
        let Decision::FinalResponse(last) = start().expect("a decision").decision else {
            panic!("not final")
        };
        assert!(last.message.plain_text().contains("[The answer is cut off here"));
    }

    #[test]
    fn a_last_answer_is_asked_for_without_tools() {
        answer_with(vec![Chunk::Text("As far as I know.".into())]);
        let result = Chat::resume(PlanResumeInput {
            messages: vec![Message::text(Role::User, "Hello")],
            run: run::context(),
            reminders: Vec::new(),
            tool_outputs: Vec::new(),
            finalize: Some(Termination {
                reason: TerminationReason::TurnCap,
                message: "No turns are left.".into(),
            }),
        });
        assert!(matches!(result.expect("a decision").decision, Decision::FinalResponse(_)));
        native::host(|host| {
            let request = &host.completion_requests[0];
            assert!(matches!(request.tools, ToolAccess::None));
            let last = request.messages.last().expect("messages");
            assert_eq!((last.role, last.plain_text()), (Role::System, "No turns are left.".into()));
        });
    }

    #[test]
    fn a_failing_model_fails_the_run_with_its_code() {
        native::reset();
        native::host(|host| host.completions.push_back(Err(ModelError::RateLimited(None))));
        assert_eq!(start().expect_err("it fails").code.as_deref(), Some("rate-limited"));
        native::host(|host| host.completions.push_back(Err(ModelError::Refused("No.".into()))));
        let refused = start().expect_err("it fails");
        assert_eq!(refused.code.as_deref(), Some("model-refused"));
        assert!(refused.message.ends_with("No."), "{}", refused.message);
        answer_with(vec![Chunk::Stop(CompletionStop::EndTurn)]);
        assert_eq!(start().expect_err("it fails").code.as_deref(), Some("empty-answer"));
    }
}
