//! The bound that the budget of a run is for an answer, as each protocol is told it.

use serde_json::{Value, json};
use taskrun_journal::message::{Message, Role};

use crate::ask::{hello, request};
use crate::table::sent;

/// The protocols, each with the place of the number in its request.
const WIRES: [(&str, &str); 5] = [
    ("openai", "/max_output_tokens"),
    ("openai-chat", "/max_tokens"),
    ("ollama", "/max_tokens"),
    ("gemini", "/generationConfig/maxOutputTokens"),
    ("anthropic", "/max_tokens"),
];

/// A server of a small window refuses a question that has no room beside the number, and the
/// conversation would be shortened for nothing.
#[tokio::test]
async fn m_50_what_the_budget_leaves_is_not_said_where_the_window_has_no_room_for_it() {
    let keys = "context_tokens = 3000";
    // 1,900 bytes are 475 tokens of English text, and at worst 950.
    let asked = |left: u32| {
        let mut question = request(vec![Message::text(Role::User, "why? ".repeat(380))]);
        question.tokens_left = Some(left);
        question
    };
    for (wire, place) in WIRES.into_iter().filter(|(wire, _)| *wire != "anthropic") {
        for (left, expected) in [(2_000, Some(2_000)), (2_100, None)] {
            let body = sent(wire, asked(left), keys).await.expect("a request");
            let found = body.pointer(place).unwrap_or(&Value::Null);
            assert_eq!(*found, json!(expected), "{wire}: {left}");
        }
    }
}

#[tokio::test]
async fn m_50_an_answer_is_bounded_by_the_least_of_agent_table_and_budget() {
    // What the agent and the table say, what the budget leaves, and what is sent.
    let table = [
        (None, "", None, None),
        (None, "", Some(500), Some(500)),
        (Some(300), "", Some(500), Some(300)),
        (Some(900), "", Some(500), Some(500)),
        (None, "max_tokens = 9000", Some(5_000), Some(5_000)),
        (None, "max_tokens = 300", Some(5_000), Some(300)),
        // Nobody knows if its model can write so much.
        (None, "", Some(100_000), None),
        (None, "context_tokens = 200000", Some(4_097), None),
        (None, "context_tokens = 200000", Some(4_096), Some(4_096)),
        // Nor, without its window, if that has the room.
        (None, "", Some(1_025), None),
        (None, "", Some(1_024), Some(1_024)),
        (None, "context_tokens = 2000", Some(1_025), Some(1_025)),
        (None, "context_tokens = 2000", Some(2_000), None),
    ];
    for (wire, place) in WIRES {
        for (asked, keys, left, expected) in table {
            let mut question = hello();
            (question.max_tokens, question.tokens_left) = (asked, left);
            let body = sent(wire, question, keys).await.expect("a request");
            // One protocol has to have a number.
            let always = Some(left.unwrap_or(8_192).min(8_192));
            let expected = if wire == "anthropic" { expected.or(always) } else { expected };
            let found = body.pointer(place).unwrap_or(&Value::Null);
            assert_eq!(*found, json!(expected), "{wire}: {asked:?}, {keys:?}, {left:?}");
        }
    }
}
