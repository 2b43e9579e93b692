//! Measures what durability costs: SQLite store and controller, agents that are closures. Prints
//! one JSON object; progress goes to stderr.
//!
//! `cargo bench -p taskrun-benches --bench durable -- [--quick] [--dir DIR] [--part PART]
//! [--compare FILE]`.
//! `DIR` is a folder on a real disk, as what is measured is mostly that; the default is where
//! cargo builds. Each part runs in a process of its own, so that none inherits the caches and the
//! heap of another; `--part` runs one of them alone and prints its JSON. With `--quick` the stores
//! are small and the figures only show that everything works.
//!
//! CPU is that of the whole process and holds on a loaded machine; wall times do not.

mod blocked;
mod fill;
mod floor;
mod growth;
mod host;
mod list;
mod start;
mod throughput;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use serde_json::{Map, Value, json};
use taskrun::clock::SystemClock;
use taskrun_journal::time::Clock;

/// The extent of the measurements.
pub(crate) struct Sizes {
    /// The time for which each figure of throughput is measured, and the number of times.
    pub(crate) time: Duration,
    pub(crate) rounds: usize,
    /// Runs that have ended in the stores that are compared, smallest first.
    pub(crate) stores: [u64; 3],
    /// Runs that a dead host holds in the largest.
    pub(crate) unfinished: u64,
    /// Pages listed with each filter.
    pub(crate) pages: usize,
    /// Runs that wait for an answer.
    pub(crate) blocked: u64,
}

const FULL: Sizes = Sizes {
    time: Duration::from_secs(3),
    rounds: 3,
    stores: [1_000, 100_000, 1_000_000],
    unfinished: 10_000,
    pages: 200,
    blocked: 100_000,
};

const QUICK: Sizes = Sizes {
    time: Duration::from_millis(300),
    rounds: 1,
    stores: [200, 1_000, 5_000],
    unfinished: 500,
    pages: 20,
    blocked: 2_000,
};

/// The request of the command line.
struct Args {
    quick: bool,
    dir: PathBuf,
    part: Option<String>,
}

/// The parts, in the order in which they are measured. `start` uses the largest store of `growth`.
const PARTS: [&str; 4] = ["throughput", "blocked", "growth", "start"];

fn main() -> ExitCode {
    let asked = taskrun_benches::Args::of_process()
        .and_then(|asked| Ok((parse(asked.words.iter().cloned())?, asked)));
    let (args, asked) = match asked {
        Ok(asked) => asked,
        Err(wrong) => {
            let parts = PARTS.join("|");
            let known = format!("known are --quick, --dir DIR, --compare FILE, --part {parts}");
            return taskrun_benches::refused(&format!("{wrong}; {known}"));
        }
    };
    let report = match &args.part {
        Some(part) => measure(part, &args),
        None => all(&args),
    };
    match report {
        Some(report) => {
            asked.print(report);
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    }
}

fn parse(mut given: impl Iterator<Item = String>) -> Result<Args, String> {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).to_owned();
    let mut args = Args { quick: false, dir: built, part: None };
    while let Some(word) = given.next() {
        match word.as_str() {
            "--quick" => args.quick = true,
            "--dir" => args.dir = given.next().ok_or("--dir needs a folder")?.into(),
            "--part" => args.part = Some(given.next().ok_or("--part needs a name")?),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    Ok(args)
}

/// Runs every part in a process of its own.
fn all(args: &Args) -> Option<Value> {
    let folder = tempfile::Builder::new().prefix("durable-").tempdir_in(&args.dir);
    let folder = folder.expect("a folder in DIR");
    let program = std::env::current_exe().expect("this program");
    let mut report =
        Map::from_iter([("v".to_owned(), json!(1)), ("quick".to_owned(), json!(args.quick))]);
    for part in PARTS {
        let mut child = Command::new(&program);
        child.args(["--part", part, "--dir"]).arg(folder.path());
        child.args(args.quick.then_some("--quick")).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = child.output().expect("starts");
        let found = serde_json::from_slice::<Map<String, Value>>(&output.stdout);
        let (true, Ok(mut found)) = (output.status.success(), found) else {
            eprintln!("{part}: failed, {}", output.status);
            return None;
        };
        // The whole report says it.
        found.remove("machine");
        report.insert(part.to_owned(), found.into());
    }
    Some(Value::Object(report))
}

fn measure(part: &str, args: &Args) -> Option<Value> {
    let runtime = taskrun_runtime::control_plane().expect("a runtime");
    let sizes = if args.quick { &QUICK } else { &FULL };
    let dir = &args.dir;
    match part {
        "throughput" => Some(runtime.block_on(throughput::measure(dir, sizes))),
        "blocked" => Some(runtime.block_on(blocked::measure(dir, sizes))),
        "growth" => Some(runtime.block_on(growth::measure(dir, sizes))),
        "start" => Some(runtime.block_on(start::measure(dir, sizes))),
        other => {
            eprintln!("there is no part {other:?}; there are {}", PARTS.join(", "));
            None
        }
    }
}

/// The folder of a store with so many ended runs.
pub(crate) fn store_dir(dir: &Path, runs: u64) -> PathBuf {
    dir.join(format!("runs-{runs}"))
}

/// Tells whoever waits how far it is.
pub(crate) fn say(text: &str) {
    eprintln!("durable: {text}");
}

/// Real time that passes while something is done.
pub(crate) struct Watch {
    clock: SystemClock,
    began: Duration,
}

impl Watch {
    pub(crate) fn start() -> Self {
        let clock = SystemClock::new();
        let began = clock.monotonic();
        Self { clock, began }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.monotonic().saturating_sub(self.began)
    }

    pub(crate) fn ms(&self) -> f64 {
        self.elapsed().as_secs_f64() * 1e3
    }
}
