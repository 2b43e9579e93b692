//! Steps that were stopped: a replay says which and why, and does not pass over them, nor over one
//! that ended at a limit, which it compares.

use serde_json::{Value, json};
use taskrun_examples::EDITOR;

use crate::project::Project;

/// The report of a replay of the run, and what people are shown of it.
fn replayed(project: &Project, id: &str) -> (Value, String) {
    let file = format!("{id}.taskrun");
    let exported = project.run(&["export", id, &file]);
    assert_eq!(exported.code, 0, "{exported:?}");
    let report = project.run(&["replay", &file, "-o", "json"]);
    let shown = project.run(&["replay", &file]);
    assert_eq!((report.code, shown.code), (0, 0), "{report:?} {shown:?}");
    (report.json(), shown.stdout)
}

/// Checks that the run ended for this reason, and that its one step was not compared for that one.
fn is_passed_over_for(project: &Project, id: &str, stop_reason: &str, why: &str) {
    let run = project.get(id);
    assert_eq!(run["stop_reason"], stop_reason, "{run}");
    let (report, shown) = replayed(project, id);
    let skipped = report["skipped"].as_array().cloned().expect("a list");
    let [step] = &skipped[..] else { panic!("{report}") };
    assert_eq!((&step["turn"], &step["reason"]), (&json!(1), &json!(why)), "{report}");
    assert_eq!((&report["steps"], &report["same"]), (&json!(1), &json!(0)), "{report}");
    assert!(shown.contains(&format!("step 1 was not compared: {why}\n")), "{shown}");
    let counts = "1 step: 0 did the same, 0 something else, 1 not compared\n";
    assert!(shown.ends_with(counts), "{shown}");
}

/// The script of a step that does nothing until it is stopped.
fn blocks() -> String {
    json!({ "ops": ["block"] }).to_string()
}

#[test]
fn c_077_a_step_that_was_stopped_for_its_time_or_that_of_its_run_is_told_of() {
    let project = Project::new();
    for (option, stop_reason, why) in [
        ("--budget=step=200ms", "turn_timeout", "it was stopped for its time"),
        ("--timeout=200ms", "run_timeout", "the time of the run was up while it was under way"),
    ] {
        let id = project.run(&["run", "worker", &blocks(), option, "-d"]).id();
        project.ends_by_itself(&id);
        is_passed_over_for(&project, &id, stop_reason, why);
    }
    let script = json!({ "ops": ["block"], "finalize": [{ "reply": "late" }] }).to_string();
    let id = project.run(&["run", "worker", &script, "--budget=wall=200ms", "-d"]).id();
    assert_eq!(project.ends_by_itself(&id)["stop_reason"], "wallclock");
    let (report, _) = replayed(&project, &id);
    let first = &report["skipped"][0];
    let why = "the time of the run was up while it was under way";
    assert_eq!((&first["turn"], &first["reason"]), (&json!(1), &json!(why)), "{report}");
    assert_eq!(report["steps"], 2, "the last word is another one: {report}");
}

#[test]
fn c_077_a_step_that_a_cancellation_stopped_is_told_of() {
    let project = Project::new();
    let id = project.run(&["run", "worker", &blocks(), "-d"]).id();
    project.reach(&id, "running");
    assert_eq!(project.run(&["cancel", &id]).code, 0);
    assert_eq!(project.run(&["wait", &id]).code, 6);
    let why = "it was asked to stop while it was under way";
    is_passed_over_for(&project, &id, "canceled_by_owner", why);
}

#[test]
fn c_077_a_step_whose_run_ended_with_its_host_is_told_of() {
    let project = Project::new();
    let id = project.run(&["run", "fragile", &blocks(), "-d"]).id();
    project.reach(&id, "running");
    assert!(project.kill_hosts_and_wait() > 0, "somebody executed it");
    assert_eq!(project.run(&["wait", &id]).code, 5);
    let why = "it lost its host while it was under way";
    is_passed_over_for(&project, &id, "interrupted_by_restart", why);
}

#[test]
fn c_077_a_step_that_failed_as_no_tokens_were_left_is_compared() {
    let project = Project::new();
    project.write("components/editor.wasm", EDITOR.bytes);
    let policy = "[model.m]\nprovider = \"echo\"\n\n[agent.editor]\n\
                  component = \"components/editor.wasm\"\nmodel = \"m\"\n\
                  budget = { tokens = 1 }\n";
    project.write("taskrun.toml", policy.as_bytes());
    let id = project.run(&["run", "editor", "A letter.", "-d"]).id();
    // There is too little for its question, which is refused.
    assert_eq!(project.ends_by_itself(&id)["stop_reason"], "max_tokens");
    let (report, shown) = replayed(&project, &id);
    assert_eq!((&report["steps"], &report["same"]), (&json!(1), &json!(1)), "{report}");
    let counts = "1 step: 1 did the same, 0 something else, 0 not compared\n";
    assert!(shown.ends_with(counts), "{shown}");
}
