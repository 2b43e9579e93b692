//! Runs that wait for a time, and what is said where no host is there then.

use rustix::process::Signal;
use serde_json::json;
use taskrun_examples::CHAT;
use taskrun_tests::provider::{Provider, Reply};
use tokio::runtime::Runtime;

use crate::project::Project;

/// A project whose agent's model wants to be asked again in about two hours.
fn project(provider: &Provider) -> Project {
    let project = Project::new();
    project.write("components/chat.wasm", CHAT.bytes);
    let policy = format!(
        r#"[model.default]
provider = "openai-chat"
model = "m-1"
base_url = "{}"
retry = {{ patience = "24h" }}

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
fn m_55_a_host_leaves_while_nothing_is_due_soon_and_commands_say_when_it_is() {
    let runtime = Runtime::new().expect("a runtime");
    let refusal = Reply::new(429, "{}").header("retry-after", "7500");
    let provider = runtime.block_on(Provider::start([refusal]));
    let project = project(&provider);
    let id = project.run(&["run", "talker", "Hello.", "-d"]).id();
    let run = project.reach(&id, "blocked");
    assert_eq!(run["blocked_on"], "schedule", "{run}");
    project.kill_hosts_and_wait();
    let host = project.start(&["host", "--idle-exit", "100ms"]);
    let left = project.ends(host);
    assert_eq!(left.code, 0, "{left:?}");
    let said = "due in 2h, no host runs";
    let ps = project.run(&["ps"]);
    assert!(ps.stderr.contains(said), "{ps:?}");
    assert!(ps.stdout.contains("blocked (schedule, due in 2h)"), "{ps:?}");
    let got = project.run(&["get", &id]);
    assert!(got.stderr.contains(said), "{got:?}");
    assert!(got.stdout.contains("(due in 2h)"), "{got:?}");
    let due = project.run(&["doctor", "-o", "json"]).check("due").expect("a check");
    assert_eq!(due["detail"], "1 run is due later, the next due in 2h, no host runs");
    // A service stays, and nothing is said any more.
    let service = project.start(&["host", "--service"]);
    project.meets_host();
    let ps = project.run(&["ps"]);
    assert!(!ps.stderr.contains("no host"), "{ps:?}");
    assert_eq!(project.get(&id)["status"], json!("blocked"));
    assert_eq!(project.signal_hosts(Signal::TERM), 1);
    let ended = project.ends(service);
    assert_eq!(ended.code, 0, "{ended:?}");
}
