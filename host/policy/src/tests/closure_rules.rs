//! Rules of agents whose closures are equal decide equally.

use taskrun_journal::fact::MemoryScope;
use taskrun_journal::operation::Operation;

use super::{parse, with_agent};
use crate::policy::{AgentPolicy, Policy};
use crate::{Capability, CapabilityAccess, Grants, HttpTarget, Preopen, Rule, Use};

/// Rules, each with another way to write it, which may mean something else in one of the lists.
const RULES: [(&str, &str); 25] = [
    ("workspace-read: **", "workspace-read:**/**"),
    ("workspace-read: docs/**", "workspace-read:  docs/**"),
    ("workspace-read: docs/**/x.md", "workspace-read: docs/**/**/x.md"),
    ("workspace-read: {a,b}/*", "workspace-read: {b,a}/*"),
    ("workspace-read: A/*", "workspace-read: a/*"),
    ("workspace-write: docs/**", "workspace-write: docs/* "),
    ("workspace-write: docs", "workspace-write: docs/**"),
    ("http: GET https://a.example/v1/**", "http: GET https://A.example:443/v1/**"),
    ("http: GET,POST https://a.example", "http: POST,GET https://a.example/**"),
    ("http: https://a.example:443", "http: https://a.example"),
    ("http: http://a.example/v1", "http: http://a.example:80/v1"),
    ("http: https://*.example", "http: https://*.a.example"),
    ("http: https://[::1]/v1/*", "http: https://[0:0::1]:443/v1/*"),
    ("http: https://a.example:8443", "http: https://a.example:443"),
    ("http: *", "http: PUT *"),
    ("http: GET *", "http:   GET   *"),
    ("model: fast", "model: *"),
    ("model: large", "model:large"),
    ("prompts: *", "prompts:*"),
    ("controller: spawn", "controller: *"),
    ("controller: wait", "controller:  wait"),
    ("memory: session", "memory: tenant"),
    ("memory-write: *", "memory-write: session"),
    ("metrics: *", "metrics: m"),
    ("metrics: n", "metrics:  n"),
];

/// Something of each capability, as the value of `allow`.
const ALLOWED: &str = r#""workspace-read: **", "workspace-write: **", "http: https://a.example",
    "model: *", "prompts: *", "controller: *", "memory: *", "memory-write: *", "metrics: *""#;

/// An index into [`RULES`], and the way it is written.
type Pick = (u8, bool);

fn policy_of(wide: bool, allow: &[Pick], deny: &[Pick]) -> Option<Policy> {
    let first = if wide { format!("{ALLOWED}, ") } else { String::new() };
    let list = |picks: &[Pick]| {
        let texts = picks.iter().take(4).map(|(pick, other)| {
            let (one, two) = RULES[usize::from(*pick) % RULES.len()];
            format!("{:?}", if *other { two } else { one })
        });
        texts.collect::<Vec<_>>().join(", ")
    };
    parse(&with_agent(&format!("allow = [{first}{}]\ndeny = [{}]", list(allow), list(deny)))).ok()
}

fn text_of(policy: &Policy) -> String {
    let digest = |_: &std::path::Path| Some("blake3:0".to_owned());
    let closure = policy.closure(&policy.agents["a"], &digest);
    closure.expect("all digests are known").text().to_owned()
}

/// The agent of a policy whose rules are those of a closure, as they stand in it.
fn read_again(text: &str) -> AgentPolicy {
    let closure: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
    let body = format!("allow = {}\ndeny = {}", closure["allow"], closure["deny"]);
    super::agent(&body)
}

/// Everything that rules decide about a set of uses.
fn decisions(grants: &Grants) -> (Vec<bool>, Vec<u8>, Option<Vec<Preopen>>) {
    let mut uses = Vec::new();
    let paths =
        ["", "docs", "DOCS", "docs/a", "docs/a/x.md", "docs/x.md", "a/b", "A/b", "b/b", "a", "c"];
    for path in paths {
        uses.push(Use::Path(Capability::WorkspaceRead, path));
        uses.push(Use::Path(Capability::WorkspaceWrite, path));
    }
    for (scheme, port) in [("https", 443), ("https", 8443), ("http", 80), ("http", 443)] {
        for host in ["a.example", "b.a.example", "example", "::1"] {
            for path in ["/", "/v1", "/v1/x", "/v1/x/y", "/v1//x", "/v2"] {
                let target = HttpTarget { scheme, host, port, path };
                uses.extend(["GET", "POST", "PUT"].map(|method| Use::Http(method, target)));
            }
        }
    }
    uses.extend(["fast", "large", "none"].map(Use::Model));
    uses.extend(["p", "q"].map(Use::Prompt));
    uses.extend(["m", "n", "o"].map(Use::Metric));
    uses.extend(Operation::ALL.map(Use::Operation));
    for scope in MemoryScope::ALL {
        uses.push(Use::Memory(Capability::Memory, scope));
        uses.push(Use::Memory(Capability::MemoryWrite, scope));
    }
    let allowed = uses.iter().map(|used| grants.decide(used).allowed).collect();
    let access = Capability::ALL.map(|capability| match grants.access(capability) {
        CapabilityAccess::Unlisted => 0,
        CapabilityAccess::Denied(_) => 1,
        CapabilityAccess::Selective => 2,
    });
    (allowed, access.to_vec(), grants.preopens().ok())
}

#[test]
fn fuzz_policies_with_equal_closures_decide_equally() {
    type Change = (bool, bool, Pick, u8);
    bolero::check!().with_type::<(Vec<Pick>, Vec<Pick>, Change)>().for_each(
        |(allow, deny, (wide, adds, pick, turn))| {
            let allow = &allow[..allow.len().min(3)];
            let Some(one) = policy_of(*wide, allow, deny) else { return };
            let (text, decided) = (text_of(&one), decisions(&one.agents["a"].grants));
            let again = read_again(&text);
            assert_eq!(decisions(&again.grants), decided, "{text}");
            assert_eq!(again.grants.rules().len(), one.agents["a"].grants.rules().len(), "{text}");

            // The same rules in another order, one of them written in the other way, and perhaps
            // one more.
            let mut other = allow.to_vec();
            if !other.is_empty() {
                let turn = usize::from(*turn) % other.len();
                other.rotate_left(turn);
                other[0].1 ^= pick.1;
            }
            if *adds {
                other.insert(0, *pick);
            }
            let Some(other) = policy_of(*wide, &other, deny) else { return };
            if text_of(&other) == text {
                assert_eq!(decisions(&other.agents["a"].grants), decided, "{text}");
            }
        },
    );
}

#[test]
fn each_rule_is_read_again_from_a_closure_as_it_was() {
    let mut read = 0;
    for (one, two) in RULES {
        for text in [one, two] {
            // What is denied is a part of something that is allowed.
            let denied = format!("allow = [{ALLOWED}]\ndeny = [{text:?}]");
            for body in [format!("allow = [{text:?}]"), denied] {
                let Ok(policy) = parse(&with_agent(&body)) else { continue };
                let again = read_again(&text_of(&policy));
                let before = policy.agents["a"].grants.rules();
                assert_eq!(again.grants.rules().len(), before.len(), "{body}");
                for rule in before {
                    let same = |other: &&Rule| {
                        (other.verdict, other.capability, &other.selector)
                            == (rule.verdict, rule.capability, &rule.selector)
                    };
                    assert!(again.grants.rules().iter().any(|other| same(&other)), "{body}");
                }
                read += 1;
            }
        }
    }
    assert!(read > RULES.len() * 3, "{read} of them load");
}
