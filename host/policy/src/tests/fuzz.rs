//! Policies and rules made of pieces at random.

use std::path::Path;
use std::sync::Arc;

use taskrun_fixtures::corpus::{Edit, edited, percent_that_fit};

use super::super::{AgentRules, CallRules, Capability, Chain, Grants, HttpTarget, RuleChange, Use};
use super::{agent, parse, with_agent};
use crate::policy::Policy;

/// Pieces of policies: whole lines, halves of them, and what upsets a parser.
const PIECES: [&str; 48] = [
    "[tool.t]\n",
    "[agent.b]\n",
    "[agent.a.limits]\n",
    "[model.m]\n",
    "[defaults]\n",
    "[prompt.p]\n",
    "[workspace]\n",
    "component = \"x.wasm\"\n",
    "provider = \"echo\"\n",
    "provider = \"openai-chat\"\n",
    "model = \"fast\"\n",
    "tools = [\"workspace/*\"]\n",
    "tools = [\"agent/*\", \"t/f\"]\n",
    "members = [\"*\"]\n",
    "allow = [\"workspace-read: docs/**\"]\n",
    "allow = [",
    "]\n",
    "deny = [",
    "\"workspace-write: **\", ",
    "\"http: GET https://a.example/v1/**\", ",
    "\"model: fast\", ",
    "\"controller: *\", ",
    "\"memory: tenant\", ",
    "ask = [\"tag: danger\"]\n",
    "limits = { ",
    "budget = { ",
    "tokens = 5_000, ",
    "usd = 0.05, ",
    "call = \"5s\", ",
    "memory = \"1MiB\"",
    " }\n",
    "retry = { attempts = 3, pause = \"1s\" }\n",
    "timeouts = { \"*\" = \"10s\" }\n",
    "policy = { block = [\"t/*\"] }\n",
    "root = \"..\"\n",
    "template = \"{{ a }}\"\n",
    "= ",
    "\"",
    "'''",
    "[[",
    "{",
    "\u{202e}",
    "\0",
    "#",
    "\\u0000",
    "99999999999999999999",
    "-1",
    "\n",
];

/// Policies that people begin with: those of the demo and of the examples.
const POLICIES: [&str; 5] = [
    include_str!("../../../cli/src/demo/taskrun.toml"),
    include_str!("../../../../guest-examples/autonomous/taskrun.toml"),
    include_str!("../../../../guest-examples/autonomous-resume/taskrun.toml"),
    include_str!("../../../../guest-examples/delegation/taskrun.toml"),
    include_str!("../../../../guest-examples/with-subagent/taskrun.toml"),
];

/// Pages whose blocks of TOML are one policy together.
const PAGES: [&str; 3] = [
    include_str!("../../../../docs/policy.md"),
    include_str!("../../../../docs/capabilities.md"),
    include_str!("../../../../docs/models.md"),
];

fn policies() -> Vec<String> {
    let of_page = |page: &str| {
        let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        blocks.collect::<Vec<_>>().join("\n")
    };
    let pages = PAGES.into_iter().map(of_page);
    POLICIES.into_iter().map(str::to_owned).chain(pages).collect()
}

/// Rules of those who review code, write documents and ask services, one in each line.
const RULES: &str = include_str!("corpus/rules.txt");
/// Paths that those rules are about, and others beside them, one in each line.
const PATHS: &str = include_str!("corpus/paths.txt");
/// The same of requests: method, scheme, host, port and path.
const URLS: &str = include_str!("corpus/urls.txt");

/// A line of a file.
fn line(of: &'static str, pick: usize) -> &'static str {
    let count = of.lines().count();
    of.lines().nth(pick % count).expect("there are as many")
}

#[test]
fn each_policy_of_the_corpus_loads_and_so_does_each_rule() {
    for text in policies() {
        parse(&text).unwrap_or_else(|errors| panic!("{errors}: {text}"));
    }
    let fault = |rule: &str| {
        let body = format!("allow = [{rule:?}]");
        parse(&with_agent(&body)).err().map(|errors| errors.to_string())
    };
    assert_eq!(RULES.lines().filter_map(fault).collect::<Vec<_>>(), [] as [&str; 0]);
}

fn is_read_or_told(text: &str) {
    match parse(text) {
        Ok(policy) => {
            let again = parse(text).expect("it was read before");
            assert_eq!(policy.digest, again.digest);
        }
        Err(errors) => {
            let said = errors.to_string();
            assert!(said.contains("taskrun.toml:"), "{said}");
        }
    }
}

#[test]
fn of_changed_policies_a_part_load() {
    let policies = policies();
    let texts: Vec<&str> = policies.iter().map(String::as_str).collect();
    let percent = percent_that_fit(&texts, &PIECES, |text| parse(text).is_ok());
    assert!(percent >= 10, "{percent} %");
}

#[test]
fn fuzz_a_policy_with_changes_is_read_or_every_mistake_has_its_place() {
    let policies = policies();
    bolero::check!().with_type::<(u8, Vec<Edit>)>().for_each(|(pick, edits)| {
        let policy = &policies[usize::from(*pick) % policies.len()];
        is_read_or_told(&edited(policy, edits, &PIECES));
    });
}

fn text_of(picks: &[(u8, Option<char>)]) -> String {
    let piece = |(pick, other): &(u8, Option<char>)| match other {
        Some(character) if *pick >= 240 => character.to_string(),
        Some(_) | None => PIECES[usize::from(*pick) % PIECES.len()].to_owned(),
    };
    picks.iter().map(piece).collect()
}

#[test]
fn fuzz_a_policy_is_read_or_every_mistake_has_its_place() {
    bolero::check!().with_type::<Vec<(u8, Option<char>)>>().for_each(|picks| {
        is_read_or_told(&with_agent(&text_of(picks)));
    });
}

const SEGMENTS: [&str; 10] = ["a", "b", "docs", "A", ".env", "*", "**", "a*", "x.md", "é"];

/// A path, or a pattern where `wild` allows it: of up to four segments, or a path of the corpus, now
/// and then with another one behind it.
fn path_of(picks: [u8; 4], wild: bool) -> String {
    if !wild && picks[0] >= 224 {
        let path = line(PATHS, usize::from(picks[1]));
        return match picks[2] < 200 {
            true => path.to_owned(),
            false => format!("{path}/{}", line(PATHS, usize::from(picks[3]))),
        };
    }
    let known = SEGMENTS.iter().filter(|segment| wild || !segment.contains('*'));
    let known: Vec<&str> = known.copied().collect();
    let chosen = picks.iter().take_while(|pick| **pick < 200);
    let chosen: Vec<&str> = chosen.map(|pick| known[usize::from(*pick) % known.len()]).collect();
    chosen.join("/")
}

/// A rule, for files if `pick` is even and for HTTP if not, or one of the corpus.
fn rule_of((pick, path): (u8, [u8; 4])) -> String {
    if pick >= 192 {
        return line(RULES, usize::from(path[0])).to_owned();
    }
    let path = path_of(path, true);
    match pick % 4 {
        0 => format!("workspace-read: {path}"),
        2 => format!("workspace-write: {path}"),
        1 => format!("http: GET https://a.example/{path}"),
        _ => format!("http: https://a.example/{path}"),
    }
}

type Rules = (Vec<(u8, [u8; 4])>, Vec<(u8, [u8; 4])>);

/// The policy of an agent with the first of these rules, as far as a policy may have them.
fn policy_of((allow, deny): &Rules) -> Policy {
    let allow = allow.iter().take(3).map(|rule| (true, rule_of(*rule)));
    policy_with(allow.chain(deny.iter().take(3).map(|rule| (false, rule_of(*rule)))))
}

/// The policy of an agent with those of these rules, to allow and others to deny, that a policy may have
/// beside those before them.
fn policy_with(wanted: impl IntoIterator<Item = (bool, String)>) -> Policy {
    let mut rules: Vec<(bool, String)> = Vec::new();
    let of = |rules: &[(bool, String)]| {
        let list = |wanted: bool| {
            let rules = rules.iter().filter(|(allows, _)| *allows == wanted);
            rules.map(|(_, text)| format!("{text:?}")).collect::<Vec<_>>().join(", ")
        };
        parse(&with_agent(&format!("allow = [{}]\ndeny = [{}]", list(true), list(false)))).ok()
    };
    for rule in wanted {
        rules.push(rule);
        if of(&rules).is_none() {
            rules.pop();
        }
    }
    of(&rules).expect("it loaded with each of them")
}

fn rules_of(policy: &Policy, chain: Option<Chain>) -> CallRules {
    CallRules::new(Arc::clone(&policy.agents["a"].grants), chain.map(Arc::new))
}

/// Everything that rules say of a path, as a file and as the path of a URL, and of a URL of the corpus.
fn allowed(rules: &CallRules, path: &str, url: u8) -> [bool; 4] {
    let path_of_url = format!("/{path}");
    let target = HttpTarget { scheme: "https", host: "a.example", port: 443, path: &path_of_url };
    let words: Vec<&str> = line(URLS, usize::from(url)).split(' ').collect();
    let [method, scheme, host, port, path_of_url] = words[..] else { panic!("{words:?}") };
    let port = port.parse().expect("a port");
    let other = HttpTarget { scheme, host, port, path: path_of_url };
    [
        rules.allows(&Use::Path(Capability::WorkspaceRead, path)),
        rules.allows(&Use::Path(Capability::WorkspaceWrite, path)),
        rules.decide(&Use::Http("GET", target)).is_ok(),
        rules.decide(&Use::Http(method, other)).is_ok(),
    ]
}

#[test]
fn fuzz_whoever_is_narrower_never_allows_more() {
    bolero::check!().with_type::<(Rules, Rules, (u8, [u8; 4]), [u8; 4], u8)>().for_each(
        |(own, above, denial, path, url)| {
            let (policy, above) = (policy_of(own), policy_of(above));
            let path = path_of(*path, false);
            let alone = allowed(&rules_of(&policy, None), &path, *url);
            let over = allowed(&rules_of(&above, None), &path, *url);
            let mut chain = Chain::new(Path::new("/w"));
            let rules = AgentRules::of(&above.agents["a"]);
            chain.push_agent(
                "above",
                Some(Arc::new(AgentRules { workspace: "/w".into(), ..rules })),
            );
            let both = allowed(&rules_of(&policy, Some(chain)), &path, *url);
            for index in 0..both.len() {
                assert_eq!(both[index], alone[index] && over[index], "{path} {index}");
            }
            let mut stricter = own.clone();
            stricter.1.truncate(2);
            let before = policy_of(&stricter);
            // The last one, as of two that cover each other the later one is left out.
            stricter.1.push(*denial);
            let before = allowed(&rules_of(&before, None), &path, *url);
            let left = allowed(&rules_of(&policy_of(&stricter), None), &path, *url);
            for index in 0..left.len() {
                assert!(!left[index] || before[index], "{path} {index}: {}", rule_of(*denial));
            }
        },
    );
}

/// Paths of rules that meet each other, and the paths that are asked about.
const PATTERNS: [&str; 8] = ["**", "docs/**", "docs/*", "docs/a*", "*/a", "**/b", "docs/a", "x/**"];
const ASKED: [&str; 5] = ["docs/a", "docs/b", "docs/a/b", "x/a", "../a"];

/// Rules to allow, and others to deny.
type Picks = [(bool, u8); 8];

/// An agent with those of these rules that a policy may have: for files, and for HTTP where a pick is
/// large.
fn agent_of(picks: &Picks) -> Policy {
    policy_with(picks.iter().map(|(allows, pick)| (*allows, text_of_pick(*pick))))
}

fn text_of_pick(pick: u8) -> String {
    let pattern = PATTERNS[usize::from(pick) % PATTERNS.len()];
    match pick {
        0..=199 => format!("workspace-read: {pattern}"),
        200.. => format!("http: https://a.example/{pattern}"),
    }
}

/// The rules after a change.
fn changed(grants: &Grants, change: &RuleChange<'_>) -> Grants {
    let is_left =
        |rule: &&crate::Rule| !change.remove.iter().any(|gone| std::ptr::eq(*gone, *rule));
    let mut rules: Vec<_> = grants.rules().iter().filter(is_left).cloned().collect();
    if let Some(missing) = &change.add {
        let added = agent(&format!("allow = [{:?}]", missing.text));
        rules.extend(added.grants.rules().iter().cloned());
    }
    Grants { rules, location: grants.location.clone() }
}

#[test]
fn fuzz_an_explanation_is_the_decision_and_its_change_turns_it() {
    bolero::check!().with_type::<(Picks, Picks, Option<u8>, u8)>().for_each(
        |(own, above, denial, asked)| {
            let (own, above) = (agent_of(own), agent_of(above));
            let mut chain = Chain::new(Path::new("/w"));
            let agent_above = AgentRules::of(&above.agents["a"]);
            let above = Arc::new(AgentRules { workspace: "/w".into(), ..agent_above });
            chain.push_agent("above", Some(Arc::clone(&above)));
            if let Some(pick) = denial {
                let deny = crate::parse_denial(&text_of_pick(*pick), Default::default());
                let deny = deny.map(|rule| vec![rule]);
                chain.push_request("this run".to_owned(), Path::new("/w"), deny);
            }
            let rules = rules_of(&own, Some(chain));
            let path = ASKED[usize::from(*asked) % ASKED.len()];
            let path_of_url = format!("/{path}");
            let target =
                HttpTarget { scheme: "https", host: "a.example", port: 443, path: &path_of_url };
            for used in [
                Use::Path(Capability::WorkspaceRead, path),
                Use::Path(Capability::WorkspaceWrite, path),
                Use::Http("GET", target),
            ] {
                let layers = rules.explain(&used);
                let refusing = layers.iter().find(|layer| !layer.outcome.allowed());
                match (rules.decide(&used), refusing) {
                    (Ok(()), None) => assert!(rules.allows(&used)),
                    (Err(denied), Some(refusing)) => {
                        assert!(!rules.allows(&used));
                        let rule = refusing.rule();
                        let told = rule.is_none_or(|rule| denied.rule.contains(&rule.text));
                        assert!(told, "{}: {}", denied.rule, refusing.outcome);
                    }
                    (decided, refusing) => panic!("{path}: {decided:?}, {refusing:?}"),
                }
                for (layer, grants) in layers.iter().zip([&own.agents["a"].grants, &above.grants]) {
                    let Some(change) = &layer.change else { continue };
                    let after = changed(grants, change).decide(&used).allowed;
                    assert_ne!(after, layer.outcome.allowed(), "{path}: {change:?}");
                }
            }
        },
    );
}
