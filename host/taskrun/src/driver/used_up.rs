//! The words to a run that continues one which left it nothing: the number that is to be raised.

use std::time::Duration;

use taskrun_journal::money::UsdDisplay;
use taskrun_journal::plan::TerminationReason;
use taskrun_journal::run::Run;
use taskrun_journal::time::millis;

use crate::agents::Agent;
use crate::autonomy::within_agent;

/// A bound that is met.
struct Bound {
    key: &'static str,
    /// Its number, in words.
    number: String,
    /// It is that of the request, which is below the policy's.
    is_asked: bool,
}

impl Bound {
    fn new<N: PartialEq>(
        key: &'static str,
        (bound, asked): (Option<N>, Option<N>),
        words: impl Fn(N) -> String,
    ) -> Self {
        let is_asked = asked.is_some() && asked == bound;
        Self { key, number: bound.map(words).unwrap_or_default(), is_asked }
    }
}

/// The line that says which number ends a run, and who gave it.
pub(super) fn words(agent: &Agent, run: &Run, reason: TerminationReason) -> String {
    let (name, Bound { key, number, is_asked }) = (&agent.name, bound(agent, run, reason));
    match is_asked {
        true => format!(
            "nothing is left of `{key}`: the request gives {number} in all; another one may give \
             more, as far as the policy of agent {name} does"
        ),
        false => format!(
            "nothing is left of `{key}`: the policy of agent {name} gives {number} in all, and may \
             give more"
        ),
    }
}

fn bound(agent: &Agent, run: &Run, reason: TerminationReason) -> Bound {
    let (budget, limits, asked) = (&agent.budget, &agent.limits, &run.spec.narrow);
    match reason {
        TerminationReason::TimeBudget => {
            let bounds = (budget.wall.map(millis), asked.wall_ms);
            Bound::new("wall", bounds, |ms| format!("{:?}", Duration::from_millis(ms)))
        }
        TerminationReason::ToolCap => {
            let bounds = (limits.tool_calls, asked.tool_calls);
            Bound::new("tool_calls", bounds, |calls| calls.to_string())
        }
        TerminationReason::FailureCap => {
            let bounds = (Some(limits.tool_failures), asked.tool_failures);
            Bound::new("tool_failures", bounds, |failures| failures.to_string())
        }
        TerminationReason::TurnCap => {
            let autonomy = run.spec.autonomy.as_ref();
            let rounds = autonomy.and_then(|autonomy| within_agent(autonomy, agent).rounds);
            let stated = agent.autonomous.clone().unwrap_or_default().rounds;
            // The smaller of both is what the run has.
            let asked = rounds.filter(|_| rounds != stated);
            Bound::new("rounds", (rounds, asked), |rounds| rounds.to_string())
        }
        TerminationReason::TokenCap => {
            let used = run.state.progress.usage();
            let kept = budget.reserve.tokens;
            let all = [
                ("prompt_tokens", budget.prompt_tokens, asked.prompt_tokens, used.prompt_tokens),
                (
                    "completion_tokens",
                    budget.completion_tokens,
                    asked.completion_tokens,
                    used.completion_tokens,
                ),
                ("tokens", budget.tokens, asked.tokens, used.total_tokens.saturating_add(kept)),
            ];
            let [.., total] = all;
            let is_met = |one: &(_, Option<u64>, _, u64)| one.1.is_some_and(|cap| one.3 >= cap);
            let (key, cap, asked, _) = all.into_iter().find(is_met).unwrap_or(total);
            Bound::new(key, (cap, asked), |tokens| tokens.to_string())
        }
        TerminationReason::CostCap => {
            let bounds = (budget.cost_microusd, asked.cost_microusd);
            Bound::new("usd", bounds, |cost| UsdDisplay(cost).to_string())
        }
    }
}
