//! Texts that are too large for a conversation or a plan step (M-48, L-078, L-079).

use std::sync::Arc;

use serde_json::Value;
use taskrun::autonomy::AutonomyRequest;
use taskrun::driver::{CONVERSATION_RESULT_BYTES_MAX, PLAN_INPUT_BYTES_MAX};
use taskrun::error::ControllerError;
use taskrun::ports::planner::PlanInput;
use taskrun::ports::tool::{ToolReply, ToolResult};
use taskrun::scope::{CallScope, RESULTS_READ_MAX};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::artifact::digest;
use taskrun_journal::event::Event;
use taskrun_journal::message::{Bounds, Message, Part};
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::common::{named, words_of};
use crate::native::{
    ClosurePlanner, ClosureTool, Gate, Native, Replied, World, answer, call_of, value,
};

/// JSON of so many bytes.
fn of_bytes(bytes: usize, letter: &str) -> String {
    format!("\"{}\"", letter.repeat(bytes - 2))
}

/// A tool that answers with as many bytes as it is told, and with data beside them.
fn sized(world: &mut World) {
    let tool = ClosureTool::new("f", ToolHints::default(), |call, _| async move {
        let bytes: usize = call.payload.parse().expect("a number");
        Ok(Ok(ToolReply::Value(Box::new(ToolResult {
            value: of_bytes(bytes, "x"),
            server_data: Some("{\"kept\":1}".to_owned()),
            bounds: None,
            telemetry: None,
            media: Vec::new(),
        }))))
    });
    world.tool("sized", InterruptionPolicy::Fail, tool);
}

/// The answers of tools as the conversation has them, as JSON.
fn answers(input: &PlanInput) -> Vec<Value> {
    let parts = input.messages.iter().flat_map(|message| &message.parts);
    let contents = parts.filter_map(|part| {
        let Part::ToolAnswer(answer) = part else { return None };
        Some(serde_json::from_str(&answer.content).expect("JSON"))
    });
    contents.collect()
}

async fn said(host: &Native, id: &str) -> String {
    host.end(id).await.state.reply.result().expect("an answer")
}

#[tokio::test]
async fn ls_22_a_result_above_64_kib_is_left_out_named_and_read_by_its_name() {
    let mut world = World::new();
    sized(&mut world);
    let bytes = CONVERSATION_RESULT_BYTES_MAX + 1_024;
    let payload: &'static str = Box::leak(bytes.to_string().into_boxed_str());
    let planner = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| async move {
        let Some(resume) = &input.resume else { return call_of(&[("1", "sized/f", payload)]) };
        let output = &resume.tool_outputs[0];
        assert_eq!(
            (output.result_omitted.as_deref(), output.result_bytes),
            (Some("size_limit"), bytes as u64,)
        );
        let shown = answers(&input).remove(0);
        assert_eq!((&shown["omitted"], &shown["reason"]), (&true.into(), &"size_limit".into()));
        assert!(shown["preview"].as_str().is_some_and(|text| text.starts_with("\"xxx")));
        assert!(shown.get("bounds").is_some());
        assert_eq!(shown["artifact"]["size"], bytes);
        let hash = shown["artifact"]["hash"].as_str().expect("a hash");
        assert_eq!(output.artifact.as_ref().map(|named| named.hash.as_str()), Some(hash));
        let mut whole = Vec::new();
        loop {
            let part = scope.result_part(hash, whole.len() as u64, 50_000).await.expect("kept");
            if part.is_empty() {
                break;
            }
            whole.extend(part);
        }
        assert_eq!(whole, of_bytes(bytes, "x").into_bytes());
        assert_eq!(scope.result_part(hash, u64::MAX, 1).await, Ok(Vec::new()));
        answer(hash)
    });
    world.agent("a", planner);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let hash = said(&host, "1").await;
    // People read it by the same name, and not through another run.
    let read = host.client().artifact("1", &hash).await.expect("kept");
    assert_eq!(digest(&read), hash);
    host.spawn(&named("2", "a")).await;
    let other = digest(b"something else");
    let refused = host.client().artifact("2", &other).await;
    assert!(matches!(refused, Err(ControllerError::NoArtifact { .. })), "{refused:?}");
    host.end("2").await;
}

#[tokio::test]
async fn ls_22_a_small_result_is_kept_however_large_the_arguments_of_its_call_are() {
    let mut world = World::new();
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let payload: &'static str = Box::leak(of_bytes(80 << 10, "x").into_boxed_str());
    let planner = ClosurePlanner::new(move |input: PlanInput, _| async move {
        let Some(resume) = &input.resume else { return call_of(&[("1", "t/f", payload)]) };
        let output = &resume.tool_outputs[0];
        answer(&format!("{} {:?}", words_of(&output.outcome), output.result_omitted))
    });
    world.agent("a", planner);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    assert_eq!(said(&host, "1").await, "1 None");
}

#[tokio::test]
async fn ls_22_a_result_is_read_by_its_hash_under_a_host_that_took_the_run_up_from_a_fold() {
    let mut world = World::new();
    sized(&mut world);
    let gate = Gate::new();
    let at = gate.clone();
    let planner = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| {
        let at = at.clone();
        async move {
            match input.run.turn {
                1 => call_of(&[("1", "sized/f", "1000"), ("2", "sized/f", "80000")]),
                2 => answer("a round"),
                3 => call_of(&[("1", "sized/f", "2000")]),
                _ => {
                    at.pass().await;
                    for bytes in [1_000, 80_000, 2_000] {
                        let whole = of_bytes(bytes, "x").into_bytes();
                        let read = scope.result_part(&digest(&whole), 0, 0).await;
                        assert!(read == Ok(whole), "{bytes}: {:?}", read.err());
                    }
                    let read = scope.result_part(&digest(b"nobody's"), 0, 0).await;
                    assert_eq!(read, Err("no result of this run has that hash".to_owned()));
                    answer("read")
                }
            }
        }
    });
    world.agent("a", planner);
    let first = world.start().await;
    let autonomous = Some(AutonomyRequest { rounds: Some(2), ..AutonomyRequest::default() });
    first.spawn(&SpawnRequest { autonomous, ..named("1", "a") }).await;
    gate.reached_by(1).await;
    let journal = first.journal("1").await;
    let folds = journal.iter().filter_map(|recorded| {
        let Event::RoundEnded { checkpoint, .. } = &recorded.event else { return None };
        checkpoint.fold.as_ref()
    });
    assert_eq!(folds.count(), 1);
    world.kill(first).await;
    gate.open();
    let second = world.take_over().await;
    assert_eq!(said(&second, "1").await, "read");
}

#[tokio::test]
async fn turns_that_are_left_out_are_read_by_the_hash_that_stands_in_their_summary() {
    let mut world = World::new();
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async move { value("1") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| async move {
        let texts = input.messages.iter().map(Message::joined_text);
        let mut named =
            texts.filter_map(|text| text.split_once("All of them: ").map(|two| two.1.to_owned()));
        let Some(named) = named.next_back() else {
            let turn = input.run.turn.to_string();
            return call_of(&[(&turn, "t/f", &of_bytes(60_000, "x"))]);
        };
        let named: Value = serde_json::from_str(&named).expect("JSON");
        let hash = named["artifact"]["hash"].as_str().expect("a hash");
        let whole = scope.result_part(hash, 0, 0).await.expect("kept");
        assert_eq!(
            (digest(&whole), &named["artifact"]["size"]),
            (hash.to_owned(), &whole.len().into())
        );
        let lines = String::from_utf8(whole).expect("a text");
        let left_out: Vec<Message> =
            lines.lines().map(|line| serde_json::from_str(line).expect("a message")).collect();
        let first = left_out[0].tool_uses().next().expect("a call");
        assert_eq!((first.tool_call_id.as_str(), first.payload.len()), ("1", 60_000));
        // Nothing but these is missing: the task, the turns that are left out, and those shown.
        let calls = left_out.iter().chain(input.messages.iter()).flat_map(Message::tool_uses);
        let ids: Vec<u32> =
            calls.map(|call| call.tool_call_id.parse().expect("a number")).collect();
        assert_eq!(ids, (1..input.run.turn).collect::<Vec<_>>());
        answer("read")
    });
    world.agent("a", planner);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    assert_eq!(said(&host, "1").await, "read");
}

#[tokio::test]
async fn ls_22_a_plan_step_is_given_what_fits_and_the_oldest_results_go_first() {
    let mut world = World::new();
    sized(&mut world);
    let calls = 20;
    let planner = ClosurePlanner::new(move |input: PlanInput, _| async move {
        if input.run.turn <= calls {
            return call_of(&[(&input.run.turn.to_string(), "sized/f", "65000")]);
        }
        let outputs = &input.resume.as_ref().expect("a later step").tool_outputs;
        let omitted: Vec<_> = outputs.iter().map(|one| one.result_omitted.as_deref()).collect();
        let left_out = omitted.iter().take_while(|reason| **reason == Some("workflow_budget"));
        let left_out = left_out.count();
        assert!(left_out > 0 && omitted[left_out..].iter().all(Option::is_none), "{omitted:?}");
        let first = &outputs[0];
        assert_eq!((first.result_bytes, first.server_data.as_deref()), (65_000, None));
        assert!(outputs[left_out].server_data.is_some());
        let shown = answers(&input).remove(0);
        assert_eq!(
            (&shown["omitted"], &shown["reason"]),
            (&true.into(), &"workflow_budget".into())
        );
        assert_eq!(shown["artifact"]["hash"], digest(of_bytes(65_000, "x").as_bytes()));
        let messages: usize =
            input.messages.iter().map(taskrun_journal::message::Message::bytes).sum();
        let outputs: usize = outputs.iter().map(taskrun_journal::tool::ToolOutput::bytes).sum();
        assert!(messages + outputs <= PLAN_INPUT_BYTES_MAX);
        answer("fits")
    });
    world.agent("a", planner);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    assert_eq!(said(&host, "1").await, "fits");
}

#[tokio::test]
async fn ls_22_a_run_fails_only_where_the_requests_alone_are_too_many_bytes() {
    let mut world = World::new();
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(|_, _| async {
        let payload = of_bytes(PLAN_INPUT_BYTES_MAX, "p");
        call_of(&[("1", "t/f", &payload)])
    });
    world.agent("a", planner);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let run = host.end("1").await;
    let ending = run.ending().expect("it ended");
    assert_eq!((run.status(), ending.stop_reason), (Status::Failed, StopReason::PlannerError));
    let error = ending.error.as_deref().expect("an error");
    assert!(error.contains("more than 900000 bytes"), "{error}");
}

fn bounded(truncated: bool, continuation: Option<&str>, refinement: Option<&str>) -> Replied {
    let bounds = Bounds {
        returned: 1,
        total: Some(2),
        truncated,
        continuation: continuation.map(str::to_owned),
        refinement: refinement.map(str::to_owned),
    };
    let (value, bounds) = ("[1]".to_owned(), Some(bounds));
    let value = ToolResult { value, server_data: None, bounds, telemetry: None, media: Vec::new() };
    Ok(Ok(ToolReply::Value(Box::new(value))))
}

#[tokio::test]
async fn l_078_bounds_are_there_where_they_are_promised_and_say_how_to_go_on() {
    let mut world = World::new();
    let hints = ToolHints { bounded: true, ..ToolHints::default() };
    let tool = ClosureTool::new("f", hints, |call, _| async move {
        match call.payload.as_str() {
            "\"none\"" => value("[1]"),
            "\"null\"" => value(""),
            "\"whole\"" => bounded(false, None, None),
            "\"more\"" => bounded(true, Some("{}"), None),
            "\"less\"" => bounded(true, None, Some("ask for one")),
            _ => bounded(true, None, None),
        }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(|input: PlanInput, _| async move {
        let Some(resume) = input.resume else {
            return call_of(&[
                ("1", "t/f", "\"none\""),
                ("2", "t/f", "\"null\""),
                ("3", "t/f", "\"whole\""),
                ("4", "t/f", "\"more\""),
                ("5", "t/f", "\"less\""),
                ("6", "t/f", "\"cut\""),
            ]);
        };
        let words = resume.tool_outputs.iter().map(|output| {
            let words = words_of(&output.outcome);
            words.split(':').next().unwrap_or_default().to_owned()
        });
        answer(&words.collect::<Vec<_>>().join(" "))
    });
    world.agent("a", planner);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    assert_eq!(said(&host, "1").await, "contract contract [1] [1] [1] contract");
}

#[tokio::test]
async fn results_are_read_by_plan_steps_alone_and_not_without_end() {
    let mut world = World::new();
    let tool = ClosureTool::new("f", ToolHints::default(), |_, scope: Arc<CallScope>| async move {
        let refused = scope.result_part(&digest(b"1"), 0, 0).await.expect_err("a tool reads none");
        value(&serde_json::json!(refused).to_string())
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(|input: PlanInput, scope: Arc<CallScope>| async move {
        let Some(resume) = &input.resume else { return call_of(&[("1", "t/f", "{}")]) };
        let tool = words_of(&resume.tool_outputs[0].outcome);
        let mut last = String::new();
        for number in 0..=RESULTS_READ_MAX {
            let unknown = digest(number.to_string().as_bytes());
            last = scope.result_part(&unknown, 0, 0).await.expect_err("nobody's");
        }
        answer(&format!("{tool}, {last}"))
    });
    world.agent("a", planner);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let said = said(&host, "1").await;
    assert_eq!(said, "\"only a plan step reads results\", a step reads at most 64 results");
}
