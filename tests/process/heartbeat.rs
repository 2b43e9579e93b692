//! Entries that wait for the heartbeat of an agent.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::background;
use crate::error_lines::ErrorLines;
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
fn the_host_that_an_entry_starts_is_ended_also_before_it_is_listed() {
    let project = project();
    let entry = ["run", "--heartbeat", "patient", "x"];
    for end in [Project::kill_hosts_and_wait, Project::end_hosts] {
        assert_eq!(project.run(&entry).code, 0);
        end(&project);
        let left = background::processes(project.path());
        assert_eq!((left, project.hosts()), (Vec::new(), Vec::new()));
    }
    // One that is listed is found, too.
    assert_eq!(project.run(&entry).code, 0);
    project.meets_host();
    assert_eq!(background::processes(project.path()), project.hosts());
    assert_eq!(project.end_hosts(), 1);
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
    // A host that lives has the agent until it takes the edit up.
    let said = "the policy has no agent patient: the run begins nothing";
    project.until("get tells of it", || project.run(&["get", &id]).stderr.contains(said));
    project.until("doctor tells of it", || {
        let text = "patient: not in the policy; 1 open run of it begins nothing";
        project.run(&["doctor"]).said().contains(text)
    });
}

#[test]
fn an_entry_is_of_the_policy_file_that_it_was_accepted_under() {
    let project = project();
    project.write("other.toml", POLICY.replace("[agent.patient]", "[agent.far]").as_bytes());
    let other = ["--config", "other.toml"];
    let far = |words: &[&str]| project.run(&[&other[..], words].concat());
    let id = far(&["run", "--heartbeat", "far", "x"]).id();
    let check = ["policy", "check", "-o", "json"];
    let report = project.run(&check).json();
    assert_eq!(report["gone"], json!([]), "{report}");
    let report = far(&check).json();
    let agents = report["agents"].as_array().expect("agents");
    let agent = agents.iter().find(|agent| agent["name"] == "far").expect("the agent");
    let counts = (&agent["open_runs"], &agent["open_runs_of_other_pins"], &report["gone"]);
    assert_eq!(counts, (&json!(1), &json!(0), &json!([])), "{report}");
    // It is of no version of its agent.
    let slower = POLICY.replace("[agent.patient]", "[agent.far]").replace("\"7d\"", "\"6d\"");
    project.write("other.toml", slower.as_bytes());
    let report = far(&check).json();
    let agents = report["agents"].as_array().expect("agents");
    let is_of_none = |agent: &Value| agent["open_runs_of_other_pins"] == json!(0);
    assert!(agents.iter().all(is_of_none) && report["gone"] == json!([]), "{report}");
    project.write("other.toml", POLICY.as_bytes());
    let report = far(&check).json();
    assert_eq!(report["gone"], json!([{ "name": "far", "open_runs": 1 }]), "{report}");
    assert_eq!(project.run(&["cancel", &id]).code, 0);
}

#[test]
fn a_batch_has_the_channels_of_its_agent_and_its_end_is_told_there() {
    let project = Project::new();
    let quick = "prompt = \"Do this:\" }";
    let policy = POLICY.replace(quick, &format!("{quick}\nchannels = [\"post\"]"));
    let channel = "[channel.post]\nto = \"file/post\"\n[file.post]\npath = \"post.jsonl\"\n";
    project.write("taskrun.toml", format!("{policy}{channel}").as_bytes());
    let id = project.run(&["run", "--heartbeat", "quick", "said"]).id();
    let waited = project.run(&["wait", &id]);
    assert_eq!(waited.code, 0, "{waited:?}");
    let batch = project.get(&id)["batch_run_id"].as_str().expect("it was in a batch").to_owned();
    let key = format!("{batch}/on_task_completed/file/post");
    let told = || std::fs::read_to_string(project.path().join("post.jsonl")).unwrap_or_default();
    project.until("its end is told", || told().contains(&key));
}

#[test]
fn heartbeats_that_are_missed_one_after_the_other_are_no_warning_each() {
    let project = project();
    let id = project.run(&["run", "--heartbeat", "patient", "x"]).id();
    project.kill_hosts_and_wait();
    // More than a batch can have: none is made.
    let names: Vec<String> = (0..16).map(|number| format!("\"file/f{number}\"")).collect();
    let table = |number: u32| format!("[file.f{number}]\npath = \"f{number}.jsonl\"\n");
    let files: String = (0..=16).map(table).collect();
    let keys = format!("subscribers = [{}]\nchannels = [\"post\"]", names.join(", "));
    let often = format!("heartbeat = {{ interval = \"1s\" }}\n{keys}");
    let policy = POLICY.replace("heartbeat = { interval = \"7d\" }", &often);
    let policy = format!("{policy}[channel.post]\nto = \"file/f16\"\n{files}");
    project.write("taskrun.toml", policy.as_bytes());
    let mut host = project.start(&["-v", "host", "--service"]);
    let lines = ErrorLines::of(&mut host);
    let told: [String; 3] = std::array::from_fn(|_| lines.until("a heartbeat was missed"));
    let [first, others @ ..] = &told;
    assert!(first.contains("WARN") && first.contains("together are at most 16"), "{told:?}");
    assert_eq!(others.iter().filter(|line| line.contains("DEBUG")).count(), 2, "{told:?}");
    assert_eq!(project.run(&["cancel", &id]).code, 0);
    assert_eq!(project.signal_hosts(Signal::TERM), 1);
    assert_eq!(project.ends(host).code, 0);
}
