//! Runs that are given their agent as it is now, by a person or as the policy says.

use serde_json::{Value, json};

use crate::kept::{GC, components, grow_old};
use crate::project::Project;

/// Two agents of one component, of which the first reads what it is let.
const POLICY: &str = "\
[tool.workspace]
component = \"components/workspace.wasm\"

[agent.subject]
component = \"components/own.wasm\"
tools = [\"workspace/read\"]
allow = [\"workspace-read: docs/**\"]
deny = [\"workspace-write: **\"]

[agent.busy]
component = \"components/evil-agent.wasm\"
limits = { step = \"10m\" }
";

fn project() -> Project {
    let project = Project::new();
    project.write("components/own.wasm", &component(&project, b"1"));
    project.write("more/a.txt", b"one");
    project.write("taskrun.toml", POLICY.as_bytes());
    project
}

/// A component that does the same as another one and has other bytes.
fn component(project: &Project, name: &[u8]) -> Vec<u8> {
    let scripted = std::fs::read(project.path().join("components/scripted.wasm"));
    [scripted.expect("readable").as_slice(), &[0, 2, 1], name].concat()
}

/// A run that asks, reads a file that it may not read, and thanks.
fn waits(project: &Project) -> String {
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let read = json!({ "id": "c", "name": "workspace/read", "args": { "path": "more/a.txt" } });
    let steps = json!([
        [{ "plan": { "await": [question] } }], [{ "call": read }], [{ "reply": "thanks" }]
    ]);
    let task = json!({ "steps": steps }).to_string();
    let id = project.run(&["run", "subject", &task, "-d"]).id();
    project.reach(&id, "blocked");
    id
}

fn answer(project: &Project, id: &str) -> Value {
    let answered = project.run(&["answer", id, "the third one"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    project.ends_by_itself(id)
}

/// Changes the agent's component, and gives it a right.
fn change(project: &Project) {
    project.write("components/own.wasm", &component(project, b"2"));
    project.write("taskrun.toml", POLICY.replace("docs/**", "**").as_bytes());
}

fn read_to(project: &Project, id: &str) -> String {
    let events = project.events(id);
    let result = events.iter().find(|event| event["kind"] == "tool_result").expect("a result");
    result.to_string()
}

fn of_kind(project: &Project, id: &str, kind: &str) -> Vec<Value> {
    project.events(id).into_iter().filter(|event| event["kind"] == kind).collect()
}

#[test]
fn an_adopted_run_has_the_component_and_the_rules_of_now_whichever_host_dies() {
    let project = project();
    let (adopted, pinned) = (waits(&project), waits(&project));
    project.kill_hosts_and_wait();
    change(&project);
    let told = project.run(&["adopt", &adopted, "-o", "json"]);
    assert_eq!(told.code, 0, "{told:?}");
    let run = &told.json()["runs"][0];
    let (from, to) = (run["from"].as_str().expect("a pin"), run["pin"].as_str().expect("a pin"));
    assert!(from.starts_with("subject@blake3:") && to.starts_with("subject@blake3:"), "{run}");
    assert_ne!(from, to);
    assert_eq!((&run["changed"], &run["status"]), (&json!(true), &json!("blocked")), "{run}");
    let again = project.run(&["adopt", &adopted, "-o", "json"]).json();
    assert_eq!(again["runs"][0]["changed"], false, "{again}");
    assert_eq!(again["runs"][0]["pin"], to, "{again}");
    let explained = ["policy", "explain", "--cap", "workspace-read", "--arg", "path=more/a.txt"];
    let explain = |id| project.run(&[&explained[..], &["--run", id]].concat());
    assert_eq!(explain(&adopted).code, 0, "{:?}", explain(&adopted));
    assert_ne!(explain(&pinned).code, 0, "{:?}", explain(&pinned));
    project.kill_hosts();
    for (id, is_read) in [(&adopted, true), (&pinned, false)] {
        let run = answer(&project, id);
        assert_eq!((&run["status"], &run["result"]), (&json!("completed"), &json!("thanks")));
        assert_eq!(read_to(&project, id).contains("one"), is_read, "{}", read_to(&project, id));
        assert_eq!(of_kind(&project, id, "replay_diverged"), [] as [Value; 0]);
    }
    let events = of_kind(&project, &adopted, "adopted");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!((&events[0]["from"], &events[0]["to"]), (&json!(from), &json!(to)), "{events:?}");
    assert_eq!(events[0]["by"], "local", "{events:?}");
    assert_eq!(of_kind(&project, &adopted, "rules_changed"), [] as [Value; 0]);
    let versions = project.run(&["agent", "versions", "subject", "-o", "json"]).json();
    let runs = |pin: &str| {
        let versions = versions["versions"].as_array().expect("versions");
        let version = versions.iter().find(|version| version["pin"] == pin);
        version.map(|version| version["runs"].clone())
    };
    assert_eq!((runs(from), runs(to)), (Some(json!(1)), Some(json!(1))), "{versions}");
}

#[test]
fn what_an_adopted_run_does_not_need_any_more_is_removed() {
    let project = project();
    let id = waits(&project);
    let before = component(&project, b"1");
    change(&project);
    project.end_hosts();
    let kept = |bytes: &[u8]| {
        let mut all = components(&project).into_iter();
        all.any(|path| std::fs::read(path).expect("readable") == bytes)
    };
    grow_old(&project);
    project.run(&GC);
    assert!(kept(&before), "an open run needs it");
    assert_eq!(project.run(&["adopt", &id]).code, 0);
    grow_old(&project);
    project.run(&GC);
    assert!(!kept(&before) && kept(&component(&project, b"2")));
    assert_eq!(answer(&project, &id)["result"], "thanks");
    assert!(read_to(&project, &id).contains("one"));
}

#[test]
fn all_open_runs_of_an_agent_are_adopted_but_for_those_that_are_under_way() {
    let project = project();
    let waiting = [waits(&project), waits(&project)];
    change(&project);
    let told = project.run(&["adopt", "--agent", "subject", "-o", "json"]).json();
    let adopted = told["runs"].as_array().expect("runs");
    assert_eq!(adopted.len(), 2, "{told}");
    assert!(adopted.iter().all(|run| run["changed"] == true), "{told}");
    for id in &waiting {
        assert_eq!(answer(&project, id)["result"], "thanks");
        assert!(read_to(&project, id).contains("one"));
    }
    let busy = project.run(&["run", "busy", "spin", "-d"]).id();
    project.reach(&busy, "running");
    let told = project.run(&["adopt", "--agent", "busy", "-o", "json"]);
    assert_eq!(told.code, 0, "{told:?}");
    assert_eq!(told.json()["under_way"], json!([busy]), "{told:?}");
    assert!(told.stderr.contains("1 run under way"), "{told:?}");
    let refused = project.run(&["adopt", &busy]);
    assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("under-way")), "{refused:?}");
    assert!(refused.stderr.contains("taskrun pause"), "{refused:?}");
    assert_eq!(project.run(&["cancel", &busy]).code, 0);
    let refused = project.run(&["adopt", &waiting[0]]);
    assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("run-ended")), "{refused:?}");
    assert_eq!(project.run(&["adopt"]).code, 2);
    assert_eq!(project.run(&["adopt", "--agent", "busy", &busy]).code, 2);
}

#[test]
fn a_run_whose_component_is_lost_goes_on_when_it_is_adopted() {
    let project = project();
    let id = waits(&project);
    project.kill_hosts_and_wait();
    let before = component(&project, b"1");
    change(&project);
    for path in components(&project) {
        if std::fs::read(&path).expect("readable") == before {
            std::fs::remove_file(path).expect("removed");
        }
    }
    assert_eq!(project.run(&["answer", &id, "the third one"]).code, 0);
    project.is_told_why(&id, "what is kept of it cannot be read");
    assert_eq!(project.run(&["adopt", &id]).code, 0);
    assert_eq!(project.ends_by_itself(&id)["result"], "thanks");
}

#[test]
fn a_run_of_an_agent_that_cannot_be_used_stays_as_it_is() {
    let project = project();
    let id = waits(&project);
    std::fs::remove_file(project.path().join("components/own.wasm")).expect("removed");
    let refused = project.run(&["adopt", &id]);
    assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("agent-files")), "{refused:?}");
    project.write("taskrun.toml", POLICY.replace("agent.subject", "agent.other").as_bytes());
    project.write("components/own.wasm", &component(&project, b"1"));
    let refused = project.run(&["adopt", &id]);
    assert_eq!(
        (refused.code, &refused.error()["code"]),
        (2, &json!("unknown-agent")),
        "{refused:?}"
    );
    project.write("taskrun.toml", POLICY.as_bytes());
    assert_eq!(of_kind(&project, &id, "adopted"), [] as [Value; 0]);
    assert_eq!(answer(&project, &id)["result"], "thanks");
}

#[test]
fn a_host_adopts_the_runs_that_it_takes_up_where_the_policy_says_so() {
    let project = project();
    let (waiting, paused) = (waits(&project), waits(&project));
    assert_eq!(project.run(&["pause", &paused]).code, 0);
    project.kill_hosts_and_wait();
    change(&project);
    let policy = POLICY.replace("docs/**", "**");
    let policy = policy.replace("[agent.subject]\n", "[agent.subject]\nupgrade = \"adopt\"\n");
    project.write("taskrun.toml", policy.as_bytes());
    let shown = project.run(&["agent", "show", "subject", "-o", "json"]).json();
    assert_eq!(shown["upgrade"], "adopt", "{shown}");
    assert_eq!(project.run(&["resume", &paused]).code, 0);
    for id in [&waiting, &paused] {
        assert_eq!(answer(&project, id)["result"], "thanks");
        assert!(read_to(&project, id).contains("one"), "{}", read_to(&project, id));
        let events = of_kind(&project, id, "adopted");
        assert_eq!((events.len(), &events[0]["by"]), (1, &json!("host")), "{events:?}");
    }
    assert_eq!(project.run(&["agent", "show", "busy", "-o", "json"]).json().get("upgrade"), None);
}

#[test]
fn get_says_of_an_open_run_that_its_agent_has_changed_since() {
    let project = project();
    let id = waits(&project);
    let get = || project.run(&["get", &id, "-o", "json"]).json();
    assert_eq!(get().get("agent_change"), None);
    change(&project);
    let told = get()["agent_change"].clone();
    assert_eq!(told["parts"], json!(["allow", "component"]), "{told}");
    assert_ne!(told["pin"], told["now"], "{told}");
    let text = project.run(&["get", &id]).stderr;
    assert!(text.contains("agent subject has changed (allow, component)"), "{text}");
    assert!(text.contains(&format!("taskrun adopt {id}")), "{text}");
    std::fs::remove_file(project.path().join("components/own.wasm")).expect("removed");
    let text = project.run(&["get", &id]).stderr;
    assert!(text.contains("a file of agent subject is missing"), "{text}");
    project.write("components/own.wasm", &component(&project, b"2"));
    let policy =
        std::fs::read_to_string(project.path().join("taskrun.toml")).expect("there is one");
    project.write("taskrun.toml", policy.replace("agent.subject", "agent.other").as_bytes());
    // A host that lives has it until it has taken the edit up.
    project.until("the agent is gone", || {
        project.run(&["get", &id]).stderr.contains("the policy has no agent subject")
    });
    assert_eq!(get()["agent_change"].get("now"), None);
    project.write("taskrun.toml", policy.as_bytes());
    assert_eq!(project.run(&["adopt", &id]).code, 0);
    assert_eq!(get().get("agent_change"), None);
}

#[test]
fn get_says_of_a_run_that_its_host_adopts_that_it_does() {
    let project = project();
    let id = waits(&project);
    change(&project);
    let told = || {
        let change = project.run(&["get", &id, "-o", "json"]).json()["agent_change"].clone();
        (change.get("upgrade").cloned(), project.run(&["get", &id]).stderr)
    };
    let keeps = "the run has its form of before, within the rules of both";
    let adopts = "the run is adopted when it goes on";
    let (upgrade, text) = told();
    assert!(upgrade.is_none() && text.contains(keeps) && !text.contains(adopts), "{text}");
    let policy = POLICY.replace("docs/**", "**");
    let policy = policy.replace("[agent.subject]\n", "[agent.subject]\nupgrade = \"adopt\"\n");
    project.write("taskrun.toml", policy.as_bytes());
    let (upgrade, text) = told();
    assert_eq!(upgrade, Some(json!("adopt")));
    assert!(text.contains(adopts) && !text.contains(keeps), "{text}");
    // A form that does not load is given to no run.
    project.write("components/own.wasm", b"no component");
    let (upgrade, text) = told();
    assert!(upgrade.is_none() && text.contains(keeps) && !text.contains(adopts), "{text}");
    project.write("components/own.wasm", &component(&project, b"2"));
    assert_eq!(answer(&project, &id)["result"], "thanks");
}
