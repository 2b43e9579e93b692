//! `policy check`: a policy and what it names, tried before it is in force.

use serde_json::{Value, json};

use crate::project::{Project, Ran};

fn check(project: &Project, more: &[&str]) -> Ran {
    project.run(&[&["policy", "check", "-o", "json"][..], more].concat())
}

fn policy(project: &Project) -> String {
    std::fs::read_to_string(project.path().join("taskrun.toml")).expect("there is one")
}

fn waits(project: &Project, agent: &str) -> String {
    waits_under(project, "taskrun.toml", agent)
}

/// A run of an agent of this policy file that asks something.
fn waits_under(project: &Project, file: &str, agent: &str) -> String {
    let clarification = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let task = json!({ "steps": [[{ "plan": { "await": [clarification] } }]] }).to_string();
    let id = project.run(&["--config", file, "run", agent, &task, "-d"]).id();
    project.reach(&id, "blocked");
    id
}

fn agent<'r>(report: &'r Value, name: &str) -> &'r Value {
    let agents = report["agents"].as_array().expect("agents");
    agents.iter().find(|agent| agent["name"] == name).expect("the agent")
}

#[test]
fn a_policy_that_can_be_used_is_checked_without_a_data_directory_being_made() {
    let project = Project::untouched();
    let checked = check(&project, &[]);
    assert_eq!(checked.code, 0, "{checked:?}");
    let report = checked.json();
    assert_eq!(
        (&report["v"], &report["ok"], &report["gone"]),
        (&json!(1), &json!(true), &json!([]))
    );
    assert_eq!(report["agents"].as_array().map(Vec::len), Some(6), "{report}");
    let worker = agent(&report, "worker");
    let pin = worker["pin"].as_str().expect("a pin");
    assert!(worker["ok"] == true && pin.starts_with("worker@blake3:"), "{worker}");
    assert!(worker.get("open_runs").is_none(), "nobody knows of runs: {worker}");
    assert!(!project.path().join(".taskrun").exists());
    let names = project.run(&["policy", "check", "-o", "name"]).stdout;
    assert_eq!(names.lines().count(), 6, "{names}");
    let rows = project.run(&["policy", "check", "-o", "ndjson"]).stdout;
    assert_eq!(rows.lines().count(), 6, "{rows}");
    let text = project.run(&["policy", "check"]);
    assert!(text.stdout.contains("✓ worker\n"), "{text:?}");
    assert!(text.stderr.contains("can be used: 6 agents, 2 tools, 0 models"), "{text:?}");
}

#[test]
fn a_mistake_is_told_with_its_place_wherever_it_is() {
    let project = Project::untouched();
    let before = policy(&project);
    let line = before.lines().count() + 1;
    let mistakes: [(&str, &str, (usize, usize)); 6] = [
        ("[agent.x]\ncomponnent = \"y\"\n", "policy-invalid", (1, 1)),
        ("[prompt.x]\nfile = \"none.md\"\n", "policy-invalid", (1, 8)),
        ("[tool.x]\ncomponent = \"none.wasm\"\n", "policy-invalid", (1, 13)),
        ("[model.x]\nprovider = \"scripted\"\nscript = \"docs/a.md\"\n", "model", (0, 1)),
        ("[agent.x]\ncomponent = \"docs/a.md\"\n", "component-broken", (0, 1)),
        (
            "[agent.x]\ncomponent = \"components/scripted.wasm\"\n\
             policy = { component = \"docs/a.md\" }\n",
            "component-broken",
            (2, 10),
        ),
    ];
    for (mistake, code, (further, column)) in mistakes {
        project.write("draft.toml", format!("{before}{mistake}").as_bytes());
        let checked = check(&project, &["draft.toml"]);
        assert_eq!((checked.code, &checked.error()["code"]), (2, &json!(code)), "{checked:?}");
        let told = format!("{}{}", checked.stdout, checked.error());
        let place = format!("draft.toml:{}:{column}", line + further);
        assert!(told.contains(&place), "{mistake}: {place} is not in {told}");
    }
    // A rule that is missing is a mistake of the policy, and nothing that was denied.
    let missing = "[tool.bare]\ncomponent = \"components/workspace.wasm\"\n[agent.x]\n\
                   component = \"components/scripted.wasm\"\ntools = [\"bare/*\"]\n";
    project.write("draft.toml", format!("{before}{missing}").as_bytes());
    let checked = check(&project, &["draft.toml"]);
    assert_eq!((checked.code, &checked.error()["code"]), (2, &json!("denied")), "{checked:?}");
    let report = checked.json();
    assert_eq!((&report["ok"], &agent(&report, "x")["ok"]), (&json!(false), &json!(false)));
    assert_eq!(agent(&report, "worker")["ok"], true, "the others are looked at all the same");
}

#[test]
fn a_subscriber_of_an_agent_that_cannot_be_told_is_a_mistake() {
    let project = Project::untouched();
    let before = policy(&project);
    project.write("hooks/plain", b"#!/bin/sh\n");
    let tables = "[file.nofolder]\npath = \"nope/x.jsonl\"\n\
                  [file.folder]\npath = \"docs\"\n\
                  [file.far]\npath = \"nope/far.jsonl\"\n\
                  [file.fine]\npath = \"docs/x.jsonl\"\n\
                  [command.missing]\nrun = [\"./hooks/none\"]\n\
                  [command.plain]\nrun = [\"./hooks/plain\"]\n\
                  [command.fine]\nrun = [\"/bin/sh\"]\n\
                  [webhook.ci]\nurl = \"https://example.com\"\nsecret_env = \"TASKRUN_NO_SECRET\"\n\
                  [channel.post]\nto = \"file/far\"\n";
    project.write("draft.toml", format!("{before}{tables}").as_bytes());
    let unused = check(&project, &["draft.toml"]);
    assert_eq!(unused.code, 0, "{unused:?}");
    let component = "component = \"components/scripted.wasm\"";
    let agent = |names: &str| format!("{before}{tables}[agent.told]\n{component}\n{names}\n");
    let fine = "subscribers = [\"file/fine\", \"command/fine\", \"terminal\"]";
    project.write("draft.toml", agent(fine).as_bytes());
    let checked = check(&project, &["draft.toml"]);
    assert_eq!(checked.code, 0, "{checked:?}");
    let bad = "subscribers = [\"file/nofolder\", \"file/folder\", \"file/fine\", \
               \"command/missing\", \"command/plain\", \"webhook/ci\"]\nchannels = [\"post\"]";
    project.write("draft.toml", agent(bad).as_bytes());
    let refused = check(&project, &["draft.toml"]);
    let error = refused.error();
    assert_eq!((refused.code, &error["code"]), (2, &json!("subscriber")), "{refused:?}");
    let told = error.to_string();
    for name in [
        "file/nofolder",
        "file/folder",
        "file/far",
        "command/missing",
        "command/plain",
        "webhook/ci",
    ] {
        assert!(told.contains(&format!("subscriber {name} cannot be told")), "{name}: {told}");
    }
    assert!(told.contains("6 subscribers") && told.contains("TASKRUN_NO_SECRET"), "{told}");
    let place = format!("draft.toml:{}:1", before.lines().count() + 1);
    assert!(told.contains(&place), "{place}: {told}");
}

#[test]
fn a_policy_is_checked_where_the_data_directory_cannot_be_written() {
    let project = Project::new();
    // The kernel lets nobody write that file, not even root.
    let lock = project.path().join(".taskrun/taskrun.open.lock");
    std::os::unix::fs::symlink("/sys/devices/system/cpu/online", &lock).expect("linked");
    let checked = check(&project, &[]);
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(checked.stderr.contains("was not looked at for open runs"), "{checked:?}");
    let report = checked.json();
    assert_eq!((&report["ok"], &report["gone"]), (&json!(true), &json!([])), "{report}");
    assert!(agent(&report, "worker").get("open_runs").is_none(), "{report}");
    project.write("draft.toml", format!("{}no policy\n", policy(&project)).as_bytes());
    assert_eq!(check(&project, &["draft.toml"]).code, 2);
    std::fs::remove_file(&lock).expect("removed");
}

#[test]
fn it_says_which_open_runs_go_on_under_both_rules_and_leaves_them_alone() {
    let project = Project::new();
    let runs = [waits(&project, "worker"), waits(&project, "worker"), waits(&project, "reader")];
    let same = check(&project, &[]).json();
    let counts = |report: &Value, name: &str| {
        let agent = agent(report, name);
        (agent["open_runs"].clone(), agent["open_runs_of_other_pins"].clone())
    };
    assert_eq!(counts(&same, "worker"), (json!(2), json!(0)), "{same}");
    let draft = policy(&project)
        .replace("limits = { call = \"60s\" }", "limits = { call = \"50s\" }")
        .replace("[agent.reader]", "# Nothing that matters.\n[agent.reader]");
    project.write("draft.toml", draft.as_bytes());
    let checked = check(&project, &["draft.toml"]);
    let report = checked.json();
    assert_eq!(checked.code, 0, "{checked:?}");
    assert_eq!(counts(&report, "worker"), (json!(2), json!(2)), "{report}");
    assert_eq!(counts(&report, "reader"), (json!(1), json!(0)), "{report}");
    assert_eq!(counts(&report, "fragile"), (json!(0), json!(0)), "{report}");
    let text = project.run(&["policy", "check", "draft.toml"]).stdout;
    assert!(text.contains("✓ worker: 2 open runs were accepted with another version"), "{text}");
    assert!(text.contains("✓ reader\n"), "{text}");
    let only = "[agent.worker]\ncomponent = \"components/scripted.wasm\"\n";
    project.write("draft.toml", only.as_bytes());
    let report = check(&project, &["draft.toml"]).json();
    assert_eq!(report["gone"], json!([{ "name": "reader", "open_runs": 1 }]), "{report}");
    let text = project.run(&["policy", "check", "draft.toml"]).stdout;
    assert!(
        text.contains("! reader: not in the policy; 1 open run of it begins nothing"),
        "{text}"
    );
    for id in runs {
        assert_eq!(project.get(&id)["status"], "blocked");
    }
    assert_eq!(counts(&check(&project, &[]).json(), "worker"), (json!(2), json!(0)));
}

#[test]
fn open_runs_of_a_file_that_is_there_no_more_are_of_the_one_that_is_checked() {
    let project = Project::new();
    let far = "[agent.far]\ncomponent = \"components/scripted.wasm\"\n";
    project.write("other.toml", format!("{}{far}", policy(&project)).as_bytes());
    waits_under(&project, "other.toml", "far");
    let gone = || check(&project, &[]).json()["gone"].clone();
    assert_eq!(gone(), json!([]), "that file has its agent");
    // As in a project that was moved.
    std::fs::remove_file(project.path().join("other.toml")).expect("it was there");
    assert_eq!(gone(), json!([{ "name": "far", "open_runs": 1 }]));
}

#[test]
fn a_tool_that_no_agent_lists_is_looked_at_too() {
    let project = Project::untouched();
    let before = policy(&project);
    let bare = "[tool.bare]\ncomponent = \"components/workspace.wasm\"\n";
    project.write("draft.toml", format!("{before}{bare}").as_bytes());
    let checked = check(&project, &["draft.toml"]);
    assert_eq!(checked.code, 0, "what it imports is granted by nobody: {checked:?}");
    assert_eq!(checked.json()["tools"], json!([{ "name": "bare", "ok": true }]));
    let broken = "[tool.y]\ncomponent = \"components/scripted.wasm\"\n\
                  [tool.z]\ncomponent = \"docs/a.md\"\n";
    project.write("draft.toml", format!("{before}{bare}{broken}").as_bytes());
    let checked = check(&project, &["draft.toml"]);
    let error = checked.error();
    assert_eq!((checked.code, &error["code"]), (2, &json!("component-world")), "{checked:?}");
    let told = "the tools y, z, which no agent lists, do not load";
    assert_eq!(error["message"].as_str().map(|said| said.starts_with(told)), Some(true), "{error}");
    let report = checked.json();
    let tools = report["tools"].as_array().expect("tools");
    let codes: Vec<&Value> = tools.iter().map(|tool| &tool["error"]["code"]).collect();
    assert_eq!(codes, [&Value::Null, &json!("component-world"), &json!("component-broken")]);
    let place = format!("draft.toml:{}:1", before.lines().count() + 3);
    assert!(tools[1]["error"]["message"].to_string().contains(&place), "{place}: {report}");
    assert_eq!((&report["ok"], &agent(&report, "worker")["ok"]), (&json!(false), &json!(true)));
    let text = project.run(&["policy", "check", "draft.toml"]);
    assert_eq!(text.code, 2, "{text:?}");
    for line in ["✓ worker\n", "✓ tool bare\n", "✗ tool y\n", "✗ tool z\n"] {
        assert!(text.stdout.contains(line), "{line}: {text:?}");
    }
}

#[test]
fn a_component_that_begins_with_more_memory_than_its_limit_is_a_mistake_of_the_limit() {
    let project = Project::untouched();
    let tight = policy(&project)
        .replace("limits = { call = \"60s\" }", "limits = { call = \"60s\", memory = \"64KiB\" }");
    project.write("draft.toml", tight.as_bytes());
    let checked = check(&project, &["draft.toml"]);
    let error = checked.error();
    assert_eq!((checked.code, &error["code"]), (2, &json!("component-refused")), "{checked:?}");
    let report = checked.json();
    let worker = agent(&report, "worker");
    assert_eq!(worker["ok"], false, "{report}");
    for words in ["raise `memory`", "is 64 KiB"] {
        assert!(worker["error"].to_string().contains(words), "{words}: {report}");
    }
}

#[test]
fn the_excerpt_of_a_mistake_shows_no_values_that_may_be_keys() {
    let project = Project::untouched();
    let model = "[model.m]\nprovider = \"openai-chat\"\nmodel = \"m\"\n\
                 headers = { X-Gateway = \"s3cret\" }\neffort = \"hgih\"\n\
                 query = { api-version = \"s3cret\" }\n";
    project.write("taskrun.toml", format!("{}{model}", policy(&project)).as_bytes());
    let doctor = project.run(&["doctor"]).stdout;
    for shown in ["hgih", "headers = { X-Gateway = ", "query = { api-version = "] {
        assert!(doctor.contains(shown), "{shown}: {doctor}");
    }
    assert!(!doctor.contains("s3cret"), "{doctor}");
}
