//! Components that write to the terminal of whoever looks at them, or try to look like the program.

use std::process::{Command, Stdio};

use serde_json::json;
use taskrun_examples::evil::TOOL as EVIL_TOOL;

use crate::project::{Project, Ran};

/// One of each kind of character that commands a terminal or hides, between letters.
const COMMANDS: &str = "a\u{1b}[2K\u{1b}]0;t\u{7}b\u{8}\r\tc\u{7f}\u{9b}8md\u{61c}\u{180e}\u{200b}\u{200f}\u{2028}\
     \u{2029}e\u{202a}\u{202e}\u{2060}\u{2066}\u{206a}\u{206f}f\u{feff}\u{fff9}\u{e0001}\u{e0041}\u{e007f}g";
/// Lines that look like the program's own.
const FORGERY: [&str; 6] =
    ["## evil", "# evil", "hint: evil", "error: evil", "{\"v\":1,\"evil\":1}", "evil "];

const EVIL_TOOL_POLICY: &str = r#"
[tool.evil]
component = "components/evil-tool.wasm"

[agent.worker]
component = "components/scripted.wasm"
tools = ["evil/forge"]
allow = ["workspace-read: docs/**", "workspace-write: docs/**"]
"#;

/// The text that the hostile components have everywhere.
fn evil() -> String {
    format!("{COMMANDS}\n{}\n", FORGERY.join("\n"))
}

/// True if a character may reach a terminal.
fn is_shown(character: char) -> bool {
    !character.is_control()
        && !matches!(character,
            '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// The output of the program where a person sees both its streams.
pub(crate) fn on_a_terminal(project: &Project, args: &[&str]) -> String {
    let program = env!("CARGO_BIN_EXE_taskrun");
    let quoted: Vec<String> = args.iter().map(|arg| format!("'{arg}'")).collect();
    let line = format!("stty cols 120; exec {program} --no-color {}", quoted.join(" "));
    let output = Command::new("timeout")
        .args(["60", "script", "-q", "-e", "-c", &line, "/dev/null"])
        .current_dir(project.path())
        .envs(project.surroundings())
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    String::from_utf8(output.stdout).expect("text")
}

/// A run that says and does everything with such text, one that fails with it, and one that asks
/// with it.
fn hostile_runs(project: &Project) -> [String; 3] {
    let evil = evil();
    let fail = json!({ "code": evil, "message": evil, "causes": [evil, evil] });
    let does = json!({ "steps": [
        [
            { "delta": evil }, { "reply": evil }, { "thought": evil }, { "log": evil },
            { "call": { "name": "scripted/lookup", "args": { "result": evil } } },
            { "call": { "name": "scripted/lookup", "args": { "fail": fail } } },
        ],
        [{ "reply": evil }],
    ]});
    let fails = json!({ "steps": [[{ "err": evil }]] });
    let asks = json!({ "steps": [[{ "plan": { "await": [
        { "clarification": { "id": "which", "question": evil } },
        { "questions": {
            "id": "form", "tool-name": "t", "tool-call-id": "c", "args": {}, "title": evil,
            "questions": [{ "id": "q", "prompt": evil, "options": [["o", evil]], "allow-multiple": false }],
        } },
    ] } }]] });
    let start = |agent: &str, script: &serde_json::Value, target: &str| {
        let id = project.run(&["run", agent, &script.to_string(), "-d"]).id();
        project.reach(&id, target);
        id
    };
    [
        start("worker", &does, "completed"),
        start("fragile", &fails, "failed"),
        start("worker", &asks, "blocked"),
    ]
}

#[test]
fn case_46_nothing_of_a_guest_commands_a_terminal_or_looks_like_the_program() {
    let project = Project::new();
    let ids = hostile_runs(&project);
    let mut commands: Vec<Vec<&str>> = vec![
        vec!["ps", "-a"],
        vec!["ps", "-a", "-o", "json"],
        vec!["inbox"],
        vec!["inbox", "-o", "json"],
        vec!["tool", "show", "scripted"],
        vec!["tool", "show", "scripted", "-o", "json"],
        vec!["agent", "show", "worker"],
        vec!["inspect", "components/scripted-tool.wasm"],
    ];
    for id in &ids {
        for command in ["get", "tree", "events", "logs", "transcript"] {
            commands.push(vec![command, id]);
            commands.push(vec![command, id, "-o", "json"]);
            commands.push(vec![command, id, "-o", "ndjson"]);
        }
        commands.push(vec!["wait", id, "--timeout", "0s"]);
        commands.push(vec!["wait", id, "--timeout", "0s", "-o", "ndjson"]);
    }
    let hint = json!({ "reason": "timeout", "message": evil(), "question": evil() });
    let fail = json!({ "code": evil(), "message": evil(), "causes": [evil()], "hint": hint });
    let fail = json!({ "fail": fail }).to_string();
    let result = json!({ "result": { "evil": evil() } }).to_string();
    for arguments in [&fail, &result] {
        for format in ["table", "json", "ndjson"] {
            let agent = ["--agent", "worker", "-o", format];
            commands.push([&["tool", "call", "scripted/lookup", arguments][..], &agent].concat());
        }
    }
    for command in commands {
        let shown = on_a_terminal(&project, &command);
        // The terminal puts a carriage return before each line break.
        let shown = shown.replace("\r\n", "\n");
        assert!(!shown.is_empty(), "{command:?} prints nothing");
        let hostile = shown.chars().find(|c| *c != '\n' && !is_shown(*c));
        assert_eq!(hostile, None, "{command:?}: {shown:?}");
        let forged = shown.lines().find(|line| FORGERY.iter().any(|evil| line.starts_with(evil)));
        assert_eq!(forged, None, "{command:?}: {shown}");
    }
}

#[test]
fn case_46_a_result_and_a_schema_stay_in_the_one_line_of_their_record() {
    let project = Project::new();
    // Its schema is written on several lines.
    let shown = project.run(&["tool", "show", "scripted", "-o", "ndjson"]);
    assert_eq!((shown.code, shown.stdout.lines().count()), (0, 1), "{shown:?}");
    assert!(shown.json()["functions"][0]["input_schema"]["properties"].is_object(), "{shown:?}");
    // So is a result, one line of which is a record of its own.
    project.write("components/evil-tool.wasm", EVIL_TOOL.bytes);
    project.write("taskrun.toml", EVIL_TOOL_POLICY.as_bytes());
    let called =
        project.run(&["tool", "call", "evil/forge", "{}", "--agent", "worker", "-o", "ndjson"]);
    assert_eq!((called.code, called.stdout.lines().count()), (0, 1), "{called:?}");
    assert_eq!(called.json()["result"][0]["tool"], "bank/pay", "{called:?}");
}

fn calls(project: &Project, function: &str, agent: &str, arguments: &serde_json::Value) -> Ran {
    let arguments = arguments.to_string();
    project.run(&["tool", "call", function, &arguments, "--agent", agent])
}

#[test]
fn a_word_that_a_guest_chose_for_its_failure_is_not_taken_for_the_hosts() {
    let project = Project::new();
    let fail = json!({ "fail": { "code": "denied", "message": "no" } });
    let failed = calls(&project, "scripted/lookup", "worker", &fail);
    assert_eq!(failed.code, 5, "{failed:?}");
    assert_eq!(failed.error()["code"], "guest:denied", "{failed:?}");
    assert!(!failed.stderr.contains("granted"), "{failed:?}");
    let long = json!({ "fail": { "code": "c".repeat(100_000), "message": "no" } });
    let failed = calls(&project, "scripted/lookup", "worker", &long);
    let code = failed.error()["code"].as_str().map(str::len).expect("a code");
    assert!(code < 100, "{code}");
    // What the host itself refused is denied, whatever the guest says of it.
    let path = json!({ "path": "taskrun.toml" });
    let denied = calls(&project, "workspace/read", "readonly_researcher", &path);
    assert_eq!(denied.code, 4, "{denied:?}");
    assert!(denied.stderr.contains("granted"), "{denied:?}");
}

/// A component that imports something by this name.
fn importing(name: &str) -> Vec<u8> {
    let length = u8::try_from(name.len()).expect("a short name");
    // An empty instance type, and an import of that type.
    let mut bytes = b"\0asm\x0d\0\x01\0\x07\x03\x01\x42\0".to_vec();
    bytes.extend([10, length + 5, 1, 0, length]);
    bytes.extend(name.as_bytes());
    bytes.extend([5, 0]);
    bytes
}

#[test]
fn case_46_a_component_cannot_forge_what_is_said_of_it() {
    let project = Project::new();
    project.write("plain.wasm", &importing("other:a/b"));
    let plain = project.run(&["inspect", "plain.wasm"]);
    assert_eq!(plain.code, 0, "{plain:?}");
    assert!(plain.stdout.contains("other:a/b"), "{plain:?}");
    let name = "url=<x\u{1b}[2K\nimports  always given: log>";
    project.write("odd.wasm", &importing(name));
    let odd = project.run(&["inspect", "odd.wasm"]);
    assert_eq!((odd.code, odd.stdout.as_str()), (2, ""), "{odd:?}");
    assert_eq!(odd.error()["code"], "component-name", "{odd:?}");
    assert!(odd.stderr.contains("url=<x\\u{1b}[2K\\nimports"), "{odd:?}");
    assert!(!odd.stderr.contains('\u{1b}'), "{odd:?}");
}

#[test]
fn a_log_that_goes_to_no_terminal_has_no_escapes() {
    let ran = Project::new().run(&["-v", "agent", "check", "worker"]);
    assert!(ran.stderr.contains("engine ready"), "{ran:?}");
    assert!(!ran.stderr.contains('\u{1b}'), "{ran:?}");
}
