//! `taskrun policy explain`.

mod call;
mod lasting;
mod layers;
mod operations;
mod own_tools;
mod question;

use serde::Serialize;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{AgentPolicy, CallRules, CapabilityAccess, Policy, Use};
use taskrun_runtime::{is_own_file, rules_of_agent, rules_of_kept_run};

use self::layers::{
    LayerVerdict, LayerView, of_members, of_own_file, of_price, of_rules, of_stranding,
};
use self::question::{OwnedUse, PolicyQuestion};
use crate::args::{ExplainArgs, OutputFormat};
use crate::commands::agent_change::adopted_when_it_goes_on;
use crate::context::{Context, compile_worker};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::lookup::agent_of;
use crate::output::escape::escaped_line;
use crate::output::paint::{BAD, BOLD, GOOD, NOTE, with};
use crate::output::versioned;
use crate::paths::shown;
use crate::resolve::resolve;

/// The decision about one use, layer by layer.
#[derive(Serialize)]
struct Explanation {
    agent_name: String,
    capability: String,
    subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
    /// The policy's word for a run that does not have the form that is explained yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    upgrade: Option<&'static str>,
    verdict: LayerVerdict,
    layers: Vec<LayerView>,
}

/// The decision about a call of a function that no run makes, where it is not denied.
pub(super) struct CallDecision {
    /// The rule for whose sake a person is asked, in words; `None` if nobody is.
    pub(super) ask: Option<String>,
    /// The layers that decide about calls of runs alone, in words.
    pub(super) not_asked: Vec<String>,
}

/// Decides about a call of a function that no run makes, by the layers that are explained.
///
/// # Errors
/// The refusal, by the layer that denies.
pub(super) fn decide_call(
    policy: &Policy,
    agent: &AgentPolicy,
    function: &ToolSpec,
) -> Outcome<CallDecision> {
    let question = PolicyQuestion::Call(function.name.clone());
    let layers = call::of_function(policy, agent, function);
    let explanation = Explanation::new(&agent.name, &question, None, layers);
    explanation.exit()?;
    let layers = &explanation.layers;
    let of = |verdict: LayerVerdict| layers.iter().filter(move |layer| layer.verdict == verdict);
    let not_asked = |layer: &LayerView| format!("{}: {}", layer.of, layer.reason);
    Ok(CallDecision {
        ask: of(LayerVerdict::Ask).next().map(|layer| layer.reason.clone()),
        not_asked: of(LayerVerdict::NotAsked).map(not_asked).collect(),
    })
}

pub(super) async fn explain(context: &Context, args: &ExplainArgs) -> Outcome {
    let question = PolicyQuestion::read(args)?;
    let call = match &question {
        PolicyQuestion::Call(name) => Some(name.clone()),
        PolicyQuestion::Use(_) => None,
    };
    let policy = context.policy()?;
    let mut of: Option<Run> = None;
    let mut explanation = match &args.run {
        // The command line has either an agent or a run.
        None => {
            let agent = agent_of(&policy, args.agent.as_deref().unwrap_or_default())?;
            of_agent(context, &policy, agent, question).await?
        }
        Some(run) => {
            let run = named_run(context, run, args.agent.as_deref()).await?;
            if run.status().is_terminal() {
                context.printer.talk("the run has ended; this is what its rules say all the same");
            }
            let (explanation, adopted) = of_run(context, &policy, &run, question).await?;
            of = Some(adopted.unwrap_or(run));
            explanation
        }
    };
    if let Some(name) = &call {
        lasting::tell(context, &policy, &mut explanation, (of.as_ref(), name)).await?;
    }
    print(context, &explanation);
    explanation.exit()
}

/// The run that is meant, which has to be one of the agent that is named.
async fn named_run(context: &Context, run: &str, agent: Option<&str>) -> Outcome<Run> {
    let (_, controller) = context.looking().await?;
    let run = resolve(&context.client(&controller), run).await?;
    let own = &run.spec.agent_name;
    if let Some(named) = agent.filter(|named| named != own) {
        let message = format!("run {} is one of agent {own}, not of {named}", run.id());
        return Err(Failure::usage("wrong-agent", message)
            .hint(format!("leave out --agent, or write --agent {own}"))
            .about(run.id()));
    }
    Ok(run)
}

/// The decision for an agent that nothing bounds but its own rules.
async fn of_agent(
    context: &Context,
    policy: &Policy,
    agent: &AgentPolicy,
    question: PolicyQuestion,
) -> Outcome<Explanation> {
    let question = question.of_agent(policy, agent)?;
    let layers = match &question {
        PolicyQuestion::Call(name) => call::of_agent(context, policy, agent, name).await?,
        PolicyQuestion::Use(asked) => {
            let mut layers = layers_of_use(agent, &rules_of_agent(agent), asked, None);
            layers.extend(own_file(context, &[policy], agent, asked)?);
            layers.extend(member(policy, agent, (&agent.all_members(), None), asked)?);
            let states_cost = agent.budget.cost_microusd.is_some();
            layers.extend(price(policy, states_cost, asked));
            layers
        }
    };
    Ok(Explanation::new(&agent.name, &question, None, layers))
}

/// The decision for a run that was accepted. One that its host adopts by itself when it goes on
/// does nothing before, so it is explained with the form that it has then, and that is given, too.
async fn of_run(
    context: &Context,
    policy: &Policy,
    run: &Run,
    question: PolicyQuestion,
) -> Outcome<(Explanation, Option<Run>)> {
    let own = &run.spec.agent_name;
    let id = Some(run.id().clone());
    let storage = context.existing_storage()?;
    let (data_dir, policies) = (context.data_dir()?, &*storage.policies);
    let mut kept = rules_of_kept_run(policy, &data_dir, policies, run).await;
    let adopted = match &kept {
        Ok(kept) => adopted_when_it_goes_on(context, &storage, (policy, kept), run).await?,
        Err(_) => None,
    };
    if let Some(adopted) = &adopted {
        kept = rules_of_kept_run(policy, &data_dir, policies, adopted).await;
    }
    let upgrade = adopted.as_ref().map(|_| "adopt");
    let run = adopted.as_ref().unwrap_or(run);
    let kept = match kept {
        Ok(kept) => kept,
        Err(stranding) => {
            let layers = of_stranding(&stranding, &shown(&policy.path), run);
            return Ok((Explanation::new(own, &question, id, layers), adopted));
        }
    };
    let agent = agent_of(&kept.policy, own)?;
    let question = question.of_agent(&kept.policy, agent)?;
    let layers = match &question {
        PolicyQuestion::Call(name) => call::of_run(context, policy, (run, &kept), name).await?,
        PolicyQuestion::Use(asked) => {
            let mut layers = layers_of_use(agent, &kept.rules, asked, Some(run));
            layers.extend(own_file(context, &[policy, &kept.policy], agent, asked)?);
            let members = (&kept.members[..], Some(run));
            layers.extend(member(policy, agent_of(policy, own)?, members, asked)?);
            layers.extend(price(policy, kept.states_cost, asked));
            layers
        }
    };
    Ok((Explanation { upgrade, ..Explanation::new(own, &question, id, layers) }, adopted))
}

fn layers_of_use(
    agent: &AgentPolicy,
    rules: &CallRules,
    asked: &OwnedUse,
    run: Option<&Run>,
) -> Vec<LayerView> {
    let used = asked.used();
    let unmentioned = agent.grants.access(used.capability()) == CapabilityAccess::Unlisted;
    of_rules(&agent.name, unmentioned, &rules.explain(&used), run)
}

/// The refusal of a path that leads to one of the host's own files, or where nothing may be made.
fn own_file(
    context: &Context,
    policies: &[&Policy],
    agent: &AgentPolicy,
    asked: &OwnedUse,
) -> Outcome<Option<LayerView>> {
    let Use::Path(capability, path) = asked.used() else { return Ok(None) };
    let programs = compile_worker().map(|worker| worker.program);
    let place = (agent.workspace.as_path(), capability, path);
    let is_own = is_own_file(policies, &context.data_dir()?, programs, place);
    Ok(is_own.then(of_own_file))
}

/// The list of the agents that runs may be started of, where one is to be started.
fn member(
    policy: &Policy,
    agent: &AgentPolicy,
    members: (&[String], Option<&Run>),
    asked: &OwnedUse,
) -> Outcome<Option<LayerView>> {
    let OwnedUse::Operation(_, Some(wanted)) = asked else { return Ok(None) };
    agent_of(policy, wanted)?;
    Ok(Some(of_members(agent, members, wanted)))
}

/// The refusal of a model without a price, where a budget in dollars is stated. Prices are those of
/// the policy as it is now.
fn price(policy: &Policy, states_cost: bool, asked: &OwnedUse) -> Option<LayerView> {
    let OwnedUse::Model(Some(name)) = asked else { return None };
    let model = policy.models.get(name).filter(|model| model.price.is_none())?;
    states_cost.then(|| of_price(model))
}

impl Explanation {
    /// The first layer that denies decides; where none does, the first that asks a person; where
    /// none does either, the first.
    fn new(
        agent: &str,
        question: &PolicyQuestion,
        run_id: Option<RunId>,
        mut layers: Vec<LayerView>,
    ) -> Self {
        let (capability, subject) = question.subject();
        let first = |wanted| layers.iter().position(|layer| layer.verdict == wanted);
        let decides = first(LayerVerdict::Denied).or_else(|| first(LayerVerdict::Ask));
        let decides = decides.unwrap_or_default();
        let mut verdict = LayerVerdict::Allowed;
        if let Some(layer) = layers.get_mut(decides) {
            layer.decides = true;
            verdict = layer.verdict;
        }
        let agent_name = agent.to_owned();
        Self { agent_name, capability, subject, run_id, upgrade: None, verdict, layers }
    }

    /// The use in words.
    fn asked(&self) -> String {
        let Self { agent_name, capability, subject, .. } = self;
        format!("{capability} {} by agent {agent_name}", escaped_line(subject))
    }

    fn text(&self) -> String {
        let style = |verdict| match verdict {
            LayerVerdict::Allowed => (GOOD, "✓"),
            LayerVerdict::Ask => (NOTE, "?"),
            LayerVerdict::Denied => (BAD, "✗"),
            LayerVerdict::NotAsked => (NOTE, "·"),
        };
        let adopted = self.upgrade.map_or("", |_| ", which is adopted when it goes on");
        let in_run = |run: &RunId| format!(" in run {run}{adopted}");
        let run = self.run_id.as_ref().map_or_else(String::new, in_run);
        let word = with(style(self.verdict).0, self.verdict.as_str());
        let mut lines = vec![format!("{word}: {}{run}", self.asked())];
        for layer in &self.layers {
            let (color, mark) = style(layer.verdict);
            let of = escaped_line(&layer.of);
            let of = if layer.decides { with(BOLD, &of) } else { of.into_owned() };
            lines.push(format!("{} {of}: {}", with(color, mark), escaped_line(&layer.reason)));
            let turned = match layer.verdict {
                LayerVerdict::Denied => "to allow it",
                LayerVerdict::Allowed => "to deny it",
                LayerVerdict::Ask | LayerVerdict::NotAsked => "to change it",
            };
            let changes = layer.change.iter();
            lines.extend(changes.map(|change| format!("    {turned}: {}", escaped_line(change))));
        }
        lines.join("\n")
    }

    /// The exit of the command: the explanation was given in any case, and the decision is its
    /// answer.
    fn exit(&self) -> Outcome {
        let denied = self.verdict == LayerVerdict::Denied;
        let Some(layer) = self.layers.iter().find(|layer| layer.decides).filter(|_| denied) else {
            return Ok(Exit::Completed);
        };
        let message = format!("denied: {}", self.asked());
        let mut failure = Failure::new(Exit::Denied, "denied", message);
        failure.causes.push(format!("{}: {}", layer.of, layer.reason));
        if let Some(run) = &self.run_id {
            failure = failure.about(run);
        }
        if !layer.change.is_empty() {
            failure = failure.hint(layer.change.join("; "));
        }
        Err(failure.with_places())
    }
}

fn print(context: &Context, explanation: &Explanation) {
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => printer.line(explanation.text()),
        OutputFormat::Json => printer.json(&versioned(explanation)),
        OutputFormat::Ndjson => printer.json_line(&versioned(explanation)),
        OutputFormat::Name => printer.line(explanation.verdict.as_str()),
    }
}
