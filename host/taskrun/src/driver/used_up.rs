//! The number that ended a run at a limit, in words, and whose it is: what is to be raised.

use std::time::Duration;

use taskrun_journal::money::UsdDisplay;
use taskrun_journal::plan::TerminationReason;
use taskrun_journal::run::Run;
use taskrun_journal::time::millis;
use taskrun_policy::Budget;

use super::allowance::{Allowance, TreeRemainder, TreeSnapshot};
use super::parts::Parts;
use super::recorder::Recorder;
use crate::agents::Agent;
use crate::autonomy::within_agent;
use crate::scope::Shortage;

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

/// The number that a run met at a limit, in words that follow on those for the limit; `None` where
/// it is not known.
pub(super) async fn bound_met(
    parts: &Parts,
    recorder: &Recorder,
    reason: TerminationReason,
) -> Option<String> {
    let (agent, run) = (&parts.agent, recorder.run());
    match reason {
        TerminationReason::TokenCap | TerminationReason::CostCap => {
            spent(parts, recorder, reason).await
        }
        TerminationReason::FailureCap => run.state.failures.words(),
        TerminationReason::TimeBudget if !recorder.has_worked_for(agent.budget.wall) => {
            let is_beneath = !parts.bounds.ancestors.is_empty();
            is_beneath.then(|| "that of a run above it".to_owned())
        }
        TerminationReason::TimeBudget | TerminationReason::ToolCap | TerminationReason::TurnCap => {
            let Bound { key, number, is_asked } = bound(agent, run, reason);
            let by = if is_asked { ", as its request says" } else { "" };
            (!number.is_empty()).then(|| format!("`{key}` is {number}{by}"))
        }
    }
}

/// The same for tokens and money: the budget of which the least is left, be it the run's own or
/// that of a run above it. Where the tree cannot be read, the run ends without these words.
async fn spent(parts: &Parts, recorder: &Recorder, reason: TerminationReason) -> Option<String> {
    let tree = TreeSnapshot::default();
    let budgets = Allowance::new(parts, recorder, &tree).budgets().await.ok()?;
    let short = recorder.shortage.filter(|shortage| shortage.limit == reason);
    let bounds = budgets.into_iter().filter_map(|(of, budget, left)| {
        scarcest(&budget, left, (reason, short)).map(|(left, key, number)| (left, of, key, number))
    });
    let (_, of, key, number) = bounds.min_by_key(|(left, ..)| *left)?;
    Some(match of == *recorder.run().id() {
        true => format!("`{key}` is {number}, for it and all that is beneath it"),
        false => format!("`{key}` of run {of} above it is {number}, for that and all beneath it"),
    })
}

/// The rest of a bound. In their order one is scarcer than another: those of which nothing is left,
/// or too little for a question, come before those that are merely small.
type Rest = (bool, u64);

/// The scarcest bound of a budget, with the rest, its key and its number.
fn scarcest(
    budget: &Budget,
    left: TreeRemainder,
    (reason, short): (TerminationReason, Option<Shortage>),
) -> Option<(Rest, &'static str, String)> {
    let tokens = [
        (left.completion_tokens, "completion_tokens", budget.completion_tokens),
        (left.prompt_tokens, "prompt_tokens", budget.prompt_tokens),
        (left.tokens, "tokens", budget.tokens),
    ];
    let rest = |left: u64, key: &str| {
        let is_short = short.is_some_and(|shortage| shortage.key == key);
        (left > 0 && !is_short, left)
    };
    match reason {
        TerminationReason::CostCap => {
            let number = UsdDisplay(budget.cost_microusd?).to_string();
            Some((rest(left.cost_microusd?, "usd"), "usd", number))
        }
        TerminationReason::TokenCap => tokens
            .into_iter()
            .filter_map(|(left, key, cap)| Some((rest(left?, key), key, cap?.to_string())))
            .min_by_key(|(rest, ..)| *rest),
        TerminationReason::TimeBudget
        | TerminationReason::ToolCap
        | TerminationReason::FailureCap
        | TerminationReason::TurnCap => None,
    }
}

/// The line that says which number ends a run that continues another one, and who gave it.
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
        TerminationReason::TurnCap if has_had_turns(budget, run) => {
            Bound::new("turns", (budget.turns, asked.turns), |turns| turns.to_string())
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

/// True if the run has had the turns of its budget: otherwise it has had its rounds.
fn has_had_turns(budget: &Budget, run: &Run) -> bool {
    let had = run.state.turns.saturating_sub(run.state.rounds.before.0);
    budget.turns.is_some_and(|turns| had >= turns.saturating_sub(budget.reserve.turns))
}
