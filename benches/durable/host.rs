//! A host without components: its agents are fixed decisions.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use taskrun::agents::{Agent, AgentCode, AgentTools, Agents, CodeSource};
use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::controller::{Controller, ControllerParts, Settings};
use taskrun::gate::Guard;
use taskrun::ports::hook::Hooks;
use taskrun::ports::planner::{
    ConversationView, Decision, FinalizeInput, PlanInput, PlanResult, Planner,
};
use taskrun::scope::{CallScope, Models};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::list::Scope;
use taskrun_journal::message::{Labels, Message, Role};
use taskrun_journal::pin::pin;
use taskrun_journal::plan::PlannerError;
use taskrun_journal::question::AwaitItem;
use taskrun_journal::stop::CallAbort;
use taskrun_policy::{AgentRules, Policy, Retry, RetryOn};
use taskrun_store::{Durability, SqliteOptions, SqliteStore};

/// Tenant of everything that is measured.
pub(crate) const TENANT: &str = "bench";
/// The pin of runs that nobody executes.
pub(crate) const OTHER_PIN: &str = "other@0123456789abcdef0123456789abcdef";
/// Digest of the agents.
pub(crate) const AGENT_DIGEST: &str = "fixed";
/// The agent that answers.
pub(crate) const ANSWERS: &str = "answers";
/// The agent that asks.
pub(crate) const ASKS: &str = "asks";

const POLICY: &str = "
[agent.answers]
component = \"answers.wasm\"
[agent.asks]
component = \"asks.wasm\"
";

/// A planner that always decides the same.
struct Fixed(Decision);

#[async_trait]
impl Planner for Fixed {
    fn digest(&self) -> &str {
        AGENT_DIGEST
    }

    fn hears_cancellation(&self) -> bool {
        false
    }

    fn view(&self) -> ConversationView {
        ConversationView::Whole
    }

    fn has_finalizer(&self) -> bool {
        false
    }

    async fn finalize(
        &self,
        _input: FinalizeInput,
        _scope: Arc<CallScope>,
    ) -> Result<Result<Labels, PlannerError>, CallAbort> {
        Ok(Ok(Labels::new()))
    }

    async fn plan(
        &self,
        _input: PlanInput,
        _scope: Arc<CallScope>,
    ) -> Result<Result<PlanResult, PlannerError>, CallAbort> {
        let decision = self.0.clone();
        Ok(Ok(PlanResult { decision, streamed: false, expected_children: None, notes: Vec::new() }))
    }
}

/// A controller over a store on disk; not started.
pub(crate) struct Host {
    pub(crate) controller: Controller,
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) scope: Scope,
}

/// The store of a folder.
pub(crate) fn open(dir: &Path, durability: Durability) -> Arc<SqliteStore> {
    let options = SqliteOptions { durability, ..SqliteOptions::default() };
    Arc::new(SqliteStore::open(dir, options).expect("a store that can be opened"))
}

impl Host {
    /// The controller as an operator of the tenant has it.
    pub(crate) fn client(&self) -> taskrun::controller::Client {
        self.controller.at(&self.scope)
    }

    /// A host over the store of a folder, where every acknowledged change survives a loss of
    /// power.
    pub(crate) fn new(dir: &Path) -> Self {
        let policy = Policy::parse(POLICY, Path::new("bench")).expect("a valid policy");
        let answer = Message::text(Role::Assistant, "It is done, and nothing was found.");
        let question = AwaitItem::Clarification {
            id: "which".to_owned(),
            question: "Which of the two is meant?".to_owned(),
            missing_fields: Vec::new(),
            restrict_to_tool: None,
            example_input: None,
            clarifying_prompt: None,
        };
        let planners = [
            (ANSWERS, Decision::FinalResponse(answer)),
            (ASKS, Decision::Await(vec![question.into()])),
        ];
        let agents = planners.into_iter().map(|(name, decision)| {
            let of = &policy.agents[name];
            let agent = Agent {
                name: name.to_owned(),
                pin: pin(name, AGENT_DIGEST),
                digest: AGENT_DIGEST.to_owned(),
                has_finalizer: false,
                code: CodeSource::Loaded(Arc::new(AgentCode {
                    planner: Arc::new(Fixed(decision)),
                    tools: AgentTools::none(),
                    guard: Guard::default(),
                    native: std::collections::BTreeMap::new(),
                })),
                models: Arc::new(Models {
                    by_name: std::collections::BTreeMap::new(),
                    prices: std::collections::BTreeMap::new(),
                    settings: std::collections::BTreeMap::new(),
                    default: None,
                }),
                rules: Arc::new(AgentRules::of(of)),
                now: None,
                origin: None,
                prompts: Arc::default(),
                limits: of.limits.clone(),
                budget: of.budget.clone(),
                members: Vec::new(),
                channels: Vec::new(),
                delegation: of.delegation.clone(),
                tree: of.tree,
                durable: true,
                retry: Retry::default(),
                retry_on: RetryOn::default(),
                autonomous: None,
                heartbeat: None,
                delivery: taskrun_journal::delivery::DeliverySettings::default(),
                max_nudges: 0,
                conversation: taskrun_journal::history::History::Agent,
                ask: of.ask.clone(),
                on_missing_fields: taskrun_policy::MissingFields::default(),
                upgrade: taskrun_policy::Upgrade::default(),
                interrupts: true,
                subscribers: Vec::new(),
            };
            (name.to_owned(), Arc::new(agent))
        });
        let agents =
            Agents { policy: "policy".into(), by_name: agents.collect(), ..Agents::default() };
        let store = open(dir, Durability::Power);
        let controller = Controller::new(ControllerParts {
            store: Arc::clone(&store) as _,
            hosts: Arc::clone(&store) as _,
            sessions: Arc::clone(&store) as _,
            memory: Arc::clone(&store) as _,
            consents: Arc::clone(&store) as _,
            dispatches: Arc::clone(&store) as _,
            subscribers: Default::default(),
            agents,
            deployments: None,
            clock: Arc::new(SystemClock::new()),
            machine: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
            interrupt: Arc::new(|| {}),
            hooks: Hooks::default(),
            retry_policy: None,
            settings: Settings { queue_max: u64::MAX, ..Settings::default() },
        });
        Self { controller, store, scope: Scope::tenant(TENANT) }
    }

    /// The same, started.
    pub(crate) async fn start(dir: &Path) -> Self {
        let host = Self::new(dir);
        host.controller.start().await.expect("starts");
        host
    }

    /// Starts a run and gives its id.
    pub(crate) async fn spawn(&self, agent: &str) -> String {
        let request = SpawnRequest {
            owner_user_id: "owner".to_owned(),
            parent_session_id: "parent".to_owned(),
            agent_name: agent.to_owned(),
            task: "look something up and say what you found".to_owned(),
            ..SpawnRequest::default()
        };
        let run = self.client().spawn(&request).await.expect("accepted");
        run.id().to_string()
    }

    /// Gives back what is executed and closes the store.
    pub(crate) async fn close(self) {
        let closed = self.controller.close(std::time::Duration::from_secs(30)).await;
        assert!(closed.stragglers.is_empty(), "runs that do not end: {closed:?}");
        self.store.close();
    }
}
