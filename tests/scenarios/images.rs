//! Images: a tool gives one, the host keeps it, and a model is shown it in the form of its protocol.

use serde_json::{Value, json};
use taskrun::image::ImageBytes;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::artifact::digest;
use taskrun_journal::event::Event;
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;
use taskrun_tests::provider::responses::Answer;
use taskrun_tests::provider::rules::Strictness;
use taskrun_tests::provider::{Provider, Reply};
use taskrun_tests::{Builder, House, Storage};

/// The beginning of a PNG: as much as the host looks at.
pub(super) const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
const PNG_BASE64: &str = "iVBORw0KGgoAAAANSUhEUg==";

pub(super) async fn house(provider: &Provider, wire: &str, more: &str) -> House {
    let url = provider.base_url();
    let policy = format!(
        r#"
[tool.workspace]
component = "components/workspace.wasm"

[model.default]
provider = "{wire}"
model = "m-1"
base_url = "{url}"
{more}

[agent.talker]
component = "components/chat.wasm"
model = "default"
tools = ["workspace/read"]
allow = ["workspace-read: **"]
deny = ["workspace-write: **"]
retry = {{ attempts = 1 }}

[agent.namer]
component = "components/evil-media.wasm"
model = "default"
members = ["namer", "talker"]
allow = ["controller: *", "workspace-read: **"]
retry = {{ attempts = 1 }}
"#
    );
    let house = Builder::new(&policy).storage(Storage::Sqlite).open().await;
    std::fs::write(house.path().join("cat.png"), PNG).expect("an image");
    house
}

/// A question for the image and an answer, as a protocol has them.
pub(super) fn replies(wire: &str) -> [Reply; 2] {
    let arguments = json!({ "path": "cat.png" });
    match wire {
        "anthropic" => {
            let answer = |block: Value, reason: &str| {
                Reply::events(&[
                    json!({ "type": "message_start", "message": { "model": "m-1" } }),
                    json!({ "type": "content_block_start", "index": 0, "content_block": block }),
                    json!({ "type": "content_block_stop", "index": 0 }),
                    json!({ "type": "message_delta", "delta": { "stop_reason": reason } }),
                    json!({ "type": "message_stop" }),
                ])
            };
            let call = json!({ "type": "tool_use", "id": "t1", "name": "workspace__read",
                "input": arguments });
            [
                answer(call, "tool_use"),
                answer(json!({ "type": "text", "text": "A cat." }), "end_turn"),
            ]
        }
        "openai" => [
            Answer::new()
                .call("fc_1", "call_1", "workspace__read", &arguments.to_string())
                .completed(),
            Answer::new().message("msg_1", Some("final_answer"), "A cat.").completed(),
        ],
        "gemini" => {
            let answer = |part: Value| {
                let content = json!({ "role": "model", "parts": [part] });
                Reply::events(&[
                    json!({ "candidates": [{ "content": content, "finishReason": "STOP" }] }),
                ])
            };
            let call = json!({ "functionCall": { "name": "workspace__read", "args": arguments } });
            [answer(call), answer(json!({ "text": "A cat." }))]
        }
        _ => {
            let answer = |delta: Value, reason: &str| {
                Reply::events(&[
                    json!({ "choices": [{ "delta": delta, "finish_reason": reason }] }),
                ])
            };
            let call = json!({ "index": 0, "id": "call_1", "function":
                { "name": "workspace__read", "arguments": arguments.to_string() } });
            [
                answer(json!({ "tool_calls": [call] }), "tool_calls"),
                answer(json!({ "content": "A cat." }), "stop"),
            ]
        }
    }
}

/// The place of the image in the second question, and the image there.
fn image(wire: &str) -> (&'static str, Value) {
    let url = format!("data:image/png;base64,{PNG_BASE64}");
    match wire {
        "anthropic" => (
            "/messages/2/content/0/content/1",
            json!({ "type": "image", "source":
                { "type": "base64", "media_type": "image/png", "data": PNG_BASE64 } }),
        ),
        "openai" => (
            "/input/2/output/1",
            json!({ "type": "input_image", "image_url": url, "detail": "auto" }),
        ),
        "gemini" => (
            "/contents/2/parts/1",
            json!({ "inlineData": { "mimeType": "image/png", "data": PNG_BASE64 } }),
        ),
        // Behind the result there stands a word of the assistant.
        "openai-chat" | "ollama" => {
            ("/messages/4/content/1", json!({ "type": "image_url", "image_url": { "url": url } }))
        }
        other => panic!("no protocol {other}"),
    }
}

const WIRES: [(&str, Strictness); 5] = [
    ("anthropic", Strictness::ClaudeAdaptive),
    ("openai", Strictness::OpenAi),
    ("gemini", Strictness::Template),
    ("openai-chat", Strictness::Template),
    ("ollama", Strictness::Template),
];

#[tokio::test]
async fn m_61_an_image_that_a_tool_gives_is_shown_to_the_model_in_each_protocol() {
    for (wire, strictness) in WIRES {
        let provider = Provider::start_as(strictness, replies(wire)).await;
        let house = house(&provider, wire, "").await;
        let id = house.spawn(&house.request("talker", "What is on the picture?")).await;
        let view = RunView::from(&house.end(&id).await);
        let found = (view.status, view.result.as_deref());
        assert_eq!(found, (Status::Completed, Some("A cat.")), "{wire}: {:?}", view.error);
        let asked = &provider.asked()[1].body;
        let (place, expected) = image(wire);
        assert_eq!(asked.pointer(place), Some(&expected), "{wire}: {asked:#}");

        // The journal has its name, and the store its bytes.
        let journal = house.journal(&id).await;
        let text = serde_json::to_string(&journal).expect("JSON");
        assert!(!text.contains(PNG_BASE64), "{wire}");
        let result = journal.iter().find_map(|recorded| {
            let Event::ToolResult { output, .. } = &recorded.event else { return None };
            Some(output.media.clone())
        });
        let media = result.expect("a result");
        assert_eq!(
            (&*media[0].media_type, &*media[0].hash),
            ("image/png", &*digest(PNG)),
            "{wire}"
        );
        let kept = house.client().artifact(&id, &media[0].hash).await.expect("kept");
        assert_eq!(&kept[..], PNG, "{wire}");
    }
}

#[tokio::test]
async fn m_61_a_model_that_sees_no_images_is_told_that_there_was_one() {
    for (wire, strictness) in WIRES {
        let provider = Provider::start_as(strictness, replies(wire)).await;
        let house = house(&provider, wire, "images = false").await;
        let view = RunView::from(&house.run("talker", "What is on the picture?").await);
        assert_eq!(view.status, Status::Completed, "{wire}: {:?}", view.error);
        let asked = provider.asked()[1].body.to_string();
        assert!(!asked.contains(PNG_BASE64), "{wire}: {asked}");
        assert!(asked.contains("this model sees none"), "{wire}: {asked}");
    }
}

#[tokio::test]
async fn m_61_an_image_of_another_run_is_not_found_and_nothing_is_sent() {
    let provider = Provider::start_as(Strictness::ClaudeAdaptive, replies("anthropic")).await;
    let house = house(&provider, "anthropic", "").await;
    let first = RunView::from(&house.run("talker", "What is on the picture?").await);
    assert_eq!(first.status, Status::Completed);
    for hash in [digest(PNG), digest(b"nobody's"), "x".repeat(10_000), String::new()] {
        for how in ["ask", "result", "say", "start"] {
            let id = house.spawn(&house.request("namer", &format!("{how} {hash}"))).await;
            let view = RunView::from(&house.end(&id).await);
            let found = (view.status, view.error_code.as_deref());
            assert_eq!(found, (Status::Failed, Some("not-found")), "{how}: {:?}", view.error);
            assert_eq!(view.result, None, "{how}");
            let tree = house.client().tree(&id).await.expect("there");
            assert!(tree.descendants.is_empty(), "{how}: nothing is started");
        }
    }
    assert_eq!(provider.asked().len(), 2, "nothing was sent");
}

/// A request whose task has the image.
pub(super) fn pictured(house: &House, agent: &str, task: &str) -> SpawnRequest {
    let images = vec![ImageBytes(PNG.into())];
    SpawnRequest { images, converses: true, ..house.request(agent, task) }
}

/// An answer of Anthropic's protocol with one block.
pub(super) fn message(block: &Value, reason: &str) -> Reply {
    Reply::events(&[
        json!({ "type": "message_start", "message": { "model": "m-1" } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": block }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": reason } }),
        json!({ "type": "message_stop" }),
    ])
}

pub(super) fn said(text: &str) -> Reply {
    message(&json!({ "type": "text", "text": text }), "end_turn")
}

/// The image as Anthropic is sent it.
pub(super) fn inline() -> Value {
    image("anthropic").1
}

#[tokio::test]
async fn m_63_an_image_of_a_task_is_shown_with_it_and_in_later_lines_of_the_session() {
    let replies = [said("A cat."), said("Black."), said("Yes.")];
    let provider = Provider::start_as(Strictness::ClaudeAdaptive, replies).await;
    let house = house(&provider, "anthropic", "cache = false").await;
    let first = house.spawn(&pictured(&house, "talker", "What is this?")).await;
    let view = RunView::from(&house.end(&first).await);
    assert_eq!(view.status, Status::Completed, "{:?}", view.error);
    assert_eq!(view.images[0].hash, digest(PNG));
    assert_eq!(provider.asked()[0].body["messages"][0]["content"][1], inline());
    let journal = serde_json::to_string(&house.journal(&first).await).expect("JSON");
    assert!(!journal.contains(PNG_BASE64), "bytes are no part of a journal");

    // The run before is gone then: what was carried is the own of the later one.
    let mut ids = vec![first];
    for _ in 0..2 {
        let request = house.request("talker", "Which colour?");
        let id = house.spawn(&SpawnRequest { converses: true, ..request }).await;
        let view = RunView::from(&house.end(&id).await);
        assert_eq!(view.status, Status::Completed, "{:?}", view.error);
        let kept = house.client().artifact(id.as_str(), &digest(PNG)).await.expect("kept");
        assert_eq!(&kept[..], PNG);
        let asked = &provider.asked()[ids.len()].body["messages"];
        assert_eq!(asked[0]["content"][1], inline(), "{asked:#}");
        ids.push(id);
    }
}

#[tokio::test]
async fn c_060_the_images_of_an_agents_answer_come_to_its_caller() {
    let request = json!({ "request": format!("say {}", digest(PNG)) });
    let call = json!({ "type": "tool_use", "id": "t1", "name": "namer", "input": request });
    for storage in [Storage::Memory, Storage::Sqlite] {
        let replies = [message(&call, "tool_use"), said("A cat.")];
        let provider = Provider::start_as(Strictness::ClaudeAdaptive, replies).await;
        let url = provider.base_url();
        let policy = format!(
            r#"
[model.default]
provider = "anthropic"
model = "m-1"
base_url = "{url}"

[agent.talker]
component = "components/chat.wasm"
model = "default"
tools = ["agent/namer"]

[agent.namer]
component = "components/evil-media.wasm"
model = "default"
allow = ["controller: *"]
"#
        );
        let house = Builder::new(&policy).storage(storage).open().await;
        let id = house.spawn(&pictured(&house, "talker", "What is this?")).await;
        let view = RunView::from(&house.end(&id).await);
        assert_eq!(view.status, Status::Completed, "{:?}", view.error);
        let asked = &provider.asked()[1].body;
        let shown = asked.pointer("/messages/2/content/0/content/1");
        assert_eq!(shown, Some(&inline()), "{asked:#}");
    }
}
