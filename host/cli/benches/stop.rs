//! Measures how soon a host ends that is told to by SIGTERM while it holds arguments to schemas for
//! which they are too dear, and fails where that takes more than 100 ms at p99. Prints one JSON
//! object.
//!
//! `cargo bench -p taskrun-cli --bench stop -- [HOSTS]`; 100 hosts otherwise, one after the other.
//! Each takes up the run that the one before has handed over, or begins one, and is told to end while
//! it works, at another moment each time. Beside it stands the end of as many hosts that have nothing
//! to do, in a folder of their own.

mod process;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use taskrun_benches::{Args, percentile, refused};
use taskrun_examples::evil;

/// Hosts that are told to end, unless another number is asked for.
const HOSTS: u64 = 100;
/// Most wall milliseconds from the signal to the end of the process, at p99.
const GOAL_MS: f64 = 100.0;
/// Dear calls of a run: more than a host comes to.
const BOMBS: usize = 200;
/// Longest that a run may take to go on under a host.
const GOES_ON_WITHIN: Duration = Duration::from_secs(60);
const POLICY: &str = r#"[tool.scripted]
component = "scripted-tool.wasm"

[tool.schema]
component = "evil-schema.wasm"

[agent.bomber]
component = "scripted.wasm"
tools = ["scripted/*", "schema/deep", "schema/example"]
budget = { turns = 1000 }
limits = { tool_calls = 1000, tool_failures = 1000 }
"#;

fn main() -> ExitCode {
    let args = match Args::of_process() {
        Ok(args) => args,
        Err(wrong) => return refused(&wrong),
    };
    let hosts = match args.words.as_slice() {
        [] => HOSTS,
        [number] => match number.parse() {
            Ok(hosts @ 1..) => hosts,
            Ok(_) | Err(_) => return refused("known is a number of hosts"),
        },
        _ => return refused("known is a number of hosts"),
    };
    let (work, rest) = (project(), project());
    let (mut idle, mut busy, mut run) = (Vec::new(), Vec::new(), None);
    for number in 0..hosts {
        idle.push(ended(rest.path(), || {}));
        busy.push(ended(work.path(), || at_work(work.path(), &mut run, number)));
    }
    let p99 = percentile(&busy, 99);
    args.print(json!({
        "v": 1,
        "unit": "ms wall, SIGTERM to the end of the process",
        "hosts": hosts,
        "p50": percentile(&busy, 50),
        "p99": p99,
        "goal_p99": GOAL_MS,
        "without_work": { "p50": percentile(&idle, 50), "p99": percentile(&idle, 99) },
    }));
    if p99 > GOAL_MS { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// A folder with a policy and its components.
fn project() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in [
        ("scripted.wasm", taskrun_examples::SCRIPTED.bytes),
        ("scripted-tool.wasm", taskrun_examples::SCRIPTED_TOOL.bytes),
        ("evil-schema.wasm", evil::SCHEMA.bytes),
        ("taskrun.toml", POLICY.as_bytes()),
        ("bombs.json", bombs().as_bytes()),
    ] {
        std::fs::write(folder.path().join(name), bytes).expect("written");
    }
    folder
}

/// The task of an agent that makes dear calls, with an honest one between two of them: mistakes without
/// one end a run.
fn bombs() -> String {
    let honest = json!([{ "call": { "name": "scripted/lookup", "args": { "result": 1 } } }]);
    let dear = evil::schema_bombs();
    let dear = dear.iter().filter(|(name, _)| matches!(*name, "deep" | "example"));
    let mut steps = Vec::new();
    for (name, args) in dear.cycle().take(BOMBS) {
        let args: Value = serde_json::from_str(args).expect("JSON");
        steps.push(json!([{ "call": { "name": format!("schema/{name}"), "args": args } }]));
        steps.push(honest.clone());
    }
    json!({ "steps": steps }).to_string()
}

/// Starts a host, has it come to its work, and gives the milliseconds in which it ends.
fn ended(folder: &Path, to_work: impl FnOnce()) -> f64 {
    let mut host = process::host(program(), folder);
    to_work();
    let pid = rustix::process::Pid::from_child(&host);
    let asked = now();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    let status = host.wait().expect("a child");
    let took = asked.elapsed();
    assert!(status.success(), "{status}");
    took.as_secs_f64() * 1e3
}

/// Returns when a run makes turns under the host that lives now, at a moment of one of them.
fn at_work(folder: &Path, run: &mut Option<String>, number: u64) {
    // One that the host before has handed over, unless it came to its end.
    let before = run.take().and_then(|id| Some((turns(folder, &id)?, id)));
    let (before, id) =
        before.unwrap_or_else(|| (0, output(folder, &["run", "bomber", "@bombs.json", "-d"])));
    let began = now();
    while turns(folder, &id).expect("it has more to do than a host comes to") <= before {
        assert!(began.elapsed() < GOES_ON_WITHIN, "{id} does not go on");
    }
    std::thread::sleep(Duration::from_millis(number % 40));
    *run = Some(id);
}

/// The turns of a run; `None` of one that has ended.
fn turns(folder: &Path, id: &str) -> Option<u64> {
    let run: Value =
        serde_json::from_str(&output(folder, &["get", id, "-o", "json"])).expect("JSON");
    let turns = run["turns"].as_u64().unwrap_or_else(|| panic!("{run}"));
    run["finished_at"].is_null().then_some(turns)
}

/// The output of a command.
fn output(folder: &Path, args: &[&str]) -> String {
    let output = process::command(program(), folder, args).output().expect("it starts");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_taskrun"))
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}
