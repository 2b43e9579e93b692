//! Decisions of rules.

use taskrun_journal::fact::MemoryScope;

use super::super::{Capability, CapabilityAccess, Grants, HttpTarget, Preopen, Use};
use super::{agent, parse};

const READ: Capability = Capability::WorkspaceRead;
const WRITE: Capability = Capability::WorkspaceWrite;

#[test]
fn a_path_is_allowed_only_by_a_rule_for_it_and_never_against_a_denial() {
    let agent = agent(
        "allow = [\"workspace-read: **\", \"workspace-write: notes/**\"]\n\
         deny = [\"workspace-read: **/.env\", \"workspace-write: notes/kept/**\"]",
    );
    let cases = [
        (READ, "", true),
        (READ, "docs/a.md", true),
        (READ, ".env", false),
        (READ, "a/b/.env", false),
        (WRITE, "notes", true),
        (WRITE, "notes/a.md", true),
        (WRITE, "notes/kept", false),
        (WRITE, "notes/kept/a.md", false),
        (WRITE, "docs/a.md", false),
        (WRITE, "", false),
        (Capability::Model, "notes/a.md", false),
        (Capability::Http, "notes/a.md", false),
    ];
    for (capability, path, allowed) in cases {
        assert_eq!(
            agent.grants.decide(&Use::Path(capability, path)).allowed,
            allowed,
            "{capability} {path}"
        );
    }
}

#[test]
fn a_path_that_is_none_is_denied_whatever_is_allowed() {
    let agent = agent("allow = [\"workspace-read: **\"]");
    let long = "a/".repeat(2_048) + "a";
    let paths = ["/a", "/", "a/", "a//b", ".", "..", "a/../b", "./a", "a/.", "a\0b", &long];
    for path in paths {
        let decision = agent.grants.decide(&Use::Path(READ, path));
        assert!(!decision.allowed && decision.rule.is_none(), "{path:?}");
        assert!(!agent.grants.may_contain(READ, path), "{path:?}");
    }
    let decision = agent.grants.decide(&Use::Path(READ, "a/../b"));
    assert_eq!(decision.to_string(), "denied: the path contains `.`, `..` or an empty segment");
}

#[test]
fn writing_does_not_imply_reading() {
    let agent = agent("allow = [\"workspace-write: **\"]");
    assert!(agent.grants.decide(&Use::Path(WRITE, "a")).allowed);
    assert!(!agent.grants.decide(&Use::Path(READ, "a")).allowed);
    assert_eq!(agent.grants.access(READ), CapabilityAccess::Unlisted);
}

/// Every set of at most two allow and two deny rules over a few patterns that loads: for every
/// path, the decision is the one that the words "deny beats allow, else no" give.
#[test]
fn a_denial_always_beats_a_permission() {
    let patterns = ["**", "a/**", "a/b", "*/b", "**/b/**", "a/*", "c/**"];
    let paths = ["", "a", "b", "c", "a/b", "c/b", "a/c", "a/b/c", "c/a/b/a"];
    let mut loaded = 0;
    for mask in 0..1_u32 << (2 * patterns.len()) {
        let pick = |shift: usize| -> Vec<&str> {
            let chosen = |(index, _): &(usize, &&str)| mask >> (shift + index) & 1 == 1;
            patterns.iter().enumerate().filter(chosen).map(|(_, pattern)| *pattern).collect()
        };
        let (allow, deny) = (pick(0), pick(patterns.len()));
        if allow.len() > 2 || deny.len() > 2 {
            continue;
        }
        let rules = |patterns: &[&str]| {
            patterns
                .iter()
                .map(|p| format!("\"workspace-read: {p}\""))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let body = format!("allow = [{}]\ndeny = [{}]", rules(&allow), rules(&deny));
        // Many combinations hold rules that can never match, and are refused.
        let Ok(policy) = super::parse(&super::with_agent(&body)) else { continue };
        loaded += 1;
        let grants = &policy.agents["a"].grants;
        for path in paths {
            let alone = |pattern: &str| {
                let one = agent(&format!("allow = [\"workspace-read: {pattern}\"]"));
                one.grants.decide(&Use::Path(READ, path)).allowed
            };
            let denied = deny.iter().any(|pattern| alone(pattern));
            let expected = !denied && allow.iter().any(|pattern| alone(pattern));
            let decision = grants.decide(&Use::Path(READ, path));
            assert_eq!(decision.allowed, expected, "{body}\n{path}");
            assert!(!decision.allowed || decision.rule.is_some());
        }
    }
    assert!(loaded > 100, "only {loaded} combinations loaded");
}

#[test]
fn a_folder_may_be_visited_if_something_below_it_may_be_allowed() {
    let agent = agent(
        "allow = [\"workspace-read: docs/api/**\", \"workspace-read: src/*/README.md\", \"workspace-read: LICENSE\"]\n\
         deny = [\"workspace-read: docs/api/private/**\"]",
    );
    let cases = [
        ("", true),
        ("docs", true),
        ("docs/api", true),
        ("docs/api/v1/deep", true),
        ("docs/api/private", false),
        ("docs/api/private/deep", false),
        ("docs/guide", false),
        ("src", true),
        ("src/any", true),
        ("src/any/README.md", false),
        ("src/any/other", false),
        ("LICENSE", false),
        ("lib", false),
    ];
    for (dir, may) in cases {
        assert_eq!(agent.grants.may_contain(READ, dir), may, "{dir:?}");
        assert!(!agent.grants.may_contain(WRITE, dir), "{dir:?}");
    }
}

#[test]
fn a_capability_is_unlisted_denied_or_selective() {
    let agent = agent(
        "model = \"fast\"\nallow = [\"workspace-read: docs/**\"]\ndeny = [\"workspace-read: docs/a\", \"workspace-write: **\"]",
    );
    assert_eq!(agent.grants.access(Capability::Model), CapabilityAccess::Selective);
    assert_eq!(agent.grants.access(READ), CapabilityAccess::Selective);
    assert_eq!(agent.grants.access(Capability::Http), CapabilityAccess::Unlisted);
    let CapabilityAccess::Denied(rule) = agent.grants.access(WRITE) else { panic!("not denied") };
    assert_eq!(rule.to_string(), "deny \"workspace-write: **\" (conf/taskrun.toml:11:35)");
}

#[test]
fn an_agent_gets_the_models_that_its_rules_name() {
    let own = agent("model = \"fast\"");
    assert!(own.grants.decide(&Use::Model("fast")).allowed);
    assert!(!own.grants.decide(&Use::Model("large")).allowed);
    assert!(!own.grants.decide(&Use::Model("*")).allowed);
    let all_but_one = agent("allow = [\"model: *\"]\ndeny = [\"model: large\"]");
    assert!(all_but_one.grants.decide(&Use::Model("fast")).allowed);
    assert!(!all_but_one.grants.decide(&Use::Model("large")).allowed);
}

fn decide(body: &str, method: &str, url: &str) -> bool {
    let (scheme, rest) = url.split_once("://").unwrap();
    let path_start = rest.find('/').unwrap();
    let (authority, path) = rest.split_at(path_start);
    let (host, port) = authority.rsplit_once(':').unwrap();
    let target = HttpTarget { scheme, host, port: port.parse().unwrap(), path };
    agent(body).grants.decide(&Use::Http(method, target)).allowed
}

#[test]
fn a_request_is_decided_by_method_scheme_host_port_and_path() {
    let body = "allow = [\"http: GET,HEAD https://api.example.com/v1/**\", \"http: https://*.Example.org:8443\", \
                \"http: http://[::1]:8080\", \"http: http://10.0.0.1\"]\n\
                deny = [\"http: DELETE *\", \"http: https://secret.example.org\", \"http: https://api.example.com/v1/admin/**\", \
                \"http: https://p.example.org/private/**\"]";
    let cases = [
        ("GET", "https://api.example.com:443/v1/x", true),
        ("get", "https://api.example.com:443/v1/x", true),
        ("GET", "https://API.example.com.:443/v1", true),
        ("POST", "https://api.example.com:443/v1/x", false),
        ("GET", "http://api.example.com:443/v1/x", false),
        ("GET", "https://api.example.com:8443/v1/x", false),
        ("GET", "https://api.example.com:443/v2/x", false),
        ("GET", "https://evil-api.example.com:443/v1/x", false),
        ("GET", "https://api.example.com.evil.org:443/v1/x", false),
        ("GET", "https://api.example.com:443/v1/admin", false),
        ("GET", "https://api.example.com:443/v1/admin/users", false),
        ("GET", "https://api.example.com:443/v1/%61dmin/users", false),
        ("GET", "https://api.example.com:443/v1/%2561dmin/users", false),
        ("GET", "https://api.example.com:443/v1//admin", false),
        ("GET", "https://api.example.com:443/v1/x/../admin", false),
        ("GET", "https://api.example.com:443/v1/x%2f..%2fadmin", false),
        ("GET", "https://api.example.com:443/v1/x\\admin", false),
        ("GET", "https://api.example.com:443/v1/x;admin", false),
        ("GET", "https://api.example.com:443/v1/%zz", false),
        ("GET", "https://api.example.com:443/v1/%ff", false),
        ("GET", "https://api.example.com:443/v1/%C3%A9/", true),
        ("PUT", "https://a.example.org:8443/", true),
        ("PUT", "https://a.b.example.org:8443/any%2Fpath", true),
        ("PUT", "https://p.example.org:8443/x/y", true),
        ("PUT", "https://p.example.org:8443/private", false),
        // Read in one way it is below `private`, so the denial counts.
        ("PUT", "https://p.example.org:8443/x/..%2fprivate", false),
        ("PUT", "https://p.example.org:8443//private/x", false),
        ("PUT", "https://example.org:8443/", false),
        ("PUT", "https://notexample.org:8443/", false),
        ("PUT", "https://secret.example.org:8443/", false),
        ("DELETE", "https://a.example.org:8443/", false),
        ("delete", "https://a.example.org:8443/", false),
        ("GET", "http://[::1]:8080/", true),
        ("GET", "http://[0:0:0:0:0:0:0:1]:8080/", true),
        ("GET", "http://::1:8080/", true),
        ("GET", "http://10.0.0.1:80/", true),
        ("GET", "http://10.1:80/", false),
        ("GET", "ftp://10.0.0.1:80/", false),
        ("G ET", "http://10.0.0.1:80/", false),
        ("", "http://10.0.0.1:80/", false),
        ("GET", "https://é.example.org:8443/", false),
        ("GET", "https://.example.org:8443/", false),
    ];
    for (method, url, allowed) in cases {
        assert_eq!(decide(body, method, url), allowed, "{method} {url}");
    }
}

#[test]
fn a_decision_says_which_rule_decided_or_what_to_add() {
    let agent = agent(
        "allow = [\"workspace-write: notes/**\"]\ndeny = [\"workspace-write: notes/kept/**\"]",
    );
    let grants = &agent.grants;
    let cases = [
        (
            grants.decide(&Use::Path(WRITE, "notes/a")),
            "allowed by \"workspace-write: notes/**\" (conf/taskrun.toml:9:10)",
            "allowed by \"workspace-write: notes/**\"",
        ),
        (
            grants.decide(&Use::Path(WRITE, "notes/kept/a")),
            "denied by \"workspace-write: notes/kept/**\" (conf/taskrun.toml:10:9)",
            "denied by \"workspace-write: notes/kept/**\"",
        ),
        (
            grants.decide(&Use::Path(WRITE, "docs/a/b.md")),
            "no rule allows workspace-write (conf/taskrun.toml:7:1, add: allow = [\"workspace-write: docs/a/**\"])",
            "no rule allows workspace-write here",
        ),
        (
            grants.decide(&Use::Path(READ, "x\"y")),
            "no rule allows workspace-read (conf/taskrun.toml:7:1, add: allow = [\"workspace-read: x\\\"y\"])",
            "no rule allows workspace-read here",
        ),
        (
            grants.decide(&Use::Path(READ, "x\u{1b}2J/y")),
            "no rule allows workspace-read (conf/taskrun.toml:7:1, add: allow = [\"workspace-read: FOLDER/**\"])",
            "no rule allows workspace-read here",
        ),
        (
            grants.decide(&Use::Path(READ, "**/x")),
            "no rule allows workspace-read (conf/taskrun.toml:7:1, add: allow = [\"workspace-read: FOLDER/**\"])",
            "no rule allows workspace-read here",
        ),
        (
            grants.decide(&Use::Model("*")),
            "no rule allows model (conf/taskrun.toml:7:1, add: allow = [\"model: NAME\"])",
            "no rule allows model here",
        ),
        (
            grants.decide(&Use::Model("large")),
            "no rule allows model (conf/taskrun.toml:7:1, add: allow = [\"model: large\"])",
            "no rule allows model here",
        ),
        (
            grants.decide(&Use::Http(
                "GET",
                HttpTarget { scheme: "https", host: "x.org", port: 8443, path: "/v1/a" },
            )),
            "no rule allows http (conf/taskrun.toml:7:1, add: allow = [\"http: GET https://x.org:8443/v1/**\"])",
            "no rule allows http here",
        ),
    ];
    for (decision, for_operator, for_guest) in cases {
        assert_eq!(decision.to_string(), for_operator);
        assert_eq!(decision.for_guest(), for_guest);
    }
}

#[test]
fn what_a_decision_says_to_add_makes_it_allowed() {
    let target = HttpTarget { scheme: "http", host: "[::1]", port: 8080, path: "/a%20b/c" };
    let add = |text: &str| {
        let start = text.find("allow = ").unwrap();
        agent(text[start..].trim_end_matches(')'))
    };
    let empty = agent("");
    let after = add(&empty.grants.decide(&Use::Http("POST", target)).to_string());
    assert!(after.grants.decide(&Use::Http("POST", target)).allowed);
    for path in ["a/b/c", "a", ""] {
        let after = add(&empty.grants.decide(&Use::Path(READ, path)).to_string());
        assert!(after.grants.decide(&Use::Path(READ, path)).allowed, "{path:?}");
    }
}

#[test]
fn folders_are_opened_for_wasi_only_if_that_is_what_the_rules_say() {
    let open = |dir: &str, writable| Preopen { dir: dir.to_owned(), writable };
    let cases: [(&str, Result<Vec<Preopen>, &str>); 17] = [
        ("", Ok(vec![])),
        ("deny = [\"workspace-write: **\"]", Ok(vec![])),
        ("allow = [\"workspace-read: **\"]", Ok(vec![open("", false)])),
        (
            "allow = [\"workspace-read: b/**\", \"workspace-read: a/c/**\"]",
            Ok(vec![open("a/c", false), open("b", false)]),
        ),
        (
            "allow = [\"workspace-read: a/**\", \"workspace-read: a/c/**\"]",
            Ok(vec![open("a", false)]),
        ),
        (
            "allow = [\"workspace-read: **\", \"workspace-write: notes/**\"]",
            Ok(vec![open("", false), open("notes", true)]),
        ),
        (
            "allow = [\"workspace-read: n/a/**\", \"workspace-read: n/**\", \"workspace-write: n/**\"]",
            Ok(vec![open("n", true)]),
        ),
        (
            "allow = [\"workspace-read: ab/**\", \"workspace-read: a/**\"]",
            Ok(vec![open("a", false), open("ab", false)]),
        ),
        (
            "allow = [\"workspace-read: docs/**\"]\ndeny = [\"workspace-read: notes/**\"]",
            Ok(vec![open("docs", false)]),
        ),
        (
            "allow = [\"workspace-read: **\"]\ndeny = [\"workspace-write: **\"]",
            Ok(vec![open("", false)]),
        ),
        ("allow = [\"workspace-read: docs/*\"]", Err("workspace-read: docs/*")),
        ("allow = [\"workspace-read: README.md\"]", Err("workspace-read: README.md")),
        ("allow = [\"workspace-write: notes/**\"]", Err("workspace-write: notes/**")),
        (
            "allow = [\"workspace-read: a/**\", \"workspace-write: b/**\"]",
            Err("workspace-write: b/**"),
        ),
        (
            "allow = [\"workspace-read: docs/**\"]\ndeny = [\"workspace-read: docs/a\"]",
            Err("workspace-read: docs/a"),
        ),
        (
            "allow = [\"workspace-read: docs/**\"]\ndeny = [\"workspace-read: **/.env\"]",
            Err("workspace-read: **/.env"),
        ),
        // Another name for it would lead into the folder.
        (
            "allow = [\"workspace-read: docs/**\"]\ndeny = [\"workspace-read: Docs/a\"]",
            Err("workspace-read: Docs/a"),
        ),
    ];
    for (body, expected) in cases {
        let agent = agent(body);
        let found = agent.grants.preopens().map_err(|fault| fault.rule().text.as_str());
        assert_eq!(found, expected, "{body}");
    }
}

#[test]
fn rules_that_are_no_folders_for_wasi_are_told_with_the_reason() {
    const DOCS: &str = "\"workspace-read: docs/**\"";
    for (body, words) in [
        ("allow = [\"workspace-read: docs/*\"]".to_owned(), "expressed so; write `dir/**`"),
        ("allow = [\"workspace-write: docs/**\"]".to_owned(), "add \"workspace-read: docs/**\""),
        (
            format!("allow = [{DOCS}, \"workspace-write: notes/**\"]"),
            "add \"workspace-read: notes/**\"",
        ),
        (format!("allow = [{DOCS}, \"workspace-write: **\"]"), "add \"workspace-read: **\""),
        (
            format!("allow = [{DOCS}]\ndeny = [\"workspace-read: docs/a\"]"),
            "takes a part out of one that is allowed",
        ),
    ] {
        let agent = agent(&body);
        let fault = agent.grants.preopens().expect_err("they are no folders").to_string();
        assert!(fault.contains(words), "{body}: {fault}");
    }
}

#[test]
fn an_agent_gets_the_prompts_that_its_rules_name() {
    let grants = |rules: &str| {
        let prompts = "[prompt.brief]\ntemplate = \"a\"\n[prompt.long]\ntemplate = \"b\"\n";
        let text = format!("{prompts}[agent.a]\ncomponent = \"a.wasm\"\n{rules}\n");
        parse(&text).unwrap_or_else(|errors| panic!("{errors}")).agents["a"].grants.clone()
    };
    let one = grants("allow = [\"prompts: brief\"]");
    assert!(one.decide(&Use::Prompt("brief")).allowed);
    let refused = one.decide(&Use::Prompt("long"));
    assert!(!refused.allowed);
    assert_eq!(refused.for_guest(), "no rule allows prompts here");
    assert!(refused.to_string().contains("prompts: long"), "{refused}");
    let but_one = grants("allow = [\"prompts: *\"]\ndeny = [\"prompts: long\"]");
    assert!(but_one.decide(&Use::Prompt("brief")).allowed);
    assert_eq!(but_one.decide(&Use::Prompt("long")).for_guest(), "denied by \"prompts: long\"");
    assert_eq!(grants("").access(Capability::Prompts), CapabilityAccess::Unlisted);
}

#[test]
fn an_agent_reads_and_writes_the_memories_that_its_rules_name() {
    const READ: Capability = Capability::Memory;
    const WRITE: Capability = Capability::MemoryWrite;
    let of = |rules: &str| agent(rules).grants;
    let both = [MemoryScope::Session, MemoryScope::Tenant];
    let allowed = |grants: &Grants, capability| {
        both.map(|scope| grants.decide(&Use::Memory(capability, scope)).allowed)
    };
    let one = of("allow = [\"memory: *\", \"memory-write: session\"]");
    assert_eq!((allowed(&one, READ), allowed(&one, WRITE)), ([true, true], [true, false]));
    let refused = one.decide(&Use::Memory(WRITE, MemoryScope::Tenant));
    assert_eq!(refused.for_guest(), "no rule allows memory-write here");
    assert!(refused.to_string().contains("memory-write: tenant"), "{refused}");
    let but_one = of("allow = [\"memory: *\"]\ndeny = [\"memory: tenant\"]");
    assert_eq!(
        (allowed(&but_one, READ), allowed(&but_one, WRITE)),
        ([true, false], [false, false])
    );
    // No rule about anything else is one about memory.
    assert_eq!(allowed(&of("allow = [\"http: GET https://a.example/**\"]"), READ), [false, false]);
    assert!(matches!(of("deny = [\"memory: *\"]").access(READ), CapabilityAccess::Denied(_)));
    assert_eq!(of("").access(WRITE), CapabilityAccess::Unlisted);
}
