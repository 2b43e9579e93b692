//! A data directory that is copied while its hosts work, as `docs/operations.md` says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;
use serde_json::json;
use taskrun_tests::foreign::Maker;

use crate::between::{says, waits};
use crate::project::Project;

const PAGE: &str = include_str!("../../docs/operations.md");
const WHOLE: &str = "every page, run and index is as it was written";
/// Most runs that are accepted while a data directory is copied.
const LOAD_MAX: usize = 150;

/// The script of the page.
fn script() -> &'static str {
    let blocks = PAGE.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut scripts = blocks.filter(|block| block.starts_with("#!/bin/sh\n"));
    let (Some(script), None) = (scripts.next(), scripts.next()) else { panic!("one script") };
    script
}

fn data(project: &Project) -> PathBuf {
    project.path().join(".taskrun")
}

/// Copies the data directory as the page says: by its script where Python copies the store, and by
/// what it names instead, `VACUUM INTO`, where others do.
fn back_up(project: &Project, maker: Maker, to: &Path) {
    let (store, copy) = (data(project).join("taskrun.db"), to.join("taskrun.db"));
    let vacuum = format!("VACUUM INTO '{}'", copy.display());
    let succeeds = |command: &mut Command| {
        let output = command.output().expect("starts");
        assert!(output.status.success(), "{maker:?}: {output:?}");
    };
    if maker == Maker::Python {
        project.write("backup.sh", script().as_bytes());
        let script = project.path().join("backup.sh");
        return succeeds(Command::new("sh").arg(script).arg(data(project)).arg(to));
    }
    std::fs::create_dir(to).expect("made");
    if maker == Maker::Shell {
        succeeds(Command::new("sqlite3").args(["-cmd", ".timeout 60000"]).arg(store).arg(vacuum));
    } else {
        let store = Connection::open(store).expect("opens");
        store.execute_batch(&vacuum).expect("copied");
    }
    succeeds(Command::new("cp").arg("-a").arg(data(project).join("blobs")).arg(to));
}

fn is_whole(project: &Project, data: &Path) {
    let data = data.to_str().expect("a text");
    let checked = project.run(&["doctor", "--check", "--data-dir", data]);
    assert!(checked.code == 0 && checked.stdout.contains(WHOLE), "{checked:?}");
    let kept = "the policies and components that open runs need are kept";
    assert!(checked.stdout.contains(kept), "{checked:?}");
}

#[test]
fn a_copy_that_is_made_while_a_host_executes_runs_is_whole_and_goes_on_with_them() {
    for maker in Maker::all() {
        goes_on_from_a_copy(maker);
    }
}

fn goes_on_from_a_copy(maker: Maker) {
    let project = Project::new();
    let copy = project.path().join("copy");
    let accepts = |text: &str| project.run(&["run", "worker", &says(text), "-d"]).id();
    let asks = waits(&project);
    let endless = json!({ "steps": [["block"]] }).to_string();
    let endless = project.run(&["run", "worker", &endless, "-d"]).id();
    project.reach(&endless, "running");
    let mut ids = vec![accepts("known")];
    project.reach(&ids[0], "completed");

    let is_copied = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut accepted = Vec::new();
            while accepted.len() < LOAD_MAX && !is_copied.load(Ordering::Relaxed) {
                accepted.push(accepts("load"));
            }
            accepted
        });
        back_up(&project, maker, &copy);
        is_copied.store(true, Ordering::Relaxed);
        ids.extend(load.join().expect("all are accepted"));
    });
    is_whole(&project, &copy);

    // The directory is lost with its disk, but for native code, which spares compiling it again.
    project.kill_hosts_and_wait();
    let native = taskrun_runtime::CACHE_DIR;
    std::fs::remove_dir_all(copy.join(native)).expect("the check has made it");
    std::fs::rename(data(&project).join(native), copy.join(native)).expect("moved");
    std::fs::remove_dir_all(data(&project)).expect("removed");
    std::fs::rename(&copy, data(&project)).expect("restored");

    let listed = project.run(&["ps", "-a", "-o", "name", "--limit", "200"]);
    assert_eq!(listed.code, 0, "{listed:?}");
    let copied: BTreeSet<&str> = listed.stdout.lines().collect();
    for id in [&asks, &endless, &ids[0]] {
        assert!(copied.contains(id.as_str()), "{maker:?}: {id} was on record: {listed:?}");
    }
    assert_eq!(project.get(&endless)["status"], "running", "it was under way");
    let answered = project.run(&["answer", &asks, "the third one"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    let copied: Vec<&str> =
        ids.iter().map(String::as_str).filter(|id| copied.contains(id)).collect();
    let wait = ["wait", asks.as_str(), "--timeout", "60s"];
    let waited = project.run(&[&wait[..], &copied].concat());
    assert_eq!(waited.code, 0, "{maker:?}: {waited:?}");
    assert_eq!(project.get(&asks)["result"], "thanks");
    project.sees(&endless, "resumed");
    let events = project.events(&endless);
    let lost: Vec<_> = events.iter().filter(|event| event["kind"] == "lost").collect();
    assert!(lost.len() == 1 && lost[0]["crashed"] == true, "its host is dead: {events:?}");
    assert_eq!(project.run(&["cancel", &endless]).code, 0);
    assert_eq!(project.run(&["wait", &endless]).code, 6);
    is_whole(&project, &data(&project));
}

/// A policy of an agent with files and of one without.
const MOVED: &str = r#"[tool.workspace]
component = "../components/workspace.wasm"

[agent.keeper]
component = "../components/scripted.wasm"
tools = ["workspace/read"]
allow = ["workspace-read: docs/**"]
deny = ["workspace-write: **"]

[agent.talker]
component = "../components/scripted.wasm"
"#;

#[test]
fn runs_with_files_wait_in_a_project_that_was_moved_until_they_are_adopted() {
    let project = Project::new();
    project.write("one/docs/a.md", b"# Pears\n");
    project.write("one/taskrun.toml", MOVED.as_bytes());
    let at = |folder: &str, args: &[&str]| {
        let policy = format!("{folder}/taskrun.toml");
        project.run(&[&["--config", policy.as_str(), "--data-dir", ".taskrun"][..], args].concat())
    };
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let asks = json!([{ "plan": { "await": [question] } }]);
    let read = json!([{ "call": { "name": "workspace/read", "args": { "path": "docs/a.md" } } }]);
    let thanks = json!([{ "reply": "thanks" }]);
    let with_files = json!({ "steps": [asks, read, thanks] }).to_string();
    let without = json!({ "steps": [asks, thanks] }).to_string();
    let with_files = at("one", &["run", "keeper", &with_files, "-d"]).id();
    let without = at("one", &["run", "talker", &without, "-d"]).id();
    for id in [&with_files, &without] {
        assert_eq!(at("one", &["wait", id]).code, 8, "it asks");
    }
    project.end_hosts();
    std::fs::rename(project.path().join("one"), project.path().join("two")).expect("moved");

    for id in [&with_files, &without] {
        let answered = at("two", &["answer", id, "the third one"]);
        assert_eq!(answered.code, 0, "{answered:?}");
    }
    let waited = at("two", &["wait", &without]);
    assert_eq!(waited.code, 0, "{waited:?}");
    project.until("it is said why the other one waits", || {
        let waited = at("two", &["wait", &with_files, "--timeout", "2s"]);
        waited.stderr.contains("cannot open the workspace")
    });
    let adopted = at("two", &["adopt", "--agent", "keeper"]);
    assert_eq!(adopted.code, 0, "{adopted:?}");
    let waited = at("two", &["wait", &with_files]);
    assert_eq!(waited.code, 0, "{waited:?}");
    let events = format!("{:?}", project.events(&with_files));
    assert!(events.contains("Pears"), "{events}");
}
