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

#[test]
fn case_52_a_look_at_arguments_hears_a_cancellation_and_the_end_of_its_host() {
    let project = project();
    let [(name, args), ..] = evil::schema_bombs();
    let args: Value = serde_json::from_str(&args).expect("JSON");
    let call = json!({ "call": { "name": format!("schema/{name}"), "args": args } });
    let turns: Vec<_> = (0..20).flat_map(|_| [[call.clone()], [lookup()]]).collect();
    project.write("script.json", json!({ "steps": turns }).to_string().as_bytes());
    let id = project.run(&["run", "victim", "@script.json", "-d"]).id();
    project.sees(&id, "tool_result");
    let ran = project.run(&["cancel", &id]);
    assert_eq!(ran.code, 0, "{ran:?}");
    project.reach(&id, "canceled");
    project.end_hosts();
}
