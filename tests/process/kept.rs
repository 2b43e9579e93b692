//! Parts that are kept for runs, removed once none needs it any more.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::between::{component, project, says, version};
use crate::project::Project;

/// Removes all that nobody has wanted for an hour.
pub(super) const GC: [&str; 7] =
    ["gc", "--older-than", "0s", "--components-older-than", "1h", "-o", "json"];

pub(super) fn components(project: &Project) -> Vec<PathBuf> {
    let blobs = project.path().join(".taskrun/blobs");
    let folders = std::fs::read_dir(blobs).expect("a folder").map(|entry| entry.expect("read"));
    let folders = folders.filter(|folder| folder.file_name().len() == 2);
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.path()).expect("a folder"));
    files.map(|file| file.expect("read").path()).collect()
}

/// As if hours had passed since anybody wanted what is kept.
pub(super) fn grow_old(project: &Project) {
    let pins = std::fs::read_dir(project.path().join(".taskrun/blobs/pins")).expect("a folder");
    let pins = pins.map(|entry| entry.expect("read").path());
    for path in components(project).into_iter().chain(pins) {
        let file = std::fs::File::options().write(true).open(path).expect("opens");
        let modified = file.metadata().and_then(|meta| meta.modified()).expect("a time");
        file.set_modified(modified - Duration::from_secs(5 * 60 * 60)).expect("set");
    }
}

/// The names of the files of native code, and of what is known of components beside it.
fn native(project: &Project) -> Vec<String> {
    let entries = std::fs::read_dir(project.path().join(".taskrun/native")).expect("a folder");
    let names = entries.map(|entry| entry.expect("read").file_name().into_string());
    let mut names: Vec<_> = names.map(|name| name.expect("a text")).collect();
    names.sort();
    names
}

/// As if hours had passed since anybody loaded native code.
fn native_grows_old(project: &Project) {
    for name in native(project).into_iter().filter(|name| name != "key") {
        let path = project.path().join(".taskrun/native").join(name);
        // Under another name it may be another test's, too, which makes it young.
        let bytes = std::fs::read(&path).expect("read");
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, bytes).expect("written");
        let file = std::fs::File::options().write(true).open(&path).expect("opens");
        let modified = file.metadata().and_then(|meta| meta.modified()).expect("a time");
        file.set_modified(modified - Duration::from_secs(5 * 60 * 60)).expect("set");
    }
}

fn counts(removed: &Value) -> [&Value; 3] {
    [&removed["runs"], &removed["components"]["count"], &removed["policies"]["count"]]
}

#[test]
fn gc_leaves_what_an_open_run_needs_and_the_run_goes_on_from_it() {
    let project = Project::new();
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let steps =
        json!({ "steps": [[{ "plan": { "await": [question] } }], [{ "reply": "thanks" }]] });
    let waits = project.run(&["run", "worker", &steps.to_string(), "-d"]).id();
    project.reach(&waits, "blocked");
    let ended = project.run(&["run", "readonly_researcher", "cellar", "-d"]).id();
    assert_eq!(project.run(&["wait", &ended]).code, 0);
    project.kill_hosts_and_wait();
    let only = "[agent.worker]\ncomponent = \"components/scripted.wasm\"\n";
    project.write("taskrun.toml", only.as_bytes());
    for name in ["scripted", "scripted-tool", "researcher", "workspace"] {
        project.write(&format!("components/{name}.wasm"), b"no component");
    }
    grow_old(&project);
    let before = components(&project).len();
    let would = project.run(&[&GC[..], &["--dry-run"]].concat()).json();
    assert_eq!(components(&project).len(), before, "nothing is removed");
    let removed = project.run(&GC).json();
    // The components of the researcher, of its tool and of the spinner; the policy that the
    // researcher's run was accepted under, as no run of another agent was.
    assert_eq!(counts(&removed), [&json!(1), &json!(3), &json!(1)], "{removed}");
    // What the researcher needs stays as long as its run.
    assert_eq!(counts(&would), [&json!(1), &json!(1), &json!(0)], "{would}");
    assert_eq!(components(&project).len(), before - 3);
    let again = project.run(&GC).json();
    assert_eq!(counts(&again), [&json!(0), &json!(0), &json!(0)], "{again}");
    assert_eq!(project.run(&["answer", &waits, "the third one"]).code, 0);
    let run = project.ends_by_itself(&waits);
    assert_eq!((&run["status"], &run["result"]), (&json!("completed"), &json!("thanks")), "{run}");
    project.end_hosts();
    grow_old(&project);
    project.run(&GC);
    let text = project.run(&["gc"]).stdout;
    assert!(
        text.starts_with("removed 0 runs, ") && text.contains("removed 0 components, "),
        "{text}"
    );
    // The policy names what is no component, and a host may have kept it all the same.
    let mut left = components(&project).into_iter().map(|path| std::fs::read(path).expect("read"));
    assert!(left.all(|bytes| bytes == b"no component"), "no run needs any of the others");
}

#[test]
fn gc_removes_nothing_where_it_is_not_known_what_an_open_run_needs() {
    let project = Project::new();
    let block = json!({ "steps": [["block"]] }).to_string();
    let id = project.run(&["run", "worker", &block, "-d"]).id();
    project.reach(&id, "running");
    grow_old(&project);
    let before = components(&project).len();
    let pins = project.path().join(".taskrun/blobs/pins");
    for entry in std::fs::read_dir(pins).expect("a folder") {
        std::fs::write(entry.expect("read").path(), "{}").expect("written");
    }
    let refused = project.run(&GC);
    assert_eq!(
        (refused.code, &refused.error()["code"]),
        (1, &json!("components-kept")),
        "{refused:?}"
    );
    assert!(refused.stderr.contains("worker@blake3:"), "{refused:?}");
    assert_eq!(
        counts(&refused.json())[1],
        &json!(0),
        "what became of the runs is told all the same"
    );
    assert_eq!(components(&project).len(), before);
    assert_eq!(project.run(&["cancel", &id]).code, 0);
}

#[test]
fn a_host_keeps_a_component_anew_that_was_removed_under_it() {
    let project = Project::new();
    let boss = "[agent.boss]\ncomponent = \"components/scripted.wasm\"\n\
                tools = [\"agent/child\"]\n\
                [agent.child]\ncomponent = \"components/scripted.wasm\"\n";
    project.write("taskrun.toml", boss.as_bytes());
    let reply = json!({ "steps": [[{ "reply": "done" }]] }).to_string();
    let call = json!({ "call": { "id": "c", "name": "agent/child", "args": { "task": reply } } });
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let then = json!([[{ "plan": { "await": [question] } }], [call], [{ "reply": "thanks" }]]);
    let id = project.run(&["run", "boss", &json!({ "steps": then }).to_string(), "-d"]).id();
    project.reach(&id, "blocked");
    for path in components(&project) {
        std::fs::remove_file(path).expect("removed");
    }
    assert_eq!(project.run(&["answer", &id, "the third one"]).code, 0);
    let run = project.ends_by_itself(&id);
    assert_eq!((&run["status"], &run["result"]), (&json!("completed"), &json!("thanks")), "{run}");
    assert_ne!(components(&project).len(), 0);
}

#[test]
fn components_stay_for_as_long_as_the_policy_says() {
    let project = Project::new();
    let id = project.run(&["run", "readonly_researcher", "cellar", "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    project.end_hosts();
    let only = "[agent.worker]\ncomponent = \"components/scripted.wasm\"\n";
    let before = components(&project).len();
    grow_old(&project);
    // What nobody has wanted for five hours.
    for (kept, is_left) in [("6h", true), ("4h", false)] {
        let policy = format!("[retention]\ncomponents = \"{kept}\"\n{only}");
        project.write("taskrun.toml", policy.as_bytes());
        assert_eq!(project.run(&["gc", "--older-than", "0s"]).code, 0);
        assert_eq!(components(&project).len() == before, is_left, "{kept}");
    }
}

#[test]
fn native_code_of_versions_before_goes_and_that_of_the_one_in_use_stays() {
    let project = project();
    for number in [2, 3] {
        version(&project, number);
        let ran = project.run(&["run", "worker", &says("done"), "--wait"]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    project.end_hosts();
    grow_old(&project);
    native_grows_old(&project);
    let before = native(&project);
    let digests = [1, 2, 3].map(|number| blake3::hash(&component(number)).to_hex().to_string());
    let is_compiled = |names: &[String], digest: &str| {
        names.iter().any(|name| name.starts_with(digest) && name.ends_with(".native"))
    };
    assert!(digests.iter().all(|digest| is_compiled(&before, digest)), "{before:?}");
    let would = project.run(&[&GC[..], &["--dry-run"]].concat());
    assert_eq!((would.code, native(&project)), (0, before.clone()), "{would:?}");
    let removed = project.run(&GC).json();
    let left = native(&project);
    assert!(left.iter().all(|name| name == "key" || name.starts_with(&digests[2])), "{left:?}");
    assert!(is_compiled(&left, &digests[2]), "{left:?}");
    assert_eq!(removed["native"]["count"], json!(before.len() - left.len()), "{removed}");
    assert_ne!(removed["native"]["bytes"], json!(0), "{removed}");
    let text = project.run(&["gc"]).stdout;
    assert!(text.contains("removed 0 files of native code, "), "{text}");
    let ran = project.run(&["run", "worker", &says("later"), "--wait"]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "later"), "{ran:?}");
}
