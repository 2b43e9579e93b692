//! The files of the store under a host that uses them.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rusqlite::Connection;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};
use taskrun::clock::SystemClock;
use taskrun_examples::{LEDGER, evil};
use taskrun_journal::time::Clock;
use taskrun_tests::foreign::{Foreign, Maker, act_as_told};

use crate::descriptors::in_shell;
use crate::project::Project;

/// A host in the foreground, which has made the store if nobody had.
fn host(project: &Project) -> Child {
    let mut child = project.start(&["host", "--lease", "3s"]);
    let stderr = child.stderr.as_mut().expect("a pipe");
    let mut line = String::new();
    BufReader::new(stderr).read_line(&mut line).expect("it says that it begins");
    assert!(line.contains("executing runs of"), "{line}");
    child
}

/// True if another process gets a write lock on the database, as a program gets that closes it and
/// takes itself for the last one.
fn is_lockable(project: &Project) -> bool {
    let file = project.path().join(".taskrun/taskrun.db");
    let opened = OpenOptions::new().read(true).write(true).open(file).expect("opens");
    fcntl_lock(&opened, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[test]
fn a_host_keeps_the_locks_on_the_store_that_it_made_whatever_its_guests_read() {
    let project = Project::new();
    let mut host = host(&project);
    assert!(!is_lockable(&project), "the host has it open");
    // A second name of the database, where guests read.
    let store = project.path().join(".taskrun/taskrun.db");
    std::fs::hard_link(store, project.path().join("docs/b.md")).expect("links");
    let read = json!({ "steps": [
        [{ "call": { "name": "workspace/read", "args": { "path": "docs/b.md" } } }],
        [{ "reply": "read" }],
    ]});
    let ran = project.run(&["run", "reader", &read.to_string(), "--wait"]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "read"), "{ran:?}");
    let events = project.run(&["events", "-o", "json", "--kind", "tool_result"]);
    assert!(!is_lockable(&project), "the host has it open: {events:?}");
    host.kill().expect("killed");
    host.wait().expect("gone");
    assert!(is_lockable(&project), "nobody has it open");
}

#[test]
fn a_host_whose_store_is_replaced_ends_and_says_so() {
    let project = Project::new();
    let host = host(&project);
    let call = json!({ "call": { "name": "scripted/change", "args": { "sleep_ms": 60_000 } } });
    let task = json!({ "steps": [[call], [{ "reply": "done" }]] }).to_string();
    let id = project.run(&["run", "worker", &task, "-d"]).id();
    project.sees(&id, "tool_call_scheduled");
    for name in ["taskrun.db", "taskrun.db-wal", "taskrun.db-shm"] {
        let file = project.path().join(".taskrun").join(name);
        let aside = project.path().join("aside").join(name);
        std::fs::create_dir_all(aside.parent().expect("a folder")).expect("made");
        std::fs::rename(file, aside).expect("moved");
    }
    let found = project.run(&["ps", "-a", "-o", "json"]);
    assert_eq!(found.json()["runs"], json!([]), "another store is there");
    let ended = project.ends(host);
    assert_eq!(ended.code, 10, "{ended:?}");
    assert_eq!(ended.error()["code"], "store-replaced", "{ended:?}");
    assert!(ended.error()["message"].as_str().is_some_and(|text| text.contains("replaced")));
    // What the other one has was left alone.
    assert_eq!(project.run(&["ps", "-a", "-o", "json"]).json()["runs"], json!([]));
}

/// Runs under way whose tool calls must not be repeated, while nobody can write for some leases.
struct Runs {
    project: Project,
    /// Two hosts; both execute runs, and each looks after those of the other.
    hosts: Vec<Child>,
    ids: Vec<String>,
    lease: Duration,
}

/// Turns of a run; each calls one tool.
const TURNS: usize = 4;

/// With this set, the tests are those of the night: 60 runs under hosts with the usual lease, a lock of
/// 45 s, and a full disk of 10 s.
const NIGHT: &str = "TASKRUN_TEST_STORE_NIGHT";

fn is_night() -> bool {
    #[expect(clippy::disallowed_methods, reason = "asked for by whoever starts the test")]
    let told = std::env::var_os(NIGHT);
    told.is_some()
}

fn completes(project: &Project, id: &str) {
    let waited = project.run(&["wait", id, "--timeout", "120s"]);
    assert_eq!(waited.code, 0, "{waited:?}");
    let run = project.get(id);
    assert_eq!((&run["status"], &run["result"]), (&json!("completed"), &json!("done")), "{run}");
}

impl Runs {
    /// Starts so many hosts.
    fn under(count: usize) -> Self {
        let lease = if is_night() { 30_000 } else { 2_000 };
        let project = Project::new();
        let start = || {
            let mut command = project.command(&["host", "--lease", &format!("{lease}ms")]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts")
        };
        let hosts: Vec<_> = std::iter::repeat_with(start).take(count).collect();
        let clock = SystemClock::new();
        while project.hosts().len() < hosts.len() {
            assert!(clock.monotonic() < Duration::from_secs(60), "all hosts begin");
        }
        Self { project, hosts, ids: Vec::new(), lease: Duration::from_millis(lease) }
    }

    /// Starts two hosts and runs, and returns when a call is under way.
    fn start() -> Self {
        let count = if is_night() { 60 } else { 8 };
        let mut runs = Self::under(2);
        let turn = json!([{ "call": {
            "name": "scripted/change", "args": { "sleep_ms": 700, "result": "changed" },
        }}]);
        let mut steps = vec![turn; TURNS];
        steps.push(json!([{ "reply": "done" }]));
        let task = json!({ "steps": steps }).to_string();
        let spawn = |_| runs.project.run(&["run", "worker", &task, "-d"]).id();
        runs.ids = (0..count).map(spawn).collect();
        runs.project.sees(&runs.ids[count - 1], "tool_call_scheduled");
        runs
    }

    /// Lets every process that writes be refused each byte, as on a full disk, or none any more.
    fn fill_disk(&self, full: bool) {
        let limit = getrlimit(Resource::Fsize);
        let current = if full { Some(0) } else { limit.maximum };
        for pid in self.hosts.iter().map(rustix::process::Pid::from_child) {
            prlimit(Some(pid), Resource::Fsize, Rlimit { current, ..limit }).expect("limited");
        }
    }

    /// Reads for so long, which needs nobody who writes.
    fn read_for(&self, time: Duration) {
        let clock = SystemClock::new();
        let until = clock.monotonic() + time;
        while clock.monotonic() < until {
            let listed = self.project.run(&["ps", "-a", "-o", "json"]);
            assert_eq!(listed.code, 0, "{listed:?}");
            let found = listed.json()["runs"].as_array().map(Vec::len);
            assert_eq!(found, Some(self.ids.len()));
            let events = self.project.run(&["events", &self.ids[0], "-o", "json"]);
            assert_eq!(events.code, 0, "{events:?}");
        }
    }

    /// All complete, none was lost, no call was repeated or is of unknown outcome.
    fn all_complete(mut self) {
        for id in &self.ids {
            completes(&self.project, id);
            let events = self.project.events(id);
            let count = |kind: &str| events.iter().filter(|event| event["kind"] == kind).count();
            assert_eq!(count("lost"), 0, "{events:?}");
            assert_eq!(count("tool_call_scheduled"), TURNS, "{events:?}");
            assert_eq!(count("tool_call_repeated"), 0, "{events:?}");
            let results = events.iter().filter(|event| event["kind"] == "tool_result");
            let values: Vec<_> =
                results.filter(|one| one.to_string().contains("changed")).collect();
            assert_eq!(values.len(), TURNS, "{events:?}");
        }
        for host in &mut self.hosts {
            host.kill().expect("killed");
            host.wait().expect("gone");
        }
    }
}

#[test]
fn a_program_that_locks_the_store_for_some_leases_costs_the_runs_under_way_nothing_but_time() {
    for maker in Maker::all() {
        let runs = Runs::start();
        let file = runs.project.path().join(".taskrun/taskrun.db");
        let lock = Foreign::locks(maker, &file);
        runs.read_for(if is_night() { Duration::from_secs(45) } else { runs.lease * 3 });
        lock.end();
        runs.all_complete();
    }
}

#[test]
fn a_disk_that_is_full_for_some_leases_costs_the_runs_under_way_nothing_but_time() {
    let runs = Runs::start();
    runs.fill_disk(true);
    runs.read_for(if is_night() { Duration::from_secs(10) } else { runs.lease * 3 });
    runs.fill_disk(false);
    runs.all_complete();
}

/// Its tool writes as much as it is told to.
const FILLING_POLICY: &str = r#"[tool.evil]
component = "components/evil-tool.wasm"

[agent.worker]
component = "components/scripted.wasm"
tools = ["evil/*"]
allow = ["workspace-read: notes/**", "workspace-write: notes/**"]
"#;

#[test]
fn a_guest_is_refused_a_file_larger_than_its_host_may_make_and_the_host_lives() {
    let project = Project::new();
    project.write("components/evil-tool.wasm", evil::TOOL.bytes);
    project.write("notes/mine.md", b"mine");
    project.write("taskrun.toml", FILLING_POLICY.as_bytes());
    // 16 MiB, or 32 in a shell that counts in KiB.
    let script = "ulimit -f 32768 && exec \"$@\"";
    let mut command = in_shell(&project, Command::new("sh"), script, &["host"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut host = command.spawn().expect("starts");
    project.meets_host();
    let args = json!({ "folder": "notes", "files": 12, "bytes": 4 << 20, "how": "append" });
    let call = json!({ "call": { "name": "evil/fill", "args": args } });
    let task = json!({ "steps": [[call], [{ "reply": "done" }]] }).to_string();
    let id = project.run(&["run", "worker", &task, "-d"]).id();
    completes(&project, &id);
    let events = project.events(&id);
    let results = || events.iter().filter(|event| event["kind"] == "tool_result");
    let is_told = |event: &Value| event.to_string().contains("the file would be too large");
    assert!(results().any(is_told), "{events:?}");
    assert_eq!(host.try_wait().expect("asked"), None, "it lives");
    host.kill().expect("killed");
    host.wait().expect("gone");
}

/// Ticks of a processor that a process has used.
fn ticks(child: &Child) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it is there");
    let after_name = stat.rsplit(')').next().expect("a name in parentheses");
    let fields: Vec<u64> = after_name.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
    // In user mode; the first field here is the space after the name.
    fields[12]
}

/// A guest that computes for itself, on whatever thread, stands still with its host and goes on with it.
#[test]
fn a_guest_that_spins_stands_still_while_its_host_cannot_write() {
    let mut runs = Runs::under(1);
    let spin = runs.project.run(&["run", "spinner", "spin", "-d"]).id();
    runs.project.reach(&spin, "running");
    runs.ids.push(spin.clone());
    runs.fill_disk(true);
    // Between two looks a spinning guest uses some tens of ticks; a host that waits next to none.
    let used = |runs: &Runs| {
        let before = ticks(&runs.hosts[0]);
        runs.read_for(Duration::from_secs(1));
        ticks(&runs.hosts[0]) - before
    };
    let clock = SystemClock::new();
    while used(&runs) > 5 {
        assert!(clock.monotonic() < Duration::from_secs(60), "it never stands still");
    }
    runs.fill_disk(false);
    while used(&runs) <= 5 {
        assert!(clock.monotonic() < Duration::from_secs(120), "it never goes on");
    }
    assert_eq!(runs.project.get(&spin)["status"], "running");
    for host in &mut runs.hosts {
        host.kill().expect("killed");
        host.wait().expect("gone");
    }
}

/// The programs do what the tests above use them for.
#[test]
fn a_program_of_another_maker_does_as_it_is_told() {
    if act_as_told() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("db");
    let db = Connection::open(&file).expect("opens");
    db.execute_batch("CREATE TABLE runs (id)").expect("writes");
    db.busy_timeout(Duration::ZERO).expect("set");
    for maker in Maker::all() {
        let lock = Foreign::locks(maker, &file);
        assert!(db.execute_batch("INSERT INTO runs VALUES (1)").is_err(), "{maker:?}");
        lock.end();
        db.execute_batch("INSERT INTO runs VALUES (1)").expect("free again");
        Foreign::reads(maker, &file).end();
    }
}

/// Its tool's effects can be counted, and are not to be repeated.
const LEDGER_POLICY: &str = r#"[tool.ledger]
component = "components/ledger.wasm"

[agent.worker]
component = "components/scripted.wasm"
tools = ["ledger/*"]
allow = ["workspace-write: ledger.txt", "workspace-write: put/**"]
"#;

/// A program that takes itself for the last one to close the store removes its log: what was
/// acknowledged since is gone then, and is done again by the next host. Only hosts have the store open
/// here for longer than a command takes.
#[test]
fn programs_that_open_read_and_close_the_store_take_nothing_from_hosts_that_are_killed() {
    let project = Project::new();
    project.write("components/ledger.wasm", LEDGER.bytes);
    project.write("taskrun.toml", LEDGER_POLICY.as_bytes());
    let mut hosted = host(&project);
    let file = project.path().join(".taskrun/taskrun.db");
    let programs: Vec<_> =
        Maker::all().into_iter().map(|maker| Foreign::reads(maker, &file)).collect();
    let mut ids = Vec::new();
    for kill in 0..2 {
        for run in 0..4 {
            let note = |turn| {
                let text = format!("{kill}.{run}.{turn}");
                json!([{ "call": { "name": "ledger/note", "args": { "text": text } } }])
            };
            let mut steps: Vec<_> = (0..15).map(note).collect();
            steps.push(json!([{ "reply": "done" }]));
            let task = json!({ "steps": steps }).to_string();
            ids.push(project.run(&["run", "worker", &task, "-d"]).id());
        }
        project.sees(&ids[ids.len() - 1], "tool_result");
        hosted.kill().expect("killed");
        hosted.wait().expect("gone");
        hosted = host(&project);
    }
    let mut kept = Vec::new();
    for id in &ids {
        completes(&project, id);
        let events = project.events(id);
        let begun = events.iter().filter(|event| event["kind"] == "tool_call_scheduled").count();
        assert_eq!(begun, 15, "{events:?}");
        kept.extend(events.into_iter().filter(|event| event["kind"] == "tool_result"));
    }
    programs.into_iter().for_each(Foreign::end);
    let ledger = std::fs::read_to_string(project.path().join("ledger.txt")).expect("notes");
    let mut notes: Vec<&str> = ledger.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    notes.sort_unstable();
    let made = notes.len();
    notes.dedup();
    assert_eq!(notes.len(), made, "none was made twice: {ledger}");
    // A call that was cut off may have been made or not.
    assert_eq!(kept.len(), ids.len() * 15);
    assert!(made + 2 * ids.len() >= kept.len(), "{made} of {}", kept.len());
    hosted.kill().expect("killed");
    hosted.wait().expect("gone");
}
