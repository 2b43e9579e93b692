//! Commands that start no host: they say why not, where a run needs one.

use serde_json::json;

use crate::project::{Project, Ran};

/// A run that asks something, of which no host lives.
fn asks(project: &Project) -> String {
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let steps = json!([[{ "plan": { "await": [question] } }], [{ "reply": "thanks" }]]);
    let id = project.run(&["run", "worker", &json!({ "steps": steps }).to_string(), "-d"]).id();
    project.reach(&id, "blocked");
    project.kill_hosts_and_wait();
    id
}

#[test]
fn a_mistake_in_the_policy_is_told_by_whoever_would_start_a_host() {
    let project = Project::new();
    let id = asks(&project);
    let policy = std::fs::read_to_string(project.path().join("taskrun.toml")).expect("a policy");
    let line = policy.lines().count() + 3;
    let broken = "[agent.broken]\ncomponent = \"components/scripted.wasm\"\n\
                  limits = { stepp = \"1s\" }\n";
    project.write("taskrun.toml", format!("{policy}{broken}").as_bytes());
    let answered = project.run(&["answer", &id, "this"]);
    let waited = project.run(&["wait", &id, "--timeout", "1s"]);
    assert_eq!((answered.code, waited.code), (0, 124), "{answered:?} {waited:?}");
    let why = format!("no host executes {id}, and no host is started: the policy ");
    let place = format!("taskrun.toml:{line}:12: ");
    for ran in [&answered, &waited] {
        let told = told(ran);
        assert!(told.starts_with(&why) && told.contains(" has 1 problem: "), "{told}");
        assert!(told.contains(&place) && told.contains("stepp"), "{told}");
        assert!(told.contains("`taskrun policy check`"), "{told}");
        assert!(!told.contains("taskrun wait"), "it is the command that was typed: {told}");
    }
    project.write("taskrun.toml", policy.as_bytes());
    let waited = project.run(&["wait", &id]);
    assert_eq!((waited.code, told(&waited)), (0, String::new()), "{waited:?}");
}

#[test]
fn a_policy_that_is_not_trusted_and_one_that_is_not_there_are_told_as_well() {
    let project = Project::new();
    let id = asks(&project);
    std::fs::remove_dir_all(project.path().join("state")).expect("it was trusted");
    let named = |words: &[&str]| project.run(&[&["--data-dir", ".taskrun"][..], words].concat());
    let answered = named(&["answer", &id, "this"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    let said = told(&answered);
    assert!(said.contains("nobody has said that it is to be used; trust it"), "{said}");
    let (file, aside) = (project.path().join("taskrun.toml"), project.path().join("aside.toml"));
    std::fs::rename(&file, &aside).expect("renamed");
    let waited = named(&["wait", &id, "--timeout", "1s"]);
    assert_eq!(waited.code, 124, "{waited:?}");
    let said = told(&waited);
    assert!(said.contains("no host is started: there is no taskrun.toml here or above"), "{said}");
    std::fs::rename(&aside, &file).expect("renamed");
    assert_eq!(project.run(&["--config", "taskrun.toml", "wait", &id]).code, 0);
}

/// The line about a run that no host executes; empty without one.
fn told(ran: &Ran) -> String {
    let line = ran.stderr.lines().find(|line| line.contains("no host executes"));
    line.unwrap_or_default().to_owned()
}
