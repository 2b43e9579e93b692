//! JSON that guests give, and that others would read differently or not at all (case 50).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use taskrun::ports::planner::Decision;
use taskrun_journal::event::{Event, Refusal};
use taskrun_journal::message::{Message, Part, Role};
use taskrun_journal::question::{AwaitItem, ExternalTool};
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::tool::{ToolHints, ToolOutcome};
use taskrun_policy::InterruptionPolicy;

use super::common::named;
use crate::native::{ClosurePlanner, ClosureTool, World, answer, call_of, decided, value};

/// The end of a run whose planner decides this.
async fn ended(decision: Decision) -> (Option<StopReason>, String) {
    let mut world = World::new();
    let planner = ClosurePlanner::new(move |_, _| {
        let decision = decision.clone();
        async move { decided(decision) }
    });
    world.agent("a", planner);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let view = RunView::from(&host.end("1").await);
    (view.stop_reason, view.error.unwrap_or_default())
}

fn said(json: &str) -> Decision {
    let parts = vec![Part::Text("see".to_owned()), Part::Json(json.to_owned())];
    Decision::FinalResponse(Message { role: Role::Assistant, parts: parts.into() })
}

#[tokio::test]
async fn case_50_an_answer_with_a_part_that_is_no_json_is_none() {
    for (json, problem) in [
        ("{not json", "key must be a string"),
        (r#"{"a":1,"a":2}"#, "the key \"a\" stands twice"),
        (r#"{"a":1,"\u0061":2}"#, "the key \"a\" stands twice"),
        ("", "EOF"),
    ] {
        let (reason, error) = ended(said(json)).await;
        assert_eq!(reason, Some(StopReason::PlannerError), "{json}: {error}");
        assert!(error.starts_with("a part of the planner's answer is not JSON: "), "{error}");
        assert!(error.contains(problem), "{error}");
    }
    assert_eq!(ended(said(r#"{"a":[1]}"#)).await.0, Some(StopReason::FinalResponse));
}

#[tokio::test]
async fn case_50_what_a_tool_outside_is_given_is_json_with_each_key_once() {
    let item = ExternalTool {
        name: "x/y".to_owned(),
        tool_call_id: "1".to_owned(),
        payload: r#"{"path":"a","path":"b"}"#.to_owned(),
    };
    let item = AwaitItem::ExternalTools { id: "e".to_owned(), items: vec![item] };
    let (reason, error) = ended(Decision::Await(vec![item.into()])).await;
    assert_eq!(reason, Some(StopReason::PlannerError));
    assert!(error.contains("the key \"path\" stands twice"), "{error}");
}

#[tokio::test]
async fn case_50_a_call_with_a_key_twice_or_without_its_schemas_form_reaches_no_tool() {
    let mut world = World::new();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { value("1") }
    });
    let tool = tool.schema(r#"{"properties":{"path":{"type":"string"}}}"#);
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(|input, _| async move {
        match input.resume {
            None => call_of(&[
                ("1", "t/f", r#"{"path":"/etc/x","path":"docs/a"}"#),
                ("2", "t/f", r#"{"path":"/etc/x","\u0070ath":"docs/a"}"#),
                ("3", "t/f", r#"{"path":["docs/a"]}"#),
                ("4", "t/f", r#"{"path":"docs/a"}"#),
            ]),
            Some(_) => answer("done"),
        }
    });
    world.agent("a", planner);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    assert_eq!(host.end("1").await.status(), Status::Completed);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let refused = host.journal("1").await.into_iter().filter_map(|recorded| {
        let Event::ToolResult { output, refused, .. } = recorded.event else { return None };
        let ToolOutcome::Failure(failure) = output.outcome else { return None };
        Some((output.tool_call_id, refused?, failure.error.code?))
    });
    let code = "invalid-arguments".to_owned();
    let expected = ["1", "2", "3"].map(|id| (id.to_owned(), Refusal::Arguments, code.clone()));
    assert_eq!(refused.collect::<Vec<_>>(), expected);
}
