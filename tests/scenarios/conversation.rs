//! Agents that ask about the conversation which the host has: what they are shown, what their model
//! is shown, and what they read.

use serde_json::Value;
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;
use taskrun_tests::House;
use taskrun_tests::provider::{Provider, Reply};

use super::choices::says;
use super::windows;

const INSTRUCTIONS: &str = "Answer in one sentence.";

/// Keys of the agent.
const KEYS: &str = "retry = { attempts = 1 }\nbudget = { turns = 5, reserve = { turns = 1 } }";

fn reads(path: &str) -> Reply {
    windows::reads(path, path)
}

/// A house with the agent `minutes`, whose model is this provider, and three files of so many bytes.
async fn house(provider: &Provider, more: &str, bytes: usize) -> House {
    windows::house_of(provider, more, ("minutes", KEYS), bytes).await
}

/// The roles of a question's messages.
fn roles(body: &Value) -> Vec<&str> {
    let messages = body["messages"].as_array().expect("messages");
    messages.iter().filter_map(|message| message["role"].as_str()).collect()
}

#[tokio::test]
async fn the_model_is_shown_the_whole_conversation_and_the_agent_what_is_new() {
    let provider =
        Provider::start([reads("a.txt"), reads("b.txt"), says("Two files are read.")]).await;
    let house = house(&provider, "", 12).await;
    let view = RunView::from(&house.run("talker", "Read both.").await);
    assert_eq!(view.status, Status::Completed, "{view:?}");
    let asked = provider.asked();
    let shown: Vec<_> = asked.iter().map(|asked| roles(&asked.body)).collect();
    let turn = ["assistant", "tool"];
    assert_eq!(shown[0], ["system", "user"]);
    assert_eq!(shown[1], [&shown[0][..], &turn].concat());
    assert_eq!(shown[2], [&shown[1][..], &turn].concat());
    assert_eq!(asked[2].body["messages"][0]["content"], INSTRUCTIONS);
    // What was shown before is shown again as it was.
    let before = asked[1].body["messages"].as_array().expect("messages");
    assert_eq!(asked[2].body["messages"].as_array().expect("messages")[..4], before[..]);

    let text = view.result.expect("an answer");
    let lines: Vec<&str> = text.lines().collect();
    let [first, "", minutes @ .., last] = &lines[..] else { panic!("{text}") };
    assert_eq!(*first, "Two files are read.");
    let starts = ["user: Read both.", "assistant: calls ", "tool: ", "assistant: calls ", "tool: "];
    assert_eq!(minutes.len(), starts.len(), "{text}");
    for (line, start) in minutes.iter().zip(starts) {
        assert!(line.starts_with(start), "{text}");
    }
    assert_eq!(*last, "2 messages and 1 results were new");
}

#[tokio::test]
async fn where_there_is_no_room_the_agent_reads_what_its_model_is_shown() {
    let replies = [reads("a.txt"), reads("b.txt"), reads("c.txt"), says("Read.")];
    let provider = Provider::start(replies).await;
    let house = house(&provider, "context_tokens = 20_000", 20_000).await;
    let view = RunView::from(&house.run("talker", "Read all three.").await);
    let text = view.result.expect("an answer");
    assert!(text.ends_with("\n2 messages and 1 results were new"), "{text}");
    let asked = provider.asked();
    let last = asked.last().expect("four").body["messages"].to_string();
    assert!(
        last.contains("c.txt c.txt") && !last.contains("a.txt a.txt"),
        "the oldest is left out"
    );
    let left_out = text.lines().filter(|line| line.starts_with("tool: {\"artifact\"")).count();
    assert!(left_out > 0, "{text}");
}

#[tokio::test]
async fn a_last_word_is_asked_for_behind_the_conversation() {
    let files = ["a.txt", "b.txt", "c.txt", "none.txt"];
    let provider =
        Provider::start(files.map(reads).into_iter().chain([says("I was cut short.")])).await;
    let house = house(&provider, "", 12).await;
    let view = RunView::from(&house.run("talker", "Read without end.").await);
    assert!(view.partial, "{view:?}");
    let text = view.result.expect("a last word");
    assert!(text.starts_with("I was cut short.\n\n"), "{text}");
    assert!(text.ends_with("\n2 messages and 1 results were new"), "{text}");
    let asked = provider.asked();
    let body = &asked.last().expect("five").body;
    assert!(body.get("tools").is_none(), "{body:#}");
    let messages = body["messages"].as_array().expect("messages");
    let last = messages.last().expect("some").to_string();
    assert!(last.contains("No turns are left."), "it is told behind the conversation: {body:#}");
}
