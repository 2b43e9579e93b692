//! Measures the CPU time of `taskrun top` on a terminal while many runs are open, and fails above
//! 5 % of a core. Prints one JSON object.
//!
//! `cargo bench -p taskrun-cli --bench top -- [RUNS [SECONDS]]`; 10,000 runs and 20 seconds
//! otherwise. All of them are running.

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::machine;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{Admission, NewRun, Store};
use taskrun_journal::time::Timestamp;
use taskrun_store::SqliteStore;

/// The share of a core that it may use, in percent.
const CPU_PERCENT_MAX: f64 = 5.0;
/// The size of the terminal: one of a large screen.
static SIZE: libc::winsize = libc::winsize { ws_row: 60, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
/// When the first run was accepted, in milliseconds.
const BASE_MS: u64 = 1_700_000_000_000;

fn main() -> ExitCode {
    let args: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let runs = args.first().copied().unwrap_or(10_000);
    let seconds = args.get(1).copied().unwrap_or(20);
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("taskrun.toml"), "").expect("a policy");
    fill(folder.path(), runs);
    let percent = measure(folder.path(), Duration::from_secs(seconds));
    println!("{{\"open_runs\":{runs},\"seconds\":{seconds},\"cpu_percent\":{percent:.2}}}");
    if percent > CPU_PERCENT_MAX { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Keeps runs that a host began and that have not ended.
fn fill(folder: &Path, runs: u64) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let store = SqliteStore::open(folder.join(".taskrun"), Default::default()).expect("a store");
    let store = std::sync::Arc::new(store);
    runtime.expect("a runtime").block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..runs {
            let store = std::sync::Arc::clone(&store);
            tasks.spawn(async move { store.create(open_run(number)).await.map(|_| ()) });
        }
        while let Some(kept) = tasks.join_next().await {
            kept.expect("no panic").expect("it is kept");
        }
    });
}

fn open_run(number: u64) -> NewRun {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    let id = RunId::generate(BASE_MS + number, &random);
    let at = Timestamp(BASE_MS + number);
    let spec = RunSpec {
        tenant: "default".to_owned(),
        task: "look something up and say what was found".to_owned(),
        root_run_id: id.clone(),
        created_at: at,
        ..taskrun_fixtures::spec(id.as_str())
    };
    let first = EventRecord { seq: 1, id: at.0, at, event: Event::Queued { spec: Box::new(spec) } };
    let mut run = machine::begin(&first).expect("a beginning");
    let started = Event::Started {
        host: HostId::new("gone"),
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

/// The CPU time of the program while it shows the runs, in percent of that time.
#[expect(clippy::disallowed_methods, reason = "a share of a core is measured in real time")]
fn measure(folder: &Path, time: Duration) -> f64 {
    let (mut screen, terminal) = pseudo_terminal();
    let end = || Stdio::from(terminal.try_clone().expect("a descriptor"));
    let mut program = Command::new(env!("CARGO_BIN_EXE_taskrun"))
        .args(["--config", "taskrun.toml", "top"])
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
    while !screen.contains("open runs") {
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
