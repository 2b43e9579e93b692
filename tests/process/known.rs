//! Runs of agents whose components were loaded before: accepted without an engine.

use serde_json::Value;

use crate::project::{Project, Ran};

const REPLY: &str = r#"{"steps":[[{"reply":"done"}]]}"#;
/// The words of an engine that was started, in the log of a terminal that is asked for more.
const ENGINE: &str = "engine ready";

fn queue(project: &Project, agent: &str, more: &[&str]) -> Ran {
    project.run(&[&["-v", "run", agent, REPLY, "-d"], more].concat())
}

/// A run that ends: whoever loaded the agent for it has described its components.
fn describe(project: &Project, agent: &str) -> Ran {
    let ran = queue(project, agent, &[]);
    project.ends_by_itself(&ran.id());
    ran
}

/// The refusal of an agent by a terminal that loads it.
fn refusal(project: &Project, agent: &str) -> Value {
    let checked = project.run(&["agent", "check", agent, "-o", "json"]);
    checked.json()["agents"][0]["error"].clone()
}

fn without_report(ran: &Ran) -> Value {
    let error = ran.error();
    serde_json::json!({ "code": error["code"], "message": error["message"], "hint": error["hint"] })
}

/// Replaces a piece of the policy.
fn edit(project: &Project, from: &str, to: &str) {
    let path = project.path().join("taskrun.toml");
    let policy = std::fs::read_to_string(&path).expect("there is one");
    assert!(policy.contains(from), "{policy}");
    std::fs::write(path, policy.replace(from, to)).expect("written");
}

#[test]
fn a_run_of_known_components_opens_no_engine() {
    let project = Project::new();
    let first = describe(&project, "worker");
    assert!(first.stderr.contains(ENGINE), "{first:?}");
    for more in [&[][..], &["--budget", "turns=3"], &["--only-tool", "scripted/change"]] {
        let ran = queue(&project, "worker", more);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(!ran.stderr.contains(ENGINE), "{ran:?}");
        assert_eq!(project.reach(&ran.id(), "completed")["result"], "done");
    }
    let wrong = queue(&project, "worker", &["--only-tool", "scripted/nothing"]);
    assert!(!wrong.stderr.contains(ENGINE), "{wrong:?}");
    assert!(wrong.stderr.contains("is no function that agent worker may call here"), "{wrong:?}");
    let other = describe(&project, "readonly_researcher");
    assert!(other.stderr.contains(ENGINE), "not all of its components are known: {other:?}");
    assert!(!queue(&project, "readonly_researcher", &[]).stderr.contains(ENGINE));
}

#[test]
fn an_agent_of_known_components_is_refused_as_one_that_is_loaded() {
    let project = Project::new();
    describe(&project, "reader");
    for (from, to, code) in [
        ("tools = [\"workspace/read\"]", "tools = [\"workspace/nothing\"]", 2),
        (
            "tools = [\"workspace/nothing\"]\nallow = [\"workspace-read: docs/**\"]\n",
            "tools = [\"workspace/read\"]\n",
            4,
        ),
    ] {
        edit(&project, from, to);
        let ran = queue(&project, "reader", &[]);
        assert!(!ran.stderr.contains(ENGINE), "{ran:?}");
        assert_eq!(ran.code, code, "{ran:?}");
        assert_eq!(without_report(&ran), refusal(&project, "reader"));
        is_said_once(&ran);
    }
    // The last of them is one of the tool as well.
    let args = ["tool", "call", "workspace/read", "{}", "--agent", "reader"];
    is_said_once(&project.run(&args));
}

/// A refusal is a few lines for people, each of which says something else, and one for programs.
fn is_said_once(ran: &Ran) {
    let lines: Vec<&str> = ran.stderr.lines().filter(|line| !line.starts_with('{')).collect();
    let distinct: std::collections::BTreeSet<_> = lines.iter().collect();
    assert!((2..=8).contains(&lines.len()) && distinct.len() == lines.len(), "{ran:?}");
    let objects = ran.stderr.lines().filter(|line| line.starts_with('{'));
    assert_eq!(objects.count(), 1, "{ran:?}");
    for words in ["does not load", "components/"] {
        let told = lines.iter().filter(|line| line.contains(words));
        assert!(told.count() <= 1, "{words:?}: {ran:?}");
    }
}

#[test]
fn a_component_that_changed_is_loaded_again_and_refused_where_it_does_not() {
    let project = Project::new();
    describe(&project, "worker");
    let component = project.path().join("components/scripted.wasm");
    let mut bytes = std::fs::read(&component).expect("it is there");
    // A section of no meaning at the end: the same component, with other bytes.
    bytes.extend([0, 2, 1, b'x']);
    project.write("components/scripted.wasm", &bytes);
    let ran = queue(&project, "worker", &[]);
    assert!(ran.code == 0 && ran.stderr.contains(ENGINE), "{ran:?}");
    assert_eq!(project.reach(&ran.id(), "completed")["result"], "done");
    project.write("components/scripted.wasm", b"no component");
    let ran = queue(&project, "worker", &[]);
    assert_eq!((ran.code, &ran.error()["code"]), (2, &"component-broken".into()), "{ran:?}");
    assert_eq!(without_report(&ran), refusal(&project, "worker"));
}

#[test]
fn a_description_that_was_changed_counts_as_none() {
    let project = Project::new();
    describe(&project, "worker");
    let native = project.path().join(".taskrun/native");
    let mut changed = 0;
    for entry in std::fs::read_dir(native).expect("native code is kept") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|extension| extension == "described") {
            let mut bytes = std::fs::read(&path).expect("readable");
            *bytes.last_mut().expect("it is not empty") ^= 1;
            std::fs::write(&path, bytes).expect("written");
            changed += 1;
        }
    }
    assert!(changed > 0);
    let ran = describe(&project, "worker");
    assert!(ran.stderr.contains(ENGINE), "{ran:?}");
    assert!(!queue(&project, "worker", &[]).stderr.contains(ENGINE), "it is described again");
}

#[test]
fn what_only_its_host_finds_out_ends_the_run_with_the_words_of_a_refusal() {
    let project = Project::new();
    describe(&project, "reader");
    // A description does not say with how much memory a tool begins.
    let tools = "tools = [\"workspace/read\"]\n";
    edit(&project, tools, &format!("{tools}limits = {{ memory = \"64KiB\" }}\n"));
    let ran = queue(&project, "reader", &[]);
    assert!(ran.code == 0 && !ran.stderr.contains(ENGINE), "{ran:?}");
    let run = project.ends_by_itself(&ran.id());
    let refused = refusal(&project, "reader");
    assert_eq!((&run["status"], &run["error"]), (&"failed".into(), &refused["message"]));
}
