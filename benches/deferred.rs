//! Measures the memory of a host with a thousand deferred runs over a simulated hour beside that of a
//! host with none, and fails where it is more than a mebibyte larger. Prints one JSON object.
//!
//! `cargo bench -p taskrun-benches --bench deferred -- [RUNS [HOSTS]]`; 1,000 and 3 otherwise. Real
//! components and the store on disk. Each host is a process of its own, so many of each kind:
//!
//! - `opened`: a host that begins in a data directory in which runs are deferred, beside one in which
//!   there are none.
//! - `worked`: a host that executed these runs until they deferred themselves, beside one whose runs
//!   ended in the same number of steps.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use taskrun::autonomy::AutonomyRequest;
use taskrun::clock::SimulatedClock;
use taskrun::controller::Client;
use taskrun::spawn::SpawnRequest;
use taskrun_benches::{percentile, resident_bytes};
use taskrun_examples::SCRIPTED;
use taskrun_journal::list::Scope;
use taskrun_journal::run::Run;
use taskrun_journal::time::Timestamp;
use taskrun_runtime::{Options, Runtime};

/// The most by which a host with deferred runs may be larger.
const GOAL_MIB: f64 = 1.0;
const MIB: f64 = 1_048_576.0;
const RUNS_DEFAULT: usize = 1_000;
const HOSTS_DEFAULT: usize = 3;
/// Runs that are asked for at the same time.
const AT_ONCE: usize = 32;
/// Real time after which a host that does nothing has given back what it gives back, fifteen seconds
/// after its last write.
const REST: Duration = Duration::from_secs(20);
/// Real time in which a host looks a few times whether anything is due.
const LOOKS: Duration = Duration::from_secs(4);
const HOUR: Duration = Duration::from_secs(3_600);
/// The time of day at which each host begins, in milliseconds.
const BEGIN: Timestamp = Timestamp(1_800_000_000_000);

const POLICY: &str = "
[agent.worker]
component = \"scripted.wasm\"
autonomous = {}
";

/// The end to which the runs of a host come.
#[derive(Clone, Copy)]
enum Work {
    /// They wait for their next round for a day.
    Defer,
    /// They are done.
    End,
}

impl Work {
    fn word(self) -> &'static str {
        match self {
            Self::Defer => "defer",
            Self::End => "end",
        }
    }

    fn of(word: &str) -> Option<Self> {
        [Self::Defer, Self::End].into_iter().find(|work| work.word() == word)
    }

    /// Two steps of an agent.
    fn script(self) -> String {
        let call = match self {
            Self::Defer => {
                json!({ "name": "host/schedule_next_turn", "args": { "wake_in_sec": 86_400 } })
            }
            Self::End => json!({ "name": "report_done", "args": { "detail": "looked" } }),
        };
        json!({ "steps": [[{ "call": call }], [{ "reply": "Nothing to do." }]] }).to_string()
    }

    fn is_over(self, run: &Run) -> bool {
        match self {
            Self::Defer => run.state.rounds.due.is_some(),
            Self::End => run.status().is_terminal(),
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["work", folder, word, runs] => {
            let work = Work::of(word).expect("a kind of work");
            host(folder.as_ref(), Some((work, runs.parse().expect("a number"))), REST)
        }
        ["open", folder] => host(folder.as_ref(), None, REST),
        ["compile", folder] => host(folder.as_ref(), Some((Work::End, 1)), Duration::ZERO),
        numbers => {
            let numbers: Result<Vec<usize>, _> = numbers.iter().map(|word| word.parse()).collect();
            match numbers.as_deref() {
                Ok([]) => compare(RUNS_DEFAULT, HOSTS_DEFAULT),
                Ok([runs]) => compare(*runs, HOSTS_DEFAULT),
                Ok([runs, hosts]) => compare(*runs, *hosts),
                Ok(_) | Err(_) => {
                    eprintln!("it takes a number of runs, and one of hosts");
                    ExitCode::from(2)
                }
            }
        }
    }
}

/// Measures all hosts.
fn compare(runs: usize, hosts: usize) -> ExitCode {
    let (mut none, mut opened) = (Vec::new(), Vec::new());
    let (mut ended, mut worked) = (Vec::new(), Vec::new());
    for round in 1..=hosts {
        eprintln!("deferred: round {round} of {hosts}");
        let [empty, with_ended, with_deferred] = [0; 3].map(|_| furnished());
        let count = runs.to_string();
        // The first host of a folder compiles.
        for folder in [&empty, &with_ended, &with_deferred] {
            child(&["compile", &text(folder.path())]);
        }
        none.push(child(&["open", &text(empty.path())]));
        ended.push(child(&["work", &text(with_ended.path()), Work::End.word(), &count]));
        worked.push(child(&["work", &text(with_deferred.path()), Work::Defer.word(), &count]));
        opened.push(child(&["open", &text(with_deferred.path())]));
    }
    let median = |figures: &[f64]| percentile(figures, 50);
    let grown =
        [(&none, &opened), (&ended, &worked)].map(|(one, other)| median(other) - median(one));
    let report = json!({
        "unit": "MiB resident after a simulated hour, at rest; medians",
        "deferred_runs": runs,
        "opened": { "none": median(&none), "deferred": median(&opened), "grown": grown[0] },
        "worked": { "ended": median(&ended), "deferred": median(&worked), "grown": grown[1] },
        "goal_grown": GOAL_MIB,
        "all": { "none": none, "opened": opened, "ended": ended, "worked": worked },
    });
    println!("{report:#}");
    if grown.iter().all(|grown| *grown <= GOAL_MIB) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A folder with a policy and its component.
fn furnished() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("scripted.wasm"), SCRIPTED.bytes).expect("written");
    std::fs::write(folder.path().join("taskrun.toml"), POLICY).expect("written");
    folder
}

/// The figure that this program prints with these arguments.
fn child(args: &[&str]) -> f64 {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program);
    let output = child.args(args).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.expect("starts");
    assert!(output.status.success(), "{args:?}: {}", output.status);
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("MiB")
}

/// Is a host over a folder, and prints its memory in MiB after an hour at rest.
fn host(folder: &Path, work: Option<(Work, usize)>, rest: Duration) -> ExitCode {
    taskrun_runtime::control_plane().expect("a runtime").block_on(async {
        let clock = Arc::new(SimulatedClock::new(BEGIN));
        let options = Options::new(folder.join("taskrun.toml"), folder.join("data"));
        let host = Runtime::open(Options { clock: clock.clone(), ..options }).await.expect("opens");
        let client = host.controller().at(&Scope::tenant("default"));
        if let Some((work, runs)) = work {
            execute(&client, work, runs).await;
        }
        tokio::time::sleep(rest).await;
        clock.advance(HOUR);
        tokio::time::sleep(LOOKS).await;
        println!("{}", resident_bytes() / MIB);
        host.shutdown().await;
    });
    ExitCode::SUCCESS
}

/// Has runs executed until that is over.
async fn execute(client: &Client, work: Work, runs: usize) {
    let request = SpawnRequest {
        owner_user_id: "owner".to_owned(),
        agent_name: "worker".to_owned(),
        one_shot: true,
        task: work.script(),
        autonomous: Some(AutonomyRequest::default()),
        ..SpawnRequest::default()
    };
    let mut left = runs;
    while left > 0 {
        let some = left.min(AT_ONCE);
        let accepted = (0..some).map(|_| client.spawn(&request));
        for run in futures::future::join_all(accepted).await {
            let run = run.expect("accepted");
            let over = client.wait_for(run.id().as_str(), None, |run| work.is_over(run));
            assert!(!over.await.expect("is there").timed_out);
        }
        left -= some;
    }
}
