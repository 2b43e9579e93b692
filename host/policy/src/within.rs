//! An agent of an earlier policy within what the policy as it is now gives the agent of its name:
//! of two bounds the smaller, of two lists what stands in both. Its rules are not touched, as those
//! of now are asked beside them; see [`Chain`](crate::Chain).

use std::time::Duration;

use taskrun_journal::autonomy::{AutonomyMode, DEFER_DEFAULT};
use taskrun_journal::spec::TreeBounds;

use crate::host_tools::{TREE_RUNS_DEFAULT, TREE_SLOTS_DEFAULT};
use crate::limits::{Budget, LimitSettings, Limits, Reserve, least};
use crate::policy::{AgentPolicy, Policy, ToolPolicy};
use crate::settings::AutonomySettings;
use crate::workspace::WorkspaceLimits;

impl Policy {
    /// Bounds one agent of this policy, and the calls that it makes of tools, by what a later policy
    /// gives the agent of the same name; says whether that has one.
    ///
    /// The functions that it may call and the time that each may take depend on both lists of
    /// patterns; see [`AgentPolicy::call_time`].
    pub fn bound_by(&mut self, agent: &str, now: &Self) -> bool {
        let (Some(then), Some(bound)) = (self.agents.get(agent), now.agents.get(agent)) else {
            return false;
        };
        for (name, tool) in &mut self.tools {
            let mut limits = then.call_limits(tool);
            if let Some(bound_tool) = now.tools.get(name) {
                limits = limits.least(&bound.call_limits(bound_tool));
            }
            tool.stated_limits = limits.stated();
        }
        if let Some(then) = self.agents.get_mut(agent) {
            then.bound_by(bound);
        }
        true
    }
}

/// The smaller of two numbers, of which one that is not stated is the default; `None` if neither is.
fn least_stated<T: Ord + Copy>(numbers: [Option<T>; 2], default: T) -> Option<T> {
    let is_stated = numbers.iter().any(Option::is_some);
    numbers.into_iter().map(|number| number.unwrap_or(default)).min().filter(|_| is_stated)
}

impl AgentPolicy {
    fn bound_by(&mut self, now: &Self) {
        let depth = self.tree_depth().min(now.tree_depth());
        let runs = least_stated([self.tree.runs, now.tree.runs], TREE_RUNS_DEFAULT);
        let slots = least_stated([self.tree.slots, now.tree.slots], TREE_SLOTS_DEFAULT);
        let Self {
            // Of an earlier policy, as it was.
            name: _,
            description: _,
            component: _,
            tools: _,
            model: _,
            workspace: _,
            workspace_root: _,
            grants: _,
            timeouts: _,
            durable: _,
            retry: _,
            retry_on: _,
            heartbeat: _,
            delivery: _,
            max_nudges: _,
            conversation: _,
            engine: _,
            on_missing_fields: _,
            upgrade: _,
            interrupts: _,
            subscribers: _,
            channels: _,
            delegation: _,
            named_functions: _,
            defaults: _,
            location: _,
            // It says what the limits of calls are made of, which are bounded by themselves.
            stated_limits: _,
            callees,
            host_tools,
            tree,
            members,
            workspace_limits,
            limits,
            budget,
            ask,
            autonomous,
        } = self;
        let members_now = now.all_members();
        // One that was called as a tool may be started all the same as long as it is a member.
        let no_callees = callees.extract_if(.., |name| !now.callees.contains(name));
        let no_callees: Vec<String> = no_callees.collect();
        members.extend(no_callees);
        members.retain(|name| members_now.contains(name));
        host_tools.retain(|function| now.host_tools.contains(function));
        *tree = TreeBounds { depth: Some(depth), runs, slots };
        *workspace_limits = workspace_limits.least(&now.workspace_limits);
        *limits = limits.least(&now.limits);
        *budget = budget.least(&now.budget);
        ask.add(&now.ask);
        if autonomous.is_some() || now.autonomous.is_some() {
            let own = autonomous.get_or_insert_default();
            own.bound_by(now.autonomous.as_ref().unwrap_or(&AutonomySettings::default()));
        }
    }

    /// The time that a call of a function may take, by its qualified name; `None` if the agent may
    /// not call it. `tool` is the tool of that function.
    #[must_use]
    pub fn call_time(&self, name: &str, tool: &ToolPolicy) -> Option<Duration> {
        let time = || {
            let limit = self.call_limits(tool).call;
            self.call_timeouts(tool).of(name).unwrap_or(limit)
        };
        self.may_call(name).then(time)
    }
}

impl AutonomySettings {
    /// Runs go on as they did, within both bounds.
    fn bound_by(&mut self, now: &Self) {
        self.rounds = least(self.rounds, now.rounds);
        self.max_defer = match (self.max_defer, now.max_defer) {
            (None, None) => None,
            (_, _) => Some(self.deferral().min(now.deferral())),
        };
    }

    /// The longest deferral; where none is stated, that of the mode.
    fn deferral(&self) -> Duration {
        self.max_defer.unwrap_or(match self.mode {
            Some(AutonomyMode::Bounded) => Duration::ZERO,
            Some(AutonomyMode::Standing) | None => DEFER_DEFAULT,
        })
    }
}

impl Limits {
    /// Of each limit the smaller.
    fn least(&self, other: &Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.min(other.memory_bytes),
            call: self.call.min(other.call),
            step: self.step.min(other.step),
            last_step: least(self.last_step, other.last_step),
            grace: self.grace.min(other.grace),
            tool_calls: least(self.tool_calls, other.tool_calls),
            turn_calls: least(self.turn_calls, other.turn_calls),
            tool_failures: self.tool_failures.min(other.tool_failures),
            result_bytes: self.result_bytes.min(other.result_bytes),
            log_bytes: self.log_bytes.min(other.log_bytes),
            table_elements: self.table_elements.min(other.table_elements),
            host_calls: self.host_calls.min(other.host_calls),
            host_call_bytes: self.host_call_bytes.min(other.host_call_bytes),
            events: self.events.min(other.events),
            journal_bytes: self.journal_bytes.min(other.journal_bytes),
            write_bytes: self.write_bytes.min(other.write_bytes),
            new_files: self.new_files.min(other.new_files),
        }
    }

    /// The same, each as if it were stated.
    fn stated(&self) -> LimitSettings {
        LimitSettings {
            memory_bytes: Some(self.memory_bytes),
            call: Some(self.call),
            step: Some(self.step),
            last_step: self.last_step,
            grace: Some(self.grace),
            tool_calls: self.tool_calls,
            turn_calls: self.turn_calls,
            tool_failures: Some(self.tool_failures),
            result_bytes: Some(self.result_bytes),
            log_bytes: Some(self.log_bytes),
            table_elements: Some(self.table_elements),
            host_calls: Some(self.host_calls),
            host_call_bytes: Some(self.host_call_bytes),
            events: Some(self.events),
            journal_bytes: Some(self.journal_bytes),
            write_bytes: Some(self.write_bytes),
            new_files: Some(self.new_files),
        }
    }
}

impl Budget {
    /// Of each bound the smaller, and of what is kept for the last word too: it stays less than what
    /// it is a part of.
    fn least(&self, other: &Self) -> Self {
        let Reserve { turns, tokens, cost_microusd } = self.reserve;
        Self {
            turns: least(self.turns, other.turns),
            tokens: least(self.tokens, other.tokens),
            prompt_tokens: least(self.prompt_tokens, other.prompt_tokens),
            completion_tokens: least(self.completion_tokens, other.completion_tokens),
            cost_microusd: least(self.cost_microusd, other.cost_microusd),
            subagent_cost_microusd: least(
                self.subagent_cost_microusd,
                other.subagent_cost_microusd,
            ),
            wall: least(self.wall, other.wall),
            round: least(self.round, other.round),
            reserve: Reserve {
                turns: turns.min(other.reserve.turns),
                tokens: tokens.min(other.reserve.tokens),
                cost_microusd: cost_microusd.min(other.reserve.cost_microusd),
            },
        }
    }
}

impl WorkspaceLimits {
    /// Of each bound the narrower.
    fn least(&self, other: &Self) -> Self {
        Self {
            bytes: self.bytes.min(other.bytes),
            files: self.files.min(other.files),
            reserve_bytes: self.reserve_bytes.max(other.reserve_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn policy(text: &str) -> Policy {
        Policy::parse(text, Path::new("/p/taskrun.toml")).expect("a policy")
    }

    const THEN: &str = r#"
[tool.t]
component = "t.wasm"
limits = { call = "20s", memory = "8MiB" }
[agent.b]
component = "b.wasm"
[agent.c]
component = "c.wasm"
[agent.a]
component = "a.wasm"
tools = ["t/*", "agent/b"]
members = ["b", "c"]
limits = { step = "40s", memory = "64MiB", turn_calls = 4 }
budget = { turns = 8, wall = "2h" }
timeouts = { "t/slow" = "15s" }
"#;

    #[test]
    fn of_two_bounds_the_smaller_counts() {
        let now = THEN
            .replace("step = \"40s\", memory = \"64MiB\"", "step = \"50s\", memory = \"32MiB\"")
            .replace("turns = 8, wall = \"2h\"", "turns = 12, wall = \"1h\"")
            .replace("call = \"20s\"", "call = \"10s\"");
        let mut then = policy(THEN);
        assert!(then.bound_by("a", &policy(&now)));
        let agent = &then.agents["a"];
        assert_eq!(agent.limits.step, Duration::from_secs(40));
        assert_eq!(agent.limits.memory_bytes, 32 << 20);
        assert_eq!(agent.limits.turn_calls, Some(4));
        assert_eq!(agent.budget.turns, Some(8));
        assert_eq!(agent.budget.wall, Some(Duration::from_secs(3_600)));
        let limits = agent.call_limits(&then.tools["t"]);
        assert_eq!((limits.call, limits.memory_bytes), (Duration::from_secs(10), 8 << 20));
    }

    #[test]
    fn rounds_and_deferrals_are_bounded_by_both_and_by_the_default_of_one_that_says_nothing() {
        let autonomous = |text: &str| policy(&format!("{THEN}{text}"));
        let bounded = |then: &str, now: &str| {
            let mut then = autonomous(then);
            assert!(then.bound_by("a", &autonomous(now)));
            then.agents["a"].autonomous.as_ref().map(|one| (one.rounds, one.max_defer))
        };
        let (many, few) = ("autonomous = { rounds = 90 }\n", "autonomous = { rounds = 2 }\n");
        let late = "autonomous = { rounds = 90, max_defer = \"40d\" }\n";
        assert_eq!(bounded(many, few), Some((Some(2), None)));
        assert_eq!(bounded(few, many), Some((Some(2), None)));
        assert_eq!(bounded("", few), Some((Some(2), None)));
        assert_eq!(bounded(late, ""), Some((Some(50), Some(DEFER_DEFAULT))));
        assert_eq!(bounded("", ""), None);
        let mode = |more: &str| format!("autonomous = {{ mode = \"bounded\"{more} }}\n");
        let gone = bounded(&mode(", max_defer = \"5d\""), &mode(""));
        assert_eq!(gone, Some((Some(50), Some(Duration::ZERO))), "bounded runs defer none");
    }

    #[test]
    fn a_bound_that_is_lifted_stays_for_runs_of_then() {
        let now = THEN.replace("limits = { call = \"20s\", memory = \"8MiB\" }\n", "").replace(
            "limits = { step = \"40s\", memory = \"64MiB\", turn_calls = 4 }\n",
            "limits = { call = \"5m\" }\n",
        );
        let mut then = policy(THEN);
        let before = then.clone();
        assert!(then.bound_by("a", &policy(&now)));
        assert_eq!(then.agents["a"].limits.step, Duration::from_secs(40));
        assert_eq!(
            then.agents["a"].call_limits(&then.tools["t"]),
            before.agents["a"].call_limits(&before.tools["t"])
        );
    }

    #[test]
    fn of_two_lists_what_stands_in_both_counts() {
        let now = THEN
            .replace("\"t/*\", \"agent/b\"", "\"t/quick\"")
            .replace("members = [\"b\", \"c\"]", "members = [\"c\"]")
            .replace("timeouts = { \"t/slow\" = \"15s\" }\n", "");
        let (mut then, now) = (policy(THEN), policy(&now));
        assert!(then.bound_by("a", &now));
        assert_eq!(then.agents["a"].all_members(), ["c"]);
        let time = |policy: &Policy, name| policy.agents["a"].call_time(name, &policy.tools["t"]);
        assert_eq!(time(&then, "t/slow"), Some(Duration::from_secs(15)));
        assert_eq!(time(&now, "t/slow"), None);
        assert_eq!(time(&now, "t/quick"), Some(Duration::from_secs(20)));
    }

    #[test]
    fn an_agent_that_is_gone_bounds_nothing_and_is_said_to_be() {
        let mut then = policy(THEN);
        assert!(!then.bound_by("a", &policy("[agent.z]\ncomponent = \"z.wasm\"\n")));
    }
}
