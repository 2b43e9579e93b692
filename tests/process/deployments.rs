//! Runs that outlive the policy they were accepted under: the policy and the components change while
//! a run waits for a person, and its host dies.

use serde_json::{Value, json};

use crate::project::Project;

fn question() -> Value {
    let clarification = json!({ "clarification": { "id": "which", "question": "Which quarter?" } });
    json!([{ "plan": { "await": [clarification] } }])
}

/// A run of an agent that asks, and then does this.
fn waits(project: &Project, agent: &str, then: &[Value]) -> String {
    let mut steps = vec![question()];
    steps.extend(then.iter().cloned());
    let id = project.run(&["run", agent, &json!({ "steps": steps }).to_string(), "-d"]).id();
    project.reach(&id, "blocked");
    id
}

fn edit(project: &Project, from: &str, to: &str) {
    let path = project.path().join("taskrun.toml");
    let policy = std::fs::read_to_string(&path).expect("there is one");
    assert!(policy.contains(from), "{policy}");
    std::fs::write(path, policy.replacen(from, to, 1)).expect("written");
}

fn answer(project: &Project, id: &str) -> Value {
    let answered = project.run(&["answer", id, "the third one"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    project.ends_by_itself(id)
}

fn reply() -> Value {
    json!([{ "reply": "thanks" }])
}

fn read(path: &str) -> Value {
    let args = json!({ "path": path });
    json!([{ "call": { "id": "c", "name": "workspace/read", "args": args } }])
}

const READER: &str = "[agent.reader]\ncomponent = \"components/scripted.wasm\"\n\
                      tools = [\"workspace/read\"]\nallow = [\"workspace-read: docs/**\"]\n";

#[test]
fn a_run_that_waits_goes_on_whatever_changes_elsewhere_or_narrows_it() {
    let project = Project::new();
    let changes: [(&str, &str, &str); 6] = [
        ("a comment", "[agent.worker]", "# A comment.\n[agent.worker]"),
        ("another agent", "durable = false\n", ""),
        (
            "another agent is gone",
            "[agent.spinner]\ncomponent = \"components/evil-agent.wasm\"\nlimits = { step = \"10m\" }\n",
            "",
        ),
        ("a limit", "limits = { call = \"60s\" }", "limits = { call = \"50s\", step = \"70s\" }"),
        ("a limit is lifted", "limits = { call = \"50s\", step = \"70s\" }\n", ""),
        ("a member and a tool less", "tools = [\"scripted/*\"]\nmembers = [\"worker\"]\n", ""),
    ];
    for (what, from, to) in changes {
        let id = waits(&project, "worker", &[reply()]);
        project.kill_hosts_and_wait();
        edit(&project, from, to);
        let run = answer(&project, &id);
        assert_eq!(
            (&run["status"], &run["result"]),
            (&json!("completed"), &json!("thanks")),
            "{what}"
        );
    }
}

#[test]
fn a_run_goes_on_with_the_bytes_that_it_was_accepted_with() {
    let project = Project::new();
    let of_agent = waits(&project, "worker", &[reply()]);
    let of_tool = waits(&project, "reader", &[read("docs/a.txt"), reply()]);
    project.write("docs/a.txt", b"one");
    project.kill_hosts_and_wait();
    // Neither is a component any more: a host that read them would load nothing.
    project.write("components/scripted.wasm", b"no component");
    project.write("components/workspace.wasm", b"no component");
    for id in [of_agent, of_tool] {
        let run = answer(&project, &id);
        assert_eq!(
            (&run["status"], &run["result"]),
            (&json!("completed"), &json!("thanks")),
            "{run}"
        );
    }
    let refused = project.run(&["run", "worker", "x", "-d"]);
    assert_eq!(refused.error()["code"], "component-broken", "new runs have the new bytes");
}

#[test]
fn a_run_goes_on_where_no_agent_of_the_policy_can_be_used_any_more() {
    let project = Project::new();
    let only = "[agent.worker]\ncomponent = \"components/scripted.wasm\"\n";
    project.write("taskrun.toml", only.as_bytes());
    let id = waits(&project, "worker", &[reply()]);
    project.kill_hosts_and_wait();
    project.write("components/scripted.wasm", b"no component");
    let run = answer(&project, &id);
    assert_eq!((&run["status"], &run["result"]), (&json!("completed"), &json!("thanks")), "{run}");
    // Without such a run it is an error at once.
    project.end_hosts();
    let host = project.run(&["host", "--idle-exit", "1s"]);
    assert_eq!((host.code, &host.error()["code"]), (2, &json!("component-broken")), "{host:?}");
}

#[test]
fn a_rule_that_is_taken_away_denies_a_run_that_was_accepted_with_it() {
    for dies in [true, false] {
        let project = Project::new();
        project.write("docs/a.txt", b"one");
        let id = waits(&project, "reader", &[read("docs/a.txt"), reply()]);
        if dies {
            project.kill_hosts_and_wait();
        }
        let narrower = READER.replace("docs/**", "other/**");
        edit(&project, READER, &narrower);
        let run = answer(&project, &id);
        assert_eq!(run["status"], "completed", "{run}");
        let events = project.events(&id);
        let result = events.iter().find(|event| event["kind"] == "tool_result").expect("a result");
        let text = result.to_string();
        assert!(text.contains("denied") && !text.contains("one"), "{text}");
    }
}

#[test]
fn a_rule_that_is_given_reaches_only_runs_that_are_accepted_later() {
    let project = Project::new();
    project.write("more/a.txt", b"one");
    let earlier = waits(&project, "reader", &[read("more/a.txt"), reply()]);
    edit(
        &project,
        READER,
        &READER.replace("\"workspace-read: docs/**\"", "\"workspace-read: **\""),
    );
    let later = waits(&project, "reader", &[read("more/a.txt"), reply()]);
    for (id, has) in [(earlier, false), (later, true)] {
        answer(&project, &id);
        let events = project.events(&id);
        let result = events.iter().find(|event| event["kind"] == "tool_result").expect("a result");
        assert_eq!(result.to_string().contains("one"), has, "{result}");
    }
}

#[test]
fn a_run_of_an_agent_that_is_gone_waits_until_it_is_there_again() {
    let project = Project::new();
    let id = waits(&project, "reader", &[reply()]);
    project.kill_hosts_and_wait();
    let path = project.path().join("taskrun.toml");
    let before = std::fs::read_to_string(&path).expect("there is one");
    edit(&project, READER, "[agent.other]\ncomponent = \"components/scripted.wasm\"\n");
    let policy = std::fs::read_to_string(&path).expect("there is one");
    let without = policy.replace(
        "component = \"components/scripted.wasm\"\ndeny = [\"workspace-write: **\"]\n",
        "component = \"components/scripted.wasm\"\n",
    );
    std::fs::write(&path, without).expect("written");
    assert_eq!(project.run(&["answer", &id, "the third one"]).code, 0);
    // The host that lives might take an edit up in the first three seconds.
    let waited = project.run(&["wait", &id, "--timeout", "8s"]);
    assert!(waited.stderr.contains("no host goes on with"), "{waited:?}");
    assert_eq!(project.get(&id)["result"], Value::Null, "{waited:?}");
    let told = project.run(&["doctor"]);
    let text = "reader: not in the policy; 1 open run of it begins nothing";
    assert!((told.stdout.clone() + &told.stderr).contains(text), "{told:?}");
    std::fs::write(&path, before).expect("written");
    project.run(&["wait", &id]);
    assert_eq!(project.get(&id)["result"], "thanks");
}

#[test]
fn a_policy_with_a_mistake_changes_nothing_for_a_living_host() {
    let project = Project::new();
    let id = waits(&project, "worker", &[reply()]);
    let other = waits(&project, "worker", &[reply()]);
    let path = project.path().join("taskrun.toml");
    let before = std::fs::read_to_string(&path).expect("there is one");
    std::fs::write(&path, format!("{before}\nno policy\n")).expect("written");
    // Two looks of the host find it, and it says so once.
    let log = project.path().join(".taskrun/host.log");
    let told = || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        log.matches("cannot be used").count()
    };
    project.until("the host looks at the policy", || told() > 0);
    let answered = project.run(&["answer", &id, "the third one"]);
    assert!(answered.stderr.contains("taskrun.toml") || answered.code == 0, "{answered:?}");
    std::fs::write(&path, &before).expect("written");
    if answered.code != 0 {
        assert_eq!(project.run(&["answer", &id, "the third one"]).code, 0);
    }
    assert_eq!(project.ends_by_itself(&id)["result"], "thanks");
    assert_eq!(answer(&project, &other)["result"], "thanks");
    assert_eq!(told(), 1);
}

#[test]
fn a_byte_that_changed_in_what_is_kept_is_found_before_it_runs() {
    let project = Project::new();
    let id = waits(&project, "worker", &[reply()]);
    project.kill_hosts_and_wait();
    let component = project.path().join("components/scripted.wasm");
    let bytes = std::fs::read(&component).expect("readable");
    let kept = project.path().join(".taskrun/blobs");
    let digest = blake3::hash(&bytes).to_hex();
    let blob = kept.join(&digest[..2]).join(&digest[2..]);
    let mut changed = bytes.clone();
    changed[bytes.len() / 2] ^= 1;
    std::fs::write(&blob, &changed).expect("written");
    // New runs have another component: what is kept is needed by the one that waits alone.
    project.write("components/scripted.wasm", &[bytes.as_slice(), &[0, 2, 1, b'x']].concat());
    assert_eq!(project.run(&["answer", &id, "the third one"]).code, 0);
    project.is_told_why(&id, "what is kept of it is damaged");
    assert_eq!(project.get(&id)["result"], Value::Null);
    let doctor = project.run(&["doctor", "--check"]);
    let name = blob.file_name().expect("a name").display().to_string();
    assert!(doctor.code != 0 && doctor.stdout.contains(&name), "{doctor:?}");
    std::fs::write(&blob, &bytes).expect("written");
    assert_eq!(project.run(&["wait", &id]).code, 0);
    assert_eq!(project.get(&id)["result"], "thanks");
    assert_eq!(project.run(&["doctor", "--check"]).code, 0);
}

#[test]
fn a_byte_that_changed_in_what_is_kept_is_mended_where_the_file_is_as_it_was() {
    let project = Project::new();
    let id = waits(&project, "worker", &[reply()]);
    project.kill_hosts_and_wait();
    let bytes = std::fs::read(project.path().join("components/scripted.wasm")).expect("readable");
    let digest = blake3::hash(&bytes).to_hex();
    let blob = project.path().join(".taskrun/blobs").join(&digest[..2]).join(&digest[2..]);
    let mut changed = bytes.clone();
    changed[bytes.len() / 2] ^= 1;
    std::fs::write(&blob, &changed).expect("written");
    assert_eq!(project.run(&["answer", &id, "the third one"]).code, 0);
    let waited = project.run(&["wait", &id, "--timeout", "60s"]);
    assert_eq!(waited.code, 0, "{waited:?}");
    assert_eq!(project.get(&id)["result"], "thanks");
    assert_eq!(std::fs::read(&blob).expect("readable"), bytes);
}
