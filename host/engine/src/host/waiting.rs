//! Guests whose file operations wait for a thread while the rules become others.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use taskrun::clock::{SeededRandom, SystemClock};
use taskrun::ports::tool::ToolCall;
use taskrun::scope::{
    CallScope, CallScopeParts, CurrentRules, Remaining, RunContext, ScopeLimits, Services,
    StopSignal,
};
use taskrun_examples::{WORKSPACE, evil};
use taskrun_journal::event::Event;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_policy::{AgentRules, CallRules, Chain, Policy};

use crate::{AgentGrants, Engine, EngineOptions};

/// All turns of file operations.
const TURNS: u32 = 64;
const ALL: &str = "allow = [\"workspace-read: notes/**\", \"workspace-write: notes/**\"]";
const READ_ONLY: &str = "allow = [\"workspace-read: notes/**\"]";

/// The way in which a call that waited came to its end.
struct Waited {
    answer: Result<String, CallAbort>,
    decisions: Vec<(String, String)>,
    files: Vec<String>,
}

fn grants(folder: &Path, rules: &str) -> AgentGrants {
    let text = format!("[agent.tester]\ncomponent = \"a.wasm\"\n{rules}\n");
    let policy = Policy::parse(&text, Path::new("taskrun.toml")).expect("a policy");
    let grants = AgentGrants::of_agent(&policy.agents["tester"]);
    AgentGrants { workspace: folder.to_owned(), ..grants }
}

fn scope(rules: &Arc<CurrentRules>, engine: &Engine) -> Arc<CallScope> {
    Arc::new(CallScope::new(CallScopeParts {
        context: RunContext { run_id: "run-1".to_owned(), ..RunContext::default() },
        stop: StopSignal::new(engine.interrupt()),
        deadline: Duration::from_secs(60),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(7)),
        models: None,
        rules: Arc::clone(rules),
        pins: Vec::new(),
        runs: None,
        tools: Arc::default(),
        state: BTreeMap::new(),
        services: Services::default(),
        remaining: Remaining::default(),
        limits: ScopeLimits { events: 1_000, bytes: 1 << 20 },
        wake: Arc::default(),
        journal: None,
        tape: None,
    }))
}

/// Calls a function under rules for reading and writing `notes`, and puts others beside them while its
/// first operation waits for a thread.
async fn waits(bytes: &[u8], name: &str, payload: serde_json::Value, now: &str) -> Waited {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("notes")).expect("made");
    let engine = Engine::new(EngineOptions { instances: Some(4), ..EngineOptions::default() });
    let engine = engine.expect("an engine");
    let with = grants(folder.path(), ALL);
    let own = CallRules::new(Arc::clone(&with.grants), None);
    let rules = Arc::new(CurrentRules::new(own, Vec::new()));
    let loaded = engine.load(bytes.to_vec()).await.expect("it loads");
    let tool = engine.tool(&loaded, with.clone()).await.expect("it is linked");
    let scope = scope(&rules, &engine);
    let all = Arc::clone(engine.blocking()).acquire_many_owned(TURNS).await.expect("all turns");
    let call = ToolCall {
        timeout: None,
        name: name.to_owned(),
        payload: payload.to_string(),
        tool_call_id: "call-1".to_owned(),
        parent_tool_call_id: None,
        agent_name: "tester".to_owned(),
        run_id: "run-1".to_owned(),
        session_id: "session-1".to_owned(),
        turn: 1,
        labels: BTreeMap::new(),
    };
    // Whoever waits for a turn has the turns.
    let nobody_waits = Arc::strong_count(engine.blocking());
    let asked = Arc::clone(&scope);
    let call = tokio::spawn(async move { tool.call(call, asked).await });
    while Arc::strong_count(engine.blocking()) == nobody_waits {
        assert!(!call.is_finished(), "it has waited for nothing");
        tokio::task::yield_now().await;
    }
    let mut chain = Chain::new(folder.path());
    chain.push_now(Arc::new(AgentRules {
        agent: "tester".to_owned(),
        workspace: folder.path().to_owned(),
        grants: grants(folder.path(), now).grants,
    }));
    rules.replace(CallRules::new(with.grants, Some(Arc::new(chain))), Vec::new());
    drop(all);
    let answer = call.await.expect("it does not panic").map(|answer| format!("{answer:?}"));
    let decision = |event| {
        let Event::PolicyDecision { capability, rule, .. } = event else { return None };
        Some((capability, rule))
    };
    let decisions = scope.finish().events.into_iter().filter_map(decision).collect();
    let files = std::fs::read_dir(folder.path().join("notes")).expect("a folder");
    let files = files.map(|file| file.expect("a name").file_name().to_string_lossy().into_owned());
    Waited { answer, decisions, files: files.collect() }
}

fn write_by_wasi() -> serde_json::Value {
    serde_json::json!({ "attempts": [{ "op": "write", "path": "/notes/a" }] })
}

fn write_by_ours() -> serde_json::Value {
    serde_json::json!({ "path": "notes/a", "contents": "x" })
}

fn is_told(waited: &Waited) {
    let [(capability, rule)] = &waited.decisions[..] else { panic!("{:?}", waited.decisions) };
    assert_eq!(capability, "workspace-write");
    assert!(rule.contains("agent tester") && rule.contains("taskrun.toml:"), "{rule}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_by_our_interface_that_waited_for_a_thread_is_decided_by_the_rules_of_then() {
    let waited = waits(WORKSPACE.bytes, "write", write_by_ours(), READ_ONLY).await;
    let answer = waited.answer.as_ref().expect("it goes on");
    assert!(answer.contains("denied"), "{answer}");
    assert_eq!(waited.files, [""; 0]);
    is_told(&waited);
    let waited = waits(WORKSPACE.bytes, "write", write_by_ours(), ALL).await;
    assert_eq!((waited.files, waited.decisions), (vec!["a".to_owned()], Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_by_wasi_that_waited_for_a_thread_writes_nothing_and_ends_its_guest() {
    let waited = waits(evil::WASI.bytes, "attempt", write_by_wasi(), READ_ONLY).await;
    let ended = waited.answer.as_ref().expect_err("it has lost its folder");
    assert_eq!(*ended, CallAbort::Stopped { cause: StopCause::Denied });
    assert_eq!(waited.files, [""; 0]);
    is_told(&waited);
    let waited = waits(evil::WASI.bytes, "attempt", write_by_wasi(), ALL).await;
    assert_eq!((waited.files, waited.decisions), (vec!["a".to_owned()], Vec::new()));
}
