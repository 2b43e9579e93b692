//! Entries that wait for the heartbeat of an agent.

use serde_json::json;

use crate::project::Project;

const POLICY: &str = r#"[agent.quick]
component = "components/scripted.wasm"
heartbeat = { interval = "1s", prompt = "Do this:" }

[agent.patient]
component = "components/scripted.wasm"
heartbeat = { interval = "7d" }

[agent.heartless]
component = "components/scripted.wasm"
"#;

fn project() -> Project {
    let project = Project::new();
    project.write("taskrun.toml", POLICY.as_bytes());
    project
}

#[test]
fn an_entry_is_worked_on_by_the_background_host_at_a_tick() {
    let project = project();
    let id = project.run(&["run", "--heartbeat", "quick", "said"]).id();
    let waited = project.run(&["wait", &id]);
    assert_eq!(waited.code, 0, "{waited:?}");
    let run = project.get(&id);
    assert_eq!((&run["class"], &run["status"]), (&json!("heartbeat"), &json!("completed")));
    let batch = project.get(run["batch_run_id"].as_str().expect("it was in a batch"));
    assert_eq!(batch["task"], format!("Do this:\nTask #{id}: said"));
    assert_eq!((&batch["result"], &batch["entries"]), (&run["result"], &json!([id])));
}

#[test]
fn an_entry_waits_in_the_queue_and_can_be_canceled() {
    let project = project();
    let id = project.run(&["run", "--heartbeat", "patient", "x"]).id();
    let listed = project.run(&["ps", "-o", "json"]).json();
    assert_eq!(listed["runs"][0]["status"], "queued", "{listed}");
    assert_eq!(project.run(&["cancel", &id]).code, 0);
    assert_eq!(project.get(&id)["status"], "canceled");
    let refused = project.run(&["run", "--heartbeat", "heartless", "x"]);
    assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("invalid")), "{refused:?}");
    let shown = project.run(&["agent", "show", "quick", "-o", "json"]).json();
    assert_eq!(shown["heartbeat"]["prompt"], "Do this:", "{shown}");
}
