//! A run in a row.

use std::time::Duration;

use taskrun_journal::hold::Hold;
use taskrun_journal::ids::RunId;
use taskrun_journal::money::UsdDisplay;
use taskrun_journal::run::Run;
use taskrun_journal::time::{Timestamp, millis};
use taskrun_policy::Policy;

use super::calls::Tool;
use crate::output::escape::excerpt;
use crate::output::{human, status_text};

/// Most characters of the name of an agent or a tool.
const NAME_CHARS_MAX: usize = 24;
/// Most characters of a question or a task; the screen cuts it where it ends.
const TEXT_CHARS_MAX: usize = 400;

/// A run in a row, in texts that are fit for a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) id: RunId,
    pub(super) agent: String,
    pub(super) status: String,
    /// The round of a run that goes on by itself.
    pub(super) round: String,
    /// Turns so far.
    pub(super) turns: String,
    /// The rest of the budget that is used up first.
    pub(super) left: String,
    /// The tool call under way, and for how long.
    pub(super) tool: String,
    pub(super) cost: String,
    /// When it goes on by itself.
    pub(super) wakes: String,
    /// The thing that it asks, or its task.
    pub(super) text: String,
    pub(super) asks: bool,
}

impl Row {
    pub(super) fn of(
        run: &Run,
        policy: Option<&Policy>,
        tool: Option<Tool>,
        now: Timestamp,
    ) -> Self {
        let asked = run.state.awaits.iter().find(|open| !open.answered);
        let cost = run.state.progress.cost_microusd;
        let text = asked.map_or(run.spec.task.as_str(), |open| open.prompt.as_str());
        Self {
            id: run.id().clone(),
            agent: excerpt(&run.spec.agent_name, NAME_CHARS_MAX),
            status: status_text(run),
            round: rounds(run),
            turns: run.state.turns.to_string(),
            left: policy.and_then(|policy| scarcest(run, policy, now)).unwrap_or_default(),
            tool: tool.map(|tool| shown(&tool, now)).unwrap_or_default(),
            cost: if cost > 0 { format!("${}", UsdDisplay(cost)) } else { String::new() },
            wakes: wakes_at(run, now).unwrap_or_default(),
            text: excerpt(text, TEXT_CHARS_MAX),
            asks: asked.is_some(),
        }
    }
}

/// The present round, of those that it may have.
fn rounds(run: &Run) -> String {
    let Some(autonomy) = &run.spec.autonomy else { return String::new() };
    let number = run.state.rounds.number();
    match autonomy.rounds {
        Some(most) => format!("{number}/{most}"),
        None => number.to_string(),
    }
}

fn shown(tool: &Tool, now: Timestamp) -> String {
    let seconds = human::duration(now.since(tool.since));
    let name = excerpt(&tool.name, NAME_CHARS_MAX);
    match tool.others {
        0 => format!("{name} {seconds}"),
        others => format!("{name} {seconds} +{others}"),
    }
}

/// The part of its budget of which a run has the least left, in percent: of the policy as it is now,
/// as the request narrowed it.
fn scarcest(run: &Run, policy: &Policy, now: Timestamp) -> Option<String> {
    let mut budget = policy.agents.get(&run.spec.agent_name)?.budget.clone();
    budget.narrow(&run.spec.narrow);
    let state = &run.state;
    let under_way = state.uncounted.map_or(Duration::ZERO, |stretch| now.since(stretch.from));
    let ran = state.ran_ms.saturating_add(millis(under_way));
    // Turns are those of the present round.
    let turns = state.turns.saturating_sub(state.rounds.before.0);
    let rounds_max = run.spec.autonomy.as_ref().and_then(|autonomy| autonomy.rounds);
    let rounds_max = rounds_max.map(u64::from);
    let kinds = [
        ("rounds", rounds_max, u64::from(state.rounds.ended)),
        ("turns", budget.turns.map(u64::from), u64::from(turns)),
        ("tokens", budget.tokens, state.progress.total_tokens),
        ("usd", budget.cost_microusd, state.progress.cost_microusd),
        ("time", budget.wall.map(millis), ran),
    ];
    let left = kinds.into_iter().filter_map(|(kind, cap, used)| {
        let cap = cap.filter(|cap| *cap > 0)?;
        let left = u128::from(cap.saturating_sub(used)) * 100 / u128::from(cap);
        Some((left, kind))
    });
    left.min().map(|(left, kind)| format!("{left}% {kind}"))
}

/// When a run that waits goes on by itself.
fn wakes_at(run: &Run, now: Timestamp) -> Option<String> {
    let at = match &run.state.hold {
        Hold::Wanted { not_before, .. } => Some(*not_before),
        Hold::Runs { until, .. } => *until,
        Hold::Nobody | Hold::Beat | Hold::Host { .. } => None,
    };
    let at = at.filter(|at| *at > now)?;
    Some(format!("in {}", human::age(at.since(now))))
}
