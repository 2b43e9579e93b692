//! Explanations of decisions: the layers in their order, the rule with its line, and what would
//! turn it.

use std::path::Path;
use std::sync::Arc;

use super::super::{
    AgentRules, CallRules, Capability, Chain, DeclaredNames, HttpTarget, LayerExplanation, Use,
    parse_denial,
};
use super::agent;

const READ: Capability = Capability::WorkspaceRead;
const WRITE: Capability = Capability::WorkspaceWrite;

/// The rules of an agent alone.
fn alone(body: &str) -> CallRules {
    CallRules::new(agent(body).grants, None)
}

/// The change of a layer: the rules that go, with their lines, and the one that is added, with the
/// line of the section.
fn change(layer: &LayerExplanation<'_>) -> Option<String> {
    let change = layer.change.as_ref()?;
    let gone = change.remove.iter().map(|rule| format!("-{}:{}", rule.location.line, rule.text));
    let added = change.add.iter().map(|one| format!("+{}:{}", one.section.line, one.text));
    Some(gone.chain(added).collect::<Vec<_>>().join(" "))
}

/// The words of the only layer, and the change that would turn it.
fn explained(rules: &CallRules, used: &Use<'_>) -> (String, Option<String>) {
    let layers = rules.explain(used);
    let [layer] = layers.as_slice() else { panic!("{layers:?}") };
    (layer.outcome.to_string(), change(layer))
}

// The agent's section begins in line 7, its rules in line 9.
#[test]
fn the_rule_that_decides_is_named_with_its_line_and_what_would_turn_it() {
    let rules = alone(
        "allow = [\"workspace-read: docs/**\", \"http: https://a.example/v1/**\", \"model: *\"]\n\
         deny = [\n\"workspace-read: docs/secret*\",\n\"workspace-write: **\",\n\"model: large\"]",
    );
    let target = |path| HttpTarget { scheme: "https", host: "a.example", port: 443, path };
    let cases = [
        (
            Use::Path(READ, "docs/a"),
            "allowed by \"workspace-read: docs/**\" (conf/taskrun.toml:9:10)",
            Some("-9:workspace-read: docs/**"),
        ),
        (
            Use::Path(READ, "docs/secret.md"),
            "denied by \"workspace-read: docs/secret*\" (conf/taskrun.toml:11:1)",
            Some("-11:workspace-read: docs/secret*"),
        ),
        (
            Use::Path(READ, "notes/a"),
            "no rule allows workspace-read (conf/taskrun.toml:7:1, \
             add: allow = [\"workspace-read: notes/**\"])",
            Some("+7:workspace-read: notes/**"),
        ),
        // Both the denial and the absence of a permission stand in the way.
        (
            Use::Path(WRITE, "docs/a"),
            "denied by \"workspace-write: **\" (conf/taskrun.toml:12:1)",
            Some("-12:workspace-write: ** +7:workspace-write: docs/**"),
        ),
        (Use::Path(READ, "../a"), "denied: the path contains `.`, `..` or an empty segment", None),
        (
            Use::Http("GET", target("/v2/x")),
            "no rule allows http (conf/taskrun.toml:7:1, \
             add: allow = [\"http: GET https://a.example/v2/**\"])",
            Some("+7:http: GET https://a.example/v2/**"),
        ),
        (
            Use::Model("large"),
            "denied by \"model: large\" (conf/taskrun.toml:13:1)",
            Some("-13:model: large"),
        ),
        (
            Use::Metric("steps"),
            "no rule allows metrics (conf/taskrun.toml:7:1, add: allow = [\"metrics: steps\"])",
            Some("+7:metrics: steps"),
        ),
    ];
    for (used, said, turned) in cases {
        let (outcome, change) = explained(&rules, &used);
        assert_eq!((outcome.as_str(), change.as_deref()), (said, turned), "{used:?}");
    }
}

#[test]
fn every_rule_in_the_way_is_part_of_the_change() {
    let rules = alone(
        "allow = [\"workspace-read: **\", \"workspace-read: docs/*\"]\n\
         deny = [\"workspace-read: docs/a*\", \"workspace-read: **/*.md\"]",
    );
    let (_, refused) = explained(&rules, &Use::Path(READ, "docs/a.md"));
    let both = "-10:workspace-read: docs/a* -10:workspace-read: **/*.md";
    assert_eq!(refused.as_deref(), Some(both));
    let (_, allowed) = explained(&rules, &Use::Path(READ, "docs/b"));
    let both = "-9:workspace-read: ** -9:workspace-read: docs/*";
    assert_eq!(allowed.as_deref(), Some(both));
}

#[test]
fn a_model_of_the_agent_is_a_rule_with_the_place_of_its_key() {
    let (said, change) = explained(&alone("model = \"fast\""), &Use::Model("fast"));
    assert_eq!(said, "allowed by \"model: fast\" (conf/taskrun.toml:9:9)");
    assert_eq!(change.as_deref(), Some("-9:model: fast"));
}

#[test]
fn all_layers_are_explained_in_the_order_in_which_they_decide() {
    let rules = |name: &str, workspace: &str, body: &str| {
        let own = AgentRules::of(&agent(body));
        Arc::new(AgentRules { agent: name.to_owned(), workspace: workspace.into(), ..own })
    };
    let all = "allow = [\"workspace-read: **\"]";
    let mut chain = Chain::new(Path::new("/w"));
    chain.push_now(rules("own", "/w", "allow = [\"workspace-read: docs/**\"]"));
    let deny = parse_denial("workspace-read: docs/x", DeclaredNames::default());
    chain.push_request("this run".to_owned(), Path::new("/w"), deny.map(|rule| vec![rule]));
    chain.push_agent("lead", Some(rules("lead", "/w/docs", all)));
    chain.push_now(rules("lead", "/w", all));
    chain.push_agent("gone", None);
    chain.push_unknown();
    let own = CallRules::new(agent(all).grants, Some(Arc::new(chain)));
    let said = |path: &str| {
        let used = Use::Path(READ, path);
        let layers = own.explain(&used);
        let line = |layer: &LayerExplanation<'_>| format!("{}: {}", layer.layer, layer.outcome);
        layers.iter().map(line).collect::<Vec<_>>()
    };
    let by_all = "allowed by \"workspace-read: **\" (conf/taskrun.toml:9:10)";
    assert_eq!(
        said("docs/x"),
        [
            &format!("the run's own agent: {by_all}"),
            "agent own: allowed by \"workspace-read: docs/**\" (conf/taskrun.toml:9:10)",
            "the request for this run: denied by \"workspace-read: docs/x\" (request:1:1)",
            &format!("agent lead: {by_all}"),
            &format!("agent lead: {by_all}"),
            "agent gone: what it allows is not known here",
            "a run above that is not recorded: what it allows is not known here",
        ]
    );
    assert_eq!(said("notes/a")[3], "agent lead: it is outside of its workspace");
    let denied = own.decide(&Use::Path(READ, "notes/a")).unwrap_err();
    assert!(denied.rule.starts_with("denied by agent own: no rule allows"), "{denied:?}");
}
