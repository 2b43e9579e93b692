//! A cold start: process, engine, components from the cache, one tool call.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::ports::tool::{ToolCall, ToolReply};
use taskrun::scope::{
    CallScope, CallScopeParts, CurrentRules, Remaining, RunContext, ScopeLimits, Services,
    StopSignal,
};
use taskrun_engine::{Cache, Engine, EngineOptions};
use taskrun_policy::{CallRules, Policy};

/// First argument of the process that is measured.
pub(crate) const CHILD: &str = "cold-start-child";

/// The measurements, start by start.
pub(crate) struct Starts {
    pub(crate) ms: Vec<f64>,
    pub(crate) resident_mib: Vec<f64>,
}

/// Starts a process so many times and measures each until it says that it has its answer.
pub(crate) fn starts(count: usize) -> Starts {
    let folder = tempfile::tempdir().expect("a folder");
    crate::product::furnish(folder.path());
    let program = std::env::current_exe().expect("this program");
    let mut starts = Starts { ms: Vec::new(), resident_mib: Vec::new() };
    // The first one compiles the components and fills the cache.
    for round in 0..=count {
        #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
        let began = Instant::now();
        let mut child = Command::new(&program)
            .arg(CHILD)
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut said = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        stdout.read_line(&mut said).expect("it speaks");
        let took = began.elapsed();
        assert!(child.wait().expect("it ends").success());
        let resident: f64 = said.trim().parse().expect("MiB");
        if round > 0 {
            starts.ms.push(took.as_secs_f64() * 1e3);
            starts.resident_mib.push(resident);
        }
    }
    starts
}

/// The process that is measured: prints its resident MiB at the first answer.
pub(crate) fn child(folder: Option<&str>) -> ExitCode {
    let Some(folder) = folder else { return ExitCode::FAILURE };
    let runtime = taskrun_runtime::control_plane().expect("a runtime");
    runtime.block_on(answer(Path::new(folder)));
    ExitCode::SUCCESS
}

async fn answer(folder: &Path) {
    let path = folder.join("taskrun.toml");
    let text = std::fs::read_to_string(&path).expect("it is there");
    let policy = Policy::parse(&text, &path).expect("valid");
    let cache = Cache::open(&folder.join("native")).expect("a cache");
    let options =
        EngineOptions { cache: Some(cache), guest_threads: Some(2), ..EngineOptions::default() };
    let engine = Engine::new(options).expect("an engine");
    // A host looks at the components of all agents, and loads those of one that is wanted.
    for path in policy.agents.values().flat_map(|agent| policy.files_of(agent)) {
        engine.examine_file(path).await.expect("a component");
    }
    let code = engine.load_code(&policy, &policy.agents["worker"]).await.expect("its code");
    let tool = code.tools.get("lookup/lookup").expect("the tool");
    let scope = CallScope::new(CallScopeParts {
        context: RunContext::default(),
        stop: StopSignal::new(engine.interrupt()),
        deadline: Duration::from_secs(10),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom),
        models: None,
        rules: CurrentRules::fixed(CallRules::new(
            Arc::clone(&policy.agents["worker"].grants),
            None,
        )),
        pins: Vec::new(),
        runs: None,
        tools: Arc::default(),
        state: BTreeMap::new(),
        services: Services::default(),
        remaining: Remaining::default(),
        limits: ScopeLimits { events: 100, bytes: 1 << 20 },
        wake: Arc::default(),
        journal: None,
        tape: None,
    });
    let call = ToolCall {
        timeout: None,
        name: tool.function.clone(),
        payload: r#"{"result":{"found":true}}"#.into(),
        tool_call_id: "call-1".into(),
        parent_tool_call_id: None,
        agent_name: "worker".into(),
        run_id: "run-1".into(),
        session_id: "session-1".into(),
        turn: 1,
        labels: BTreeMap::new(),
    };
    let answer = tool.tool.call(call, Arc::new(scope)).await.expect("not stopped");
    let found = |reply| match reply {
        ToolReply::Value(answer) => answer.value.contains("found"),
        ToolReply::Park(_) | ToolReply::Marked(..) => false,
    };
    assert!(answer.is_ok_and(found));
    println!("{}", taskrun_benches::resident_bytes() / f64::from(1 << 20));
}
