//! A tool whose schemas cost more than they look, beside honest runs (case 52).

use serde_json::{Value, json};
use taskrun_examples::evil;

use crate::project::Project;

/// Functions that do not load, each with what is said of it.
const REFUSED: [(&str, &str); 8] = [
    ("double-all", "one value meets more than 10000 schemas"),
    ("double-any", "one value meets more than 10000 schemas"),
    ("double-one", "one value meets more than 10000 schemas"),
    ("condition", "one value meets more than 10000 schemas"),
    ("itself", "it refers to itself without a value between"),
    ("long", "one value meets more than 48 schemas within each other"),
    ("large-pattern", "is too large"),
    ("patterns", "are too many, or too large"),
];

fn lookup() -> Value {
    json!({ "call": { "name": "scripted/lookup", "args": { "result": 1 } } })
}

fn project() -> Project {
    let project = Project::new();
    project.write("components/evil-schema.wasm", evil::SCHEMA.bytes);
    let loads = evil::schema_bombs().map(|(name, _)| format!("\"schema/{name}\"")).join(", ");
    let policy = format!(
        "[tool.schema]\ncomponent = \"components/evil-schema.wasm\"\n\n\
         [tool.scripted]\ncomponent = \"components/scripted-tool.wasm\"\n\n\
         [agent.worker]\ncomponent = \"components/scripted.wasm\"\ntools = [\"scripted/*\"]\n\n\
         [agent.victim]\ncomponent = \"components/scripted.wasm\"\ntools = [\"scripted/*\", {loads}]\n"
    );
    project.write("taskrun.toml", policy.as_bytes());
    project
}

#[test]
fn case_52_schemas_that_cost_too_much_do_not_load_and_say_why() {
    let project = project();
    for (name, said) in REFUSED {
        let policy = format!(
            "[tool.schema]\ncomponent = \"components/evil-schema.wasm\"\n\n\
             [agent.a]\ncomponent = \"components/scripted.wasm\"\ntools = [\"schema/{name}\"]\n"
        );
        project.write("taskrun.toml", policy.as_bytes());
        let ran = project.run(&["tool", "call", &format!("schema/{name}"), "{}"]);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains(said), "{name}: {ran:?}");
    }
}

#[test]
fn case_52_arguments_that_cost_too_much_are_refused_beside_an_honest_run() {
    let project = project();
    let dear = "holding them to its schema takes too long";
    let calls = evil::schema_bombs();
    // At a call, and at the same call again.
    let call = |turn: usize| {
        let ops = calls.iter().map(|(name, args)| {
            let args: Value = serde_json::from_str(args).expect("JSON");
            json!({ "call": { "id": format!("{name}-{turn}"), "name": format!("schema/{name}"), "args": args } })
        });
        ops.collect::<Vec<_>>()
    };
    // Mistakes without anything else between them end a run.
    let script = json!({ "steps": [call(1), [lookup()], call(2), [{ "reply": "alive" }]] });
    let script = script.to_string();
    project.write("script.json", script.as_bytes());
    let bombs: Vec<String> =
        (0..2).map(|_| project.run(&["run", "victim", "@script.json", "-d"]).id()).collect();
    for _ in 0..3 {
        let honest = json!({ "steps": [
            [lookup()], [{ "reply": "served" }],
        ] });
        let ran = project.run(&["run", "worker", &honest.to_string(), "--wait"]);
        assert_eq!((ran.code, ran.stdout.trim()), (0, "served"), "{ran:?}");
    }
    for id in bombs {
        let run = project.reach(&id, "completed");
        assert_eq!(run["result"], "alive");
        let events = project.events(&id);
        let is_refused =
            |event: &&Value| event["kind"] == "tool_result" && event["refused"].is_string();
        let results: Vec<_> = events.iter().filter(is_refused).collect();
        assert_eq!(results.len(), 2 * calls.len());
        for (result, (name, _)) in results.iter().zip(calls.iter().chain(&calls)) {
            assert_eq!(result["refused"], "arguments", "{name}");
            assert!(result.to_string().contains(dear), "{name}: {result:.2000}");
        }
    }
}

/// Of runs whose looks at arguments wait for each other nearly all are at one at any time.
#[test]
fn case_52_a_look_at_arguments_hears_a_cancellation_and_the_end_of_its_host() {
    const RUNS: usize = 6;
    const CALLS: usize = 5;
    let project = project();
    let [(name, args), ..] = evil::schema_bombs();
    let args: Value = serde_json::from_str(&args).expect("JSON");
    let call = json!({ "call": { "name": format!("schema/{name}"), "args": args } });
    let mut steps: Vec<_> = (0..CALLS).flat_map(|_| [[call.clone()], [lookup()]]).collect();
    steps.push([json!({ "reply": "alive" })]);
    project.write("script.json", json!({ "steps": steps }).to_string().as_bytes());
    let begin = || {
        let start = || project.run(&["run", "victim", "@script.json", "-d"]).id();
        let ids: Vec<String> = (0..RUNS).map(|_| start()).collect();
        project.sees(&ids[RUNS - 1], "tool_result");
        ids
    };
    let count = |ids: &[String], fits: &dyn Fn(&[Value]) -> bool| {
        ids.iter().filter(|id| fits(&project.events(id))).count()
    };
    let stopped = |events: &[Value]| {
        let text = "the run was stopped before the arguments were looked at";
        events.iter().any(|event| event.to_string().contains(text))
    };
    let ids = begin();
    let all: Vec<&str> = std::iter::once("cancel").chain(ids.iter().map(String::as_str)).collect();
    let ran = project.run(&all);
    assert_eq!(ran.code, 0, "{ran:?}");
    for id in &ids {
        project.reach(id, "canceled");
    }
    let heard = count(&ids, &stopped);
    assert!(heard >= RUNS / 2, "{heard} of {RUNS}");
    // The last call has no answer, and is for whoever goes on with the run.
    let is_open = |events: &[Value]| {
        let place = |fits: &dyn Fn(&Value) -> bool| events.iter().rposition(fits);
        let asked = place(&|event| {
            event["kind"] == "assistant_message" && event.to_string().contains("schema/")
        });
        let answered = place(&|event| event["kind"] == "tool_result");
        asked > answered && events.last().expect("an event")["kind"] == "lost"
    };
    let ids = begin();
    project.end_hosts();
    let heard = count(&ids, &is_open);
    assert!(heard >= RUNS / 2, "{heard} of {RUNS}");
    // The next host ends as well, while it looks at calls that the one before left: they are not
    // decided on again, and have no answer.
    let refused =
        |events: &[Value]| events.iter().filter(|event| event["refused"] == "arguments").count();
    let before: Vec<usize> = ids.iter().map(|id| refused(&project.events(id))).collect();
    let host = project.start(&["host"]);
    project.until("it has looked at one", || {
        ids.iter().zip(&before).any(|(id, before)| refused(&project.events(id)) > *before)
    });
    project.end_hosts();
    assert_eq!(project.ends(host).code, 0);
    let left_twice = |events: &[Value]| {
        let mut since_first = events.iter().rev().skip(1).take_while(|one| one["kind"] != "lost");
        is_open(events) && !since_first.any(|one| one["kind"] == "assistant_message")
    };
    assert!(count(&ids, &left_twice) >= 1);
    // Whoever goes on looks at them, and none begins without.
    for id in &ids {
        assert_eq!(project.reach(id, "completed")["result"], "alive");
        let events = project.events(id);
        let of = |kind: &str| events.iter().filter(|event| event["kind"] == kind).count();
        let refused = events.iter().filter(|event| event["refused"] == "arguments");
        assert_eq!(refused.count(), CALLS, "{id}");
        assert_eq!((of("tool_call_scheduled"), of("tool_result")), (CALLS, 2 * CALLS), "{id}");
    }
}
