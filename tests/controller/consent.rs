//! Tool calls that need the consent of a person (L-064, L-037, M-35).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use taskrun::agents::Agent;
use taskrun::error::ControllerError;
use taskrun_journal::event::{Event, EventRecord, Refusal};
use taskrun_journal::question::{Answer, AwaitItem};
use taskrun_journal::run::RunView;
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{AskRule, AskRules, InterruptionPolicy, Location, Pattern};

use super::common::{Call, Gates, beneath, check_journal, count, following, named, task_tools};
use super::delivery::children;
use super::dying::{Point, die_at_each, survive};
use super::host_tools::{leader, words};
use crate::native::{ClosureTool, Native, Op, Side, World, value};

fn location() -> Location {
    Location { file: std::path::Path::new("test").into(), line: 1, column: 1 }
}

fn rule(functions: Pattern) -> AskRule {
    AskRule { functions, text: "the rule".to_owned(), location: location() }
}

/// Calls of `mail/f` and of tools with the tag `danger` need consent.
pub(crate) fn asks(agent: &mut Agent) {
    let danger = Pattern::Tag("danger".to_owned());
    let rules = vec![rule(Pattern::all_of("mail")), rule(danger)];
    agent.ask = AskRules { rules, timeout: Duration::from_secs(3_600) };
}

/// Adds the tools `mail`, `drop`, which is tagged `danger`, and `look`; gives how often they were
/// called in all.
fn tools(world: &mut World) -> Arc<AtomicU32> {
    let called = Arc::new(AtomicU32::new(0));
    for (name, tags) in [("mail", &[][..]), ("drop", &["danger"]), ("look", &["safe"])] {
        let called = Arc::clone(&called);
        let tool = ClosureTool::new("f", ToolHints::default(), move |call, _| {
            called.fetch_add(1, Ordering::SeqCst);
            async move { value(&call.payload) }
        });
        world.tool(name, InterruptionPolicy::Fail, tool.tagged(tags));
    }
    called
}

/// A world whose agent makes these calls, and how often tools were called.
fn world_with(turns: Vec<Vec<Call>>) -> (World, Arc<AtomicU32>) {
    let mut world = World::new();
    let called = tools(&mut world);
    world.agent_with("a", following(turns), asks);
    (world, called)
}

async fn blocked(host: &Native) -> RunView {
    let view = RunView::from(&host.reach("1", Status::Blocked).await);
    assert_eq!(view.blocked_on, Some(BlockedOn::Confirmation));
    view
}

async fn answer(host: &Native, item: Option<&str>, answer: Answer) {
    let answered = host.client().named("mia").answer("1", item, answer).await;
    answered.expect("taken");
}

async fn said(host: &Native) -> String {
    let run = host.end("1").await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    run.state.reply.result().expect("an answer")
}

/// The decisions about calls, and the calls that began, in order.
pub(crate) fn story(journal: &[EventRecord]) -> Vec<String> {
    let lines = journal.iter().filter_map(|recorded| {
        let event = &recorded.event;
        if let Event::Asked { item } = event {
            return Some(format!("asked {}", item.id()));
        }
        if let Event::ToolCallScheduled { tool_call_id, .. } = event {
            return Some(format!("{tool_call_id} begins"));
        }
        if let Event::ToolResult { output, refused: Some(refused), .. } = event {
            return Some(format!("{} {refused:?}", output.tool_call_id));
        }
        let Event::ToolAuthorization {
            tool_call_id, approved, decided_by, for_run, consent, ..
        } = event
        else {
            return (event.kind() == "blocked").then(|| "blocked".to_owned());
        };
        let scope = match consent {
            Some(number) => format!(" in consent {number}"),
            None if *for_run => " for the run".to_owned(),
            None => String::new(),
        };
        Some(format!("{tool_call_id} {approved} by {decided_by}{scope}"))
    });
    lines.collect()
}

#[tokio::test]
async fn l_064_a_call_begins_when_somebody_has_consented_and_that_is_on_record() {
    let (mut world, called) = world_with(vec![vec![("c", "mail/f", "{\"to\":\"b\"}")]]);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let view = blocked(&host).await;
    let asked = host.client().asks("1").await.expect("can be read");
    let AwaitItem::Confirmation { tool_name, tool_call_id, payload, .. } = &asked[0].what else {
        panic!("{asked:?}")
    };
    let item = (tool_name.as_str(), tool_call_id.as_str(), payload.as_str());
    assert_eq!(item, ("mail/f", "c", "{\"to\":\"b\"}"));
    let prompt = &view.awaits[0].prompt;
    assert_eq!(prompt, "May mail/f be called with {\"to\":\"b\"}? (\"the rule\")");
    assert_eq!(called.load(Ordering::SeqCst), 0);
    answer(&host, None, Answer::Confirmed(true)).await;
    assert_eq!(said(&host).await, "{\"to\":\"b\"}");
    let journal = host.journal("1").await;
    check_journal(&journal);
    let expected = ["asked confirm:1:c", "blocked", "c true by mia", "c begins"];
    assert_eq!(
        (story(&journal), called.load(Ordering::SeqCst)),
        (expected.map(String::from).into(), 1)
    );
}

#[tokio::test]
async fn l_064_a_call_that_is_declined_has_a_result_that_says_so_and_the_run_goes_on() {
    let turns =
        vec![vec![("c", "mail/f", "{}")], vec![("d", "drop/f", "{}")], vec![("e", "look/f", "1")]];
    let (mut world, called) = world_with(turns);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    for item in ["confirm:1:c", "confirm:2:d"] {
        host.until("1", item, |run| run.state.awaits.iter().any(|one| one.id == item)).await;
        answer(&host, Some(item), Answer::Confirmed(false)).await;
    }
    // Twice in a row somebody said no: that is not the policy, which would end the run.
    let expected = "denied: denied: mail/f was declined by mia; denied: denied: drop/f was declined \
                    by mia; 1";
    assert_eq!(said(&host).await, expected);
    assert_eq!(called.load(Ordering::SeqCst), 1);
    let story = story(&host.journal("1").await);
    assert!(story.contains(&"c false by mia".to_owned()), "{story:?}");
    assert!(story.contains(&format!("c {:?}", Refusal::Declined)), "{story:?}");
}

#[tokio::test]
async fn l_064_where_nobody_answers_in_time_the_call_is_declined() {
    let (mut world, called) = world_with(vec![vec![("c", "mail/f", "{}")]]);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    blocked(&host).await;
    world.clock.advance(Duration::from_secs(3_599));
    host.settle().await;
    assert_eq!(host.get("1").await.status(), Status::Blocked);
    world.clock.advance(Duration::from_secs(1));
    let why = "denied: denied: nobody consented to mail/f within 3600s";
    assert_eq!(said(&host).await, why, "nobody declined it");
    assert_eq!(called.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn l_064_a_word_for_the_run_is_for_further_calls_of_the_function_and_for_no_other() {
    for approved in [true, false] {
        let turns = vec![
            vec![("c", "mail/f", "1"), ("x", "drop/f", "2")],
            vec![("d", "mail/f", "3"), ("y", "drop/f", "4")],
        ];
        let (mut world, _) = world_with(turns);
        let host = world.start().await;
        host.spawn(&named("1", "a")).await;
        blocked(&host).await;
        answer(&host, Some("confirm:1:c"), Answer::ConfirmedForRun(approved)).await;
        answer(&host, Some("confirm:1:x"), Answer::Confirmed(true)).await;
        host.until("1", "asks again", |run| run.state.turns == 2).await;
        let view = blocked(&host).await;
        let open: Vec<_> = view.awaits.iter().map(|item| item.id.as_str()).collect();
        assert_eq!(open, ["confirm:2:y"]);
        answer(&host, None, Answer::Confirmed(true)).await;
        said(&host).await;
        let story = story(&host.journal("1").await);
        let line = format!("d {approved} by mia for the run");
        assert!(story.contains(&line), "{story:?}");
        assert_eq!(story.contains(&"d begins".to_owned()), approved, "{story:?}");
    }
}

#[tokio::test]
async fn l_064_other_calls_of_the_turn_do_not_wait_and_results_stand_in_order() {
    let turns = vec![vec![("c", "mail/f", "1"), ("d", "look/f", "2"), ("e", "drop/f", "3")]];
    let (mut world, called) = world_with(turns);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    blocked(&host).await;
    assert_eq!(called.load(Ordering::SeqCst), 1, "what nobody is asked about is done");
    answer(&host, Some("confirm:1:e"), Answer::Confirmed(true)).await;
    host.settle().await;
    assert_eq!(host.get("1").await.status(), Status::Blocked, "one of two answers is not enough");
    answer(&host, Some("confirm:1:c"), Answer::Confirmed(true)).await;
    assert_eq!(said(&host).await, "1; 2; 3");
}

#[tokio::test]
async fn l_037_a_call_that_needs_consent_is_spent_whatever_is_answered() {
    let turns = vec![
        vec![("c", "mail/f", "1"), ("d", "look/f", "2"), ("e", "look/f", "3")],
        vec![("f", "look/f", "4")],
    ];
    for approved in [true, false] {
        let mut world = World::new();
        tools(&mut world);
        world.agent_with("a", following(turns.clone()), |agent| {
            asks(agent);
            agent.limits.tool_calls = Some(2);
        });
        let host = world.start().await;
        host.spawn(&named("1", "a")).await;
        blocked(&host).await;
        answer(&host, None, Answer::Confirmed(approved)).await;
        let run = host.end("1").await;
        assert_eq!(run.ending().map(|ending| ending.stop_reason), Some(StopReason::ToolCap));
        assert_eq!(run.state.tool_calls, 2);
        let story = story(&host.journal("1").await);
        assert!(story.contains(&format!("e {:?}", Refusal::Cap)), "{story:?}");
    }
}

#[tokio::test]
async fn m_35_consent_is_not_given_in_another_way_nor_for_more_than_was_asked() {
    let (mut world, called) = world_with(vec![vec![("c", "mail/f", "{}")]]);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    blocked(&host).await;
    let text = Answer::Text("yes".to_owned());
    let refused = host.client().named("mia").answer("1", None, text).await;
    assert!(matches!(refused, Err(ControllerError::Invalid { .. })), "{refused:?}");
    host.client().cancel("1", None).await.expect("can be canceled");
    assert_eq!(host.end("1").await.status(), Status::Canceled);
    assert_eq!(
        (called.load(Ordering::SeqCst), count(&host.journal("1").await, "tool_authorization")),
        (0, 0)
    );
}

#[tokio::test]
async fn m_35_who_must_ask_does_not_get_around_it_by_asking_somebody_else() {
    let (mut world, gates) = (World::new(), Gates::new());
    let called = tools(&mut world);
    world.agent_with("careful", gates.planner(), asks);
    world.agent("free", following(vec![vec![("c", "mail/f", "{}")]]));
    let host = world.start().await;
    host.spawn(&named("alone", "free")).await;
    assert_eq!(host.end("alone").await.status(), Status::Completed);
    assert_eq!(called.load(Ordering::SeqCst), 1);
    host.spawn(&named("top", "careful")).await;
    host.spawn(&beneath("top", "1", "free")).await;
    blocked(&host).await;
    assert_eq!(called.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn ws_29_a_call_in_a_task_blocks_it_until_somebody_says_yes_or_it_is_denied() {
    // Three hundred bytes, with characters of two at both ends of what is shown.
    let payload: &'static str = format!("{{\"to\":\"a{}\"}}", "\u{e4}".repeat(145)).leak();
    assert_eq!(payload.len(), 300);
    for approved in [false, true] {
        let mut world = World::new();
        let called = tools(&mut world);
        let worker = following(vec![vec![("c", "mail/f", payload)]]);
        world.agent_with("worker", worker, asks);
        leader(&mut world, "lead", &["worker"], |_, said| match said.len() {
            0 => vec![("spawn_task", json!({ "agent": "worker", "message": "mail it" }))],
            1 => vec![("await_tasks", json!({ "task_ids": [said[0]["task_id"]] }))],
            _ => Vec::new(),
        });
        let host = world.start().await;
        host.spawn(&named("lead", "lead")).await;
        host.until("lead", "it waits", |run| run.status() == Status::Blocked).await;
        let child = children(&host, "lead").await.remove(0);
        let view = RunView::from(&host.reach(&child, Status::Blocked).await);
        assert_eq!(view.blocked_on, Some(BlockedOn::Confirmation));
        let prompt = &view.awaits[0].prompt;
        let (shown, rest) = prompt.split_once(" ... ").expect("it is cut");
        assert!(shown.starts_with("May mail/f be called with {\"to\":\"a\u{e4}"), "{prompt}");
        assert!(rest.ends_with("\u{e4}\"} (300 bytes in all)? (\"the rule\")"), "{prompt}");
        assert!(prompt.len() < 300, "{prompt}");
        assert_eq!(called.load(Ordering::SeqCst), 0);
        let mia = host.client().named("mia");
        mia.answer(&child, None, Answer::Confirmed(approved)).await.expect("taken");
        let told = words(&host, "lead").await;
        let result = told[1][0]["result"].as_str().expect("it goes on");
        let expected = match approved {
            true => payload,
            false => "denied: denied: mail/f was declined by mia",
        };
        assert_eq!((result, called.load(Ordering::SeqCst)), (expected, u32::from(approved)));
    }
}

/// Two calls, one of which needs consent, under a host that dies at this point; gives how many
/// died.
async fn play(point: Point) -> u32 {
    let mut world = World::new();
    let handle = task_tools(&mut world);
    let called = tools(&mut world);
    let turns = vec![vec![("c", "mail/f", "1")], vec![("d", "mail/f", "2")]];
    world.agent_with("a", following(turns), asks);
    let door = world.door().await;
    let outside = async {
        door.spawn(&named("1", "a")).await;
        door.until("1", "asks", |run| run.state.awaits.iter().any(|one| !one.answered)).await;
        answer(&door, None, Answer::ConfirmedForRun(true)).await;
        door.end("1").await
    };
    let (run, deaths) = survive(&mut world, &[point], &handle, outside).await;
    assert_eq!(run.status(), Status::Completed, "{point:?}");
    let (called, journal) = (called.load(Ordering::SeqCst), door.journal("1").await);
    check_journal(&journal);
    let context = format!("{point:?}: {:?}", story(&journal));
    assert!(called <= 2, "{context}");
    assert_eq!(count(&journal, "asked"), 1, "{context}");
    assert_eq!(count(&journal, "tool_authorization"), 2, "{context}");
    assert_eq!(count(&journal, "tool_call_scheduled"), 2, "{context}");
    deaths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l_064_whenever_the_host_dies_each_call_is_asked_about_once_and_begins_once() {
    for side in [Side::Before, Side::After] {
        die_at_each(Op::Append, side, 5, play).await;
    }
}
