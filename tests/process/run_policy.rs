//! Bounds of a run: by the policy of its agent, and by the request for it.

use serde_json::{Value, json};

use crate::project::Project;

const POLICY: &str = r#"
[tool.scripted]
component = "components/scripted-tool.wasm"
tags = ["test"]

[agent.worker]
component = "components/scripted.wasm"
tools = ["scripted/*"]
limits = { call = "60s" }

[agent.capped]
component = "components/scripted.wasm"
tools = ["scripted/*"]
limits = { tool_calls = 1 }

[agent.brief]
component = "components/scripted.wasm"
tools = ["scripted/*"]
limits = { tool_calls = 1, last_step = "5s" }

[agent.fragile]
component = "components/scripted.wasm"
tools = ["scripted/*"]
limits = { tool_failures = 1 }

[agent.quick]
component = "components/scripted.wasm"
tools = ["scripted/*"]
budget = { wall = "1s" }

[agent.strict]
component = "components/scripted.wasm"
tools = ["scripted/*"]
on_missing_fields = "finalize"

[agent.steady]
component = "components/scripted.wasm"
interrupts = false
"#;

fn project() -> Project {
    let project = Project::new();
    project.write("taskrun.toml", POLICY.as_bytes());
    project
}

fn call(id: &str, name: &str, args: &Value) -> Value {
    json!({ "call": { "id": id, "name": name, "args": args } })
}

/// Two steps with a call each, and then an answer; at a limit a last word.
fn two_calls(args: &Value) -> String {
    json!({
        "steps": [[call("a", "scripted/lookup", args)], [call("b", "scripted/lookup", args)],
            [{ "reply": "all of it" }]],
        "finalize": [{ "reply": "what there is" }],
    })
    .to_string()
}

/// The same with a last step that says something and does not end.
fn endless_last_step(steps: &Value) -> String {
    let last = json!([{ "reply": "half" }, { "reply": "the rest" }, "block"]);
    json!({ "steps": steps, "finalize": last }).to_string()
}

/// The run at its end.
fn ended(project: &Project, args: &[&str]) -> Value {
    let id = project.run(&[&["run"][..], args, &["-d"]].concat()).id();
    project.run(&["wait", &id]);
    project.get(&id)
}

fn facts(run: &Value) -> (Value, Value, Value) {
    (run["stop_reason"].clone(), run["partial"].clone(), run["result"].clone())
}

fn partial(reason: &str, result: &str) -> (Value, Value, Value) {
    (json!(reason), json!(true), json!(result))
}

#[test]
fn l_023_each_bound_of_a_policy_ends_a_run_with_a_last_word() {
    let project = project();
    let nothing = json!({});
    let failing = json!({ "fail": { "message": "no" } });
    let lacking = json!({ "fail": { "message": "no", "hint":
        { "reason": "missing-fields", "missing_fields": ["n"] } } });
    let slow = json!({ "sleep_ms": 600_000 });
    for (agent, args, reason) in [
        ("capped", &nothing, "tool_cap"),
        ("fragile", &failing, "failure_cap"),
        ("strict", &lacking, "failure_cap"),
        ("quick", &slow, "wallclock"),
    ] {
        let run = ended(&project, &[agent, &two_calls(args)]);
        assert_eq!(facts(&run), partial(reason, "what there is"), "{agent}: {run}");
    }
    let run = ended(&project, &["worker", &two_calls(&nothing)]);
    assert_eq!(facts(&run), (json!("final_response"), Value::Null, json!("all of it")));
}

#[test]
fn tool_calls_that_fail_are_no_budget_and_the_end_says_where_they_stand() {
    let project = project();
    let failing = json!({ "fail": { "message": "no" } });
    let calls = |id| json!([call(id, "scripted/lookup", &failing)]);
    let silent = json!({ "steps": [calls("a")], "finalize": calls("b") }).to_string();
    // With a last word, and without one.
    for (script, word) in
        [(two_calls(&failing), "ended, as a tool call failed"), (silent, "failed")]
    {
        let id = project.run(&["run", "fragile", &script, "-d"]).id();
        let waited = project.run(&["wait", &id]);
        assert_eq!((waited.code, &waited.error()["code"]), (5, &json!("run-failed")), "{waited:?}");
        let shown = [format!("run {id} {word}"), format!("taskrun get {id} --calls")];
        for part in shown.iter().map(String::as_str).chain(["a tool call failed", "failure_cap"]) {
            assert!(waited.stderr.contains(part), "{part}: {waited:?}");
        }
    }
}

#[test]
fn l_023_a_last_step_that_takes_longer_than_its_time_is_stopped() {
    let project = project();
    let calls = json!([
        [call("a", "scripted/lookup", &json!({}))],
        [call("b", "scripted/lookup", &json!({}))]
    ]);
    let run = ended(&project, &["brief", &endless_last_step(&calls)]);
    assert_eq!(facts(&run), partial("tool_cap", "half"), "{run}");
    let none = json!({ "steps": calls, "finalize": ["block"] }).to_string();
    let run = ended(&project, &["brief", &none]);
    assert_eq!((&run["status"], &run["stop_reason"]), (&json!("failed"), &json!("tool_cap")));
}

#[test]
fn l_023_a_run_whose_agent_allows_no_interrupts_is_not_paused() {
    let project = project();
    let script = json!({ "ops": ["block"] }).to_string();
    let script = script.as_str();
    for args in [&["steady", script, "-d"][..], &["worker", script, "-d", "--no-pause"]] {
        let id = project.run(&[&["run"][..], args].concat()).id();
        project.reach(&id, "running");
        let refused = project.run(&["pause", &id]);
        assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("invalid")), "{refused:?}");
        assert!(refused.stderr.contains("takes no pause"), "{refused:?}");
        assert!(project.get(&id)["paused"].is_null());
        let canceled = project.run(&["cancel", &id]);
        assert_eq!(canceled.code, 0, "{canceled:?}");
        project.run(&["wait", &id]);
        let kinds = project.events(&id);
        assert!(kinds.iter().all(|event| event["kind"] != "pause_requested"), "{kinds:?}");
    }
    let id = project.run(&["run", "worker", script, "-d"]).id();
    project.reach(&id, "running");
    assert_eq!(project.run(&["pause", &id]).code, 0, "any other one is");
    project.run(&["cancel", &id]);
}

/// The codes of the failures of a run's calls, by the ids of the calls; null for one that gave a
/// value.
fn codes(project: &Project, run: &Value) -> Vec<Value> {
    let id = run["id"].as_str().expect("an id");
    let events = project.events(id);
    let results = events.iter().filter(|event| event["kind"] == "tool_result");
    let mut codes: Vec<_> = results
        .map(|event| {
            let output = &event["output"];
            json!([output["tool_call_id"], output["outcome"]["failure"]["error"]["code"]])
        })
        .collect();
    codes.sort_by_key(Value::to_string);
    codes
}

#[test]
fn l_024_a_request_takes_away_from_each_bound_of_its_agent() {
    let project = project();
    let [nothing, slow] = [json!({}), json!({ "sleep_ms": 600_000 })];
    let failing = json!({ "fail": { "message": "no" } });
    let end = |option: &[&str], script: &str| {
        ended(&project, &[&["worker", script][..], option].concat())
    };
    for (option, args, reason) in [
        ("tool-calls=1", &nothing, "tool_cap"),
        ("tool-failures=1", &failing, "failure_cap"),
        ("wall=1s", &slow, "wallclock"),
    ] {
        let run = end(&["--budget", option], &two_calls(args));
        assert_eq!(facts(&run), partial(reason, "what there is"), "{option}: {run}");
    }
    let calls = json!([[call("a", "scripted/lookup", &nothing)]]);
    let run = end(&["--budget", "tool-calls=0,last-step=5s"], &endless_last_step(&calls));
    assert_eq!(facts(&run), partial("tool_cap", "half"), "{run}");
    let run = end(&["--budget", "step=200ms"], &json!({ "ops": ["block"] }).to_string());
    assert_eq!(run["stop_reason"], "turn_timeout", "{run}");

    let both = |args: &Value| {
        let calls = json!([call("a", "scripted/lookup", args), call("b", "scripted/ids", args)]);
        json!({ "steps": [calls, [{ "reply": "done" }]] }).to_string()
    };
    let sleeps = json!({ "sleep_ms": 600_000 });
    for (option, args, expected) in [
        (["--budget", "turn-calls=1"], &nothing, json!([["a", null], ["b", "cap"]])),
        (
            ["--only-tool", "scripted/ids"],
            &nothing,
            json!([["a", "tool-unavailable"], ["b", null]]),
        ),
        (["--only-tag", "test"], &nothing, json!([["a", null], ["b", null]])),
        (
            ["--deny-tag", "test"],
            &nothing,
            json!([["a", "tool-unavailable"], ["b", "tool-unavailable"]]),
        ),
        (["--tool-timeout", "200ms"], &sleeps, json!([["a", "deadline"], ["b", "deadline"]])),
    ] {
        let run = end(&option, &both(args));
        assert_eq!(json!(codes(&project, &run)), expected, "{option:?}");
    }
    let one_slow =
        json!([call("a", "scripted/lookup", &sleeps), call("b", "scripted/ids", &nothing)]);
    let script = json!({ "steps": [one_slow, [{ "reply": "done" }]] }).to_string();
    let run = end(&["--tool-timeout", "scripted/lookup=200ms"], &script);
    assert_eq!(json!(codes(&project, &run)), json!([["a", "deadline"], ["b", null]]));
    for more in ["step=1h", "last-step=2h"] {
        let refused = project.run(&["run", "worker", "x", "-d", "--budget", more]);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains("can only take away"), "{refused:?}");
    }
}
