//! A run in a row.

use taskrun_journal::hold::Hold;
use taskrun_journal::ids::RunId;
use taskrun_journal::message::Usage;
use taskrun_journal::money::UsdDisplay;
use taskrun_journal::run::Run;
use taskrun_journal::time::Timestamp;
use taskrun_policy::Policy;

use super::calls::Tool;
use crate::budget::scarcest;
use crate::follow::next_beat;
use crate::output::escape::excerpt;
use crate::output::{human, status_text};

/// Characters of an id that are shown: of a UUIDv7 the part that is time, and what follows it.
pub(super) const ID_CHARS: usize = 18;
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

/// The id of a run as its row has it.
pub(super) fn short_id(id: &RunId) -> String {
    id.as_str().chars().take(ID_CHARS).collect()
}

impl Row {
    pub(super) fn of(
        run: &Run,
        policy: Option<&Policy>,
        used: Option<Usage>,
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
            left: policy.and_then(|policy| scarcest(run, policy, used, now)).unwrap_or_default(),
            tool: tool.map(|tool| shown(&tool, now)).unwrap_or_default(),
            cost: if cost > 0 { format!("${}", UsdDisplay(cost)) } else { String::new() },
            wakes: wakes_at(run, policy, now).unwrap_or_default(),
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

/// When a run that waits goes on by itself.
fn wakes_at(run: &Run, policy: Option<&Policy>, now: Timestamp) -> Option<String> {
    let at = match &run.state.hold {
        Hold::Wanted { not_before, .. } => Some(*not_before),
        Hold::Runs { until, .. } => *until,
        Hold::Beat => policy.and_then(|policy| next_beat(policy, run, now)),
        Hold::Nobody | Hold::Host { .. } => None,
    };
    let at = at.filter(|at| *at > now)?;
    Some(format!("in {}", human::ahead(at.since(now))))
}
