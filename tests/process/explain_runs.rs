//! `policy explain` for runs: rules of then and of now, agents above, requests.

use serde_json::{Value, json};

use crate::explain::{ask, decided, edit};
use crate::project::{Project, Ran};

/// Two agents, of which the first may start runs of the second.
pub(crate) const BENEATH: &str = r#"[tool.workspace]
component = "components/workspace.wasm"

[agent.lead]
component = "components/scripted.wasm"
members = ["reader"]
allow = ["workspace-read: docs/**"]

[agent.reader]
component = "components/scripted.wasm"
tools = ["workspace/read"]
allow = ["workspace-read: **"]
deny = ["workspace-write: **"]
"#;

/// A run that asks something, with what it does then.
pub(crate) fn waits(project: &Project, agent: &str, more: &[&str], then: &[Value]) -> String {
    let clarification = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let mut steps = vec![json!([{ "plan": { "await": [clarification] } }])];
    steps.extend(then.iter().cloned());
    let task = json!({ "steps": steps }).to_string();
    let id = project.run(&[&["run", agent, &task, "-d"][..], more].concat()).id();
    project.reach(&id, "blocked");
    id
}

/// The layers that a run asks about reading a path, each with its verdict: in capitals the one that
/// decides.
pub(crate) fn layers(project: &Project, run: &str, path: &str) -> (i32, Vec<String>) {
    let argument = format!("path={path}");
    let ran = ask(project, &["--run", run, "--cap", "workspace-read", "--arg", &argument]);
    let told = ran.json();
    assert_eq!(told["run_id"], run, "{told}");
    (ran.code, layer_words(&told))
}

pub(crate) fn layer_words(told: &Value) -> Vec<String> {
    let layer = |layer: &Value| {
        let text = |key: &str| layer[key].as_str().expect("a text").to_owned();
        let verdict = match layer["decides"] == true {
            true => text("verdict").to_uppercase(),
            false => text("verdict"),
        };
        format!("{} {verdict}", text("layer"))
    };
    told["layers"].as_array().expect("layers").iter().map(layer).collect()
}

#[test]
fn a_run_is_explained_by_its_rules_of_then_and_of_now_and_all_that_bound_it() {
    let project = Project::new();
    project.write("taskrun.toml", BENEATH.as_bytes());
    let lead = waits(&project, "lead", &[], &[]);
    let read = |id: &str, path: &str| json!({ "call": { "id": id, "name": "workspace/read", "args": { "path": path } } });
    let reads = json!([read("a", "docs/a.md"), read("b", "docs/b.md"), read("x", "x.md")]);
    let more = ["--parent", &lead, "--deny", "workspace-read: docs/b*"];
    let id = waits(&project, "reader", &more, &[reads, json!([{ "reply": "thanks" }])]);
    let unchanged = |words: [&str; 3]| words.map(str::to_owned).to_vec();
    for (path, code, words) in [
        ("docs/a.md", 0, ["rules ALLOWED", "request allowed", "above allowed"]),
        ("docs/b.md", 4, ["rules allowed", "request DENIED", "above allowed"]),
        ("x.md", 4, ["rules allowed", "request allowed", "above DENIED"]),
    ] {
        assert_eq!(layers(&project, &id, path), (code, unchanged(words)), "{path}");
    }
    // What is taken away counts, what is given does not.
    edit(&project, "allow = [\"workspace-read: **\"]", "allow = [\"workspace-read: docs/b*\"]");
    edit(&project, "allow = [\"workspace-read: docs/**\"]", "allow = [\"workspace-read: **\"]");
    let all = ["rules_then", "rules_now", "request", "above_then", "above_now"];
    for (path, verdicts) in [
        ("docs/a.md", ["allowed", "DENIED", "allowed", "allowed", "allowed"]),
        ("docs/b.md", ["allowed", "allowed", "DENIED", "allowed", "allowed"]),
        ("x.md", ["allowed", "DENIED", "allowed", "denied", "allowed"]),
    ] {
        let expected: Vec<String> =
            all.iter().zip(verdicts).map(|(layer, verdict)| format!("{layer} {verdict}")).collect();
        assert_eq!(layers(&project, &id, path), (4, expected), "{path}");
    }
    let question = ["--run", &id, "--cap", "workspace-read", "--arg", "path=x.md"];
    let told = ask(&project, &question).json();
    let change = |layer: usize| told["layers"][layer]["change"][0].as_str().unwrap_or_default();
    assert_eq!(
        change(1),
        "add \"workspace-read: x.md\" to `allow` of the agent (taskrun.toml:9:1)"
    );
    assert!(change(3).starts_with("start a new run"), "{told}");
    // The host decides the same, with the same words.
    assert_eq!(project.run(&["answer", &id, "the third"]).code, 0);
    project.ends_by_itself(&id);
    let events = project.events(&id);
    let decided = events.iter().filter(|event| event["kind"] == "policy_decision");
    let decided: Vec<(&str, &str)> = decided
        .map(|event| {
            (event["subject"].as_str().expect("one"), event["rule"].as_str().expect("one"))
        })
        .collect();
    for (path, by) in [
        ("docs/a.md", "denied by agent reader: no rule allows workspace-read"),
        ("docs/b.md", "denied by the request for this run: \"workspace-read: docs/b*\""),
        ("x.md", "denied by agent reader: no rule allows workspace-read"),
    ] {
        let is_so = |(subject, rule): &(&str, &str)| *subject == path && rule.starts_with(by);
        assert!(decided.iter().any(is_so), "{path}: {decided:?}");
    }
    assert_eq!(decided.len(), 3, "{decided:?}");
}

#[test]
fn a_run_whose_agents_are_gone_or_not_kept_begins_nothing_and_is_told_the_way_out() {
    let project = Project::new();
    project.write("taskrun.toml", BENEATH.as_bytes());
    let lead = waits(&project, "lead", &[], &[]);
    let id = waits(&project, "reader", &["--parent", &lead], &[]);
    let question = ["--run", &id, "--cap", "workspace-read", "--arg", "path=docs/a.md"];
    let whose = |ran: &Ran| ran.json()["layers"][0]["of"].as_str().expect("a text").to_owned();
    edit(&project, "[agent.lead]", "[agent.other]");
    let gone = ask(&project, &question);
    let (code, verdict, _, _, change) = decided(&gone);
    assert_eq!((code, verdict.as_str(), whose(&gone).as_str()), (4, "denied", "agent lead"));
    assert!(change.contains("put [agent.lead] back into taskrun.toml"), "{gone:?}");
    assert!(change.contains(&format!("taskrun cancel {id}")), "{gone:?}");
    assert_eq!(gone.error()["run_id"], id.as_str());
    project.write("taskrun.toml", BENEATH.replace("[agent.reader]", "[agent.other]").as_bytes());
    edit(&project, "members = [\"reader\"]\n", "");
    // The agent of the run need not be there for the question to be understood.
    let own = ask(&project, &[&["--agent", "reader"][..], &question].concat());
    assert_eq!((own.code, whose(&own).as_str()), (4, "agent reader"), "{own:?}");
    project.write("taskrun.toml", BENEATH.as_bytes());
    edit(&project, "allow = [\"workspace-read: **\"]", "allow = [\"workspace-read: docs/**\"]");
    assert_eq!(ask(&project, &question).code, 0);
    std::fs::remove_dir_all(project.path().join(".taskrun/blobs")).expect("it was kept");
    let lost = ask(&project, &question);
    assert_eq!(lost.code, 4, "{lost:?}");
    let reason = lost.json()["layers"][0]["reason"].as_str().expect("a text").to_owned();
    assert!(reason.contains("is not kept here"), "{reason}");
    let (.., change) = decided(&lost);
    for way in ["adopt", "cancel"] {
        assert!(change.contains(&format!("taskrun {way} {id}")), "{change}");
    }
    // There is no way out for one that has ended.
    project.run(&["cancel", &id]);
    project.ends_by_itself(&id);
    let (code, verdict, _, _, change) = decided(&ask(&project, &question));
    assert_eq!((code, verdict.as_str(), change.as_str()), (4, "denied", ""));
    let wrong = ask(&project, &[&["--agent", "lead"][..], &question].concat());
    assert_eq!((wrong.code, &wrong.error()["code"]), (2, &json!("wrong-agent")), "{wrong:?}");
}

#[test]
fn adopting_is_named_where_it_is_the_way_out_and_it_is_one() {
    let project = Project::new();
    project.write("taskrun.toml", BENEATH.as_bytes());
    let lead = waits(&project, "lead", &[], &[]);
    let above = waits(&project, "reader", &["--parent", &lead], &[]);
    let id = waits(&project, "lead", &[], &[]);
    let kept = waits(&project, "lead", &[], &[]);
    edit(
        &project,
        "members = [\"reader\"]\nallow = [\"workspace-read: docs/**\"]",
        "members = [\"reader\", \"lead\"]\ntools = [\"workspace/read\"]\n\
         deny = [\"workspace-write: **\"]\n\
         allow = [\"workspace-read: **\", \"controller: spawn\"]",
    );
    let read = ["--cap", "workspace-read", "--arg", "path=x.md"];
    let call = ["--cap", "tool", "--arg", "name=workspace/read"];
    let start = ["--cap", "controller", "--arg", "operation=spawn", "--arg", "agent=lead"];
    let about = |run: &str, question: &[&str]| {
        let asked = ask(&project, &[&["--run", run][..], question].concat());
        let (code, _, _, _, change) = decided(&asked);
        (code, change)
    };
    for question in [&read[..], &call, &start] {
        let way = format!("give the run its agent as it is now: `taskrun adopt {id}`");
        assert_eq!(about(&id, question), (4, way), "{question:?}");
    }
    // The rules above it bind a run whatever it is given itself.
    let (code, change) = about(&above, &read);
    assert!(code == 4 && change.starts_with("start a new run"), "{change}");
    let adopted = project.run(&["adopt", &id]);
    assert_eq!(adopted.code, 0, "{adopted:?}");
    for question in [&read[..], &call, &start] {
        assert_eq!(about(&id, question).0, 0, "{question:?}");
    }
    // Of one that has ended nothing can be given away any more.
    project.run(&["cancel", &kept]);
    project.ends_by_itself(&kept);
    let (code, change) = about(&kept, &read);
    assert!(code == 4 && change.starts_with("start a new run"), "{change}");
}

#[test]
fn a_call_in_a_run_is_decided_by_the_lists_of_then_and_of_now_and_by_requests() {
    let project = Project::new();
    let policy = r#"[tool.scripted]
component = "components/scripted-tool.wasm"

[agent.lead]
component = "components/scripted.wasm"
tools = ["scripted/finish"]
members = ["worker"]
ask = ["tool: scripted/finish"]

[agent.worker]
component = "components/scripted.wasm"
tools = ["scripted/*", "agent/lead"]
"#;
    project.write("taskrun.toml", policy.as_bytes());
    let lead = waits(&project, "lead", &["--deny-tag", "other"], &[]);
    let narrowed = ["--parent", &lead, "--only-tool", "scripted/*"];
    let id = waits(&project, "worker", &narrowed, &[]);
    let verdicts = |name: &str| {
        let argument = format!("name={name}");
        let ran = ask(&project, &["--run", &id, "--cap", "tool", "--arg", &argument]);
        (ran.code, layer_words(&ran.json()))
    };
    let requests = ["request allowed", "request allowed"];
    let words = |first: &[&str], last: &[&str]| {
        let all = [first, &requests, last].concat();
        all.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(verdicts("scripted/lookup"), (0, words(&["tools ALLOWED"], &[])));
    // Whom those above must ask is asked.
    assert_eq!(verdicts("scripted/finish"), (0, words(&["tools allowed"], &["ask ASK"])));
    let (code, of_agent) = verdicts("agent/lead");
    assert_eq!((code, of_agent[1].as_str()), (4, "request DENIED"));
    project.write(
        "taskrun.toml",
        policy
            .replace("\"scripted/*\", \"agent/lead\"", "\"scripted/lookup\", \"scripted/finish\"")
            .replace("[agent.worker]", "[tool.more]\ncomponent = \"components/scripted-tool.wasm\"\n[agent.worker]\npolicy = { block = [\"scripted/finish\"] }")
            .as_bytes(),
    );
    let both = ["tools_then allowed", "tools_now allowed"];
    let engine = |verdict: &str| format!("policy_engine {verdict}");
    let lookup = verdicts("scripted/lookup");
    assert_eq!(lookup.0, 0);
    assert_eq!(lookup.1[1..], words(&both, &[&engine("allowed")])[1..], "{lookup:?}");
    let finish = verdicts("scripted/finish");
    assert_eq!(finish, (4, words(&both, &[&engine("DENIED"), "ask ask"])));
    let change = verdicts("scripted/change");
    let gone = ["tools_then allowed", "tools_now DENIED"].map(str::to_owned).to_vec();
    assert_eq!(change, (4, gone.clone()));
    assert_eq!(verdicts("agent/lead"), (4, gone));
    let given = ["tools_then DENIED", "tools_now denied"].map(str::to_owned).to_vec();
    assert_eq!(verdicts("more/lookup"), (4, given));
    // Members are those of both lists, and of calls none is left.
    let spawn = ["--run", &lead, "--cap", "controller", "--arg", "operation=spawn"];
    let member = |agent: &str| {
        let agent = format!("agent={agent}");
        let told = ask(&project, &[&spawn[..], &["--arg", &agent]].concat()).json();
        layer_words(&told).pop()
    };
    assert_eq!(member("worker").as_deref(), Some("members allowed"));
    edit(&project, "members = [\"worker\"]", "members = [\"lead\"]");
    assert_eq!(member("worker").as_deref(), Some("members denied"));
    assert_eq!(member("lead").as_deref(), Some("members denied"));
    let none = ask(&project, &["--run", &id, "--cap", "tool", "--arg", "name=none/f"]);
    assert_eq!((none.code, &none.error()["code"]), (2, &json!("unknown-tool")), "{none:?}");
}

#[test]
fn a_run_that_its_host_adopts_is_explained_with_the_form_of_now() {
    let project = Project::new();
    let narrow = "allow = [\"workspace-read: docs/**\"]\ndeny";
    let policy = BENEATH.replace("allow = [\"workspace-read: **\"]\ndeny", narrow);
    project.write("taskrun.toml", format!("{policy}upgrade = \"adopt\"\n").as_bytes());
    project.write("x.md", b"the words");
    let call = json!({ "id": "a", "name": "workspace/read", "args": { "path": "x.md" } });
    let then = [json!([{ "call": call }]), json!([{ "reply": "thanks" }])];
    let id = waits(&project, "reader", &[], &then);
    // No host may have seen the edits that follow.
    project.kill_hosts_and_wait();
    let words = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
    assert_eq!(layers(&project, &id, "x.md"), (4, words(&["rules DENIED"])));
    edit(&project, narrow, "allow = [\"workspace-read: **\"]\ndeny");
    assert_eq!(layers(&project, &id, "x.md"), (0, words(&["rules ALLOWED"])));
    let question = ["--run", &id, "--cap", "workspace-read", "--arg", "path=x.md"];
    assert_eq!(ask(&project, &question).json()["upgrade"], "adopt");
    let text = project.run(&[&["policy", "explain"][..], &question].concat()).stdout;
    assert!(text.contains(&format!("in run {id}, which is adopted when it goes on")), "{text}");
    let one = "✓ reader: 1 open run was accepted with another version of it; \
               it is adopted when it goes on\n";
    let given = std::fs::read(project.path().join("taskrun.toml")).expect("there is one");
    project.write("draft.toml", &given);
    for check in [&["policy", "check"][..], &["policy", "check", "draft.toml"]] {
        let text = project.run(check).stdout;
        assert!(text.contains(one), "{text}");
    }
    // Neither a form that does not load nor that of another file is given to a run.
    let both = ["rules_then DENIED", "rules_now allowed"];
    edit(&project, "tools = [\"workspace/read\"]", "tools = [\"workspace/none\"]");
    assert_eq!(layers(&project, &id, "x.md"), (4, words(&both)));
    let checked = project.run(&["policy", "check", "-o", "json"]).json();
    let agents = checked["agents"].as_array().expect("agents");
    let reader = agents.iter().find(|agent| agent["name"] == "reader").expect("the agent");
    assert_eq!(reader["open_runs_of_other_pins"], 1, "{checked}");
    assert_eq!(reader["open_runs_to_adopt"], 0, "{checked}");
    project.write("taskrun.toml", &given);
    let elsewhere = ["--config", "draft.toml", "--data-dir", ".taskrun"];
    let other = ask(&project, &[&elsewhere[..], &question].concat());
    assert_eq!(layer_words(&other.json()), words(&[both[0], both[1], both[1]]));
    assert_eq!((other.code, other.json().get("upgrade")), (4, None));
    let text = project.run(&[&elsewhere[..], &["policy", "check"]].concat()).stdout;
    assert!(text.contains("it goes on within the rules of both"), "{text}");
    // The host does what was said.
    assert_eq!(project.run(&["answer", &id, "the third"]).code, 0);
    project.ends_by_itself(&id);
    let events = project.events(&id);
    let of_kind = |kind: &str| events.iter().find(|event| event["kind"] == kind);
    assert_eq!(of_kind("adopted").expect("one")["by"], "host");
    let result = of_kind("tool_result").expect("one").to_string();
    assert!(result.contains("the words"), "{result}");
}

#[test]
fn a_tool_of_the_host_in_a_run_is_decided_by_all_that_bounds_its_operation() {
    let project = Project::new();
    let policy = r#"[agent.top]
component = "components/scripted.wasm"
members = ["lead"]
allow = ["controller: spawn"]

[agent.lead]
component = "components/scripted.wasm"
members = ["lead"]
tools = ["host/task_runs"]
allow = ["controller: *"]
"#;
    project.write("taskrun.toml", policy.as_bytes());
    let top = waits(&project, "top", &[], &[]);
    let list = json!([{ "call": { "id": "l", "name": "host/list_task_runs", "args": {} } }]);
    let then = [list, json!([{ "reply": "thanks" }])];
    let beneath = waits(&project, "lead", &["--parent", &top], &then);
    let denied = waits(&project, "lead", &["--deny", "controller: list"], &[]);
    let about = |run: &str, name: &str| {
        let name = format!("name=host/{name}");
        let ran = ask(&project, &["--run", run, "--cap", "tool", "--arg", &name]);
        (ran.code, layer_words(&ran.json()).join(", "))
    };
    for (run, name, code, words) in [
        (&beneath, "list_task_runs", 4, "tools allowed, rules allowed, above DENIED"),
        (&beneath, "wait_task_run", 4, "tools allowed, rules allowed, above DENIED"),
        (
            &beneath,
            "start_task_run",
            0,
            "tools ALLOWED, rules allowed, above allowed, rules allowed, above not_asked",
        ),
        (&denied, "list_task_runs", 4, "tools allowed, rules allowed, request DENIED"),
        (&denied, "get_task_run", 0, "tools ALLOWED, rules allowed, request allowed"),
    ] {
        assert_eq!(about(run, name), (code, words.to_owned()), "{name}");
    }
    // The host decides the same.
    assert_eq!(project.run(&["answer", &beneath, "the third"]).code, 0);
    project.ends_by_itself(&beneath);
    let events = project.events(&beneath);
    let decided = events.iter().find(|event| event["kind"] == "policy_decision").expect("one");
    assert_eq!(decided["subject"], "list", "{decided}");
    let rule = decided["rule"].as_str().expect("a text");
    assert!(rule.starts_with("denied by agent top: no rule allows controller"), "{decided}");
}

#[test]
fn an_autonomous_run_has_the_tools_by_which_it_speaks_of_itself() {
    let project = Project::new();
    let call =
        |name: &str, args: Value| json!([{ "call": { "id": "c", "name": name, "args": args } }]);
    let then = [
        call("host/set_status", json!({ "state": "looking" })),
        call("return_result", json!({ "detail": "found" })),
        json!([{ "reply": "thanks" }]),
    ];
    let id = waits(&project, "worker", &["--autonomous", "--answers", "inbox"], &then);
    let plain = waits(&project, "worker", &[], &[]);
    let about = |run: &str, name: &str| {
        let name = format!("name={name}");
        let ran = ask(&project, &["--run", run, "--cap", "tool", "--arg", &name]);
        (ran.code, layer_words(&ran.json()).join(", "))
    };
    for name in [
        "host/set_status",
        "host/report_done",
        "host/return_result",
        "return_result",
        "host/schedule_next_turn",
    ] {
        assert_eq!(about(&id, name), (0, "own ALLOWED".to_owned()), "{name}");
    }
    assert_eq!(about(&id, "host/start_task_run"), (4, "tools DENIED".to_owned()));
    assert_eq!(about(&plain, "host/set_status"), (4, "tools DENIED".to_owned()));
    // The host lets it call them.
    assert_eq!(project.run(&["answer", &id, "the third"]).code, 0);
    let run = project.ends_by_itself(&id);
    assert_eq!((&run["stop_reason"], &run["detail"]), (&json!("done"), &json!("found")), "{run}");
    // Of one whose name for it is its own, and that puts no round off.
    let own = "autonomous = { done = { name = \"finish\" }, max_defer = \"0s\" }\n[agent.reader]";
    edit(&project, "[agent.reader]", own);
    let id = waits(&project, "worker", &["--autonomous", "--answers", "inbox"], &[]);
    for (name, code, words) in [
        ("host/finish", 0, "own ALLOWED"),
        ("host/report_done", 0, "own ALLOWED"),
        ("host/schedule_next_turn", 4, "own DENIED"),
    ] {
        assert_eq!(about(&id, name), (code, words.to_owned()), "{name}");
    }
}
