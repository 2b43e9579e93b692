//! Requests and agents above a run, as they narrow what it may do.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::autonomy::Autonomy;
use taskrun_journal::completion::{CompletionRequest, ModelError};
use taskrun_journal::history::History;
use taskrun_journal::message::Labels;
use taskrun_journal::money::Price;
use taskrun_journal::narrowing::{Ancestor, Narrowing};
use taskrun_journal::plan::PlannerError;
use taskrun_journal::spec::{RunSpec, TreeBounds};
use taskrun_journal::stop::CallAbort;
use taskrun_policy::{
    AgentRules, AskRules, Budget, Capability, HostFunction, Limits, MissingFields, Policy, Retry,
    RetryOn, Use,
};

use super::super::consent::check_asks;
use super::super::narrowing::{self, Above};
use super::super::rights::rules_of_run;
use super::{asking, functions_of, tools};
use crate::agents::{Agent, AgentCode, AgentNow, AgentTools, CodeSource, Origin};
use crate::error::ControllerError;
use crate::gate::Guard;
use crate::ports::planner::{ConversationView, FinalizeInput, PlanInput, PlanResult, Planner};

use crate::scope::model::{Model, ModelStream};
use crate::scope::{CallScope, Models};

/// A component and a model that nobody asks.
struct Idle;

#[async_trait]
impl Planner for Idle {
    fn digest(&self) -> &str {
        "idle"
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
        _: FinalizeInput,
        _: Arc<CallScope>,
    ) -> Result<Result<Labels, PlannerError>, CallAbort> {
        Err(CallAbort::Internal)
    }

    async fn plan(
        &self,
        _: PlanInput,
        _: Arc<CallScope>,
    ) -> Result<Result<PlanResult, PlannerError>, CallAbort> {
        Err(CallAbort::Internal)
    }
}

#[async_trait]
impl Model for Idle {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        Err(ModelError::Timeout)
    }
}

/// The rules of an agent with these lines in its section; there are the models `m` and `n`.
fn rules_of(name: &str, lines: &str) -> Arc<AgentRules> {
    let models = "[model.m]\nprovider = \"echo\"\n[model.n]\nprovider = \"echo\"\n";
    let text = format!("{models}[agent.{name}]\ncomponent = \"a.wasm\"\n{lines}\n");
    let policy = Policy::parse(&text, Path::new("test")).expect("a policy");
    let grants = Arc::clone(&policy.agents[name].grants);
    Arc::new(AgentRules { agent: name.to_owned(), workspace: "/w".into(), grants })
}

/// An agent that may ask both models, of which `m` has a price, and call `t/f` and `u/f`.
fn agent(name: &str) -> Agent {
    let model = |name: &str| (name.to_owned(), Arc::new(Idle) as Arc<dyn Model>);
    Agent {
        name: name.to_owned(),
        pin: format!("{name}@1"),
        digest: String::new(),
        has_finalizer: false,
        code: CodeSource::Loaded(code()),
        models: Arc::new(Models {
            by_name: BTreeMap::from([model("m"), model("n")]),
            settings: BTreeMap::new(),
            prices: BTreeMap::from([("m".to_owned(), Price::default())]),
            default: None,
        }),
        rules: rules_of(name, "allow = [\"model: *\"]"),
        now: None,
        origin: None,
        prompts: Arc::default(),
        limits: Limits::default(),
        budget: Budget { turns: Some(9), cost_microusd: None, ..Budget::default() },
        members: Vec::new(),
        tree: TreeBounds::default(),
        durable: true,
        retry: Retry::default(),
        retry_on: RetryOn::default(),
        autonomous: None,
        heartbeat: None,
        delivery: taskrun_journal::delivery::DeliverySettings::default(),
        max_nudges: 0,
        conversation: History::None,
        ask: AskRules::default(),
        on_missing_fields: MissingFields::default(),
        upgrade: taskrun_policy::Upgrade::default(),
        interrupts: true,
        subscribers: Vec::new(),
        channels: Vec::new(),
        delegation: taskrun_policy::DelegationSettings::default(),
    }
}

fn code() -> Arc<AgentCode> {
    code_with(tools(&["t", "u"]))
}

fn code_with(tools: AgentTools) -> Arc<AgentCode> {
    Arc::new(AgentCode {
        planner: Arc::new(Idle),
        tools,
        guard: Guard::default(),
        native: BTreeMap::new(),
    })
}

/// A run with this request beneath runs of `top` with these.
fn beneath(narrow: Narrowing, above: &[Narrowing]) -> RunSpec {
    let ancestors = above.iter().map(|narrow| Ancestor {
        agent_name: "top".to_owned(),
        pin: "top@1".to_owned(),
        narrow: narrow.clone(),
        autonomous: false,
    });
    let ancestors: Vec<_> = ancestors.collect();
    let depth = u32::try_from(ancestors.len()).expect("few");
    RunSpec { narrow, ancestors, depth, ..taskrun_fixtures::spec("r") }
}

fn only(tools: &[&str]) -> Narrowing {
    let tools = tools.iter().map(|name| (*name).to_owned()).collect();
    Narrowing { tools: Some(tools), ..Narrowing::default() }
}

fn denying(rule: &str) -> Narrowing {
    Narrowing { deny: vec![rule.to_owned()], ..Narrowing::default() }
}

fn top() -> Option<Arc<Agent>> {
    Some(Arc::new(agent("top")))
}

/// The tools that a run has.
fn left(spec: &RunSpec, above: &Above) -> Vec<String> {
    let (_, code) = narrowing::narrowed((Arc::new(agent("a")), code()), spec, above);
    code.tools.specs().iter().map(|spec| spec.name.clone()).collect()
}

#[test]
fn a_request_is_held_against_what_those_above_leave() {
    let (own, code) = (agent("a"), code());
    let check = |spec: &RunSpec| {
        narrowing::check(spec, &own, code.tools.specs(), None).map_err(|error| error.to_string())
    };
    assert_eq!(check(&beneath(Narrowing::default(), &[])), Ok(()));
    assert_eq!(check(&beneath(only(&["t/f"]), &[only(&["t/*"])])), Ok(()));
    for wrong in [
        beneath(only(&["v/f"]), &[]),
        // One run above leaves it and the other does not.
        beneath(only(&["t/f"]), &[only(&["t/f", "u/f"]), only(&["u/f"])]),
        beneath(denying("model: k"), &[]),
        beneath(denying("nothing"), &[]),
    ] {
        assert!(check(&wrong).is_err(), "{wrong:?}");
    }
    assert_eq!(check(&beneath(denying("model: n"), &[])), Ok(()));
}

#[test]
fn tools_are_those_that_a_request_and_all_above_leave() {
    let nothing = Narrowing::default;
    assert_eq!(left(&beneath(nothing(), &[]), &[]), ["t/f", "u/f"]);
    assert_eq!(left(&beneath(only(&["t/f"]), &[]), &[]), ["t/f"]);
    assert_eq!(left(&beneath(nothing(), &[only(&["u/f"])]), &[top()]), ["u/f"]);
    let both = beneath(only(&["t/f"]), &[only(&["u/f"])]);
    assert_eq!(left(&both, &[top()]), Vec::<String>::new());
}

#[test]
fn a_run_has_only_those_functions_of_the_host_that_mean_something_in_it() {
    let [completes, done] =
        [HostFunction::CompleteTask, HostFunction::ReportDone].map(HostFunction::qualified);
    let has = |spec: &RunSpec| {
        let code = code_with(functions_of(&["t/f".to_owned(), completes.clone(), done.clone()]));
        let (_, code) = narrowing::narrowed((Arc::new(agent("a")), code), spec, &[]);
        ["t/f", &completes, &done].map(|name| code.tools.get(name).is_some())
    };
    let plain = beneath(Narrowing::default(), &[]);
    assert_eq!(has(&plain), [true, false, false]);
    let batch = RunSpec { entries: vec![plain.id.clone()], ..plain.clone() };
    assert_eq!(has(&batch), [true, true, false]);
    let settings = serde_json::json!({ "mode": "standing", "continuation": "go on" });
    let autonomy: Autonomy = serde_json::from_value(settings).expect("settings");
    assert_eq!(has(&RunSpec { autonomy: Some(autonomy), ..plain }), [true, false, true]);
}

#[test]
fn beneath_a_run_that_goes_on_by_itself_money_is_bounded_where_prices_are_known() {
    let mut own = agent("a");
    own.rules = rules_of("a", "allow = [\"model: m\"]");
    own.budget.subagent_cost_microusd = Some(5);
    let bound = |own: &Agent, autonomous: &[bool]| {
        let mut spec = beneath(Narrowing::default(), &vec![Narrowing::default(); autonomous.len()]);
        for (ancestor, autonomous) in spec.ancestors.iter_mut().zip(autonomous) {
            ancestor.autonomous = *autonomous;
        }
        let above = vec![top(); autonomous.len()];
        let (own, _) = narrowing::narrowed((Arc::new(own.clone()), code()), &spec, &above);
        own.budget.cost_microusd
    };
    assert_eq!(bound(&own, &[]), None);
    assert_eq!(bound(&own, &[false]), None);
    assert_eq!(bound(&own, &[true, false]), Some(5));
    let stated = Budget { cost_microusd: Some(7), ..own.budget.clone() };
    assert_eq!(bound(&Agent { budget: stated, ..own.clone() }, &[true]), Some(7));
    own.rules = rules_of("a", "allow = [\"model: *\"]");
    assert_eq!(bound(&own, &[true]), None, "of n no price is known");
}

#[test]
fn a_request_bounds_time_and_budget_and_touches_nothing_else() {
    let own = Arc::new(agent("a"));
    let narrowed = |spec: &RunSpec| narrowing::narrowed((Arc::clone(&own), code()), spec, &[]);
    let (same, _) = narrowed(&beneath(Narrowing::default(), &[]));
    assert!(Arc::ptr_eq(&same, &own));
    let timeouts = BTreeMap::from([("t/*".to_owned(), 5)]);
    let narrow = Narrowing { timeouts, turns: Some(2), ..Narrowing::default() };
    let (fewer, code) = narrowed(&beneath(narrow, &[]));
    assert_eq!(fewer.budget.turns, Some(2));
    let deadline = |name| code.tools.deadline(code.tools.get(name).expect("it is there"));
    assert_eq!(deadline("t/f"), Duration::from_millis(5));
    assert!(deadline("u/f") > Duration::from_millis(5));
}

#[test]
fn whom_those_above_must_ask_is_asked_beneath_them() {
    let mut asker = agent("top");
    asker.ask = asking(&["t/f"]);
    let asks = |above: &Above| {
        let spec = beneath(Narrowing::default(), &[Narrowing::default()]);
        let (own, _) = narrowing::narrowed((Arc::new(agent("a")), code()), &spec, above);
        own.ask.rules.len()
    };
    assert_eq!(asks(&[Some(Arc::new(asker))]), 1);
    assert_eq!(asks(&[top()]), 0);
    assert_eq!(asks(&[None]), 0);
}

#[test]
fn budgets_above_are_those_of_agents_and_requests() {
    let spec = beneath(
        Narrowing::default(),
        &[Narrowing { turns: Some(3), ..Narrowing::default() }, Narrowing::default()],
    );
    let turns = |above: &Above| {
        let budgets = narrowing::budgets_of_ancestors(&spec, above);
        budgets.iter().map(|budget| budget.turns).collect::<Vec<_>>()
    };
    assert_eq!(turns(&[top(), top()]), [Some(3), Some(9)]);
    // One that is not known bounds nothing of itself.
    assert_eq!(turns(&[None, None]), [Some(3), None]);
    let unknown = narrowing::budgets_of_ancestors(&spec, &[None, None]);
    assert_eq!(unknown[1].wall, None);
}

#[test]
fn a_price_must_be_known_where_anybody_bounds_the_cost() {
    let bounded = || Narrowing { cost_microusd: Some(5), ..Narrowing::default() };
    let open = Narrowing::default;
    let is_fine = |own: &Agent, spec: &RunSpec, above: &Above| {
        narrowing::check_prices(spec, own, above).is_ok()
    };
    let (any, mut priced) = (agent("a"), agent("a"));
    priced.rules = rules_of("a", "allow = [\"model: m\"]");
    assert!(is_fine(&any, &beneath(open(), &[open()]), &[top()]));
    assert!(!is_fine(&any, &beneath(bounded(), &[]), &[]));
    assert!(!is_fine(&any, &beneath(open(), &[bounded()]), &[top()]));
    assert!(is_fine(&priced, &beneath(bounded(), &[bounded()]), &[top()]));
    let mut rich = agent("top");
    rich.budget.cost_microusd = Some(7);
    assert!(!is_fine(&any, &beneath(open(), &[open()]), &[Some(Arc::new(rich))]));
}

#[test]
fn rules_are_those_of_then_and_now_of_all_above_and_what_requests_deny() {
    let decides = |own: &Agent, spec: &RunSpec, above: &Above| {
        let rights: Vec<_> = above.iter().map(|one| one.as_deref().map(Agent::rights)).collect();
        let rules = rules_of_run(&own.rights(), spec, &rights);
        ["m", "n"].map(|name| rules.decide(&Use::Model(name)).is_ok())
    };
    let (own, open) = (agent("a"), Narrowing::default);
    let only_m = |name: &str| AgentNow {
        pin: format!("{name}@2"),
        rules: rules_of(name, "allow = [\"model: m\"]"),
    };
    assert_eq!(decides(&own, &beneath(open(), &[]), &[]), [true, true]);
    assert_eq!(decides(&own, &beneath(denying("model: m"), &[]), &[]), [false, true]);
    let beneath_one = beneath(open(), &[denying("model: n")]);
    assert_eq!(decides(&own, &beneath_one, &[top()]), [true, false]);
    // The rules of an agent that is not known allow nothing, and so those above that nobody named.
    assert_eq!(decides(&own, &beneath(open(), &[open()]), &[None]), [false, false]);
    let unnamed = RunSpec { depth: 1, ..beneath(open(), &[]) };
    assert_eq!(decides(&own, &unnamed, &[]), [false, false]);
    // Of a nudge alone more agents are known than runs stand above it.
    for (hops, depth, allowed) in
        [(0, 0, false), (0, 1, true), (1, 0, true), (1, 1, true), (1, 2, false)]
    {
        let spec = RunSpec { hops, depth, ..beneath(open(), &[open()]) };
        assert_eq!(decides(&own, &spec, &[top()]), [allowed; 2], "{hops} {depth}");
    }
    let mut now = agent("a");
    now.now = Some(only_m("a"));
    assert_eq!(decides(&now, &beneath(open(), &[]), &[]), [true, false]);
    let mut above = agent("top");
    above.rules = rules_of("top", "allow = [\"model: n\"]");
    let known = [Some(Arc::new(above.clone()))];
    assert_eq!(decides(&own, &beneath(open(), &[open()]), &known), [false, true]);
    above.now = Some(only_m("top"));
    let known = [Some(Arc::new(above))];
    assert_eq!(decides(&own, &beneath(open(), &[open()]), &known), [false, false]);
    // The file that a run was accepted under binds it beside the policy of its host.
    let origin = |rules: &str| Origin {
        policy: "/p".to_owned(),
        now: Some(AgentNow { pin: "a@3".to_owned(), rules: rules_of("a", rules) }),
    };
    let mut both = agent("a");
    both.now = Some(only_m("a"));
    both.origin = Some(origin("allow = [\"model: n\"]"));
    assert_eq!(decides(&both, &beneath(open(), &[]), &[]), [false, false]);
    both.origin = Some(Origin { now: None, ..origin("") });
    assert_eq!(decides(&both, &beneath(open(), &[]), &[]), [true, false]);
}

#[test]
fn a_denial_of_a_name_that_left_the_policy_takes_nothing_else_away() {
    let [own, top] = ["a", "top"].map(|name| Agent {
        rules: rules_of(name, "allow = [\"model: *\", \"workspace-read: **\"]"),
        ..agent(name)
    });
    let known = [Some(Arc::new(top))];
    let may_read = |spec: &RunSpec, above: &Above| {
        let rights: Vec<_> = above.iter().map(|one| one.as_deref().map(Agent::rights)).collect();
        let rules = rules_of_run(&own.rights(), spec, &rights);
        rules.decide(&Use::Path(Capability::WorkspaceRead, "docs/a")).is_ok()
    };
    for (rule, allowed) in [
        ("model: m", true),
        ("model: gone", true),
        ("prompts: gone", true),
        // Neither could have been accepted.
        ("model: two words", false),
        ("nothing", false),
    ] {
        assert_eq!(may_read(&beneath(denying(rule), &[]), &[]), allowed, "{rule}");
        let under = beneath(Narrowing::default(), &[denying(rule)]);
        assert_eq!(may_read(&under, &known), allowed, "{rule}");
    }
}

#[test]
fn pins_of_now_are_those_of_the_run_and_of_all_above_it() {
    let mut own = agent("a");
    let spec = beneath(Narrowing::default(), &[Narrowing::default(), Narrowing::default()]);
    let above = [top(), None];
    assert_eq!(narrowing::pins_now(&own, &spec, &above), ["a@1", "top@1", "top"]);
    let now = |pin: &str| AgentNow { pin: pin.to_owned(), rules: Arc::clone(&own.rules) };
    let (second, third) = (now("a@2"), now("a@3"));
    own.now = Some(second);
    assert_eq!(narrowing::pins_now(&own, &spec, &above), ["a@2", "top@1", "top"]);
    own.origin = Some(Origin { policy: "/p".to_owned(), now: Some(third) });
    assert_eq!(narrowing::pins_now(&own, &spec, &above), ["a@2 a@3", "top@1", "top"]);
}

#[test]
fn where_nobody_answers_neither_an_agent_nor_one_above_it_may_ask_for_consent() {
    let (quiet, mut asks) = (agent("quiet"), agent("asks"));
    asks.ask = asking(&["t/*"]);
    let above = [None, Some(Arc::new(quiet.clone())), Some(Arc::new(asks.clone()))];
    assert!(check_asks(&quiet, &above[..2]).is_ok());
    for (agent, above) in [(&asks, &above[..0]), (&quiet, &above[..])] {
        let refused = check_asks(agent, above);
        let Err(ControllerError::Invalid { field: "ask", reason }) = refused else {
            panic!("{refused:?}")
        };
        assert!(reason.starts_with("agent asks asks for consent (\"t/*\")"), "{reason}");
    }
}
