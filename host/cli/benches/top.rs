//! Measures the CPU time of `taskrun top` on a terminal while many runs are open, and fails above
//! 5 % of a core. Prints one JSON object.
//!
//! `cargo bench -p taskrun-cli --bench top -- [RUNS [SECONDS]]`; 10,000 runs and 20 seconds
//! otherwise. All of them are running, in trees of one run that has three beneath it. It is measured
//! three times, so that the parts can be told apart: without a policy and with nobody who writes;
//! beside a policy with budgets, for whose rest trees are read; and while another process, this one,
//! writes to some hundreds of the runs all the time, those on the page among them.

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use serde_json::json;
use taskrun_benches::{Args, refused};
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::machine;
use taskrun_journal::message::Usage;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Admission, Append, AppendOutcome, Host, Hosts, NewRun, Store};
use taskrun_journal::time::Timestamp;
use taskrun_store::SqliteStore;
use tokio::runtime::Runtime;

/// The open runs unless another number is asked for.
const RUNS: u64 = 10_000;
/// The seconds for which each part is measured unless another number is asked for.
const SECONDS: u64 = 20;
/// The share of a core that it may use, in percent.
const CPU_PERCENT_MAX: f64 = 5.0;
/// The size of the terminal: one of a large screen.
static SIZE: libc::winsize = libc::winsize { ws_row: 60, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
/// When the first run was accepted, in milliseconds.
const BASE_MS: u64 = 1_700_000_000_000;
/// The runs of a tree.
const TREE: u64 = 4;
/// The runs that change: those of the last trees.
const CHANGING: u64 = 400;
/// The pause between two writes: fifty a second, so that each look finds a dozen runs changed.
const WRITE_EVERY: Duration = Duration::from_millis(20);

/// Budgets of every kind; runs of `lead` share theirs with those beneath them.
const POLICY: &str = "\
[agent.lead]\ncomponent = \"lead.wasm\"\nmembers = [\"worker\"]\n\
budget = { turns = 20, tokens = 1_000_000, usd = 5.0, wall = \"30d\" }\n\
[agent.worker]\ncomponent = \"worker.wasm\"\nbudget = { tokens = 100_000, wall = \"30d\" }\n";

fn main() -> ExitCode {
    let args = match Args::of_process() {
        Ok(args) => args,
        Err(wrong) => return refused(&wrong),
    };
    let numbers: Result<Vec<u64>, _> = args.words.iter().map(|word| word.parse()).collect();
    let (runs, seconds) = match numbers.as_deref() {
        Ok([]) => (RUNS, SECONDS),
        Ok([runs]) => (*runs, SECONDS),
        Ok([runs, seconds]) => (*runs, *seconds),
        Ok(_) | Err(_) => return refused("known are a number of runs, and one of seconds"),
    };
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("none.toml"), "").expect("a policy");
    std::fs::write(folder.path().join("budgets.toml"), POLICY).expect("a policy");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let store = SqliteStore::open(folder.path().join(".taskrun"), Default::default());
    let store = Arc::new(store.expect("a store"));
    let changing = fill(&runtime, &store, runs);
    let time = Duration::from_secs(seconds);
    let at_rest = measure(folder.path(), ("none.toml", "open runs"), time);
    let with_policy = measure(folder.path(), ("budgets.toml", "% "), time);
    let (percent, writes) = while_written(&runtime, &store, changing, || {
        measure(folder.path(), ("budgets.toml", "% "), time)
    });
    let rounded = |percent: f64| (percent * 100.0).round() / 100.0;
    args.print(json!({
        "v": 1,
        "runs": runs,
        "n": { "changing_runs": CHANGING, "seconds": seconds, "looks": seconds * 4, "writes": writes },
        "cpu_percent": rounded(percent),
        "goal_cpu_percent": CPU_PERCENT_MAX,
        "parts": {
            "at_rest_without_policy": rounded(at_rest),
            "with_budgets": rounded(with_policy - at_rest),
            "with_writes": rounded(percent - with_policy),
        },
    }));
    if percent > CPU_PERCENT_MAX { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Keeps runs that a host began and that have not ended; gives the last of them.
fn fill(runtime: &Runtime, store: &Arc<SqliteStore>, runs: u64) -> Vec<Run> {
    runtime.block_on(async {
        store.register(host()).await.expect("it is in the list");
        let mut tasks = tokio::task::JoinSet::new();
        for first in (0..runs).step_by(usize::try_from(TREE).expect("a small number")) {
            let store = Arc::clone(store);
            tasks.spawn(async move {
                let mut kept = Vec::new();
                for number in first..runs.min(first + TREE) {
                    let new = open_run(number);
                    kept.push((number, new.run.clone()));
                    store.create(new).await.expect("it is kept");
                }
                kept
            });
        }
        let mut kept = tasks.join_all().await.concat();
        kept.sort_by_key(|(number, _)| *number);
        let rest = kept.split_off(kept.len().saturating_sub(CHANGING as usize));
        rest.into_iter().map(|(_, run)| run).collect()
    })
}

/// Does something while the runs consume tokens, one after the other; says how often one did.
fn while_written<T>(
    runtime: &Runtime,
    store: &Arc<SqliteStore>,
    mut runs: Vec<Run>,
    work: impl FnOnce() -> T,
) -> (T, u64) {
    let (is_over, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (over, count, store) = (Arc::clone(&is_over), Arc::clone(&written), Arc::clone(store));
    let writer = runtime.spawn(async move {
        let mut every = tokio::time::interval(WRITE_EVERY);
        let all = runs.len();
        for nth in (0..all).cycle() {
            every.tick().await;
            if over.load(Ordering::Relaxed) {
                break;
            }
            consume(&store, &mut runs[nth]).await;
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let done = work();
    is_over.store(true, Ordering::Relaxed);
    runtime.block_on(writer).expect("no panic");
    (done, written.load(Ordering::Relaxed))
}

/// Records that a run consumed some tokens just now.
#[expect(clippy::disallowed_methods, reason = "the runs that changed last are shown first")]
async fn consume(store: &SqliteStore, run: &mut Run) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let at = Timestamp(u64::try_from(now.expect("after 1970").as_millis()).expect("a time"));
    let usage = Usage { total_tokens: 10, cost_microusd: 10, ..Usage::default() };
    let head = run.state.head;
    let event = Event::Usage { usage };
    let record = EventRecord { seq: head + 1, id: at.0 ^ (head << 48), at, event };
    run.state = machine::apply(run.state.clone(), &record).expect("it fits");
    let append = Append {
        run: Arc::new(run.clone()),
        epoch: 1,
        expected_head: head,
        events: vec![record].into(),
        artifacts: Vec::new(),
        reports: None,
    };
    assert_eq!(store.append(append).await.expect("it is kept"), AppendOutcome::Done);
}

/// The host that has the runs, and is alive for all of the time: nobody takes them from it.
fn host() -> Host {
    Host {
        id: HostId::new("busy"),
        pid: std::process::id(),
        policy: "budgets.toml".to_owned(),
        agents: Arc::default(),
        subscribers: Arc::default(),
        started_at: Timestamp(BASE_MS),
        slots: 64,
        lease: Duration::from_secs(24 * 60 * 60),
    }
}

fn id(number: u64) -> RunId {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    RunId::generate(BASE_MS + number, &random)
}

fn open_run(number: u64) -> NewRun {
    let (id, root) = (id(number), id(number - number % TREE));
    let at = Timestamp(BASE_MS + number);
    let is_lead = id == root;
    let spec = RunSpec {
        tenant: "default".to_owned(),
        agent_name: if is_lead { "lead" } else { "worker" }.to_owned(),
        task: "look something up and say what was found".to_owned(),
        parent_run_id: (!is_lead).then(|| root.clone()),
        depth: u32::from(!is_lead),
        root_run_id: root,
        created_at: at,
        ..taskrun_fixtures::spec(id.as_str())
    };
    let first = EventRecord { seq: 1, id: at.0, at, event: Event::Queued { spec: Arc::new(spec) } };
    let mut run = machine::begin(&first).expect("a beginning");
    let started = Event::Started {
        host: HostId::new("busy"),
        epoch: 1,
        child_session_id: "session".to_owned(),
        request_id: "request".to_owned(),
        batch: None,
    };
    let started = EventRecord { seq: 2, id: at.0 + 1, at, event: started };
    run.state = machine::apply(run.state, &started).expect("it fits");
    NewRun {
        run,
        events: vec![first, started],
        idempotency: None,
        task: None,
        artifacts: Vec::new(),
        admission: Admission::UNBOUNDED,
    }
}

/// The CPU time of the program, once it has shown something, while it shows the runs beside a policy,
/// in percent of that time.
#[expect(clippy::disallowed_methods, reason = "a share of a core is measured in real time")]
fn measure(folder: &Path, (policy, shown): (&str, &str), time: Duration) -> f64 {
    let (mut screen, terminal) = pseudo_terminal();
    let end = || Stdio::from(terminal.try_clone().expect("a descriptor"));
    let mut program = Command::new(env!("CARGO_BIN_EXE_taskrun"))
        .args(["--config", policy, "--data-dir", ".taskrun", "top"])
        .current_dir(folder)
        .env("TERM", "xterm-256color")
        .stdin(end())
        .stdout(end())
        .stderr(end())
        .spawn()
        .expect("it starts");
    drop(terminal);
    let (wrote, drawn) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 1 << 16];
        while let Ok(count) = screen.read(&mut buffer)
            && count > 0
            && wrote.send(String::from_utf8_lossy(&buffer[..count]).into_owned()).is_ok()
        {}
    });
    let mut screen = String::new();
    while !screen.contains(shown) {
        let drew = drawn.recv_timeout(Duration::from_secs(60));
        screen += &drew.unwrap_or_else(|error| panic!("{error}: {screen}"));
    }
    let stat = format!("/proc/{}/stat", program.id());
    let (before, begin) = (ticks(&stat), Instant::now());
    std::thread::sleep(time);
    let (used, passed) = (ticks(&stat) - before, begin.elapsed());
    let ended = program.try_wait().expect("a child");
    assert!(ended.is_none(), "it has ended: {ended:?}: {screen}");
    program.kill().expect("it is there");
    program.wait().expect("it ends");
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    used as f64 / per_second / passed.as_secs_f64() * 100.0
}

/// The ticks of the CPU that a process has used, in user mode and in the kernel.
fn ticks(stat: &str) -> u64 {
    let text = std::fs::read_to_string(stat).expect("Linux tells, and the program runs");
    // The name, which may have spaces, ends with the last parenthesis.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let fields: Vec<u64> =
        fields.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    fields[11] + fields[12]
}

#[expect(unsafe_code, reason = "pseudo-terminals are had from the C library only")]
fn pseudo_terminal() -> (File, OwnedFd) {
    let (mut master, mut slave) = (-1, -1);
    let (name, modes) = (std::ptr::null_mut(), std::ptr::null());
    // SAFETY: both point to integers, and the size is there; names and modes are not asked for.
    let made =
        unsafe { libc::openpty(&raw mut master, &raw mut slave, name, modes, &raw const SIZE) };
    assert_eq!(made, 0, "a pseudo-terminal");
    // SAFETY: both were opened just now, and nobody else has them.
    let (master, slave) = unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
    (master.into(), slave)
}
