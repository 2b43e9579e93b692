//! Measures what it costs that policies change under runs: real components, the store on disk.
//! Prints one JSON object; progress goes to stderr.
//!
//! `cargo bench -p taskrun-benches --bench deployments -- [--quick] [--part PART]`.
//! Each part runs in a process of its own; `--part` runs one of them alone. With `--quick` there are
//! few runs, and the figures only show that everything works.
//!
//! - `closures`: two terminals accept 1,000 runs under two versions of a policy, of 100 closures in
//!   all; one host executes them, each as it was accepted, and stays small.
//! - `reload`: a policy of 100 agents changes five times while 64 runs are under way.

mod closures;
mod reload;

use std::process::{Command, ExitCode, Stdio};

use serde_json::{Map, Value, json};
use taskrun::spawn::SpawnRequest;

/// The extent of the measurements.
pub(crate) struct Sizes {
    /// Closures of which runs are accepted, and those runs.
    pub(crate) closures: usize,
    pub(crate) runs: usize,
    /// Agents of the policy that changes, the runs under way, and their turns.
    pub(crate) agents: usize,
    pub(crate) under_way: usize,
    pub(crate) turns: usize,
    /// The number of its changes.
    pub(crate) changes: usize,
}

const FULL: Sizes =
    Sizes { closures: 100, runs: 1_000, agents: 100, under_way: 64, turns: 600, changes: 5 };

const QUICK: Sizes =
    Sizes { closures: 42, runs: 84, agents: 10, under_way: 8, turns: 220, changes: 1 };

/// The parts, in the order in which they are measured.
const PARTS: [&str; 2] = ["closures", "reload"];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (quick, words) = match words.as_slice() {
        ["--quick", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let sizes = if quick { &QUICK } else { &FULL };
    let report = match words {
        [] => all(quick),
        ["--part", "closures"] => Some(within(closures::measure(sizes))),
        ["--part", "reload"] => Some(within(reload::measure(sizes))),
        ["--part", "accept", folder, version, first, last, runs] => {
            let number = |text: &str| text.parse().expect("a number");
            let agents = number(first)..number(last);
            Some(within(closures::accept(folder.as_ref(), version, agents, number(runs))))
        }
        _ => {
            eprintln!("known are --quick, and after it --part {}", PARTS.join("|"));
            return ExitCode::from(2);
        }
    };
    match report {
        Some(report) => {
            println!("{report:#}");
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    }
}

/// Runs every part in a process of its own.
fn all(quick: bool) -> Option<Value> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut report = Map::from_iter([
        ("v".to_owned(), json!(1)),
        ("quick".to_owned(), json!(quick)),
        ("cores".to_owned(), json!(cores)),
    ]);
    for part in PARTS {
        let flag = quick.then_some("--quick");
        let args: Vec<&str> = flag.into_iter().chain(["--part", part]).collect();
        report.insert(part.to_owned(), apart(&args)?);
    }
    Some(Value::Object(report))
}

/// Runs this program with these arguments and gives what it printed.
pub(crate) fn apart(args: &[&str]) -> Option<Value> {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program);
    child.args(args).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = child.output().expect("starts");
    let found = serde_json::from_slice(&output.stdout);
    let (true, Ok(found)) = (output.status.success(), found) else {
        eprintln!("{}: failed, {}", args.join(" "), output.status);
        return None;
    };
    Some(found)
}

fn within<T>(measured: impl Future<Output = T>) -> T {
    let runtime = taskrun_runtime::control_plane().expect("a runtime");
    runtime.block_on(measured)
}

/// Tells whoever waits how far it is.
pub(crate) fn say(text: &str) {
    eprintln!("deployments: {text}");
}

pub(crate) fn request(agent: &str, task: &str) -> SpawnRequest {
    SpawnRequest {
        agent_name: agent.to_owned(),
        task: task.to_owned(),
        owner_user_id: "owner".to_owned(),
        parent_session_id: "parent".to_owned(),
        ..SpawnRequest::default()
    }
}
