//! The layers of an explanation, as they are shown.

use serde::Serialize;
use taskrun_journal::run::Run;
use taskrun_policy::{
    AgentPolicy, Decision, LayerExplanation, LayerOutcome, Location, ModelPolicy, Rule, RuleLayer,
    toml_string,
};
use taskrun_runtime::{PinError, StrandingAgent};

use crate::paths::shown;

/// The change that a rule of then needs which binds a run for good.
const NEW_RUN: &str = "start a new run: one that is accepted keeps to the rules of then";

/// The verdict of a layer, or of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LayerVerdict {
    /// It may happen.
    Allowed,
    /// A person is asked when it is about to happen.
    Ask,
    /// It does not happen.
    Denied,
    /// The layer decides when it happens, and cannot be asked before.
    NotAsked,
}

/// A layer that has to allow a use.
#[derive(Debug, Serialize)]
pub(super) struct LayerView {
    /// The kind of the layer.
    pub(super) layer: &'static str,
    /// The agent or request that it is of, for people.
    pub(super) of: String,
    pub(super) verdict: LayerVerdict,
    /// True of the layer whose verdict is that of all of them.
    pub(super) decides: bool,
    pub(super) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule: Option<RuleView>,
    /// The part of a policy that decides where no single rule does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) section: Option<Place>,
    /// The changes which, all together, turn the verdict of the layer.
    pub(super) change: Vec<String>,
}

/// A rule and its place.
#[derive(Debug, Serialize)]
pub(super) struct RuleView {
    pub(super) text: String,
    /// The list that it stands in.
    pub(super) list: String,
    /// Where it stands; a rule of a request stands in no file.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<Place>,
}

/// A place in a policy.
#[derive(Debug, Serialize)]
pub(super) struct Place {
    file: String,
    line: u32,
    column: u32,
}

impl LayerVerdict {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Ask => "ask",
            Self::Denied => "denied",
            Self::NotAsked => "not asked",
        }
    }
}

impl LayerView {
    /// A layer without a rule that nothing changes.
    pub(super) fn new(
        layer: &'static str,
        of: String,
        verdict: LayerVerdict,
        reason: String,
    ) -> Self {
        let change = Vec::new();
        Self { layer, of, verdict, decides: false, reason, rule: None, section: None, change }
    }
}

impl From<&Location> for Place {
    fn from(location: &Location) -> Self {
        let Location { file, line, column } = location;
        Self { file: file.display().to_string(), line: *line, column: *column }
    }
}

/// The change that what a run has of its agent as it was then needs.
pub(super) fn out_of_then(run: Option<&Run>) -> String {
    match run.filter(|run| !run.status().is_terminal()) {
        Some(run) => format!("give the run its agent as it is now: `taskrun adopt {}`", run.id()),
        None => NEW_RUN.to_owned(),
    }
}

/// The layers of rules, in the order in which they decide. `agent` is the run's own, and
/// `unmentioned` tells if no rule of it mentions the capability.
pub(super) fn of_rules(
    agent: &str,
    unmentioned: bool,
    layers: &[LayerExplanation<'_>],
    run: Option<&Run>,
) -> Vec<LayerView> {
    let mut above = None;
    let mut views = Vec::with_capacity(layers.len());
    for (index, layer) in layers.iter().enumerate() {
        // Rules of now follow those that they bound.
        let next = layers.get(index + 1).map(|next| next.layer);
        let is_earlier = matches!(next, Some(RuleLayer::Now { .. }));
        let (kind, of) = match layer.layer {
            RuleLayer::Own if is_earlier => {
                ("rules_then", format!("agent {agent}, as the run was accepted"))
            }
            RuleLayer::Own => ("rules", format!("agent {agent}")),
            RuleLayer::Above { agent } if is_earlier => {
                ("above_then", format!("agent {agent} above, as its run was accepted"))
            }
            RuleLayer::Above { agent } => ("above", format!("agent {agent} above")),
            RuleLayer::Now { agent } => match above {
                None => ("rules_now", format!("agent {agent}, now")),
                Some(()) => ("above_now", format!("agent {agent} above, now")),
            },
            RuleLayer::Request { .. } => ("request", layer.layer.to_string()),
            RuleLayer::Unrecorded => ("unrecorded", layer.layer.to_string()),
        };
        if matches!(layer.layer, RuleLayer::Above { .. }) {
            above = Some(());
        }
        let allowed = layer.outcome.allowed();
        let is_request = matches!(layer.layer, RuleLayer::Request { .. });
        let missing = layer.change.as_ref().and_then(|change| change.add.as_ref());
        let section = missing.filter(|_| layer.rule().is_none()).map(|missing| missing.section);
        let reason = match (&layer.outcome, section) {
            (LayerOutcome::Asked(_), _) if is_request && allowed => {
                "it takes nothing of this away".to_owned()
            }
            (LayerOutcome::Asked(decision), None) if layer.rule().is_none() => decision.for_guest(),
            (LayerOutcome::Asked(decision), Some(section)) => {
                let own = unmentioned && *layer.layer == RuleLayer::Own;
                without_rule(decision, section, own)
            }
            (LayerOutcome::Asked(_), None) => by_rule(layer),
            (LayerOutcome::Outside | LayerOutcome::Unknown, _) => layer.outcome.to_string(),
        };
        let verdict = if allowed { LayerVerdict::Allowed } else { LayerVerdict::Denied };
        views.push(LayerView {
            rule: layer.rule().filter(|_| !(is_request && allowed)).map(|rule| RuleView {
                text: rule.text.clone(),
                list: rule.verdict.to_string(),
                place: (!is_request).then(|| Place::from(&rule.location)),
            }),
            section: section.map(Place::from),
            change: change(layer, is_earlier, run),
            ..LayerView::new(kind, of, verdict, reason)
        });
    }
    views
}

fn without_rule(decision: &Decision<'_>, section: &Location, unmentioned: bool) -> String {
    let said = format!("{} ({})", decision.for_guest(), shown_place(section));
    match unmentioned {
        true => format!("{said}; none mentions it, so a component that imports it does not load"),
        false => said,
    }
}

fn by_rule(layer: &LayerExplanation<'_>) -> String {
    let word = if layer.outcome.allowed() { "allowed" } else { "denied" };
    match (layer.rule(), layer.layer) {
        (Some(rule), RuleLayer::Request { .. }) => format!("{word} by {}", toml_string(&rule.text)),
        (Some(rule), _) => format!("{word} by {}", shown_rule(rule)),
        (None, _) => word.to_owned(),
    }
}

fn shown_rule(rule: &Rule) -> String {
    format!("{} {} ({})", rule.verdict, toml_string(&rule.text), shown_place(&rule.location))
}

/// A place as a person would type its file.
pub(super) fn shown_place(location: &Location) -> String {
    format!("{}:{}:{}", shown(&location.file), location.line, location.column)
}

/// The changes which, all together, turn the decision of a layer.
fn change(layer: &LayerExplanation<'_>, is_earlier: bool, run: Option<&Run>) -> Vec<String> {
    let allowed = layer.outcome.allowed();
    match (layer.layer, &layer.outcome) {
        (RuleLayer::Request { .. } | RuleLayer::Unrecorded, _) if allowed => Vec::new(),
        (RuleLayer::Request { .. }, _) => {
            let text = |rule: &Rule| format!(" {}", toml_string(&rule.text));
            let rule = layer.rule().map_or_else(String::new, text);
            vec![format!("start a run whose request does not deny{rule}")]
        }
        (RuleLayer::Unrecorded, _) => vec!["start a new run".to_owned()],
        (_, LayerOutcome::Outside) => {
            vec!["give both agents one `workspace`: the rules have no name for the path".to_owned()]
        }
        (_, LayerOutcome::Unknown) => vec!["start a new run".to_owned()],
        (_, LayerOutcome::Asked(_)) if is_earlier && allowed => Vec::new(),
        // What is given now does not reach a run that was accepted before.
        (_, LayerOutcome::Asked(_)) if is_earlier && layer.change.is_some() => {
            // The forms of the runs above it are those of then, whatever becomes of these.
            let own = run.filter(|_| *layer.layer == RuleLayer::Own);
            vec![out_of_then(own)]
        }
        (_, LayerOutcome::Asked(_)) => {
            let Some(change) = &layer.change else { return Vec::new() };
            let gone = change.remove.iter().map(|rule| format!("remove {}", shown_rule(rule)));
            let added = change.add.iter().map(|missing| {
                let (rule, place) = (toml_string(&missing.text), shown_place(missing.section));
                format!("add {rule} to `allow` of the agent ({place})")
            });
            gone.chain(added).collect()
        }
    }
}

/// The list of the agents that an agent of the policy as it is now may start runs of. `members` are
/// those that it leaves to the run.
pub(super) fn of_members(
    agent: &AgentPolicy,
    (members, run): (&[String], Option<&Run>),
    wanted: &str,
) -> LayerView {
    let place = shown_place(&agent.location);
    let has = |members: &[String]| members.iter().any(|member| member == wanted);
    let (verdict, reason, change) = match (has(members), has(&agent.all_members())) {
        (true, _) => (
            LayerVerdict::Allowed,
            format!("{wanted} is among its `members` ({place})"),
            format!("remove {wanted} from `members` and `tools` of the agent ({place})"),
        ),
        (false, true) => (
            LayerVerdict::Denied,
            format!("{wanted} was not among its `members` when the run was accepted"),
            out_of_then(run),
        ),
        (false, false) => (
            LayerVerdict::Denied,
            format!("{wanted} is not among its `members` ({place})"),
            format!("add \"{wanted}\" to `members` of the agent ({place})"),
        ),
    };
    LayerView {
        section: Some(Place::from(&agent.location)),
        change: vec![change],
        ..LayerView::new("members", format!("agent {}", agent.name), verdict, reason)
    }
}

/// The refusal of a file of the host, or of the place of an agent's folder.
pub(super) fn of_own_file() -> LayerView {
    let reason = "its own files (the policy, what that names, the data directory) are kept from \
                  guests whatever rules allow, and so is each place at which the folder of an agent \
                  is missing";
    LayerView::new("host", "the host".to_owned(), LayerVerdict::Denied, reason.to_owned())
}

/// The refusal of a model whose price is not known.
pub(super) fn of_price(model: &ModelPolicy) -> LayerView {
    let (name, place) = (&model.name, shown_place(&model.location));
    let reason =
        format!("the budget is in dollars, and no `prices` of model {name} are known ({place})");
    LayerView {
        section: Some(Place::from(&model.location)),
        change: vec![format!("add `prices` to [model.{name}] ({place})")],
        ..LayerView::new("budget", "the budget".to_owned(), LayerVerdict::Denied, reason)
    }
}

/// The layers of a run for which no rules can be put together: it begins nothing, unless it has ended
/// anyway.
pub(super) fn of_stranding(agents: &[StrandingAgent], policy: &str, run: &Run) -> Vec<LayerView> {
    let has_ended = run.status().is_terminal();
    let cancel = format!("end the run: `taskrun cancel {}`", run.id());
    let view = |stranding: &StrandingAgent| {
        let of = format!("agent {}", stranding.agent);
        let change = match &stranding.reason {
            PinError::Gone(agent) => Some(format!("put [agent.{agent}] back into {policy}")),
            PinError::GoneThere { agent, policy } => {
                let policy = shown(policy);
                Some(format!("put [agent.{agent}] back into {policy}"))
            }
            PinError::Kept(_) | PinError::Unusable(_) if stranding.is_own && !has_ended => {
                Some(out_of_then(Some(run)))
            }
            PinError::Kept(_) | PinError::Unusable(_) => None,
        };
        let (reason, change) = match has_ended {
            true => (stranding.reason.to_string(), change),
            false => {
                let reason = format!("{}, so the run begins nothing", stranding.reason);
                let change = match change {
                    Some(change) => format!("{change}, or {cancel}"),
                    None => format!("{cancel}, and start a new one"),
                };
                (reason, Some(change))
            }
        };
        let change = change.into_iter().collect();
        LayerView { change, ..LayerView::new("policy", of, LayerVerdict::Denied, reason) }
    };
    agents.iter().map(view).collect()
}
