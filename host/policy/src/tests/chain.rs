//! Agents above a run have to allow what it does, too.

use std::path::Path;
use std::sync::Arc;

use super::super::{
    AgentRules, CallRules, Capability, Chain, DeclaredNames, Grants, HttpTarget, Preopen, Use,
    parse_accepted_denial, parse_denial,
};
use super::agent;

const READ: Capability = Capability::WorkspaceRead;
const WRITE: Capability = Capability::WorkspaceWrite;

const DECLARED: DeclaredNames<'static> = DeclaredNames { models: &["fast", "large"], prompts: &[] };

fn rules(name: &str, workspace: &str, body: &str) -> AgentRules {
    let own = AgentRules::of(&agent(body));
    AgentRules { agent: name.to_owned(), workspace: workspace.into(), ..own }
}

/// The rules of calls.
fn under(own: &Arc<Grants>, chain: Option<&Chain>) -> CallRules {
    CallRules::new(Arc::clone(own), chain.cloned().map(Arc::new))
}

/// A chain for a run in `/w`, with these agents above it, each with its workspace and rules.
fn chain(above: &[(&str, &str, &str)]) -> Chain {
    let mut chain = Chain::new(Path::new("/w"));
    for (name, workspace, body) in above {
        chain.push_agent(name, Some(Arc::new(rules(name, workspace, body))));
    }
    chain
}

/// The chain of a run whose request took these away.
fn narrowed(deny: &[&str]) -> Chain {
    let mut chain = chain(&[]);
    let deny = deny.iter().map(|text| parse_denial(text, DECLARED)).collect();
    chain.push_request("this run".to_owned(), Path::new("/w"), deny);
    chain
}

#[test]
fn a_path_is_allowed_only_where_everybody_allows_it() {
    let own = agent("allow = [\"workspace-read: **\", \"workspace-write: notes/**\"]").grants;
    let above = chain(&[
        ("parent", "/w", "allow = [\"workspace-read: docs/**\", \"workspace-write: **\"]"),
        ("root", "/w", "allow = [\"workspace-read: **\"]\ndeny = [\"workspace-read: docs/x\"]"),
    ]);
    let rules = under(&own, Some(&above));
    let cases = [
        (READ, "docs/a", None),
        (READ, "notes/a", Some("denied by agent parent: no rule allows workspace-read here")),
        (READ, "docs/x", Some("denied by agent root: \"workspace-read: docs/x\"")),
        (WRITE, "notes/a", Some("denied by agent root: no rule allows workspace-write here")),
        (WRITE, "docs/a", Some("no rule allows workspace-write here")),
    ];
    for (capability, path, refusal) in cases {
        let decided = rules.decide(&Use::Path(capability, path));
        let said = decided.as_ref().err().map(|denied| denied.for_guest.as_str());
        assert_eq!(said, refusal, "{capability} {path}");
        assert_eq!(
            rules.allows(&Use::Path(capability, path)),
            refusal.is_none(),
            "{capability} {path}"
        );
    }
    assert!(rules.may_contain(READ, ""));
    assert!(!rules.may_contain(READ, "notes"));
    assert!(under(&own, None).decide(&Use::Path(READ, "notes/a")).is_ok());
}

#[test]
fn an_operator_is_told_whose_rule_refused_and_where_it_stands() {
    let own = agent("allow = [\"workspace-read: **\", \"workspace-write: **\"]").grants;
    let above = chain(&[(
        "lead",
        "/w",
        "allow = [\"workspace-read: **\"]\ndeny = [\"workspace-write: **\"]",
    )]);
    let denied = under(&own, Some(&above)).decide(&Use::Path(WRITE, "a")).unwrap_err();
    assert_eq!(
        denied.rule,
        "denied by agent lead: \"workspace-write: **\" (conf/taskrun.toml:10:9)"
    );
    let above = chain(&[("lead", "/w", "")]);
    let denied = under(&own, Some(&above)).decide(&Use::Path(READ, "a/b")).unwrap_err();
    assert_eq!(
        denied.rule,
        "denied by agent lead: no rule allows workspace-read \
         (conf/taskrun.toml:7:1, add: allow = [\"workspace-read: a/**\"])"
    );
}

#[test]
fn models_and_addresses_are_those_that_everybody_allows() {
    let both = "allow = [\"model: *\", \"http: https://example.com/**\"]";
    let own = agent(both).grants;
    let above = chain(&[
        ("parent", "/w", both),
        ("root", "/w", "model = \"fast\"\nallow = [\"http: GET https://example.com/open/**\"]"),
    ]);
    let rules = under(&own, Some(&above));
    assert!(rules.decide(&Use::Model("fast")).is_ok(), "an agent's own model is an allow rule");
    let denied = rules.decide(&Use::Model("large")).unwrap_err();
    assert_eq!(denied.for_guest, "denied by agent root: no rule allows model here");
    let target = |path| HttpTarget { scheme: "https", host: "example.com", port: 443, path };
    assert!(rules.decide(&Use::Http("GET", target("/open/a"))).is_ok());
    for (method, path) in [("POST", "/open/a"), ("GET", "/closed")] {
        let denied = rules.decide(&Use::Http(method, target(path))).unwrap_err();
        assert!(denied.for_guest.starts_with("denied by agent root: "), "{method} {path}");
    }
}

#[test]
fn a_request_takes_away_and_gives_nothing() {
    let own = agent(
        "allow = [\"model: *\", \"workspace-read: docs/**\", \"http: https://example.com/**\"]",
    );
    let taken = narrowed(&["workspace-read: docs/x/**", "model: large", "http: POST *"]);
    let rules = under(&own.grants, Some(&taken));
    let target = HttpTarget { scheme: "https", host: "example.com", port: 443, path: "/a" };
    assert!(rules.decide(&Use::Path(READ, "docs/a")).is_ok());
    assert!(rules.decide(&Use::Model("fast")).is_ok());
    assert!(rules.decide(&Use::Http("GET", target)).is_ok());
    let denied = rules.decide(&Use::Path(READ, "docs/x/a")).unwrap_err();
    let said = "denied by the request for this run: \"workspace-read: docs/x/**\"";
    assert_eq!((denied.for_guest.as_str(), denied.rule.as_str()), (said, said));
    assert!(rules.decide(&Use::Model("large")).is_err());
    assert!(rules.decide(&Use::Http("POST", target)).is_err());
    // A right that the agent lacks is not given by a request that leaves it.
    assert!(rules.decide(&Use::Path(READ, "notes/a")).is_err());
    assert!(rules.decide(&Use::Path(WRITE, "docs/a")).is_err());
}

#[test]
fn who_is_not_known_allows_nothing() {
    let own = agent("allow = [\"model: *\", \"workspace-read: **\"]");
    let mut unknown = chain(&[]);
    unknown.push_agent("gone", None);
    let mut unrecorded = chain(&[]);
    unrecorded.push_unknown();
    let mut unreadable = chain(&[]);
    let deny = Err("no rule".to_owned());
    unreadable.push_request("this run".to_owned(), Path::new("/w"), deny);
    for chain in [unknown, unrecorded, unreadable] {
        let rules = under(&own.grants, Some(&chain));
        assert!(rules.decide(&Use::Path(READ, "a")).is_err(), "{chain:?}");
        assert!(!rules.allows(&Use::Path(READ, "a")) && !rules.may_contain(READ, ""), "{chain:?}");
        assert!(rules.decide(&Use::Model("fast")).is_err(), "{chain:?}");
        let preopens = own.grants.preopens().unwrap();
        assert_eq!(*rules.preopens(&preopens), [], "{chain:?}");
    }
}

#[test]
fn paths_are_compared_as_each_agents_workspace_says_them() {
    let own = agent("allow = [\"workspace-read: **\"]").grants;
    let cases = [
        // The workspace of who stands above is wider, narrower, beside it.
        ("/", "allow = [\"workspace-read: w/docs/**\"]", "docs/a", true),
        ("/", "allow = [\"workspace-read: docs/**\"]", "docs/a", false),
        ("/w/docs", "allow = [\"workspace-read: **\"]", "docs/a", true),
        ("/w/docs", "allow = [\"workspace-read: **\"]", "a", false),
        ("/w/docs", "allow = [\"workspace-read: **\"]", "docsy/a", false),
        ("/other", "allow = [\"workspace-read: **\"]", "docs/a", false),
    ];
    for (workspace, body, path, allowed) in cases {
        let above = chain(&[("lead", workspace, body)]);
        let rules = under(&own, Some(&above));
        assert_eq!(rules.decide(&Use::Path(READ, path)).is_ok(), allowed, "{workspace} {path}");
        assert_eq!(rules.allows(&Use::Path(READ, path)), allowed, "{workspace} {path}");
    }
    let above = chain(&[("lead", "/w/docs/deep", "allow = [\"workspace-read: **\"]")]);
    let rules = under(&own, Some(&above));
    assert!(rules.may_contain(READ, "") && rules.may_contain(READ, "docs"));
    assert!(!rules.may_contain(READ, "notes"));
    let above = chain(&[("lead", "/w/docs/deep", "allow = [\"workspace-read: a/**\"]")]);
    let deep = under(&own, Some(&above));
    assert!(deep.may_contain(READ, "docs"), "a part of what is below may be read");
    let denied = rules.decide(&Use::Path(READ, "notes/a")).unwrap_err();
    assert_eq!(denied.for_guest, "denied by agent lead: it is outside of its workspace");
}

#[test]
fn wasi_opens_the_parts_of_folders_that_everybody_grants() {
    let open = |dir: &str, writable| Preopen { dir: dir.to_owned(), writable };
    let own = "allow = [\"workspace-read: docs/**\", \"workspace-read: notes/**\", \
               \"workspace-write: notes/**\"]";
    let cases: [(&str, &str, Vec<Preopen>); 11] = [
        ("/w", own, vec![open("docs", false), open("notes", true)]),
        ("/w", "", vec![]),
        ("/w", "allow = [\"workspace-read: **\"]", vec![open("docs", false), open("notes", false)]),
        (
            "/w",
            "allow = [\"workspace-read: docs/open/**\", \"workspace-read: other/**\"]",
            vec![open("docs/open", false)],
        ),
        (
            "/w",
            "allow = [\"workspace-read: **\", \"workspace-write: notes/mine/**\"]",
            vec![open("docs", false), open("notes", false), open("notes/mine", true)],
        ),
        // An agent that may write and not read has no folder for WASI.
        ("/w", "allow = [\"workspace-write: **\"]", vec![]),
        // A rule that folders cannot express is left out.
        (
            "/w",
            "allow = [\"workspace-read: docs/*.md\", \"workspace-read: notes/**\"]",
            vec![open("notes", false)],
        ),
        (
            "/w",
            "allow = [\"workspace-read: **\"]\ndeny = [\"workspace-read: docs/x\"]",
            vec![open("notes", false)],
        ),
        ("/", "allow = [\"workspace-read: w/docs/**\"]", vec![open("docs", false)]),
        ("/w/docs", "allow = [\"workspace-read: **\"]", vec![open("docs", false)]),
        ("/v", "allow = [\"workspace-read: **\"]", vec![]),
    ];
    let own = agent(own).grants;
    let preopens = own.preopens().unwrap();
    for (workspace, body, expected) in cases {
        let above = chain(&[("lead", workspace, body)]);
        let rules = under(&own, Some(&above));
        assert_eq!(*rules.preopens(&preopens), expected, "{workspace} {body}");
    }
    let taken = narrowed(&["workspace-write: **", "workspace-read: docs/x/**"]);
    let rules = under(&own, Some(&taken));
    assert_eq!(*rules.preopens(&preopens), [open("notes", false)]);
    assert_eq!(*under(&own, None).preopens(&preopens), *preopens);
}

#[test]
fn a_denial_of_a_request_is_read_like_one_of_a_policy() {
    for (text, part) in [
        ("workspace-reed: **", "did you mean `workspace-read`?"),
        ("workspace-read:", "it selects nothing"),
        ("workspace-read: ../x", "`..`"),
        ("model: lorge", "did you mean `large`?"),
        ("http: ftp://x", "scheme"),
        ("", "unknown capability"),
    ] {
        let error = parse_denial(text, DECLARED).unwrap_err();
        assert!(error.contains(part), "{text:?}: {error}");
    }
}

#[test]
fn a_rule_that_denies_is_told_from_the_want_of_one_that_allows() {
    let spawn = Use::Operation(taskrun_journal::operation::Operation::Spawn);
    let stated = |own: &Arc<Grants>, above: Option<&Chain>| {
        under(own, above).stated_denial(&spawn).map(|denial| denial.for_guest)
    };
    let denies = "deny = [\"controller: *\"]";
    let (open, closed) = (agent("").grants, agent(denies).grants);
    assert_eq!(stated(&open, None), None);
    assert_eq!(stated(&closed, None).as_deref(), Some("denied by \"controller: *\""));
    assert_eq!(stated(&open, Some(&chain(&[("root", "/w", "")]))), None);
    let above = stated(&open, Some(&chain(&[("root", "/w", denies)])));
    assert_eq!(above.as_deref(), Some("denied by agent root: \"controller: *\""));
    let asked = stated(&open, Some(&narrowed(&["controller: spawn"])));
    let of_request = "denied by the request for this run: \"controller: spawn\"";
    assert_eq!(asked.as_deref(), Some(of_request));
    let mut unknown = chain(&[]);
    unknown.push_unknown();
    assert!(stated(&open, Some(&unknown)).is_some());
    let outside = under(&open, None).stated_denial(&Use::Path(READ, "../x"));
    assert!(outside.is_some(), "what is no path is not let pass for want of a rule");
}

#[test]
fn a_denial_that_was_accepted_may_name_what_the_policy_has_no_more() {
    for text in ["model: gone", "model:gone", "prompts: gone", "model: *", "workspace-read: x"] {
        assert!(parse_accepted_denial(text).is_ok(), "{text:?}");
    }
    for text in ["model: two words", "model: **", "model:", "memory: gone", "gone", ""] {
        assert!(parse_accepted_denial(text).is_err(), "{text:?}");
    }
}

#[test]
fn what_is_allowed_is_what_is_not_refused_for_every_kind_of_use() {
    let own = agent("allow = [\"model: *\", \"metrics: *\", \"workspace-read: **\"]").grants;
    let uses = [
        Use::Model("fast"),
        Use::Metric("seen"),
        Use::Path(READ, "docs/a"),
        Use::Path(READ, "notes/a"),
        Use::Operation(taskrun_journal::operation::Operation::Wait),
    ];
    let mut unknown = Chain::new(Path::new("/w"));
    unknown.push_unknown();
    for (above, expected) in [
        (None, [true, true, true, true, false]),
        (Some(unknown), [false; 5]),
        (Some(narrowed(&["metrics: *"])), [true, false, true, true, false]),
        (
            Some(chain(&[("lead", "/w/docs", "allow = [\"model: *\", \"workspace-read: a\"]")])),
            [true, false, true, false, false],
        ),
    ] {
        let rules = under(&own, above.as_ref());
        assert_eq!(uses.map(|used| rules.allows(&used)), expected, "{above:?}");
        assert_eq!(uses.map(|used| rules.decide(&used).is_ok()), expected, "{above:?}");
    }
}

#[test]
fn every_use_of_a_capability_is_denied_at_once_where_a_rule_of_any_layer_denies_all_of_it() {
    let allowing = agent("allow = [\"model: *\"]").grants;
    let denying = agent("deny = [\"model: *\"]").grants;
    let above = chain(&[("lead", "/w", "deny = [\"model: *\"]")]);
    let by_request = narrowed(&["model: *"]);
    for (own, chain, refusal) in [
        (&allowing, None, None),
        (&allowing, Some(&narrowed(&["model: large"])), None),
        (&denying, None, Some("denied by \"model: *\"")),
        (&allowing, Some(&above), Some("denied by agent lead: \"model: *\"")),
        (&allowing, Some(&by_request), Some("denied by the request for this run: \"model: *\"")),
    ] {
        let denied = under(own, chain).denial_of_all(Capability::Model);
        assert_eq!(denied.as_ref().map(|denied| denied.for_guest.as_str()), refusal);
        assert_eq!(under(own, chain).denial_of_all(READ), None);
    }
}
