//! The tools of the host as a model behind HTTP is offered them, with the shipped agent `chat`.

use serde_json::{Value, json};
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;
use taskrun_tests::provider::{Provider, Reply};
use taskrun_tests::{Builder, Storage};

fn policy(provider: &Provider, of_lead: &str) -> String {
    let url = provider.base_url();
    format!(
        r#"
[model.default]
provider = "anthropic"
model = "m-1"
base_url = "{url}"
key_file = "secrets/key"

[agent.lead]
component = "components/chat.wasm"
model = "default"
members = ["worker"]
allow = ["controller: *"]
retry = {{ attempts = 1 }}
{of_lead}

[agent.worker]
component = "components/scripted.wasm"
"#
    )
}

fn calls(name: &str, arguments: &Value) -> Reply {
    Reply::events(&[
        json!({ "type": "message_start", "message": { "model": "m-1", "usage": { "input_tokens": 3 } } }),
        json!({ "type": "content_block_start", "index": 0,
            "content_block": { "type": "tool_use", "id": "t1", "name": name, "input": {} } }),
        json!({ "type": "content_block_delta", "index": 0,
            "delta": { "type": "input_json_delta", "partial_json": arguments.to_string() } }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": { "output_tokens": 1 } }),
        json!({ "type": "message_stop" }),
    ])
}

fn says(text: &str) -> Reply {
    Reply::events(&[
        json!({ "type": "message_start", "message": { "model": "m-1", "usage": { "input_tokens": 3 } } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text" } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": text } }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 1 } }),
        json!({ "type": "message_stop" }),
    ])
}

fn names(asked: &Value) -> Vec<&str> {
    let tools = asked["tools"].as_array().expect("a list");
    tools.iter().map(|tool| tool["name"].as_str().expect("a name")).collect()
}

#[tokio::test]
async fn t_067_a_model_has_the_documented_tools_under_their_names_and_a_sync_start_answers() {
    let task = json!({ "steps": [[{ "reply": "forty-two" }]] }).to_string();
    let start = json!({ "task": task, "agent_name": "worker", "mode": "sync" });
    let provider = Provider::start([calls("start_task_run", &start), says("It is 42.")]).await;
    let builder = Builder::new(&policy(&provider, "tools = [\"host/task_runs\"]"));
    // One slot, which the worker needs while its caller waits.
    let house = builder.slots(1).storage(Storage::Sqlite).file("secrets/key", "k\n").open().await;
    let id = house.spawn(&house.request("lead", "What is it?")).await;
    let view = RunView::from(&house.end(&id).await);
    assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some("It is 42.")));
    let asked = provider.asked();
    let documented = [
        "cancel_task_run",
        "get_task_run",
        "list_task_runs",
        "read_task_run_transcript",
        "start_task_run",
        "wait_task_run",
    ];
    assert_eq!(names(&asked[0].body), documented);
    let messages = asked[1].body["messages"].as_array().expect("messages");
    let [.., called, answered] = messages.as_slice() else { panic!("{messages:?}") };
    assert_eq!(called["content"][0]["name"], "start_task_run");
    let told = answered["content"][0]["content"].to_string();
    assert!(told.contains("forty-two") && told.contains("completed"), "{told}");
}

#[tokio::test]
async fn c_065_a_model_starts_a_subagent_by_a_name_and_has_its_result() {
    let goal = json!({ "steps": [[{ "reply": "forty-two" }]] }).to_string();
    let spawn = json!({ "agent": "worker", "goal": goal, "name": "mole", "wait": true });
    let provider = Provider::start([calls("spawn_agent", &spawn), says("It is 42.")]).await;
    let builder = Builder::new(&policy(&provider, "tools = [\"host/subagents\"]"));
    // One slot, which the subagent needs while its caller waits.
    let house = builder.slots(1).storage(Storage::Sqlite).file("secrets/key", "k\n").open().await;
    let id = house.spawn(&house.request("lead", "What is it?")).await;
    let view = RunView::from(&house.end(&id).await);
    assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some("It is 42.")));
    let asked = provider.asked();
    assert_eq!(names(&asked[0].body), ["spawn_agent", "stop_agent"]);
    let messages = asked[1].body["messages"].as_array().expect("messages");
    let told = messages.last().expect("the result")["content"][0]["content"].to_string();
    assert!(told.contains("forty-two") && told.contains("lead.mole"), "{told}");
}

#[tokio::test]
async fn m_30_a_model_is_sent_the_names_descriptions_and_schemas_that_are_documented() {
    let described = include_str!("../../host/taskrun/src/host_tools/description.json");
    let described: Value = serde_json::from_str(described).expect("JSON");
    let provider = Provider::start([says("Nothing is to be done.")]).await;
    let of_lead = "tools = [\"host/task_runs\", \"host/tasks\", \"host/delegation\", \
         \"host/subagents\", \"host/transfer_to_agent\", \"agent/worker\"]";
    let policy = policy(&provider, of_lead).replace("[\"worker\"]", "[\"worker\", \"writer\"]");
    let policy = format!("{policy}\n[agent.writer]\ncomponent = \"components/scripted.wasm\"\n");
    let house = Builder::new(&policy).file("secrets/key", "k\n").open().await;
    let run = house.run("lead", "Do nothing.").await;
    assert_eq!(run.status(), Status::Completed);
    let asked = provider.asked();
    let tools = asked[0].body["tools"].as_array().expect("a list");
    let sent: serde_json::Map<String, Value> = tools
        .iter()
        .map(|tool| {
            let name = tool["name"].as_str().expect("a name").to_owned();
            let (description, arguments) = (&tool["description"], &tool["input_schema"]);
            (name, json!({ "description": description, "arguments": arguments }))
        })
        .collect();
    let mut expected = described.as_object().expect("by name").clone();
    // It is offered to a run that works on entries only.
    expected.remove("complete_task").expect("it is described");
    // An autonomous run has these, and no other.
    for own in ["report_done", "schedule_next_turn", "set_status"] {
        expected.remove(own).expect("it is described");
    }
    assert_eq!(Value::from(sent), Value::from(expected));
}

#[tokio::test]
async fn a_model_is_told_what_the_agents_are_for_among_which_it_chooses() {
    let provider = Provider::start([says("Nothing is to be done.")]).await;
    let of_lead = "tools = [\"host/task_runs\", \"host/tasks\", \"host/delegation\", \
         \"host/subagents\", \"host/transfer_to_agent\"]";
    let policy = policy(&provider, of_lead).replace("[\"worker\"]", "[\"worker\", \"writer\"]");
    let policy = format!(
        "{policy}description = \"Helps with sums.\"\n\
         [agent.writer]\ncomponent = \"components/scripted.wasm\"\n"
    );
    let house = Builder::new(&policy).file("secrets/key", "k\n").open().await;
    assert_eq!(house.run("lead", "Do nothing.").await.status(), Status::Completed);
    let asked = provider.asked();
    let tools = asked[0].body["tools"].as_array().expect("a list");
    let told = |tool: &&Value| {
        let schema = tool["input_schema"].to_string();
        schema.contains("The agent, one of: worker (Helps with sums.), writer.")
    };
    let mut told: Vec<_> = tools.iter().filter(told).map(|tool| tool["name"].as_str()).collect();
    told.sort_unstable();
    let choosing = [
        "create_task",
        "delegate",
        "delegate_task",
        "spawn_agent",
        "spawn_task",
        "start_task_run",
        "transfer_to_agent",
    ];
    assert_eq!(told, choosing.map(Some));
}

#[tokio::test]
async fn w_039_an_agent_with_members_has_the_tools_of_tasks_without_naming_them() {
    let spawn = json!({ "agent": "nobody", "message": "m" });
    let provider = Provider::start([calls("spawn_task", &spawn), says("Nobody is there.")]).await;
    let builder = Builder::new(&policy(&provider, ""));
    let house = builder.file("secrets/key", "k\n").open().await;
    let run = house.run("lead", "Give it to nobody.").await;
    assert_eq!(run.status(), Status::Completed);
    let asked = provider.asked();
    let documented = ["ask_user", "await_tasks", "check_tasks", "create_task", "spawn_task"];
    assert_eq!(names(&asked[0].body), documented, "no entries are to be completed");
    let told = asked[1].body["messages"].to_string();
    assert!(told.contains("agent 'nobody' is not in your members list"), "{told}");
}
