//! Narrowings of requests, held against what the agent of the run has.

use std::time::Duration;

use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::quantity::DurationDisplay;
use taskrun_journal::time::millis;
use taskrun_journal::tool::ToolSpec;

use crate::grants::{CapabilityAccess, Grants};
use crate::limits::{Budget, CALL_MAX, Limits, STEP_MAX, TOKENS_MAX, least};
use crate::pattern::Pattern;
use crate::rule::{DeclaredNames, parse_accepted_denial, parse_denial};

/// Most tools, and most deny rules, that a request names.
pub const NARROWING_ENTRIES_MAX: usize = 64;
/// Most bytes of all of them together: each run beneath keeps those of all runs above it.
pub const NARROWING_BYTES_MAX: usize = 16 << 10;

/// All names and rules in a request, by field.
fn texts(narrow: &Narrowing) -> [(&'static str, Vec<&String>); 5] {
    [
        ("narrow.tools", narrow.tools.iter().flatten().collect()),
        ("narrow.deny", narrow.deny.iter().collect()),
        ("narrow.only_tags", narrow.only_tags.iter().flatten().collect()),
        ("narrow.deny_tags", narrow.deny_tags.iter().collect()),
        ("narrow.timeouts", narrow.timeouts.keys().collect()),
    ]
}

/// Checks the sizes of a narrowing, for which no agent has to be known.
///
/// # Errors
/// The first of its parts that has too much.
pub fn check_narrowing_sizes(narrow: &Narrowing) -> Result<(), NarrowingError> {
    for (field, texts) in texts(narrow) {
        if texts.len() > NARROWING_ENTRIES_MAX {
            let reason = format!("{field} has more than {NARROWING_ENTRIES_MAX} entries");
            return Err(invalid(field, reason));
        }
    }
    let texts = texts(narrow).into_iter().flat_map(|(_, texts)| texts);
    if texts.map(String::len).sum::<usize>() > NARROWING_BYTES_MAX {
        let reason = format!("tools and rules have more than {NARROWING_BYTES_MAX} bytes");
        return Err(invalid("narrow", reason));
    }
    Ok(())
}

/// A part of a narrowing that cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NarrowingError {
    /// The part, as a request names it.
    pub field: &'static str,
    /// The words for the caller.
    pub reason: String,
}

/// The rights of an agent from which a request takes away.
#[derive(Debug, Clone, Copy)]
pub struct NarrowingBounds<'a> {
    /// The agent's name.
    pub agent: &'a str,
    /// Its rules.
    pub grants: &'a Grants,
    /// The names that its rules may use.
    pub declared: DeclaredNames<'a>,
    /// Its budget.
    pub budget: &'a Budget,
    /// Its limits.
    pub limits: &'a Limits,
    /// The functions that the runs above leave to the run, described under their qualified names.
    pub functions: &'a [&'a ToolSpec],
    /// The denials of the run that the run continues, which were checked when that was accepted.
    pub accepted_denials: &'a [String],
}

impl NarrowingBounds<'_> {
    /// Checks a narrowing: what would take nothing, or give something, is a mistake of the caller.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, narrow: &Narrowing) -> Result<(), NarrowingError> {
        let left = self.functions;
        for selector in narrow.tools.iter().flatten() {
            let pattern = Pattern::of_tool(selector);
            if !left.iter().any(|tool| pattern.matches(tool)) {
                let known: Vec<_> = left.iter().map(|tool| &*tool.name).collect();
                return Err(invalid(
                    "narrow.tools",
                    format!(
                        "{selector:?} is no function that agent {} may call here; it may call: {}",
                        self.agent,
                        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
                    ),
                ));
            }
        }
        check_tags_and_times(narrow, left)?;
        narrow.deny.iter().try_for_each(|rule| self.check_denial(rule))?;
        self.check_numbers(narrow)
    }

    fn check_numbers(&self, narrow: &Narrowing) -> Result<(), NarrowingError> {
        let Narrowing { turns, tokens, cost_microusd, tool_calls, wall_ms, .. } = narrow;
        let Narrowing { prompt_tokens, completion_tokens, .. } = narrow;
        let most = |of: Option<u64>| Some(of.unwrap_or(TOKENS_MAX));
        let budget = self.budget;
        let wall = budget.wall.map(millis);
        let bounds = [
            ("narrow.turns", "turns", turns.map(u64::from), 1, budget.turns.map(u64::from)),
            ("narrow.tokens", "tokens", *tokens, 1, most(budget.tokens)),
            ("narrow.prompt_tokens", "tokens", *prompt_tokens, 1, most(budget.prompt_tokens)),
            (
                "narrow.completion_tokens",
                "tokens",
                *completion_tokens,
                1,
                most(budget.completion_tokens),
            ),
            (
                "narrow.cost_microusd",
                "millionths of a dollar",
                *cost_microusd,
                1,
                Some(budget.cost_microusd.unwrap_or(u64::MAX)),
            ),
            (
                "narrow.tool_calls",
                "tool calls",
                tool_calls.map(u64::from),
                0,
                self.limits.tool_calls.map(u64::from),
            ),
            ("narrow.wall_ms", "milliseconds", *wall_ms, 1, wall),
            (
                "narrow.step_ms",
                "milliseconds of a plan step",
                narrow.step_ms,
                1,
                Some(millis(self.limits.step)),
            ),
            (
                "narrow.last_step_ms",
                "milliseconds of its last step",
                narrow.last_step_ms,
                1,
                Some(millis(self.limits.last_step.unwrap_or(STEP_MAX))),
            ),
            (
                "narrow.turn_calls",
                "tool calls in a turn",
                narrow.turn_calls.map(u64::from),
                0,
                self.limits.turn_calls.map(u64::from),
            ),
            (
                "narrow.tool_failures",
                "failed tool calls in a row",
                narrow.tool_failures.map(u64::from),
                1,
                Some(u64::from(self.limits.tool_failures)),
            ),
        ];
        for (field, what, asked, least, most) in bounds {
            let Some(asked) = asked else { continue };
            if asked < least {
                return Err(invalid(field, format!("{asked} {what} are too few for a run")));
            }
            if let Some(most) = most.filter(|most| asked > *most) {
                let agent = self.agent;
                let reason = format!(
                    "a run of agent {agent} has at most {most} {what}, and a request can only take \
                     away from that"
                );
                return Err(invalid(field, reason));
            }
        }
        Ok(())
    }

    fn check_denial(&self, text: &str) -> Result<(), NarrowingError> {
        let wrong = |reason: String| invalid("narrow.deny", format!("{text:?}: {reason}"));
        if self.accepted_denials.iter().any(|accepted| accepted == text) {
            return parse_accepted_denial(text).map(drop).map_err(wrong);
        }
        let rule = parse_denial(text, self.declared).map_err(wrong)?;
        if rule.selector.is_everything() {
            return Ok(());
        }
        match self.grants.access(rule.capability) {
            CapabilityAccess::Selective => Ok(()),
            CapabilityAccess::Denied(_) | CapabilityAccess::Unlisted => {
                let (capability, agent) = (rule.capability, self.agent);
                let all = rule.capability.everything_rule();
                Err(wrong(format!(
                    "it takes a part of `{capability}` away, of which agent {agent} has nothing; \
                     write \"{all}\" to refuse it whatever comes"
                )))
            }
        }
    }
}

fn invalid(field: &'static str, reason: String) -> NarrowingError {
    NarrowingError { field, reason }
}

/// Checks tags and time-outs against the functions that are left to the run. A tag that is denied
/// may be one that only agents beneath know.
fn check_tags_and_times(narrow: &Narrowing, left: &[&ToolSpec]) -> Result<(), NarrowingError> {
    for tag in narrow.only_tags.iter().flatten() {
        let named = std::slice::from_ref(tag);
        if !left.iter().any(|tool| tool.is_stated_as(named)) {
            let reason = match left.iter().find(|tool| tool.is_tagged(named)) {
                Some(tool) => format!(
                    "only {} itself says that it has the tag {tag:?}; state it under `tags` of its \
                     tool in the policy",
                    tool.name
                ),
                None => format!("{tag:?} is no tag of a function that the run may call"),
            };
            return Err(invalid("narrow.only_tags", reason));
        }
    }
    for (text, timeout) in &narrow.timeouts {
        let (field, pattern) = ("narrow.timeouts", Pattern::parse(text));
        if !left.iter().any(|tool| pattern.matches(tool)) {
            let reason = format!("{text:?} is about no function that the run may call");
            return Err(invalid(field, reason));
        }
        if *timeout == 0 || u128::from(*timeout) > CALL_MAX.as_millis() {
            let most = DurationDisplay(CALL_MAX);
            return Err(invalid(field, format!("a call takes from 1ms to {most}")));
        }
    }
    Ok(())
}

impl Budget {
    /// Takes away what a request takes away.
    pub fn narrow(&mut self, narrow: &Narrowing) {
        self.turns = least(self.turns, narrow.turns);
        self.tokens = least(self.tokens, narrow.tokens);
        self.prompt_tokens = least(self.prompt_tokens, narrow.prompt_tokens);
        self.completion_tokens = least(self.completion_tokens, narrow.completion_tokens);
        self.cost_microusd = least(self.cost_microusd, narrow.cost_microusd);
        self.wall = least(self.wall, narrow.wall_ms.map(Duration::from_millis));
    }
}

impl Limits {
    /// Takes away what a request takes away.
    pub fn narrow(&mut self, narrow: &Narrowing) {
        self.turn_calls = least(self.turn_calls, narrow.turn_calls);
        self.tool_calls = least(self.tool_calls, narrow.tool_calls);
        if let Some(failures) = narrow.tool_failures {
            self.tool_failures = self.tool_failures.min(failures);
        }
        if let Some(step) = narrow.step_ms {
            self.step = self.step.min(Duration::from_millis(step));
        }
        self.last_step = least(self.last_step, narrow.last_step_ms.map(Duration::from_millis));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;
    use std::path::Path;
    use taskrun_journal::tool::ToolHints;

    fn function(name: &str, tags: &[&str], tags_stated: bool) -> ToolSpec {
        let tags: Vec<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
        ToolSpec {
            name: name.to_owned(),
            title: None,
            description: String::new(),
            input_schema: "{}".to_owned(),
            output_schema: None,
            hints: ToolHints::default(),
            timeout: None,
            stated_tags: if tags_stated { tags.clone() } else { Vec::new() },
            tags,
        }
    }

    /// Checks a narrowing of an agent that reads `docs`, may call `t/f` and `t/g`, and has bounds
    /// on everything but tokens and money; gives the part that is refused.
    fn refused(change: impl FnOnce(&mut Narrowing)) -> Option<&'static str> {
        let text = "[agent.a]\ncomponent = \"a.wasm\"\nallow = [\"workspace-read: docs/**\"]\n\
                    budget = { turns = 5, wall = \"1m\" }\n\
                    limits = { tool_calls = 7, turn_calls = 3, tool_failures = 2, last_step = \"9s\" }\n";
        let policy = Policy::parse(text, Path::new("taskrun.toml")).expect("a valid policy");
        let agent = &policy.agents["a"];
        let functions = [function("t/f", &["look"], true), function("t/g", &["claimed"], false)];
        let functions: Vec<&ToolSpec> = functions.iter().collect();
        let bounds = NarrowingBounds {
            agent: "a",
            grants: &agent.grants,
            declared: DeclaredNames::default(),
            budget: &agent.budget,
            limits: &agent.limits,
            functions: &functions,
            accepted_denials: &["model: gone".to_owned(), "http: POST *".to_owned()],
        };
        let mut narrow = Narrowing::default();
        change(&mut narrow);
        bounds.check(&narrow).err().map(|error| error.field)
    }

    #[test]
    fn a_request_takes_from_what_there_is_and_adds_nothing() {
        let texts =
            |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(refused(|_| {}), None);
        for (tools, fits) in [
            (&["t/f"][..], true),
            (&["t/*"], true),
            (&[], true),
            (&["t/h"], false),
            (&["t/f", "u/*"], false),
            (&["*"], false),
            (&["t/f*"], false),
        ] {
            let part = refused(|narrow| narrow.tools = Some(texts(tools)));
            assert_eq!(part, (!fits).then_some("narrow.tools"), "{tools:?}");
        }
        for (deny, fits) in [
            ("workspace-read: docs/private/**", true),
            ("workspace-write: **", true),
            ("workspace-write: docs/**", false),
            ("http", false),
            // Those of the run that it continues, and others like them.
            ("model: gone", true),
            ("model: lost", false),
            ("http: POST *", true),
            ("http: PUT *", false),
        ] {
            let part = refused(|narrow| narrow.deny = texts(&[deny]));
            assert_eq!(part, (!fits).then_some("narrow.deny"), "{deny}");
        }
        for (tag, fits) in [("look", true), ("claimed", false), ("other", false)] {
            let part = refused(|narrow| narrow.only_tags = Some(texts(&[tag])));
            assert_eq!(part, (!fits).then_some("narrow.only_tags"), "{tag}");
        }
        assert_eq!(refused(|narrow| narrow.deny_tags = texts(&["other"])), None);
        let most = u64::try_from(CALL_MAX.as_millis()).expect("it fits");
        for (pattern, ms, fits) in [
            ("t/f", 1, true),
            ("*", most, true),
            ("t/g*", 1, true),
            ("t/f", 0, false),
            ("t/f", most + 1, false),
            ("u/*", 1, false),
        ] {
            let part = refused(|narrow| narrow.timeouts = [(pattern.to_owned(), ms)].into());
            assert_eq!(part, (!fits).then_some("narrow.timeouts"), "{pattern} {ms}");
        }
    }

    #[test]
    fn each_number_lies_between_its_least_and_what_the_agent_has() {
        type Set = fn(&mut Narrowing, u64);
        let numbers: [(&str, Set, u64, u64); 9] = [
            ("narrow.turns", |n, v| n.turns = u32::try_from(v).ok(), 1, 5),
            ("narrow.tokens", |n, v| n.tokens = Some(v), 1, TOKENS_MAX),
            ("narrow.cost_microusd", |n, v| n.cost_microusd = Some(v), 1, u64::MAX),
            ("narrow.tool_calls", |n, v| n.tool_calls = u32::try_from(v).ok(), 0, 7),
            ("narrow.wall_ms", |n, v| n.wall_ms = Some(v), 1, 60_000),
            ("narrow.step_ms", |n, v| n.step_ms = Some(v), 1, 120_000),
            ("narrow.last_step_ms", |n, v| n.last_step_ms = Some(v), 1, 9_000),
            ("narrow.turn_calls", |n, v| n.turn_calls = u32::try_from(v).ok(), 0, 3),
            ("narrow.tool_failures", |n, v| n.tool_failures = u32::try_from(v).ok(), 1, 2),
        ];
        for (field, set, least, most) in numbers {
            for number in [least, most] {
                assert_eq!(refused(|narrow| set(narrow, number)), None, "{field} {number}");
            }
            let outside = [least.checked_sub(1), most.checked_add(1)].into_iter().flatten();
            for number in outside {
                let part = refused(|narrow| set(narrow, number));
                assert_eq!(part, Some(field), "{number}");
            }
        }
    }

    #[test]
    fn sizes_are_bounded_before_an_agent_is_known() {
        let of = |count: usize, bytes: usize| Narrowing {
            deny: vec!["x".repeat(bytes); count],
            ..Narrowing::default()
        };
        assert_eq!(check_narrowing_sizes(&of(NARROWING_ENTRIES_MAX, 1)), Ok(()));
        assert_eq!(check_narrowing_sizes(&of(1, NARROWING_BYTES_MAX)), Ok(()));
        for (narrow, field) in [
            (of(NARROWING_ENTRIES_MAX + 1, 1), "narrow.deny"),
            (of(1, NARROWING_BYTES_MAX + 1), "narrow"),
            (of(2, NARROWING_BYTES_MAX / 2 + 1), "narrow"),
        ] {
            let error = check_narrowing_sizes(&narrow).expect_err(field);
            assert_eq!(error.field, field);
        }
    }

    #[test]
    fn budget_and_limits_only_become_smaller() {
        let narrow = Narrowing {
            turns: Some(3),
            tokens: Some(10),
            cost_microusd: Some(4),
            wall_ms: Some(1_000),
            tool_calls: Some(2),
            turn_calls: Some(1),
            tool_failures: Some(1),
            step_ms: Some(700),
            last_step_ms: Some(800),
            ..Narrowing::default()
        };
        let mut budget = Budget { turns: Some(2), ..Budget::default() };
        budget.narrow(&narrow);
        assert_eq!((budget.turns, budget.tokens), (Some(2), Some(10)));
        assert_eq!((budget.cost_microusd, budget.wall), (Some(4), Some(Duration::from_secs(1))));
        let mut limits = Limits { tool_calls: None, turn_calls: Some(9), ..Limits::default() };
        limits.narrow(&narrow);
        assert_eq!(
            (limits.tool_calls, limits.turn_calls, limits.tool_failures),
            (Some(2), Some(1), 1)
        );
        let times = (Duration::from_millis(700), Some(Duration::from_millis(800)));
        assert_eq!((limits.step, limits.last_step), times);
        let before = limits.clone();
        limits.narrow(&Narrowing::default());
        assert_eq!(limits, before);
    }
}
