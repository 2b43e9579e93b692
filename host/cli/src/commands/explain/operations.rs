//! The operations on other runs that calls of tools of the host ask rules about.

use taskrun_journal::operation::Operation;
use taskrun_journal::run::Run;
use taskrun_policy::{AGENTS, CallRules, Capability, HOST, HostFunction, Use};

use super::layers::{LayerVerdict, LayerView, of_rules};

/// The tools that ask for a wait too where their arguments say that the run is waited for.
const MAY_WAIT: [HostFunction; 2] = [HostFunction::StartTaskRun, HostFunction::SpawnAgent];

/// The calls for which an operation is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NeededBy {
    /// Every call of the tool.
    All,
    /// Those that wait for the run.
    Waiting,
}

/// The layers of the rules about the operations that a call of this name makes; none for what is
/// neither an agent nor a tool of the host. The agent is the one that calls, with its run if it has
/// one.
pub(super) fn of_operations(
    name: &str,
    rules: &CallRules,
    (agent, run): (&str, Option<&Run>),
) -> Vec<LayerView> {
    let function = match name.split_once('/') {
        Some((AGENTS, _)) => return denials_of_call(rules, (agent, run)),
        Some((HOST, function)) => HostFunction::parse(function),
        Some(_) | None => None,
    };
    let Some(function) = function else { return Vec::new() };
    let view = |(operation, needed_by): (Operation, NeededBy)| {
        let layers = of_rules(agent, false, &rules.explain(&Use::Operation(operation)), run);
        layers.into_iter().map(move |layer| of_operation(layer, operation, needed_by))
    };
    operations(function).into_iter().flat_map(view).collect()
}

/// The layers of the rules that deny the call of an agent as a tool. No rule has to allow it, as
/// the list of tools does.
fn denials_of_call(rules: &CallRules, (agent, run): (&str, Option<&Run>)) -> Vec<LayerView> {
    let mut explained = rules.explain(&Use::Operation(Operation::Spawn));
    for change in explained.iter_mut().filter_map(|layer| layer.change.as_mut()) {
        change.add = None;
    }
    let views = of_rules(agent, false, &explained, run).into_iter().zip(&explained);
    let denials =
        views.filter(|(_, layer)| !layer.outcome.allowed() && !layer.outcome.is_unlisted());
    denials.map(|(view, _)| of_operation(view, Operation::Spawn, NeededBy::All)).collect()
}

/// The operations that a tool asks rules about, in that order.
fn operations(function: HostFunction) -> Vec<(Operation, NeededBy)> {
    let own = function.operation().map(|operation| (operation, NeededBy::All));
    let wait = match function == HostFunction::Delegate {
        true => Some(NeededBy::All),
        false => MAY_WAIT.contains(&function).then_some(NeededBy::Waiting),
    };
    own.into_iter().chain(wait.map(|needed_by| (Operation::Wait, needed_by))).collect()
}

/// The same layer in the words of one operation.
fn of_operation(layer: LayerView, operation: Operation, needed_by: NeededBy) -> LayerView {
    let reason = format!("{} {operation}: {}", Capability::Controller, layer.reason);
    match needed_by {
        NeededBy::All => LayerView { reason, ..layer },
        NeededBy::Waiting => LayerView {
            // A call that does not wait passes.
            verdict: match layer.verdict {
                LayerVerdict::Denied => LayerVerdict::NotAsked,
                LayerVerdict::Allowed | LayerVerdict::Ask | LayerVerdict::NotAsked => layer.verdict,
            },
            reason: format!("needed only to wait for the run, {reason}"),
            ..layer
        },
    }
}
