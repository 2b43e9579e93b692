//! LS-20 through a real component: what a step is shown of the notes that steps before it left.

use serde_json::{Value, json};
use taskrun_journal::event::Event;
use taskrun_journal::message::Role;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_tests::{Builder, House, Script, Storage};

const POLICY: &str = r#"
[tool.lookup]
component = "components/scripted-tool.wasm"

[agent.worker]
component = "components/scripted.wasm"
tools = ["lookup/*"]
"#;

/// The notes that each step was shown, from what it said of its input.
async fn shown(house: &House, id: &str) -> Vec<Value> {
    let journal = house.journal(id).await;
    let said = journal.into_iter().filter_map(|recorded| {
        let Event::AssistantMessage { message, .. } = recorded.event else { return None };
        let said = serde_json::from_str::<Value>(&message.joined_text()).ok()?;
        (message.role == Role::Assistant).then(|| said["reminders"].clone())
    });
    said.collect()
}

#[tokio::test]
async fn ls_20_notes_are_shown_in_order_and_as_often_as_they_may() {
    for storage in [Storage::Memory, Storage::Sqlite] {
        let house = Builder::new(POLICY).storage(storage).open().await;
        let step = |script: Script, n: u32| {
            script
                .raw(json!("reply_input"))
                .call(&format!("c{n}"), "lookup/lookup", json!({ "result": n }))
                .then()
        };
        let begin = Script::new()
            .raw(json!({"remind": {"id": "r1", "text": "one", "max": 1, "between": 2}}))
            .raw(json!({"remind": {"id": "r2", "text": "two", "safety": true, "run-start": true}}));
        let script = (1..=3).fold(begin, step).raw(json!({ "forget": "r2" }));
        let script = step(script, 4).raw(json!("reply_input"));
        let run = house.run("worker", &script.task()).await;
        assert_eq!(run.status(), Status::Completed, "{run:?}");
        let r1 = json!({"id": "r1", "text": "one", "attachment": "user-turn"});
        let r2 = json!({"id": "r2", "text": "two", "attachment": "run-start"});
        let expected = [json!([]), json!([r2, r1]), json!([r2]), json!([r2]), json!([])];
        assert_eq!(shown(&house, run.id().as_str()).await, expected);
    }
}

#[tokio::test]
async fn a_note_over_a_bound_is_refused_and_the_guest_is_told_which() {
    let house = Builder::new(POLICY).open().await;
    let long = "x".repeat(4_097);
    let script = Script::new().raw(json!({"remind": {"id": "r", "text": long}})).reply("unheard");
    let view = RunView::from(&house.run("worker", &script.task()).await);
    assert_eq!((view.status, view.stop_reason), (Status::Failed, Some(StopReason::AgentError)));
    assert!(view.error.is_some_and(|error| error.contains("1 to 4096 bytes")));
}
