//! Every kind of problem: the place, the message and the help, exactly as people see them.
//!
//! The tables are text files. A case is the text of a policy, then for each problem, in order, a
//! line `! line:column message` and a line `? help`. An empty line ends it.

use std::path::Path;

use super::super::PolicyErrorKind;
use super::{parse, with_agent};
use crate::policy::{DESCRIPTION_BYTES_MAX, MEMBERS_MAX, POLICY_BYTES_MAX, RULES_MAX};

/// Checks each case of a table; `policy` makes a whole policy from the text of a case.
fn check(table: &str, policy: impl Fn(&str) -> String) {
    let cases = table.split("\n\n").map(str::trim).filter(|case| !case.is_empty());
    for case in cases {
        let is_text = |line: &&str| !line.starts_with("! ");
        let text = case.lines().take_while(is_text).collect::<Vec<_>>().join("\n");
        let mut seen = text.clone();
        if let Err(errors) = parse(&policy(&text)) {
            for error in &errors.errors {
                let (line, column) = (error.location.line, error.location.column);
                let kind = &error.kind;
                seen.push_str(&format!("\n! {line}:{column} {kind}\n? {}", error.help));
            }
        }
        assert_eq!(seen, case, "\nseen:\n{seen}\n");
    }
}

#[test]
fn problems_of_the_file_are_told_with_place_and_help() {
    check(include_str!("file_errors.txt"), str::to_owned);
}

#[test]
fn problems_of_an_agent_are_told_with_place_and_help() {
    check(include_str!("agent_errors.txt"), with_agent);
}

#[test]
fn problems_of_rules_are_told_with_place_and_help() {
    check(include_str!("rule_errors.txt"), with_agent);
}

#[test]
fn all_problems_are_told_at_once_in_the_order_of_the_text() {
    let text =
        "[agent.b]\ncomponent = 1\ntols = []\n[agent.a]\nmodel = \"x\"\nallow = [\"y: z\"]\n";
    let errors = parse(text).unwrap_err();
    let lines: Vec<u32> = errors.errors.iter().map(|error| error.location.line).collect();
    assert_eq!(lines, [2, 3, 4, 5, 6]);
    assert_eq!(&*errors.source_text, text);
    assert_eq!(&*errors.path, Path::new("conf/taskrun.toml"));
    assert!(errors.to_string().starts_with("conf/taskrun.toml:2:13: `component` must be a string"));
}

#[test]
fn a_span_marks_exactly_the_wrong_part_of_the_text() {
    let cases = [
        ("allow = [\"wrokspace-read: **\"]", "wrokspace-read"),
        ("allow = [\"workspace-read:   a/../b\"]", "a/../b"),
        // Written with an escape, the value's bytes are not those of the file.
        ("allow = [\"\\u0077rokspace-read: **\"]", "\"\\u0077rokspace-read: **\""),
        ("allow = ['''wrokspace-read: **''']", "'''wrokspace-read: **'''"),
        ("tools = [\"workspce/list\"]", "workspce"),
        ("members = [\"b\"]", "b"),
        ("retry = { pause = \"1 s\" }", "\"1 s\""),
        ("retry = { then = \"stop\" }", "\"stop\""),
        ("retry = { skips = 2 }", "2"),
        ("retry = { then = \"abort\", skips = 2 }", "2"),
        ("retry = { then = \"skip\", skips = 11 }", "11"),
        ("retry = { then = \"skip\", skips = 0 }", "0"),
        ("retry = { on = [\"deadline\", \"\"] }", "\"\""),
        ("lmits = {}", "lmits"),
        ("limits = { call = \"10 s\" }", "\"10 s\""),
    ];
    for (body, marked) in cases {
        let errors = parse(&with_agent(body)).unwrap_err();
        assert_eq!(&errors.source_text[errors.errors[0].span.clone()], marked, "{body}");
    }
}

#[test]
fn columns_count_characters_and_lines_end_as_on_any_system() {
    let errors = parse("# é\r\nagent.é = 1 # ü\r\n\"ö\" = 2").unwrap_err();
    let places: Vec<String> =
        errors.errors.iter().map(|error| error.location.to_string()).collect();
    // A bare key outside ASCII is not TOML, and then nothing else is said.
    assert_eq!(places, ["conf/taskrun.toml:2:7"]);
    let errors = parse("# é\r\n\"é\" = 1\r\ndefaults.\"ü\" = 2").unwrap_err();
    let places: Vec<String> =
        errors.errors.iter().map(|error| error.location.to_string()).collect();
    assert_eq!(places, ["conf/taskrun.toml:2:1", "conf/taskrun.toml:3:10"]);
}

#[test]
fn a_policy_beyond_its_bounds_is_refused() {
    let large = "#".repeat(POLICY_BYTES_MAX + 1);
    let errors = parse(&large).unwrap_err().errors;
    let kind = PolicyErrorKind::TooLarge { bytes: POLICY_BYTES_MAX + 1, max: POLICY_BYTES_MAX };
    assert_eq!(errors[0].kind, kind);

    let description = format!("description = \"{}\"", "x".repeat(DESCRIPTION_BYTES_MAX + 1));
    assert_eq!(parse(&with_agent(&description)).unwrap_err().errors.len(), 1);

    let rules = |count: usize| {
        let rules: Vec<String> = (0..count).map(|n| format!("\"workspace-read: f{n}\"")).collect();
        with_agent(&format!("allow = [{}]", rules.join(", ")))
    };
    assert!(parse(&rules(RULES_MAX)).is_ok());
    assert_eq!(parse(&rules(RULES_MAX + 1)).unwrap_err().errors.len(), 1);

    // The agent `a` counts as one of them all.
    let agents = |count: usize, members: &str| {
        let others = (1..count).map(|n| format!("[agent.b{n}]\ncomponent = \"b.wasm\"\n"));
        with_agent(&format!("members = [{members}]\n{}", others.collect::<String>()))
    };
    let named: Vec<String> = (1..=MEMBERS_MAX + 1).map(|n| format!("\"b{n}\"")).collect();
    assert!(parse(&agents(MEMBERS_MAX, "\"*\"")).is_ok());
    assert!(parse(&agents(MEMBERS_MAX + 2, &named[1..].join(", "))).is_ok());
    for members in ["\"*\"", &named.join(", ")] {
        let errors = parse(&agents(MEMBERS_MAX + 2, members)).unwrap_err().errors;
        assert_eq!(errors.len(), 1);
        assert!(matches!(errors[0].kind, PolicyErrorKind::OutOfRange { .. }), "{}", errors[0]);
    }

    let deep = format!("x = {}", "[".repeat(100_000));
    assert!(parse(&deep).is_err());
}

#[test]
fn an_allow_rule_that_cannot_be_read_makes_no_second_problem_of_a_denial() {
    let body = "allow = [\"workspace-read: /docs\"]\ndeny = [\"workspace-read: docs/a\"]";
    assert_eq!(parse(&with_agent(body)).unwrap_err().errors.len(), 1);
}
