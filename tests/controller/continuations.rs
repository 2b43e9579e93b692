//! Runs that continue others (C-036 to C-046): what is carried, what is given without a model, and what
//! is locked.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use taskrun::agents::Agent;
use taskrun::autonomy::AutonomyRequest;
use taskrun::controller::SpawnOutcome;
use taskrun::error::ControllerError;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::scope::model::Model;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::delivery::{DeliverySettings, ReportState};
use taskrun_journal::event::Event;
use taskrun_journal::history::History;
use taskrun_journal::layer::Layer;
use taskrun_journal::money::Price;
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::reply::RESULT_CHARS_MAX;
use taskrun_journal::run::RunView;
use taskrun_journal::spec::{RunSpec, TreeBounds};
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::{CreateOutcome, NewRun, Store, StoreError};
use taskrun_journal::time::Clock;
use taskrun_policy::AutonomySettings;
use taskrun_store::MemoryStore;

use super::budgets::{Metered, ask, priced};
use super::common::{Gates, Handle, check_journal, named};
use super::delivery::{coordinator, line, say, states};
use super::dispatches::{Heard, hears, registered};
use super::dying::{Point, die_at_each, survive};
use super::nudges::{nudged, of_word, said};
use super::rounds::Turn::{self, Say};
use super::rounds::{played, report};
use crate::native::{ClosurePlanner, Native, Op, SESSION, Side, World, answer};

/// A world whose agent asks its model in each turn, and is shown all that was said before.
fn world(turns: Vec<Turn>) -> (World, Arc<Metered>) {
    world_with(turns, |_| {})
}

/// The same, changed.
fn world_with(turns: Vec<Turn>, change: impl FnOnce(&mut Agent)) -> (World, Arc<Metered>) {
    let (mut world, model) = (World::new(), Arc::new(Metered::default()));
    let planner = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| {
        let said: Vec<_> = input.messages.iter().map(|message| message.joined_text()).collect();
        if input.run.turn == 3 {
            assert_eq!(said, ["x", "one", "continue", "two", "continue"]);
        }
        let planned = played(&turns, &input);
        async move {
            ask(&scope).await;
            planned
        }
    });
    let own: Arc<dyn Model> = model.clone();
    world.agent_asking("a", planner, Some(own), change);
    (world, model)
}

fn capped() -> SpawnRequest {
    let asked = AutonomyRequest { rounds: Some(2), ..AutonomyRequest::default() };
    SpawnRequest { autonomous: Some(asked), ..named("1", "a") }
}

fn turns() -> Vec<Turn> {
    vec![Say("one"), Say("two"), report("it"), Say("three")]
}

async fn go_on(host: &Native, id: &str) -> SpawnOutcome {
    let request = host.client().continuation(id).await.expect("it may be continued");
    host.client().submit(&request).await.expect("accepted")
}

#[tokio::test]
async fn cs_17_a_run_that_met_its_rounds_is_continued_with_its_totals_and_its_conversation() {
    let (mut world, model) = world(turns());
    let host = world.start().await;
    host.spawn(&capped()).await;
    let first = RunView::from(&host.end("1").await);
    assert_eq!((first.stop_reason, first.rounds), (Some(StopReason::MaxTurns), Some(2)));
    let next = go_on(&host, "1").await;
    assert!(!next.reused);
    let id = next.run.id().to_string();
    let run = RunView::from(&host.end(&id).await);
    assert_eq!((run.status, run.stop_reason), (Status::Completed, Some(StopReason::Done)));
    assert_eq!((run.rounds, run.turns, run.result.as_deref()), (Some(3), 4, Some("three")));
    assert_eq!(run.continues, Some(first.id));
    let tokens = run.progress.expect("counted").total_tokens;
    assert_eq!((tokens, model.asked.load(Ordering::SeqCst)), (120, 4), "nothing is asked twice");
    check_journal(&host.journal(&id).await);
    // It is continued once: a second one meets the first.
    let again = go_on(&host, "1").await;
    assert_eq!((again.reused, again.run.id().as_str()), (true, id.as_str()));
}

#[tokio::test]
async fn cs_16_a_run_that_is_done_gives_its_result_without_a_model() {
    let (mut world, model) = world(vec![report("it"), Say("end")]);
    let host = world.start().await;
    host.spawn(&super::rounds::autonomous("1")).await;
    host.end("1").await;
    let asked = model.asked.load(Ordering::SeqCst);
    let again = go_on(&host, "1").await;
    assert_eq!((again.reused, again.run.id().as_str()), (true, "1"));
    assert_eq!(model.asked.load(Ordering::SeqCst), asked);
}

#[tokio::test]
async fn c_040_a_run_that_continues_with_nothing_left_asks_no_model() {
    let (mut world, model) = world_with(turns(), two_rounds);
    let host = world.start().await;
    host.spawn(&capped()).await;
    host.end("1").await;
    let next = go_on(&host, "1").await;
    let id = next.run.id().to_string();
    let run = RunView::from(&host.end(&id).await);
    let ended = (run.stop_reason, run.rounds, run.result.as_deref());
    assert_eq!(ended, (Some(StopReason::MaxTurns), Some(2), Some("two")));
    assert_eq!(model.asked.load(Ordering::SeqCst), 2);
    let said = said_by_host(&host, &id).await;
    let expected = "nothing is left of `rounds`: the policy of agent a gives 2 in all, and may give \
                    more";
    assert_eq!(said, [expected]);
}

/// Gives an agent two rounds in all.
fn two_rounds(agent: &mut Agent) {
    let rounds = Some(2);
    agent.autonomous = Some(AutonomySettings { rounds, ..AutonomySettings::default() });
}

#[tokio::test]
async fn a_run_that_says_no_more_gives_the_whole_answer_of_the_one_that_it_continues() {
    let long: &str = "a long answer. ".repeat(RESULT_CHARS_MAX).leak();
    let (mut world, _) = world_with(vec![Say("one"), Say(long)], two_rounds);
    let host = world.start().await;
    host.spawn(&capped()).await;
    host.end("1").await;
    let next = go_on(&host, "1").await;
    let id = next.run.id().to_string();
    assert!(host.end(&id).await.artifact().is_none(), "it is kept with the run before");
    for id in ["1", id.as_str()] {
        let whole = host.client().result(id).await.expect("it is read");
        assert!(whole.as_deref() == Some(long.trim()), "{id}: {:?}", whole.map(|text| text.len()));
    }
}

#[tokio::test]
async fn a_run_that_says_the_same_again_and_more_gives_its_own_whole_answer() {
    let long: &str = "a long answer. ".repeat(RESULT_CHARS_MAX).leak();
    let longer: &str = format!("{long}And more.").leak();
    let turns = vec![Say("one"), Say(long), report("it"), Say(longer)];
    let (mut world, _) = super::rounds::world(turns);
    let host = world.start().await;
    host.spawn(&capped()).await;
    host.end("1").await;
    let next = go_on(&host, "1").await;
    let id = next.run.id().to_string();
    host.end(&id).await;
    for (id, said) in [("1", long.trim()), (id.as_str(), longer)] {
        let whole = host.client().result(id).await.expect("it is read");
        assert!(whole.as_deref() == Some(said), "{id}: {:?}", whole.map(|text| text.len()));
    }
}

/// The lines that the host wrote about a run.
async fn said_by_host(host: &Native, id: &str) -> Vec<String> {
    let journal = host.journal(id).await;
    let said = journal.into_iter().filter_map(|recorded| {
        let Event::Log { message, .. } = recorded.event else { return None };
        Some(message)
    });
    said.collect()
}

#[tokio::test]
async fn c_040_a_run_that_continues_with_nothing_left_names_the_number_that_ends_it() {
    let asked = |narrow: Narrowing| SpawnRequest { narrow, ..SpawnRequest::default() };
    let rounds = AutonomyRequest { rounds: Some(2), ..AutonomyRequest::default() };
    let rounds = SpawnRequest { autonomous: Some(rounds), ..SpawnRequest::default() };
    let (nothing, more) = (SpawnRequest::default(), "another one may give more, as far as");
    let of_request = |key: &str, number: &str| {
        format!(
            "nothing is left of `{key}`: the request gives {number} in all; {more} the policy of \
             agent a does"
        )
    };
    let of_policy = |key: &str, number: &str| {
        format!(
            "nothing is left of `{key}`: the policy of agent a gives {number} in all, and may give \
             more"
        )
    };
    type Change = Box<dyn FnOnce(&mut Agent)>;
    let policy = |change: fn(&mut Agent)| -> Change { Box::new(change) };
    let cases: Vec<(Change, SpawnRequest, String)> = vec![
        (policy(|_| {}), rounds, of_request("rounds", "2")),
        (
            policy(|_| {}),
            asked(Narrowing { prompt_tokens: Some(40), ..Narrowing::default() }),
            of_request("prompt_tokens", "40"),
        ),
        (
            policy(|agent| {
                priced(agent, Some(Price::new(25_000_000_000, 50_000_000_000)));
                agent.budget.cost_microusd = Some(2_000_000);
            }),
            SpawnRequest::default(),
            of_policy("usd", "2.00"),
        ),
        (
            policy(|agent| agent.budget.completion_tokens = Some(20)),
            asked(Narrowing { tokens: Some(1_000), ..Narrowing::default() }),
            of_policy("completion_tokens", "20"),
        ),
        (policy(|agent| agent.budget.tokens = Some(50)), nothing, of_policy("tokens", "50")),
    ];
    for (change, totals, expected) in cases {
        let (mut world, model) = world_with(turns(), change);
        let host = world.start().await;
        host.spawn(&capped()).await;
        host.end("1").await;
        let carried = host.client().continuation("1").await.expect("it may be continued");
        let autonomous = totals.autonomous.or(carried.autonomous);
        let request = SpawnRequest { narrow: totals.narrow, autonomous, ..carried };
        let next = host.client().submit(&request).await.expect("accepted");
        let id = next.run.id().to_string();
        host.end(&id).await;
        assert_eq!(said_by_host(&host, &id).await, [expected]);
        assert_eq!(model.asked.load(Ordering::SeqCst), 2, "no model is asked");
    }
}

#[tokio::test]
async fn cs_19_an_open_run_is_locked_with_its_holder_and_the_latest_of_a_session_is_found() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("a", gates.planner());
    let host = world.start().await;
    host.spawn(&super::rounds::autonomous("1")).await;
    gates.have_come(1).await;
    let request = host.client().continuation("1").await.expect("it may be continued");
    let refused = host.client().submit(&request).await.expect_err("it is open");
    let ControllerError::Locked { id, holder, .. } = refused else { panic!("{refused}") };
    assert_eq!((id.as_str(), &holder), ("1", &host.controller.host().to_string()));
    let latest = host.client().latest_autonomous(SESSION, Some("a")).await.expect("read");
    assert_eq!(latest.expect("there is one").id().as_str(), "1");
    let other = host.client().latest_autonomous("other", None).await.expect("read");
    assert_eq!(other, None);
    host.client().cancel("1", None).await.expect("canceled");
    gates.open("1");
    host.end("1").await;
    host.spawn(&named("2", "a")).await;
    let plain = host.client().continuation("2").await.expect_err("it was not autonomous");
    assert!(plain.to_string().contains("was not autonomous"), "{plain}");
}

#[tokio::test]
async fn cs_19_of_two_autonomous_runs_of_one_conversation_the_second_is_refused_at_the_start() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("a", gates.planner());
    let host = world.start().await;
    let in_session = |id: &str| SpawnRequest { converses: true, ..super::rounds::autonomous(id) };
    host.spawn(&in_session("1")).await;
    gates.have_come(1).await;
    let refused = host.client().submit(&in_session("2")).await.expect_err("one is open");
    let ControllerError::Locked { id, holder, .. } = refused else { panic!("{refused}") };
    assert_eq!((id.as_str(), &holder), ("1", &host.controller.host().to_string()));
    // A run that is not said to belong to it has nothing to do with it.
    host.spawn(&super::rounds::autonomous("3")).await;
    host.client().cancel("1", None).await.expect("canceled");
    gates.have_come(2).await;
    gates.open("1");
    host.end("1").await;
    host.spawn(&in_session("2")).await;
}

#[tokio::test]
async fn a_continuation_belongs_to_the_conversation_and_keeps_what_it_continues() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("a", gates.planner());
    let host = world.start().await;
    let asked = AutonomyRequest { rounds: Some(1), ..AutonomyRequest::default() };
    let request = SpawnRequest { autonomous: Some(asked), converses: true, ..named("1", "a") };
    host.spawn(&request).await;
    gates.have_come(1).await;
    gates.open("1");
    host.end("1").await;
    let next = go_on(&host, "1").await.run;
    assert_eq!(next.spec.history, History::Agent);
    gates.have_come(2).await;
    world.clock.advance(Duration::from_secs(60));
    let removed = host.client().gc(world.clock.now(), false).await.expect("done");
    assert_eq!((removed.runs, removed.kept), (0, 1), "an open run continues it");
    host.client().cancel(next.id().as_str(), None).await.expect("canceled");
    gates.open(next.id().as_str());
    host.end(next.id().as_str()).await;
    world.clock.advance(Duration::from_secs(60));
    let removed = host.client().gc(world.clock.now(), false).await.expect("done");
    assert_eq!((removed.runs, removed.kept), (2, 0));
}

#[tokio::test]
async fn a_continuation_has_the_bounds_and_the_subscribers_of_the_request() {
    let (mut world, _) = world(turns());
    world.subscribers = registered([("audit", hears(&Heard::default()))]);
    let host = world.start().await;
    let request = SpawnRequest {
        tree: TreeBounds { depth: Some(0), ..TreeBounds::default() },
        narrow: Narrowing { no_pause: true, ..Narrowing::default() },
        subscribers: vec!["transport/audit".to_owned()],
        ..capped()
    };
    host.spawn(&request).await;
    let first = host.end("1").await;
    let next = go_on(&host, "1").await.run;
    assert_eq!((next.spec.tree.depth, next.spec.narrow.no_pause), (Some(0), true));
    assert_eq!(next.spec.subscriptions, first.spec.subscriptions);
    assert_eq!(next.spec.subscriptions.len(), 1);
    host.end(next.id().as_str()).await;
}

/// A world with another agent that is told of outcomes, and says what it was shown.
fn world_told() -> World {
    let (mut world, _) = world(turns());
    world.agent_with("lead", coordinator(), |agent| agent.conversation = History::Agent);
    world
}

fn delivered(strategy: &str) -> SpawnRequest {
    let notify = Some("lead".to_owned());
    let delivery = DeliverySettings { notify, ..of_word(strategy) };
    SpawnRequest { delivery: Some(delivery), ..capped() }
}

#[tokio::test]
async fn of_a_run_and_the_one_that_continues_it_a_conversation_is_told_the_last_end() {
    let mut world = world_told();
    let host = world.start().await;
    host.spawn(&delivered("context-only")).await;
    host.end("1").await;
    assert_eq!(states(&host).await, [ReportState::Pending]);
    let next = go_on(&host, "1").await.run;
    assert_eq!(host.client().report("1").await.expect("answers"), None);
    host.end(next.id().as_str()).await;
    let told = say(&world, &host, &line("lead", "news?")).await;
    assert_eq!(told.matches("[Background reports]").count(), 1, "{told}");
    let report = format!("a {}: completed\nresult:\n```\nthree\n```", next.id());
    assert!(told.contains(&report) && !told.contains("a 1: "), "{told}");
    assert_eq!(states(&host).await, [ReportState::Delivered]);
}

#[tokio::test]
async fn an_end_that_a_conversation_was_told_stays_told_and_the_next_one_comes_after_it() {
    let mut world = world_told();
    let host = world.start().await;
    host.spawn(&delivered("immediate")).await;
    host.end("1").await;
    let first = &nudged(&host, 1).await[0];
    assert!(said(first).contains("a 1: completed"), "{}", said(first));
    let next = go_on(&host, "1").await.run;
    host.end(next.id().as_str()).await;
    let second = &nudged(&host, 2).await;
    let told: Vec<_> = second.iter().map(said).collect();
    let report = format!("a {}: completed\n", next.id());
    assert_eq!(told.iter().filter(|told| told.contains(&report)).count(), 1, "{told:?}");
    assert_eq!(states(&host).await, [ReportState::Delivered, ReportState::Delivered]);
}

/// Continues a run under hosts of which one dies at a write.
async fn play(point: Point) -> u32 {
    let (mut world, _) = world(turns());
    let door = world.door().await;
    let outside = async {
        door.spawn(&capped()).await;
        door.end("1").await;
        let next = go_on(&door, "1").await;
        RunView::from(&door.end(next.run.id().as_str()).await)
    };
    let (run, deaths) = survive(&mut world, &[point], &Handle::default(), outside).await;
    let ended = (run.stop_reason, run.rounds, run.turns, run.result.as_deref());
    let expected = (Some(StopReason::Done), Some(3), 4, Some("three"));
    assert_eq!(ended, expected, "{point:?}: {:?}", run.error);
    deaths
}

#[tokio::test]
async fn a_continuation_is_that_of_an_undisturbed_run_whatever_host_dies() {
    for side in [Side::Before, Side::After] {
        die_at_each(Op::Append, side, 2, play).await;
    }
}

/// Accepts each run that continues no other as if it came of three nudges, one after the other.
struct Nudged(Arc<MemoryStore>);

#[async_trait]
impl Layer for Nudged {
    fn behind(&self) -> &dyn Store {
        &*self.0
    }

    async fn create(&self, mut new: NewRun) -> Result<CreateOutcome, StoreError> {
        if new.run.spec.continues.is_none() {
            let spec = RunSpec { hops: 3, ..RunSpec::clone(&new.run.spec) };
            new.run.spec = Arc::new(spec.clone());
            new.events[0].event = Event::Queued { spec: Arc::new(spec) };
        }
        self.0.create(new).await
    }
}

#[tokio::test]
async fn m_56_a_run_that_continues_another_comes_of_as_many_nudges() {
    let memory = Arc::new(MemoryStore::new());
    let store = Arc::new(Nudged(Arc::clone(&memory)));
    let mut world = World::over(store, memory.clone(), memory);
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("one") }));
    let host = world.start().await;
    host.spawn(&capped()).await;
    assert_eq!(host.end("1").await.spec.hops, 3);
    let next = go_on(&host, "1").await;
    assert_eq!((next.reused, next.run.spec.hops), (false, 3));
}
