//! The tools by which an autonomous run speaks of itself, and those of the host that only runs of
//! another kind have. The former it has unnamed, and neither requests nor engines nor people are
//! asked about them.

use taskrun::gate::rights::tools_of_others;
use taskrun_journal::autonomy::{Autonomy, AutonomyMode, means_done};
use taskrun_journal::spec::RunSpec;
use taskrun_policy::{AgentPolicy, HOST, HostFunction};

use super::layers::{LayerVerdict, LayerView};

/// The layer of a tool by which a run that goes on so speaks of itself; `None` if the name means
/// another one. The agents are the forms of its own that bind the run.
pub(super) fn own_tool(
    name: &str,
    autonomy: &Autonomy,
    agents: &[&AgentPolicy],
) -> Option<LayerView> {
    if name == HostFunction::ScheduleNextTurn.qualified() && !may_defer(autonomy, agents) {
        let reason = "an autonomous run has it if it may put its rounds off, and this one may not";
        let change = "state `max_defer` under `autonomous` of the agent, and start a new run";
        return Some(LayerView {
            change: vec![change.to_owned()],
            ..own(LayerVerdict::Denied, reason)
        });
    }
    let is_own = says_done(name, autonomy, agents)
        || name == HostFunction::SetStatus.qualified()
        || name == HostFunction::ScheduleNextTurn.qualified();
    let reason = "an autonomous run has it, whatever its `tools` and its request say";
    is_own.then(|| own(LayerVerdict::Allowed, reason))
}

/// The layer of a tool of the host that the run does not have, as only runs of another kind do,
/// whatever its lists say; `None` for any other.
pub(super) fn tool_of_others(name: &str, spec: &RunSpec) -> Option<LayerView> {
    let (_, reason) = tools_of_others(spec).find(|(function, _)| function.qualified() == name)?;
    Some(own(LayerVerdict::Denied, reason))
}

fn own(verdict: LayerVerdict, reason: &str) -> LayerView {
    LayerView::new("own", "this run".to_owned(), verdict, reason.to_owned())
}

/// True if a call of this name says that the run is done. A function of a component that is called
/// so is that function.
fn says_done(name: &str, autonomy: &Autonomy, agents: &[&AgentPolicy]) -> bool {
    let is_of_component = || agents.iter().all(|agent| agent.may_call(name));
    name == format!("{HOST}/{}", autonomy.done_name()) || (means_done(name) && !is_of_component())
}

/// True if the run may put a round off, as it was accepted and by all that its agents state.
fn may_defer(autonomy: &Autonomy, agents: &[&AgentPolicy]) -> bool {
    let stated = agents.iter().filter_map(|agent| agent.autonomous.as_ref()?.max_defer);
    let may = match stated.min() {
        Some(least) => !least.is_zero(),
        None => autonomy.mode == AutonomyMode::Standing,
    };
    may && autonomy.max_defer_ms.is_some()
}
