//! `policy explain`: which rule decides, where it stands, and what would change that.

use serde_json::{Value, json};
use taskrun_policy::HostFunction;

use crate::project::{Project, Ran};

/// A policy whose lines are counted: each agent's header stands at a known one.
const POLICY: &str = r#"[model.small]
provider = "echo"

[model.large]
provider = "echo"

[prompt.brief]
template = "Answer: {{ question }}"

[tool.scripted]
component = "components/scripted-tool.wasm"
tags = ["look"]

[agent.reader]
component = "components/scripted.wasm"
model = "small"
tools = ["scripted/*", "agent/helper"]
allow = [
  "workspace-read: docs/**",
  "http: GET https://api.example.com/v1/**",
  "prompts: brief",
  "controller: wait",
  "memory: session",
  "metrics: steps",
]
deny = ["workspace-read: docs/secret*", "workspace-write: **"]
ask = ["tool: scripted/change"]
policy = { block = ["scripted/finish"] }

[agent.helper]
component = "components/scripted.wasm"
"#;

fn project() -> Project {
    let project = Project::untouched();
    project.write("taskrun.toml", POLICY.as_bytes());
    project
}

pub(crate) fn ask(project: &Project, more: &[&str]) -> Ran {
    project.run(&[&["policy", "explain", "-o", "json"][..], more].concat())
}

/// The answer about an agent of the policy.
fn of_reader(project: &Project, capability: &str, arguments: &[&str]) -> Ran {
    let arguments = arguments.iter().flat_map(|argument| ["--arg", argument]);
    let args = ["--agent", "reader", "--cap", capability].into_iter().chain(arguments);
    ask(project, &args.collect::<Vec<_>>())
}

pub(crate) fn edit(project: &Project, from: &str, to: &str) {
    let path = project.path().join("taskrun.toml");
    let policy = std::fs::read_to_string(&path).expect("there is one");
    assert!(policy.contains(from), "{policy}");
    std::fs::write(path, policy.replacen(from, to, 1)).expect("written");
}

/// Verdict, rule, line, and what would change it, of the layer that decides.
pub(crate) fn decided(ran: &Ran) -> (i32, String, String, i64, String) {
    let told = ran.json();
    let layers = told["layers"].as_array().expect("layers");
    let deciding: Vec<&Value> = layers.iter().filter(|layer| layer["decides"] == true).collect();
    let [layer] = deciding.as_slice() else { panic!("{told}") };
    assert_eq!(layer["verdict"], told["verdict"], "{told}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let change = layer["change"].as_array().expect("changes").iter().map(text);
    let rule = &layer["rule"];
    (
        ran.code,
        text(&told["verdict"]),
        text(&rule["text"]),
        rule["line"].as_i64().unwrap_or_default(),
        change.collect::<Vec<_>>().join("; "),
    )
}

#[test]
fn a_question_about_each_capability_is_answered_with_the_rule_its_line_and_what_would_change_it() {
    let project = project();
    let allowed = |rule: &str, line: i64| {
        let change = format!("remove allow \"{rule}\" (taskrun.toml:{line}:");
        (0, "allowed", rule.to_owned(), line, change)
    };
    let missing = |rule: &str| {
        let change = format!("add \"{rule}\" to `allow` of the agent (taskrun.toml:14:1)");
        (4, "denied", String::new(), 0, change)
    };
    let denied = |rule: &str, change: &str| (4, "denied", rule.to_owned(), 26, change.to_owned());
    let http = "http: GET https://api.example.com/v1/**";
    let cases: [(&str, &[&str], _); 19] = [
        ("workspace-read", &["path=docs/a.md"], allowed("workspace-read: docs/**", 19)),
        ("workspace-read", &["path=notes/a"], missing("workspace-read: notes/**")),
        ("workspace-read", &["path=a\"b/c"], missing("workspace-read: a\\\"b/**")),
        ("workspace-read", &["path=a\tb/c"], missing("workspace-read: FOLDER/**")),
        (
            "workspace-read",
            &["path=docs/secret.md"],
            denied(
                "workspace-read: docs/secret*",
                "remove deny \"workspace-read: docs/secret*\" (taskrun.toml:26:9)",
            ),
        ),
        (
            "workspace-write",
            &["path=docs/x"],
            denied(
                "workspace-write: **",
                "remove deny \"workspace-write: **\" (taskrun.toml:26:41); \
                 add \"workspace-write: docs/**\" to `allow` of the agent (taskrun.toml:14:1)",
            ),
        ),
        ("http", &["url=https://API.example.com/v1/x?key=1"], allowed(http, 20)),
        // Paths are compared as the host sends them.
        ("http", &["url=https://api.example.com/%761/x"], allowed(http, 20)),
        (
            "http",
            &["url=https://api.example.com/v1/x", "method=POST"],
            missing("http: POST https://api.example.com/v1/**"),
        ),
        ("model", &[], allowed("model: small", 16)),
        ("model", &["name=large"], missing("model: large")),
        ("prompts", &["id=brief"], allowed("prompts: brief", 21)),
        ("controller", &["operation=wait"], allowed("controller: wait", 22)),
        ("controller", &["operation=spawn"], missing("controller: spawn")),
        ("memory", &["scope=session"], allowed("memory: session", 23)),
        ("memory", &["scope=tenant"], missing("memory: tenant")),
        ("memory-write", &["scope=session"], missing("memory-write: session")),
        ("metrics", &["name=steps"], allowed("metrics: steps", 24)),
        ("metrics", &["name=other"], missing("metrics: other")),
    ];
    for (capability, arguments, (code, verdict, rule, line, change)) in cases {
        let ran = of_reader(&project, capability, arguments);
        if rule.is_empty() {
            let layer = &ran.json()["layers"][0];
            let reason = layer["reason"].as_str().expect("a reason");
            assert_eq!(layer["section"]["line"], 14, "{layer}");
            assert!(reason.contains("(taskrun.toml:14:1)"), "{layer}");
        }
        let (exit, said, by, at, turned) = decided(&ran);
        assert_eq!((exit, said.as_str()), (code, verdict), "{capability} {arguments:?}: {ran:?}");
        assert_eq!((by, at), (rule, line), "{capability} {arguments:?}: {ran:?}");
        assert!(turned.starts_with(&change), "{capability} {arguments:?}: {turned}");
    }
    // No rule at all is about writing to memory.
    let ran = of_reader(&project, "memory-write", &["scope=session"]);
    let reason = ran.json()["layers"][0]["reason"].as_str().expect("a reason").to_owned();
    assert!(reason.contains("does not load"), "{reason}");
    let malformed = of_reader(&project, "workspace-read", &["path=../a"]);
    assert_eq!(malformed.code, 4, "{malformed:?}");
    assert_eq!(malformed.json()["layers"][0]["change"], json!([]));
    assert!(!project.path().join(".taskrun").exists(), "nothing was begun");
}

#[test]
fn a_run_of_an_agent_is_started_by_those_that_have_it_among_their_members() {
    let project = project();
    edit(&project, "\"controller: wait\"", "\"controller: *\"");
    let spawn = |agent: &str| {
        let agent = format!("agent={agent}");
        of_reader(&project, "controller", &["operation=spawn", &agent])
    };
    let (code, verdict, ..) = decided(&spawn("helper"));
    assert_eq!((code, verdict.as_str()), (0, "allowed"));
    let (code, verdict, _, _, change) = decided(&spawn("reader"));
    assert_eq!((code, verdict.as_str()), (4, "denied"));
    assert_eq!(change, "add \"reader\" to `members` of the agent (taskrun.toml:14:1)");
    assert_eq!(spawn("nobody").error()["code"], "unknown-agent");
    let wait = of_reader(&project, "controller", &["operation=wait", "agent=helper"]);
    assert_eq!(wait.error()["code"], "bad-question", "{wait:?}");
}

#[test]
fn files_of_the_host_are_denied_whatever_rules_allow() {
    let project = project();
    edit(&project, "\"workspace-read: docs/**\"", "\"workspace-read: **\"");
    project.write("cache/taskrun/native/key", b"key");
    let own = [
        "taskrun.toml",
        "components/scripted.wasm",
        ".taskrun/taskrun.db",
        "TaskRun.toml",
        "cache/taskrun/native/key",
        "state/taskrun/trusted",
        "docs/.taskrun/native/key",
    ];
    for path in own {
        let ran = of_reader(&project, "workspace-read", &[&format!("path={path}")]);
        let told = ran.json();
        assert_eq!((ran.code, &told["layers"][0]["verdict"]), (4, &json!("allowed")), "{told}");
        assert_eq!(
            (&told["layers"][1]["layer"], &told["verdict"]),
            (&json!("host"), &json!("denied"))
        );
    }
    let other = of_reader(&project, "workspace-read", &["path=taskrun.md"]);
    assert_eq!((other.code, other.json()["layers"].as_array().map(Vec::len)), (0, Some(1)));
}

#[test]
fn what_would_be_made_where_the_folder_of_an_agent_is_missing_is_denied() {
    let project = project();
    let everything = "\"workspace-read: **\", \"workspace-write: **\"";
    edit(&project, "\"workspace-read: docs/**\"", everything);
    edit(&project, ", \"workspace-write: **\"]", "]");
    edit(&project, "[agent.helper]\n", "[agent.helper]\nworkspace = \"here/deep/sub\"\n");
    project.write("here/a.md", b"here");
    let code = |capability: &str, path: &str| {
        of_reader(&project, capability, &[&format!("path={path}")]).code
    };
    for path in ["here/deep", "here/deep/new"] {
        let ran = of_reader(&project, "workspace-write", &[&format!("path={path}")]);
        let told = ran.json();
        let verdict = |layer: usize| told["layers"][layer]["verdict"].clone();
        assert_eq!((ran.code, verdict(0), verdict(1)), (4, json!("allowed"), json!("denied")));
        let reason = told["layers"][1]["reason"].as_str().expect("a reason");
        assert!(reason.contains("the folder of an agent is missing"), "{told}");
        assert_eq!(code("workspace-read", path), 0, "{path}");
    }
    assert_eq!(code("workspace-write", "here/other"), 0);
    std::fs::create_dir_all(project.path().join("here/deep/sub")).expect("made");
    assert_eq!(code("workspace-write", "here/deep/new"), 0);
}

#[test]
fn a_call_of_a_tool_is_decided_by_lists_engines_and_people() {
    let project = project();
    let call = |name: &str| of_reader(&project, "tool", &[&format!("name={name}")]);
    let (code, verdict, rule, line, _) = decided(&call("scripted/lookup"));
    assert_eq!((code, verdict.as_str(), rule.as_str(), line), (0, "allowed", "scripted/*", 17));
    let (code, verdict, rule, line, change) = decided(&call("scripted/change"));
    assert_eq!((code, verdict.as_str(), rule.as_str()), (0, "ask", "tool: scripted/change"));
    assert_eq!(
        (line, change.as_str()),
        (27, "remove ask \"tool: scripted/change\" (taskrun.toml:27:8)")
    );
    let blocked = call("scripted/finish");
    let (code, verdict, _, _, change) = decided(&blocked);
    assert_eq!((code, verdict.as_str()), (4, "denied"));
    assert!(change.contains("taskrun.toml:28:"), "{blocked:?}");
    let (code, verdict, rule, line, change) = decided(&call("agent/helper"));
    assert_eq!((code, verdict.as_str(), rule.as_str(), line), (0, "allowed", "agent/helper", 17));
    assert_eq!(change, "remove \"agent/helper\" (taskrun.toml:17:24) from `tools`");
    let (code, verdict, _, _, change) = decided(&call("agent/reader"));
    assert_eq!((code, verdict.as_str()), (4, "denied"));
    assert_eq!(change, "add \"agent/reader\" to `tools` of the agent (taskrun.toml:14:1)");
}

/// The policy after all of these changes of its last agent, which has nothing but a component.
fn with_changes(changes: &str) -> String {
    let (mut members, mut allow, mut tools) = ("", Vec::new(), Vec::new());
    for change in changes.split("; ") {
        match change.strip_prefix("add ").and_then(|added| added.split_once(" to `")) {
            Some((rule, list)) if list.starts_with("allow`") => allow.push(rule),
            Some((function, list)) if list.starts_with("tools`") => tools.push(function),
            Some(_) | None => {
                assert!(change.starts_with("name agents under `members`"), "{change}");
                members = "members = [\"reader\"]\n";
            }
        }
    }
    format!("{POLICY}{members}allow = [{}]\ntools = [{}]\n", allow.join(", "), tools.join(", "))
}

#[test]
fn all_that_a_tool_of_the_host_needs_is_told_at_once() {
    let project = project();
    for function in HostFunction::ALL {
        let name = format!("name={}", function.qualified());
        let call = || ask(&project, &["--agent", "helper", "--cap", "tool", "--arg", &name]);
        let (code, verdict, _, _, changes) = decided(&call());
        assert_eq!((code, verdict.as_str()), (4, "denied"), "{function}");
        project.write("taskrun.toml", with_changes(&changes).as_bytes());
        let (code, verdict, ..) = decided(&call());
        assert_eq!((code, verdict.as_str()), (0, "allowed"), "{function}: {changes}");
        project.write("taskrun.toml", POLICY.as_bytes());
    }
}

#[test]
fn a_function_that_a_tool_does_not_have_is_not_to_be_listed() {
    let project = project();
    let call = |name: &str| ask(&project, &["--agent", "helper", "--cap", "tool", "--arg", name]);
    let missing = call("name=scripted/lokup");
    assert_eq!((missing.code, &missing.error()["code"]), (2, &json!("unknown-function")));
    assert!(missing.stderr.contains("did you mean scripted/lookup?"), "{missing:?}");
    let (code, _, _, _, change) = decided(&call("name=scripted/lookup"));
    let listed = "add \"scripted/lookup\" to `tools` of the agent (taskrun.toml:30:1)";
    assert_eq!((code, change.as_str()), (4, listed));
}

#[test]
fn a_tool_of_the_host_needs_the_operations_that_it_asks_for() {
    let project = project();
    edit(&project, "\"controller: wait\"", "\"controller: spawn\"");
    let tools = "\"agent/helper\", \"host/delegate\", \"host/start_task_run\"]";
    edit(&project, "\"agent/helper\"]", tools);
    let call = |name: &str| of_reader(&project, "tool", &[&format!("name={name}")]);
    let (code, verdict, _, _, change) = decided(&call("host/delegate"));
    assert_eq!((code, verdict.as_str()), (4, "denied"), "it waits for the runs that it starts");
    assert_eq!(change, "add \"controller: wait\" to `allow` of the agent (taskrun.toml:14:1)");
    // Without a wait it needs no rule about one.
    let told = call("host/start_task_run").json();
    assert_eq!(told["verdict"], "allowed", "{told}");
    let last = told["layers"].as_array().and_then(|layers| layers.last()).expect("a layer");
    assert_eq!((&last["layer"], &last["verdict"]), (&json!("rules"), &json!("not_asked")));
    let reason = last["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("needed only to wait for the run, controller wait: "), "{last}");
}

#[test]
fn an_agent_as_a_tool_needs_no_rule_and_is_held_by_one_that_denies_starting_runs() {
    let project = project();
    let call = || decided(&of_reader(&project, "tool", &["name=agent/helper"]));
    edit(&project, "  \"controller: wait\",\n", "");
    let (code, _, rule, ..) = call();
    assert_eq!((code, rule.as_str()), (0, "agent/helper"), "the list of tools decides");
    edit(&project, "deny = [\"workspace-read", "deny = [\"controller: *\", \"workspace-read");
    let (code, verdict, rule, line, change) = call();
    assert_eq!((code, verdict.as_str(), rule.as_str()), (4, "denied", "controller: *"));
    assert_eq!(change, format!("remove deny \"controller: *\" (taskrun.toml:{line}:9)"));
}

#[test]
fn it_is_told_in_every_form() {
    let project = project();
    let question = ["--agent", "reader", "--cap", "workspace-write", "--arg", "path=docs/x"];
    let form =
        |form: &str| project.run(&[&["policy", "explain", "-o", form][..], &question].concat());
    let text = form("table");
    assert_eq!(text.code, 4, "{text:?}");
    assert_eq!(
        text.stdout,
        "denied: workspace-write docs/x by agent reader\n\
         ✗ agent reader: denied by deny \"workspace-write: **\" (taskrun.toml:26:41)\n    \
         to allow it: remove deny \"workspace-write: **\" (taskrun.toml:26:41)\n    \
         to allow it: add \"workspace-write: docs/**\" to `allow` of the agent (taskrun.toml:14:1)\n"
    );
    let error = text.error();
    assert_eq!(error["code"], "denied");
    assert!(error["hint"].as_str().expect("a hint").starts_with("remove deny"), "{error}");
    let (whole, line) = (form("json").json(), form("ndjson"));
    assert_eq!((line.stdout.lines().count(), &line.json()), (1, &whole));
    assert_eq!((&whole["v"], &whole["agent_name"]), (&json!(1), &json!("reader")));
    assert_eq!((form("name").stdout.as_str(), form("name").code), ("denied\n", 4));
}

#[test]
fn a_question_that_is_none_says_what_to_write() {
    let project = project();
    let cases: [(&[&str], &str, &str); 17] = [
        (&["--agent", "raeder", "--cap", "http"], "bad-question", "url="),
        (&["--agent", "raeder", "--cap", "model"], "unknown-agent", "did you mean reader?"),
        (&["--agent", "reader", "--cap", "workspace-raed"], "unknown-capability", "workspace-read"),
        (&["--agent", "reader", "--cap", "workspace-read"], "bad-question", "path="),
        (&["--agent", "reader", "--cap", "model", "--arg", "path=x"], "bad-question", "name="),
        (
            &["--agent", "reader", "--cap", "model", "--arg", "name=a", "--arg", "name=b"],
            "bad-question",
            "name=",
        ),
        (&["--agent", "reader", "--cap", "model", "--arg", "name=smal"], "bad-question", "small?"),
        (&["--agent", "helper", "--cap", "model"], "bad-question", "--arg name="),
        (&["--agent", "reader", "--cap", "prompts", "--arg", "id=brif"], "bad-question", "brief?"),
        (
            &["--agent", "reader", "--cap", "controller", "--arg", "operation=start"],
            "bad-question",
            "spawn",
        ),
        (&["--agent", "reader", "--cap", "memory", "--arg", "scope=all"], "bad-question", "tenant"),
        (&["--agent", "reader", "--cap", "metrics", "--arg", "name=A"], "bad-question", "a-z"),
        (
            &["--agent", "reader", "--cap", "http", "--arg", "url=ftp://a.example/"],
            "bad-question",
            "url=",
        ),
        (
            &["--agent", "reader", "--cap", "tool", "--arg", "name=scripted"],
            "bad-question",
            "TOOL/",
        ),
        (
            &["--agent", "reader", "--cap", "tool", "--arg", "name=none/f"],
            "unknown-tool",
            "tool ls",
        ),
        (
            &["--agent", "reader", "--cap", "tool", "--arg", "name=scripted/lokup"],
            "unknown-function",
            "did you mean scripted/lookup?",
        ),
        (&["--run", "@last", "--cap", "model"], "not-found", "taskrun run"),
    ];
    for (args, code, hint) in cases {
        let ran = ask(&project, args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{args:?}: {ran:?}");
        let error = ran.error();
        assert_eq!(error["code"], code, "{args:?}: {ran:?}");
        let told = error["hint"].as_str().unwrap_or_default();
        assert!(told.contains(hint), "{args:?}: {told}");
    }
    for args in [&["--cap", "model"][..], &["--agent", "reader", "--cap", "model", "--arg", "name"]]
    {
        let ran = ask(&project, args);
        assert_eq!((ran.code, &ran.error()["code"]), (2, &json!("usage")), "{args:?}: {ran:?}");
    }
}
