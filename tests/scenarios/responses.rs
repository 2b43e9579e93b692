//! Responses through the whole host: the real guest `chat` asks a server that refuses what OpenAI
//! refuses.

use serde_json::{Value, json};
use taskrun_journal::message::Usage;
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;
use taskrun_tests::provider::responses::{Answer, sealed};
use taskrun_tests::provider::rules::Strictness;
use taskrun_tests::provider::{Provider, Reply};
use taskrun_tests::{Builder, House, Storage};

/// An agent that may ask so many times, and once more for a last word.
async fn house(provider: &Provider, turns: usize) -> House {
    let url = provider.base_url();
    let policy = format!(
        r#"
[tool.workspace]
component = "components/workspace.wasm"

[model.default]
provider = "openai"
model = "m-1"
base_url = "{url}"
key_file = "secrets/key"
effort = "high"
prices = {{ prompt = 1.25, completion = 10, cached = 0.125 }}

[agent.talker]
component = "components/chat.wasm"
model = "default"
tools = ["workspace/read"]
allow = ["workspace-read: **"]
deny = ["workspace-write: **"]
retry = {{ attempts = 1 }}
budget = {{ turns = {turns}, reserve = {{ turns = 1 }} }}
"#
    );
    let builder = Builder::new(&policy).storage(Storage::Sqlite);
    let secret = builder.file("secrets/key", "sk-test-77aa\n");
    secret.file("docs/a.md", "Apples are kept in the cellar.\n").open().await
}

/// Reasoning before each of two calls at once, and a comment.
fn looks(turn: usize) -> Reply {
    let id = |kind: &str, n: usize| format!("{kind}_{turn}_{n}");
    let read = "{\"path\":\"docs/a.md\"}";
    Answer::new()
        .reasoning(&id("rs", 1), &["I should look."])
        .message(&id("msg", 1), Some("commentary"), "I look.")
        .call(&id("fc", 1), &id("call", 1), "workspace__read", read)
        .reasoning(&id("rs", 2), &[])
        .call(&id("fc", 2), &id("call", 2), "workspace__read", read)
        .completed()
}

fn types(items: &[Value]) -> Vec<&str> {
    items.iter().filter_map(|item| item["type"].as_str()).collect()
}

#[tokio::test]
async fn m_61_a_long_conversation_by_responses_keeps_what_was_reasoned() {
    const TURNS: usize = 12;
    let last = Answer::new()
        .reasoning("rs_last", &[])
        .message("msg_last", Some("final_answer"), "In the cellar.")
        .completed();
    let provider =
        Provider::start_as(Strictness::OpenAi, (0..TURNS).map(looks).chain([last])).await;
    let house = house(&provider, TURNS + 1).await;
    let run = house.run("talker", "Where are the apples?").await;
    let view = RunView::from(&run);
    let found = (view.status, view.result.as_deref());
    assert_eq!(found, (Status::Completed, Some("In the cellar.")), "{:?}", view.error);
    // Each answer read 30 tokens, 20 of them from the cache, and wrote 12, 8 of them reasoning.
    let answers = u64::try_from(TURNS + 1).expect("few");
    let spent = Usage {
        prompt_tokens: 30 * answers,
        completion_tokens: 12 * answers,
        total_tokens: 42 * answers,
        cached_tokens: 20 * answers,
        reasoning_tokens: 8 * answers,
        cost_microusd: 135 * answers,
        ..Usage::default()
    };
    assert_eq!(run.state.progress.usage(), spent);

    let asked = provider.asked();
    assert_eq!(asked.len(), TURNS + 1, "nothing was asked twice");
    assert_eq!(asked[TURNS].headers["authorization"], "Bearer sk-test-77aa");
    let input = asked[TURNS].body["input"].as_array().expect("items");
    let question = input.iter().position(|item| item["role"] == "user").expect("the question");
    for (turn, items) in input[question + 1..].chunks(7).take(TURNS).enumerate() {
        let (call, output) = ("function_call", "function_call_output");
        let expected = ["reasoning", "message", call, "reasoning", call, output, output];
        assert_eq!(types(items), expected, "{items:#?}");
        for (place, n) in [(0, 1), (3, 2)] {
            let id = format!("rs_{turn}_{n}");
            assert_eq!(items[place]["encrypted_content"], sealed(&id));
        }
        assert_eq!(
            (&items[1]["content"], &items[1]["phase"]),
            (&json!("I look."), &json!("commentary"))
        );
        assert_eq!(
            (&items[2]["call_id"], &items[5]["call_id"]),
            (&items[5]["call_id"], &json!(format!("call_{turn}_1")))
        );
        let result = items[6]["output"].as_str().expect("a text");
        assert!(result.contains("kept in the cellar"), "{result}");
    }
}

#[tokio::test]
async fn m_61_a_last_word_by_responses_is_asked_for_without_tools() {
    let last = Answer::new().message("msg_last", Some("final_answer"), "I was cut short.");
    let provider =
        Provider::start_as(Strictness::OpenAi, [looks(0), looks(1), last.completed()]).await;
    let house = house(&provider, 3).await;
    let view = RunView::from(&house.run("talker", "Where are the apples?").await);
    assert_eq!(view.result.as_deref(), Some("I was cut short."), "{view:?}");
    let body = &provider.asked()[2].body;
    assert!(body.get("tools").is_none(), "{body:#}");
}

#[tokio::test]
async fn l_076_a_model_that_writes_no_json_by_responses_is_told_so_and_tries_again() {
    let first = Answer::new()
        .reasoning("rs_1", &[])
        .call("fc_1", "a", "workspace__read", "{\"path\":\"docs/a.md\"}")
        .call("fc_2", "b", "workspace__read", "{\"path\":")
        .call("fc_3", "c", "", "{}")
        .completed();
    let last = Answer::new().message("msg_1", None, "In the cellar.").completed();
    let provider = Provider::start_as(Strictness::OpenAi, [first, last]).await;
    let house = house(&provider, 5).await;
    let view = RunView::from(&house.run("talker", "Where are the apples?").await);
    let found = (view.status, view.result.as_deref());
    assert_eq!(found, (Status::Completed, Some("In the cellar.")), "{:?}", view.error);
    let input = provider.asked()[1].body["input"].as_array().cloned().expect("items");
    let outputs: Vec<&Value> =
        input.iter().filter(|item| item["type"] == "function_call_output").collect();
    assert_eq!(outputs.len(), 2, "{input:#?}");
    let told = outputs[1]["output"].as_str().unwrap_or_default();
    assert!(told.contains("are not JSON"), "{told}");
}
