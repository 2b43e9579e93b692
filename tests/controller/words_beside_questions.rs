//! Words and thoughts of a model beside a question to the outside stay in the conversation (L-058,
//! L-059).

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use taskrun::ports::planner::{Decision, PlanInput};
use taskrun::scope::CallScope;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::media::MediaBytes;
use taskrun_journal::message::{Message, Part, Role, Thinking, ToolUse};
use taskrun_journal::question::{Answer, AwaitItem, ExternalTool};
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolOutcome;

use crate::native::{ClosurePlanner, World, answer, clarification, decided, request};

/// A model that thinks, says something and asks for a tool.
struct Thoughtful;

fn thinking() -> Thinking {
    Thinking { text: "hm".to_owned(), signature: Some("signed".to_owned()) }
}

fn wish() -> ToolUse {
    ToolUse { tool_call_id: "x".into(), name: "out/side".into(), payload: "{}".into() }
}

#[async_trait]
impl Model for Thoughtful {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        let chunks = [
            Chunk::Thinking(thinking()),
            Chunk::Text("let me see".to_owned()),
            Chunk::ToolCall(wish()),
            Chunk::Stop { reason: CompletionStop::ToolUse, model: "m-1".to_owned() },
        ];
        Ok(stream::iter(chunks.map(Ok)).boxed())
    }
}

fn completion() -> CompletionRequest {
    CompletionRequest {
        model: None,
        messages: Vec::new(),
        tools: Vec::new(),
        max_tokens: None,
        temperature: None,
        tool_choice: taskrun_journal::completion::ToolChoice::Auto,
        stop_sequences: Vec::new(),
        response_schema: None,
        media: MediaBytes::default(),
        tokens_left: None,
    }
}

/// The messages that the second step of an agent is given which asks for this after its model spoke,
/// and is answered so; where the host dies meanwhile, too.
async fn second_step(item: AwaitItem, given: Answer, dies: bool) -> Vec<Message> {
    let (mut world, seen) = (World::new(), Arc::new(Mutex::new(Vec::new())));
    let seen_by = Arc::clone(&seen);
    let planner = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| {
        let (seen, item) = (Arc::clone(&seen_by), item.clone());
        async move {
            if input.resume.is_some() {
                *seen.lock().expect("nobody panics with it") = input.messages.to_vec();
                return answer("done");
            }
            scope.ask(completion()).await.expect("it answers");
            decided(Decision::Await(vec![item.into()]))
        }
    });
    world.agent_asking("a", planner, Some(Arc::new(Thoughtful)), |_| {});
    let mut host = world.start().await;
    let id = host.spawn(&request("a", "task")).await;
    let run = host.reach(&id, Status::Blocked).await;
    if dies {
        world.kill(host).await;
        host = world.take_over().await;
    }
    let item = run.state.awaits[0].id.clone();
    host.client().named("me").answer(&id, Some(&item), given).await.expect("taken");
    host.end(&id).await;
    let seen = seen.lock().expect("nobody panics with it");
    seen.clone()
}

fn words() -> Vec<Part> {
    vec![Part::Thinking(thinking()), Part::Text("let me see".to_owned())]
}

#[tokio::test]
async fn l_059_words_and_thinking_stand_before_the_call_that_is_answered_from_outside() {
    for dies in [false, true] {
        let calls = vec![ExternalTool {
            name: "out/side".into(),
            tool_call_id: "x".into(),
            payload: "{}".into(),
        }];
        let item = AwaitItem::ExternalTools { id: "e".into(), items: calls };
        let outcome = ToolOutcome::Value("1".into());
        let given = Answer::Results([("x".to_owned(), outcome.into())].into());
        let messages = second_step(item, given, dies).await;
        let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool], "{messages:?}");
        let expected = [words(), vec![Part::ToolUse(wish())]].concat();
        assert_eq!(messages[1].parts, expected);
    }
}

#[tokio::test]
async fn l_058_words_and_thinking_stand_before_the_answer_to_a_question() {
    for dies in [false, true] {
        let given = Answer::Text("this".to_owned());
        let messages = second_step(clarification("c"), given, dies).await;
        let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::User], "{messages:?}");
        assert_eq!(messages[1].parts, words());
        assert_eq!(messages[2].joined_text(), "this");
    }
}
