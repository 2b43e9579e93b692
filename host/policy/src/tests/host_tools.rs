//! Tools of the host among the `tools` of an agent, and the bounds of trees.

use taskrun_journal::spec::TreeBounds;

use super::super::{HostFunction, HostToolSet, Policy, PolicyErrors};
use super::parse;

fn read(body: &str) -> Result<Policy, PolicyErrors> {
    parse(&format!(
        "[tool.workspace]\ncomponent = \"w.wasm\"\n[agent.b]\ncomponent = \"b.wasm\"\n\
         [agent.a]\ncomponent = \"a.wasm\"\n{body}\n"
    ))
}

fn names(body: &str) -> Vec<&'static str> {
    let policy = read(body).unwrap_or_else(|errors| panic!("{body}: {errors}"));
    policy.agents["a"].host_tools.iter().map(|function| function.as_str()).collect()
}

const ALL: &str = "members = [\"b\"]\nallow = [\"controller: *\"]\n";

#[test]
fn m_30_a_set_or_a_single_tool_of_the_host_is_named_under_tools() {
    let task_runs = [
        "start_task_run",
        "list_task_runs",
        "get_task_run",
        "cancel_task_run",
        "wait_task_run",
        "read_task_run_transcript",
    ];
    assert_eq!(names(&format!("{ALL}tools = [\"host/task_runs\"]")), task_runs);
    let one = "tools = [\"host/ask_user\", \"workspace/*\"]";
    assert_eq!(names(one), ["ask_user"], "it needs no rule");
    let delegation = names(&format!("{ALL}tools = [\"host/delegation\"]"));
    assert_eq!(delegation, ["delegate_task", "delegate"]);
    let alone = names(&format!("{ALL}tools = [\"host/transfer_to_agent\"]"));
    assert_eq!(alone, ["transfer_to_agent"], "it is in no set");
    let both = names(&format!("{ALL}tools = [\"host/get_task_run\", \"host/task_runs\"]"));
    assert_eq!(both.len(), task_runs.len(), "each once");
    for set in HostToolSet::ALL {
        assert!(set.functions().all(|function| HostToolSet::parse(function.as_str()).is_none()));
    }
    for function in HostFunction::ALL {
        assert_eq!(HostFunction::parse(function.as_str()), Some(function));
    }
}

#[test]
fn w_039_an_agent_with_members_has_the_tools_of_tasks_that_its_rules_allow() {
    let leader = |rest: &str| {
        names(&format!(
            "{}{rest}",
            if rest.starts_with("members") { "" } else { "members = [\"b\"]\n" }
        ))
    };
    assert_eq!(leader(""), ["complete_task", "ask_user"]);
    let spawns = leader("allow = [\"controller: spawn\"]");
    assert_eq!(spawns, ["spawn_task", "create_task", "complete_task", "ask_user"]);
    assert_eq!(leader(ALL).len(), HostToolSet::Tasks.functions().count());
    assert_eq!(leader("tools = [\"host/ask_user\"]"), ["ask_user"], "it names its tools");
    assert!(names("").is_empty(), "no members");
    let alone = "allow = [\"controller: *\"]\ntools = [\"host/tasks\"]";
    assert_eq!(names(alone), ["check_tasks", "complete_task", "ask_user", "await_tasks"]);
    let named = read("allow = [\"controller: *\"]\ntools = [\"host/spawn_task\"]");
    assert!(named.expect_err("no members").to_string().contains("there are no `members`"));
    assert!(names("tools = [\"agent/b\"]").is_empty(), "an agent as a tool is no member");
}

#[test]
fn a_tool_of_the_host_of_which_no_rule_speaks_is_refused_with_what_to_add() {
    let refused = |body: &str| read(body).expect_err(body).to_string();
    let set =
        refused("members = [\"b\"]\ntools = [\"host/task_runs\"]\nallow = [\"controller: spawn\"]");
    let add = "add \"controller: list\", \"controller: get\", \"controller: cancel\", \
               \"controller: wait\", \"controller: subscribe\" to `allow`";
    assert!(set.contains(add), "{set}");
    let denied = "tools = [\"host/get_task_run\"]\ndeny = [\"controller: get\"]";
    assert!(refused(denied).contains("no rule allows what it does"));
    let left =
        names(&format!("{ALL}deny = [\"controller: cancel\"]\ntools = [\"host/task_runs\"]"));
    assert!(!left.contains(&"cancel_task_run") && left.len() == 5, "{left:?}");
    for (entry, reason) in [
        ("host", "does not say which set"),
        ("host/*", "does not say which set"),
        ("host/start_task_runs", "did you mean `start_task_run`?"),
        ("host/ask_user\", \"host/ask_user", "named before"),
    ] {
        let errors = refused(&format!("{ALL}tools = [\"{entry}\"]"));
        assert!(errors.contains(reason), "{entry}: {errors}");
    }
    let taken = parse("[tool.host]\ncomponent = \"t.wasm\"\n").expect_err("taken").to_string();
    assert!(taken.contains("give the tool another name"), "{taken}");
}

#[test]
fn consent_time_outs_and_engines_name_tools_of_the_host_and_agents_as_tools() {
    let body = format!(
        "{ALL}tools = [\"host/task_runs\", \"agent/b\"]\n\
         ask = [\"tool: host/start_task_run\", \"tool: agent/*\"]\n\
         timeouts = {{ \"host/wait_task_run\" = \"2s\", \"agent/b\" = \"5s\" }}\n\
         policy = {{ allow = [\"agent/b\", \"host/*\"], block = [\"host/cancel_task_run\"] }}"
    );
    let policy = read(&body).unwrap_or_else(|errors| panic!("{errors}"));
    let agent = &policy.agents["a"];
    assert_eq!(agent.ask.rules.len(), 2);
    assert_eq!(agent.timeouts.of("agent/b"), Some(std::time::Duration::from_secs(5)));
    for (key, reason) in [
        ("ask = [\"tool: host/start_task\"]", "unknown tool of the host"),
        ("ask = [\"tool: agent/nobody\"]", "unknown agent"),
        ("ask = [\"tool: agent/b\"]", "may call no such function"),
        ("ask = [\"tool: host\"]", "does not say which one"),
        ("timeouts = { \"host/ask_user\" = \"1s\" }", "may call no such function"),
        ("timeouts = { \"host/ask\" = \"1s\" }", "unknown tool of the host"),
        ("policy = { allow = [\"host/spawn_task\"] }", "may call no such function"),
    ] {
        let errors = read(&format!("{ALL}tools = [\"host/task_runs\"]\n{key}"));
        let errors = errors.expect_err(key).to_string();
        assert!(errors.contains(reason), "{key}: {errors}");
    }
}

#[test]
fn m_13_the_depth_of_a_tree_follows_from_the_tools_unless_it_is_stated() {
    let agent =
        |body: &str| read(body).unwrap_or_else(|errors| panic!("{errors}")).agents["a"].clone();
    let depth = |body: &str| agent(body).tree_depth();
    assert_eq!(depth(""), 8);
    assert_eq!(depth(&format!("{ALL}tools = [\"host/tasks\"]")), 8);
    assert_eq!(depth(&format!("{ALL}tools = [\"host/task_runs\"]")), 1);
    assert_eq!(depth(&format!("{ALL}tools = [\"host/tasks\", \"host/task_runs\"]")), 1);
    assert_eq!(depth(&format!("{ALL}tools = [\"host/subagents\"]")), 2);
    assert_eq!(depth(&format!("{ALL}tools = [\"host/spawn_agent\"]")), 2);
    assert_eq!(depth(&format!("{ALL}tools = [\"host/stop_agent\"]")), 8, "it starts none");
    assert_eq!(depth(&format!("{ALL}tools = [\"host/subagents\", \"host/tasks\"]")), 2);
    assert_eq!(depth(&format!("{ALL}tools = [\"host/subagents\", \"host/task_runs\"]")), 1);
    assert_eq!(depth(&format!("{ALL}tools = [\"host/list_task_runs\"]")), 8, "it starts none");
    let stated = "tools = [\"host/task_runs\"]\ntree = { depth = 2, runs = 128, slots = 8 }";
    let stated = agent(&format!("{ALL}{stated}"));
    assert_eq!(stated.tree_depth(), 2);
    assert_eq!(stated.tree, TreeBounds { depth: Some(2), runs: Some(128), slots: Some(8) });
    for bad in [
        "tree = { depth = 9 }",
        "tree = { runs = 0 }",
        "tree = { runs = 4097 }",
        "tree = { slots = 0 }",
        "tree = { slots = 65 }",
    ] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

#[test]
fn an_entry_for_the_host_is_found_with_its_place() {
    let body = format!("{ALL}tools = [\"workspace/*\", \"host/task_runs\"]");
    let policy = read(&body).unwrap_or_else(|errors| panic!("{errors}"));
    let entry = policy.tool_entry("a", "host/get_task_run").expect("it is named");
    assert_eq!((entry.text.as_str(), entry.location.line), ("host/task_runs", 9));
    assert!(policy.tool_entry("a", "host/spawn_task").is_none());
}

#[test]
fn of_then_and_now_what_both_name_is_left() {
    let then = format!("{ALL}tools = [\"host/tasks\"]\ntree = {{ runs = 50 }}");
    let now = format!(
        "{ALL}tools = [\"host/await_tasks\", \"host/get_task_run\"]\n\
                       tree = {{ depth = 3, runs = 60 }}"
    );
    let (mut then, now) = (read(&then).expect("then"), read(&now).expect("now"));
    assert!(then.bound_by("a", &now));
    let agent = &then.agents["a"];
    assert_eq!(agent.host_tools, [HostFunction::AwaitTasks]);
    assert_eq!((agent.tree_depth(), agent.tree.runs), (3, Some(50)));
    // Where one states no number of runs, it is the default that counts.
    for (then, now, both) in
        [("", "runs = 4096", Some(64)), ("runs = 128", "", Some(64)), ("", "runs = 5", Some(5))]
    {
        let with = |runs: &str| read(&format!("tree = {{ {runs} }}")).expect("a policy");
        let mut then = with(then);
        assert!(then.bound_by("a", &with(now)));
        assert_eq!(then.agents["a"].tree.runs, both, "{now}");
    }
    for (then, now, both) in
        [("", "slots = 64", Some(4)), ("slots = 9", "", Some(4)), ("", "slots = 2", Some(2))]
    {
        let with = |slots: &str| read(&format!("tree = {{ {slots} }}")).expect("a policy");
        let mut then = with(then);
        assert!(then.bound_by("a", &with(now)));
        assert_eq!(then.agents["a"].tree.slots, both, "{now}");
    }
}
