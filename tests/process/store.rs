//! The files of the store under a host that uses them.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::process::Child;

use rustix::fs::{FlockOperation, fcntl_lock};
use serde_json::json;

use crate::project::Project;

/// A host in the foreground, which has made the store if nobody had.
fn host(project: &Project) -> Child {
    let mut child = project.start(&["host", "--lease", "3s"]);
    let stderr = child.stderr.as_mut().expect("a pipe");
    let mut line = String::new();
    BufReader::new(stderr).read_line(&mut line).expect("it says that it begins");
    assert!(line.contains("executing runs of"), "{line}");
    child
}

/// Whether another process gets a write lock on the database, as a program gets that closes it and
/// takes itself for the last one.
fn is_lockable(project: &Project) -> bool {
    let file = project.path().join(".taskrun/taskrun.db");
    let opened = OpenOptions::new().read(true).write(true).open(file).expect("opens");
    fcntl_lock(&opened, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[test]
fn a_host_keeps_the_locks_on_the_store_that_it_made_whatever_its_guests_read() {
    let project = Project::new();
    let mut host = host(&project);
    assert!(!is_lockable(&project), "the host has it open");
    // A second name of the database, where guests read.
    let store = project.path().join(".taskrun/taskrun.db");
    std::fs::hard_link(store, project.path().join("docs/b.md")).expect("links");
    let read = json!({ "steps": [
        [{ "call": { "name": "workspace/read", "args": { "path": "docs/b.md" } } }],
        [{ "reply": "read" }],
    ]});
    let ran = project.run(&["run", "reader", &read.to_string(), "--wait"]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "read"), "{ran:?}");
    let events = project.run(&["events", "-o", "json", "--kind", "tool_result"]);
    assert!(!is_lockable(&project), "the host has it open: {events:?}");
    host.kill().expect("killed");
    host.wait().expect("gone");
    assert!(is_lockable(&project), "nobody has it open");
}

#[test]
fn a_host_whose_store_is_replaced_ends_and_says_so() {
    let project = Project::new();
    let host = host(&project);
    let call = json!({ "call": { "name": "scripted/change", "args": { "sleep_ms": 60_000 } } });
    let task = json!({ "steps": [[call], [{ "reply": "done" }]] }).to_string();
    let id = project.run(&["run", "worker", &task, "-d"]).id();
    project.sees(&id, "tool_call_scheduled");
    for name in ["taskrun.db", "taskrun.db-wal", "taskrun.db-shm"] {
        let file = project.path().join(".taskrun").join(name);
        let aside = project.path().join("aside").join(name);
        std::fs::create_dir_all(aside.parent().expect("a folder")).expect("made");
        std::fs::rename(file, aside).expect("moved");
    }
    let found = project.run(&["ps", "-a", "-o", "json"]);
    assert_eq!(found.json()["runs"], json!([]), "another store is there");
    let ended = project.ends(host);
    assert_eq!(ended.code, 10, "{ended:?}");
    assert_eq!(ended.error()["code"], "store-replaced", "{ended:?}");
    assert!(ended.error()["message"].as_str().is_some_and(|text| text.contains("replaced")));
    // What the other one has was left alone.
    assert_eq!(project.run(&["ps", "-a", "-o", "json"]).json()["runs"], json!([]));
}
