//! `taskrun model ls` and `taskrun model test` with a provider on loopback.

use serde_json::{Value, json};
use taskrun_tests::provider::{Provider, Reply};
use tokio::runtime::Runtime;

use crate::project::{Project, Ran};

const KEY: &str = "sk-test-0a1b2c3d4e5f";

/// The answer of `model test` to a reply, and what was asked.
fn tested(reply: Reply) -> (Ran, Vec<Value>) {
    let runtime = Runtime::new().expect("a runtime");
    let provider = runtime.block_on(Provider::start([reply]));
    let project = project(&provider.base_url());
    let ran = with_key(&project, &["model", "test", "careful", "-o", "json"]);
    let asked = provider.asked().into_iter().map(|asked| asked.body).collect();
    (ran, asked)
}

fn project(base_url: &str) -> Project {
    let project = Project::new();
    let policy = format!(
        r#"[model.careful]
provider = "openai-chat"
model = "m-1"
base_url = "{base_url}"
key_env = "TASKRUN_TEST_MODEL_KEY"
record = "calls.jsonl"
retry = {{ attempts = 1 }}
prices = {{ prompt = 3, completion = 15 }}

[model.quick]
provider = "echo"

[agent.talker]
component = "components/scripted.wasm"
model = "careful"
"#
    );
    project.write("taskrun.toml", policy.as_bytes());
    project
}

fn with_key(project: &Project, args: &[&str]) -> Ran {
    let mut command = project.command(args);
    let ran: Ran = command.env("TASKRUN_TEST_MODEL_KEY", KEY).output().expect("starts").into();
    assert!(!format!("{ran:?}").contains("0a1b2c3d"), "the key is shown: {ran:?}");
    ran
}

/// The exit code, the word for programs and the message of a model that did not answer.
fn failed(reply: Reply) -> (i32, String, String) {
    let (ran, asked) = tested(reply);
    assert_eq!(asked.len(), 1, "it is asked once: {ran:?}");
    assert_eq!(ran.json()["ok"], false, "{ran:?}");
    let error = ran.error();
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    (ran.code, text("code"), format!("{} {}", text("message"), text("hint")))
}

#[test]
fn a_model_that_answers_is_told_of_with_its_tokens_and_their_price() {
    let call = json!({ "index": 0, "id": "c1", "type": "function",
        "function": { "name": "test__say", "arguments": "{\"word\":\"ready\"}" } });
    let reply = Reply::events(&[
        json!({ "model": "m-1-2026", "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] }),
        json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "tool_calls" }] }),
        json!({ "choices": [], "usage": {
            "prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110 } }),
    ]);
    let (ran, asked) = tested(reply);
    assert_eq!(ran.code, 0, "{ran:?}");
    let told = ran.json();
    assert_eq!(
        (&told["ok"], &told["provider"], &told["model"], &told["called_tool"], &told["stop"]),
        (&json!(true), &json!("openai-chat"), &json!("m-1"), &json!(true), &json!("tool_use")),
    );
    assert_eq!(told["key"], "$TASKRUN_TEST_MODEL_KEY");
    assert_eq!(told["usage"]["total_tokens"], 110);
    assert_eq!(told["usage"]["cost_microusd"], 450, "{told}");
    assert_eq!((asked.len(), asked[0]["tools"].as_array().map(Vec::len)), (1, Some(1)));
}

#[test]
fn what_is_wrong_with_a_model_is_said_in_words() {
    let error = |message: &str| json!({ "error": { "message": message } }).to_string();
    let (code, word, text) = failed(Reply::new(401, error(&format!("Incorrect key: {KEY}"))));
    assert_eq!((code, word.as_str()), (3, "model-key"), "{text}");
    assert!(text.contains("does not accept the key: status 401"), "{text}");
    let (code, word, text) = failed(Reply::new(404, error("The model `m-1` does not exist")));
    assert_eq!((code, word.as_str()), (2, "model-request"), "{text}");
    assert!(text.contains("`m-1` does not exist") && text.contains("`base_url`"), "{text}");
    let busy = Reply::new(429, error("Come back later.")).header("retry-after", "600");
    let (code, word, text) = failed(busy);
    assert_eq!((code, word.as_str()), (10, "model-busy"), "{text}");
    assert!(text.contains("asked again in 10m"), "{text}");
    assert!(text.contains("status 429: Come back later."), "{text}");
    let quota = json!({ "error": { "code": "insufficient_quota", "message": "Check your plan." } });
    let (code, word, text) = failed(Reply::new(429, quota.to_string()));
    assert_eq!((code, word.as_str()), (3, "model-quota"), "{text}");
    assert!(text.contains("no quota left: status 429: Check your plan."), "{text}");
    let refuses =
        json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "content_filter" }] });
    let (code, word, text) = failed(Reply::events(&[refuses]));
    assert_eq!((code, word.as_str()), (5, "model-refused"), "{text}");
    let (code, word, text) = failed(Reply::new(200, "<html>"));
    assert_eq!((code, word.as_str()), (5, "model-answer"), "{text}");
    assert!(text.contains("no events: <html>"), "{text}");
    assert!(text.contains("`base_url`") && text.contains("`provider`"), "{text}");
}

#[test]
fn models_are_listed_and_the_one_that_is_asked_writes_no_cassette() {
    let project = project("http://127.0.0.1:1/v1");
    let listed = with_key(&project, &["model", "ls", "-o", "json"]).json();
    let names: Vec<_> = listed["models"].as_array().expect("a list").iter().collect();
    assert_eq!((&names[0]["name"], &names[1]["name"]), (&json!("careful"), &json!("quick")));
    assert_eq!(names[0]["endpoint"], "http://127.0.0.1:1/v1");
    let table = with_key(&project, &["model", "ls"]);
    assert_eq!(table.code, 0, "{table:?}");
    let ran = with_key(&project, &["model", "test", "careful"]);
    assert_eq!(ran.code, 10, "{ran:?}");
    assert!(!project.path().join("calls.jsonl").exists(), "nothing is recorded");
    let echo = with_key(&project, &["model", "test", "quick", "-o", "json"]);
    assert_eq!((echo.code, &echo.json()["ok"]), (0, &json!(true)), "{echo:?}");
    let without_key = project.run(&["model", "test", "careful"]);
    assert_eq!(without_key.code, 2, "{without_key:?}");
    let unknown = project.run(&["model", "test", "carefull", "-o", "json"]);
    assert_eq!(unknown.error()["code"], "unknown-model", "{unknown:?}");
}
