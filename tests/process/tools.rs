//! Tools as their authors try them: called by hand, shown and inspected.

use serde_json::{Value, json};
use taskrun_examples::{CAUTIOUS, LEDGER, NOTES, evil};

use crate::project::{Project, Ran};

const EVIL: &str = r#"
[tool.evil]
component = "components/evil-tool.wasm"

[agent.worker]
component = "components/scripted.wasm"
tools = ["evil/*"]
allow = ["workspace-read: docs/**", "workspace-write: docs/**"]
"#;
const KEEPER: &str = r#"
[tool.notes]
component = "components/notes.wasm"

[agent.keeper]
component = "components/scripted.wasm"
tools = ["notes/*"]
allow = ["memory: session", "memory-write: session"]
"#;
const SCHEMA: &str = r#"
[tool.schema]
component = "components/evil-schema.wasm"

[agent.a]
component = "components/scripted.wasm"
tools = ["schema/double-all"]
"#;
/// Agents that may call the same function, each with another rule about that.
const RULES: [(&str, &str); 5] = [
    ("asker", r#"ask = ["tool: ledger/note"]"#),
    ("blocked", r#"policy = { block = ["ledger/note"] }"#),
    ("tagged", r#"policy = { block_tags = ["ledger"] }"#),
    ("listed", r#"policy = { allow = ["ledger/put"] }"#),
    ("guarded", r#"policy = { component = "components/cautious.wasm" }"#),
];
const AGAIN: &str = "correct the tool and build it again";

/// A project with this policy, and a tool for it.
fn project(policy: &str, tool: &str, bytes: &[u8]) -> Project {
    let project = Project::new();
    project.write(&format!("components/{tool}.wasm"), bytes);
    project.write("taskrun.toml", policy.as_bytes());
    project
}

fn hint(ran: &Ran) -> String {
    ran.error()["hint"].as_str().expect("a hint").to_owned()
}

#[test]
fn a_call_by_hand_is_judged_as_one_in_a_run() {
    let project = project(EVIL, "evil-tool", evil::TOOL.bytes);
    let detail = "its results carry bounds, and this one has none";
    let called = project.run(&["tool", "call", "evil/unbounded", "{}"]);
    assert_eq!((called.code, &called.error()["code"]), (5, &json!("contract")), "{called:?}");
    assert!(called.stderr.contains(detail) && hint(&called) == AGAIN, "{called:?}");

    let call = json!({ "call": { "name": "evil/unbounded", "args": {} } });
    let script = json!({ "steps": [[call], [{ "reply": "done" }]] }).to_string();
    let id = project.run(&["run", "worker", &script, "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    let events = project.events(&id);
    let result = events.iter().find(|event| event["kind"] == "tool_result").expect("a result");
    let error = &result["output"]["outcome"]["failure"]["error"];
    assert_eq!(error["code"], "contract", "{result}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains(detail)), "{result}");
}

#[test]
fn a_call_by_hand_is_decided_by_the_rules_about_calls_as_they_are_explained() {
    let agent = |(name, rule): &(&str, &str)| {
        let rights = "tools = [\"ledger/*\"]\nallow = [\"workspace-write: ledger.txt\"]";
        format!("[agent.{name}]\ncomponent = \"components/scripted.wasm\"\n{rights}\n{rule}\n")
    };
    let agents: String = RULES.iter().map(agent).collect();
    let policy = format!("[tool.ledger]\ncomponent = \"components/ledger.wasm\"\n{agents}");
    let project = project(&policy, "ledger", LEDGER.bytes);
    project.write("components/cautious.wasm", CAUTIOUS.bytes);
    let noted = || {
        let ledger = std::fs::read_to_string(project.path().join("ledger.txt"));
        ledger.map_or(0, |text| text.lines().count())
    };
    let call = |agent: &str, more: &[&str]| {
        let args = ["tool", "call", "ledger/note", r#"{"text":"one"}"#, "--agent", agent];
        project.run(&[&args[..], more].concat())
    };
    let explained = |agent: &str| {
        let question = ["--cap", "tool", "--arg", "name=ledger/note"];
        project.run(&[&["policy", "explain", "--agent", agent], &question[..]].concat())
    };
    for agent in ["blocked", "tagged", "listed"] {
        let refused = call(agent, &["--accept"]);
        assert_eq!((refused.code, &refused.error()["code"]), (4, &json!("denied")), "{refused:?}");
        assert_eq!(refused.error(), explained(agent).error());
        assert!(refused.stderr.contains("(taskrun.toml:"), "{refused:?}");
    }
    let unasked = call("asker", &[]);
    assert_eq!((unasked.code, &unasked.error()["code"]), (4, &json!("consent")), "{unasked:?}");
    assert!(unasked.stderr.contains("tool: ledger/note"), "{unasked:?}");
    assert!(hint(&unasked).contains("--accept"), "{unasked:?}");
    assert_eq!(noted(), 0, "nothing was done");
    let accepted = call("asker", &["--accept"]);
    assert_eq!((accepted.code, noted()), (0, 1), "{accepted:?}");
    // Only a run has turns to decide about.
    let guarded = call("guarded", &[]);
    assert_eq!((guarded.code, noted()), (0, 2), "{guarded:?}");
    assert!(guarded.stderr.contains("cautious.wasm") && guarded.stderr.contains("is not asked"));
}

#[test]
fn a_tool_that_panics_is_to_be_corrected_and_one_that_takes_too_much_has_limits() {
    let project = project(EVIL, "evil-tool", evil::TOOL.bytes);
    let call = |function: &str| project.run(&["tool", "call", &format!("evil/{function}"), "{}"]);
    let panicked = call("panic");
    assert_eq!((panicked.code, &panicked.error()["code"]), (5, &json!("trap")), "{panicked:?}");
    assert_eq!(hint(&panicked), AGAIN);
    let grown = call("overflow");
    assert_eq!((grown.code, &grown.error()["code"]), (5, &json!("stack")), "{grown:?}");
    assert!(hint(&grown).contains("`taskrun agent show worker`"), "{grown:?}");
    assert_eq!(grown.error()["message"], "evil/overflow: stopped: stack overflow");
}

#[test]
fn the_words_of_an_agent_that_panicked_are_looked_for_where_they_stand() {
    let project = Project::new();
    let ran = project.run(&["run", "spinner", "panic", "--wait"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    let error = ran.error();
    let id = error["run_id"].as_str().expect("an id");
    assert!(hint(&ran).ends_with(&format!("with `taskrun logs {id}`")), "{ran:?}");
    let logs = project.run(&["logs", id]);
    assert!(logs.stdout.contains("the agent panics on request"), "{logs:?}");
}

#[test]
fn the_json_of_a_call_has_what_came_with_its_value() {
    let project = Project::new();
    project.write("docs/cat.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    let arguments = r#"{"path":"docs/cat.png"}"#;
    let called = ["tool", "call", "workspace/read", arguments, "--agent", "reader", "-o", "json"];
    let called = project.run(&called).json();
    assert_eq!(called["bounds"]["returned"], 1, "{called}");
    assert_eq!(called["images"][0]["media_type"], "image/png", "{called}");
    assert_eq!(called["images"][0]["size"], 16, "{called}");
}

#[test]
fn a_tool_that_wants_memory_is_to_be_tried_in_a_run() {
    let project = project(KEEPER, "notes", NOTES.bytes);
    let called = project.run(&["tool", "call", "notes/keep", r#"{"key":"k","text":"t"}"#]);
    assert_eq!(called.code, 5, "{called:?}");
    assert!(hint(&called).contains("no memory-write, which it asked for"), "{called:?}");
    assert!(hint(&called).contains("`taskrun run keeper TASK`"), "{called:?}");
    let found = project.run(&["tool", "call", "notes/find", r#"{"query":"day"}"#]);
    assert!(hint(&found).contains("no memory, which it asked for"), "{found:?}");
    // A number that its schema takes for a whole one, and the tool does not: it asks for nothing.
    let refused = project.run(&["tool", "call", "notes/find", r#"{"query":"day","limit":5.0}"#]);
    let error = refused.error();
    let told = (refused.code, &error["code"]);
    assert_eq!(told, (5, &json!("guest:invalid-arguments")), "{refused:?}");
    assert_eq!(hint(&refused), "see what it takes with `taskrun tool show notes`");
    assert!(!refused.stderr.contains("memory"), "{refused:?}");
    assert_eq!(error["retry_hint"]["tool"], "notes/find", "{refused:?}");
}

#[test]
fn a_call_that_fails_is_shown_with_the_advice_for_another_one() {
    let project = Project::new();
    let agent = ["--agent", "readonly_researcher"];
    let search = |arguments: &str| {
        project.run(&[&["tool", "call", "workspace/search", arguments][..], &agent].concat())
    };
    let failed = search(r#"{"query":"?"}"#);
    assert_eq!(failed.code, 5, "{failed:?}");
    let (advice, example) =
        ("give words to look for, such as those of the question", r#"{"query":"retry limit"}"#);
    for line in [format!("  advice: {advice}\n"), format!("  for example: {example}\n")] {
        assert!(failed.stderr.contains(&line), "{line}: {failed:?}");
    }
    let told = &failed.error()["retry_hint"];
    assert_eq!(told["tool"], "workspace/search", "{failed:?}");
    assert_eq!((&told["message"], &told["example_input"]), (&json!(advice), &json!(example)));
    assert_eq!(hint(&failed), "see what it takes with `taskrun tool show workspace`");
    // So is one that the host refuses for its arguments.
    let refused = search("{}");
    assert_eq!(refused.code, 2, "{refused:?}");
    assert_eq!(refused.error()["retry_hint"]["missing_fields"], json!(["query"]), "{refused:?}");
    assert!(refused.stderr.contains("  for example: {\"query\":"), "{refused:?}");
}

#[test]
fn a_tool_whose_schema_cannot_be_used_is_not_shown_as_sound() {
    let project = project(SCHEMA, "evil-schema", evil::SCHEMA.bytes);
    let commands = [&["tool", "show", "schema"][..], &["tool", "call", "schema/double-all", "{}"]];
    for command in commands {
        let ran = project.run(command);
        assert_eq!((ran.code, &ran.error()["code"]), (2, &json!("tools")), "{ran:?}");
        assert!(ran.stderr.contains("is not a usable JSON schema"), "{ran:?}");
        assert_eq!(hint(&ran), "correct `describe` of the tool and build it again");
    }
}

#[test]
fn an_import_that_only_agents_have_is_refused_to_a_tool_that_is_inspected() {
    let project = Project::new();
    project.write("odd.wasm", &tool_with_events());
    let inspected = project.run(&["inspect", "odd.wasm"]);
    assert_eq!(inspected.code, 0, "{inspected:?}");
    assert!(inspected.stdout.contains("refused to this tool: events"), "{inspected:?}");
    let inspected = project.run(&["inspect", "odd.wasm", "-o", "json"]).json();
    assert_eq!(inspected["imports"][0]["class"], "refused to this tool", "{inspected}");
    assert_eq!(inspected["policy"], Value::Array(Vec::new()), "it loads with no policy");
}

#[test]
fn a_component_with_exceptions_is_to_be_built_without_them() {
    let project = Project::new();
    // A core module with a tag, as compilers of C++ make them, in a component.
    let module = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x0d\x03\x01\0\0";
    project.write("tag.wasm", &[&b"\0asm\x0d\0\x01\0\x01\x13"[..], &module[..]].concat());
    let inspected = project.run(&["inspect", "tag.wasm"]);
    let error = inspected.error();
    let told = (inspected.code, &error["code"]);
    assert_eq!(told, (2, &json!("component-refused")), "{inspected:?}");
    assert!(hint(&inspected).contains("-fno-exceptions"), "{inspected:?}");
}

#[test]
fn a_tool_that_no_policy_loads_is_shown_with_the_reason_and_without_a_policy() {
    let project = Project::new();
    let of = |memory: &str, instances: usize| {
        let instances = "(core instance (instantiate $m))".repeat(instances);
        format!("(core module $m {memory}) {instances}")
    };
    for (parts, words) in [
        ("(core func (canon task.cancel))".to_owned(), Some("async features")),
        (of("(memory 2048)", 1), Some("begins with 128 MiB of memory")),
        (of("(memory 1)", 5), Some("has 5 memories")),
        (of("(memory 1)", 4), None),
    ] {
        let tools = "(instance $t) (export \"taskrun:plugin/tools@0.1.0\" (instance $t))";
        let bytes = wat::parse_str(format!("(component {parts} {tools})")).expect("it is text");
        project.write("odd.wasm", &bytes);
        let inspected = project.run(&["inspect", "odd.wasm"]);
        assert_eq!(inspected.code, 0, "{inspected:?}");
        assert_eq!(inspected.stdout.contains("[tool.NAME]"), words.is_none(), "{inspected:?}");
        let told = words.is_none_or(|words| inspected.stdout.contains(words));
        assert!(told, "{words:?}: {inspected:?}");
        let json = project.run(&["inspect", "odd.wasm", "-o", "json"]).json();
        let refused = json["refused"].as_str();
        assert_eq!(refused.is_some(), words.is_some(), "{json}");
        assert!(words.is_none_or(|words| refused.is_some_and(|why| why.contains(words))), "{json}");
        assert_eq!(json["policy"].as_array().map(Vec::is_empty), Some(words.is_some()), "{json}");
    }
}

#[test]
fn a_path_is_shown_as_a_policy_takes_it() {
    let project = Project::new();
    // In two characters, as some file systems write it.
    let file = "Cafe\u{301}.wasm";
    project.write(file, LEDGER.bytes);
    let inspected = project.run(&["inspect", file, "-o", "json"]).json();
    assert_eq!(inspected["policy"][1], format!("component = \"{file}\""), "{inspected}");
}

/// A component that imports an instance as `events` and exports it as the functions of a tool.
fn tool_with_events() -> Vec<u8> {
    let (events, tools) = ("taskrun:plugin/events@0.1.0", "taskrun:plugin/tools@0.1.0");
    let section = |number: u8, name: &str, what: &[u8]| {
        let length = u8::try_from(name.len()).expect("a short name");
        let rest = u8::try_from(what.len()).expect("a few bytes");
        let mut bytes = vec![number, length + rest + 3, 1, 0, length];
        bytes.extend(name.as_bytes());
        bytes.extend(what);
        bytes
    };
    // The type of an instance of one function, `f`, which takes and gives nothing.
    let mut bytes = b"\0asm\x0d\0\x01\0\x07\x0e\x01\x42\x02".to_vec();
    bytes.extend(b"\x01\x40\0\x01\0\x04\0\x01f\x01\0");
    bytes.extend(section(10, events, &[5, 0]));
    bytes.extend(section(11, tools, &[5, 0, 0]));
    bytes
}
