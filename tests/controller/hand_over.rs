//! `transfer_to_agent`: a conversation that is handed over to another agent.

use serde_json::json;
use taskrun::ports::planner::PlanInput;
use taskrun_journal::event::Event;
use taskrun_journal::history::History;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};

use super::common::{Gates, Handle, check_journal, named};
use super::dying::{Point, at_every, survive};
use super::host_tools::{leader, leader_with};
use crate::native::{ClosurePlanner, Native, Op, World, answer, failed, request};

/// An agent that answers with what it was told, each message after its role.
fn echo() -> ClosurePlanner {
    ClosurePlanner::new(|input: PlanInput, _| async move {
        let told = input.messages.iter();
        let told: Vec<_> =
            told.map(|one| format!("{}: {}", one.role.as_str(), one.joined_text())).collect();
        answer(&told.join("|"))
    })
}

fn conversing(agent: &str, task: &str) -> taskrun::spawn::SpawnRequest {
    taskrun::spawn::SpawnRequest { converses: true, ..request(agent, task) }
}

/// Hands over at once.
pub(super) fn hands_over(world: &mut World, name: &str, to: &'static str) {
    assert_eq!(to, "second", "the function that decides takes nothing with it");
    leader_with(
        world,
        (name, &["second"]),
        |_, said| match said.is_empty() {
            true => vec![("transfer_to_agent", json!({ "agent": "second" }))],
            false => Vec::new(),
        },
        |agent| agent.conversation = History::Session,
    );
}

async fn view(host: &Native, id: &str) -> RunView {
    RunView::from(&host.end(id).await)
}

#[tokio::test]
async fn t_081_the_callee_is_shown_the_conversation_and_its_answer_is_the_callers() {
    let mut world = World::new();
    hands_over(&mut world, "first", "second");
    world.agent("second", echo());
    world.agent_with("before", ClosurePlanner::new(|_, _| async { answer("hello") }), |agent| {
        agent.conversation = History::Session
    });
    let host = world.start().await;
    host.end(&host.spawn(&conversing("before", "hi")).await).await;
    let id = host.spawn(&conversing("first", "Who are you?")).await;
    let ended = view(&host, &id).await;
    let said = "user: hi|assistant: hello|user: Who are you?";
    assert_eq!((ended.status, ended.result.as_deref()), (Status::Completed, Some(said)));
    assert_eq!(ended.stop_reason, Some(StopReason::TerminalTool));
    assert_eq!(ended.handed_over_to.as_deref(), Some("second"));
    // The callee's run is beneath the caller's and ends with it.
    let tree = host.client().tree(&id).await.expect("there");
    let [callee] = tree.descendants.as_slice() else { panic!("{:?}", tree.descendants) };
    assert!(callee.spec.attached);
    assert_eq!(
        (callee.spec.agent_name.as_str(), callee.spec.task.as_str()),
        ("second", "Who are you?")
    );
    assert_eq!(RunView::from(callee).handed_over_to, None);
    // The end of the caller's run says who has the conversation, in one append with the answer.
    let journal = host.journal(&id).await;
    let of = |nth: usize| &journal[journal.len() - nth].event;
    assert!(matches!(of(1), Event::Finished { .. }), "{:?}", of(1));
    let Event::Finalizing { ending } = of(2) else { panic!("{:?}", of(2)) };
    assert_eq!(ending.handed_to.as_deref(), Some("second"));
    // A later line is told of both lines.
    let later = host.spawn(&conversing("before", "again")).await;
    host.end(&later).await;
    let carried = host.journal(&later).await;
    let carried = carried.iter().find_map(|recorded| {
        let Event::HistoryCarried { messages, .. } = &recorded.event else { return None };
        Some(messages.len())
    });
    assert_eq!(carried, Some(4));
}

#[tokio::test]
async fn t_081_a_conversation_that_is_handed_on_belongs_to_the_last() {
    let mut world = World::new();
    hands_over(&mut world, "first", "second");
    leader(&mut world, "second", &["third"], |_, said| match said.is_empty() {
        true => vec![("transfer_to_agent", json!({ "agent": "third" }))],
        false => Vec::new(),
    });
    world.agent("third", ClosurePlanner::new(|_, _| async { answer("I am the third.") }));
    let host = world.start().await;
    let ended = view(&host, &host.spawn(&request("first", "x")).await).await;
    assert_eq!(ended.result.as_deref(), Some("I am the third."));
    assert_eq!(ended.handed_over_to.as_deref(), Some("third"));
}

#[tokio::test]
async fn t_081_a_callee_that_fails_or_is_canceled_leaves_the_conversation_where_it_was() {
    for cancels in [false, true] {
        let mut world = World::new();
        hands_over(&mut world, "first", "second");
        let gates = Gates::new();
        match cancels {
            true => world.agent("second", gates.planner()),
            false => {
                world.agent("second", ClosurePlanner::new(|_, _| async { failed(None, "no idea") }))
            }
        };
        let host = world.start().await;
        let id = host.spawn(&request("first", "x")).await;
        if cancels {
            let callee = gates.have_come(1).await[0].clone();
            host.client().cancel(&callee, None).await.expect("cancels");
        }
        let ended = view(&host, &id).await;
        assert_eq!((ended.status, ended.handed_over_to), (Status::Completed, None));
        assert_eq!(ended.stop_reason, Some(StopReason::FinalResponse));
        let said = ended.result.expect("the caller answers itself");
        let code = if cancels { "canceled" } else { "agent-failed" };
        assert!(said.contains(code), "{said}");
    }
}

#[tokio::test]
async fn t_081_a_caller_that_is_canceled_takes_the_callee_with_it() {
    let mut world = World::new();
    // The callee is asked to stop first. A caller that takes another turn before its own request is
    // on record hands over again, and ends all the same.
    leader_with(
        &mut world,
        ("first", &["second"]),
        |_, _| vec![("transfer_to_agent", json!({ "agent": "second" }))],
        |agent| agent.conversation = History::Session,
    );
    let gates = Gates::new();
    world.agent("second", gates.planner());
    let host = world.start().await;
    let id = host.spawn(&request("first", "x")).await;
    let callee = gates.have_come(1).await[0].clone();
    host.reach(&id, Status::Blocked).await;
    host.client().cancel(&id, None).await.expect("cancels");
    let (caller, callee) = (view(&host, &id).await, view(&host, &callee).await);
    assert_eq!((caller.status, caller.handed_over_to), (Status::Canceled, None));
    assert_eq!(callee.status, Status::Canceled);
}

async fn play(point: Point) -> u32 {
    let mut world = World::new();
    hands_over(&mut world, "first", "second");
    world.agent("second", echo());
    let door = world.door().await;
    let outside = async {
        door.spawn(&named("1", "first")).await;
        door.end("1").await
    };
    let (run, deaths) = survive(&mut world, &[point], &Handle::default(), outside).await;
    let tree = door.client().tree("1").await.expect("there");
    assert_eq!(tree.descendants.len(), 1, "{point:?}");
    assert_eq!(tree.descendants[0].status(), Status::Completed, "{point:?}");
    let ended = RunView::from(&run);
    // Both or neither: whoever has the conversation gave its answer.
    assert_eq!(ended.handed_over_to.as_deref(), Some("second"), "{point:?}");
    assert_eq!(ended.result, tree.descendants[0].state.reply.result(), "{point:?}");
    check_journal(&door.journal("1").await);
    deaths
}

#[tokio::test]
async fn t_081_whatever_host_dies_at_whatever_write_both_or_neither_is_on_record() {
    at_every([Op::Create, Op::Append, Op::Claim], play).await;
}
