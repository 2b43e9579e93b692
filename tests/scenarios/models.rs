//! Models behind HTTP: a server on loopback, the real guest `chat`, and the whole host between.

use serde_json::{Value, json};
use taskrun_journal::completion::ModelError;
use taskrun_journal::event::{Event, HostAnswer, ModelAnswer};
use taskrun_journal::message::Part;
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;
use taskrun_tests::provider::responses::Answer;
use taskrun_tests::provider::rules::Strictness;
use taskrun_tests::provider::{Provider, Reply};
use taskrun_tests::{Builder, House, Storage};

fn policy(provider: &Provider, wire: &str, more: &str) -> String {
    let url = provider.base_url();
    format!(
        r#"
[tool.workspace]
component = "components/workspace.wasm"

[model.default]
provider = "{wire}"
model = "m-1"
base_url = "{url}"
key_file = "secrets/key"
{more}

[agent.talker]
component = "components/chat.wasm"
model = "default"
tools = ["workspace/read"]
allow = ["workspace-read: **"]
deny = ["workspace-write: **"]
retry = {{ attempts = 1 }}
"#
    )
}

/// With a key in a file, as it would be in a project.
async fn house(provider: &Provider, wire: &str, more: &str) -> House {
    let builder = Builder::new(&policy(provider, wire, more)).storage(Storage::Sqlite);
    let secret = builder.file("secrets/key", "sk-test-77aa\n");
    secret.file("docs/a.md", "Apples are kept in the cellar.\n").open().await
}

fn anthropic_call() -> Reply {
    let delta = |index: u64, delta: Value| json!({ "type": "content_block_delta", "index": index, "delta": delta });
    let json = |text: &str| delta(1, json!({ "type": "input_json_delta", "partial_json": text }));
    Reply::events(&[
        json!({ "type": "message_start", "message": { "model": "m-1", "usage": { "input_tokens": 30 } } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "thinking" } }),
        delta(0, json!({ "type": "thinking_delta", "thinking": "The file will say." })),
        delta(0, json!({ "type": "signature_delta", "signature": "c2lnbmVk" })),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "content_block_start", "index": 1,
            "content_block": { "type": "tool_use", "id": "t1", "name": "workspace__read", "input": {} } }),
        json("{\"path\":\"do"),
        json("cs/a.md\"}"),
        json!({ "type": "content_block_stop", "index": 1 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": { "output_tokens": 10 } }),
        json!({ "type": "message_stop" }),
    ])
}

fn anthropic_text(pieces: &[&str]) -> Reply {
    let mut events = vec![
        json!({ "type": "message_start", "message": { "model": "m-1", "usage": { "input_tokens": 60 } } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text" } }),
    ];
    events.extend(pieces.iter().map(|text| {
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": text } })
    }));
    events.extend([
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 5 } }),
        json!({ "type": "message_stop" }),
    ]);
    Reply::events(&events)
}

#[tokio::test]
async fn m_61_a_model_reasons_calls_a_tool_and_answers_through_the_whole_host() {
    let replies = [anthropic_call(), anthropic_text(&["In the ", "cellar."])];
    let provider = Provider::start(replies).await;
    let house = house(&provider, "anthropic", "").await;
    let id = house.spawn(&house.request("talker", "Where are the apples?")).await;
    let run = house.end(&id).await;
    let view = RunView::from(&run);
    assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some("In the cellar.")));
    assert_eq!(run.state.progress.total_tokens, 105, "30 + 10 + 60 + 5");

    let asked = provider.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].headers["x-api-key"], "sk-test-77aa");
    assert_eq!(asked[0].body["tools"][0]["name"], "workspace__read");
    assert_eq!(asked[0].body["tools"][0]["input_schema"]["type"], "object");
    // What the model said goes back to it as it was, the signature with it, and the result after.
    let messages = asked[1].body["messages"].as_array().expect("messages");
    let [.., said, results] = messages.as_slice() else { panic!("{messages:?}") };
    let thinking =
        json!({ "type": "thinking", "thinking": "The file will say.", "signature": "c2lnbmVk" });
    assert_eq!(said["content"][0], thinking);
    assert_eq!(said["content"][1]["input"], json!({ "path": "docs/a.md" }));
    let result = &results["content"][0];
    assert_eq!(result["type"], "tool_result");
    assert_eq!(result["tool_use_id"], said["content"][1]["id"]);
    assert!(result["content"].to_string().contains("kept in the cellar"), "{result}");

    let journal = house.journal(&id).await;
    let kinds: Vec<&str> = journal.iter().map(|recorded| recorded.event.kind()).collect();
    for kind in [
        "thinking_block",
        "tool_call_args_delta",
        "tool_call_scheduled",
        "tool_result",
        "assistant_chunk",
        "host_answered",
    ] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    let text = serde_json::to_string(&journal).expect("JSON");
    assert!(!text.contains("sk-test-77aa"), "the key is in the journal: {text}");
}

#[tokio::test]
async fn m_62_a_run_is_recorded_and_the_cassette_makes_it_again_without_the_provider() {
    let replies = [anthropic_call(), anthropic_text(&["In the ", "cellar."])];
    let provider = Provider::start(replies).await;
    let recording = house(&provider, "anthropic", "record = \"calls.jsonl\"").await;
    let first = RunView::from(&recording.run("talker", "Where are the apples?").await);
    let cassette = std::fs::read_to_string(recording.path().join("calls.jsonl"));
    let cassette = cassette.expect("a cassette");
    assert_eq!(cassette.lines().count(), 2);
    assert!(!cassette.contains("sk-test-77aa"), "{cassette}");

    let replaying = policy(&provider, "anthropic", "");
    let (before, after) = replaying.split_once("[model.default]").expect("a model");
    let (_, agent) = after.split_once("[agent.talker]").expect("an agent");
    let replaying = format!(
        "{before}[model.default]\nprovider = \"replay\"\nfile = \"calls.jsonl\"\n[agent.talker]{agent}"
    );
    let builder = Builder::new(&replaying).file("calls.jsonl", &cassette);
    let replayed = builder.file("docs/a.md", "Apples are kept in the cellar.\n").open().await;
    let again = RunView::from(&replayed.run("talker", "Where are the apples?").await);
    assert_eq!((again.status, &again.result), (first.status, &first.result));
    assert_eq!(provider.asked().len(), 2, "the provider was not asked again");

    // Another question is a miss, and a loud one.
    let id = replayed.spawn(&replayed.request("talker", "Where are the pears?")).await;
    let missed = RunView::from(&replayed.end(&id).await);
    assert_eq!(missed.status, Status::Failed);
    let error = missed.error.expect("an error");
    assert!(error.contains("the cassette has no answer to this"), "{error}");
}

fn chat(delta: &Value, finish: &Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
}

/// Two calls as Ollama numbers them, of which one has arguments that are no JSON, and one without
/// a name; advice goes to the model beside the results, and the whole is taken by a server that
/// makes a prompt of it by a template.
#[tokio::test]
async fn l_076_a_model_that_writes_no_json_is_told_so_and_tries_again() {
    let call = |id: &str, name: Value, arguments: &str| {
        let call = json!({ "index": 0, "id": id,
            "function": { "name": name, "arguments": arguments } });
        chat(&json!({ "tool_calls": [call] }), &Value::Null)
    };
    let done = || chat(&json!({}), &json!("tool_calls"));
    let read = || json!("workspace__read");
    let first = [
        call("a", read(), "{\"path\":\"docs/a.md\"}"),
        call("b", read(), "{\"path\":"),
        call("c", Value::Null, "{}"),
        done(),
    ];
    let last = [chat(&json!({ "content": "In the cellar." }), &json!("stop"))];
    let provider = Provider::start([Reply::events(&first), Reply::events(&last)]).await;
    let house = house(&provider, "openai-chat", "").await;
    let view = RunView::from(&house.run("talker", "Where are the apples?").await);
    assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some("In the cellar.")));
    let messages = provider.asked()[1].body["messages"].clone();
    let calls = messages[1]["tool_calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 2, "{messages:#}");
    let result = |place: usize| messages[place]["content"].as_str().unwrap_or_default();
    assert!(result(2).contains("kept in the cellar"), "{messages:#}");
    assert!(result(3).contains("are not JSON"), "{messages:#}");
    assert!(result(3).contains("What are the arguments of workspace/read"), "{messages:#}");
}

/// Twelve turns of two calls at once, with reasoning in each, and a last word: each request is
/// taken by each kind of server, and what a model reasoned comes back to it where it wants that.
#[tokio::test]
async fn m_61_a_long_conversation_is_taken_by_each_kind_of_server() {
    const TURNS: usize = 12;
    let kinds = [
        (Strictness::Template, "", None),
        (Strictness::Mistral, "server = \"mistral\"", None),
        (Strictness::OpenAi, "server = \"openai\"\neffort = \"none\"", None),
        (Strictness::DeepSeek, "server = \"deepseek\"", Some("reasoning_content")),
        (Strictness::Kimi, "server = \"kimi\"", Some("reasoning_content")),
    ];
    for (strictness, more, field) in kinds {
        let turn = |turn: usize| {
            let call = |index: usize, path: &str| {
                let arguments = json!({ "path": path }).to_string();
                json!({ "index": index, "id": format!("call_{turn}_{index}"),
                    "function": { "name": "workspace__read", "arguments": arguments } })
            };
            let calls = [call(0, "docs/a.md"), call(1, "docs/a.md")];
            Reply::events(&[
                chat(&json!({ "reasoning_content": format!("Thought {turn}.") }), &Value::Null),
                chat(&json!({ "content": "I look." }), &Value::Null),
                chat(&json!({ "tool_calls": calls }), &json!("tool_calls")),
            ])
        };
        let last = Reply::events(&[chat(&json!({ "content": "Done." }), &json!("stop"))]);
        let replies = (0..TURNS).map(turn).chain([last]);
        let provider = Provider::start_as(strictness, replies).await;
        let house = house(&provider, "openai-chat", more).await;
        let view = RunView::from(&house.run("talker", "Look twelve times.").await);
        let found = (view.status, view.result.as_deref());
        assert_eq!(found, (Status::Completed, Some("Done.")), "{strictness:?}: {:?}", view.error);
        let asked = provider.asked();
        assert_eq!(asked.len(), TURNS + 1, "{strictness:?}: nothing was asked twice");
        let messages = asked[TURNS].body["messages"].as_array().expect("messages");
        let calling = messages.iter().filter(|message| message.get("tool_calls").is_some());
        let calling: Vec<&Value> = calling.collect();
        assert_eq!(calling.len(), TURNS);
        for (turn, message) in calling.iter().enumerate() {
            assert_eq!(message["content"], "I look.", "{strictness:?}");
            let reasoned = field.map(|field| message[field].clone());
            assert_eq!(reasoned, field.map(|_| json!(format!("Thought {turn}."))));
        }
    }
}

#[tokio::test]
async fn m_61_canceling_a_run_closes_the_connection_of_the_answer_under_way() {
    let half = json!({ "choices": [{ "index": 0, "delta": { "content": "Half" } }] });
    let provider = Provider::start([Reply::events(&[half]).hang()]).await;
    let house = house(&provider, "openai-chat", "").await;
    let id = house.spawn(&house.request("talker", "Go on.")).await;
    house.event(&id, |one| one.event.kind() == "assistant_chunk").await;
    house.client().cancel(&id, None).await.expect("can be canceled");
    provider.abandoned().await;
    assert_eq!(RunView::from(&house.end(&id).await).status, Status::Canceled);
}

#[tokio::test]
async fn m_61_what_a_provider_refuses_is_typed_in_the_journal_and_discreet_to_the_guest() {
    let provider =
        Provider::start([Reply::new(401, r#"{"error":{"message":"bad key sk-test-77aa"}}"#)]).await;
    let house = house(&provider, "openai-chat", "").await;
    let id = house.spawn(&house.request("talker", "Hello.")).await;
    let view = RunView::from(&house.end(&id).await);
    assert_eq!(view.status, Status::Failed);
    let error = view.error.expect("an error");
    assert!(error.contains("does not accept the host's credentials"), "{error}");
    let answered = house.event(&id, |one| one.event.kind() == "host_answered").await;
    let Event::HostAnswered { answer, model, .. } = answered.event else { panic!("another event") };
    assert_eq!(model.as_deref(), Some("default"));
    let refused = ModelAnswer::Error(ModelError::Unauthorized("status 401".into()));
    assert_eq!(*answer, HostAnswer::Model(refused));
    assert_eq!(provider.asked()[0].headers["authorization"], "Bearer sk-test-77aa");
}

#[tokio::test]
async fn an_agent_without_a_model_of_its_own_is_denied_where_a_rule_denies_all_of_them() {
    let policy = "[agent.mute]\ncomponent = \"components/chat.wasm\"\n\
                  deny = [\"model: *\"]\nretry = { attempts = 1 }\n";
    let house = Builder::new(policy).open().await;
    let id = house.spawn(&house.request("mute", "Hello.")).await;
    let view = RunView::from(&house.end(&id).await);
    assert_eq!(view.status, Status::Failed);
    let error = view.error.expect("an error");
    assert!(error.contains("the policy does not give this agent that model"), "{error}");
    let journal = house.journal(&id).await;
    let denials = journal.iter().filter_map(|one| {
        let Event::PolicyDecision { capability, rule, .. } = &one.event else { return None };
        Some((capability.as_str(), rule.as_str()))
    });
    let denials: Vec<_> = denials.collect();
    assert_eq!(denials, [("model", "denied by \"model: *\"")]);
}

/// A model that says half an answer, reads and writes tokens for it, and then declines.
fn refusals() -> [(&'static str, Reply, u64); 4] {
    let half = |text: &str| json!({ "choices": [{ "delta": { "content": text } }] });
    let filtered = json!({ "choices": [{ "delta": {}, "finish_reason": "content_filter" }],
        "usage": { "prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35 } });
    let begun = json!({ "type": "message_start",
        "message": { "model": "m-1", "usage": { "input_tokens": 60 } } });
    let details = json!({ "type": "refusal", "category": "cyber", "explanation": "Not this." });
    let ended = json!({ "type": "message_delta", "usage": { "output_tokens": 5 },
        "delta": { "stop_reason": "refusal", "stop_details": details } });
    let blocked = json!({ "promptFeedback": { "blockReason": "PROHIBITED_CONTENT" },
        "usageMetadata": { "promptTokenCount": 7, "totalTokenCount": 7 } });
    let responses = Answer::new().refusal("msg_1", "I will not.").completed();
    [
        ("openai-chat", Reply::events(&[half("Half"), filtered]).then("data: [DONE]\n\n"), 35),
        ("anthropic", Reply::events(&[begun, ended, json!({ "type": "message_stop" })]), 65),
        ("gemini", Reply::events(&[blocked]), 7),
        ("openai", responses, 42),
    ]
}

#[tokio::test]
async fn a_refusal_ends_the_run_in_the_providers_words_and_is_asked_and_paid_once() {
    let words = ["content_filter", "Not this.", "PROHIBITED_CONTENT", "I will not."];
    for ((wire, reply, tokens), words) in refusals().into_iter().zip(words) {
        let provider = Provider::start([reply]).await;
        let house = house(&provider, wire, "").await;
        let id = house.spawn(&house.request("talker", "Do it.")).await;
        let run = house.end(&id).await;
        let view = RunView::from(&run);
        assert_eq!((view.status, view.result), (Status::Failed, None), "{wire}");
        assert_eq!(view.error_code.as_deref(), Some("model-refused"), "{wire}");
        let error = view.error.expect("an error");
        assert!(error.contains("declines") && error.contains(words), "{wire}: {error}");
        assert_eq!(run.state.progress.total_tokens, tokens, "{wire}");
        assert_eq!(provider.asked().len(), 1, "{wire}");
    }
}

/// Thinking, a word of text, and no tokens left for more.
fn anthropic_cut(thought: &str, text: &str) -> Reply {
    let delta = |index: u64, delta: Value| json!({ "type": "content_block_delta", "index": index, "delta": delta });
    Reply::events(&[
        json!({ "type": "message_start", "message": { "model": "m-1", "usage": { "input_tokens": 9 } } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "thinking" } }),
        delta(0, json!({ "type": "thinking_delta", "thinking": thought })),
        delta(0, json!({ "type": "signature_delta", "signature": "c2lnbmVk" })),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "content_block_start", "index": 1, "content_block": { "type": "text" } }),
        delta(1, json!({ "type": "text_delta", "text": text })),
        json!({ "type": "content_block_stop", "index": 1 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "max_tokens" }, "usage": { "output_tokens": 5 } }),
        json!({ "type": "message_stop" }),
    ])
}

#[tokio::test]
async fn an_answer_that_met_its_limit_is_continued_and_kept_in_its_order() {
    let replies = [anthropic_cut("Where?", "In the"), anthropic_text(&[" cellar."])];
    let provider = Provider::start(replies).await;
    let house = house(&provider, "anthropic", "").await;
    let id = house.spawn(&house.request("talker", "Where are the apples?")).await;
    let view = RunView::from(&house.end(&id).await);
    assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some("In the cellar.")));
    let again = provider.asked()[1].body["messages"].clone();
    let said: Vec<&Value> = again[1]["content"]
        .as_array()
        .expect("blocks")
        .iter()
        .map(|block| &block["type"])
        .collect();
    assert_eq!(said, ["thinking", "text"], "{again:#}");
    let journal = house.journal(&id).await;
    let last = journal.iter().rev().find_map(|recorded| {
        let Event::AssistantMessage { message, streamed, .. } = &recorded.event else {
            return None;
        };
        Some((message.clone(), *streamed))
    });
    let (message, streamed) = last.expect("a message");
    assert!(streamed, "all of it went out in parts");
    assert!(matches!(message.parts[0], Part::Thinking(_)), "{message:?}");
}

#[tokio::test]
async fn a_model_that_only_thinks_until_its_limit_fails_the_run_and_says_why() {
    let provider = Provider::start([anthropic_cut("Hm", " ")]).await;
    let house = house(&provider, "anthropic", "").await;
    let view = RunView::from(&house.run("talker", "Where are the apples?").await);
    assert_eq!((view.status, view.result), (Status::Failed, None));
    let error = view.error.expect("an error");
    assert!(error.contains("used all tokens that an answer may have"), "{error}");
}
