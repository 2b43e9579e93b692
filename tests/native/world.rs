//! Controllers over one store.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use taskrun::agents::{Agent, AgentCode, AgentTools, Agents, CodeSource, LoadedTool};
use taskrun::clock::{SeededRandom, SimulatedClock};
use taskrun::controller::{Controller, ControllerParts, Settings};
use taskrun::gate::Guard;
use taskrun::ports::deployments::Deployments;
use taskrun::ports::hook::Hooks;
use taskrun::ports::planner::{Decision, PlanResult, Planner};
use taskrun::ports::retry::SharedRetryPolicy;
use taskrun::ports::tool::{Tool, ToolReply, ToolResult};
use taskrun::ports::transport::Subscribers;
use taskrun::scope::Models;
use taskrun::scope::model::Model;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::channel::Channel;
use taskrun_journal::consent::Consents;
use taskrun_journal::list::Scope;
use taskrun_journal::memory::Memory;
use taskrun_journal::message::{Message, Role};
use taskrun_journal::money::Price;
use taskrun_journal::pin::pin;
use taskrun_journal::plan::{PlannerError, ToolRequest};
use taskrun_journal::question::AwaitItem;
use taskrun_journal::spec::TreeBounds;
use taskrun_journal::store::{Dispatches, Hosts, Sessions, Store};
use taskrun_journal::time::{Clock, Timestamp};
use taskrun_policy::{
    AgentRules, AskRules, Budget, CallTimeouts, Grants, InterruptionPolicy, Limits, Pattern,
    Policy, Retry, RetryOn,
};
use taskrun_store::MemoryStore;

use super::host::{Native, in_time};
use super::{Failing, FailingDispatches, Hearts};

/// The owner of the runs of [`request`].
pub const OWNER: &str = "user-a";
/// From which session, in [`request`].
pub const SESSION: &str = "parent-a";
/// The pause after the death of a host is over then, however many died.
pub const PAUSE_OVER: Duration = Duration::from_secs(60);

/// The parts that all controllers of a test share: store, time, agents.
pub struct World {
    /// The clock that the test moves.
    pub clock: Arc<SimulatedClock>,
    /// The time of what is outside of the runs, so that a test moves that, too.
    pub machine: Arc<dyn Clock>,
    /// The store, failing when told to.
    pub store: Arc<Failing>,
    /// The store that it wraps, where that is in memory.
    pub memory: Option<Arc<MemoryStore>>,
    /// The store itself, which fails nothing.
    pub inner: Arc<dyn Store>,
    /// The list of hosts, silent when told to.
    pub hearts: Arc<Hearts>,
    sessions: Arc<dyn Sessions>,
    /// The store of facts.
    pub facts: Arc<dyn Memory>,
    /// The store of consents that hold in more than one run.
    pub consents: Arc<dyn Consents>,
    /// The store of what subscribers are to be told.
    pub dispatches: Arc<dyn Dispatches>,
    /// The subscribers of the controllers, as a program registers them.
    pub subscribers: Subscribers,
    /// The channels of the policy, by their names.
    pub channels: BTreeMap<String, Channel>,
    agents: BTreeMap<String, Arc<Agent>>,
    /// The policy as it changes under the controllers.
    pub deployments: Option<Arc<dyn Deployments>>,
    tools: Vec<LoadedTool>,
    /// Bounds of the controllers.
    pub settings: Settings,
    /// The hooks that the controllers ask.
    pub hooks: Hooks,
    /// The failure policy of the controllers, instead of those of the agents.
    pub retry_policy: SharedRetryPolicy,
    /// Time-outs of the tools that are added from now on.
    pub timeouts: CallTimeouts,
    seed: u64,
}

/// A request by [`OWNER`] from [`SESSION`].
#[must_use]
pub fn request(agent: &str, task: &str) -> SpawnRequest {
    SpawnRequest {
        owner_user_id: OWNER.into(),
        parent_session_id: SESSION.into(),
        agent_name: agent.into(),
        task: task.into(),
        ..SpawnRequest::default()
    }
}

/// The grants of an agent with these rules; `own` is the one model of the policy.
#[must_use]
pub fn grants(rules: &str) -> Arc<Grants> {
    let text =
        format!("[model.own]\nprovider = \"echo\"\n[agent.a]\ncomponent = \"a.wasm\"\n{rules}\n");
    let policy = Policy::parse(&text, Path::new("test")).expect("a valid policy");
    Arc::clone(&policy.agents["a"].grants)
}

/// Grants under which an agent may ask any model, and the controller anything.
fn any_model() -> Arc<Grants> {
    grants("model = \"own\"\nallow = [\"model: *\", \"controller: *\"]")
}

/// The answer of a planner that decided so.
pub fn decided(decision: Decision) -> super::Planned {
    Ok(Ok(PlanResult { decision, streamed: false, expected_children: None, notes: Vec::new() }))
}

/// A question in free text that asks for itself.
#[must_use]
pub fn clarification(id: &str) -> AwaitItem {
    AwaitItem::Clarification {
        id: id.into(),
        question: format!("{id}?"),
        missing_fields: Vec::new(),
        restrict_to_tool: None,
        example_input: None,
        clarifying_prompt: None,
    }
}

/// A planner's error.
pub fn failed(code: Option<&str>, message: &str) -> super::Planned {
    let (code, message) = (code.map(str::to_owned), message.to_owned());
    Ok(Err(PlannerError { code, message, causes: Vec::new(), retry_after_ms: None }))
}

/// A planner's final answer.
pub fn answer(text: &str) -> super::Planned {
    decided(Decision::FinalResponse(Message::text(Role::Assistant, text)))
}

/// A planner's wish to call tools: id, name, arguments.
pub fn call_of(calls: &[(&str, &str, &str)]) -> super::Planned {
    let requests = calls.iter().map(|(id, name, payload)| ToolRequest {
        name: (*name).to_owned(),
        payload: (*payload).to_owned(),
        tool_call_id: Some((*id).to_owned()),
        parent_tool_call_id: None,
    });
    decided(Decision::ToolCalls(requests.collect()))
}

/// A tool's result.
pub fn value(json: &str) -> super::Replied {
    Ok(Ok(ToolReply::Value(Box::new(ToolResult {
        value: json.to_owned(),
        server_data: None,
        bounds: None,
        telemetry: None,
        media: Vec::new(),
    }))))
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// A world whose store is in memory.
    #[must_use]
    pub fn new() -> Self {
        let memory = Arc::new(MemoryStore::new());
        let mut world = Self::over(memory.clone(), memory.clone(), memory.clone());
        world.facts = memory.clone();
        world.consents = memory.clone();
        world.dispatches = memory.clone();
        world.memory = Some(memory);
        world
    }

    /// A world over another store.
    #[must_use]
    pub fn over(store: Arc<dyn Store>, hosts: Arc<dyn Hosts>, sessions: Arc<dyn Sessions>) -> Self {
        let clock = Arc::new(SimulatedClock::new(Timestamp(1_800_000_000_000)));
        Self {
            machine: clock.clone(),
            clock,
            store: Arc::new(Failing::new(Arc::clone(&store))),
            memory: None,
            inner: store,
            hearts: Arc::new(Hearts::new(hosts)),
            sessions,
            facts: Arc::new(MemoryStore::new()),
            consents: Arc::new(MemoryStore::new()),
            dispatches: Arc::new(MemoryStore::new()),
            subscribers: Subscribers::default(),
            channels: BTreeMap::new(),
            agents: BTreeMap::new(),
            deployments: None,
            tools: Vec::new(),
            settings: Settings { slots: 8, ..Settings::default() },
            hooks: Hooks::default(),
            retry_policy: None,
            timeouts: CallTimeouts::default(),
            seed: 1,
        }
    }

    /// Adds a tool for the agents that are added after it; its function is `NAME/FUNCTION`. The
    /// policy states the tags that it has, if it has any.
    pub fn tool(&mut self, name: &str, interrupted: InterruptionPolicy, tool: impl Tool + 'static) {
        let tags: Vec<_> = tool.specs().iter().flat_map(|spec| spec.tags.clone()).collect();
        self.tool_stated(name, interrupted, (!tags.is_empty()).then_some(tags), tool);
    }

    /// The same with tags that the policy states, or none but those that the tool claims.
    pub fn tool_stated(
        &mut self,
        name: &str,
        interrupted: InterruptionPolicy,
        tags: Option<Vec<String>>,
        tool: impl Tool + 'static,
    ) {
        let tool = Arc::new(tool);
        let limits = Limits { call: Duration::from_secs(3_600), ..Limits::default() };
        let (name, timeouts) = (name.to_owned(), self.timeouts.clone());
        self.tools.push(LoadedTool { name, tool, limits, interrupted, tags, timeouts });
    }

    /// Adds an agent with all tools so far, that may delegate to anybody.
    pub fn agent(&mut self, name: &str, planner: impl Planner + 'static) {
        self.agent_with(name, planner, |_| {});
    }

    /// The same, changed.
    pub fn agent_with(
        &mut self,
        name: &str,
        planner: impl Planner + 'static,
        change: impl FnOnce(&mut Agent),
    ) {
        self.agent_asking(name, planner, None, change);
    }

    /// The same with a model of its own.
    pub fn agent_asking(
        &mut self,
        name: &str,
        planner: impl Planner + 'static,
        model: Option<Arc<dyn Model>>,
        change: impl FnOnce(&mut Agent),
    ) {
        let all: Vec<_> = self.tools.iter().map(|tool| Pattern::all_of(&tool.name)).collect();
        let own = "own".to_owned();
        let mut agent = Agent {
            name: name.to_owned(),
            pin: pin(name, planner.digest()),
            digest: planner.digest().to_owned(),
            has_finalizer: planner.has_finalizer(),
            code: CodeSource::Loaded(Arc::new(AgentCode {
                tools: AgentTools::select(&all, &self.tools).expect("tools that fit"),
                planner: Arc::new(planner),
                guard: Guard::default(),
                native: BTreeMap::new(),
            })),
            models: Arc::new(Models {
                default: model.is_some().then(|| own.clone()),
                settings: BTreeMap::new(),
                prices: BTreeMap::from([("own".to_owned(), Price::default())]),
                by_name: model.map(|model| (own, model)).into_iter().collect(),
            }),
            rules: Arc::new(AgentRules {
                agent: name.to_owned(),
                workspace: "/workspace".into(),
                grants: any_model(),
            }),
            now: None,
            origin: None,
            prompts: Arc::default(),
            limits: Limits { step: Duration::from_secs(36_000), ..Limits::default() },
            budget: Budget { turns: None, wall: None, ..Budget::default() },
            members: vec!["*".to_owned()],
            tree: TreeBounds::default(),
            durable: true,
            retry: Retry::default(),
            retry_on: RetryOn::default(),
            autonomous: None,
            heartbeat: None,
            delivery: taskrun_journal::delivery::DeliverySettings::default(),
            max_nudges: taskrun_policy::NUDGES_DEFAULT,
            conversation: taskrun_journal::history::History::Agent,
            ask: AskRules::default(),
            on_missing_fields: taskrun_policy::MissingFields::default(),
            upgrade: taskrun_policy::Upgrade::default(),
            interrupts: true,
            subscribers: Vec::new(),
            channels: Vec::new(),
            delegation: taskrun_policy::DelegationSettings::default(),
        };
        change(&mut agent);
        self.agents.insert(name.to_owned(), Arc::new(agent));
    }

    /// Adds an agent that was loaded from a component, with everything that it is.
    pub fn loaded(&mut self, agent: &Arc<Agent>) {
        self.agents.insert(agent.name.clone(), Arc::clone(agent));
    }

    /// The agents that controllers have from now on.
    #[must_use]
    pub fn agents_now(&self) -> Agents {
        let (policy, by_name) = ("policy".into(), self.agents.clone());
        let channels = self.channels.clone();
        Agents { policy, by_name, channels, ..Agents::default() }
    }

    /// Controllers from now on do not have this agent.
    pub fn forget_agent(&mut self, name: &str) {
        self.agents.remove(name);
    }

    /// Agents that are added from now on have none of the tools so far.
    pub fn forget_tools(&mut self) {
        self.tools.clear();
    }

    /// Lets time pass until `done` is ready, at most `within`, and gives its output and how far the
    /// clock was moved: [`SimulatedClock::run_until`] with a deadline in real time that only a
    /// failure meets.
    pub async fn run_until<T>(
        &self,
        within: Duration,
        done: impl Future<Output = T>,
    ) -> (T, Duration) {
        in_time(self.clock.run_until(within, done)).await
    }

    /// Moves time to the moment at which the next sleeper wakes, which is at most `within` away,
    /// and gives how far that was.
    pub async fn next(&self, within: Duration) -> Duration {
        in_time(self.clock.advance_to_next(within)).await
    }

    /// From now on controllers get a way to the store of their own, which fails for them only.
    pub fn part_stores(&mut self) {
        self.store = Arc::new(Failing::new(Arc::clone(&self.inner)));
    }

    /// A controller that executes nothing and whose writes never fail: for observers and answers
    /// from outside.
    pub async fn door(&mut self) -> Native {
        let (store, slots) = (Arc::clone(&self.store), self.settings.slots);
        self.part_stores();
        self.settings.slots = 0;
        let door = self.start().await;
        (self.store, self.settings.slots) = (store, slots);
        door
    }

    /// Takes up the work of hosts that died: frees their runs, lets the pause pass and starts a
    /// host.
    pub async fn take_over(&mut self) -> Native {
        let native = self.controller();
        native.controller.sweep().await.expect("the store can be swept");
        self.clock.advance(PAUSE_OVER);
        native.begin().await;
        native
    }

    /// A controller that is not started.
    pub fn controller(&mut self) -> Native {
        let controller = self.controller_over(self.store.clone(), self.hearts.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        Native { controller, scope: Scope::tenant("default"), runtime: Some(runtime) }
    }

    /// A controller that is not started, without a runtime of its own and with its own view of
    /// store and hosts.
    pub fn controller_over(&mut self, store: Arc<dyn Store>, hosts: Arc<dyn Hosts>) -> Controller {
        self.seed += 1;
        Controller::new(ControllerParts {
            store,
            hosts,
            sessions: Arc::clone(&self.sessions),
            memory: Arc::clone(&self.facts),
            consents: Arc::clone(&self.consents),
            dispatches: Arc::new(FailingDispatches::new(
                Arc::clone(&self.dispatches),
                Arc::clone(&self.store),
            )),
            subscribers: self.subscribers.clone(),
            agents: self.agents_now(),
            deployments: self.deployments.clone(),
            clock: self.clock.clone(),
            machine: Arc::clone(&self.machine),
            random: Arc::new(SeededRandom::new(self.seed)),
            interrupt: Arc::new(|| {}),
            hooks: self.hooks.clone(),
            retry_policy: self.retry_policy.clone(),
            settings: self.settings,
        })
    }

    /// A controller that is started.
    pub async fn start(&mut self) -> Native {
        let native = self.controller();
        native.begin().await;
        native
    }

    /// Kills a controller: it acts no more, and its host is dead for the others.
    pub async fn kill(&self, native: Native) {
        self.declare_dead(&native);
        native.gone().await;
    }

    /// A controller's host is dead for the others, though it goes on.
    pub fn declare_dead(&self, native: &Native) {
        let memory = self.memory.as_ref().expect("only in memory can hosts be declared dead");
        memory.forget(native.controller.host());
    }
}

/// Changes the code of an agent that is loaded.
pub fn change_code(agent: &mut Agent, change: impl FnOnce(&mut AgentCode)) {
    let mut code = AgentCode::clone(agent.code.loaded().expect("it is loaded"));
    change(&mut code);
    agent.code = CodeSource::Loaded(Arc::new(code));
}
