//! Waiting for many runs at once, by many processes: none hangs, whatever else the machine does.

use std::process::Child;
use std::sync::mpsc;
use std::time::Duration;

use taskrun_journal::event::Event;
use taskrun_journal::ids::RunId;
use taskrun_journal::machine;
use taskrun_journal::store::{Admission, CreateOutcome, NewRun, Store};
use taskrun_store::{Durability, SqliteOptions, SqliteStore};

use crate::project::Project;

/// Runs that each wait is for: many times as many as a store has readers.
const RUNS: usize = 256;
/// Waits of which each is a process of its own, unless TASKRUN_WAITS says otherwise.
const WAITS: usize = 30;
/// Waits that are under way together: the load of a busy machine.
const AT_ONCE: usize = 6;
/// The time of a wait by the command line, and then by the test, which ends it the hard way.
const TIMEOUT: &str = "60s";
const HANGS: Duration = Duration::from_secs(240);

/// So many runs that have ended: one, and copies of it under other ids.
fn ended_runs(project: &Project) -> Vec<String> {
    let first = project.run(&["run", "fragile", "nothing to do", "--wait", "-o", "name"]);
    let first = first.stdout.trim().to_owned();
    project.end_hosts();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let ids = runtime.block_on(async {
        let options = SqliteOptions { durability: Durability::Process, ..SqliteOptions::default() };
        let store = SqliteStore::open(project.path().join(".taskrun"), options).expect("opens");
        let id = RunId::new(&first).expect("an id");
        let mut events = store.read(&id, 0, 1_000).await.expect("reads");
        let mut ids = vec![first.clone()];
        while ids.len() < RUNS {
            let id = format!("copy-{}", ids.len());
            if let Event::Queued { spec } = &mut events[0].event {
                spec.id = RunId::new(&id).expect("an id");
                spec.root_run_id = spec.id.clone();
            }
            let run = machine::fold(&events).expect("a run");
            assert!(run.status().is_terminal(), "{}", run.status());
            let (events, admission) = (events.clone(), Admission::UNBOUNDED);
            let artifacts = Vec::new();
            let new = NewRun { run, events, idempotency: None, task: None, artifacts, admission };
            assert!(matches!(store.create(new).await, Ok(CreateOutcome::New)));
            ids.push(id);
        }
        store.close();
        ids
    });
    runtime.shutdown_background();
    ids
}

/// Waits for the end of a process; ends it if that does not come.
fn ends(mut child: Child) -> Option<i32> {
    let pid = rustix::process::Pid::from_child(&child);
    let (end, ended) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let status = child.wait().expect("it is ours");
        end.send(()).ok();
        status.code()
    });
    if ended.recv_timeout(HANGS).is_err() {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
    }
    waiter.join().expect("it has waited")
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "how often it is done is asked for in the environment"
)]
fn waits_for_many_ended_runs_all_come_back() {
    let waits =
        std::env::var("TASKRUN_WAITS").map_or(WAITS, |waits| waits.parse().expect("a number"));
    let project = Project::new();
    let ids = ended_runs(&project);
    let mut args = vec!["wait", "--timeout", TIMEOUT, "-o", "name"];
    args.extend(ids.iter().map(String::as_str));
    let mut hung = 0;
    for begun in (0..waits).step_by(AT_ONCE) {
        let together = AT_ONCE.min(waits - begun);
        let children: Vec<Child> = (0..together)
            .map(|_| {
                let mut command = project.command(&args);
                command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
                command.spawn().expect("starts")
            })
            .collect();
        for child in children {
            match ends(child) {
                Some(0) => {}
                None => hung += 1,
                Some(other) => panic!("a wait ended with {other}"),
            }
        }
    }
    assert_eq!(hung, 0, "of {waits} waits");
}
