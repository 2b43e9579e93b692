//! Agents among the `tools` of an agent.

use super::super::{Policy, PolicyErrors};
use super::{parse, with_agent};

fn callees(tools: &str, members: &str) -> Result<Vec<String>, PolicyErrors> {
    let text = format!(
        "[tool.workspace]\ncomponent = \"w.wasm\"\n[agent.b]\ncomponent = \"b.wasm\"\n\
         [agent.c]\ncomponent = \"c.wasm\"\n[agent.a]\ncomponent = \"a.wasm\"\n\
         tools = {tools}\nmembers = {members}\n"
    );
    parse(&text).map(|policy| policy.agents["a"].callees.clone())
}

#[test]
fn an_agent_among_the_tools_is_one_that_may_be_called_and_started() {
    let table = [
        (r#"["workspace/*"]"#, "[]", &[][..]),
        (r#"["agent/b"]"#, "[]", &["b"]),
        (r#"["agent/a", "workspace/list", "agent/b"]"#, r#"["c"]"#, &["a", "b"]),
        (r#"["agent/*"]"#, r#"["c", "b"]"#, &["c", "b"]),
        (r#"["agent/b", "agent/*"]"#, r#"["c", "b"]"#, &["b", "c"]),
    ];
    for (tools, members, expected) in table {
        let read = callees(tools, members).unwrap_or_else(|errors| panic!("{tools}: {errors}"));
        assert_eq!(read, expected, "{tools}");
    }
    let text = "[agent.b]\ncomponent = \"b.wasm\"\n[agent.a]\ncomponent = \"a.wasm\"\n\
                tools = [\"agent/b\"]\nmembers = [\"a\", \"b\"]\n";
    let policy = parse(text).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(policy.agents["a"].all_members(), ["a", "b"]);
    assert!(policy.agents["a"].tools.is_empty());
}

#[test]
fn what_names_no_agent_is_refused_with_what_to_write() {
    let table = [
        (r#"["agent/nobody"]"#, "unknown agent"),
        (r#"["agent"]"#, "does not say which agent"),
        (r#"["agent/*"]"#, "there are no `members`"),
        (r#"["agent/b", "agent/b"]"#, "named before"),
    ];
    for (tools, reason) in table {
        let errors = callees(tools, "[]").expect_err(tools).to_string();
        assert!(errors.contains(reason), "{tools}: {errors}");
    }
    let errors = parse("[tool.agent]\ncomponent = \"t.wasm\"\n").expect_err("taken").to_string();
    assert!(errors.contains("give the tool another name"), "{errors}");
}

#[test]
fn an_entry_of_tools_is_found_with_its_place() {
    let agents = "[agent.b]\ncomponent = \"b.wasm\"\n[agent.c]\ncomponent = \"c.wasm\"";
    let body = format!(
        "members = [\"b\"]\ntools = [\"workspace/read\",\n\"agent/c\", \"agent/*\",\n\
         \"workspace/*\"]\n{agents}"
    );
    let policy = parse(&with_agent(&body)).unwrap_or_else(|errors| panic!("{errors}"));
    let found = |name: &str| {
        let entry = policy.tool_entry("a", name)?;
        Some((entry.text, entry.location.line, entry.location.column))
    };
    let entry = |text: &str, line, column| Some((text.to_owned(), line, column));
    assert_eq!(found("workspace/read"), entry("workspace/read", 10, 10));
    assert_eq!(found("workspace/list"), entry("workspace/*", 12, 1));
    assert_eq!(found("agent/c"), entry("agent/c", 11, 1));
    assert_eq!(found("agent/b"), entry("agent/*", 11, 12));
    assert_eq!(found("other/f"), None);
    assert_eq!(policy.tool_entry("b", "workspace/read"), None);
}

#[test]
fn an_agent_that_was_a_tool_and_is_a_member_now_may_still_be_started() {
    let policy = |line: &str| {
        let text = format!(
            "[agent.a]\ncomponent = \"a.wasm\"\n{line}\n[agent.b]\ncomponent = \"b.wasm\"\n\
             [agent.c]\ncomponent = \"c.wasm\"\n"
        );
        Policy::parse(&text, "taskrun.toml".as_ref()).expect("a policy")
    };
    let then = policy("tools = [\"agent/b\", \"agent/c\"]");
    for (now, members, callees) in [
        ("members = [\"b\"]", &["b"][..], &[] as &[&str]),
        ("tools = [\"agent/b\"]", &["b"], &["b"]),
        ("members = [\"c\"]\ntools = [\"agent/b\"]", &["c", "b"], &["b"]),
        ("", &[], &[]),
    ] {
        let mut bound = then.clone();
        assert!(bound.bound_by("a", &policy(now)));
        let agent = &bound.agents["a"];
        assert_eq!(agent.all_members(), members, "{now}");
        assert_eq!(agent.callees, callees, "{now}");
    }
}
