//! Files and folders of agents that are gone: each stands in the way of its own agent alone, and the
//! runs that were accepted with it go on with what is kept.

use serde_json::{Value, json};

use crate::project::{Project, Ran};

/// Two agents beside each other; of the first something will be missing.
const POLICY: &str = "\
[workspace]
root = \"work\"

[tool.workspace]
component = \"components/workspace.wasm\"

[agent.subject]
component = \"components/own.wasm\"
tools = [\"workspace/read\"]
workspace = \"own\"
allow = [\"workspace-read: **\"]
deny = [\"workspace-write: **\"]

[agent.other]
component = \"components/scripted.wasm\"
tools = [\"agent/subject\"]
";

fn project() -> Project {
    let project = Project::new();
    let scripted = std::fs::read(project.path().join("components/scripted.wasm"));
    project.write("components/own.wasm", &scripted.expect("readable"));
    project.write("work/own/a.txt", b"one");
    project.write("taskrun.toml", POLICY.as_bytes());
    project
}

fn waits(project: &Project, agent: &str, then: Value) -> String {
    let clarification = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let steps = json!([[{ "plan": { "await": [clarification] } }], then, [{ "reply": "thanks" }]]);
    let task = json!({ "steps": steps }).to_string();
    let id = project.run(&["run", agent, &task, "-d"]).id();
    project.reach(&id, "blocked");
    id
}

fn answer(project: &Project, id: &str) -> Value {
    let answered = project.run(&["answer", id, "the third one"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    project.ends_by_itself(id)
}

fn read() -> Value {
    let call = json!({ "id": "c", "name": "workspace/read", "args": { "path": "a.txt" } });
    json!([{ "call": call }])
}

fn remove(project: &Project, path: &str) {
    std::fs::remove_file(project.path().join(path)).expect("removed");
}

/// Each is refused with the place at which the policy names the file.
fn is_refused(ran: &Ran, code: &str, place: &str, hint: &str) {
    let error = ran.error();
    assert_eq!((ran.code, &error["code"]), (2, &json!(code)), "{ran:?}");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains(place) && message.contains("No such file"), "{error}");
    assert!(error["hint"].as_str().is_some_and(|told| told.contains(hint)), "{error}");
}

#[test]
fn runs_of_an_agent_whose_components_are_gone_go_on_with_what_is_kept_of_them() {
    for dies in [true, false] {
        let project = project();
        let of_subject = waits(&project, "subject", read());
        let of_other = waits(&project, "other", json!([{ "reply": "thanks" }]));
        if dies {
            project.kill_hosts_and_wait();
        }
        remove(&project, "components/own.wasm");
        remove(&project, "components/workspace.wasm");
        for id in [&of_subject, &of_other] {
            let run = answer(&project, id);
            assert_eq!(
                (&run["status"], &run["result"]),
                (&json!("completed"), &json!("thanks")),
                "{dies}: {run}"
            );
        }
        assert!(project.events(&of_subject).iter().any(|event| event.to_string().contains("one")));
    }
}

#[test]
fn an_agent_without_its_component_is_refused_and_the_others_are_not() {
    let project = project();
    remove(&project, "components/own.wasm");
    let done = json!({ "steps": [[{ "reply": "done" }]] }).to_string();
    let refused = project.run(&["run", "subject", &done, "-d"]);
    is_refused(&refused, "agent-files", "taskrun.toml:8:13", "build the component");
    let ran = project.run(&["run", "other", &done, "--wait"]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "done"), "{ran:?}");
    // Nor does a living host start runs of it.
    let call = json!({ "id": "c", "name": "agent/subject", "args": { "task": "x" } });
    let task = json!({ "steps": [[{ "call": call }], [{ "reply": "did" }]] }).to_string();
    let id = project.run(&["run", "other", &task, "-d"]).id();
    assert_eq!(project.ends_by_itself(&id)["result"], "did");
    let events = project.events(&id);
    let result = events.iter().find(|event| event["kind"] == "tool_result").expect("a result");
    assert!(result.to_string().contains("subject"), "{result}");
    assert_eq!(project.run(&["ps", "-a", "-o", "name"]).stdout.lines().count(), 2);

    let shown = project.run(&["agent", "show", "subject"]);
    is_refused(&shown, "agent-files", "taskrun.toml:8:13", "build the component");
    assert_eq!(project.run(&["agent", "show", "other"]).code, 0);
    let checked = project.run(&["agent", "check", "-o", "json"]);
    let agents = checked.json()["agents"].clone();
    assert_eq!((&agents[0]["ok"], &agents[1]["ok"]), (&json!(true), &json!(false)), "{agents}");
    assert!(agents[1]["error"].to_string().contains("taskrun.toml:8:13"), "{agents}");
    let checked = project.run(&["policy", "check"]);
    is_refused(&checked, "policy-invalid", "taskrun.toml:8:13", "");
    let doctor = project.run(&["doctor"]);
    assert!(doctor.code != 0 && doctor.stdout.contains("taskrun.toml:8:13"), "{doctor:?}");
    assert!(doctor.stdout.contains("under this policy"), "{doctor:?}");

    // It is there again.
    let scripted = std::fs::read(project.path().join("components/scripted.wasm"));
    project.write("components/own.wasm", &scripted.expect("readable"));
    let ran = project.run(&["run", "subject", &done, "--wait"]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "done"), "{ran:?}");
}

#[test]
fn an_agent_without_its_folder_is_refused_and_its_runs_wait_for_it() {
    let project = project();
    let id = waits(&project, "subject", read());
    project.kill_hosts_and_wait();
    let (folder, away) = (project.path().join("work/own"), project.path().join("away"));
    std::fs::rename(&folder, &away).expect("moved");
    let done = json!({ "steps": [[{ "reply": "done" }]] }).to_string();
    let refused = project.run(&["run", "subject", &done, "-d"]);
    is_refused(&refused, "agent-files", "taskrun.toml:10:13", "make the folder");
    assert_eq!(project.run(&["answer", &id, "the third one"]).code, 0);
    let ran = project.run(&["run", "other", &done, "--wait"]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "done"), "{ran:?}");
    project.is_told_why(&id, "cannot open the workspace");
    assert_eq!(project.get(&id)["result"], Value::Null);
    std::fs::rename(&away, &folder).expect("moved back");
    // A host that found nothing to execute meanwhile has ended; a wait starts one.
    assert_eq!(project.run(&["wait", &id]).code, 0);
    assert_eq!(project.get(&id)["result"], "thanks");
    let events = project.events(&id);
    let result = events.iter().find(|event| event["kind"] == "tool_result").expect("a result");
    assert!(result.to_string().contains("one"), "{result}");
}

#[test]
fn a_folder_that_a_link_leads_out_of_the_root_is_no_folder_of_an_agent() {
    let project = project();
    let (folder, away) = (project.path().join("work/own"), project.path().join("away"));
    std::fs::rename(&folder, &away).expect("moved");
    std::os::unix::fs::symlink(&away, &folder).expect("linked");
    let done = json!({ "steps": [[{ "reply": "done" }]] }).to_string();
    let refused = project.run(&["run", "subject", &done, "-d"]);
    assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("agent-files")), "{refused:?}");
    assert!(refused.stderr.contains("leads out of the workspace's root"), "{refused:?}");
    assert_eq!(project.run(&["run", "other", &done, "--wait"]).code, 0);
}

#[test]
fn a_link_out_of_the_root_in_the_place_of_a_folder_is_used_by_no_run_and_no_call() {
    let project = project();
    let id = waits(&project, "subject", read());
    project.kill_hosts_and_wait();
    let (folder, away) = (project.path().join("work/own"), project.path().join("away"));
    let outside = project.path().join("outside");
    std::fs::rename(&folder, &away).expect("moved");
    project.write("outside/a.txt", b"not for agents");
    std::os::unix::fs::symlink(&outside, &folder).expect("linked");
    let path = json!({ "path": "a.txt" }).to_string();
    let called = ["tool", "call", "workspace/read", &path, "--agent", "subject"];
    let refused = project.run(&called);
    assert!(refused.code != 0 && refused.error()["code"] == "workspace", "{refused:?}");
    assert!(!refused.stdout.contains("not for agents"), "{refused:?}");
    assert_eq!(project.run(&["answer", &id, "the third one"]).code, 0);
    let done = json!({ "steps": [[{ "reply": "done" }]] }).to_string();
    assert_eq!(project.run(&["run", "other", &done, "--wait"]).code, 0);
    project.is_told_why(&id, "cannot open the workspace");
    assert_eq!(project.get(&id)["result"], Value::Null);
    std::fs::remove_file(&folder).expect("removed");
    std::fs::rename(&away, &folder).expect("moved back");
    assert_eq!(project.run(&["wait", &id]).code, 0);
    assert_eq!(project.get(&id)["result"], "thanks");
    let all = format!("{:?}", project.events(&id));
    assert!(all.contains("one") && !all.contains("not for agents"), "{all}");
    assert_eq!(project.run(&called).code, 0);
}

/// Files of models and prompts, each of one agent; the other agent uses none of them.
const SHARED: &str = "\
[model.m]
provider = \"scripted\"
script = \"own/script\"

[model.n]
provider = \"replay\"
file = \"own/cassette\"

[model.o]
provider = \"openai-chat\"
base_url = \"http://127.0.0.1:1/v1\"
model = \"x\"
key_file = \"own/key\"

[model.p]
provider = \"faulty\"
of = \"m\"
faults = [\"ok\"]

[prompt.brief]
file = \"own/prompt\"

[agent.of_m]
component = \"components/scripted.wasm\"
model = \"m\"

[agent.of_n]
component = \"components/scripted.wasm\"
model = \"n\"

[agent.of_o]
component = \"components/scripted.wasm\"
model = \"o\"

[agent.of_p]
component = \"components/scripted.wasm\"
model = \"p\"

[agent.of_brief]
component = \"components/scripted.wasm\"
allow = [\"prompts: brief\"]

[agent.other]
component = \"components/scripted.wasm\"
";

fn project_of_models() -> Project {
    let project = Project::new();
    project.write("own/script", b"{\"responses\": [{\"text\": \"4\"}]}\n");
    project.write("own/prompt", b"Be {{ how }}.");
    project.write("own/key", b"sk-31d0-4711");
    let entry = json!({
        "request": { "messages": [], "tools": [], "stop_sequences": [] }, "responses": [{ "text": "4" }]
    });
    project.write("own/cassette", format!("{entry}\n").as_bytes());
    let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(project.path().join("own/key"), own).expect("its mode");
    project.write("taskrun.toml", SHARED.as_bytes());
    project
}

#[test]
fn a_model_whose_script_cassette_or_key_is_missing_stops_those_who_ask_it_alone() {
    for (agent, model, file, place) in [
        ("of_m", "m", "own/script", "taskrun.toml:1:1"),
        ("of_n", "n", "own/cassette", "taskrun.toml:5:1"),
        ("of_o", "o", "own/key", "taskrun.toml:9:1"),
        ("of_p", "p", "own/script", "taskrun.toml:15:1"),
    ] {
        let project = project_of_models();
        let checked = project.run(&["agent", "check"]);
        assert_eq!(checked.code, 0, "{checked:?}");
        let id = waits(&project, agent, json!([{ "reply": "and?" }]));
        project.kill_hosts_and_wait();
        let (there, away) = (project.path().join(file), project.path().join("away"));
        std::fs::rename(&there, &away).expect("moved");

        let done = json!({ "steps": [[{ "reply": "done" }]] }).to_string();
        let ran = project.run(&["run", "other", &done, "--wait"]);
        assert_eq!((ran.code, ran.stdout.trim()), (0, "done"), "{agent}: {ran:?}");
        for args in [&["run", agent, &done, "-d"][..], &["agent", "show", agent]] {
            let refused = project.run(args);
            let error = refused.error();
            assert_eq!((refused.code, &error["code"]), (2, &json!("model")), "{refused:?}");
            let told = error.to_string();
            assert!(told.contains(&format!("its model {model} cannot be used")), "{told}");
            assert!(told.contains(place), "{told}");
        }
        assert_eq!(project.run(&["agent", "show", "other"]).code, 0);
        let doctor = project.run(&["doctor"]);
        let line = format!("model {model} cannot be used");
        assert!(doctor.code != 0 && doctor.stdout.contains(&line), "{doctor:?}");

        // The run of before waits, and it is said for what while a host lives that tries.
        project.kill_hosts_and_wait();
        let mut host = project.start(&["host", "--idle-exit", "0"]);
        project.meets_host();
        assert_eq!(project.run(&["answer", &id, "the third one"]).code, 0);
        let reason = format!("its model {model} cannot be used");
        project.is_told_why(&id, &reason);
        for args in [&["get", id.as_str()][..], &["ps"], &["doctor"]] {
            let ran = project.run(args);
            let told = format!("{}{}", ran.stdout, ran.stderr);
            assert!(told.contains(&reason), "{args:?}: {ran:?}");
        }
        std::fs::rename(&away, &there).expect("moved back");
        assert_eq!(project.run(&["wait", &id]).code, 0);
        assert_eq!(project.get(&id)["status"], "completed");
        host.kill().expect("killed");
        host.wait().expect("gone");
    }
}

#[test]
fn a_prompt_that_is_missing_or_no_template_stops_those_who_may_use_it_alone() {
    let project = project_of_models();
    let id = waits(&project, "of_brief", json!([{ "reply": "and?" }]));
    let done = json!({ "steps": [[{ "reply": "done" }]] }).to_string();
    for broken in [None, Some(&b"{{ "[..])] {
        match broken {
            None => remove(&project, "own/prompt"),
            Some(bytes) => project.write("own/prompt", bytes),
        }
        let ran = project.run(&["run", "other", &done, "--wait"]);
        assert_eq!((ran.code, ran.stdout.trim()), (0, "done"), "{ran:?}");
        for args in [&["run", "of_brief", &done, "-d"][..], &["agent", "show", "of_brief"]] {
            let refused = project.run(args);
            let error = refused.error();
            assert_eq!((refused.code, &error["code"]), (2, &json!("agent-files")), "{refused:?}");
            assert!(error.to_string().contains("taskrun.toml:21:8: prompt"), "{refused:?}");
        }
        let doctor = project.run(&["doctor"]);
        assert!(doctor.code != 0 && doctor.stdout.contains("taskrun.toml:21:8"), "{doctor:?}");
        project.kill_hosts_and_wait();
    }
    // What it was accepted with is kept.
    assert_eq!(answer(&project, &id)["status"], "completed");
}
