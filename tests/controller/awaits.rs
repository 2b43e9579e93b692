//! The barrier of what a planner asks: its order, its time-outs, and what is refused at its door
//! (L-055 to L-070, M-33).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use taskrun::ports::planner::{Decision, PlanInput};
use taskrun_journal::event::Event;
use taskrun_journal::message::{Bounds, ToolError};
use taskrun_journal::question::{
    ANSWER_BYTES_MAX, Answer, Ask, AwaitItem, ExternalResult, ExternalTool, Question,
};
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::tool::{ToolFailure, ToolOutcome};

use crate::common::{check_journal, count, words_of};
use crate::native::{ClosurePlanner, Native, World, answer, clarification, decided, request};

const SECOND: Duration = Duration::from_secs(1);

fn question(id: &str, options: &[&str]) -> Question {
    Question {
        id: id.into(),
        prompt: format!("{id}?"),
        options: options.iter().map(|one| ((*one).to_owned(), (*one).to_owned())).collect(),
        allow_multiple: false,
    }
}

fn form(id: &str, questions: Vec<Question>) -> AwaitItem {
    AwaitItem::Questions {
        id: id.into(),
        tool_name: "t/ask".into(),
        tool_call_id: format!("call-{id}"),
        payload: "{}".into(),
        title: None,
        questions,
    }
}

pub(super) fn external(id: &str, calls: &[&str]) -> AwaitItem {
    let call = |call: &&str| ExternalTool {
        name: "out/side".into(),
        tool_call_id: (*call).into(),
        payload: "{}".into(),
    };
    AwaitItem::ExternalTools { id: id.into(), items: calls.iter().map(call).collect() }
}

fn text(text: &str) -> Answer {
    Answer::Text(text.into())
}

fn choices(given: &[(&str, &str)]) -> Answer {
    let one = |(id, chosen): &(&str, &str)| ((*id).to_owned(), vec![(*chosen).to_owned()]);
    Answer::Choices(given.iter().map(one).collect())
}

fn results(given: &[(&str, &str)]) -> Answer {
    let one =
        |(id, value): &(&str, &str)| ((*id).into(), ToolOutcome::Value((*value).into()).into());
    Answer::Results(given.iter().map(one).collect())
}

/// An agent that asks for these and then answers with all that it was told.
pub(super) fn asking(asks: Vec<Ask>) -> (ClosurePlanner, Arc<AtomicU32>) {
    let steps = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&steps);
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        let asks = asks.clone();
        async move {
            let Some(resume) = &input.resume else { return decided(Decision::Await(asks)) };
            let said = input.messages.iter().map(|one| one.joined_text());
            let mut told: Vec<_> = said.filter(|text| !text.is_empty()).collect();
            told.extend(resume.tool_outputs.iter().map(|output| words_of(&output.outcome)));
            answer(&told.join(" | "))
        }
    });
    (planner, steps)
}

async fn give(host: &Native, id: &str, item: &str, answer: Answer) -> Result<(), String> {
    let given = host.client().named("me").answer(id, Some(item), answer).await;
    given.map(|_| ()).map_err(|error| format!("{}: {error}", error.code()))
}

#[tokio::test]
async fn ls_31_a_barrier_of_all_kinds_is_answered_in_reverse_and_told_in_order() {
    let mut world = World::new();
    let asks = vec![
        clarification("c").into(),
        form("f", vec![question("one", &["a", "b"]), question("two", &[])]).into(),
        external("e", &["x", "y"]).into(),
    ];
    let (planner, steps) = asking(asks);
    world.agent("a", planner);
    let host = world.start().await;
    let id = host.spawn(&request("a", "task")).await;
    let run = host.reach(&id, Status::Blocked).await;
    let kinds = host.kinds(&id).await;
    let asked: Vec<_> = kinds.iter().filter(|kind| ["asked", "blocked"].contains(kind)).collect();
    assert_eq!(asked, [&"asked", &"asked", &"asked", &"blocked"], "prompts come first");
    let open: Vec<_> = run.state.awaits.iter().map(|one| (one.id.as_str(), one.on)).collect();
    let (input, outside) = (BlockedOn::Input, BlockedOn::ExternalTools);
    assert_eq!(open, [("c", input), ("f", input), ("e", outside)]);

    give(&host, &id, "e", results(&[("y", "\"of y\""), ("x", "\"of x\"")])).await.expect("taken");
    give(&host, &id, "f", choices(&[("one", "b"), ("two", "free")])).await.expect("taken");
    assert_eq!(steps.load(Ordering::SeqCst), 1, "nothing is planned before the last answer");
    give(&host, &id, "c", text("this")).await.expect("taken");
    let run = host.end(&id).await;
    let told = run.state.reply.result().expect("an answer");
    let form = r#"{"one":["b"],"two":["free"]}"#;
    assert_eq!(told, format!("task | this | {form} | \"of x\" | \"of y\""));
    assert_eq!(steps.load(Ordering::SeqCst), 2, "exactly one further step");
    let journal = host.journal(&id).await;
    assert_eq!((count(&journal, "blocked"), count(&journal, "resumed")), (1, 1));
    check_journal(&journal);
}

#[tokio::test]
async fn l_062_an_answer_that_does_not_fit_is_refused_to_whoever_gave_it() {
    let mut world = World::new();
    let asks = vec![
        clarification("c").into(),
        form("f", vec![question("one", &["a", "b"])]).into(),
        external("e", &["x", "y"]).into(),
    ];
    let (planner, steps) = asking(asks);
    world.agent("a", planner);
    let host = world.start().await;
    let id = host.spawn(&request("a", "task")).await;
    host.reach(&id, Status::Blocked).await;
    let before = host.get(&id).await;
    let long = "x".repeat(ANSWER_BYTES_MAX + 1);
    let table: &[(&str, Answer, &str)] = &[
        ("c", text(""), "invalid: the answer is empty"),
        ("c", text(&long), "invalid: the answer has more than 65536 bytes"),
        ("c", results(&[("x", "1")]), "invalid: a clarification needs another kind of answer"),
        ("f", Answer::Choices(BTreeMap::new()), "invalid: question \"one\" is not answered"),
        ("f", choices(&[("two", "a")]), "invalid: there is no question \"two\""),
        ("e", results(&[]), "invalid: results are needed for x, y, given were "),
        ("e", results(&[("x", "1")]), "invalid: results are needed for x, y, given were x"),
        (
            "e",
            results(&[("x", "1"), ("y", "1"), ("z", "1")]),
            "invalid: results are needed for x, y, given were x, y, z",
        ),
        (
            "e",
            Answer::Confirmed(true),
            "invalid: an external tool call needs another kind of answer",
        ),
        ("nothing", text("x"), "not-awaitable"),
    ];
    for (item, given, reason) in table {
        let error = give(&host, &id, item, given.clone()).await.expect_err("refused");
        assert!(error.starts_with(reason), "{item}: {error}");
    }
    let nobody = host.client().named(" ").answer(&id, Some("c"), text("x")).await;
    assert_eq!(nobody.err().map(|error| error.code()), Some("invalid"), "somebody has to give it");
    assert_eq!(host.get(&id).await, before, "the run stays as it was");
    assert_eq!(steps.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn l_065_results_from_outside_are_checked_like_those_of_tools() {
    let mut world = World::new();
    let (planner, _) = asking(vec![external("e", &["x", "y"]).into()]);
    world.agent("a", planner);
    let host = world.start().await;
    let id = host.spawn(&request("a", "task")).await;
    host.reach(&id, Status::Blocked).await;
    let broken = give(&host, &id, "e", results(&[("x", "{"), ("y", "1")])).await;
    let error = broken.expect_err("refused");
    assert!(error.starts_with("invalid: the result of x is not JSON"), "{error}");
    let failure = ToolFailure { error: ToolError::coded("gone", "it is gone"), retry_hint: None };
    let failed = || ToolOutcome::Failure(failure.clone());
    let part = |continuation: Option<&str>| ExternalResult {
        outcome: ToolOutcome::Value("1".into()),
        bounds: Some(Bounds {
            returned: 1,
            total: Some(9),
            truncated: true,
            continuation: continuation.map(str::to_owned),
            refinement: None,
        }),
    };
    let part_of_failure = ExternalResult { outcome: failed(), ..part(Some("{}")) };
    for (x, reason) in [
        (part(None), "the result of x is truncated and does not say how to go on"),
        (part_of_failure, "the result of x is a failure, of which there is no part"),
    ] {
        let given = BTreeMap::from([("x".to_owned(), x), ("y".to_owned(), failed().into())]);
        let refused = give(&host, &id, "e", Answer::Results(given)).await.expect_err("refused");
        assert!(refused.starts_with(&format!("invalid: {reason}")), "{refused}");
    }
    let mixed = BTreeMap::from([
        ("x".to_owned(), part(Some("{\"page\":2}"))),
        ("y".to_owned(), failed().into()),
    ]);
    give(&host, &id, "e", Answer::Results(mixed)).await.expect("taken");
    let run = host.end(&id).await;
    let advice =
        "The result of out/side is a part: 1 of 9 items. To go on, call it with {\"page\":2}.";
    let told = format!("task | {advice} | 1 | gone: it is gone");
    assert_eq!(run.state.reply.result(), Some(told));
}

#[tokio::test]
async fn l_066_a_tool_outside_that_always_fails_ends_the_run_at_the_cap() {
    let mut world = World::new();
    let planner = ClosurePlanner::new(|input: PlanInput, _| async move {
        if input.resume.as_ref().is_some_and(|resume| resume.finalize.is_some()) {
            return answer("it does not work");
        }
        let id = format!("e{}", input.run.turn);
        decided(Decision::Await(vec![external(&id, &[&format!("x{}", input.run.turn)]).into()]))
    });
    world.agent_with("a", planner, |agent| agent.limits.tool_failures = 3);
    let host = world.start().await;
    let id = host.spawn(&request("a", "task")).await;
    for turn in 1..=3 {
        let item = format!("e{turn}");
        let asks = |run: &Run| run.state.awaits.iter().any(|one| one.id == item && !one.answered);
        host.until(&id, "asks again", asks).await;
        let error = ToolError::coded("gone", "it is gone");
        let failure = ToolOutcome::Failure(ToolFailure { error, retry_hint: None });
        let given = Answer::Results(BTreeMap::from([(format!("x{turn}"), failure.into())]));
        give(&host, &id, &item, given).await.expect("taken");
    }
    let run = host.end(&id).await;
    let ending = run.ending().expect("it ended");
    assert_eq!((ending.stop_reason, ending.partial), (StopReason::FailureCap, true));
    assert_eq!(run.state.reply.result().as_deref(), Some("it does not work"));
    assert_eq!(run.state.turns, 4, "three questions, and the last word");
}

#[tokio::test]
async fn l_056_a_barrier_that_nobody_could_answer_fails_the_run() {
    let with_default = |default| Ask {
        timeout: Some(SECOND),
        default: Some(default),
        ..Ask::from(form("f", vec![question("one", &["a"])]))
    };
    let table: Vec<(&str, Vec<Ask>, &str)> = vec![
        ("empty", vec![], "named nothing to wait for"),
        ("twice", vec![clarification("c").into(), clarification("c").into()], "\"c\" twice"),
        ("calls", vec![external("e", &["x", "x"]).into()], "\"x\" twice"),
        ("nameless", vec![external("e", &[""]).into()], "has 1 to 256 bytes"),
        (
            "questions",
            vec![form("f", vec![question("q", &[]), question("q", &[])]).into()],
            "\"q\" twice",
        ),
        ("options", vec![form("f", vec![question("q", &["a", "a"])]).into()], "\"a\" twice"),
        ("default", vec![with_default(choices(&[("one", "b")]))], "default answer to \"f\""),
        ("kind", vec![with_default(text("a"))], "needs another kind of answer"),
    ];
    let mut world = World::new();
    for (name, asks, _) in &table {
        world.agent(name, asking(asks.clone()).0);
    }
    let host = world.start().await;
    for (name, _, reason) in &table {
        let id = host.spawn(&request(name, "x")).await;
        let run = host.end(&id).await;
        let view = RunView::from(&run);
        assert_eq!(view.stop_reason, Some(StopReason::PlannerError), "{name}");
        let error = view.error.unwrap_or_default();
        assert!(error.contains(reason), "{name}: {error}");
    }
}

#[tokio::test]
async fn m_33_what_nobody_answers_in_time_has_its_default_or_says_so() {
    let mut world = World::new();
    let timed = |what: AwaitItem, seconds: u32, default| Ask {
        what,
        timeout: Some(SECOND * seconds),
        default,
    };
    let asks = vec![
        timed(clarification("c"), 10, Some(text("the default"))),
        timed(clarification("d"), 20, None),
        timed(form("f", vec![question("one", &["a", "b"])]), 30, Some(choices(&[("one", "a")]))),
        timed(external("e", &["x"]), 40, None),
    ];
    let (planner, steps) = asking(asks);
    world.agent("a", planner);
    let host = world.start().await;
    let id = host.spawn(&request("a", "task")).await;
    host.reach(&id, Status::Blocked).await;
    world.clock.advance(9 * SECOND);
    host.settle().await;
    assert_eq!(open(&host, &id).await, ["c", "d", "f", "e"]);
    for left in [&["d", "f", "e"][..], &["f", "e"], &["e"]] {
        world.clock.advance(if left.len() == 3 { SECOND } else { 10 * SECOND });
        let wanted = left.len();
        host.until(&id, "has one answer more", move |run| {
            let open = run.state.awaits.iter().filter(|one| !one.answered).count();
            run.status() == Status::Blocked && open == wanted
        })
        .await;
        assert_eq!(open(&host, &id).await, left);
    }
    assert_eq!(steps.load(Ordering::SeqCst), 1);
    world.clock.advance(10 * SECOND);
    let run = host.end(&id).await;
    let told = run.state.reply.result().expect("an answer");
    let nobody = "nobody answered in time";
    let expected =
        format!("task | the default | ({nobody}: d?) | {{\"one\":[\"a\"]}} | timeout: {nobody}");
    assert_eq!(told, expected);
    let mut answers = Vec::new();
    for recorded in host.journal(&id).await {
        if let Event::Answered { item, by, by_default, .. } = recorded.event {
            answers.push((item, by, by_default));
        }
    }
    let by_host = |item: &str, by_default| (item.to_owned(), "host".to_owned(), by_default);
    let expected = [("c", true), ("d", false), ("f", true), ("e", false)];
    assert_eq!(answers, expected.map(|(item, by_default)| by_host(item, by_default)));
}

#[tokio::test]
async fn m_33_a_time_out_of_an_answer_outlives_its_host_and_an_answer_in_time_counts() {
    let mut world = World::new();
    let default = Some(text("the default"));
    let ask = |id, default| Ask { what: clarification(id), timeout: Some(60 * SECOND), default };
    let (planner, _) = asking(vec![ask("c", default), ask("d", None)]);
    world.agent("a", planner);
    let host = world.start().await;
    let id = host.spawn(&request("a", "task")).await;
    host.reach(&id, Status::Blocked).await;
    give(&host, &id, "d", text("in time")).await.expect("taken");
    world.kill(host).await;
    world.clock.advance(60 * SECOND);
    let host = world.start().await;
    let run = host.end(&id).await;
    assert_eq!(run.state.reply.result().as_deref(), Some("task | the default | in time"));
    check_journal(&host.journal(&id).await);
}

async fn open(host: &Native, id: &str) -> Vec<String> {
    let asks = host.client().asks(id).await.expect("there");
    asks.iter().map(|item| item.id().to_owned()).collect()
}
