//! Images between runs: those of a task that go to runs which it starts, those of answers that come back,
//! and those that a conversation carries to whoever goes on with it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use taskrun::autonomy::AutonomyRequest;
use taskrun::image::ImageBytes;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::artifact::digest;
use taskrun_journal::event::Event;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::{ToolOutcome, ToolOutput};
use taskrun_tests::provider::Provider;
use taskrun_tests::provider::rules::Strictness;
use taskrun_tests::{Builder, House, Storage};

use super::images::{PNG, house, inline, message, pictured, replies, said};

/// The image in a file, which is another one than that of a task.
const FILE: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR of a file";

/// Anthropic's form of an image.
fn inline_of(image: &[u8]) -> Value {
    let data = STANDARD.encode(image);
    json!({ "type": "image", "source":
        { "type": "base64", "media_type": "image/png", "data": data } })
}

async fn outputs(house: &House, id: &str) -> Vec<ToolOutput> {
    let journal = house.journal(id).await.into_iter();
    let results = journal.filter_map(|recorded| {
        let Event::ToolResult { output, .. } = recorded.event else { return None };
        Some(*output)
    });
    results.collect()
}

fn coordinated(provider: &Provider) -> String {
    let url = provider.base_url();
    format!(
        r#"
[tool.workspace]
component = "components/workspace.wasm"

[model.default]
provider = "anthropic"
model = "m-1"
base_url = "{url}"
cache = false

[agent.lead]
component = "components/coordinator.wasm"
members = ["talker"]
allow = ["controller: *", "model: default", "workspace-read: **"]

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

#[tokio::test]
async fn m_61_the_images_of_a_task_go_to_a_run_that_it_starts_and_those_of_its_answer_come_back() {
    for storage in [Storage::Memory, Storage::Sqlite] {
        let provider = Provider::start_as(Strictness::ClaudeAdaptive, replies("anthropic")).await;
        let house = Builder::new(&coordinated(&provider)).storage(storage).open().await;
        std::fs::write(house.path().join("cat.png"), FILE).expect("an image");
        let id = house.spawn(&pictured(&house, "lead", "talker: Are they alike?")).await;
        let view = RunView::from(&house.end(&id).await);
        let found = (view.status, view.result.as_deref());
        assert_eq!(found, (Status::Completed, Some("talker: A cat.")), "{:?}", view.error);

        // The child is shown the image of the task, and has it as its own.
        assert_eq!(provider.asked()[0].body["messages"][0]["content"][1], inline());
        let tree = house.client().tree(&id).await.expect("there");
        let child = tree.descendants[0].id().to_string();
        let kept = house.client().artifact(&child, &digest(PNG)).await.expect("kept");
        assert_eq!(&kept[..], PNG);

        // Its answer has the image that it read, and so has the result of the wait.
        let shown = provider.asked()[1].body["messages"][2]["content"].to_string();
        assert!(shown.contains(&STANDARD.encode(FILE)), "{shown}");
        let [wait] = &outputs(&house, &id).await[..] else { panic!("a wait") };
        let ToolOutcome::Value(ended) = &wait.outcome else { panic!("{wait:?}") };
        let ended: Value = serde_json::from_str(ended).expect("JSON");
        assert_eq!((&ended[0]["status"], &ended[0]["images"]), (&json!("completed"), &json!(1)));
        let hashes: Vec<_> = wait.media.iter().map(|media| media.hash.clone()).collect();
        assert_eq!(hashes, [digest(FILE)]);
        assert_eq!(view.result_images, wait.media);
        let kept = house.client().artifact(&id, &digest(FILE)).await.expect("kept");
        assert_eq!(&kept[..], FILE);
    }
}

#[tokio::test]
async fn m_61_an_image_of_the_answer_of_a_run_beneath_may_be_named_and_none_of_one_beside() {
    let relayed = replies("anthropic").into_iter().chain([said("It is.")]);
    let provider = Provider::start_as(Strictness::ClaudeAdaptive, relayed).await;
    let first = house(&provider, "anthropic", "cache = false").await;
    std::fs::write(first.path().join("cat.png"), FILE).expect("an image");
    let view = RunView::from(&first.run("namer", "relay").await);
    let found = (view.status, view.result.as_deref());
    assert_eq!(found, (Status::Completed, Some("It is.")), "{:?}", view.error);
    assert_eq!(provider.asked()[2].body["messages"][0]["content"][1], inline_of(FILE));

    let provider = Provider::start_as(Strictness::ClaudeAdaptive, replies("anthropic")).await;
    let second = house(&provider, "anthropic", "").await;
    std::fs::write(second.path().join("cat.png"), FILE).expect("an image");
    let id = second.spawn(&second.request("namer", "sibling")).await;
    let view = RunView::from(&second.end(&id).await);
    assert_eq!(view.status, Status::Completed, "{:?}", view.error);
    assert!(view.result.expect("an answer").contains(&digest(FILE)), "it is not found");
    let tree = second.client().tree(&id).await.expect("there");
    let codes = tree.descendants.iter().filter_map(|run| RunView::from(run).error_code);
    assert_eq!(codes.collect::<Vec<_>>(), ["not-found"]);
    assert_eq!(provider.asked().len(), 2, "nothing is sent");
}

#[tokio::test]
async fn m_61_an_answer_has_each_image_once_and_sixteen_at_most() {
    let provider = Provider::start_as(Strictness::ClaudeAdaptive, []).await;
    let house = house(&provider, "anthropic", "").await;
    let image = |number: u8| ImageBytes([PNG, &[number]].concat().into());
    let filled = |numbers: std::ops::Range<u8>| SpawnRequest {
        images: numbers.map(image).collect(),
        converses: true,
        ..house.request("namer", "fill")
    };
    let id = house.spawn(&filled(0..8)).await;
    let view = RunView::from(&house.end(&id).await);
    assert_eq!(view.status, Status::Completed, "{:?}", view.error);
    assert_eq!(view.result_images, view.images);
    // A later line of the session has those of this one, too.
    let id = house.spawn(&filled(8..17)).await;
    let view = RunView::from(&house.end(&id).await);
    let found = (view.status, view.error_code.as_deref());
    assert_eq!(found, (Status::Failed, Some("limit")), "{:?}", view.error);
}

#[tokio::test]
async fn t_081_an_agent_that_is_given_a_conversation_is_shown_its_images_and_those_of_its_answer_stay()
 {
    let call = json!({ "type": "tool_use", "id": "t1", "name": "transfer_to_agent",
        "input": { "agent": "other" } });
    let [read, black] = replies("anthropic");
    let replies = [said("A cat."), message(&call, "tool_use"), read, black, said("Yes.")];
    let provider = Provider::start_as(Strictness::ClaudeAdaptive, replies).await;
    let agent = |name: &str, more: &str| {
        format!(
            "\n[agent.{name}]\ncomponent = \"components/chat.wasm\"\nmodel = \"default\"\n\
             deny = [\"workspace-write: **\"]\nconversation = \"session\"\n{more}\n"
        )
    };
    let policy = coordinated(&provider)
        + &agent(
            "first",
            "tools = [\"host/transfer_to_agent\"]\nmembers = [\"other\"]\n\
             allow = [\"controller: spawn\", \"workspace-read: **\"]",
        )
        + &agent("other", "tools = [\"workspace/read\"]\nallow = [\"workspace-read: **\"]");
    let house = Builder::new(&policy).storage(Storage::Sqlite).open().await;
    std::fs::write(house.path().join("cat.png"), FILE).expect("an image");
    house.end(&house.spawn(&pictured(&house, "first", "What is this?")).await).await;
    let second = [PNG, b" of the second line"].concat();
    let images = vec![ImageBytes(second.clone().into())];
    let line = SpawnRequest { images, ..pictured(&house, "first", "And this?") };
    let view = RunView::from(&house.end(&house.spawn(&line).await).await);
    let found = (view.status, view.result.as_deref());
    assert_eq!(found, (Status::Completed, Some("A cat.")), "{:?}", view.error);
    let shown = &provider.asked()[2].body["messages"];
    assert_eq!(shown[0]["content"][1], inline(), "{shown:#}");
    assert_eq!(shown[2]["content"][1], inline_of(&second), "{shown:#}");

    // The answer is that of the run which handed over, with its image, and a later line has it.
    let hashes: Vec<_> = view.result_images.iter().map(|image| &*image.hash).collect();
    assert_eq!(hashes, [digest(FILE)]);
    let third = SpawnRequest { images: Vec::new(), ..pictured(&house, "other", "Sure?") };
    let id = house.spawn(&third).await;
    let view = RunView::from(&house.end(&id).await);
    assert_eq!(view.status, Status::Completed, "{:?}", view.error);
    let kept = house.client().artifact(&id, &digest(FILE)).await.expect("kept");
    assert_eq!(&kept[..], FILE);
}

#[tokio::test]
async fn cs_17_a_run_that_continues_another_is_shown_the_images_of_its_conversation() {
    let done = json!({ "type": "tool_use", "id": "t1", "name": "report_done",
        "input": { "detail": "seen" } });
    let replies = [said("A cat."), message(&done, "tool_use"), said("Black.")];
    let provider = Provider::start_as(Strictness::ClaudeAdaptive, replies).await;
    let house = house(&provider, "anthropic", "cache = false").await;
    let rounds = AutonomyRequest { rounds: Some(1), ..AutonomyRequest::default() };
    let request = pictured(&house, "talker", "What is this?");
    let first = house.spawn(&SpawnRequest { autonomous: Some(rounds), ..request }).await;
    let view = RunView::from(&house.end(&first).await);
    assert_eq!(view.stop_reason, Some(StopReason::MaxTurns), "{:?}", view.error);
    let next = house.client().continuation(&first).await.expect("it may be continued");
    let next = house.client().submit(&next).await.expect("accepted").run;
    let view = RunView::from(&house.end(next.id().as_str()).await);
    let found = (view.status, view.stop_reason);
    assert_eq!(found, (Status::Completed, Some(StopReason::Done)), "{:?}", view.error);
    let shown = &provider.asked()[1].body["messages"];
    assert_eq!(shown[0]["content"][1], inline(), "{shown:#}");
}
