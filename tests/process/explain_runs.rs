//! `policy explain` for runs: rules of then and of now, agents above, requests.

use serde_json::{Value, json};

use crate::explain::{ask, decided, edit};
use crate::project::{Project, Ran};

/// Two agents, of which the first may start runs of the second.
const BENEATH: &str = r#"[tool.workspace]
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

fn waits(project: &Project, agent: &str, more: &[&str], then: &[Value]) -> String {
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
fn layers(project: &Project, run: &str, path: &str) -> (i32, Vec<String>) {
    let argument = format!("path={path}");
    let ran = ask(project, &["--run", run, "--cap", "workspace-read", "--arg", &argument]);
    let told = ran.json();
    assert_eq!(told["run"], run, "{told}");
    (ran.code, layer_words(&told))
}

fn layer_words(told: &Value) -> Vec<String> {
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
