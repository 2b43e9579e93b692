//! Finalizers: what they add, and what becomes of those that cannot.

use std::sync::Arc;
use std::time::Duration;

use taskrun::ports::planner::{FinalizeInput, Planner};
use taskrun::scope::{CallScope, RunContext, StopSignal};
use taskrun_engine::{AgentGrants, Kind, LoadError};
use taskrun_examples as examples;
use taskrun_journal::ending::Ending;
use taskrun_journal::message::Labels;
use taskrun_journal::plan::PlannerError;
use taskrun_journal::status::StopReason;
use taskrun_journal::stop::CallAbort;

use crate::support::*;

type FinalizerAnswer = Result<Result<Labels, PlannerError>, CallAbort>;

pub(crate) fn input(ending: Ending, result: Option<&str>) -> FinalizeInput {
    FinalizeInput {
        run: RunContext::default(),
        ending,
        result: result.map(str::to_owned),
        metadata: Labels::new(),
    }
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

async fn agent(bytes: Vec<u8>, with: AgentGrants) -> Arc<dyn Planner> {
    let engine = engine();
    let loaded = engine.load(bytes).await.unwrap();
    engine.agent(&loaded, with).unwrap()
}

/// The example's finalizer for a run that completed with this answer.
async fn after(answer: &str, with: AgentGrants, scope: Arc<CallScope>) -> FinalizerAnswer {
    let agent = agent(examples::FINALIZER.bytes.to_vec(), with).await;
    let ending = Ending::completed(StopReason::FinalResponse);
    agent.finalize(input(ending, Some(answer)), scope).await
}

#[tokio::test]
async fn a_finalizer_adds_metadata() {
    let added = after("three short words", grants(""), patient()).await.unwrap().unwrap();
    let expected =
        labels(&[("words", "3"), ("status", "completed"), ("stop_reason", "final_response")]);
    assert_eq!(added, expected);
}

#[tokio::test]
async fn it_is_told_of_runs_without_an_answer_and_of_the_metadata_they_began_with() {
    let agent = agent(examples::FINALIZER.bytes.to_vec(), grants("")).await;
    assert!(agent.has_finalizer());
    for (ending, status, stop_reason) in [
        (Ending::canceled(StopReason::CanceledByOwner), "canceled", "canceled_by_owner"),
        (Ending::failed(StopReason::AgentError, "no"), "failed", "agent_error"),
    ] {
        let added = agent.finalize(input(ending, None), patient()).await.unwrap().unwrap();
        let expected = [("words", "0"), ("status", status), ("stop_reason", stop_reason)];
        assert_eq!(added, labels(&expected));
    }
    let ending = Ending::canceled(StopReason::CanceledByOwner);
    let asked =
        FinalizeInput { metadata: labels(&[("finalizer", "error")]), ..input(ending, None) };
    let error = agent.finalize(asked, patient()).await.unwrap().unwrap_err();
    assert_eq!(error.code.as_deref(), Some("on-request"));
}

#[tokio::test]
async fn a_trap_has_its_name() {
    let failure = after("trap", grants(""), patient()).await.unwrap_err();
    assert_eq!(failure, CallAbort::Trap { code: "unreachable".to_owned() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_finalizer_meets_its_deadline() {
    let scope = scope(Duration::from_millis(80), StopSignal::never());
    let failure = after("spin", grants(""), scope).await.unwrap_err();
    assert_eq!(failure, CallAbort::Deadline { limit_ms: 80 });
}

#[tokio::test]
async fn too_much_metadata_is_refused() {
    let limit = |what: &str, limit| CallAbort::Limit { what: what.to_owned(), limit };
    let failure = after("flood", grants(""), patient()).await.unwrap_err();
    assert_eq!(failure, limit("metadata keys", 64));
    let with = limited(|limits| limits.result_bytes = 100);
    let failure = after("flood", with, patient()).await.unwrap_err();
    assert_eq!(failure, limit("result bytes", 100));
}

#[tokio::test]
async fn an_agent_without_a_finalizer_says_so_and_adds_nothing() {
    let agent = agent(examples::SCRIPTED.bytes.to_vec(), grants("")).await;
    assert!(!agent.has_finalizer());
    let ending = Ending::completed(StopReason::FinalResponse);
    let added = agent.finalize(input(ending, Some("x")), patient()).await.unwrap().unwrap();
    assert_eq!(added, Labels::new());
}

/// A core module whose finalizer names nothing, with more exports of these.
fn module(more: &str) -> String {
    format!(
        r#"(module
            (memory (export "memory") 1)
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 8192))
            (func (export "taskrun:plugin/finalizer@0.1.0#finalize") (param i32) (result i32)
                (i32.const 1024))
            {more})"#
    )
}

/// A core module of an agent that plans nothing and has that finalizer.
pub(crate) fn module_of_both() -> String {
    module(
        r#"
        (func (export "taskrun:plugin/planner@0.1.0#plan-start") (param i32) (result i32) unreachable)
        (func (export "taskrun:plugin/planner@0.1.0#plan-resume") (param i32) (result i32) unreachable)
        "#,
    )
}

#[tokio::test]
async fn the_world_of_agents_with_a_finalizer_is_both() {
    let engine = engine();
    let bytes = component("agent-with-finalizer", &module_of_both());
    let loaded = engine.load(bytes).await.unwrap();
    let inspection = loaded.inspect();
    assert_eq!(inspection.kind, Kind::Agent);
    let names: Vec<&str> = inspection.exports.iter().map(|one| one.interface.as_str()).collect();
    assert_eq!(names, ["taskrun:plugin/finalizer@0.1.0", "taskrun:plugin/planner@0.1.0"]);
    assert_eq!(inspection.exports[0].functions, ["finalize"]);

    let agent = engine.agent(&loaded, grants("")).unwrap();
    let ending = Ending::completed(StopReason::FinalResponse);
    let added = agent.finalize(input(ending, None), patient()).await.unwrap().unwrap();
    assert_eq!(added, Labels::new());
}

#[tokio::test]
async fn a_finalizer_alone_is_no_agent() {
    let engine = engine();
    let loaded = engine.load(component("agent-finalizer", &module(""))).await.unwrap();
    let error = engine.agent(&loaded, grants("")).err().unwrap();
    assert!(matches!(error, LoadError::WrongWorld { .. }), "{error}");
}
