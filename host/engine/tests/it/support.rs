//! Components written by hand, and everything else that a call needs.
//!
//! The core modules lay out results as the canonical ABI says. A tool has one function, `run`,
//! whose code is the test's: it ends with `$ok` and a JSON text or with `$fail` and any text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use taskrun::clock::{SeededRandom, SystemClock};
use taskrun::ports::planner::PlanInput;
use taskrun::ports::tool::{Tool, ToolCall, ToolReply, ToolResult};
use taskrun::scope::{
    CallScope, CallScopeParts, CurrentRules, Remaining, RunContext, ScopeLimits, Services,
    StopSignal,
};
use taskrun_engine::{AgentGrants, Cache, Engine, EngineOptions, LoadError};
use taskrun_journal::event::Event;
use taskrun_journal::stop::CallAbort;
use taskrun_journal::time::Clock;
use taskrun_journal::tool::ToolFailure;
use taskrun_policy::{CallRules, Limits, Policy};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// An engine with few slots.
pub(crate) fn engine() -> Arc<Engine> {
    engine_with(EngineOptions::default())
}

/// Native code is kept from one run of the tests to the next.
pub(crate) fn engine_with(options: EngineOptions) -> Arc<Engine> {
    let instances = options.instances.or(Some(4));
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("native");
    let cache = options.cache.clone().or_else(|| Some(Cache::open(&kept).unwrap()));
    Engine::new(EngineOptions { instances, cache, ..options }).unwrap()
}

pub(crate) fn wit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit")
}

/// A component of a world in `wit/`, from a core module.
pub(crate) fn component(world: &str, module: &str) -> Vec<u8> {
    component_of(&[], world, module, StringEncoding::UTF8)
}

/// The same with texts in another encoding, and of a world that may stand in the last of further
/// packages, each of which may use those before it.
pub(crate) fn component_of(
    packages: &[&str],
    world: &str,
    module: &str,
    texts: StringEncoding,
) -> Vec<u8> {
    component_by(&wit(), packages, world, module, texts)
}

/// The same by the contract in a folder. Interfaces that are imported in several versions stay so,
/// as in what other tools link together.
pub(crate) fn component_by(
    contract: &Path,
    packages: &[&str],
    world: &str,
    module: &str,
    texts: StringEncoding,
) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let (mut package, _) = resolve.push_dir(contract).unwrap();
    for text in packages {
        package = resolve.push_str("test.wit", text).unwrap();
    }
    let world = resolve.select_world(&[package], Some(world)).unwrap();
    let mut module = wat::parse_str(module).unwrap();
    embed_component_metadata(&mut module, &resolve, world, texts).unwrap();
    let encoder = ComponentEncoder::default().validate(true).merge_imports_based_on_semver(false);
    encoder.module(&module).unwrap().encode().unwrap()
}

/// Memory, allocation and ways to answer.
const COMMON: &str = r#"
    (memory $m (export "memory") 17)
    (global $heap (mut i32) (i32.const 524288))
    (func $realloc (export "cabi_realloc") (param i32 i32) (param $align i32) (param $size i32) (result i32)
        (local $at i32)
        (local.set $at (i32.and
            (i32.add (global.get $heap) (i32.sub (local.get $align) (i32.const 1)))
            (i32.sub (i32.const 0) (local.get $align))))
        (global.set $heap (i32.add (local.get $at) (local.get $size)))
        (block $enough (loop $grow
            (br_if $enough (i32.le_u (global.get $heap) (i32.mul (memory.size) (i32.const 65536))))
            (br_if $grow (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))
            unreachable))
        (local.get $at))
"#;

/// `$ok` and `$fail` of a tool, and its description at 1024 with texts from 2048.
const TOOL: &str = r#"
    (func $ok (param $at i32) (param $len i32) (result i32)
        (i32.store (i32.const 4104) (local.get $at))
        (i32.store (i32.const 4108) (local.get $len))
        (i32.const 4096))
    (func $fail (param $at i32) (param $len i32) (result i32)
        (i32.store8 (i32.const 4096) (i32.const 1))
        (i32.store (i32.const 4116) (local.get $at))
        (i32.store (i32.const 4120) (local.get $len))
        (i32.const 4096))
    (data (i32.const 1024) "\10\04\00\00\01\00\00\00")
    (data (i32.const 1040) "\00\08\00\00\03\00\00\00")
    (data (i32.const 1060) "\00\08\00\00\03\00\00\00\10\08\00\00\11\00\00\00")
    (data (i32.const 2048) "run")
    (data (i32.const 2064) "{\"type\":\"object\"}")
    (data (i32.const 2100) "true")
"#;

/// The code of a plain `describe`.
pub(crate) const DESCRIBE: &str = "(i32.const 1024)";

/// A tool from its imports and the code of `run`. More items may follow the code's last
/// parenthesis.
pub(crate) fn tool_bytes(imports: &str, run: &str) -> Vec<u8> {
    tool_with(imports, DESCRIBE, run)
}

/// The same with code of its own for `describe`.
pub(crate) fn tool_with(imports: &str, describe: &str, run: &str) -> Vec<u8> {
    component("tool", &tool_module(imports, describe, run))
}

/// The core module of a tool.
pub(crate) fn tool_module(imports: &str, describe: &str, run: &str) -> String {
    format!(
        r#"(module {imports} {COMMON} {TOOL}
            (func (export "taskrun:plugin/tools@0.1.0#describe") (result i32) {describe})
            (func (export "taskrun:plugin/tools@0.1.0#call") (param $call i32) (result i32) {run}))"#
    )
}

/// A call whose result is `true`.
pub(crate) const OK: &str = "(call $ok (i32.const 2100) (i32.const 4))";

/// An agent whose first step runs this code before its final response, the text `done`.
pub(crate) fn agent_bytes(imports: &str, plan: &str) -> Vec<u8> {
    component("agent", &agent_module(imports, plan))
}

/// The core module of an agent.
pub(crate) fn agent_module(imports: &str, plan: &str) -> String {
    format!(
        r#"(module {imports} {COMMON}
            (data (i32.const 2048) "done")
            (func $respond (result i32)
                (i32.store8 (i32.const 4104) (i32.const 1))
                (i32.store8 (i32.const 4112) (i32.const 2))
                (i32.store (i32.const 4116) (i32.const 6000))
                (i32.store (i32.const 4120) (i32.const 1))
                (i32.store (i32.const 6008) (i32.const 2048))
                (i32.store (i32.const 6012) (i32.const 4))
                (i32.const 4096))
            (func (export "taskrun:plugin/planner@0.1.0#plan-start") (param i32) (result i32)
                {plan} (call $respond))
            (func (export "taskrun:plugin/planner@0.1.0#plan-resume") (param i32) (result i32)
                unreachable))"#
    )
}

/// The policy's agent `tester` with these lines in its table.
pub(crate) fn grants(lines: &str) -> AgentGrants {
    let text = format!("[agent.tester]\ncomponent = \"a.wasm\"\n{lines}\n");
    let policy = Policy::parse(&text, Path::new("taskrun.toml")).unwrap();
    AgentGrants::of_agent(&policy.agents["tester"])
}

/// Under limits instead of rules.
pub(crate) fn limited(change: impl FnOnce(&mut Limits)) -> AgentGrants {
    let mut grants = grants("");
    change(&mut grants.limits);
    grants
}

pub(crate) async fn tool(
    engine: &Arc<Engine>,
    bytes: Vec<u8>,
    with: AgentGrants,
) -> Result<Arc<dyn Tool>, LoadError> {
    let loaded = engine.load(bytes).await?;
    engine.tool(&loaded, with).await
}

/// A call that may take this long.
pub(crate) fn scope(deadline: Duration, stop: StopSignal) -> Arc<CallScope> {
    scope_on(Arc::new(SystemClock::new()), deadline, stop)
}

pub(crate) fn scope_on(
    clock: Arc<dyn Clock>,
    deadline: Duration,
    stop: StopSignal,
) -> Arc<CallScope> {
    scope_with(|parts| {
        (parts.clock, parts.deadline, parts.stop) = (clock, deadline, stop);
    })
}

/// A patient scope, but for what is changed of it.
pub(crate) fn scope_with(change: impl FnOnce(&mut CallScopeParts)) -> Arc<CallScope> {
    let context = RunContext { run_id: "run-1".to_owned(), ..RunContext::default() };
    let mut parts = CallScopeParts {
        context,
        stop: StopSignal::never(),
        deadline: Duration::from_secs(60),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(7)),
        models: None,
        rules: CurrentRules::fixed(CallRules::nothing()),
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
    };
    change(&mut parts);
    Arc::new(CallScope::new(parts))
}

/// A patient scope that is never stopped.
pub(crate) fn patient() -> Arc<CallScope> {
    scope(Duration::from_secs(60), StopSignal::never())
}

/// The same for calls under these grants.
pub(crate) fn patient_under(with: &AgentGrants) -> Arc<CallScope> {
    scope_with(|parts| parts.rules = CurrentRules::fixed(rules(with)))
}

/// The rules of a scope for calls under these grants.
pub(crate) fn rules(with: &AgentGrants) -> CallRules {
    CallRules::new(Arc::clone(&with.grants), None)
}

pub(crate) fn call() -> ToolCall {
    ToolCall {
        timeout: None,
        name: "run".to_owned(),
        payload: "{}".to_owned(),
        tool_call_id: "call-1".to_owned(),
        parent_tool_call_id: None,
        agent_name: "tester".to_owned(),
        run_id: "run-1".to_owned(),
        session_id: "session-1".to_owned(),
        turn: 1,
        labels: BTreeMap::new(),
    }
}

pub(crate) type CallResult = Result<Result<ToolResult, ToolFailure>, CallAbort>;

/// Loads a tool without grants and calls it.
pub(crate) async fn run(bytes: Vec<u8>, with: AgentGrants) -> CallResult {
    let scope = patient_under(&with);
    run_in(bytes, with, scope).await
}

pub(crate) async fn run_in(bytes: Vec<u8>, with: AgentGrants, scope: Arc<CallScope>) -> CallResult {
    let tool = tool(&engine(), bytes, with).await.unwrap();
    ask(&*tool, call(), scope).await
}

/// Calls a tool.
pub(crate) async fn ask(tool: &dyn Tool, call: ToolCall, scope: Arc<CallScope>) -> CallResult {
    tool.call(call, scope).await.map(|answer| {
        answer.map(|reply| match reply {
            ToolReply::Value(value) => *value,
            ToolReply::Park(wait) => panic!("a component parks: {wait:?}"),
            ToolReply::Marked(_, mark) => panic!("a component speaks of its run: {mark:?}"),
        })
    })
}

/// The text that a tool failed with.
pub(crate) fn failure(result: CallResult) -> String {
    result.unwrap().unwrap_err().error.message
}

pub(crate) fn plan_input() -> PlanInput {
    PlanInput {
        messages: Arc::default(),
        run: RunContext::default(),
        reminders: Vec::new(),
        resume: None,
    }
}

/// The decisions that a scope was told.
pub(crate) fn decisions(scope: &CallScope) -> Vec<(String, String, String)> {
    let decision = |event| {
        let Event::PolicyDecision { capability, subject, rule, .. } = event else { return None };
        Some((capability, subject, rule))
    };
    scope.finish().events.into_iter().filter_map(decision).collect()
}
