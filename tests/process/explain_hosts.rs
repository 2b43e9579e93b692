//! `policy explain` for runs, beside what their host does with them: one whose step was cut off, and
//! tools of the host that only runs of another kind have.

use serde_json::json;

use crate::explain::{ask, edit};
use crate::explain_runs::{BENEATH, layer_words, layers, waits};
use crate::project::Project;

#[test]
fn a_run_whose_step_was_cut_off_is_explained_with_the_form_that_its_host_leaves_it() {
    let project = Project::new();
    let narrow = "allow = [\"workspace-read: docs/**\"]\ndeny";
    let policy = BENEATH.replace("allow = [\"workspace-read: **\"]\ndeny", narrow);
    project.write("taskrun.toml", format!("{policy}upgrade = \"adopt\"\n").as_bytes());
    let step = json!([{ "log": "begun" }, { "sleep": 100_000 }, { "reply": "done" }]);
    let task = json!({ "steps": [step] }).to_string();
    let id = project.run(&["run", "reader", &task, "-d"]).id();
    project.sees(&id, "log");
    assert!(project.kill_hosts_and_wait() > 0, "one executes it");
    edit(&project, narrow, "allow = [\"workspace-read: **\"]\ndeny");
    // One whose host died is paused at once.
    assert_eq!(project.run(&["pause", &id]).code, 0);
    let paused = project.get(&id);
    assert_eq!((&paused["blocked_on"], &paused["status"]), (&json!("pause"), &json!("blocked")));
    let both = ["rules_then DENIED", "rules_now allowed"].map(str::to_owned).to_vec();
    assert_eq!(layers(&project, &id, "x.md"), (4, both));
    let question = ["--run", &id, "--cap", "workspace-read", "--arg", "path=x.md"];
    assert_eq!(ask(&project, &question).json().get("upgrade"), None);
    assert_eq!(paused["agent_change"].get("upgrade"), None, "{paused}");
    let told = project.run(&["get", &id]).stderr;
    assert!(told.contains("has its form of before, within the rules of both"), "{told}");
    // The host does what was said.
    assert_eq!(project.run(&["resume", &id]).code, 0);
    project.sees(&id, "rules_changed");
    let events = project.events(&id);
    assert!(events.iter().all(|event| event["kind"] != "adopted"), "{events:?}");
    assert_eq!(project.run(&["cancel", &id]).code, 0);
}

#[test]
fn a_tool_of_the_host_that_only_runs_of_another_kind_have_is_denied_to_all_others() {
    let project = Project::new();
    let policy = r#"[agent.quick]
component = "components/scripted.wasm"
tools = ["host/complete_task", "host/report_done"]
heartbeat = { interval = "1s", prompt = "Do this:" }
"#;
    project.write("taskrun.toml", policy.as_bytes());
    let call = json!({ "id": "c", "name": "host/complete_task", "args": { "task_id": "x" } });
    let done = json!({ "id": "d", "name": "host/report_done", "args": { "detail": "x" } });
    let then = [json!([{ "call": call }, { "call": done }]), json!([{ "reply": "thanks" }])];
    let plain = waits(&project, "quick", &[], &then);
    let autonomous = waits(&project, "quick", &["--autonomous", "--answers", "inbox"], &[]);
    let entry = project.run(&["run", "--heartbeat", "quick", "said"]).id();
    let entry = project.ends_by_itself(&entry);
    let batch = entry["batch_run_id"].as_str().expect("it was in a batch").to_owned();
    let none = (4, "tools allowed, own DENIED");
    for (run, name, expected) in [
        (&plain, "complete_task", none),
        (&plain, "report_done", none),
        (&autonomous, "complete_task", none),
        (&autonomous, "report_done", (0, "own ALLOWED")),
        (&batch, "complete_task", (0, "tools ALLOWED")),
        (&batch, "report_done", none),
    ] {
        let argument = format!("name=host/{name}");
        let ran = ask(&project, &["--run", run, "--cap", "tool", "--arg", &argument]);
        let words = layer_words(&ran.json()).join(", ");
        assert_eq!((ran.code, words.as_str()), expected, "{name}: {ran:?}");
    }
    // The host does not have them for it.
    assert_eq!(project.run(&["answer", &plain, "the third"]).code, 0);
    project.ends_by_itself(&plain);
    let events = project.events(&plain);
    for name in ["complete_task", "report_done"] {
        let refused = format!("tool not available: host/{name}");
        let is_refused = events.iter().any(|event| event.to_string().contains(&refused));
        assert!(is_refused, "{name}: {events:?}");
    }
}
