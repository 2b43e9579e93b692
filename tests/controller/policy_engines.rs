//! Policy engines, before planning and before calls (L-030 to L-037, M-40, M-41).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::gate::Guard;
use taskrun::ports::policy_engine::{PolicyEngine, PolicyFailure, PolicyInput};
use taskrun_journal::event::{Event, EventRecord, Refusal};
use taskrun_journal::message::{RetryHint, RetryReason, ToolError};
use taskrun_journal::ruling::{Phase, ToolRuling};
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::{ToolFailure, ToolHints, ToolOutcome};
use taskrun_policy::{InterruptionPolicy, POLICY_LABELS_MAX, Pattern, PolicyDecision, ToolLists};

use super::common::{Call, Gates, count, follow, following, named};
use crate::native::{ClosurePlanner, ClosureTool, Native, World, answer, change_code, value};

type Decide = dyn Fn(&PolicyInput) -> Result<PolicyDecision, PolicyFailure> + Send + Sync;

/// An engine that is a closure, and what it was asked.
struct Asked {
    decide: Box<Decide>,
    about: Mutex<Vec<PolicyInput>>,
}

#[async_trait]
impl PolicyEngine for Asked {
    fn name(&self) -> &str {
        "asked"
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn decide(&self, input: &PolicyInput) -> Result<PolicyDecision, PolicyFailure> {
        self.about.lock().expect("nobody panics with it").push(input.clone());
        (self.decide)(input)
    }
}

impl Asked {
    fn about(&self) -> Vec<PolicyInput> {
        self.about.lock().expect("nobody panics with it").clone()
    }
}

fn engine(
    decide: impl Fn(&PolicyInput) -> Result<PolicyDecision, PolicyFailure> + Send + Sync + 'static,
) -> Arc<Asked> {
    Arc::new(Asked { decide: Box::new(decide), about: Mutex::default() })
}

/// Never decides.
struct Hangs;

#[async_trait]
impl PolicyEngine for Hangs {
    fn name(&self) -> &str {
        "hangs"
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(100)
    }

    async fn decide(&self, _: &PolicyInput) -> Result<PolicyDecision, PolicyFailure> {
        std::future::pending().await
    }
}

fn only(tools: &[&str]) -> PolicyDecision {
    let tools = tools.iter().map(|tool| (*tool).to_owned()).collect();
    PolicyDecision { allowed_tools: Some(tools), ..PolicyDecision::default() }
}

fn patterns(texts: &[&str]) -> Vec<Pattern> {
    texts.iter().map(|text| Pattern::parse(text)).collect()
}

/// The tools of these tests, each with a function `f`: `read` and `list` with the tag `look`,
/// `drop` with the tag `danger`, and `bad`, which fails with the hint that its arguments name.
fn tools(world: &mut World) {
    for (name, tag) in [("read", "look"), ("list", "look"), ("drop", "danger")] {
        let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
        world.tool(name, InterruptionPolicy::Fail, tool.tagged(&[tag]));
    }
    let bad = ClosureTool::new("f", ToolHints::default(), |call, _| async move {
        let args: serde_json::Value = serde_json::from_str(&call.payload).expect("JSON");
        let mut hint = RetryHint::new(
            match args["why"].as_str() {
                Some("unavailable") => RetryReason::ToolUnavailable,
                Some(_) | None => RetryReason::InvalidArguments,
            },
            args["tool"].as_str().unwrap_or("f"),
        );
        hint.restrict_to_tool = args["restrict"] == true;
        let error = ToolError::coded("bad", "bad");
        Ok(Err(ToolFailure { error, retry_hint: Some(Box::new(hint)) }))
    });
    world.tool("bad", InterruptionPolicy::Fail, bad);
}

/// The tools and the calls that are left, as a planner was shown them, turn by turn.
type Seen = Arc<Mutex<Vec<(Vec<String>, Option<u32>)>>>;

/// A world with an agent that makes these calls, turn after turn, under these engines.
fn world_with(engines: Vec<Arc<dyn PolicyEngine>>, turns: Vec<Vec<Call>>) -> (World, Seen) {
    let (mut world, seen) = (World::new(), Seen::default());
    tools(&mut world);
    let noted = Arc::clone(&seen);
    let planner = ClosurePlanner::new(move |input, scope| {
        let (planned, noted) = (follow(&turns, &input), Arc::clone(&noted));
        async move {
            let tools = scope.tools().iter().map(|tool| tool.name.clone()).collect();
            let seen = (tools, scope.remaining().await.tool_calls);
            noted.lock().expect("nobody panics with it").push(seen);
            planned
        }
    });
    world.agent_with("a", planner, |agent| {
        change_code(agent, |code| code.guard = Guard { engines });
    });
    (world, seen)
}

fn shown(seen: &Seen) -> Vec<(String, Option<u32>)> {
    let seen = seen.lock().expect("nobody panics with it");
    seen.iter().map(|(tools, left)| (tools.join(" ").replace("/f", ""), *left)).collect()
}

/// The record of decisions, in a line each.
fn decisions(journal: &[EventRecord]) -> Vec<String> {
    let lines = journal.iter().filter_map(|recorded| {
        let Event::PolicyDecision { capability, subject, rule, decided, told: _ } = &recorded.event
        else {
            return None;
        };
        let decided = decided.as_deref()?;
        assert_eq!(capability, "tools");
        let before = match decided.before {
            Phase::Plan => "plan",
            Phase::Calls => "calls",
        };
        Some(format!("{subject} {before}: {decided} ({rule})"))
    });
    lines.collect()
}

/// Ids of calls and why they were refused, in the order of the journal.
fn refusals(journal: &[EventRecord]) -> Vec<(String, Refusal, String)> {
    let refused = journal.iter().filter_map(|recorded| {
        let Event::ToolResult { output, refused: Some(refusal), .. } = &recorded.event else {
            return None;
        };
        let ToolOutcome::Failure(failure) = &output.outcome else { return None };
        Some((output.tool_call_id.clone(), *refusal, failure.error.message.clone()))
    });
    refused.collect()
}

async fn ended(world: &mut World) -> (Native, Vec<EventRecord>) {
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    host.end("1").await;
    let journal = host.journal("1").await;
    (host, journal)
}

#[tokio::test]
async fn l_032_a_planner_sees_the_tools_that_lists_leave_and_a_call_of_another_is_refused() {
    let lists = ToolLists {
        name: "policy (x:1:1)".to_owned(),
        allow: Some(patterns(&["drop/*", "bad/f"])),
        allow_tags: Some(vec!["look".to_owned()]),
        block: patterns(&["list/f"]),
        block_tags: vec!["danger".to_owned()],
        hints: false,
    };
    let turns = vec![vec![("1", "drop/f", "{}"), ("2", "read/f", "{}"), ("3", "none/f", "{}")]];
    let (mut world, seen) = world_with(vec![Arc::new(lists)], turns);
    let (host, journal) = ended(&mut world).await;
    assert_eq!(host.get("1").await.status(), Status::Completed);
    let (tools, left) = ("bad read".to_owned(), Some(40));
    assert_eq!(shown(&seen), [(tools.clone(), left), (tools, Some(39))]);
    let refusals = refusals(&journal);
    let (id, refusal, text) = &refusals[0];
    assert_eq!((id.as_str(), *refusal), ("1", Refusal::Denied));
    assert_eq!(text, "denied: policy: drop/f may not be called in this turn");
    assert_eq!((refusals[1].0.as_str(), refusals[1].1), ("3", Refusal::Unavailable));
    assert_eq!(count(&journal, "tool_call_scheduled"), 1);
    // Said once: it stands until something else is decided.
    assert_eq!(decisions(&journal), ["turn 1 plan: only bad/f, read/f (policy (x:1:1))"]);
}

#[tokio::test]
async fn l_032_a_hint_that_wants_the_same_tool_leaves_it_and_one_call_for_one_turn() {
    let restrict = r#"{"restrict":true}"#;
    let turns = vec![
        vec![("1", "bad/f", restrict), ("2", "read/f", "{}")],
        vec![("3", "read/f", "{}"), ("4", "bad/f", "{}"), ("5", "bad/f", "{}")],
        vec![("6", "read/f", "{}")],
    ];
    let lists = ToolLists { name: "lists".to_owned(), hints: true, ..ToolLists::default() };
    let (mut world, seen) = world_with(vec![Arc::new(lists)], turns);
    let (_host, journal) = ended(&mut world).await;
    let all = "bad drop list read".to_owned();
    let expected = [(all.clone(), 40), ("bad".to_owned(), 1), (all.clone(), 37), (all, 36)];
    assert_eq!(shown(&seen), expected.map(|(tools, left)| (tools, Some(left))));
    let refusals = refusals(&journal);
    let found: Vec<_> = refusals.iter().map(|(id, why, _)| (id.as_str(), *why)).collect();
    assert_eq!(found, [("3", Refusal::Denied), ("5", Refusal::Cap)]);
    assert_eq!(refusals[1].2, "skipped: cap: no tool calls are left in this turn");
    let expected =
        ["turn 2 plan: only bad/f; 1 tool call (lists)", "turn 3 plan: all tools (lists)"];
    assert_eq!(decisions(&journal), expected);
}

#[tokio::test]
async fn l_032_a_tool_that_is_not_available_is_left_out_for_one_turn() {
    let gone = r#"{"why":"unavailable","tool":"list/f"}"#;
    let stray = r#"{"why":"x","tool":"none/f","restrict":true}"#;
    let turns =
        vec![vec![("1", "bad/f", gone)], vec![("2", "bad/f", stray)], vec![("3", "read/f", "{}")]];
    let lists = ToolLists { name: "lists".to_owned(), hints: true, ..ToolLists::default() };
    let (mut world, seen) = world_with(vec![Arc::new(lists)], turns);
    ended(&mut world).await;
    let tools: Vec<_> = shown(&seen).into_iter().map(|(tools, _)| tools).collect();
    let all = "bad drop list read";
    // A hint about a tool that is not there takes nothing from the others.
    assert_eq!(tools, [all, "bad drop read", all, all]);
}

#[tokio::test]
async fn l_031_disabled_tools_are_refused_and_the_second_time_in_a_row_is_the_last() {
    let disable = engine(|_| Ok(PolicyDecision { disable_tools: true, ..Default::default() }));
    let call = |id: &'static str| vec![(id, "read/f", "{}")];
    let turns = vec![call("1"), call("2"), call("3")];
    let (mut world, seen) = world_with(vec![disable], turns);
    let (host, journal) = ended(&mut world).await;
    let run = host.get("1").await;
    assert_eq!(run.ending().map(|ending| ending.stop_reason), Some(StopReason::FailureCap));
    let refusals = refusals(&journal);
    assert_eq!(refusals[0].2, "denied: policy: tool execution is disabled by policy");
    let denied = refusals.iter().filter(|(_, why, _)| *why == Refusal::Denied).count();
    assert_eq!((denied, shown(&seen)[0].0.as_str()), (2, ""));
    assert_eq!(decisions(&journal), ["turn 1 plan: tools disabled (asked)"]);
}

#[tokio::test]
async fn l_031_an_empty_list_is_no_tool_and_a_cap_may_be_none() {
    let empty = engine(|_| Ok(only(&[])));
    let (mut world, seen) = world_with(vec![empty], vec![vec![("1", "read/f", "{}")]]);
    let (host, journal) = ended(&mut world).await;
    assert_eq!(host.get("1").await.status(), Status::Completed, "it is told, and goes on");
    assert_eq!((shown(&seen)[0].0.as_str(), refusals(&journal)[0].1), ("", Refusal::Denied));

    let none = engine(|_| Ok(PolicyDecision { tool_calls: Some(0), ..Default::default() }));
    let (mut world, seen) = world_with(vec![none], vec![vec![("1", "read/f", "{}")]]);
    let (host, journal) = ended(&mut world).await;
    assert_eq!(host.get("1").await.status(), Status::Completed);
    assert_eq!((shown(&seen)[0].1, refusals(&journal)[0].1), (Some(0), Refusal::Cap));
}

#[tokio::test]
async fn l_030_an_engine_is_told_what_it_decides_about() {
    let seen = engine(|input| {
        let labels = [("turn".to_owned(), input.run.turn.to_string())].into();
        Ok(PolicyDecision { labels, ..PolicyDecision::default() })
    });
    let hinted = ("1", "bad/f", r#"{"restrict":true}"#);
    let turns = vec![vec![hinted, ("2", "read/f", "{}")], vec![("3", "read/f", "{}")]];
    let (mut world, _) = world_with(vec![seen.clone()], turns);
    let (_host, journal) = ended(&mut world).await;
    let about = seen.about();
    let told: Vec<_> = about
        .iter()
        .map(|input| {
            let requested: Vec<_> = input.requested.iter().map(|one| one.name.as_str()).collect();
            let hints: Vec<_> = input.hints.iter().map(|hint| hint.tool.as_str()).collect();
            let label = input.labels.get("turn").cloned().unwrap_or_default();
            (input.run.turn, input.phase, requested, hints, input.remaining.tool_calls, label)
        })
        .collect();
    let (plan, calls, text) = (Phase::Plan, Phase::Calls, |text: &str| text.to_owned());
    let expected = [
        (1, plan, vec![], vec![], Some(40), text("")),
        (1, calls, vec!["bad/f", "read/f"], vec![], Some(40), text("1")),
        (2, plan, vec![], vec!["bad/f"], Some(38), text("1")),
        (2, calls, vec!["read/f"], vec!["bad/f"], Some(38), text("2")),
        (3, plan, vec![], vec![], Some(37), text("2")),
    ];
    assert_eq!(told, expected);
    assert!(about.iter().all(|input| input.tools.len() == 4));
    assert_eq!(decisions(&journal).len(), 3, "a label is said once");
}

#[tokio::test]
async fn l_030_what_was_decided_on_is_decided_about_again() {
    let later = engine(|input| match input.phase {
        Phase::Plan => Ok(PolicyDecision::default()),
        Phase::Calls => Ok(only(&["list/f"])),
    });
    let turns =
        vec![vec![("1", "read/f", "{}"), ("2", "list/f", "{}")], vec![("3", "list/f", "{}")]];
    let (mut world, seen) = world_with(vec![later], turns);
    let (_host, journal) = ended(&mut world).await;
    assert_eq!(shown(&seen)[0].0, "bad drop list read");
    let refusals = refusals(&journal);
    assert_eq!((refusals.len(), refusals[0].0.as_str()), (1, "1"));
    assert_eq!(decisions(&journal), ["turn 1 calls: only list/f (asked)"], "only what refuses");
}

#[tokio::test]
async fn l_030_each_engine_has_to_leave_a_tool() {
    let one = engine(|_| Ok(PolicyDecision { tool_calls: Some(3), ..only(&["read/f", "list/f"]) }));
    let other = engine(|_| Ok(PolicyDecision { tool_calls: Some(5), ..only(&["list/f", "x/y"]) }));
    let (mut world, seen) = world_with(vec![one, other], Vec::new());
    ended(&mut world).await;
    assert_eq!(shown(&seen), [("list".to_owned(), Some(3))]);
}

#[tokio::test]
async fn l_030_an_engine_that_does_not_decide_leaves_no_tool() {
    let failing = || engine(|_| Err(PolicyFailure("no idea".to_owned())));
    let wordy = || {
        engine(|_| {
            let labels = (0..=POLICY_LABELS_MAX).map(|n| (n.to_string(), String::new())).collect();
            Ok(PolicyDecision { labels, ..PolicyDecision::default() })
        })
    };
    let panics = || engine(|_| panic!("a mistake"));
    let cases: [(Arc<dyn PolicyEngine>, &str); 3] = [
        (failing(), "asked did not decide: no idea"),
        (wordy(), "asked did not decide: its labels are more"),
        (panics(), "asked did not decide: it failed"),
    ];
    for (bad, reason) in cases {
        let (mut world, seen) = world_with(vec![bad], vec![vec![("1", "read/f", "{}")]]);
        let (host, journal) = ended(&mut world).await;
        assert_eq!(host.get("1").await.status(), Status::Completed, "it is told, and goes on");
        assert_eq!((shown(&seen)[0].0.as_str(), refusals(&journal)[0].1), ("", Refusal::Denied));
        let said = decisions(&journal);
        assert!(said[0].starts_with("turn 1 plan: tools disabled") && said[0].contains(reason));
    }
}

#[tokio::test]
async fn l_030_an_engine_that_is_too_slow_leaves_no_tool() {
    let (mut world, seen) = world_with(vec![Arc::new(Hangs)], Vec::new());
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    assert_eq!(world.next(Duration::from_secs(1)).await, Duration::from_millis(100));
    host.end("1").await;
    assert_eq!(shown(&seen)[0].0, "");
    let said = decisions(&host.journal("1").await);
    assert_eq!(
        said[0],
        "turn 1 plan: tools disabled (hangs did not decide: it took more than 100 ms)"
    );
}

#[tokio::test]
async fn l_030_a_run_of_whose_tools_nothing_is_taken_has_the_same_journal_as_without() {
    let turns = || vec![vec![("1", "read/f", "{}")], vec![("2", "list/f", "{}")]];
    let all = engine(|input| Ok(only(&input.tools.iter().map(|t| &*t.name).collect::<Vec<_>>())));
    let mut kinds = Vec::new();
    for engines in [Vec::<Arc<dyn PolicyEngine>>::new(), vec![all]] {
        let (mut world, _) = world_with(engines, turns());
        let (host, _) = ended(&mut world).await;
        kinds.push(host.kinds("1").await);
    }
    assert_eq!(kinds[0], kinds[1]);
}

#[tokio::test]
async fn l_030_a_step_that_runs_again_is_shown_the_tools_it_was_shown() {
    let (mut world, gates) = (World::new(), Gates::new());
    tools(&mut world);
    // Each host would decide otherwise than the one before it.
    let asked =
        engine(|input| Ok(only(&[["read/f", "list/f"][usize::from(input.run.attempt > 9)]])));
    let other = engine(|_| Ok(only(&["list/f"])));
    let agent = |world: &mut World, engine: Arc<Asked>| {
        let inside = Arc::clone(&gates);
        let planner = ClosurePlanner::new(move |_, scope| {
            let gates = Arc::clone(&inside);
            async move {
                let tools: Vec<_> = scope.tools().iter().map(|tool| tool.name.as_str()).collect();
                let text = tools.join(" ");
                scope.record(Event::AssistantChunk { text: text.clone() });
                gates.pass("go").await;
                answer(&text)
            }
        });
        world.agent_with("a", planner, |agent| {
            change_code(agent, |code| code.guard.engines = vec![engine]);
        });
    };
    agent(&mut world, asked);
    let first = world.start().await;
    first.spawn(&named("1", "a")).await;
    gates.have_come(1).await;
    first.until("1", "says what it sees", |run| run.state.head >= 4).await;
    world.kill(first).await;
    agent(&mut world, other.clone());
    let second = world.take_over().await;
    gates.open("go");
    let run = second.end("1").await;
    assert_eq!(run.state.reply.result().as_deref(), Some("read/f"));
    assert!(other.about().is_empty(), "{:?}", other.about());
    assert_eq!(decisions(&second.journal("1").await).len(), 1);
}

#[test]
fn l_030_what_was_decided_is_written_as_little_as_can_be() {
    let written = serde_json::to_string(&ToolRuling::everything(Phase::Plan)).expect("JSON");
    assert_eq!(written, r#"{"before":"plan"}"#);
    let read: ToolRuling = serde_json::from_str(&written).expect("reads back");
    assert_eq!(read, ToolRuling::everything(Phase::Plan));
}

#[tokio::test]
async fn l_035_each_call_over_the_bound_of_its_turn_has_a_result_of_its_own() {
    let turns = vec![
        vec![
            ("1", "read/f", "{}"),
            ("2", "list/f", "{}"),
            ("3", "drop/f", "{}"),
            ("4", "x/f", "{}"),
        ],
        vec![("5", "read/f", "{}")],
    ];
    let mut world = World::new();
    tools(&mut world);
    world.agent_with("a", following(turns), |agent| agent.limits.turn_calls = Some(2));
    let (host, journal) = ended(&mut world).await;
    assert_eq!(host.get("1").await.status(), Status::Completed);
    let refusals = refusals(&journal);
    let found: Vec<_> = refusals.iter().map(|(id, why, _)| (id.as_str(), *why)).collect();
    assert_eq!(found, [("3", Refusal::Cap), ("4", Refusal::Unavailable)]);
    assert_eq!(count(&journal, "tool_call_scheduled"), 3, "the next turn may call again");
}
