//! The rules of a run, put together from the policy and from what is kept of earlier ones, for front
//! doors that explain decisions. No component is read but for its digest, and nothing is loaded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::driver::{Journal, is_between_steps};
use taskrun::gate::rights::{AgentRights, ask_rules, rules_of_run};
use taskrun_engine::{digest_file, pin_of, rules_of};
use taskrun_journal::machine::decide::check_adoptable;
use taskrun_journal::pin::agent_of;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunClass;
use taskrun_journal::store::{Policies, Store};
use taskrun_policy::{AgentPolicy, AgentRules, AskRules, CallRules, Capability, Policy, Upgrade};
use taskrun_store::Blobs;

use crate::loader::{COMPONENT_BYTES_MAX, protected};
use crate::origins::as_it_is_now;
use crate::problem::chain;
use crate::snapshot::{self, Digests, PinError};

/// The rules of a run, as a host that has this policy executes it.
pub struct RunRules {
    /// All of them about capabilities.
    pub rules: CallRules,
    /// Those about consent to tool calls.
    pub ask: AskRules,
    /// The agents that it may start runs of.
    pub members: Vec<String>,
    /// True if a sum of money is stated for it or a run above it, so that it asks only models whose
    /// prices are known.
    pub states_cost: bool,
    /// The policy of the run's own agent as it was when the run was accepted, with the models of
    /// now.
    pub policy: Policy,
    /// The policy as it is now of the file that the run was accepted under, where that is another
    /// file and gives something else than then.
    pub origin: Option<Policy>,
    /// True if `policy` is an earlier one, so that what is given since does not reach the run.
    pub is_earlier: bool,
}

/// An agent, the run's own or one above it, for whose sake a run begins nothing.
#[derive(Debug)]
pub struct StrandingAgent {
    /// The agent.
    pub agent: String,
    /// True if it is the run's own.
    pub is_own: bool,
    /// Why.
    pub reason: PinError,
}

/// The policy of one agent of a run, and the rules of the agent.
struct PinnedAgent {
    policy: Policy,
    rules: Arc<AgentRules>,
    /// Under the policies of now, where they are others.
    now: Vec<Arc<AgentRules>>,
    origin: Option<Policy>,
    /// Of then and of now.
    ask: AskRules,
    /// The agents that its runs may start runs of, then and now.
    members: Vec<String>,
    /// True if a sum of money is stated for its runs.
    states_cost: bool,
}

/// The rules of a run that is kept in a data directory, under a policy as it is now.
///
/// # Errors
/// The agents for whose sake no host of this policy executes the run, its own first.
///
/// # Cancel safety
/// Dropping the future changes nothing.
pub async fn rules_of_kept_run(
    policy: &Policy,
    data_dir: &Path,
    policies: &dyn Policies,
    run: &Run,
) -> Result<RunRules, Vec<StrandingAgent>> {
    let spec = &run.spec;
    let own = match spec.class {
        RunClass::Task => run.pin(),
        // An entry is pinned to nothing: it is of the agent that has its name now.
        RunClass::Heartbeat => &spec.agent_name,
    };
    let above = spec.ancestors.iter().map(|ancestor| (&*ancestor.pin, false));
    let (mut opened, mut stranding) = (Vec::new(), Vec::new());
    for (pin, is_own) in std::iter::once((own, true)).chain(above) {
        match PinnedAgent::open(policy, data_dir, policies, pin).await {
            Ok(agent) => opened.push(agent),
            Err(reason) => {
                let agent = agent_of(pin).to_owned();
                stranding.push(StrandingAgent { agent, is_own, reason });
            }
        }
    }
    if !stranding.is_empty() {
        return Err(stranding);
    }
    let above = opened.split_off(1);
    let Some(own) = opened.pop() else { return Err(stranding) };
    let rights: Vec<_> = above.iter().map(|agent| Some(agent.rights())).collect();
    let rules = rules_of_run(&own.rights(), spec, &rights);
    let ask = ask_rules(&own.ask, above.iter().map(|agent| &agent.ask));
    let mut narrowed = spec.ancestors.iter().map(|ancestor| &ancestor.narrow).chain([&spec.narrow]);
    let states_cost = narrowed.any(|narrow| narrow.cost_microusd.is_some())
        || above.iter().chain([&own]).any(|agent| agent.states_cost);
    let PinnedAgent { policy, rules: _, now, origin, ask: _, members, states_cost: _ } = own;
    let is_earlier = !now.is_empty();
    Ok(RunRules { rules, ask, members, states_cost, policy, origin, is_earlier })
}

/// The rules for calls of an agent that no run bounds.
#[must_use]
pub fn rules_of_agent(agent: &AgentPolicy) -> CallRules {
    CallRules::new(Arc::clone(&agent.grants), None)
}

/// Tells if a path of an agent's workspace leads to a file of the host: the policy as it is now, that
/// of a run, what they name, the data directory, and these programs. No rule lets a guest have one,
/// nor make anything where the folder of an agent is missing.
#[must_use]
pub fn is_own_file(
    policies: &[&Policy],
    data_dir: &Path,
    programs: impl IntoIterator<Item = PathBuf>,
    place: (&Path, Capability, &str),
) -> bool {
    let data = policies.iter().flat_map(|policy| protected(Some(data_dir), policy));
    taskrun_engine::is_own_file(data.chain(programs), policies, place)
}

impl RunRules {
    /// The run with the pin that its agent has now, as a host of this policy adopts it by itself
    /// when the run goes on. `None` if it keeps its form: the policy does not say
    /// `upgrade = "adopt"`, or the run is of another file, or a host has it, or it is on its way
    /// out, or a step or a call of it was cut off, or its journal cannot be read.
    ///
    /// Besides, the form of now has to load, which is not looked at here.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn adopted_by_host(
        &self,
        policy: &Policy,
        store: &Arc<dyn Store>,
        run: &Run,
    ) -> Option<Run> {
        let now = policy.agents.get(&run.spec.agent_name)?;
        match now.upgrade {
            Upgrade::Pinned => return None,
            Upgrade::Adopt if self.policy.path != policy.path => return None,
            Upgrade::Adopt => {}
        }
        let pin = pin_now(policy, now)?;
        if check_adoptable(run).is_err() || run.pin() == pin {
            return None;
        }
        let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
        let journal = Journal::new(Arc::clone(store), clock, random, run.clone());
        // A host says the same of one that it cannot read.
        if !is_between_steps(&journal).await.unwrap_or(false) {
            return None;
        }
        let mut adopted = run.clone();
        adopted.state.pin = Some(pin);
        Some(adopted)
    }

    /// The policy file that runs with this pin are of; `None` where what is kept of it cannot be
    /// read.
    #[must_use]
    pub fn file_of_pin(data_dir: &Path, pin: &str) -> Option<PathBuf> {
        let (policy, _) = snapshot::open(&Blobs::existing(data_dir), pin).ok()?;
        Some(policy.path)
    }
}

impl PinnedAgent {
    /// The agent with a pin, or with a name alone the one of now.
    async fn open(
        policy: &Policy,
        data_dir: &Path,
        policies: &dyn Policies,
        pin: &str,
    ) -> Result<Self, PinError> {
        let name = agent_of(pin);
        let now = policy.agents.get(name).ok_or_else(|| PinError::Gone(name.to_owned()))?;
        let rules_now = Arc::new(rules_of(now));
        if pin == name || pin_now(policy, now).as_deref() == Some(pin) {
            let (ask, members) = (now.ask.clone(), now.all_members());
            return Ok(Self {
                policy: policy.clone(),
                rules: rules_now,
                now: Vec::new(),
                origin: None,
                ask,
                members,
                states_cost: now.budget.cost_microusd.is_some(),
            });
        }
        let (then, _) = snapshot::open_beside(&Blobs::existing(data_dir), pin, policy)?;
        let mut bounded = then.clone();
        bounded.bound_by(name, policy);
        let (mut now, mut origin) = (vec![rules_now], None);
        // Where it was accepted under another file, that binds it, too.
        if then.path != policy.path {
            let there = as_it_is_now(policies, &then.path, policy.defaults()).await;
            let there = there.map_err(|error| PinError::Kept(chain(&error).join(": ")))?;
            if let Some(there) = there {
                let gone =
                    || PinError::GoneThere { agent: name.to_owned(), policy: there.path.clone() };
                let agent = there.agents.get(name).ok_or_else(gone)?;
                if pin_now(&there, agent).as_deref() != Some(pin) {
                    bounded.bound_by(name, &there);
                    now.push(Arc::new(rules_of(agent)));
                    origin = Some(there);
                }
            }
        }
        let agent = bounded.agents.remove(name).ok_or_else(|| PinError::Gone(name.to_owned()))?;
        let rules = Arc::new(rules_of(&agent));
        let members = agent.all_members();
        let states_cost = agent.budget.cost_microusd.is_some();
        Ok(Self { policy: then, rules, now, origin, ask: agent.ask, members, states_cost })
    }

    fn rights(&self) -> AgentRights<'_> {
        AgentRights {
            rules: &self.rules,
            now: self.now.iter().collect(),
            models: self.policy.models.keys().map(String::as_str).collect(),
            prompts: self.policy.prompts.keys().map(String::as_str).collect(),
        }
    }
}

/// The pin of an agent as the policy and its components are now; `None` if one cannot be read.
fn pin_now(policy: &Policy, agent: &AgentPolicy) -> Option<String> {
    let digest =
        |path: &Path| Some((path.to_owned(), digest_file(path, COMPONENT_BYTES_MAX).ok()?));
    let digests: Digests =
        policy.files_of(agent).into_iter().map(digest).collect::<Option<BTreeMap<_, _>>>()?;
    pin_of(policy, agent, &digests).ok()
}
