//! A project in a temporary folder, and the program in it.

use std::io::BufRead;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use taskrun::clock::SystemClock;
use taskrun_examples::{RESEARCHER, SCRIPTED, SCRIPTED_TOOL, WORKSPACE, evil};
use taskrun_journal::time::Clock;
use taskrun_runtime::{CACHE_DIR, Storage, StorageOptions, load_policy};
use taskrun_tests::native_code;
use taskrun_tests::replays::{self, Replays};

use crate::background;

/// The time that a test waits for something that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const POLICY: &str = r#"[tool.workspace]
component = "components/workspace.wasm"

[tool.scripted]
component = "components/scripted-tool.wasm"

[agent.readonly_researcher]
component = "components/researcher.wasm"
tools = ["workspace/list", "workspace/search", "workspace/read"]
allow = ["workspace-read: docs/**"]
deny = ["workspace-write: **"]

[agent.worker]
component = "components/scripted.wasm"
tools = ["scripted/*"]
members = ["worker"]
limits = { call = "60s" }

[agent.reader]
component = "components/scripted.wasm"
tools = ["workspace/read"]
allow = ["workspace-read: docs/**"]
deny = ["workspace-write: **"]

[agent.asking]
component = "components/scripted.wasm"
tools = ["scripted/*"]
ask = ["tool: scripted/change"]

[agent.fragile]
component = "components/scripted.wasm"
durable = false

[agent.spinner]
component = "components/evil-agent.wasm"
limits = { step = "10m" }
"#;

/// A project; its folder is removed with it, and the host process it started is ended.
pub(crate) struct Project {
    folder: tempfile::TempDir,
    /// The program that commands are given to.
    pub(crate) program: PathBuf,
}

/// The output of a program.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(key_twice(&stdout), None, "{stdout}");
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// The fault of output of objects, one as a whole or one in each line, of which one has a key twice.
/// Readers of JSON take one of the two values, and not all of them the same.
fn key_twice(output: &str) -> Option<String> {
    let fault = |text: &str| {
        taskrun_journal::json::check(text).err().filter(|fault| fault.contains("stands twice"))
    };
    let texts = std::iter::once(output).chain(output.lines());
    texts.filter(|text| text.starts_with('{')).find_map(fault)
}

#[test]
fn a_key_that_a_line_of_output_has_twice_is_found() {
    assert_eq!(key_twice("{\"a\":1,\"b\":{\"a\":2}}\n{\"a\":3}\n"), None);
    for twice in
        ["{\"a\":1,\"a\":2}", "{\"a\":1}\n{\"b\":{\"a\":1,\"a\":2}}\n", "{\n\"a\":1,\n\"a\":2\n}"]
    {
        assert!(key_twice(twice).is_some_and(|fault| fault.contains("\"a\"")), "{twice}");
    }
}

impl Ran {
    /// Its output, as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The last line of stderr, which is JSON when the program failed in a pipe.
    pub(crate) fn error(&self) -> Value {
        let line = self.stderr.lines().last().unwrap_or_default();
        let parsed: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        parsed["error"].clone()
    }

    /// All that it printed, to either stream.
    pub(crate) fn said(&self) -> String {
        [self.stdout.as_str(), &self.stderr].concat()
    }

    /// The check of this name in what `doctor -o json` printed.
    pub(crate) fn check(&self, name: &str) -> Option<Value> {
        let checks = self.json()["checks"].as_array().cloned().expect("checks");
        checks.into_iter().find(|check| check["name"] == name)
    }

    /// The id that it printed.
    pub(crate) fn id(&self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout.trim().to_owned()
    }
}

/// When [`PATIENCE`] is over.
pub(crate) struct Deadline {
    clock: SystemClock,
    at: Duration,
}

pub(crate) fn deadline() -> Deadline {
    let clock = SystemClock::new();
    let at = clock.monotonic() + PATIENCE;
    Deadline { clock, at }
}

impl Deadline {
    pub(crate) fn is_over(&self) -> bool {
        self.clock.monotonic() > self.at
    }
}

impl Project {
    /// A project with a data directory in which native code of its components may be already.
    pub(crate) fn new() -> Self {
        let project = Self::empty();
        native_code::prepare(&project.native());
        project.filled()
    }

    /// A project where nothing ever ran.
    pub(crate) fn untouched() -> Self {
        Self::empty().filled()
    }

    fn empty() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder, program: env!("CARGO_BIN_EXE_taskrun").into() }
    }

    /// The same project with its policy, components and documents.
    fn filled(self) -> Self {
        for (name, bytes) in [
            ("workspace", WORKSPACE.bytes),
            ("researcher", RESEARCHER.bytes),
            ("scripted", SCRIPTED.bytes),
            ("scripted-tool", SCRIPTED_TOOL.bytes),
            ("evil-agent", evil::AGENT.bytes),
        ] {
            self.write(&format!("components/{name}.wasm"), bytes);
        }
        self.write("docs/a.md", b"# Apples\n\nApples are kept in the cellar.\n");
        self.write("taskrun.toml", POLICY.as_bytes());
        self.trust();
        self
    }

    /// Lets the policy be used where it is found, as if somebody had said so. Nothing else in this
    /// folder is anybody's state.
    fn trust(&self) {
        let folder = self.path().canonicalize().expect("a path");
        let about = std::fs::metadata(&folder).expect("it is there");
        let entry = json!({ "folder": folder, "device": about.dev(), "owner": about.uid() });
        self.write("state/taskrun/trusted", format!("{entry}\n").as_bytes());
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, path: &str, contents: &[u8]) {
        let file = self.path().join(path);
        std::fs::create_dir_all(file.parent().expect("beneath the folder")).expect("a folder");
        std::fs::write(&file, contents).expect("written");
        if file.extension().is_some_and(|extension| extension == "wasm") {
            native_code::take_code(&self.native(), contents);
        }
    }

    /// The folder in which its hosts keep native code.
    fn native(&self) -> PathBuf {
        self.path().join(".taskrun").join(CACHE_DIR)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).current_dir(self.path()).stdin(Stdio::null());
        for name in [
            "TASKRUN_CONFIG",
            "TASKRUN_DATA_DIR",
            "TASKRUN_TENANT",
            "TASKRUN_OUTPUT",
            "TASKRUN_SESSION",
            "TASKRUN_OWNER",
            "TASKRUN_SLOTS",
            "TASKRUN_LOADED_AGENTS",
            "TASKRUN_LEASE",
            "TASKRUN_LOG",
            "TASKRUN_LOG_FORMAT",
            "TASKRUN_POLICY_OWNER",
            "SUDO_UID",
        ] {
            command.env_remove(name);
        }
        command.envs(self.surroundings());
        command
    }

    /// The surroundings that the program looks at.
    pub(crate) fn surroundings(&self) -> [(&'static str, PathBuf); 2] {
        let at = |folder| self.path().join(folder);
        [("XDG_STATE_HOME", at("state")), ("XDG_CACHE_HOME", at("cache"))]
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.command(args).output().expect("starts").into()
    }

    /// Starts the program and leaves it running.
    pub(crate) fn start(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
    }

    /// Waits for the end of a program.
    pub(crate) fn ends(&self, child: Child) -> Ran {
        let (end, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || end.send(child.wait_with_output()).ok());
        let output = ended.recv_timeout(PATIENCE).expect("it ends in time");
        output.expect("it has ended").into()
    }

    /// The run as JSON.
    pub(crate) fn get(&self, id: &str) -> Value {
        let ran = self.run(&["get", id, "-o", "json"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.json()
    }

    /// Waits until the run has a status, by asking for it.
    pub(crate) fn reach(&self, id: &str, status: &str) -> Value {
        let tries = PATIENCE.as_secs();
        for _ in 0..tries {
            // Each wait lasts until the run ends or a second is over.
            let run = self.get(id);
            if run["status"] == status {
                return run;
            }
            self.run(&["wait", id, "--for", status, "--timeout", "1s"]);
        }
        panic!("{id} does not become {status}: {}", self.get(id));
    }

    /// Waits until the journal of the run has an event of this kind, by following it.
    pub(crate) fn sees(&self, id: &str, kind: &str) -> Value {
        let args = ["events", id, "-f", "--kind", kind, "-o", "ndjson"];
        let mut child = self.start(&args);
        let stdout = child.stdout.take().expect("a pipe");
        let (line, lines) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut first = String::new();
            // An end without a line is an empty one.
            std::io::BufReader::new(stdout).read_line(&mut first).ok();
            line.send(first).ok();
        });
        let first = lines.recv_timeout(PATIENCE);
        child.kill().expect("killed");
        child.wait().expect("gone");
        reader.join().expect("it has read");
        let first = first.unwrap_or_else(|_| panic!("no {kind}: {}", self.get(id)));
        assert_eq!(key_twice(&first), None, "{first}");
        serde_json::from_str(&first).unwrap_or_else(|error| panic!("{error}: {first:?}"))
    }

    /// Waits until the run has ended, by looking only: nothing here starts a host.
    pub(crate) fn ends_by_itself(&self, id: &str) -> Value {
        let deadline = deadline();
        loop {
            let run = self.get(id);
            if run["finished_at"].is_string() {
                return run;
            }
            assert!(!deadline.is_over(), "{run}");
        }
    }

    /// Asks again until something is so.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = deadline();
        while !is_so() {
            assert!(!deadline.is_over(), "never: {what}");
        }
    }

    /// The journal of the run.
    pub(crate) fn events(&self, id: &str) -> Vec<Value> {
        let ran = self.run(&["events", id, "-o", "json"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.json()["events"].as_array().cloned().expect("events")
    }

    /// The live hosts of the project, as processes.
    pub(crate) fn hosts(&self) -> Vec<i32> {
        let ran = self.run(&["policy", "show", "-o", "json"]);
        // Where there is no policy `doctor` tells it, which tries the engine first.
        let told = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|_| self.run(&["doctor", "-o", "json"]).json());
        let hosts = Value::as_array(&told["hosts"]).cloned().unwrap_or_default();
        let pids = hosts.iter().filter_map(|host| host["pid"].as_i64());
        pids.filter_map(|pid| i32::try_from(pid).ok()).collect()
    }

    /// Ends the hosts of this project the hard way.
    pub(crate) fn kill_hosts(&self) -> usize {
        self.signal_hosts(Signal::KILL)
    }

    /// The same, and waits until they are gone: one that dies just then is still taken for alive by
    /// whoever looks for a host. What looks here may be the last to close the store.
    pub(crate) fn kill_hosts_and_wait(&self) -> usize {
        self.end_hosts_by(Signal::KILL)
    }

    /// Asks the hosts of this project to end, and waits until they are gone.
    pub(crate) fn end_hosts(&self) -> usize {
        self.end_hosts_by(Signal::TERM)
    }

    /// The same, and returns when the file of the store has all of its log: a host tells that it has ended
    /// before its process closes the store, and the last that closes it copies the log.
    pub(crate) fn close_store(&self) {
        self.end_hosts();
        let log = self.path().join(".taskrun/taskrun.db-wal");
        self.until("the store is closed", || {
            assert_eq!(self.run(&["ps"]).code, 0);
            !log.exists()
        });
    }

    /// Waits until a host of this project lives.
    pub(crate) fn meets_host(&self) {
        let deadline = deadline();
        while self.hosts().is_empty() {
            assert!(!deadline.is_over(), "no host begins");
        }
    }

    /// Sends a signal to the hosts of this project, and says how many there are.
    pub(crate) fn signal_hosts(&self, signal: Signal) -> usize {
        let hosts = self.hosts();
        Self::signal(&hosts, signal);
        hosts.len()
    }

    /// The same to hosts that are known.
    pub(crate) fn signal(hosts: &[i32], signal: Signal) {
        for pid in hosts {
            let pid = rustix::process::Pid::from_raw(*pid).expect("a process");
            // One that ended by itself meanwhile has ended.
            rustix::process::kill_process(pid, signal).ok();
        }
    }
}

impl Project {
    /// Executes every run that is left here again, if that is asked for.
    fn replay_all(&self) {
        if replays::is_wanted() {
            self.left().into_iter().for_each(Replays::run);
        }
    }

    /// The stores that are left here, each with the policy beside its data directory.
    pub(crate) fn left(&self) -> Vec<Replays> {
        let has_store = |data: &PathBuf| data.join("taskrun.db").is_file();
        let datas = folders(self.path()).into_iter().filter(has_store);
        let replays = |data: PathBuf| {
            // One that a test has damaged, or left in the form of another program, is none.
            let storage = Storage::open_existing(&data, StorageOptions::default()).ok()?;
            let policy = load_policy(&data.with_file_name("taskrun.toml")).ok();
            Some(Replays { store: storage.store, data_dir: Some(data), policy })
        };
        datas.filter_map(replays).collect()
    }
}

/// A folder and all that are in it.
fn folders(of: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(of).into_iter().flatten().flatten();
    // Not those to which links lead: they may be elsewhere, or in a circle.
    let inside = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let inside = inside.flat_map(|entry| folders(&entry.path()));
    std::iter::once(of.to_owned()).chain(inside).collect()
}

impl Drop for Project {
    fn drop(&mut self) {
        let has_failed = std::thread::panicking();
        if has_failed {
            let log = std::fs::read_to_string(self.path().join(".taskrun/host.log"));
            eprintln!("host.log: {}", log.unwrap_or_default());
        } else {
            self.kill_hosts();
        }
        Self::signal(&background::processes(self.path()), Signal::KILL);
        if !has_failed {
            self.replay_all();
            native_code::give_code(&self.native());
        }
    }
}
