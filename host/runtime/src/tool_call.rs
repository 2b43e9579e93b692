//! Single tool calls, outside any run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use taskrun::agents::{AgentTool, AgentTools, LoadedTool, ToolsError};
use taskrun::arguments::TurnSteps;
use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::ports::tool::{Tool, ToolCall, ToolReply};
use taskrun::scope::{
    CallScope, CallScopeParts, CurrentRules, Interrupt, Remaining, RunContext, ScopeEnd,
    ScopeLimits, Services, StopSignal,
};
use taskrun_engine::LoadError;
use taskrun_journal::event::Event;
use taskrun_journal::ids::RunId;
use taskrun_journal::message::Labels;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::time::{Clock, Random};
use taskrun_journal::tool::{ToolFailure, ToolSpec};
use taskrun_policy::{AgentPolicy, CallRules, Capability, Policy, ToolPolicy};

use crate::loader::Loader;
use crate::run_rules::rules_of_agent;

/// The agents of a policy that list a tool.
pub fn callers<'p>(policy: &'p Policy, tool: &str) -> impl Iterator<Item = &'p AgentPolicy> {
    policy.agents.values().filter(move |agent| agent.uses_tool(tool))
}

/// The functions of a tool that one agent may call, loaded under its grants.
pub struct ToolFunctions {
    tools: AgentTools,
    agent: String,
    rules: CallRules,
    interrupt: Interrupt,
}

/// The reason that a tool cannot be called.
#[derive(Debug, thiserror::Error)]
pub enum FunctionsError {
    /// Its component does not load.
    #[error(transparent)]
    Component(#[from] LoadError),
    /// It does not have what the agent lists.
    #[error(transparent)]
    Tools(#[from] ToolsError),
}

/// The one on whose behalf a tool is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The tenant for which the tool is called.
    pub tenant: String,
    /// The owner for whom the tool is called.
    pub owner: String,
    /// The session from which it is asked for.
    pub session: String,
}

/// Name of the agent under which a tool is looked at that no agent lists.
const UNGRANTED: &str = "none";

/// A policy with an agent that lists all of a tool and denies each capability, so that a component
/// which imports one loads.
fn policy_without_grants(tool: &str) -> Policy {
    let denials: Vec<String> =
        Capability::ALL.iter().map(|one| format!("{:?}", one.everything_rule())).collect();
    let text = format!(
        "[tool.{tool}]\ncomponent = \"tool.wasm\"\n\
         [agent.{UNGRANTED}]\ncomponent = \"agent.wasm\"\ntools = [\"{tool}/*\"]\ndeny = [{}]\n",
        denials.join(", ")
    );
    Policy::parse(&text, Path::new("taskrun.toml")).expect("the name is one of a policy")
}

/// The end of a call.
#[derive(Debug)]
pub struct CallEnd {
    /// Refusals and log lines of the call, in their order.
    pub events: Vec<Event>,
    /// The answer of the tool, or why it was stopped; `None` if the call was canceled.
    pub answer: Option<Result<Result<ToolReply, ToolFailure>, CallAbort>>,
    /// True if the tool answered and the answer is a failure nevertheless, since it is not what the
    /// contract of tools asks for.
    pub breaks_contract: bool,
    /// The first capability that the tool asked for and that only calls of runs have.
    pub absent: Option<Capability>,
}

/// Checks that an agent can use the functions that it lists of a tool, which is loaded under its
/// grants.
///
/// # Errors
/// [`ToolsError`].
pub fn check_functions(
    agent: &AgentPolicy,
    tool: &ToolPolicy,
    loaded: Arc<dyn Tool>,
) -> Result<(), ToolsError> {
    select(agent, tool, loaded).map(|_| ())
}

/// The functions of a tool that an agent may call.
fn select(
    agent: &AgentPolicy,
    tool: &ToolPolicy,
    loaded: Arc<dyn Tool>,
) -> Result<AgentTools, ToolsError> {
    let loaded = LoadedTool {
        name: tool.name.clone(),
        tool: loaded,
        limits: agent.call_limits(tool),
        interrupted: tool.interrupted,
        tags: tool.tags.clone(),
        timeouts: agent.call_timeouts(tool),
    };
    AgentTools::select(&agent.tools, &[loaded])
}

impl Loader {
    /// Loads the functions of a tool that an agent may call.
    ///
    /// # Errors
    /// [`FunctionsError`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the load.
    pub async fn functions(
        &self,
        agent: &AgentPolicy,
        tool: &ToolPolicy,
    ) -> Result<ToolFunctions, FunctionsError> {
        let tools = select(agent, tool, self.tool(agent, tool).await?)?;
        let rules = rules_of_agent(agent);
        let interrupt = self.engine().interrupt();
        Ok(ToolFunctions { tools, agent: agent.name.clone(), rules, interrupt })
    }

    /// Loads a tool that no agent lists, and looks at what an agent could be given of it: its kind,
    /// its imports, its functions and their schemas. It is granted nothing.
    ///
    /// # Errors
    /// [`FunctionsError`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the load.
    pub async fn check_unlisted(&self, tool: &ToolPolicy) -> Result<(), FunctionsError> {
        let policy = policy_without_grants(&tool.name);
        let agent = &policy.agents[UNGRANTED];
        let loaded = self.tool(agent, tool).await?;
        Ok(check_functions(agent, tool, loaded)?)
    }
}

impl ToolFunctions {
    /// The functions, by their qualified names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.specs().iter().map(|spec| spec.name.as_str())
    }

    /// The function of a qualified name, if the agent may call it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<ToolFunction<'_>> {
        Some(ToolFunction { function: self.tools.get(name)?, of: self })
    }
}

/// A function of a tool, to be called under the grants of an agent.
pub struct ToolFunction<'f> {
    function: &'f AgentTool,
    of: &'f ToolFunctions,
}

impl ToolFunction<'_> {
    /// Its description under its qualified name.
    #[must_use]
    pub fn spec(&self) -> &ToolSpec {
        &self.function.spec
    }

    /// Holds arguments to the schema of the function.
    ///
    /// # Errors
    /// [`ToolFailure`], with a hint how to try again.
    ///
    /// # Cancel safety
    /// Dropping the future ends the look at once.
    pub async fn check(&self, arguments: &str) -> Result<(), ToolFailure> {
        self.function.check(arguments, &TurnSteps::default()).await
    }

    /// Calls the function once, until it has ended or `canceled` does. Its arguments are not held
    /// to the schema again.
    ///
    /// # Cancel safety
    /// Dropping the future drops the instance of the tool at once.
    pub async fn call(
        &self,
        arguments: String,
        caller: &Caller,
        canceled: impl Future<Output = ()>,
    ) -> CallEnd {
        let Self { function, of: ToolFunctions { agent, rules, interrupt, .. } } = self;
        let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
        let stop = StopSignal::new(interrupt.clone());
        let id = {
            let mut bytes = [0; 10];
            random.fill(&mut bytes);
            RunId::generate(clock.now().0, &bytes).to_string()
        };
        let context = RunContext {
            run_id: id.clone(),
            root_run_id: id.clone(),
            tenant: caller.tenant.clone(),
            session_id: id.clone(),
            parent_session_id: caller.session.clone(),
            owner_user_id: caller.owner.clone(),
            agent_name: agent.clone(),
            turn: 1,
            attempt: 1,
            ..RunContext::default()
        };
        let scope = Arc::new(CallScope::new(CallScopeParts {
            context,
            stop: stop.clone(),
            deadline: function.deadline,
            clock,
            random,
            models: None,
            rules: CurrentRules::fixed(rules.clone()),
            pins: Vec::new(),
            runs: None,
            tools: Arc::default(),
            state: BTreeMap::new(),
            services: Services::default(),
            remaining: Remaining::default(),
            limits: ScopeLimits {
                events: function.limits.events,
                bytes: function.limits.log_bytes,
            },
            wake: Arc::default(),
            journal: None,
            tape: None,
        }));
        let call = ToolCall {
            timeout: None,
            name: function.function.clone(),
            payload: arguments,
            tool_call_id: format!("{id}:1"),
            parent_tool_call_id: None,
            agent_name: agent.clone(),
            run_id: id.clone(),
            session_id: id,
            turn: 1,
            labels: Labels::new(),
        };
        let called = async {
            let answer = function.tool.call(call, Arc::clone(&scope)).await;
            let has_answered = matches!(answer, Ok(Ok(_)));
            let answer = function.keep_promise(answer, &TurnSteps::default()).await;
            let breaks_contract = has_answered && matches!(answer, Ok(Err(_)));
            (Some(answer), breaks_contract)
        };
        let (answer, breaks_contract) = tokio::select! {
            called = called => called,
            () = canceled => {
                stop.force(StopCause::Canceled);
                (None, false)
            }
        };
        let ScopeEnd { events, absent, .. } = scope.finish();
        CallEnd { events, answer, breaks_contract, absent }
    }
}
