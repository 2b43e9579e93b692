//! The bounds of nudges: their hops, those in an hour, their attempts, and nudges that have nothing to
//! tell any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use taskrun::agents::Agent;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::model::Model;
use taskrun::scope::{CallScope, Models};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::delivery::{DeliverySettings, HOPS_MAX, Report, ReportState, Strategy};
use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::pin::pin;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::ReportChange;

use super::budgets::{Metered, ask};
use super::common::Gates;
use super::delivery::{children, coordinator, heard, line, say, start, states, task, worker};
use super::deployments::world;
use super::nudges::{
    SECOND, TASK, change, delivering, nudged, nudges, of_word, said, started, talking, until,
};
use super::revocation::take_up;
use crate::native::{ClosurePlanner, Native, World, answer, call_of, failed, in_time};

/// Starts a run of `slow` and ends, whatever it is told.
fn restless() -> ClosurePlanner {
    restless_with("slow")
}

/// Starts a run of an agent and ends, whatever it is told.
fn restless_with(agent: &'static str) -> ClosurePlanner {
    ClosurePlanner::new(move |input: PlanInput, _| async move {
        match input.resume.is_none() {
            true => start("c", agent, "x"),
            false => answer("started"),
        }
    })
}

#[tokio::test]
async fn two_agents_that_notify_each_other_stop_at_their_hops() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("slow", gates.planner());
    for (name, other) in [("lead", "middle"), ("middle", "lead")] {
        let notify = Some(other.to_owned());
        let settings = DeliverySettings { notify, ..of_word("immediate") };
        delivering(&mut world, name, restless(), settings);
    }
    change(&mut world, "middle", |agent| agent.members.push("lead".to_owned()));
    let host = world.start().await;
    let mut last = host.spawn(&line("lead", "go")).await;
    let hops = usize::try_from(HOPS_MAX).expect("a few");
    for hop in 0..=hops {
        host.end(&last).await;
        let beneath = children(&host, &last).await;
        assert!(!beneath.is_empty(), "nudge {hop}: {:?}", host.journal(&last).await);
        let child = beneath[0].clone();
        gates.open(&child);
        host.end(&child).await;
        if hop < hops {
            last = nudged(&host, hop + 1).await[hop].id().to_string();
        } else {
            let report = host.client().report(&child).await.expect("answers").expect("there");
            assert_eq!((report.state, report.due), (ReportState::Pending, None), "nothing is lost");
        }
    }
    host.settle().await;
    let nudges = nudges(&host).await;
    let agents: Vec<&str> = nudges.iter().map(|run| run.spec.agent_name.as_str()).collect();
    assert_eq!(agents.len(), hops, "{agents:?}");
    assert_eq!(agents[..4], ["middle", "lead", "middle", "lead"]);
}

/// Returns when no host looks for the report of a run any more, and gives it.
pub(super) async fn quiet(host: &Native, run: &str) -> Report {
    let wait = async {
        loop {
            let report = host.client().report(run).await.expect("answers").expect("there");
            if report.due.is_none() {
                return report;
            }
            host.settle().await;
        }
    };
    in_time(wait).await
}

/// Gives an agent a model each of whose answers reads 20 and writes 10.
fn has_metered_model(agent: &mut Agent) {
    let model: Arc<dyn Model> = Arc::new(Metered::default());
    let own = "own".to_owned();
    agent.models = Arc::new(Models {
        by_name: [(own.clone(), model)].into(),
        settings: BTreeMap::new(),
        prices: BTreeMap::new(),
        default: Some(own),
    });
}

#[tokio::test]
async fn the_nudges_of_a_tree_share_what_its_budget_has_left() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    let lead = ClosurePlanner::new(|input: PlanInput, scope: Arc<CallScope>| async move {
        match (input.resume.is_none(), task(&input).as_str()) {
            (true, "start") => {
                let dig = r#"{"agent_name":"worker","task":"dig"}"#;
                call_of(&["a", "b", "c"].map(|id| (id, "host/start_task_run", dig)))
            }
            (true, _) => answer(&ask(&scope).await),
            (false, _) => answer("started"),
        }
    });
    delivering(&mut world, "lead", lead, of_word("immediate"));
    change(&mut world, "lead", |agent| {
        has_metered_model(agent);
        // An answer reads 20 and writes 10.
        agent.budget.tokens = Some(90);
        agent.budget.completion_tokens = Some(20);
    });
    let host = world.start().await;
    let first = host.spawn(&line("lead", "start")).await;
    host.end(&first).await;
    let workers = children(&host, &first).await;
    gates.have_come(3).await;
    for (nth, left) in [(0, (90, 20)), (1, (60, 10))] {
        world.clock.advance(Duration::from_millis(1));
        gates.open(&workers[nth]);
        host.end(&workers[nth]).await;
        let nudge = nudged(&host, nth + 1).await.remove(nth);
        assert_eq!((nudge.status(), said(&nudge).as_str()), (Status::Completed, "asked"));
        let narrow = &nudge.spec.narrow;
        assert_eq!((narrow.tokens, narrow.completion_tokens), (Some(left.0), Some(left.1)));
        assert_eq!((narrow.prompt_tokens, narrow.cost_microusd), (None, None));
    }
    gates.open(&workers[2]);
    host.end(&workers[2]).await;
    assert_eq!(quiet(&host, &workers[2]).await.state, ReportState::Pending);
    assert_eq!(nudges(&host).await.len(), 2, "nothing is left for a third one");
}

#[tokio::test]
async fn a_nudge_that_comes_of_a_nudge_has_no_more_than_its_siblings_leave_of_the_first_tree() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    let is_first = Arc::new(AtomicBool::new(true));
    let lead = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| {
        let is_first = Arc::clone(&is_first);
        async move {
            match (input.resume.is_none(), task(&input).as_str()) {
                (true, "start") => {
                    let dig = r#"{"agent_name":"worker","task":"dig"}"#;
                    call_of(&["a", "b"].map(|id| (id, "host/start_task_run", dig)))
                }
                (true, _) => {
                    let said = ask(&scope).await;
                    match is_first.swap(false, Ordering::SeqCst) {
                        true => start("c", "worker", "dig"),
                        false => answer(&said),
                    }
                }
                (false, _) => answer("started"),
            }
        }
    });
    delivering(&mut world, "lead", lead, of_word("immediate"));
    change(&mut world, "lead", |agent| {
        has_metered_model(agent);
        agent.budget.tokens = Some(90);
    });
    let host = world.start().await;
    let first = host.spawn(&line("lead", "start")).await;
    host.end(&first).await;
    let mut workers = children(&host, &first).await;
    for (nth, left) in [90, 60, 30].into_iter().enumerate() {
        world.clock.advance(Duration::from_millis(1));
        gates.have_come(nth.max(1) + 1).await;
        gates.open(&workers[nth]);
        host.end(&workers[nth]).await;
        let nudge = nudged(&host, nth + 1).await.remove(nth);
        assert_eq!(nudge.status(), Status::Completed);
        assert_eq!(nudge.spec.narrow.tokens, Some(left), "nudge {nth}");
        // The first one leaves a run of its own, which is told of last.
        workers.extend(children(&host, nudge.id().as_str()).await);
        assert_eq!(workers.len(), 3);
    }
}

#[tokio::test]
async fn the_nudges_of_an_agent_that_is_not_here_have_spent_what_they_spent() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    let asks =
        ClosurePlanner::new(|_, scope: Arc<CallScope>| async move { answer(&ask(&scope).await) });
    world.agent_asking("middle", asks, Some(Arc::new(Metered::default())), |_| {});
    let hour = 3_600_000;
    let strategy = Strategy::WaitForIdle { buffer_ms: hour, timeout_ms: hour, interrupt: false };
    let waits = DeliverySettings { strategy: Some(strategy), ..DeliverySettings::default() };
    delivering(&mut world, "slow", restless_with("worker"), waits);
    let notify = Some("middle".to_owned());
    let settings = DeliverySettings { notify, ..of_word("immediate") };
    delivering(&mut world, "lead", restless_with("slow"), settings);
    change(&mut world, "lead", |agent| agent.budget.tokens = Some(90));
    let host = world.start().await;
    let first = host.spawn(&line("lead", "start")).await;
    host.end(&first).await;
    let nudge = nudged(&host, 1).await.remove(0);
    assert_eq!((nudge.spec.agent_name.as_str(), said(&nudge).as_str()), ("middle", "asked"));
    gates.have_come(1).await;
    let page = host.client().list(&ListFilter::default(), None, PAGE_MAX).await.expect("lists");
    let worker = page.runs.iter().find(|run| run.spec.agent_name == "worker").expect("started");
    let worker = worker.id().to_string();
    gates.open(&worker);
    host.end(&worker).await;
    world.kill(host).await;
    world.forget_agent("middle");
    world.clock.advance(2 * 3_600 * SECOND);
    let host = world.start().await;
    let nudges = until(&host, |nudges| nudges.len() == 2).await;
    let second = nudges.iter().find(|run| run.spec.agent_name == "lead").expect("of the lead");
    assert_eq!(second.spec.nudge_for[0].as_str(), worker);
    assert_eq!(second.spec.narrow.tokens, Some(60));
}

#[tokio::test]
async fn a_conversation_is_nudged_so_often_in_an_hour_and_no_more() {
    let mut world = World::new();
    world.agent("worker", worker());
    delivering(&mut world, "lead", coordinator(), of_word("immediate"));
    change(&mut world, "lead", |agent| agent.max_nudges = 2);
    let host = world.start().await;
    for count in 1..=2 {
        started(&host, "lead", "one").await;
        nudged(&host, count).await;
    }
    let third = started(&host, "lead", "three").await;
    assert_eq!(quiet(&host, &third[0]).await.state, ReportState::Pending);
    assert_eq!(nudges(&host).await.len(), 2);
    world.clock.advance(3_601 * SECOND);
    started(&host, "lead", "four").await;
    let told = said(nudged(&host, 3).await.last().expect("one more"));
    assert!(told.contains("did three") && told.contains("did four"), "{told}");
}

/// An outcome is told beside 1,116 others in front of it that are not due for an hour, whether their
/// agent is one of the host or not.
async fn is_told_behind_a_thousand_that_wait(agent_is_there: bool) {
    let mut world = World::new();
    world.agent("worker", worker());
    delivering(&mut world, "lead", coordinator(), of_word("immediate"));
    let hour = 3_600_000;
    let strategy =
        Strategy::WaitForIdle { buffer_ms: hour, timeout_ms: 2 * hour, interrupt: false };
    let settings = DeliverySettings { strategy: Some(strategy), ..DeliverySettings::default() };
    delivering(&mut world, "patient", coordinator(), settings);
    change(&mut world, "patient", |agent| agent.limits.tool_calls = Some(100));
    let first = world.start().await;
    let words: Vec<String> = (0..62).map(|nth| format!("w{nth}")).collect();
    for session in 0..18 {
        let mut request = line("patient", &format!("start {}", words.join(" ")));
        request.parent_session_id = format!("s-{session}");
        let run = first.spawn(&request).await;
        first.end(&run).await;
        let children = children(&first, &run).await;
        assert_eq!(children.len(), 62);
        for child in children {
            first.end(&child).await;
        }
    }
    world.kill(first).await;
    if !agent_is_there {
        world.forget_agent("patient");
    }
    let host = world.start().await;
    started(&host, "lead", "one").await;
    assert!(said(&nudged(&host, 1).await[0]).contains("did one"));
}

#[tokio::test]
async fn an_outcome_is_told_behind_a_thousand_that_wait() {
    is_told_behind_a_thousand_that_wait(true).await;
}

#[tokio::test]
async fn an_outcome_is_told_behind_a_thousand_of_agents_that_are_not_here() {
    is_told_behind_a_thousand_that_wait(false).await;
}

#[tokio::test]
async fn canceling_a_tree_of_64_starts_no_run() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", gates.planner());
    delivering(&mut world, "lead", coordinator(), of_word("immediate"));
    change(&mut world, "lead", |agent| agent.limits.tool_calls = Some(100));
    (world.settings.slots, world.settings.tree_slots) = (64, 64);
    let host = world.start().await;
    let words: Vec<String> = (0..63).map(|nth| format!("w{nth}")).collect();
    let tree = host.spawn(&line("lead", &format!("start {}", words.join(" ")))).await;
    let children = async {
        loop {
            let children = children(&host, &tree).await;
            if children.len() == 63 {
                return children;
            }
            host.settle().await;
        }
    };
    let children = in_time(children).await;
    gates.have_come(63).await;
    host.client().cancel(&tree, None).await.expect("canceled, or ended");
    for child in &children {
        assert_eq!(host.end(child).await.status(), Status::Canceled);
    }
    host.end(&tree).await;
    host.settle().await;
    let page = host.client().list(&ListFilter::default(), None, PAGE_MAX).await.expect("lists");
    assert_eq!(page.runs.len(), 64, "no run is started by it");
    let due = host.client().reports(&ReportState::ALL, 0, 100).await.expect("answers");
    assert!(due.iter().all(|report| report.due.is_none()));
}

#[tokio::test]
async fn a_nudge_that_always_fails_is_a_dead_letter_after_three_attempts_and_retry_delivers_once() {
    let mut world = World::new();
    world.agent("worker", worker());
    let lead = ClosurePlanner::new(|input: PlanInput, _| async move {
        match (input.resume.is_none(), task(&input).as_str()) {
            (true, "start") => start("c", "worker", "one"),
            (true, task) if task.starts_with(TASK) => failed(None, "cannot"),
            (true, _) => answer(&heard(&input)),
            (false, _) => answer("started"),
        }
    });
    delivering(&mut world, "lead", lead, of_word("immediate"));
    let host = world.start().await;
    let first = host.spawn(&line("lead", "start")).await;
    host.end(&first).await;
    let child = children(&host, &first).await[0].clone();
    let report = async || host.client().report(&child).await.expect("answers").expect("there");
    for (attempt, pause) in [(1, 5), (2, 60)] {
        let nudges = nudged(&host, attempt).await;
        assert!(nudges.iter().all(|run| run.status() == Status::Failed));
        assert_eq!(usize::try_from(report().await.attempts), Ok(attempt));
        let waited = world.next(100 * SECOND).await;
        let pause = pause * SECOND;
        assert!(waited >= pause && waited <= pause * 5 / 4, "{waited:?}");
    }
    nudged(&host, 3).await;
    assert_eq!((report().await.state, report().await.attempts), (ReportState::Dead, 3));
    host.settle().await;
    assert_eq!(nudges(&host).await.len(), 3);
    assert!(host.client().change_report(&child, ReportChange::Retry).await.expect("answers"));
    nudged(&host, 4).await;
    assert_eq!(report().await.attempts, 1, "it fails as before");
    let told = say(&world, &host, &line("lead", "news?")).await;
    assert_eq!(told.matches(&format!("worker {child}: completed")).count(), 1, "{told}");
    assert_eq!(report().await.state, ReportState::Delivered);
}

#[tokio::test]
async fn a_nudge_that_is_canceled_is_not_repeated() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("worker", worker());
    let inside = Arc::clone(&gates);
    let lead = ClosurePlanner::new(move |input: PlanInput, _| {
        let gates = Arc::clone(&inside);
        async move {
            match (input.resume.is_none(), task(&input).as_str()) {
                (true, "start") => start("c", "worker", "one"),
                (true, task) if task.starts_with(TASK) => {
                    let _inside = gates.pass("nudge").await;
                    answer("never")
                }
                (true, _) => answer(&heard(&input)),
                (false, _) => answer("started"),
            }
        }
    });
    delivering(&mut world, "lead", lead, of_word("immediate"));
    let host = world.start().await;
    let first = host.spawn(&line("lead", "start")).await;
    host.end(&first).await;
    gates.have_come(1).await;
    let nudge = nudges(&host).await[0].id().to_string();
    host.client().cancel(&nudge, None).await.expect("canceled");
    host.end(&nudge).await;
    host.settle().await;
    assert_eq!(nudges(&host).await.len(), 1);
    assert_eq!(states(&host).await, [ReportState::Pending]);
    assert!(say(&world, &host, &line("lead", "news?")).await.contains("did one"));
}

/// A nudge is told of nothing, as the line before it was told; its agent's rules may have become others
/// since it was made.
async fn tells_nothing(under_other_rules: bool) {
    let (mut world, shelf, gates) = world();
    talking(&mut world, &gates, of_word("wait-for-idle"));
    let host = world.start().await;
    let first = host.spawn(&line("lead", "slow a")).await;
    host.end(&first).await;
    let child = children(&host, &first).await[0].clone();
    world.clock.advance(SECOND);
    let serial = |task: &str| SpawnRequest { serial: true, ..line("lead", task) };
    let talk = host.spawn(&serial("gate talk")).await;
    gates.have_come(2).await;
    gates.open(&child);
    host.end(&child).await;
    world.clock.advance(Duration::from_millis(1));
    let next = host.spawn(&serial("news?")).await;
    assert_eq!(world.next(20 * SECOND).await, Duration::from_millis(999));
    assert_eq!(world.next(20 * SECOND).await, 14 * SECOND);
    // It is made after the line that waits, and told of nothing.
    until(&host, |nudges| !nudges.is_empty()).await;
    if under_other_rules {
        shelf.keep(&world.agents_now().by_name["lead"]);
        change(&mut world, "lead", |agent| agent.pin = pin("lead", "2"));
        take_up(&world, &shelf, &host).await;
    }
    gates.open("talk");
    host.end(&talk).await;
    let report = format!("slow {child}: completed");
    assert_eq!(said(&host.end(&next).await).matches(&report).count(), 1);
    let nudges = nudged(&host, 1).await;
    let ending = nudges[0].ending().expect("it has ended");
    assert_eq!((ending.stop_reason, &ending.error), (StopReason::NaturalEnd, &None));
    assert_eq!((nudges[0].status(), nudges[0].state.turns), (Status::Completed, 0));
    let is_noted = host.kinds(nudges[0].id().as_str()).await.contains(&"rules_changed");
    assert_eq!(is_noted, under_other_rules);
    assert_eq!(states(&host).await, [ReportState::Delivered]);
    let later = say(&world, &host, &line("lead", "and now?")).await;
    assert!(!later.contains(TASK), "it is no part of what was said: {later}");
}

#[tokio::test]
async fn a_nudge_that_has_nothing_to_tell_asks_nobody() {
    tells_nothing(false).await;
}

#[tokio::test]
async fn a_nudge_that_has_nothing_to_tell_asks_nobody_under_other_rules_either() {
    tells_nothing(true).await;
}
