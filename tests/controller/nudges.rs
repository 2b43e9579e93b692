//! Conversations that are told of outcomes by runs which a host starts for that.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use taskrun::agents::Agent;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::delivery::{DeliverySettings, ReportState, Strategy};
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, PAGE_MAX, Scope};
use taskrun_journal::message::Message;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_policy::Budget;

use super::budgets::{Metered, ask};
use super::common::Gates;
use super::delivery::{
    children, coordinator, heard, leader, line, say, start, states, task, worker,
};
use crate::native::{ClosurePlanner, Native, SESSION, World, answer, call_of, in_time, request};

pub(super) const SECOND: Duration = Duration::from_secs(1);
/// The task of a nudge.
pub(super) const TASK: &str = "Background runs have ended";

pub(super) fn of_word(word: &str) -> DeliverySettings {
    DeliverySettings { strategy: Strategy::of_word(word), ..DeliverySettings::default() }
}

/// An agent that has all tools of the host, and whose runs' outcomes are delivered like this.
pub(crate) fn delivering(
    world: &mut World,
    name: &str,
    planner: ClosurePlanner,
    settings: DeliverySettings,
) {
    leader(world, name, planner);
    change(world, name, |agent| agent.delivery = settings);
}

pub(super) fn change(world: &mut World, name: &str, change: impl FnOnce(&mut Agent)) {
    let mut agent = Agent::clone(&world.agents_now().by_name[name]);
    change(&mut agent);
    world.loaded(&Arc::new(agent));
}

/// The nudges of the session, the earliest first.
pub(super) async fn nudges(host: &Native) -> Vec<Run> {
    let session = Scope { parent_session_id: Some(SESSION.to_owned()), ..host.scope.clone() };
    let client = host.controller.at(&session);
    let page = client.list(&ListFilter::default(), None, PAGE_MAX).await.expect("lists");
    let mut nudges: Vec<Run> = page.runs.into_iter().filter(|run| run.spec.is_nudge()).collect();
    nudges.sort_by_key(|run| (run.spec.hops, run.spec.created_at, run.id().clone()));
    nudges
}

/// Returns when so many nudges have ended, and gives them.
pub(crate) async fn nudged(host: &Native, count: usize) -> Vec<Run> {
    let have_ended =
        |nudges: &[Run]| nudges.iter().filter(|run| run.status().is_terminal()).count() >= count;
    until(host, have_ended).await
}

/// Returns when the nudges of the session are as wanted, and gives them.
pub(super) async fn until(host: &Native, fits: impl Fn(&[Run]) -> bool) -> Vec<Run> {
    let client = host.client();
    let wait = async {
        let mut after = 0;
        loop {
            let nudges = nudges(host).await;
            if fits(&nudges) {
                return nudges;
            }
            let page = client.next_session_events(SESSION, after, 1_000).await;
            after = page.expect("answers").next;
        }
    };
    in_time(wait).await
}

pub(super) fn said(run: &Run) -> String {
    run.state.reply.result().unwrap_or_default()
}

/// A line that starts a run for each of these words, and what it started; all have ended.
pub(super) async fn started(host: &Native, agent: &str, words: &str) -> Vec<String> {
    let first = host.spawn(&line(agent, &format!("start {words}"))).await;
    host.end(&first).await;
    let children = children(host, &first).await;
    for id in &children {
        host.end(id).await;
    }
    children
}

#[tokio::test]
async fn an_immediate_outcome_is_told_at_once_in_a_run_of_the_conversation() {
    let mut world = World::new();
    world.agent("worker", worker());
    delivering(&mut world, "lead", coordinator(), of_word("immediate"));
    let host = world.start().await;
    let children = started(&host, "lead", "one").await;
    let nudges = nudged(&host, 1).await;
    let [nudge] = &nudges[..] else { panic!("{nudges:?}") };
    assert_eq!((nudge.status(), nudge.spec.hops), (Status::Completed, 1));
    assert_eq!((nudge.spec.depth, nudge.spec.serial), (0, false));
    let told = said(nudge);
    assert_eq!(told.matches(&format!("worker {}: completed", children[0])).count(), 1, "{told}");
    let (history, report) = told.split_once("[Background reports]").expect("a report");
    assert!(history.contains("started"), "after what was said before: {told}");
    assert!(report.contains("did one") && report.contains(TASK), "before its task: {told}");
    assert_eq!(states(&host).await, [ReportState::Delivered]);
    let later = say(&world, &host, &line("lead", "and now?")).await;
    assert_eq!(later.matches("[Background reports]").count(), 2, "as history alone: {later}");
}

/// Of two trees the one that has spent its budget is not told of.
async fn is_spent_alone(bound: fn(&mut Budget)) {
    let mut world = World::new();
    let model = Arc::new(Metered::default());
    let worker = ClosurePlanner::new(|input: PlanInput, scope: Arc<CallScope>| async move {
        if task(&input) == "dear" {
            ask(&scope).await;
        }
        answer(&format!("did {}", task(&input)))
    });
    world.agent_asking("worker", worker, Some(model), |_| {});
    let settings = Strategy::WaitForIdle { buffer_ms: 0, timeout_ms: 60_000, interrupt: false };
    let settings = DeliverySettings { strategy: Some(settings), ..DeliverySettings::default() };
    delivering(&mut world, "lead", coordinator(), settings);
    change(&mut world, "lead", |agent| bound(&mut agent.budget));
    world.settings.slots = 8;
    let host = world.start().await;
    started(&host, "lead", "dear").await;
    let cheap = started(&host, "lead", "cheap").await;
    world.clock.advance(SECOND);
    let nudges = nudged(&host, 1).await;
    assert_eq!(nudges[0].spec.nudge_for, [RunId::new(&cheap[0]).expect("an id")]);
}

#[tokio::test]
async fn a_tree_that_has_spent_its_budget_keeps_no_other_one_from_being_told() {
    is_spent_alone(|budget| budget.tokens = Some(20)).await;
    is_spent_alone(|budget| budget.prompt_tokens = Some(20)).await;
    is_spent_alone(|budget| budget.completion_tokens = Some(10)).await;
}

#[tokio::test]
async fn while_a_run_above_is_open_it_is_told_and_nobody_is_nudged() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", worker());
    let inside = Arc::clone(&gates);
    let lead = ClosurePlanner::new(move |input: PlanInput, _| {
        let gates = Arc::clone(&inside);
        async move {
            match input.resume.as_ref().map_or(0, |resume| resume.tool_outputs.len()) {
                0 => start("1", "worker", "one"),
                1 => {
                    let _inside = gates.pass("gate").await;
                    call_of(&[("2", "host/list_task_runs", "{}")])
                }
                _ => answer(&heard(&input)),
            }
        }
    });
    delivering(&mut world, "lead", lead, of_word("immediate"));
    let host = world.start().await;
    let first = host.spawn(&line("lead", "go")).await;
    gates.have_come(1).await;
    let child = children(&host, &first).await[0].clone();
    host.end(&child).await;
    let due = host.client().report(&child).await.expect("answers").expect("there").due;
    assert_eq!(due, None, "no host looks while the one above is open");
    gates.open("gate");
    assert_eq!(said(&host.end(&first).await).matches("did one").count(), 1);
    host.settle().await;
    assert!(nudges(&host).await.is_empty());
    assert_eq!(states(&host).await, [ReportState::Delivered]);
}

/// A conversation whose lines wait at gates of their own names, unless they start runs.
pub(super) fn talking(world: &mut World, gates: &Arc<Gates>, settings: DeliverySettings) {
    world.agent("worker", worker());
    world.agent("slow", gates.planner());
    let inside = Arc::clone(gates);
    let lead = ClosurePlanner::new(move |input: PlanInput, _| {
        let gates = Arc::clone(&inside);
        async move {
            let done = input.resume.as_ref().map_or(0, |resume| resume.tool_outputs.len());
            match (done, task(&input)) {
                (0, task) if task.starts_with("slow ") => start("c", "slow", &task[5..]),
                (0, task) if task.starts_with("gate ") => {
                    let _inside = gates.pass(&task[5..]).await;
                    answer("through")
                }
                (0, _) => answer(&heard(&input)),
                _ => answer("started"),
            }
        }
    });
    delivering(world, "lead", lead, settings);
}

#[tokio::test]
async fn rs_22_a_conversation_is_told_when_it_is_idle() {
    let (mut world, gates) = (World::new(), Gates::new());
    talking(&mut world, &gates, of_word("wait-for-idle"));
    let host = world.start().await;
    let first = host.spawn(&line("lead", "slow a")).await;
    host.end(&first).await;
    let child = children(&host, &first).await[0].clone();
    world.clock.advance(5 * SECOND);
    let talk = host.spawn(&line("lead", "gate talk")).await;
    let came = gates.have_come(2).await;
    assert!(came.contains(&"talk".to_owned()), "{came:?}");
    gates.open(&child);
    host.end(&child).await;
    assert_eq!(world.next(20 * SECOND).await, SECOND, "the buffer");
    host.settle().await;
    assert!(nudges(&host).await.is_empty(), "somebody speaks");
    gates.open("talk");
    host.end(&talk).await;
    let nudges = nudged(&host, 1).await;
    let told = said(&nudges[0]);
    assert_eq!(told.matches(&format!("slow {child}: completed")).count(), 1, "{told}");
    assert!(nudges[0].spec.serial);
}

#[tokio::test]
async fn rs_22_after_the_time_out_it_is_told_all_the_same() {
    let (mut world, gates) = (World::new(), Gates::new());
    talking(&mut world, &gates, of_word("wait-for-idle"));
    let host = world.start().await;
    let first = host.spawn(&line("lead", "slow a")).await;
    host.end(&first).await;
    let child = children(&host, &first).await[0].clone();
    // It takes no turns, so that the nudge does not wait for its end.
    let talk = host.spawn(&line("lead", "gate talk")).await;
    gates.have_come(2).await;
    gates.open(&child);
    host.end(&child).await;
    assert_eq!(world.next(20 * SECOND).await, SECOND);
    assert_eq!(world.next(20 * SECOND).await, 14 * SECOND, "15 s after the end");
    let nudges = nudged(&host, 1).await;
    let report = format!("slow {child}: completed");
    assert_eq!(said(&nudges[0]).matches(&report).count(), 1);
    assert_eq!(host.get(&talk).await.status(), Status::Running);
    gates.open("talk");
    host.end(&talk).await;
}

#[tokio::test]
async fn rs_25_outcomes_that_come_together_are_told_in_one_text() {
    let (mut world, gates) = (World::new(), Gates::new());
    let strategy =
        Some(Strategy::Queued { buffer_ms: 50, timeout_ms: 15_000, separator: " | ".to_owned() });
    let settings = DeliverySettings { strategy, ..DeliverySettings::default() };
    talking(&mut world, &gates, settings);
    let host = world.start().await;
    let mut beneath = Vec::new();
    for word in ["slow first", "slow second"] {
        world.clock.advance(Duration::from_millis(1));
        let line = host.spawn(&line("lead", word)).await;
        host.end(&line).await;
        beneath.push(children(&host, &line).await[0].clone());
    }
    gates.have_come(2).await;
    world.clock.advance(SECOND);
    gates.open(&beneath[0]);
    host.end(&beneath[0]).await;
    world.clock.advance(Duration::from_millis(10));
    gates.open(&beneath[1]);
    host.end(&beneath[1]).await;
    host.settle().await;
    assert!(nudges(&host).await.is_empty(), "the first one waits");
    world.clock.advance(Duration::from_millis(50));
    let nudges = nudged(&host, 1).await;
    assert_eq!(nudges.len(), 1);
    let told = said(&nudges[0]);
    let one = told.find(&beneath[0]).expect("the first");
    let other = told.find(&beneath[1]).expect("the second");
    assert!(told[one..other].contains(" | "), "{told}");
    assert_eq!(told.matches(" | ").count(), 1, "{told}");
    assert_eq!(states(&host).await, [ReportState::Delivered; 2]);
}

#[tokio::test]
async fn rs_23_a_request_says_otherwise_than_the_policy_and_none_is_none() {
    let mut world = World::new();
    world.agent("worker", worker());
    leader(&mut world, "lead", coordinator());
    let host = world.start().await;
    let first = host.spawn(&line("lead", "start one")).await;
    host.end(&first).await;
    host.end(&children(&host, &first).await[0]).await;
    host.settle().await;
    assert!(nudges(&host).await.is_empty(), "with the next line, unless the policy says otherwise");
    assert_eq!(states(&host).await, [ReportState::Pending]);
    drop(host);

    let mut world = World::new();
    let gates = Gates::new();
    world.agent("worker", worker());
    world.agent("lead", gates.planner());
    change(&mut world, "lead", |agent| agent.delivery = of_word("none"));
    let host = world.start().await;
    let top = host.spawn(&SpawnRequest { id: Some("top".into()), ..line("lead", "x") }).await;
    // Otherwise it is told before its first step.
    gates.have_come(1).await;
    let beneath = |id: &str, delivery: Option<DeliverySettings>| SpawnRequest {
        id: Some(id.to_owned()),
        parent_run_id: Some("top".into()),
        delivers: true,
        delivery,
        ..request("worker", id)
    };
    let none = DeliverySettings { strategy: None, ..DeliverySettings::default() };
    host.spawn(&beneath("of-policy", None)).await;
    host.spawn(&beneath("without", Some(none))).await;
    host.spawn(&beneath("stated", Some(of_word("immediate")))).await;
    for id in ["of-policy", "without", "stated"] {
        host.end(id).await;
    }
    assert!(host.client().report("of-policy").await.expect("answers").is_none());
    assert!(host.client().report("without").await.expect("answers").is_none());
    assert!(host.client().report("stated").await.expect("answers").is_some());
    gates.open("top");
    host.end(&top).await;
    // Another run of the agent waits at its own gate.
    let nudge = until(&host, |nudges| !nudges.is_empty()).await.remove(0);
    assert_eq!(nudge.spec.nudge_for, [RunId::new("stated").expect("an id")]);
    gates.open(nudge.id().as_str());
    host.end(nudge.id().as_str()).await;
}

#[tokio::test]
async fn a_run_that_a_person_starts_is_told_of_in_the_conversation_that_it_names() {
    let mut world = World::new();
    world.agent("worker", worker());
    leader(&mut world, "lead", coordinator());
    let host = world.start().await;
    let delivery = DeliverySettings {
        notify: Some("lead".into()),
        prompt: Some("Go on.".into()),
        ..of_word("immediate")
    };
    let asked = SpawnRequest { delivery: Some(delivery), ..request("worker", "alone") };
    let id = host.spawn(&asked).await;
    let nudges = nudged(&host, 1).await;
    let told = said(&nudges[0]);
    assert!(
        told.contains(&format!("worker {id}: completed")) && told.ends_with("Go on."),
        "{told}"
    );
    let own =
        SpawnRequest { converses: true, delivery: Some(of_word("immediate")), ..asked.clone() };
    let error = host.client().spawn(&own).await.expect_err("refused").to_string();
    assert!(error.starts_with("the answer of a run of the conversation stands there"), "{error}");
    let attached =
        SpawnRequest { parent_run_id: Some(id.clone()), attached: true, ..asked.clone() };
    assert!(host.client().spawn(&attached).await.is_err());
    let nowhere = SpawnRequest { one_shot: true, parent_session_id: String::new(), ..asked };
    let error = host.client().spawn(&nowhere).await.expect_err("refused").to_string();
    assert_eq!(error, "a run that belongs to no session is told of in none");
}

#[tokio::test]
async fn c_070_an_outcome_is_told_once_and_not_to_who_waited_for_it() {
    let mut world = World::new();
    world.agent("worker", worker());
    let lead = ClosurePlanner::new(|input: PlanInput, _| async move {
        let sync = json!({ "agent_name": "worker", "task": "waited", "mode": "sync" }).to_string();
        match (input.resume.as_ref().map_or(0, |r| r.tool_outputs.len()), task(&input).as_str()) {
            (0, "start") => call_of(&[("1", "host/start_task_run", &sync)]),
            (0, _) => answer(&heard(&input)),
            (1, _) => start("2", "worker", "alone"),
            (_, _) => answer("started"),
        }
    });
    delivering(&mut world, "lead", lead, of_word("immediate"));
    let host = world.start().await;
    let first = host.spawn(&line("lead", "start")).await;
    host.end(&first).await;
    let children = children(&host, &first).await;
    let nudges = nudged(&host, 1).await;
    let told = said(&nudges[0]);
    assert_eq!(told.matches(&children[1]).count(), 1, "wakes the parent: {told}");
    assert!(!told.contains(&children[0]), "a synchronous waiter has claimed it: {told}");
    host.settle().await;
    assert_eq!(self::nudges(&host).await.len(), 1);
}

#[tokio::test]
async fn c_071_a_wait_that_is_over_cancels_nothing_and_the_result_comes_later() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    let lead = ClosurePlanner::new(|input: PlanInput, _| async move {
        let sync = json!({
            "agent_name": "worker",
            "task": "long",
            "mode": "sync",
            "wait_timeout_seconds": 5,
        })
        .to_string();
        match (input.resume.is_none(), task(&input).as_str()) {
            (true, "start") => call_of(&[("1", "host/start_task_run", &sync)]),
            (true, _) => answer(&heard(&input)),
            (false, _) => {
                let texts: Vec<String> = input.messages.iter().map(Message::joined_text).collect();
                answer(&texts.join("\n"))
            }
        }
    });
    delivering(&mut world, "lead", lead, of_word("immediate"));
    let host = world.start().await;
    let first = host.spawn(&line("lead", "start")).await;
    gates.have_come(1).await;
    host.reach(&first, Status::Blocked).await;
    world.clock.advance(5 * SECOND);
    host.end(&first).await;
    let child = children(&host, &first).await[0].clone();
    assert_eq!(host.get(&child).await.status(), Status::Running, "it goes on");
    gates.open(&child);
    host.end(&child).await;
    let told = said(&nudged(&host, 1).await[0]);
    assert_eq!(told.matches(&format!("worker {child}: completed")).count(), 1, "{told}");
}
