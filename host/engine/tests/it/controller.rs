//! The interface `controller`: what the policy decides, and what reaches the port.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::clock::{SeededRandom, SystemClock};
use taskrun::ports::tool::ToolCall;
use taskrun::scope::runs::{Caller, Runs, RunsAccess};
use taskrun::scope::{
    CallScope, CallScopeParts, CurrentRules, Remaining, RunContext, RunsQuestion, ScopeLimits,
    Services, StopSignal,
};
use taskrun_engine::{AgentGrants, LoadError, Need};
use taskrun_examples::DELEGATE;
use taskrun_journal::runs::{RunsAnswer, RunsError, RunsRequest};
use taskrun_journal::spec::RunSpec;
use taskrun_policy::Capability;

use crate::support::*;

/// Keeps what it was asked, and has no runs.
#[derive(Default)]
struct Nobody(Mutex<Vec<RunsRequest>>);

#[async_trait]
impl Runs for Nobody {
    async fn ask(
        &self,
        caller: &Caller,
        request: RunsRequest,
        _longest: Duration,
    ) -> Result<RunsAnswer, RunsError> {
        assert_eq!(caller.spec.id.as_str(), "run-1");
        self.0.lock().unwrap().push(request);
        Err(RunsError::Forbidden { reason: "nobody is a member".to_owned() })
    }

    async fn result(&self, _: &Caller, _: &str, _: u64) -> Result<Option<Arc<[u8]>>, RunsError> {
        Ok(None)
    }

    async fn artifact(&self, _: &Caller, _: &str) -> Result<Option<Arc<[u8]>>, RunsError> {
        Ok(None)
    }
}

fn spec() -> RunSpec {
    serde_json::from_value(serde_json::json!({
        "id": "run-1", "tenant": "t", "owner_user_id": "o", "parent_session_id": "s",
        "agent_name": "tester", "agent_digest": "d", "pin": "p", "task": "x",
        "root_run_id": "run-1", "depth": 0, "priority": 0, "created_at": 0,
    }))
    .unwrap()
}

fn scope_with(runs: Option<Arc<dyn Runs>>, with: &AgentGrants) -> Arc<CallScope> {
    let access = |runs| RunsAccess {
        runs,
        caller: Caller {
            spec: Arc::new(spec()),
            session_id: "own".to_owned(),
            call: "call-1".to_owned(),
        },
    };
    Arc::new(CallScope::new(CallScopeParts {
        rules: CurrentRules::fixed(rules(with)),
        pins: Vec::new(),
        services: Services::default(),
        context: RunContext { run_id: "run-1".to_owned(), ..RunContext::default() },
        stop: StopSignal::never(),
        deadline: Duration::from_secs(60),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(7)),
        models: None,
        runs: runs.map(access),
        tools: Arc::default(),
        state: std::collections::BTreeMap::new(),
        remaining: Remaining::default(),
        limits: ScopeLimits { events: 1_000, bytes: 1 << 20 },
        wake: Arc::default(),
        journal: None,
        tape: None,
    }))
}

/// Calls a function of the example and gives the code it failed with, what was decided, and what
/// was asked.
async fn call_with(
    rules: &str,
    function: &str,
    payload: &str,
) -> (String, Vec<(String, String, String)>, Vec<RunsRequest>) {
    let (with, nobody) = (grants(rules), Arc::new(Nobody::default()));
    let scope = scope_with(Some(nobody.clone()), &with);
    let tool = tool(&engine(), DELEGATE.bytes.to_vec(), with).await.unwrap();
    let call = ToolCall { name: function.to_owned(), payload: payload.to_owned(), ..call() };
    let failure = ask(&*tool, call, Arc::clone(&scope)).await.unwrap().unwrap_err();
    let asked = std::mem::take(&mut *nobody.0.lock().unwrap());
    (failure.error.code.unwrap(), decisions(&scope), asked)
}

#[tokio::test]
async fn without_a_rule_it_does_not_load() {
    let error = tool(&engine(), DELEGATE.bytes.to_vec(), grants("")).await.err();
    let Some(LoadError::Denied(missing)) = error else { panic!("{error:?}") };
    assert_eq!(missing.len(), 1);
    assert_eq!(missing[0].need, Need::Rule(Capability::Controller));
    assert_eq!(missing[0].suggestion().as_deref(), Some(r#"allow = ["controller: *"]"#));
}

#[tokio::test]
async fn a_rule_gives_the_operations_that_it_names() {
    let rules = r#"allow = ["controller: spawn"]"#;
    let task = r#"{"agent":"a","task":"t","labels":{"k":"v"},"key":"mine"}"#;
    let (code, decisions, asked) = call_with(rules, "spawn", task).await;
    assert_eq!((code.as_str(), decisions.len()), ("forbidden", 0));
    let [RunsRequest::Spawn(child)] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!((child.agent_name.as_str(), child.task.as_str()), ("a", "t"));
    assert_eq!(child.labels["k"], "v");
    let key = child.key.as_deref().unwrap();
    assert!(key.starts_with("taskrun.child:") && !key.contains("mine"), "{key}");

    let (code, decisions, asked) = call_with(rules, "get", r#"{"run":"r"}"#).await;
    assert_eq!((code.as_str(), asked.len()), ("denied", 0));
    assert_eq!((decisions[0].0.as_str(), decisions[0].1.as_str()), ("controller", "get"));
    assert!(decisions[0].2.contains("add: allow = [\"controller: get\"]"), "{decisions:?}");
}

#[tokio::test]
async fn denied_as_a_whole_it_answers_denied() {
    let rules = r#"deny = ["controller: *"]"#;
    for (function, payload) in [
        ("spawn", r#"{"agent":"a","task":"t"}"#),
        ("get", r#"{"run":"r"}"#),
        ("list", "{}"),
        ("wait", r#"{"run":"r"}"#),
        ("provide", r#"{"run":"r","text":"t"}"#),
        ("events", r#"{"run":"r"}"#),
        ("cancel", r#"{"run":"r"}"#),
        ("cancel_tree", r#"{"run":"r"}"#),
    ] {
        let (code, decisions, asked) = call_with(rules, function, payload).await;
        assert_eq!((code.as_str(), asked.len()), ("denied", 0), "{function}");
        assert_eq!(decisions.len(), 1, "{function}");
    }
}

#[tokio::test]
async fn the_same_request_again_is_named_apart_and_the_same_in_a_repeated_call() {
    let keys = |asked: &[RunsRequest]| -> Vec<String> {
        let key = |request: &RunsRequest| {
            let RunsRequest::Spawn(child) = request else { panic!("{request:?}") };
            child.key.clone().unwrap()
        };
        asked.iter().map(key).collect()
    };
    let mut calls = Vec::new();
    for _ in 0..2 {
        let nobody = Arc::new(Nobody::default());
        let scope = scope_with(Some(nobody.clone()), &grants(""));
        for task in ["one", "one", "two"] {
            let child = taskrun_journal::runs::ChildRequest {
                agent_name: "a".to_owned(),
                task: task.to_owned(),
                ..Default::default()
            };
            scope.ask(RunsQuestion::spawn(child)).await.unwrap_err();
        }
        calls.push(keys(&nobody.0.lock().unwrap()));
    }
    assert_eq!(calls[0], calls[1]);
    let different: std::collections::BTreeSet<_> = calls[0].iter().collect();
    assert_eq!(different.len(), 3);
}

#[tokio::test]
async fn a_call_that_belongs_to_no_run_is_told_so() {
    let rules = r#"allow = ["controller: *"]"#;
    let with = grants(rules);
    let scope = scope_with(None, &with);
    let tool = tool(&engine(), DELEGATE.bytes.to_vec(), with).await.unwrap();
    let call = ToolCall { name: "list".to_owned(), ..call() };
    let failure = ask(&*tool, call, scope).await.unwrap().unwrap_err();
    assert_eq!(failure.error.code.as_deref(), Some("not-started"));
}
