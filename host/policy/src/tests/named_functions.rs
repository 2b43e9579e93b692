//! Functions that rules about calls name each by itself.

use std::path::Path;
use std::sync::Arc;

use super::{agent, with_agent};
use crate::policy::Policy;

const RULES: &str = "tools = [\"workspace/*\"]\n\
    ask = [\"tool: workspace/write\", \"tool: workspace/*\", \"tag: danger\"]\n\
    policy = { allow = [\"workspace/read\"], block = [\"workspace/drop\"], block_tags = [\"t\"] }\n\
    timeouts = { \"workspace/list\" = \"1s\", \"workspace/re*\" = \"2s\", \"*\" = \"3s\" }";

#[test]
fn each_is_known_by_its_key_and_its_place() {
    let agent = agent(RULES);
    let named = agent.named_functions.iter();
    let named: Vec<_> = named.map(|one| (one.key, one.name.as_str(), one.location.line)).collect();
    assert_eq!(
        named,
        [
            ("ask", "workspace/write", 10),
            ("policy.allow", "workspace/read", 11),
            ("policy.block", "workspace/drop", 11),
            ("timeouts", "workspace/list", 12),
        ]
    );
    assert_eq!(agent.named_functions[0].location.column, 8);
}

#[test]
fn a_policy_that_was_one_before_is_held_to_no_check_that_came_later() {
    let text = with_agent(&format!(
        "{RULES}\nallow = [\"workspace-read: docs/**\"]\ndeny = [\"workspace-read: Docs/**\"]"
    ));
    let path = Path::new("conf/taskrun.toml");
    let errors = Policy::parse(&text, path).expect_err("nothing is left of what is allowed");
    assert!(errors.to_string().contains("can never decide anything"), "{errors}");
    let kept = Policy::parse_without_models(&text, path, &Arc::default());
    let kept = kept.unwrap_or_else(|errors| panic!("{errors}"));
    assert!(kept.agents["a"].named_functions.is_empty());
}
