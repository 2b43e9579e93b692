//! Work of the host for a guest: what takes long is done behind the others, so that nobody whose
//! call is short waits for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use taskrun::ports::planner::Planner;
use taskrun::scope::model::{Model, ModelStream};
use taskrun::scope::{
    CallScopeParts, CurrentRules, JournalRoom, Models, QuestionDigests, StepConversation,
};
use taskrun_engine::{AgentGrants, Engine};
use taskrun_examples as examples;
use taskrun_journal::completion::{CompletionRequest, ModelError};
use taskrun_journal::message::{Message, Role};

use crate::support::*;
use crate::threads::{BEHIND, CLOCK, FIRST, NOW, Places, place, threaded};

/// Bytes for which nothing takes long, and for which everything does.
const FEW: usize = 10;
const MANY: usize = 100 << 10;

/// Functions that an agent calls with a text, the types of their parameters in a core module, and
/// their arguments: `T` is the text, `A` is the place of an answer, and `L` is a long zero.
const FUNCTIONS: [(&str, &str, &str, &str); 9] = [
    ("events", "assistant-chunk", "i32 i32", "T"),
    ("events", "assistant-message", "i32 i32", "T"),
    ("events", "tool-call-args-delta", "i32 i32 i32 i32 i32 i32", "0 0 0 0 T"),
    ("events", "planner-thinking-block", "i32 i32 i32 i32 i32", "T 0 0 0"),
    ("events", "planner-thought", "i32 i32 i32 i32", "T 0 0"),
    ("prompts", "render", "i32 i32 i32 i32 i32", "0 0 T A"),
    ("controller", "cancel", "i32 i32 i32 i32 i32 i32", "0 0 1 T A"),
    ("conversation", "read", "i32 i32 i32", "0 1 A"),
    ("http", "send", "i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32", "0 0 0 0 0 0 T 0 L A"),
];

/// An agent that calls one of them with so many bytes, and then asks for the time.
fn caller((interface, name, types, arguments): (&str, &str, &str, &str), bytes: usize) -> Vec<u8> {
    let imports = format!(
        r#"{CLOCK}
        (import "taskrun:plugin/{interface}@0.1.0" "{name}" (func $asked (param {types})))"#
    );
    let arguments = arguments.split(' ').map(|argument| match argument {
        "T" => format!("(i32.const 65536) (i32.const {bytes})"),
        "A" => "(i32.const 5120)".to_owned(),
        "L" => "(i64.const 0)".to_owned(),
        number => format!("(i32.const {number})"),
    });
    let arguments = arguments.collect::<String>();
    let module = agent_module(&imports, &format!("(call $asked {arguments}) {NOW}"));
    let world = match interface {
        "conversation" => "agent-with-conversation",
        _ => "agent",
    };
    component(world, &module)
}

async fn agent(engine: &Arc<Engine>, bytes: Vec<u8>, with: AgentGrants) -> Arc<dyn Planner> {
    let loaded = engine.load(bytes).await.unwrap();
    engine.agent(&loaded, with).unwrap()
}

/// A conversation of one message of so many bytes, which the host has.
fn conversation(bytes: usize) -> StepConversation {
    let messages = Arc::new(vec![Message::text(Role::User, "x".repeat(bytes))]);
    StepConversation::new(messages, QuestionDigests::default())
}

#[tokio::test]
async fn functions_that_are_given_many_bytes_go_on_behind() {
    let engine = threaded(1);
    for function in FUNCTIONS {
        for (bytes, expected) in [(FEW, FIRST), (MANY, BEHIND)] {
            let with = grants(
                r#"allow = ["model: *", "prompts: *", "controller: *", "http: GET https://a.example/**"]"#,
            );
            let clock = Places::new();
            let scope = scope_with(|parts: &mut CallScopeParts| {
                parts.rules = CurrentRules::fixed(rules(&with));
                (parts.clock, parts.journal) = (clock.clone(), Some(JournalRoom::default()));
                parts.services.conversation = Some(conversation(bytes));
            });
            let agent = agent(&engine, caller(function, bytes), with).await;
            agent.plan(plan_input(), scope).await.unwrap().unwrap();
            assert_eq!(clock.seen(), [expected], "{function:?} {bytes}");
        }
    }
}

/// Notes on which thread it is asked.
struct ThreadRecorder(Mutex<Vec<String>>);

#[async_trait]
impl Model for ThreadRecorder {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        self.0.lock().unwrap().push(place());
        Err(ModelError::Timeout)
    }
}

#[tokio::test]
async fn a_model_is_asked_behind_with_a_long_question() {
    let engine = threaded(1);
    let with = grants("allow = [\"model: fake\"]\n[model.fake]\nprovider = \"echo\"");
    let asked = Arc::new(ThreadRecorder(Mutex::default()));
    let model: Arc<dyn Model> = asked.clone();
    let models = Arc::new(Models {
        by_name: BTreeMap::from([("fake".to_owned(), model)]),
        prices: BTreeMap::new(),
        settings: BTreeMap::new(),
        default: Some("fake".to_owned()),
    });
    let rules = rules(&with);
    let agent = agent(&engine, examples::CHAT.bytes.to_vec(), with).await;
    for bytes in [FEW, MANY] {
        let scope = scope_with(|parts| {
            parts.services.conversation = Some(conversation(bytes));
            (parts.models, parts.rules) =
                (Some(Arc::clone(&models)), CurrentRules::fixed(rules.clone()));
        });
        let planned = agent.plan(plan_input(), scope).await;
        assert!(planned.unwrap().is_err(), "the model does not answer");
    }
    assert_eq!(*asked.0.lock().unwrap(), [FIRST, BEHIND]);
}
