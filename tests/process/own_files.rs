//! Files that the program keeps of a user beside the data directory: native code that it executes,
//! and the list of the policies that it trusts. Guests get at neither, whatever they are granted.

use serde_json::json;
use taskrun_examples::evil;

use crate::project::{Project, Ran};

const POLICY: &str = r#"
[tool.workspace]
component = "components/workspace.wasm"

[tool.evil]
component = "components/evil-wasi.wasm"

[agent.keeper]
component = "components/scripted.wasm"
tools = ["workspace/*"]
allow = ["workspace-read: **", "workspace-write: **"]

[agent.mover]
component = "components/scripted.wasm"
tools = ["evil/*"]
allow = ["workspace-read: .cache/**", "workspace-write: .cache/**"]

[agent.neighbour]
component = "components/scripted.wasm"
tools = ["evil/*"]
allow = ["workspace-read: projects/**", "workspace-write: projects/**"]
"#;
/// An agent that moves folders, in which others may work.
const MOVER: &str = r#"
[tool.evil]
component = "components/evil-wasi.wasm"

[agent.mover]
component = "components/scripted.wasm"
tools = ["evil/*"]
allow = ["workspace-read: out/**", "workspace-write: out/**"]
"#;
/// Files that a host would load or believe: of the user, and of another project.
const FILES: [&str; 4] = [
    ".cache/taskrun/native/key",
    ".cache/taskrun/native/forged.native",
    ".local/state/taskrun/trusted",
    "projects/other/.taskrun/native/key",
];
const OWN: &str = "the host's own";

/// A project whose folder is the home of its user, and which has a data directory of its own.
fn home() -> Project {
    let project = Project::new();
    project.write("components/evil-wasi.wasm", evil::WASI.bytes);
    project.write("taskrun.toml", POLICY.as_bytes());
    FILES.iter().for_each(|file| project.write(file, b"as it was"));
    project
}

/// Calls a function by hand as that user.
fn call(project: &Project, function: &str, arguments: &serde_json::Value, agent: &str) -> Ran {
    let arguments = arguments.to_string();
    let call = ["tool", "call", function, &arguments, "--agent", agent, "-o", "json"];
    let mut command = project.command(&[&["--config", "taskrun.toml"][..], &call].concat());
    project.surroundings().iter().for_each(|(variable, _)| {
        command.env_remove(variable);
    });
    command.env("HOME", project.path()).output().expect("starts").into()
}

fn are_untouched(project: &Project) -> bool {
    let read = |file: &str| std::fs::read(project.path().join(file));
    FILES.iter().all(|file| read(file).is_ok_and(|bytes| bytes == b"as it was"))
}

#[test]
fn the_users_native_code_and_trusted_policies_are_the_hosts_own() {
    let project = home();
    for path in FILES {
        let read = call(&project, "workspace/read", &json!({ "path": path }), "keeper");
        assert!(read.code != 0 && read.stderr.contains(OWN), "{path}: {read:?}");
        for mode in ["append", "replace"] {
            let write = json!({ "path": path, "contents": "forged", "mode": mode });
            let written = call(&project, "workspace/write", &write, "keeper");
            assert!(written.code != 0 && written.stderr.contains(OWN), "{path}: {written:?}");
        }
    }
    let new = json!({ "path": ".cache/taskrun/native/new.native", "contents": "forged" });
    let made = call(&project, "workspace/write", &new, "keeper");
    assert!(made.code != 0 && made.stderr.contains(OWN), "{made:?}");
    assert!(are_untouched(&project));
    let other = json!({ "path": ".cache/other", "contents": "somebody's" });
    let other = call(&project, "workspace/write", &other, "keeper");
    assert_eq!(other.code, 0, "{other:?}");
}

#[test]
fn a_component_of_wasi_moves_nothing_into_the_users_native_code() {
    let project = home();
    let (key, forged) = ("/.cache/taskrun/native/key", "/.cache/forged");
    let tried = json!({ "attempts": [
        { "op": "write", "path": forged },
        { "op": "rename", "path": forged, "to": key },
    ] });
    let refused = call(&project, "evil/attempt", &tried, "mover");
    assert_eq!(refused.error()["code"], "component-folders", "{refused:?}");
    assert!(refused.stderr.contains(OWN), "{refused:?}");
    // A folder in which another project has its data directory may be granted, and that not.
    let (key, forged) = ("/projects/other/.taskrun/native/key", "/projects/forged");
    let tried = json!({ "attempts": [
        { "op": "write", "path": forged },
        { "op": "rename", "path": forged, "to": key },
        { "op": "read", "path": key },
        { "op": "rename", "path": "/projects/other/.taskrun", "to": "/projects/taken" },
    ] });
    let called = call(&project, "evil/attempt", &tried, "neighbour");
    assert_eq!(called.code, 0, "{called:?}");
    let outcomes = called.json()["result"].as_array().cloned().expect("a list");
    let is_done = |outcome: &serde_json::Value| outcome["ok"].is_string();
    assert!(is_done(&outcomes[0]) && !outcomes[1..].iter().any(is_done), "{outcomes:?}");
    assert!(are_untouched(&project));
}

#[test]
fn the_folder_of_an_agent_is_a_guests_to_move_once_no_policy_in_force_has_the_agent() {
    let project = Project::new();
    project.write("components/evil-wasi.wasm", evil::WASI.bytes);
    let other = "[agent.other]\ncomponent = \"components/scripted.wasm\"\nworkspace = \"out/b\"\n";
    project.write("taskrun.toml", format!("{MOVER}\n{other}").as_bytes());
    std::fs::create_dir_all(project.path().join("out/b")).expect("made");
    let mut host = project.start(&["host", "--idle-exit", "0"]);
    project.meets_host();
    let moves = || {
        let attempt = json!({ "op": "rename", "path": "/out/b", "to": "/out/taken" });
        let args = json!({ "attempts": [attempt] });
        let call = json!({ "call": { "id": "c", "name": "evil/attempt", "args": args } });
        let script = json!({ "steps": [[call], [{ "reply": "done" }]] }).to_string();
        let ran = project.run(&["run", "mover", &script, "--wait"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        project.path().join("out/taken").exists()
    };
    assert!(!moves(), "an agent works there");
    project.write("taskrun.toml", MOVER.as_bytes());
    let applied = project.run(&["policy", "apply"]);
    assert_eq!(applied.code, 0, "{applied:?}");
    assert!(moves(), "nobody works there");
    host.kill().expect("killed");
    host.wait().expect("gone");
}
