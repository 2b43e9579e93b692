//! Slots, and the runs that start others and wait for them (WS-01 to WS-23).

use std::sync::Arc;

use taskrun::error::ControllerError;
use taskrun::ports::planner::{Decision, PlanInput};
use taskrun::scope::CallScope;
use taskrun_journal::event::Event;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, PAGE_DEFAULT};
use taskrun_journal::question::Answer;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{BlockedOn, Status};

use super::common::{Gates, named, spawning, waiting_for, words_so_far};
use crate::native::{ClosurePlanner, Native, World, answer, clarification, decided, failed};

/// A world of gated agents with so many slots.
fn gated(slots: usize) -> (World, Arc<Gates>) {
    let mut world = World::new();
    world.settings.slots = slots;
    let gates = Gates::new();
    world.agent("block", gates.planner());
    (world, gates)
}

async fn statuses(host: &Native, ids: &[&str]) -> Vec<Status> {
    let mut all = Vec::new();
    for id in ids {
        all.push(host.get(id).await.status());
    }
    all
}

#[tokio::test]
async fn ws_01_four_slots_run_four_of_five_and_the_fifth_is_queued() {
    let (mut world, gates) = gated(4);
    let host = world.start().await;
    for id in ["1", "2", "3", "4", "5"] {
        host.spawn(&named(id, "block")).await;
    }
    gates.have_come(4).await;
    let running = Status::Running;
    let found = statuses(&host, &["1", "2", "3", "4", "5"]).await;
    assert_eq!(found, [running, running, running, running, Status::Queued]);
}

#[tokio::test]
async fn ws_02_the_queued_run_begins_when_another_one_ends_without_any_call() {
    let (mut world, gates) = gated(4);
    let host = world.start().await;
    for id in ["1", "2", "3", "4", "5"] {
        host.spawn(&named(id, "block")).await;
    }
    gates.have_come(4).await;
    gates.open("2");
    assert_eq!(gates.have_come(5).await[4], "5");
    assert_eq!(host.end("2").await.status(), Status::Completed);
    assert_eq!(host.get("5").await.status(), Status::Running);
}

#[tokio::test]
async fn ws_04_exactly_one_is_promoted_and_it_is_the_oldest() {
    let (mut world, gates) = gated(1);
    let host = world.start().await;
    for id in ["a", "b", "c"] {
        host.spawn(&named(id, "block")).await;
    }
    gates.have_come(1).await;
    gates.open("a");
    assert_eq!(gates.have_come(2).await, ["a", "b"]);
    host.end("a").await;
    assert_eq!(statuses(&host, &["b", "c"]).await, [Status::Running, Status::Queued]);
}

#[tokio::test]
async fn ws_05_a_list_is_sixteen_long_the_most_recent_first() {
    let (mut world, _gates) = gated(0);
    let host = world.start().await;
    for number in 1..=20 {
        world.clock.advance(std::time::Duration::from_millis(1));
        host.spawn(&named(&format!("r{number}"), "block")).await;
    }
    let filter = ListFilter::default();
    let page = host.client().list(&filter, None, PAGE_DEFAULT).await;
    let page = page.expect("can be listed");
    let ids: Vec<_> = page.runs.iter().map(|run| run.id().to_string()).collect();
    let wanted: Vec<_> = (5..=20).rev().map(|number| format!("r{number}")).collect();
    assert_eq!(ids, wanted);
    assert!(page.next.is_some());
}

/// An agent that starts a run of another one, and says what came of it.
fn starting(agent: &'static str) -> ClosurePlanner {
    ClosurePlanner::new(move |_, scope: Arc<CallScope>| async move {
        match scope.ask(spawning(agent, "play")).await {
            Err(error) => answer(&error.to_string()),
            Ok(started) => answer(&started.id),
        }
    })
}

#[tokio::test]
async fn ws_07_a_run_started_by_another_one_names_it_and_is_found_by_it() {
    let mut world = World::new();
    world.agent("b", ClosurePlanner::new(|_, _| async { answer("from b") }));
    world.agent("a", starting("b"));
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let id = host.end("1").await.state.reply.result().expect("the id of the child");
    let child = host.end(&id).await;
    assert_eq!(child.spec.parent_run_id.as_ref().map(RunId::as_str), Some("1"));
    assert_eq!((child.spec.root_run_id.as_str(), child.spec.depth), ("1", 1));
    let parent = Some(RunId::new("1").expect("an id"));
    let filter = ListFilter { parent_run_id: parent, ..ListFilter::default() };
    let page = host.client().list(&filter, None, 16).await.expect("listed");
    let ids: Vec<_> = page.runs.iter().map(|run| run.id().as_str()).collect();
    assert_eq!(ids, [id]);
}

/// The words for an agent with these members when it starts a run of `writer`, and the number of
/// runs that there are then.
async fn delegates(members: &[&str]) -> (String, usize) {
    delegates_to("writer", members).await
}

/// The same for an agent of whatever name.
async fn delegates_to(wanted: &'static str, members: &[&str]) -> (String, usize) {
    let mut world = World::new();
    world.agent("writer", ClosurePlanner::new(|_, _| async { answer("written") }));
    world.agent_with("caller", starting(wanted), |agent| {
        agent.members = members.iter().map(|name| (*name).to_owned()).collect();
    });
    let host = world.start().await;
    host.spawn(&named("1", "caller")).await;
    let run = host.end("1").await;
    let filter = ListFilter::default();
    let page = host.client().list(&filter, None, 16).await.expect("listed");
    (run.state.reply.result().expect("what it was told"), page.runs.len())
}

#[tokio::test]
async fn ws_08_an_agent_outside_of_the_members_is_refused_by_name_and_nothing_is_created() {
    let (said, runs) = delegates(&["researcher", "coder"]).await;
    assert!(said.ends_with("agent writer is not among the members of agent caller"), "{said}");
    assert_eq!(runs, 1);
    assert_eq!(delegates(&["writer"]).await.1, 2);
}

#[tokio::test]
async fn ws_08_an_agent_that_is_not_there_is_refused_like_one_that_is_no_member() {
    let (said, runs) = delegates_to("nobody", &["researcher", "coder"]).await;
    assert!(said.ends_with("agent nobody is not among the members of agent caller"), "{said}");
    assert_eq!(runs, 1);
}

#[tokio::test]
async fn ws_10_an_agent_without_members_cannot_delegate() {
    let (said, runs) = delegates(&[]).await;
    assert!(said.ends_with("agent writer is not among the members of agent caller"), "{said}");
    assert_eq!(runs, 1);
}

#[tokio::test]
async fn ws_19_a_wait_gives_the_results_in_the_order_asked_whoever_ends_first() {
    let mut world = World::new();
    let gates = Gates::new();
    world.agent("good", gates.planner());
    let passed = Arc::clone(&gates);
    world.agent(
        "bad",
        ClosurePlanner::new(move |input, _| {
            let gates = Arc::clone(&passed);
            async move {
                let _inside = gates.pass(&input.run.run_id).await;
                failed(None, "it broke")
            }
        }),
    );
    let parent = ClosurePlanner::new(|input: PlanInput, scope: Arc<CallScope>| async move {
        if input.resume.is_some() {
            return answer(&words_so_far(&input));
        }
        let mut runs = Vec::new();
        for agent in ["bad", "good"] {
            runs.push(scope.ask(spawning(agent, "play")).await.expect("it is started").id);
        }
        waiting_for(runs)
    });
    world.agent("parent", parent);
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let blocked = host.reach("1", Status::Blocked).await;
    assert_eq!(RunView::from(&blocked).blocked_on, Some(BlockedOn::Children));
    let beneath = host.client().tree("1").await.expect("there").descendants;
    let of = |agent: &str| {
        let found = beneath.iter().find(|run| run.spec.agent_name == agent);
        found.expect("it was started").id().to_string()
    };
    let (bad, good) = (of("bad"), of("good"));
    gates.open(&good);
    host.end(&good).await;
    assert_eq!(host.get("1").await.status(), Status::Blocked);
    gates.open(&bad);
    let run = host.end("1").await;
    let expected = format!(
        "[{{\"error\":\"it broke\",\"run_id\":\"{bad}\",\"status\":\"failed\"}},\
         {{\"result\":\"done {good}\",\"run_id\":\"{good}\",\"status\":\"completed\"}}]"
    );
    assert_eq!(run.state.reply.result(), Some(expected));
}

#[tokio::test]
async fn ws_20_a_wait_for_nothing_or_nobody_is_refused_and_blocks_nobody() {
    for (wanted, told) in
        [(None, "invalid: no task IDs provided"), (Some("99"), "not-found: run not found: 99")]
    {
        let mut world = World::new();
        let planner = ClosurePlanner::new(move |input: PlanInput, _| {
            let planned = match input.resume {
                None => waiting_for(wanted.iter().map(|id| (*id).to_owned()).collect()),
                Some(_) => answer(&words_so_far(&input)),
            };
            async move { planned }
        });
        world.agent("a", planner);
        let host = world.start().await;
        host.spawn(&named("1", "a")).await;
        let run = host.end("1").await;
        assert_eq!(run.state.reply.result().as_deref(), Some(told));
        assert!(!host.kinds("1").await.contains(&"blocked"));
        let all = taskrun_journal::hold::WaitMode::All;
        let none = host.client().wait_all(&[], all, None).await;
        assert!(matches!(none, Err(ControllerError::Invalid { .. })));
        let unknown = host.client().wait_all(&["1", "99"], all, None).await;
        assert!(matches!(unknown, Err(ControllerError::NotFound { id }) if id == "99"));
    }
}

#[tokio::test]
async fn ws_22_with_one_slot_a_parent_that_waits_lets_its_queued_child_run() {
    let mut world = World::new();
    world.settings.slots = 1;
    world.agent("child", ClosurePlanner::new(|_, _| async { answer("from the child") }));
    let parent = ClosurePlanner::new(|input: PlanInput, scope: Arc<CallScope>| async move {
        match input.resume {
            Some(_) => answer(&words_so_far(&input)),
            None => {
                let child = scope.ask(spawning("child", "play")).await.expect("it is started");
                assert_eq!(child.status, Status::Queued, "its parent has the slot");
                waiting_for(vec![child.id])
            }
        }
    });
    world.agent("parent", parent);
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    let run = host.end("1").await;
    assert_eq!(run.status(), Status::Completed);
    assert!(run.state.reply.result().expect("a result").contains("from the child"));
}

#[tokio::test]
async fn ws_23_an_approved_run_waits_for_the_slot_and_goes_before_new_work() {
    let (mut world, gates) = gated(1);
    let inside = Arc::clone(&gates);
    world.agent(
        "asking",
        ClosurePlanner::new(move |input: PlanInput, _| {
            let gates = Arc::clone(&inside);
            async move {
                if input.resume.is_none() {
                    let asked = clarification("q");
                    return decided(Decision::Await(vec![asked.into()]));
                }
                let _inside = gates.pass("a again").await;
                answer("approved")
            }
        }),
    );
    let host = world.start().await;
    host.spawn(&named("a", "asking")).await;
    host.reach("a", Status::Blocked).await;
    host.spawn(&named("b", "block")).await;
    gates.have_come(1).await;
    host.spawn(&named("c", "block")).await;
    let yes = Answer::Text("yes".into());
    host.client().named("me").answer("a", None, yes).await.expect("taken");
    // It is wanted, and the slot is taken.
    assert_eq!(host.get("b").await.status(), Status::Running);
    assert_eq!(gates.came(), ["b"]);
    gates.open("b");
    assert_eq!(gates.have_come(2).await, ["b", "a again"]);
    assert_eq!(host.get("c").await.status(), Status::Queued);
    gates.open("a again");
    gates.open("c");
    host.end("c").await;
    let journal = host.journal("a").await;
    let ended = |kind| journal.iter().find(|recorded| recorded.event.kind() == kind);
    assert!(matches!(ended("blocked").map(|r| &r.event), Some(Event::Blocked { .. })));
    assert_eq!(host.end("a").await.status(), Status::Completed);
}
