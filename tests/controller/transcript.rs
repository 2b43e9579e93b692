//! The transcript's limits, its pages, and who may read it (M-26).

use serde_json::{Value, json};
use taskrun::controller::{TRANSCRIPT_DEFAULT, TRANSCRIPT_MAX, Transcript};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::Event;
use taskrun_journal::history::History;
use taskrun_journal::ids::Seq;
use taskrun_journal::message::{Message, Role};
use taskrun_journal::progress::Children;
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;

use super::host_tools::{leader, leader_with};
use crate::native::{ClosurePlanner, Native, OWNER, SESSION, World, answer, request};

/// A run with one task and the answers `answer-000` to `answer-200`.
async fn long_run() -> (World, Native, String) {
    let mut world = World::new();
    world.agent(
        "worker",
        ClosurePlanner::new(|_, scope| async move {
            for number in 0..200 {
                let message = Message::text(Role::Assistant, format!("answer-{number:03}"));
                scope.record(Event::AssistantMessage {
                    message,
                    usage: None,
                    model: None,
                    streamed: false,
                });
            }
            answer("answer-200")
        }),
    );
    let host = world.start().await;
    let id = host.spawn(&request("worker", "review")).await;
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    (world, host, id)
}

async fn page(host: &Native, id: &str, before: Option<Seq>, limit: usize) -> Transcript {
    host.client().transcript(id, before, limit).await.expect("there")
}

fn contents(page: &Transcript) -> Vec<&str> {
    page.events.iter().map(|entry| entry.content.as_str()).collect()
}

#[tokio::test]
async fn ts_26_a_transcript_keeps_the_last_entries_up_to_its_bound() {
    let (_world, host, id) = long_run().await;
    assert_eq!((TRANSCRIPT_DEFAULT, TRANSCRIPT_MAX), (40, 200));
    let most = page(&host, &id, None, 201).await;
    assert_eq!(most.events.len(), 200);
    assert_eq!(most.events[0].content, "answer-001");
    assert_eq!(most.events[199].content, "answer-200");
    assert!(most.truncated);
    let usual = page(&host, &id, None, TRANSCRIPT_DEFAULT).await;
    assert_eq!(usual.events.len(), 40);
    assert_eq!(usual.events[0].content, "answer-161");
    let three = page(&host, &id, None, 3).await;
    assert_eq!(contents(&three), ["answer-198", "answer-199", "answer-200"]);
    assert_eq!((three.status, three.id.as_str()), (Status::Completed, id.as_str()));
    assert!(three.child_session_id.is_some_and(|session| session.starts_with("taskrun:")));

    let scope = host.scope.clone().owner(OWNER).session(SESSION);
    host.controller.at(&scope).transcript(&id, None, 3).await.expect("its own");
    let others = [
        host.scope.clone().owner("user-b").session(SESSION),
        host.scope.clone().owner(OWNER).session("parent-b"),
    ];
    for scope in others {
        let error = host.controller.at(&scope).transcript(&id, None, 3).await.expect_err("refused");
        assert_eq!(error.code(), "not-found");
    }
}

#[tokio::test]
async fn m_26_the_cursor_leads_through_earlier_pages_to_the_task() {
    let (_world, host, id) = long_run().await;
    let (mut before, mut pages, mut all) = (None, 0, Vec::new());
    loop {
        let page = page(&host, &id, before, 50).await;
        let mut texts: Vec<String> = contents(&page).into_iter().map(str::to_owned).collect();
        texts.append(&mut all);
        all = texts;
        pages += 1;
        assert_eq!(page.truncated, page.before.is_some());
        before = page.before;
        if before.is_none() {
            assert_eq!((page.events[0].author.as_str(), page.events[0].role), ("user", "user"));
            assert_eq!(
                (page.events[1].author.as_str(), page.events[1].role),
                ("worker", "assistant")
            );
            break;
        }
    }
    assert_eq!(pages, 5, "202 entries, 50 at a time");
    let expected = (0..=200).map(|number| format!("answer-{number:03}"));
    let expected: Vec<_> = std::iter::once("review".to_owned()).chain(expected).collect();
    assert_eq!(all, expected, "nothing is left out or told twice");
    let nothing = page(&host, &id, Some(1), 50).await;
    assert_eq!((nothing.events.len(), nothing.truncated), (0, false));
    let least = page(&host, &id, None, 0).await;
    assert_eq!(contents(&least), ["answer-200"], "a limit of zero counts as one");
}

/// The authors and contents of the first entries.
fn told(page: &Transcript) -> Vec<(&str, &str)> {
    page.events.iter().map(|entry| (entry.author.as_str(), entry.content.as_str())).collect()
}

/// The run that this one started.
async fn child(host: &Native, id: &str) -> taskrun_journal::run::Run {
    let tree = host.client().tree(id).await.expect("there");
    tree.descendants.into_iter().next().expect("it started one")
}

#[tokio::test]
async fn m_26_the_context_of_a_delegated_task_stands_before_it_and_in_the_record() {
    let mut world = World::new();
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer("paid") }));
    let delegates = |_: &str, said: &[Value]| match said.len() {
        0 => {
            let context = json!({ "order": "77", "amount": "EUR 9000" });
            let task = json!({ "agent": "worker", "task": "Pay.", "context": context });
            vec![("delegate_task", task)]
        }
        1 => vec![("wait_task_run", json!({ "id": said[0]["task_id"] }))],
        2 => vec![("read_task_run_transcript", json!({ "id": said[0]["task_id"] }))],
        _ => Vec::new(),
    };
    leader(&mut world, "lead", &["worker"], delegates);
    let host = world.start().await;
    let lead = host.spawn(&request("lead", "Pay.")).await;
    assert_eq!(host.end(&lead).await.status(), Status::Completed);
    let run = child(&host, &lead).await;
    let context = "Context of the task:\n{\"amount\":\"EUR 9000\",\"order\":\"77\"}";
    let whole = page(&host, run.id().as_str(), None, 40).await;
    assert_eq!(told(&whole), [("context", context), ("user", "Pay."), ("worker", "paid")]);
    // The two belong to one event: no page ends between them.
    let last = page(&host, run.id().as_str(), None, 2).await;
    assert_eq!((told(&last), last.before), (told(&whole), None));
    let view = RunView::with_children(&run, Children::default());
    assert_eq!(view.context_messages, [Message::text(Role::User, context)]);
    assert!(RunView::from(&run).context_messages.is_empty(), "a list has none");
    // The run above reads the same.
    let read = page(&host, &lead, None, 40).await;
    let read = read.events.iter().find(|entry| entry.content.contains("\"context\""));
    assert!(read.is_some_and(|entry| entry.content.contains("EUR 9000")), "{read:?}");
}

#[tokio::test]
async fn m_26_the_lines_before_a_hand_over_stand_before_the_task_of_the_callee() {
    let mut world = World::new();
    world.agent_with("before", ClosurePlanner::new(|_, _| async { answer("hello") }), |agent| {
        agent.conversation = History::Session;
    });
    world.agent("second", ClosurePlanner::new(|_, _| async { answer("the second") }));
    let hands_over = |_: &str, said: &[Value]| match said.is_empty() {
        true => vec![("transfer_to_agent", json!({ "agent": "second" }))],
        false => Vec::new(),
    };
    leader_with(&mut world, ("first", &["second"]), hands_over, |agent| {
        agent.conversation = History::Session;
    });
    let host = world.start().await;
    let line = |agent: &str, task: &str| SpawnRequest { converses: true, ..request(agent, task) };
    host.end(&host.spawn(&line("before", "hi")).await).await;
    let first = host.spawn(&line("first", "Who are you?")).await;
    assert_eq!(host.end(&first).await.status(), Status::Completed);
    let callee = child(&host, &first).await;
    let whole = page(&host, callee.id().as_str(), None, 40).await;
    let said = "user: hi\nassistant: hello";
    let expected = [("session", said), ("user", "Who are you?"), ("second", "the second")];
    assert_eq!(told(&whole), expected);
}
