//! Images of the user and of results, in the form of each protocol.

use serde_json::{Value, json};
use taskrun_journal::media::{Media, MediaBytes};
use taskrun_journal::message::{Message, Part, Role, ToolAnswer, ToolUse};

use crate::ask::{answer, model, request};
use crate::provider::{Provider, Reply};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
const PNG_BASE64: &str = "iVBORw0KGgoAAAANSUhEUg==";
const WIRES: [&str; 5] = ["anthropic", "openai", "gemini", "openai-chat", "ollama"];

/// The request that is made of some messages, of whose images the bytes of the first are there.
async fn asked(wire: &str, messages: Vec<Message>, first: &Media) -> Value {
    asked_with(wire, messages, (first, PNG)).await
}

async fn asked_with(wire: &str, messages: Vec<Message>, (of, bytes): (&Media, &[u8])) -> Value {
    let provider = Provider::start([Reply::new(400, "{}")]).await;
    let mut asked = request(messages);
    let mut all = MediaBytes::default();
    all.add(&of.hash, bytes.into());
    asked.media = all;
    answer(model(wire, &provider, "").as_ref(), asked).await.expect_err("it is told nothing");
    provider.asked()[0].body.clone()
}

/// An image, and one that found no place in the question.
fn media() -> [Media; 2] {
    let (first, _) = Media::of(PNG).expect("an image");
    let second = Media { hash: "0".repeat(64), ..first.clone() };
    [first, second]
}

/// The image as a part of a message of the user.
fn image(wire: &str) -> Value {
    let url = format!("data:image/png;base64,{PNG_BASE64}");
    match wire {
        "anthropic" => json!({ "type": "image", "source":
            { "type": "base64", "media_type": "image/png", "data": PNG_BASE64 } }),
        "openai" => json!({ "type": "input_image", "image_url": url, "detail": "auto" }),
        "gemini" => json!({ "inlineData": { "mimeType": "image/png", "data": PNG_BASE64 } }),
        _ => json!({ "type": "image_url", "image_url": { "url": url } }),
    }
}

/// The parts of a message of a request.
fn parts(wire: &str, body: &Value, place: usize) -> Value {
    match wire {
        "openai" => body["input"][place]["content"].clone(),
        "gemini" => body["contents"][place]["parts"].clone(),
        _ => body["messages"][place]["content"].clone(),
    }
}

#[tokio::test]
async fn an_image_of_the_user_is_shown_with_what_the_user_said() {
    for wire in WIRES {
        let [first, second] = media();
        let text = |text: &str| Part::Text(text.to_owned());
        let shown = vec![text("Before."), Part::Media(first.clone()), Part::Media(second)];
        let said = Message { role: Role::User, parts: shown.into() };
        let body = asked(wire, vec![said], &first).await;
        let parts = parts(wire, &body, 0);
        assert_eq!(parts[0]["text"], "Before.", "{wire}: {body:#}");
        assert_eq!(parts[1], image(wire), "{wire}: {body:#}");
        let words = parts[2]["text"].as_str().unwrap_or_default();
        assert!(words.contains("no room for it"), "{wire}: {body:#}");
    }
}

/// The first part of a message of the user that is this image.
async fn part(wire: &str, bytes: &[u8]) -> Value {
    let (media, _) = Media::of(bytes).expect("an image");
    let said = Message { role: Role::User, parts: vec![Part::Media(media.clone())].into() };
    let body = asked_with(wire, vec![said], (&media, bytes)).await;
    parts(wire, &body, 0)[0].clone()
}

#[tokio::test]
async fn an_image_that_a_provider_would_refuse_is_told_in_words() {
    let mut large = PNG.to_vec();
    // In Base64 as many bytes as Anthropic takes of one.
    large.resize(3_932_160, 0);
    assert_eq!(part("anthropic", &large).await["type"], "image");
    large.push(0);
    for wire in WIRES {
        let text = part(wire, &large).await["text"].to_string();
        assert_eq!(text.contains("larger than"), wire == "anthropic", "{wire}: {text:.200}");
        let text = part(wire, b"GIF89a\x01\0\x01\0").await["text"].to_string();
        assert_eq!(text.contains("none of its type"), wire == "gemini", "{wire}: {text:.200}");
    }
}

#[tokio::test]
async fn an_image_in_an_answer_of_the_assistant_is_told_in_words() {
    for wire in WIRES {
        let [first, _] = media();
        let own = Message { role: Role::Assistant, parts: vec![Part::Media(first.clone())].into() };
        let hello = || Message::text(Role::User, "hello");
        let body = asked(wire, vec![hello(), own, hello()], &first).await.to_string();
        assert!(!body.contains(PNG_BASE64), "{wire}: {body}");
    }
}

#[tokio::test]
async fn images_of_two_results_stand_behind_both_where_a_result_has_no_place_for_them() {
    let [first, _] = media();
    let id = |n: u32| format!("call_{n}");
    let call = |n| {
        let name = "workspace/read".to_owned();
        Part::ToolUse(ToolUse { tool_call_id: id(n), name, payload: "{}".to_owned() })
    };
    let result = |n| {
        let media = vec![first.clone()];
        let content = "1".to_owned();
        Part::ToolAnswer(ToolAnswer { tool_call_id: id(n), content, is_error: false, media })
    };
    let messages = vec![
        Message::text(Role::User, "hello"),
        Message { role: Role::Assistant, parts: vec![call(1), call(2)].into() },
        Message { role: Role::Tool, parts: vec![result(1), result(2)].into() },
    ];
    let chat = asked("openai-chat", messages.clone(), &first).await;
    let roles: Vec<&Value> =
        chat["messages"].as_array().expect("messages").iter().map(|one| &one["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant", "user"]);
    let shown = &chat["messages"][5]["content"];
    assert_eq!([&shown[1], &shown[2]], [&image("openai-chat"); 2], "{chat:#}");
    let gemini = asked("gemini", messages, &first).await;
    let parts = &gemini["contents"][2]["parts"];
    assert!(parts[0]["functionResponse"].is_object() && parts[1]["functionResponse"].is_object());
    assert_eq!([&parts[2], &parts[3]], [&image("gemini"); 2], "{gemini:#}");
}
