//! Runs that go on by themselves (C-001 to C-014, M-52 to M-54): rounds, and the word that they are
//! done.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use taskrun::agents::Agent;
use taskrun::autonomy::AutonomyRequest;
use taskrun::error::ControllerError;
use taskrun::ports::planner::PlanInput;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::autonomy::{AutonomyMode, DoneTool};
use taskrun_journal::event::{Event, Refusal};
use taskrun_journal::message::Labels;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{AutonomySettings, InterruptionPolicy};

use super::common::{Gates, check_journal, named, words_of};
use crate::native::{
    ClosurePlanner, ClosureTool, Native, Planned, World, answer, call_of, request, value,
};

/// A turn of an agent: it says something, or calls tools, each by its id, name and arguments.
#[derive(Clone)]
pub(crate) enum Turn {
    Say(&'static str),
    Call(Vec<(&'static str, &'static str, Value)>),
}

use Turn::{Call, Say};

/// A call of the tool by which a run says that it is done.
pub(crate) fn report(detail: &str) -> Turn {
    Call(vec![("d", "host/report_done", json!({ "detail": detail }))])
}

pub(super) fn work() -> Turn {
    Call(vec![("w", "t/f", json!({}))])
}

/// The step of an agent that does this, turn after turn.
pub(crate) fn played(turns: &[Turn], input: &PlanInput) -> Planned {
    let nth = usize::try_from(input.run.turn).expect("a small number") - 1;
    planned(turns.get(nth).unwrap_or_else(|| panic!("turn {nth} was not expected")))
}

/// The step of an agent that does this.
pub(crate) fn planned(turn: &Turn) -> Planned {
    match turn {
        Say(text) => answer(text),
        Call(calls) => {
            let calls: Vec<_> =
                calls.iter().map(|(id, name, value)| (*id, *name, value.to_string())).collect();
            let calls: Vec<_> =
                calls.iter().map(|(id, name, text)| (*id, *name, text.as_str())).collect();
            call_of(&calls)
        }
    }
}

/// The last message that each step was shown.
pub(crate) type Shown = Arc<Mutex<Vec<String>>>;

/// A world with the agent `a`, which does this, and a tool `t/f`.
pub(crate) fn world_with(turns: Vec<Turn>, change: impl FnOnce(&mut Agent)) -> (World, Shown) {
    let (mut world, shown) = (World::new(), Shown::default());
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let seen = Arc::clone(&shown);
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        let last = input.messages.last().expect("there is one");
        seen.lock().expect("unharmed").push(last.joined_text());
        let planned = played(&turns, &input);
        async move { planned }
    });
    world.agent_with("a", planner, change);
    (world, shown)
}

pub(crate) fn world(turns: Vec<Turn>) -> (World, Shown) {
    world_with(turns, |_| {})
}

pub(crate) fn prompts(shown: &Shown) -> Vec<String> {
    shown.lock().expect("unharmed").clone()
}

pub(crate) fn autonomous(id: &str) -> SpawnRequest {
    SpawnRequest { autonomous: Some(AutonomyRequest::default()), ..named(id, "a") }
}

fn with_rounds(rounds: u32) -> SpawnRequest {
    let asked = AutonomyRequest { rounds: Some(rounds), ..AutonomyRequest::default() };
    SpawnRequest { autonomous: Some(asked), ..named("1", "a") }
}

/// Runs it to its end.
pub(super) async fn end(world: &mut World, request: &SpawnRequest) -> (Native, RunView) {
    let host = world.start().await;
    host.spawn(request).await;
    let run = host.end("1").await;
    check_journal(&host.journal("1").await);
    (host, RunView::from(&run))
}

pub(super) fn outcome(run: &RunView) -> (Status, Option<StopReason>, Option<u32>, Option<&str>) {
    (run.status, run.stop_reason, run.rounds, run.result.as_deref())
}

/// The results of the calls of a run, and whether they were refused.
pub(super) async fn results(host: &Native) -> Vec<(String, Option<Refusal>)> {
    let journal = host.journal("1").await;
    let results = journal.iter().filter_map(|recorded| {
        let Event::ToolResult { output, refused, .. } = &recorded.event else { return None };
        Some((words_of(&output.outcome), *refused))
    });
    results.collect()
}

#[tokio::test]
async fn cs_01_a_run_that_says_it_is_done_may_still_speak_and_ends() {
    let (mut world, shown) = world(vec![report("summarized example.txt"), Say("all done!")]);
    let (host, run) = end(&mut world, &autonomous("1")).await;
    let expected = (Status::Completed, Some(StopReason::Done), Some(1), Some("all done!"));
    assert_eq!(outcome(&run), expected);
    assert_eq!(run.detail.as_deref(), Some("summarized example.txt"));
    assert_eq!(prompts(&shown).len(), 2);
    // The word and the result of its call are one write: nothing stands between them.
    let kinds = host.kinds("1").await;
    let word = kinds.iter().position(|kind| *kind == "marked").expect("it is on record");
    assert_eq!(kinds[word + 1], "tool_result");
    assert_eq!(results(&host).await, [("\"ok\"".to_owned(), None)]);
}

#[tokio::test]
async fn cs_02_a_run_that_is_never_done_ends_with_its_rounds() {
    let (mut world, shown) = world(vec![Say("one"), Say("two"), Say("three")]);
    let (host, run) = end(&mut world, &with_rounds(3)).await;
    let expected = (Status::Completed, Some(StopReason::MaxTurns), Some(3), Some("three"));
    assert_eq!(outcome(&run), expected);
    assert!(run.partial);
    assert_eq!(
        prompts(&shown),
        ["x", "continue", "continue"],
        "the task, then the prompt to go on"
    );
    let ended = host.kinds("1").await.iter().filter(|kind| **kind == "round_ended").count();
    assert_eq!(ended, 2, "the last one ends the run");
    // The prompts are part of what people read.
    let transcript = host.client().transcript("1", None, 40).await.expect("there");
    let said: Vec<_> = transcript.events.iter().map(|entry| entry.content.as_str()).collect();
    assert_eq!(said, ["x", "one", "continue", "two", "continue", "three"]);
}

#[tokio::test]
async fn c_006_the_prompt_to_go_on_is_that_of_the_request_or_of_the_policy() {
    let turns = || vec![Say("one"), report("it"), Say("two")];
    let stated = |agent: &mut Agent| {
        let continuation = Some("go on".to_owned());
        agent.autonomous = Some(AutonomySettings { continuation, ..AutonomySettings::default() });
    };
    let (mut world, shown) = world_with(turns(), stated);
    end(&mut world, &autonomous("1")).await;
    assert_eq!(prompts(&shown)[1], "go on");
    let (mut world, shown) = world_with(turns(), stated);
    let continuation = Some("and now?".to_owned());
    let asked = AutonomyRequest { continuation, ..AutonomyRequest::default() };
    end(&mut world, &SpawnRequest { autonomous: Some(asked), ..named("1", "a") }).await;
    assert_eq!(prompts(&shown)[1], "and now?");
}

#[tokio::test]
async fn a_run_that_was_not_asked_to_go_on_ends_with_its_first_answer() {
    let (mut world, _) = world_with(vec![report("x"), Say("done")], |agent| {
        agent.autonomous = Some(AutonomySettings::default());
    });
    let (host, run) = end(&mut world, &named("1", "a")).await;
    let expected = (Status::Completed, Some(StopReason::FinalResponse), None, Some("done"));
    assert_eq!(outcome(&run), expected);
    let refused = results(&host).await;
    assert_eq!(refused[0].1, Some(Refusal::Unavailable), "it has no such tool: {refused:?}");
}

#[tokio::test]
async fn cs_11_an_idle_round_takes_the_place_of_no_finding() {
    let one = vec![work(), Say("findings"), Say("still waiting"), report("d"), Say("bye")];
    let table: Vec<(Vec<Turn>, &str)> = vec![
        (one, "findings"),
        (vec![work(), Say("first"), work(), Say("second"), report("d"), Say("bye")], "second"),
        (vec![Say("one"), Say("two"), report("d"), Say("three")], "three"),
        (vec![work(), Say("findings"), report("d"), Say("")], "findings"),
        (
            vec![
                work(),
                Say("findings"),
                Call(vec![("s", "host/set_status", json!({ "state": "waiting" }))]),
                Say("idle"),
                report("d"),
                Say(""),
            ],
            "findings",
        ),
        // What nobody says is said by the word itself.
        (vec![report("the detail"), Say("")], "the detail"),
    ];
    for (turns, expected) in table {
        let (mut world, _) = world(turns);
        let (_, run) = end(&mut world, &autonomous("1")).await;
        assert_eq!(run.result.as_deref(), Some(expected));
        assert_eq!(run.stop_reason, Some(StopReason::Done));
    }
}

#[tokio::test]
async fn c_010_the_tool_may_have_a_name_and_a_description_of_its_own() {
    let mut world = World::new();
    let planner = ClosurePlanner::new(|input: PlanInput, scope: Arc<taskrun::scope::CallScope>| {
        let planned = match input.run.turn {
            1 => {
                let tools = scope.tools().iter();
                let named = tools.filter(|tool| tool.name == "host/finish");
                let told: Vec<_> = named.map(|tool| tool.description.clone()).collect();
                assert_eq!(told, ["Ends it."]);
                call_of(&[("d", "host/finish", r#"{"detail":"it"}"#)])
            }
            _ => answer(""),
        };
        async move { planned }
    });
    world.agent_with("a", planner, |agent| {
        let done = Some(DoneTool {
            name: Some("finish".to_owned()),
            description: Some("Ends it.".to_owned()),
        });
        agent.autonomous = Some(AutonomySettings { done, ..AutonomySettings::default() });
    });
    let (_, run) = end(&mut world, &autonomous("1")).await;
    assert_eq!((run.detail.as_deref(), run.stop_reason), (Some("it"), Some(StopReason::Done)));
}

#[tokio::test]
async fn c_014_of_a_turn_with_the_word_what_comes_before_it_is_done_and_what_comes_after_is_not() {
    let calls = vec![
        ("b", "t/f", json!({})),
        ("d", "host/report_done", json!({ "detail": "it" })),
        ("a", "t/f", json!({})),
    ];
    // What it asks for later is not done either.
    let (mut world, _) = world(vec![Call(calls), work()]);
    let (host, run) = end(&mut world, &autonomous("1")).await;
    assert_eq!(run.stop_reason, Some(StopReason::Done));
    let results = results(&host).await;
    let skipped = ("done: skipped: done".to_owned(), Some(Refusal::Done));
    assert_eq!(results.iter().filter(|result| **result == skipped).count(), 2, "{results:?}");
    assert!(results.contains(&("1".to_owned(), None)), "{results:?}");
}

#[tokio::test]
async fn c_014_what_comes_after_a_word_that_is_rejected_is_done() {
    let calls = vec![
        ("r", "host/report_done", json!({})),
        ("b", "t/f", json!({})),
        ("d", "host/report_done", json!({ "detail": "it" })),
        ("a", "t/f", json!({})),
    ];
    let (mut world, _) = world(vec![Call(calls), Say("end")]);
    let (host, run) = end(&mut world, &autonomous("1")).await;
    assert_eq!((run.stop_reason, run.detail.as_deref()), (Some(StopReason::Done), Some("it")));
    let results = results(&host).await;
    let refused: Vec<_> = results.iter().filter(|(_, refused)| refused.is_some()).collect();
    assert_eq!(refused, [&("done: skipped: done".to_owned(), Some(Refusal::Done))], "{results:?}");
    assert!(results.contains(&("1".to_owned(), None)), "{results:?}");
}

pub(super) fn bounded(schema: Option<&str>) -> AutonomySettings {
    AutonomySettings {
        mode: Some(AutonomyMode::Bounded),
        result_schema: schema.map(str::to_owned),
        ..AutonomySettings::default()
    }
}

#[tokio::test]
async fn c_013_a_bounded_run_ends_with_the_first_answer_that_calls_nothing() {
    let (mut world, _) = world_with(vec![work(), Say("here it is")], |agent| {
        agent.autonomous = Some(bounded(None));
    });
    let (_, run) = end(&mut world, &autonomous("1")).await;
    let expected = (Status::Completed, Some(StopReason::NaturalEnd), Some(1), Some("here it is"));
    assert_eq!(outcome(&run), expected);
    assert_eq!(run.detail.as_deref(), Some("here it is"));
}

#[tokio::test]
async fn c_052_the_status_tool_acknowledges_and_rejects_in_words() {
    let status = |given: Value| Call(vec![("s", "host/set_status", given)]);
    let turns = vec![
        status(json!({ "state": " working ", "detail": " hard " })),
        status(json!({ "state": "  " })),
        status(json!({ "state": "asleep" })),
        report("it"),
        Say("end"),
    ];
    let (mut world, _) = world_with(turns, |agent| {
        let states = vec!["working".to_owned(), "waiting".to_owned()];
        agent.autonomous = Some(AutonomySettings { states, ..AutonomySettings::default() });
    });
    let (host, run) = end(&mut world, &autonomous("1")).await;
    let words: Vec<String> = results(&host).await.into_iter().map(|(words, _)| words).collect();
    let unknown = r#""rejected: state \"asleep\" is not in the allowed set: working, waiting""#;
    assert_eq!(words[..3], ["\"ok\"", "\"rejected: state is required\"", unknown]);
    let reported = run.reported.expect("the last one that was taken");
    assert_eq!((&*reported.state, reported.detail.as_deref()), ("working", Some("hard")));
}

#[tokio::test]
async fn the_finalizer_hears_the_result_that_the_run_is_done_with() {
    let mut world = World::new();
    let turns = [report("it"), Say("all done!")];
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        let planned = played(&turns, &input);
        async move { planned }
    });
    world.agent(
        "a",
        planner.finalizer(|input, _| async move {
            let heard = format!("{} {:?}", input.ending.stop_reason, input.result);
            Ok(Ok(Labels::from([("heard".to_owned(), heard)])))
        }),
    );
    let (_, run) = end(&mut world, &autonomous("1")).await;
    assert_eq!(run.metadata["heard"], "done Some(\"all done!\")");
    assert_eq!(run.result.as_deref(), Some("all done!"));
}

#[tokio::test]
async fn c_075_a_run_beneath_another_one_is_bounded_where_its_policy_says_how_it_goes_on() {
    let (mut world, _) = world_with(vec![Say("found")], |agent| {
        agent.autonomous = Some(AutonomySettings::default());
    });
    let parent =
        ClosurePlanner::new(|input: PlanInput, scope: Arc<taskrun::scope::CallScope>| async move {
            if input.resume.is_some() {
                return answer("end");
            }
            let spawned = scope.ask(super::common::spawning("a", "x")).await.expect("accepted");
            super::common::waiting_for(vec![spawned.id])
        });
    world.agent("parent", parent);
    let host = world.start().await;
    host.spawn(&named("1", "parent")).await;
    host.end("1").await;
    let tree = host.client().tree("1").await.expect("there");
    let child = RunView::from(&tree.descendants[0]);
    assert_eq!(outcome(&child).1, Some(StopReason::NaturalEnd));
    assert_eq!(child.rounds, Some(1));
}

#[tokio::test]
async fn more_rounds_than_the_policy_allows_and_a_schema_that_is_none_are_refused() {
    let (mut world, _) = world(Vec::new());
    let host = world.start().await;
    let refused = |asked: AutonomyRequest| {
        let request = SpawnRequest { autonomous: Some(asked), ..request("a", "x") };
        let client = host.client();
        async move { client.spawn(&request).await.expect_err("refused").to_string() }
    };
    let rounds = AutonomyRequest { rounds: Some(51), ..AutonomyRequest::default() };
    let text = refused(rounds).await;
    assert!(text.contains("51 rounds are more than the 50 of agent a"), "{text}");
    let schema = Some("{\"type\": 1}".to_owned());
    let text = refused(AutonomyRequest { result_schema: schema, ..Default::default() }).await;
    assert!(text.contains("is not a usable JSON schema"), "{text}");
    let empty = AutonomyRequest { continuation: Some(" ".to_owned()), ..Default::default() };
    assert!(refused(empty).await.contains("the prompt to go on"));
    let entry =
        SpawnRequest { class: taskrun_journal::spec::RunClass::Heartbeat, ..autonomous("1") };
    let error = host.client().spawn(&entry).await.expect_err("refused");
    assert!(matches!(error, ControllerError::Invalid { .. }));
}

#[tokio::test]
async fn cs_23_what_is_injected_during_a_round_stands_after_the_prompt_of_the_next() {
    let (mut world, gates) = (World::new(), Gates::new());
    let inside = Arc::clone(&gates);
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        let gates = Arc::clone(&inside);
        async move {
            match input.run.turn {
                1 => {
                    let _inside = gates.pass("1").await;
                    answer("one")
                }
                2 => {
                    let said: Vec<_> = input.messages.iter().map(|m| m.joined_text()).collect();
                    assert_eq!(said, ["x", "one", "continue", "[Inbox]\nhurry"]);
                    call_of(&[("d", "host/report_done", r#"{"detail":"it"}"#)])
                }
                _ => answer("end"),
            }
        }
    });
    world.agent("a", planner);
    told_at_its_gate(&mut world, &gates, "hurry").await;
}

/// Runs an agent that says that it is done, and tells it something while it stands at gate `1`.
pub(super) async fn told_at_its_gate(world: &mut World, gates: &Arc<Gates>, text: &str) {
    let host = world.start().await;
    host.spawn(&autonomous("1")).await;
    gates.have_come(1).await;
    host.client().inject("1", text).await.expect("taken");
    gates.open("1");
    let run = host.end("1").await;
    assert_eq!(RunView::from(&run).stop_reason, Some(StopReason::Done), "{:?}", run.ending());
    check_journal(&host.journal("1").await);
}

#[tokio::test]
async fn cs_07_a_run_that_is_canceled_in_a_turn_ends_as_canceled_under_both_names() {
    let mut world = World::new();
    world.agent("a", ClosurePlanner::new(|_, _| std::future::pending()));
    let host = world.start().await;
    host.spawn(&autonomous("1")).await;
    host.reach("1", Status::Running).await;
    world.clock.advance(std::time::Duration::from_millis(50));
    host.client().cancel("1", None).await.expect("canceled");
    let run = RunView::from(&host.end("1").await);
    assert_eq!(
        (run.status, run.stop_reason),
        (Status::Canceled, Some(StopReason::CanceledByOwner))
    );
    assert_eq!(run.stop_reason_alias, Some("context_cancelled"));
    assert_eq!((run.turns, run.result), (0, None), "the turn came to nothing");
    check_journal(&host.journal("1").await);
}
