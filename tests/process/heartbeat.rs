//! Entries that wait for the heartbeat of an agent.

use serde_json::{Value, json};

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

#[test]
fn an_entry_is_counted_with_its_agent_and_told_of_where_that_is_gone() {
    let project = project();
    let id = project.run(&["run", "--heartbeat", "patient", "x"]).id();
    let check = || project.run(&["policy", "check", "-o", "json"]).json();
    let report = check();
    let agents = report["agents"].as_array().expect("agents");
    let patient = agents.iter().find(|agent| agent["name"] == "patient").expect("the agent");
    let counts = (&patient["open_runs"], &patient["open_runs_of_other_pins"]);
    assert_eq!(counts, (&json!(1), &json!(0)), "{report}");
    assert_eq!(report["gone"], json!([]), "{report}");
    assert_eq!(project.get(&id)["agent_change"], Value::Null);
    let without = POLICY.replace("[agent.patient]", "[agent.other]");
    project.write("taskrun.toml", without.as_bytes());
    let report = check();
    assert_eq!(report["gone"], json!([{ "name": "patient", "open_runs": 1 }]), "{report}");
    let shown = project.run(&["get", &id]);
    let said = "the policy has no agent patient: the run begins nothing";
    assert!(shown.stderr.contains(said), "{shown:?}");
    // A host that lives has the agent until it takes the edit up.
    project.until("doctor tells of it", || {
        let told = project.run(&["doctor"]);
        let text = "patient: not in the policy; 1 open run of it begins nothing";
        (told.stdout + &told.stderr).contains(text)
    });
}
