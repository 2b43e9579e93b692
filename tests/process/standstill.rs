//! Hosts that stand still as a whole, as with Ctrl-Z or in a frozen container: others go on with
//! the runs that wait, and those under way do not lose that time.

use std::fs::File;
use std::process::Child;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::background;
use crate::project::{Project, Ran};

/// The lease of a host that the test stops. The others have the usual one, as on a busy machine a
/// healthy host may be silent for longer than this.
const LEASE: &str = "2s";
/// Longer than each limit of [`BOUNDED`], and than the lease.
const STANDSTILL: Duration = Duration::from_secs(10);

/// An agent whose runs have far more time than they need, and less than a standstill takes.
const BOUNDED: &str = r#"[tool.scripted]
component = "components/scripted-tool.wasm"

[agent.bounded]
component = "components/scripted.wasm"
tools = ["scripted/*"]
limits = { step = "8s", call = "8s" }
budget = { wall = "8s" }
"#;

/// A host that the test stops. It is killed when this is dropped, also one that stands still.
struct StoppedHost(Child);

impl StoppedHost {
    /// Starts a host with these words behind `host`, and waits until it lives.
    fn start(project: &Project, words: &[&str]) -> Self {
        let args = [&["host"][..], words, &["--idle-exit", "0", "--lease", LEASE]].concat();
        let host = Self(project.start(&args));
        project.meets_host();
        host
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("a process")
    }

    fn signal(&self, signal: Signal) {
        Project::signal(&[self.pid()], signal);
    }

    /// Stops it at a moment at which it has not locked the store, with which everybody would stand
    /// still.
    fn stop(&self, project: &Project) {
        let file = project.path().join(".taskrun/taskrun.db");
        project.until("it is stopped without a lock", || {
            self.signal(Signal::STOP);
            let store = rusqlite::Connection::open(&file).expect("opens");
            store.busy_timeout(Duration::from_millis(200)).expect("a time");
            let is_free = store.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok();
            if !is_free {
                self.signal(Signal::CONT);
            }
            is_free
        });
    }
}

impl Drop for StoppedHost {
    fn drop(&mut self) {
        // Whatever is missed here is told by the test before.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Runs the program to its end, which comes in time.
fn run(project: &Project, args: &[&str]) -> Ran {
    project.ends(project.start(args))
}

/// The number of processes of this project that are a background host, or wait to become one.
fn background_processes(project: &Project) -> usize {
    background::processes(project.path()).len()
}

#[test]
fn a_background_host_that_stands_still_keeps_no_run_and_no_process_waiting() {
    let project = Project::new();
    let first = StoppedHost::start(&project, &["--background"]);
    first.stop(&project);
    let ran = run(&project, &["run", "worker", "said", "--wait=50s"]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "said"), "{ran:?}");
    let id = run(&project, &["run", "worker", "once more", "-d"]).id();
    let waited = run(&project, &["wait", &id, "--timeout", "50s"]);
    assert_eq!(waited.code, 0, "{waited:?}");
    // The first one stands in the folder of the project and is not among them.
    project.until("one further host is there at most", || background_processes(&project) <= 1);
    let further = project.hosts().into_iter().filter(|pid| *pid != first.pid()).count();
    assert!(further <= 1, "{further} further hosts");
    first.signal(Signal::CONT);
    project.end_hosts();
}

#[test]
fn a_lock_that_is_held_by_no_host_is_told_of_and_leaves_no_process_waiting() {
    let project = Project::new();
    let first = StoppedHost::start(&project, &["--background"]);
    project.kill_hosts_and_wait();
    drop(first);
    let files = std::fs::read_dir(project.path().join(".taskrun")).expect("a folder").flatten();
    let mut locks = files.map(|file| file.path()).filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("background-"))
    });
    let held = File::open(locks.next().expect("its lock file")).expect("opened");
    held.lock().expect("nobody has it");
    let refused = run(&project, &["run", "worker", "said", "--wait=50s"]);
    assert_eq!(refused.error()["code"], "host-died", "{refused:?}");
    assert!(refused.stderr.contains("neither executes runs nor ends"), "{refused:?}");
    project.until("no process waits for it", || background_processes(&project) == 0);
    drop(held);
    let ran = run(&project, &["run", "worker", "said", "--wait=50s"]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "said"), "{ran:?}");
}

/// Two runs under way that sleep for so long, one of them in a call.
fn sleepers(project: &Project, millis: u64) -> [String; 2] {
    let call = json!({ "call": {
        "name": "scripted/lookup",
        "args": { "sleep_ms": millis, "result": "found" },
    }});
    let calls = json!({ "steps": [[call], [{ "reply": "done" }]] }).to_string();
    let sleeps = json!({ "steps": [[{ "sleep": millis }, { "reply": "done" }]] }).to_string();
    let ids = [&sleeps, &calls]
        .map(|task| project.run(&["run", "bounded", task, "--timeout", "8s", "-d"]).id());
    project.sees(&ids[1], "tool_call_scheduled");
    ids
}

/// The number of runs that a host has, by the store alone: nobody takes them over for that.
fn held_runs(project: &Project) -> usize {
    let file = project.path().join(".taskrun/taskrun.db");
    let store = rusqlite::Connection::open(file).expect("opens");
    let sql = "SELECT count(*) FROM runs WHERE holder IS NOT NULL AND status < 5";
    let count: i64 = store.query_row(sql, [], |row| row.get(0)).expect("a number");
    usize::try_from(count).expect("no less than none")
}

#[test]
fn the_time_in_which_a_host_stands_still_as_a_whole_is_none_of_its_runs() {
    let project = Project::new();
    project.write("taskrun.toml", BOUNDED.as_bytes());
    let host = StoppedHost::start(&project, &[]);
    // On a slow machine they may have ended before their host is stopped.
    let under_way = [3_000, 4_500, 6_000].into_iter().find_map(|millis| {
        let ids = sleepers(&project, millis);
        host.stop(&project);
        if held_runs(&project) == ids.len() {
            return Some(ids);
        }
        host.signal(Signal::CONT);
        ids.iter().for_each(|id| drop(project.ends_by_itself(id)));
        None
    });
    let ids = under_way.expect("both are under way when their host is stopped");
    // Nobody looks meanwhile, who would take the runs over.
    std::thread::sleep(STANDSTILL);
    host.signal(Signal::CONT);
    for id in &ids {
        let run = project.ends_by_itself(id);
        assert_eq!((&run["status"], &run["result"]), (&json!("completed"), &json!("done")));
    }
}
