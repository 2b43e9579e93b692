//! A provider that does not want to be asked for a while: the run waits as rows in the store.

use serde_json::json;
use taskrun_examples::CHAT;
use taskrun_tests::provider::{Provider, Reply};
use tokio::runtime::Runtime;

use crate::project::Project;

/// A project with an agent that asks this provider.
fn project(provider: &Provider) -> Project {
    let project = Project::new();
    project.write("components/chat.wasm", CHAT.bytes);
    let policy = format!(
        r#"[model.default]
provider = "openai-chat"
model = "m-1"
base_url = "{}"

[tool.scripted]
component = "components/scripted-tool.wasm"

[agent.talker]
component = "components/chat.wasm"
model = "default"
"#,
        provider.base_url()
    );
    project.write("taskrun.toml", policy.as_bytes());
    project
}

#[test]
fn a_run_that_was_pushed_back_waits_without_a_host_and_can_be_canceled() {
    let runtime = Runtime::new().expect("a runtime");
    let refusal = Reply::new(429, "{}").header("retry-after", "600");
    let provider = runtime.block_on(Provider::start([refusal]));
    let project = project(&provider);
    let id = project.run(&["run", "talker", "Hello.", "-d"]).id();
    let run = project.reach(&id, "blocked");
    assert_eq!(run["blocked_on"], "schedule", "{run}");
    let pushed_back = project.sees(&id, "pushed_back");
    assert_eq!(pushed_back["model"], "default", "{pushed_back}");
    let until = |key: &str| run[key].as_str().unwrap_or_default().to_owned();
    assert!(until("blocked_until") > until("started_at"), "{run}");
    assert!(project.kill_hosts_and_wait() > 0, "a host stays for a run that goes on by itself");
    // Whoever waits sees to a host when the time has come, and not before.
    let waited = project.run(&["wait", &id, "--timeout", "2s"]);
    assert_eq!(waited.code, 124, "{waited:?}");
    assert!(project.hosts().is_empty());
    assert_eq!(provider.asked().len(), 1);
    let canceled = project.run(&["cancel", &id]);
    assert_eq!(canceled.code, 0, "{canceled:?}");
    assert_eq!(project.get(&id)["stop_reason"], json!("canceled_by_owner"));
}

#[test]
fn l_006_a_pause_that_a_component_wants_comes_to_the_host() {
    let runtime = Runtime::new().expect("a runtime");
    let refusal = Reply::new(429, "{}").header("retry-after", "45");
    let provider = runtime.block_on(Provider::start([refusal]));
    let project = project(&provider);
    let policy = std::fs::read_to_string(project.path().join("taskrun.toml")).expect("a policy");
    let once = policy.replace("model = \"m-1\"", "model = \"m-1\"\nretry = { attempts = 1 }");
    project.write("taskrun.toml", once.as_bytes());
    let id = project.run(&["run", "talker", "Hello.", "-d"]).id();
    let failed = project.sees(&id, "step_failed");
    assert_eq!(failed["retry_after_ms"], 45_000, "as the agent was told: {failed}");
    project.run(&["cancel", &id]);
    assert_eq!(provider.asked().len(), 1);
}
