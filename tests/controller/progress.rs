//! Progress, with the runs beneath, and as a subscription (M-25).

use std::sync::Arc;
use std::time::Duration;

use taskrun::controller::{PROGRESS_EVERY, ProgressWatch};
use taskrun::error::ControllerError;
use taskrun::ports::planner::{Decision, PlanInput, PlanResult};
use taskrun_journal::event::Event;
use taskrun_journal::list::Scope;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::progress::Progress;
use taskrun_journal::run::RunView;

use super::common::{Gates, beneath, named, soon, task_tools};
use crate::native::{ClosurePlanner, Native, Planned, World, answer};

async fn children(host: &Native, id: &str) -> Option<(u64, u64)> {
    let view = host.client().view(id).await.expect("there");
    let progress = view.progress?;
    assert_eq!(progress.expected_children.is_some(), progress.finished_children.is_some());
    progress.expected_children.zip(progress.finished_children)
}

/// A decision to call a tool, from a planner that expects so many runs beneath.
fn call_expecting(id: &str, tool: &str, payload: &str, expected: Option<u32>) -> Planned {
    let request = ToolRequest {
        name: tool.to_owned(),
        payload: payload.to_owned(),
        tool_call_id: Some(id.to_owned()),
        parent_tool_call_id: None,
    };
    Ok(Ok(PlanResult {
        decision: Decision::ToolCalls(vec![request]),
        streamed: false,
        expected_children: expected,
        notes: Vec::new(),
    }))
}

#[tokio::test]
async fn m_25_children_are_counted_as_they_begin_and_end() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("block", gates.planner());
    let host = world.start().await;
    host.spawn(&named("root", "block")).await;
    assert_eq!(children(&host, "root").await, None, "absent where there are none");
    host.spawn(&beneath("root", "a", "block")).await;
    host.spawn(&beneath("root", "b", "block")).await;
    host.spawn(&beneath("a", "under-a", "block")).await;
    gates.have_come(4).await;
    assert_eq!(children(&host, "root").await, Some((2, 0)), "only those directly beneath");
    assert_eq!(children(&host, "a").await, Some((1, 0)));
    host.client().cancel("b", None).await.expect("can be canceled");
    host.end("b").await;
    assert_eq!(children(&host, "root").await, Some((2, 1)));
    let before = host.get("root").await.state.head;
    for id in ["under-a", "a"] {
        gates.open(id);
        host.end(id).await;
    }
    assert_eq!(children(&host, "root").await, Some((2, 2)));
    assert_eq!(host.get("root").await.state.head, before, "their ends are none of its journal");
    gates.open("root");
    host.end("root").await;
    assert_eq!(children(&host, "root").await, Some((2, 2)));
    assert_eq!(children(&host, "b").await, None);
    let tree = host.client().tree("root").await.expect("there");
    assert_eq!((tree.children(tree.run.id()).started, tree.descendants.len()), (2, 3));
    let listed = RunView::from(&tree.run).progress.expect("it said something");
    assert_eq!((listed.expected_children, listed.finished_children), (None, None));
}

#[tokio::test]
async fn m_25_what_the_planner_expects_only_grows_and_counts_until_more_are_there() {
    let (mut world, gates) = (World::new(), Gates::new());
    let handle = task_tools(&mut world);
    let own = Arc::clone(&gates);
    world.agent("leaf", ClosurePlanner::new(|_, _| async { answer("leaf") }));
    world.agent(
        "plans",
        ClosurePlanner::new(move |input: PlanInput, _| {
            let gates = Arc::clone(&own);
            async move {
                let turn = input.run.turn;
                gates.pass(&turn.to_string()).await;
                let spawn = |id: &str, expected| {
                    let name = format!("\"leaf {id}\"");
                    call_expecting(id, "spawn/f", &name, expected)
                };
                match turn {
                    1 => spawn("x", Some(3)),
                    2 => spawn("y", Some(1)),
                    3 => spawn("z", None),
                    4 => spawn("w", Some(0)),
                    _ => answer("done"),
                }
            }
        }),
    );
    let host = world.start().await;
    handle.set(&host);
    host.spawn(&named("root", "plans")).await;
    let mut seen = Vec::new();
    for (turn, ended) in [("1", "x"), ("2", "y"), ("3", "z"), ("4", "w")] {
        gates.open(turn);
        let turn: usize = turn.parse().expect("a number");
        gates.have_come(turn + 1).await;
        host.end(ended).await;
        seen.push(children(&host, "root").await.expect("some"));
    }
    assert_eq!(seen, [(3, 1), (3, 2), (3, 3), (4, 4)]);
    gates.open("5");
    host.end("root").await;
}

/// An agent that says a part for each gate that is opened.
fn talker(gates: &Arc<Gates>, parts: u32) -> ClosurePlanner {
    let gates = Arc::clone(gates);
    ClosurePlanner::new(move |_, scope| {
        let gates = Arc::clone(&gates);
        async move {
            for part in 0..parts {
                gates.pass(&part.to_string()).await;
                scope.record(Event::AssistantChunk { text: format!("{part} ") });
            }
            gates.pass("end").await;
            answer("done")
        }
    })
}

async fn events(watch: &mut ProgressWatch) -> Option<u64> {
    let progress = soon("it is told", watch.next()).await.expect("can be read");
    progress.map(|progress| progress.event_count)
}

/// The progress that is told next, while time goes on only as far as that takes; and how far.
async fn told(world: &World, watch: &mut ProgressWatch) -> (Option<Progress>, Duration) {
    let (progress, waited) = world.run_until(Duration::from_secs(10), watch.next()).await;
    (progress.expect("can be read"), waited)
}

#[tokio::test]
async fn m_25_a_subscriber_is_told_at_once_then_every_quarter_of_a_second_and_at_the_end() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("talks", talker(&gates, 3));
    let host = world.start().await;
    host.spawn(&named("r", "talks")).await;
    gates.have_come(1).await;
    let mut watch = host.client().watch_progress("r").await.expect("there");
    assert_eq!(events(&mut watch).await, Some(0), "at once");
    for part in 0..3 {
        gates.open(&part.to_string());
        gates.have_come(part + 2).await;
        let said = part as u64 + 1;
        host.until("r", "speaks", |run| run.state.progress.event_count == said).await;
    }
    let (progress, waited) = told(&world, &mut watch).await;
    assert_eq!((progress.map(|one| one.event_count), waited), (Some(3), PROGRESS_EVERY));
    // After a pause it is told without one.
    world.clock.advance(PROGRESS_EVERY);
    gates.open("end");
    let run = host.end("r").await;
    let (progress, waited) = told(&world, &mut watch).await;
    assert_eq!((progress, waited), (Some(run.state.progress), Duration::ZERO));
    assert_eq!(events(&mut watch).await, None);
    assert_eq!(events(&mut watch).await, None);
}

#[tokio::test]
async fn m_25_a_slow_subscriber_misses_steps_and_never_the_last() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("talks", talker(&gates, 9));
    let host = world.start().await;
    host.spawn(&named("r", "talks")).await;
    let mut watch = host.client().watch_progress("r").await.expect("there");
    events(&mut watch).await;
    for part in 0..9 {
        gates.open(&part.to_string());
    }
    gates.open("end");
    let run = host.end("r").await;
    let (progress, _) = told(&world, &mut watch).await;
    assert_eq!(progress, Some(run.state.progress));
    assert_eq!(told(&world, &mut watch).await.0, None);
}

#[tokio::test]
async fn m_25_giving_up_the_wait_for_progress_loses_none() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("talks", talker(&gates, 1));
    let host = world.start().await;
    host.spawn(&named("r", "talks")).await;
    gates.have_come(1).await;
    let mut watch = host.client().watch_progress("r").await.expect("there");
    events(&mut watch).await;
    {
        let next = watch.next();
        tokio::pin!(next);
        assert!(futures::poll!(&mut next).is_pending());
    }
    gates.open("0");
    gates.open("end");
    let run = host.end("r").await;
    let (progress, _) = told(&world, &mut watch).await;
    assert_eq!(progress, Some(run.state.progress));
}

#[tokio::test]
async fn m_25_a_subscriber_hears_of_runs_beneath_though_the_journal_is_silent() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("block", gates.planner());
    let host = world.start().await;
    host.spawn(&named("root", "block")).await;
    gates.have_come(1).await;
    let mut watch = host.client().watch_progress("root").await.expect("there");
    events(&mut watch).await;
    host.spawn(&beneath("root", "child", "block")).await;
    let (progress, waited) = told(&world, &mut watch).await;
    let counts = progress.map(|one| (one.expected_children, one.finished_children));
    assert_eq!(counts, Some((Some(1), Some(0))));
    assert!(waited <= Duration::from_secs(2), "{waited:?}");
    gates.open("child");
    host.end("child").await;
    let (progress, _) = told(&world, &mut watch).await;
    assert_eq!(progress.and_then(|one| one.finished_children), Some(1));
}

#[tokio::test]
async fn m_25_progress_is_for_those_who_may_see_the_run() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("block", gates.planner());
    let host = world.start().await;
    host.spawn(&named("r", "block")).await;
    let strangers = [
        Scope::tenant("zeta"),
        Scope { owner_user_id: Some("user-b".into()), ..host.scope.clone() },
    ];
    for scope in strangers {
        let refused = host.controller.at(&scope).watch_progress("r").await.err();
        assert!(matches!(refused, Some(ControllerError::NotFound { .. })), "{refused:?}");
        let refused = host.controller.at(&scope).view("r").await.err();
        assert!(matches!(refused, Some(ControllerError::NotFound { .. })), "{refused:?}");
    }
}
