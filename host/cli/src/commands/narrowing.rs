//! The limits that requests lay on their agents.

use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::time::millis;

use crate::args::{Budget as RequestBudget, RunArgs};

/// The limits that the request lays on its agent.
pub(super) fn narrowing(args: &RunArgs) -> Narrowing {
    let rules = Narrowing {
        tools: (!args.only_tools.is_empty()).then(|| args.only_tools.clone()),
        deny: args.deny.clone(),
        only_tags: (!args.only_tags.is_empty()).then(|| args.only_tags.clone()),
        deny_tags: args.deny_tags.clone(),
        timeouts: args
            .tool_timeouts
            .iter()
            .map(|(name, time)| (name.clone(), millis(*time)))
            .collect(),
        no_pause: args.no_pause,
        ..Narrowing::default()
    };
    within(rules, args.budget.unwrap_or_default())
}

/// A narrowing with a budget besides.
pub(super) fn within(narrow: Narrowing, budget: RequestBudget) -> Narrowing {
    Narrowing {
        turns: budget.turns,
        tokens: budget.tokens,
        prompt_tokens: budget.prompt_tokens,
        completion_tokens: budget.completion_tokens,
        cost_microusd: budget.cost_microusd,
        tool_calls: budget.tool_calls,
        wall_ms: budget.wall.map(millis),
        turn_calls: budget.turn_calls,
        tool_failures: budget.tool_failures,
        step_ms: budget.step.map(millis),
        last_step_ms: budget.last_step.map(millis),
        ..narrow
    }
}
