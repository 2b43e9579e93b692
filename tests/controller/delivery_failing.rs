//! Outcomes that cannot be delivered: takers that always fail, a session that ends and a budget that is
//! used up meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use taskrun::agents::Agent;
use taskrun::clock::{SeededRandom, SimulatedClock};
use taskrun::controller::{Controller, Principal};
use taskrun::ports::hook::{Hook, HookEntry, HookError, Hooks, Moment, Verdict};
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::scope::model::Model;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::delivery::{DeadReason, DeliverySettings, ReportState, Strategy};
use taskrun_journal::event::Event;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, PAGE_MAX, Scope};
use taskrun_journal::status::Status;
use taskrun_journal::store::ReportChange;
use taskrun_journal::time::random_u64;

use super::budgets::{Metered, ask};
use super::common::{Handle, soon};
use super::delivery::{children, coordinator, leader, line, say, states, task};
use super::dying::{Point, survive};
use super::nudges::delivering;
use crate::native::{
    ClosurePlanner, Gate, Native, Op, SESSION, Side, World, answer, call_of, failed,
};

/// Turns of the line that starts the background runs, and runs that it starts in each.
const TURNS: usize = 4;
const STARTED: usize = 250;
const RUNS: usize = TURNS * STARTED;
/// Takers of an outcome that may fail.
const ATTEMPTS: u32 = 3;
/// Hosts that die while takers fail, and while they are told in the end.
const DEATHS: [usize; 2] = [10, 3];
/// More lines than it takes: each is told of the outcomes of one page at least.
const LINES_MAX: usize = 200;

/// Starts all background runs, fails, or says that it has heard.
fn talker() -> ClosurePlanner {
    ClosurePlanner::new(|input: PlanInput, _| async move {
        let done = input.resume.as_ref().map_or(0, |resume| resume.tool_outputs.len());
        match task(&input).as_str() {
            "fail" => failed(None, "cannot"),
            "hear" => answer("heard"),
            _ if done == RUNS => answer("started"),
            _ => {
                let arguments = json!({ "agent_name": "worker", "task": "w" }).to_string();
                let ids: Vec<String> = (done..done + STARTED).map(|n| format!("c-{n}")).collect();
                let calls: Vec<_> = ids
                    .iter()
                    .map(|id| (id.as_str(), "host/start_task_run", arguments.as_str()))
                    .collect();
                call_of(&calls)
            }
        }
    })
}

/// Points at which hosts die, none of them so near to the two before that a line meets three.
fn points(deaths: usize, random: &SeededRandom) -> Vec<Point> {
    let point = |death: usize| {
        let side = [Side::Before, Side::After][usize::from(random_u64(random).is_multiple_of(2))];
        let nth = 1 + random_u64(random) % 6 + if death.is_multiple_of(2) { 0 } else { 12 };
        (Op::Append, nth, side)
    };
    (0..deaths).map(point).collect()
}

/// Says so until no outcome is to be told, and gives the lines.
async fn say_until_told(door: &Native, clock: &SimulatedClock, task: &str) -> Vec<String> {
    let (client, mut lines) = (door.client(), Vec::new());
    let open = [ReportState::Pending, ReportState::Taken];
    while !client.reports(&open, 0, 1).await.expect("answers").is_empty() {
        // Lines of the same millisecond are ordered by id.
        clock.advance(Duration::from_millis(1));
        let id = door.spawn(&line("lead", task)).await;
        door.end(&id).await;
        lines.push(id);
        assert!(lines.len() < LINES_MAX, "it never comes to an end");
    }
    lines
}

/// Counts how often each run is told in these lines.
async fn told(door: &Native, lines: &[String]) -> BTreeMap<RunId, u32> {
    let mut told = BTreeMap::new();
    for id in lines {
        for one in door.journal(id).await {
            let Event::Reported { runs, .. } = one.event else { continue };
            for run in runs {
                *told.entry(run).or_insert(0) += 1;
            }
        }
    }
    told
}

#[tokio::test]
async fn of_a_thousand_outcomes_whose_takers_fail_each_is_dead_after_three_and_a_retry_tells_it_once()
 {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("worker", gate.answering("done"));
    leader(&mut world, "lead", talker());
    change(&mut world, "lead", |agent| agent.limits.tool_calls = u32::try_from(RUNS).ok());
    // The line is one of its tree.
    world.settings.tree_max = RUNS as u64 + 1;
    let door = world.door().await;
    let (client, clock, handle) = (door.client(), Arc::clone(&world.clock), Handle::default());
    let begin = async {
        let first = door.spawn(&line("lead", "start")).await;
        assert_eq!(door.end(&first).await.status(), Status::Completed);
        gate.open();
        let started = children(&door, &first).await;
        for id in &started {
            door.end(id).await;
        }
        started
    };
    let (started, _) = survive(&mut world, &[], &handle, begin).await;
    assert_eq!(started.len(), RUNS);

    let random = SeededRandom::new(57);
    let fail = say_until_told(&door, &clock, "fail");
    let (failing, deaths) = survive(&mut world, &points(DEATHS[0], &random), &handle, fail).await;
    assert_eq!(deaths as usize, DEATHS[0]);
    for id in &failing {
        assert_eq!(door.get(id).await.status(), Status::Failed);
    }
    for id in &started {
        let report = client.report(id).await.expect("answers").expect("there is one");
        let found = (report.state, report.attempts, report.reason);
        assert_eq!(found, (ReportState::Dead, ATTEMPTS, Some(DeadReason::Attempts)), "{id}");
    }
    let counts = told(&door, &failing).await;
    assert_eq!(counts.len(), RUNS);
    assert!(counts.values().all(|count| *count == ATTEMPTS), "{counts:?}");

    let tell = async {
        clock.advance(Duration::from_millis(1));
        let nobody = door.spawn(&line("lead", "hear")).await;
        assert_eq!(door.end(&nobody).await.status(), Status::Completed);
        for id in &started {
            assert!(client.change_report(id, ReportChange::Retry).await.expect("answers"));
        }
        let mut lines = vec![nobody];
        lines.extend(say_until_told(&door, &clock, "hear").await);
        lines
    };
    let (lines, deaths) = survive(&mut world, &points(DEATHS[1], &random), &handle, tell).await;
    assert_eq!(deaths as usize, DEATHS[1]);
    assert!(told(&door, &lines[..1]).await.is_empty(), "of dead letters nobody is told");
    for id in &lines {
        assert_eq!(door.get(id).await.status(), Status::Completed);
    }
    let counts = told(&door, &lines).await;
    assert_eq!(counts.len(), RUNS);
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    for id in &started {
        let report = client.report(id).await.expect("answers").expect("there is one");
        assert_eq!((report.state, report.attempts), (ReportState::Delivered, 0), "{id}");
        assert!(!client.change_report(id, ReportChange::Retry).await.expect("answers"), "{id}");
    }
}

fn change(world: &mut World, name: &str, change: impl FnOnce(&mut Agent)) {
    let mut agent = Agent::clone(&world.agents_now().by_name[name]);
    change(&mut agent);
    world.loaded(&Arc::new(agent));
}

fn immediate() -> DeliverySettings {
    let strategy = Some(Strategy::Immediate);
    DeliverySettings { strategy, ..DeliverySettings::default() }
}

/// A line that starts a run which has ended after it, and the run.
async fn outcome(host: &Native, gate: &Gate) -> String {
    let first = host.spawn(&line("lead", "start one")).await;
    assert_eq!(host.end(&first).await.status(), Status::Completed);
    gate.open();
    let child = children(host, &first).await[0].clone();
    assert_eq!(host.end(&child).await.status(), Status::Completed);
    child
}

/// Holds the session of the conversation to no nudge.
async fn nobody_is_nudged(host: &Native) {
    host.settle().await;
    let page = host.client().list(&ListFilter::default(), None, PAGE_MAX).await.expect("lists");
    assert!(page.runs.iter().all(|run| !run.spec.is_nudge()), "{:?}", page.runs);
}

/// Ends the session of the conversation when a nudge is about to be kept.
#[derive(Default)]
struct Ends(OnceLock<(Controller, Scope)>);

#[async_trait]
impl Hook for Ends {
    async fn before(&self, moment: &Moment<'_>) -> Result<Verdict, HookError> {
        match (moment, self.0.get()) {
            (Moment::Spawn { spec }, Some((controller, scope))) if spec.is_nudge() => {
                let principal = Principal { scope: scope.clone(), name: "test".to_owned() };
                controller.at(principal).end_session(SESSION).await?;
            }
            (Moment::Spawn { .. } | Moment::ToolCall { .. } | Moment::Round { .. }, _) => {}
        }
        Ok(Verdict::Go)
    }
}

#[tokio::test]
async fn a_session_that_ends_between_look_and_nudge_makes_a_dead_letter_and_starts_nothing() {
    let (mut world, gate, hook) = (World::new(), Gate::new(), Arc::new(Ends::default()));
    world.hooks = Hooks::new(vec![HookEntry::advisory("ends", hook.clone())]);
    world.agent("worker", gate.answering("done"));
    delivering(&mut world, "lead", coordinator(), immediate());
    let host = world.start().await;
    assert!(hook.0.set((host.controller.clone(), host.scope.clone())).is_ok());
    let child = outcome(&host, &gate).await;
    let ended = async {
        while states(&host).await != [ReportState::Dead] {
            host.settle().await;
        }
    };
    soon("the session ends", ended).await;
    let report = host.client().report(&child).await.expect("answers").expect("there is one");
    assert_eq!((report.reason, report.due), (Some(DeadReason::SessionEnded), None));
    nobody_is_nudged(&host).await;
}

#[tokio::test]
async fn a_tree_that_has_spent_its_budget_nudges_nobody_and_the_next_line_is_told() {
    let (mut world, gate) = (World::new(), Gate::new());
    let model: Arc<dyn Model> = Arc::new(Metered::default());
    let closed = gate.clone();
    let spends = ClosurePlanner::new(move |_, scope: Arc<CallScope>| {
        let gate = closed.clone();
        async move {
            gate.pass().await;
            // 30 tokens.
            answer(&ask(&scope).await)
        }
    });
    world.agent_asking("worker", spends, Some(model), |_| {});
    delivering(&mut world, "lead", coordinator(), immediate());
    change(&mut world, "lead", |agent| agent.budget.tokens = Some(30));
    let host = world.start().await;
    let child = outcome(&host, &gate).await;
    let report = async || host.client().report(&child).await.expect("answers").expect("there");
    let looked_at = async {
        while report().await.due.is_some() {
            host.settle().await;
        }
    };
    soon("a host looks", looked_at).await;
    assert_eq!(states(&host).await, [ReportState::Pending]);
    nobody_is_nudged(&host).await;
    let told = say(&world, &host, &line("lead", "news?")).await;
    assert_eq!(told.matches(&format!("worker {child}: completed")).count(), 1, "{told}");
    assert_eq!(states(&host).await, [ReportState::Delivered]);
}

#[tokio::test]
async fn a_line_that_comes_before_its_nudge_takes_what_is_due_and_nobody_is_nudged() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("worker", gate.answering("done"));
    let strategy = Strategy::of_word("wait-for-idle");
    let settings = DeliverySettings { strategy, ..DeliverySettings::default() };
    delivering(&mut world, "lead", coordinator(), settings);
    let host = world.start().await;
    let child = outcome(&host, &gate).await;
    let report = async || host.client().report(&child).await.expect("answers").expect("there");
    assert!(report().await.due.is_some(), "a host is to look");
    // As `taskrun chat` says it, before the conversation counts as idle.
    let spoken = SpawnRequest { serial: true, ..line("lead", "news?") };
    let told = say(&world, &host, &spoken).await;
    assert_eq!(told.matches(&format!("worker {child}: completed")).count(), 1, "{told}");
    assert_eq!((report().await.state, report().await.due), (ReportState::Delivered, None));
    world.clock.advance(Duration::from_secs(60));
    nobody_is_nudged(&host).await;
    let later = say(&world, &host, &line("lead", "and now?")).await;
    // In the history, and in the answer of the line before, which says all that it was shown.
    assert_eq!(later.matches(&format!("worker {child}: completed")).count(), 2, "{later}");
}
