//! The tools that a request takes away from its run (L-024).

use std::sync::{Arc, Mutex};

use taskrun::error::ControllerError;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::{Event, Refusal};
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::run::Run;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::common::{beneath, following, named};
use crate::native::{ClosurePlanner, ClosureTool, Native, World, answer, failed, value};

/// The longest times of calls, by the names of their tools.
type Times = Arc<Mutex<Vec<(&'static str, u64)>>>;

/// The tools `read` (tagged `look`), `drop` (tagged `look` and `danger`) and `bad`, which fails; an
/// agent that says what tools it has, and one that calls all of them, turn after turn.
fn world() -> (World, Times) {
    let (mut world, times) = (World::new(), Times::default());
    for (name, tags) in [("read", &["look"][..]), ("drop", &["look", "danger"]), ("bad", &[])] {
        let times = Arc::clone(&times);
        let tool = ClosureTool::new("f", ToolHints::default(), move |_, scope| {
            let time = (name, scope.deadline().as_secs());
            times.lock().expect("nobody panics with it").push(time);
            async move {
                if name == "bad" {
                    let error = taskrun_journal::message::ToolError::coded("bad", "bad");
                    return Ok(Err(taskrun_journal::tool::ToolFailure { error, retry_hint: None }));
                }
                value("1")
            }
        });
        world.tool(name, InterruptionPolicy::Fail, tool.tagged(tags));
    }
    let tells = ClosurePlanner::new(|_, scope| async move {
        let tools: Vec<_> = scope.tools().iter().map(|tool| tool.name.as_str()).collect();
        answer(format!("has {}", tools.join(" ")).trim())
    });
    world.agent("tells", tells);
    world.agent("calls", following(vec![vec![("1", "read/f", "{}"), ("2", "drop/f", "{}")]]));
    let turns = ["1", "2", "3"].map(|id| vec![(id, "bad/f", "{}")]);
    world.agent("fails", following(turns.into()));
    let waits = ClosurePlanner::new(|_, scope| async move {
        scope.stop().asked().await;
        failed(Some("canceled"), "canceled")
    });
    world.agent("waits", waits.hearing());
    (world, times)
}

fn with(request: SpawnRequest, narrow: Narrowing) -> SpawnRequest {
    SpawnRequest { narrow, ..request }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

async fn said(host: &Native, request: &SpawnRequest) -> String {
    let id = host.spawn(request).await;
    host.end(&id).await.state.reply.result().expect("an answer")
}

async fn ended(host: &Native, id: &str, agent: &str, narrow: Narrowing) -> Run {
    host.spawn(&with(named(id, agent), narrow)).await;
    host.end(id).await
}

#[tokio::test]
async fn l_024_tags_select_and_take_away_for_the_run_and_all_beneath() {
    let (mut world, _) = world();
    let host = world.start().await;
    let looks = Narrowing { only_tags: Some(words(&["look"])), ..Narrowing::default() };
    let harmless = Narrowing { deny_tags: words(&["danger"]), ..Narrowing::default() };
    let nothing = Narrowing { only_tags: Some(Vec::new()), ..Narrowing::default() };
    for (id, narrow, expected) in [
        ("all", Narrowing::default(), "has bad/f drop/f read/f"),
        ("looks", looks, "has drop/f read/f"),
        ("harmless", harmless.clone(), "has bad/f read/f"),
        ("none", nothing, "has"),
    ] {
        assert_eq!(said(&host, &with(named(id, "tells"), narrow)).await, expected);
    }
    host.spawn(&with(named("top", "waits"), harmless)).await;
    host.reach("top", Status::Running).await;
    let only = Narrowing { only_tags: Some(words(&["look"])), ..Narrowing::default() };
    let child = with(beneath("top", "child", "tells"), only);
    assert_eq!(said(&host, &child).await, "has read/f");
}

#[tokio::test]
async fn case_49_a_tag_that_a_tool_claims_takes_away_and_allows_nothing() {
    let (mut world, _) = world();
    let liar = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool_stated(
        "liar",
        InterruptionPolicy::Fail,
        None,
        liar.tagged(&["look", "danger", "own"]),
    );
    // What the policy states replaces what the tool says.
    let named = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    let stated = Some(words(&["look"]));
    world.tool_stated("stated", InterruptionPolicy::Fail, stated, named.tagged(&["danger"]));
    let tells = ClosurePlanner::new(|_, scope| async move {
        let tools: Vec<_> = scope.tools().iter().map(|tool| tool.name.as_str()).collect();
        answer(&format!("has {}", tools.join(" ")))
    });
    world.agent("tells_all", tells);
    let host = world.start().await;
    let looks = Narrowing { only_tags: Some(words(&["look"])), ..Narrowing::default() };
    let harmless = Narrowing { deny_tags: words(&["danger"]), ..Narrowing::default() };
    for (id, narrow, expected) in [
        ("looks", looks, "has drop/f read/f stated/f"),
        ("harmless", harmless, "has bad/f read/f stated/f"),
    ] {
        assert_eq!(
            said(&host, &with(super::common::named(id, "tells_all"), narrow)).await,
            expected
        );
    }
    let own = Narrowing { only_tags: Some(words(&["own"])), ..Narrowing::default() };
    let request = with(super::common::named("own", "tells_all"), own);
    let error = host.client().spawn(&request).await.expect_err("refused");
    let said = "only liar/f itself says that it has the tag \"own\"";
    assert!(error.to_string().contains(said), "{error}");
}

#[tokio::test]
async fn l_024_calls_of_a_run_and_of_its_turns_are_bounded_by_its_request() {
    let (mut world, times) = world();
    let host = world.start().await;
    let timeouts = [("*".to_owned(), 9_000), ("read/f".to_owned(), 7_200_000 / 2)].into();
    let short = Narrowing { timeouts, ..Narrowing::default() };
    ended(&host, "short", "calls", short).await;
    let seen = times.lock().expect("nobody panics with it").clone();
    assert_eq!(seen, [("read", 3_600), ("drop", 9)]);

    let one = Narrowing { turn_calls: Some(1), ..Narrowing::default() };
    let run = ended(&host, "one", "calls", one).await;
    assert_eq!((run.status(), run.state.tool_calls), (Status::Completed, 1));
    let refused = host.journal("one").await.into_iter().filter_map(|recorded| {
        let Event::ToolResult { output, refused, .. } = recorded.event else { return None };
        Some((output.tool_call_id, refused?))
    });
    assert_eq!(refused.collect::<Vec<_>>(), [("2".to_owned(), Refusal::Cap)]);

    let two = Narrowing { tool_failures: Some(2), ..Narrowing::default() };
    let run = ended(&host, "two", "fails", two).await;
    let reason = run.ending().map(|ending| ending.stop_reason);
    assert_eq!((reason, run.state.tool_calls), (Some(StopReason::FailureCap), 2));
}

#[tokio::test]
async fn l_024_a_request_that_would_take_nothing_or_give_something_is_refused() {
    let (mut world, _) = world();
    let host = world.start().await;
    let timeout = |pattern: &str, ms| Narrowing {
        timeouts: [(pattern.to_owned(), ms)].into(),
        ..Narrowing::default()
    };
    let cases = [
        (
            Narrowing { only_tags: Some(words(&["lok"])), ..Narrowing::default() },
            "narrow.only_tags",
            "\"lok\" is no tag",
        ),
        (timeout("raed/*", 1), "narrow.timeouts", "about no function"),
        (timeout("read/f", 0), "narrow.timeouts", "from 1ms to 1h"),
        (timeout("read/f", 3_600_001), "narrow.timeouts", "from 1ms to 1h"),
        (
            Narrowing { tool_failures: Some(0), ..Narrowing::default() },
            "narrow.tool_failures",
            "too few",
        ),
        (
            Narrowing { tool_failures: Some(9), ..Narrowing::default() },
            "narrow.tool_failures",
            "at most 8 failed tool calls",
        ),
        (
            Narrowing { deny_tags: vec!["x".to_owned(); 65], ..Narrowing::default() },
            "narrow.deny_tags",
            "more than 64",
        ),
    ];
    for (narrow, field, says) in cases {
        let refused = host.client().spawn(&with(named("r", "calls"), narrow)).await;
        let Err(ControllerError::Invalid { field: found, reason }) = refused else {
            panic!("{refused:?}")
        };
        assert!(found == field && reason.contains(says), "{found}: {reason}");
    }
}
