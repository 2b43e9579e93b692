//! Components and agents as `inspect`, `tool show` and `agent show` say what they ask for and get.

use std::path::Path;

use serde_json::{Value, json};
use taskrun_examples::WASI_FILES;
use taskrun_policy::Policy;

use crate::documents::known_keys;
use crate::project::Project;

const FILES: &str = r#"
[tool.files]
component = "components/wasi-files.wasm"

[agent.keeper]
component = "components/scripted.wasm"
tools = ["files/*"]
"#;
const BY_RULES: &str = "files, by the workspace-* rules";
/// Values that limits take: a duration, a size and a number.
const VALUES: [&str; 3] = ["'20s'", "'8MiB'", "900"];

/// A project of an agent with a tool that uses files through WASI, under these rules.
fn project(rules: &str) -> Project {
    let project = Project::new();
    project.write("components/wasi-files.wasm", WASI_FILES.bytes);
    project.write("taskrun.toml", format!("{FILES}{rules}\n").as_bytes());
    project
}

#[test]
fn files_of_wasi_are_shown_as_those_of_the_workspace_rules() {
    let allow = r#"allow = ["workspace-read: docs/**", "workspace-write: docs/**"]"#;
    let project = project(allow);
    let component = "components/wasi-files.wasm";
    let inspected = project.run(&["inspect", component, "-o", "json"]).json();
    let imports = inspected["imports"].as_array().expect("imports");
    let of_files = |import: &&Value| {
        import["interface"].as_str().is_some_and(|name| name.starts_with("wasi:filesystem/"))
    };
    assert_eq!(imports.iter().filter(of_files).count(), 2, "{inspected}");
    for import in imports.iter().filter(of_files) {
        assert_eq!(import["class"], BY_RULES, "{inspected}");
    }
    let line = format!("{BY_RULES}: wasi:filesystem/preopens, wasi:filesystem/types");
    let commands =
        [&["inspect", component][..], &["tool", "show", "files"], &["agent", "show", "keeper"]];
    for command in commands {
        let ran = project.run(command);
        assert!(ran.code == 0 && ran.stdout.contains(&line), "{ran:?}");
    }
    let shown = project.run(&["agent", "show", "keeper", "-o", "json"]).json();
    for capability in ["workspace-read", "workspace-write"] {
        let all = shown["capabilities"].as_array().expect("capabilities");
        let given = all.iter().find(|given| given["capability"] == capability);
        let asked_by = given.map(|given| &given["asked_by"]);
        assert_eq!(asked_by, Some(&json!(["tool files"])), "{capability}: {shown}");
    }
}

#[test]
fn the_policy_that_inspect_proposes_lets_files_of_wasi_be_read() {
    let project = project("");
    let inspected = project.run(&["inspect", "components/wasi-files.wasm", "-o", "json"]).json();
    let proposed = inspected["policy"].as_array().expect("lines").iter();
    let allow = proposed.filter_map(Value::as_str).find(|line| line.starts_with("allow"));
    let allow = allow.expect("a line with rules");
    assert!(allow.contains("workspace-read"), "{allow}");
    let read = || {
        let arguments = r#"{"path":"/docs/a.md"}"#;
        project.run(&["tool", "call", "files/read", arguments, "--agent", "keeper", "-o", "json"])
    };
    // It loads without a rule, too, and sees no folder.
    let checked = project.run(&["agent", "check", "keeper"]);
    assert_eq!(checked.code, 0, "{checked:?}");
    let blind = read();
    assert_eq!(blind.code, 5, "{blind:?}");
    project.write("taskrun.toml", format!("{FILES}{allow}\n").as_bytes());
    let seeing = read().json();
    let text = seeing["result"]["text"].as_str();
    assert!(text.is_some_and(|text| text.contains("in the cellar")), "{seeing}");
}

#[test]
fn agent_show_has_every_limit_that_its_policy_states() {
    let agent = "[agent.bounded]\ncomponent = \"components/scripted.wasm\"\n";
    let table = "[agent.bounded.limits]\n";
    let keys = known_keys(&format!("{agent}{table}"));
    let is_taken = |line: &str| {
        Policy::parse(&format!("{agent}{table}{line}"), Path::new("taskrun.toml")).is_ok()
    };
    let mut policy = format!("{agent}{table}");
    for key in &keys {
        let mut lines = VALUES.iter().map(|value| format!("{key} = {value}\n"));
        let line = lines.find(|line| is_taken(line));
        policy.push_str(&line.unwrap_or_else(|| panic!("no value is one of {key}")));
    }
    let project = Project::new();
    project.write("taskrun.toml", policy.as_bytes());
    let shown = project.run(&["agent", "show", "bounded", "-o", "json"]).json();
    let ran = project.run(&["agent", "show", "bounded"]);
    let line = ran.stdout.lines().find_map(|line| line.strip_prefix("limits "));
    let line = line.expect("a line of limits").trim_start();
    let named: Vec<&str> = line.split(", ").filter_map(|limit| limit.split(' ').next()).collect();
    for key in &keys {
        assert!(shown["limits"][key].is_string(), "{key}: {shown}");
        assert!(named.contains(&key.as_str()), "{key}: {ran:?}");
    }
}
