//! Runs that are executed again from a file, on a machine that has nothing else of them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::Signal;
use serde_json::{Value, json};
use taskrun_examples::{EDITOR, INSPECTOR, RESEARCHER, evil};
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::layer::Layer;
use taskrun_journal::message::Part;
use taskrun_journal::store::{Store, StoreError};
use taskrun_tests::receiver::Receiver;
use taskrun_tests::replays::Replays;

use crate::project::{Project, Ran};

/// A machine with the program and nothing else: no policy, no data directory, no components.
pub(crate) struct EmptyMachine(tempfile::TempDir);

impl EmptyMachine {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn command(&self, project: &Project, file: &Path, more: &[&str]) -> Command {
        let file = file.to_str().expect("a path");
        let mut command = project.command(&[&["replay", file], more].concat());
        command.current_dir(self.0.path()).env("HOME", self.0.path());
        command
    }

    fn replays(&self, project: &Project, file: &Path, more: &[&str]) -> Ran {
        self.command(project, file, more).output().expect("starts").into()
    }

    pub(crate) fn report(&self, project: &Project, file: &Path, more: &[&str]) -> (i32, Value) {
        let ran = self.replays(project, file, &[more, &["-o", "json"]].concat());
        (ran.code, ran.json())
    }
}

/// The last run of a project, in a file; what it was made from is gone then.
fn exported(project: &Project) -> std::path::PathBuf {
    let ran = project.run(&["export", "@last", "run.taskrun"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let file = project.path().join("run.taskrun");
    for gone in [".taskrun", "components", "docs"] {
        std::fs::remove_dir_all(project.path().join(gone)).expect("it was there");
    }
    std::fs::remove_file(project.path().join("taskrun.toml")).expect("it was there");
    file
}

/// Another build of a component, in which one sentence is another one of the same length.
fn rebuilt(project: &Project, bytes: &[u8], sentence: &str, by: &str) -> String {
    let (from, to) = (sentence.as_bytes(), by.as_bytes());
    assert_eq!(from.len(), to.len());
    let places = bytes.windows(from.len()).filter(|at| *at == from).count();
    assert_eq!(places, 1, "{sentence:?} stands in it once");
    let place = bytes.windows(from.len()).position(|at| at == from).expect("it does");
    let mut other = bytes.to_vec();
    other[place..place + to.len()].copy_from_slice(to);
    project.write("other.wasm", &other);
    project.path().join("other.wasm").to_str().expect("a path").to_owned()
}

#[test]
fn c_077_a_run_with_tools_does_the_same_on_an_empty_machine_and_another_build_differs_in_one_step()
{
    let project = Project::new();
    let ran = project.run(&["run", "readonly_researcher", "Where are apples kept?", "--wait"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    project.kill_hosts_and_wait();
    let (file, machine) = (exported(&project), EmptyMachine::new());

    let (code, report) = machine.report(&project, &file, &[]);
    assert_eq!((code, &report["differences"], &report["skipped"]), (0, &json!([]), &json!([])));
    assert_eq!((&report["steps"], &report["same"]), (&json!(3), &json!(3)), "{report}");

    let note =
        rebuilt(&project, RESEARCHER.bytes, "searching the workspace", "searching the workplace");
    let (code, report) = machine.report(&project, &file, &["--against", &note]);
    let differences = report["differences"].as_array().expect("a list");
    assert_eq!((code, differences.len()), (11, 1), "{report}");
    assert_eq!(differences[0]["turn"], 1);
    let words = |side: &str| differences[0][side].as_str().unwrap_or_default().to_owned();
    for (side, place) in [("recorded", "workspace"), ("found", "workplace")] {
        let note: Value = serde_json::from_str(&words(side)).expect("it is told as JSON");
        let said = format!("searching the {place}");
        assert_eq!((&note["kind"], &note["text"]), (&json!("planner_note"), &json!(said)));
    }
    assert_eq!(report["same"], 2, "the steps after it begin where the record says");

    let shown = machine.replays(&project, &file, &["--against", &note]);
    assert_eq!(shown.code, 11);
    let text = &shown.stdout;
    assert!(text.contains("step 1 differs") && text.contains("recorded"), "{text}");
    assert!(
        text.ends_with("3 steps: 2 did the same, 1 something else, 0 not compared\n"),
        "{text}"
    );
}

#[test]
fn c_077_a_question_that_was_not_recorded_is_shown_beside_the_one_that_was() {
    let project = Project::new();
    project.write("components/editor.wasm", EDITOR.bytes);
    let policy = "[model.m]\nprovider = \"echo\"\n\n[agent.editor]\n\
                  component = \"components/editor.wasm\"\nmodel = \"m\"\n";
    project.write("taskrun.toml", policy.as_bytes());
    let run = project.run(&["run", "editor", "A letter."]).id();
    project.run(&["wait", &run]);
    let answered = project.run(&["answer", &run, "shorter"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    let ended = project.run(&["wait", &run]);
    assert_eq!(ended.code, 0, "{ended:?}");
    project.kill_hosts_and_wait();
    let (file, machine) = (exported(&project), EmptyMachine::new());
    let (code, report) = machine.report(&project, &file, &[]);
    assert_eq!((code, &report["same"]), (0, &json!(2)), "{report}");

    let other = rebuilt(&project, EDITOR.bytes, "the weakest point of", "the weakest place in");
    let (code, report) = machine.report(&project, &file, &["--against", &other]);
    let differences = report["differences"].as_array().expect("a list");
    assert_eq!((code, differences.len(), &report["same"]), (11, 1, &json!(1)), "{report}");
    let question = &differences[0]["question"];
    assert_eq!(question["number"], 1, "the second of the step");
    let asked = |side: &str| question[side].to_string();
    assert!(asked("recorded").contains("the weakest point of"), "{report}");
    assert!(asked("asked").contains("the weakest place in"), "{report}");
    let shown = machine.replays(&project, &file, &["--against", &other]).stdout;
    assert!(
        shown.lines().any(|line| line.starts_with('-') && line.contains("point of")),
        "{shown}"
    );
    assert!(
        shown.lines().any(|line| line.starts_with('+') && line.contains("place in")),
        "{shown}"
    );
}

#[test]
fn c_077_an_answer_that_its_agent_forgets_is_on_record_as_far_as_it_was_read() {
    let project = Project::new();
    project.write("components/forgetful.wasm", evil::STREAM.bytes);
    let policy = "[model.m]\nprovider = \"echo\"\n\n[agent.forgetful]\n\
                  component = \"components/forgetful.wasm\"\nmodel = \"m\"\n";
    project.write("taskrun.toml", policy.as_bytes());
    let ran = project.run(&["run", "forgetful", "Say two words.", "--wait"]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "1 read"), "{ran:?}");
    let events = project.run(&["events", "@last", "-o", "json"]).stdout;
    assert_eq!(events.matches("\"host_answered\"").count(), 1, "{events}");
    project.kill_hosts_and_wait();
    let (file, machine) = (exported(&project), EmptyMachine::new());
    let (code, report) = machine.report(&project, &file, &[]);
    assert_eq!((code, &report["same"], &report["steps"]), (0, &json!(1), &json!(1)), "{report}");
}

#[test]
fn an_export_that_is_none_or_a_component_that_is_none_is_refused() {
    let project = Project::new();
    let machine = EmptyMachine::new();
    project.write("none", b"no export");
    let none = machine.replays(&project, &project.path().join("none"), &[]);
    assert_eq!((none.code, &none.error()["code"]), (2, &json!("export-damaged")), "{none:?}");
    let gone = machine.replays(&project, &project.path().join("gone"), &[]);
    assert_eq!((gone.code, &gone.error()["code"]), (2, &json!("export-file")), "{gone:?}");
    assert!(gone.stderr.starts_with("error: there is no file "), "{gone:?}");
    let run = project.run(&["run", "worker", "said", "--wait"]);
    assert_eq!(run.code, 0, "{run:?}");
    project.kill_hosts_and_wait();
    let file = exported(&project);
    let against = project.path().join("none");
    let against = ["--against", against.to_str().expect("a path")];
    let refused = machine.replays(&project, &file, &against);
    assert_eq!(refused.code, 2, "{refused:?}");
}

#[test]
fn c_077_ctrl_c_ends_a_replay_and_nothing_of_it_stays_behind() {
    let project = Project::new();
    let ran = project.run(&["run", "worker", "spin", "--wait"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    project.kill_hosts_and_wait();
    let (file, machine) = (exported(&project), EmptyMachine::new());
    project.write("spins.wasm", evil::AGENT.bytes);
    let spins = project.path().join("spins.wasm");
    let against = ["--against", spins.to_str().expect("a path")];
    // The folder is made while the export is read, those of workspaces when that is done.
    for made in ["", "workspaces"] {
        let temporary = tempfile::tempdir().expect("a folder");
        let folders = || std::fs::read_dir(temporary.path()).expect("it is there").flatten();
        let mut command = machine.command(&project, &file, &against);
        command.env("TMPDIR", temporary.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("starts");
        project.until("it is under way", || folders().any(|it| it.path().join(made).exists()));
        let pid = i32::try_from(child.id()).expect("a process");
        Project::signal(&[pid], Signal::INT);
        let ended = project.ends(child);
        assert_eq!((ended.code, ended.stdout.as_str()), (130, ""), "{ended:?}");
        assert_eq!(folders().count(), 0, "{made}");
    }
}

#[test]
fn c_077_a_run_that_continues_another_is_executed_again_with_what_that_one_said() {
    let project = Project::new();
    let done = json!({ "call": { "id": "d", "name": "report_done", "args": { "detail": "it" } } });
    let replies = ["one", "two"].map(|reply| json!([{ "reply": reply }]));
    let steps = [&replies[..], &[json!([done]), json!([{ "reply": "end" }])]].concat();
    let script = json!({ "steps": steps }).to_string();
    let words = ["run", "worker", &script, "--autonomous", "--rounds", "1", "-d"];
    let first = project.run(&words).id();
    assert_eq!(project.ends_by_itself(&first)["stop_reason"], "max_turns");
    let second = project.run(&["resume", &first]).id();
    let run = project.ends_by_itself(&second);
    assert_eq!((&run["stop_reason"], &run["result"]), (&json!("done"), &json!("end")), "{run}");
    project.kill_hosts_and_wait();
    let (file, machine) = (exported(&project), EmptyMachine::new());
    let (code, report) = machine.report(&project, &file, &[]);
    assert_eq!((code, &report["steps"], &report["same"]), (0, &json!(3), &json!(3)), "{report}");
}

/// A project with an agent that looks for itself, and may ask this server.
fn inspected(port: u16) -> Project {
    let project = Project::new();
    project.write("components/inspector.wasm", INSPECTOR.bytes);
    let policy = format!(
        "[agent.inspector]\ncomponent = \"components/inspector.wasm\"\nbudget = {{ turns = 7 }}\n\
         allow = [\"workspace-read: docs/**\", \"workspace-write: docs/**\", \
         \"http: GET http://127.0.0.1:{port}/**\"]\n"
    );
    project.write("taskrun.toml", policy.as_bytes());
    project
}

#[test]
fn c_077_what_a_run_read_and_changed_itself_is_the_same_on_an_empty_machine() {
    let server = Receiver::start(|_| 418);
    let project = inspected(server.port);
    let looks = format!(
        "list docs\nread docs/a.md\nappend docs/a.md  more\nstat docs/a.md\nread docs/none.md\n\
         read elsewhere\nget http://127.0.0.1:{}/\nget http://127.0.0.2/\nbudget",
        server.port
    );
    let ran = project.run(&["run", "inspector", &looks, "--wait"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let seen: Vec<&str> = ran.stdout.lines().collect();
    for part in ["docs/a.md", "# Apples", "added", "46 bytes", "status 418", "Some(6) turns"] {
        assert!(seen.contains(&part), "{part}: {seen:?}");
    }
    project.kill_hosts_and_wait();
    let (file, machine) = (exported(&project), EmptyMachine::new());
    let (code, report) = machine.report(&project, &file, &[]);
    assert_eq!((code, &report["same"], &report["skipped"]), (0, &json!(1), &json!([])), "{report}");
    assert_eq!(server.all().len(), 1, "a replay asks nobody");

    let other = rebuilt(
        &project,
        INSPECTOR.bytes,
        "none of what an inspector does",
        "nothing that an inspector does",
    );
    let (code, report) = machine.report(&project, &file, &["--against", &other]);
    assert_eq!((code, &report["same"]), (0, &json!(1)), "it was not said: {report}");
}

#[test]
fn c_077_a_step_that_read_more_than_is_kept_is_named_with_the_reason() {
    let project = inspected(9);
    project.write("docs/long.md", "long ".repeat(300_000).as_bytes());
    let ran = project.run(&["run", "inspector", "read docs/long.md\nread docs/a.md", "--wait"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    project.kill_hosts_and_wait();
    let (file, machine) = (exported(&project), EmptyMachine::new());
    let (code, report) = machine.report(&project, &file, &[]);
    assert_eq!((code, &report["same"], &report["differences"]), (0, &json!(0), &json!([])));
    let skipped = &report["skipped"];
    assert_eq!((skipped.as_array().map(Vec::len), &skipped[0]["turn"]), (Some(1), &json!(1)));
    let reason = skipped[0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("reads a file") && reason.contains("1048576 bytes"), "{report}");
}

#[test]
fn a_step_whose_host_dies_between_what_it_changes_itself_changes_nothing_twice() {
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let server = Receiver::start(move |_| {
        // The first request is not answered before its host is dead.
        let held = held.lock().unwrap_or_else(PoisonError::into_inner);
        held.recv_timeout(Duration::from_secs(60)).ok();
        200
    });
    let project = inspected(server.port);
    let looks = format!("append docs/a.md once\nget http://127.0.0.1:{}/", server.port);
    let run = project.run(&["run", "inspector", &looks, "-d"]).id();
    project.until("it asks", || server.all().len() == 1);
    project.kill_hosts_and_wait();
    for _ in 0..2 {
        release.send(()).expect("the server waits");
    }
    let waited = project.run(&["wait", &run]);
    assert_eq!(waited.code, 0, "{waited:?}");
    let result = project.run(&["get", &run, "--result"]).stdout;
    assert_eq!(result.trim(), "added\nstatus 200");
    let file = std::fs::read_to_string(project.path().join("docs/a.md")).expect("it is there");
    assert_eq!(file.matches("once").count(), 1, "{file}");
}

#[test]
fn c_077_a_run_is_recorded_as_it_ends_and_executed_again_by_what_its_agent_is_now() {
    let project = Project::new();
    let ran =
        project.run(&["run", "readonly_researcher", "Where are apples kept?", "--record", "a"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("cellar") && ran.stderr.contains("a: "), "{ran:?}");
    // A file that is there is refused before anything is started; one that fails is recorded, too.
    let taken = project.run(&["run", "worker", "x", "--record", "a"]);
    assert_eq!((taken.code, &taken.error()["code"]), (2, &json!("export-file")), "{taken:?}");
    // So is one whose folder is not there, or is a file.
    for beneath in ["nope/r.taskrun", "a/r.taskrun"] {
        let refused = project.run(&["run", "worker", "x", "--record", beneath]);
        let error = refused.error();
        assert_eq!((refused.code, &error["code"]), (2, &json!("export-file")), "{refused:?}");
    }
    let script = json!({ "steps": [[{ "err": "it broke" }]] }).to_string();
    let failed = project.run(&["run", "worker", &script, "--record", "b", "-o", "json"]);
    assert_eq!(failed.error()["code"], "run-failed", "{failed:?}");
    assert_eq!(project.run(&["ps", "-a", "-o", "name"]).stdout.lines().count(), 2);

    let report = |agent: &str, file: &str| {
        let ran = project.run(&["run", agent, "--replay", file, "-o", "json"]);
        (ran.code, ran.json())
    };
    let (code, same) = report("readonly_researcher", "a");
    assert_eq!((code, &same["steps"], &same["same"]), (0, &json!(3), &json!(3)), "{same}");
    assert_eq!(report("worker", "b").1["differences"], json!([]));
    let sentence = ("searching the workspace", "searching the workplace");
    let other = rebuilt(&project, RESEARCHER.bytes, sentence.0, sentence.1);
    std::fs::rename(other, project.path().join("components/researcher.wasm")).expect("renamed");
    let (code, differs) = report("readonly_researcher", "a");
    assert_eq!((code, &differs["same"]), (11, &json!(2)), "{differs}");
    assert_eq!(differs["differences"][0]["turn"], 1);
    assert_eq!(project.run(&["ps", "-a", "-o", "name"]).stdout.lines().count(), 2);

    let wrong = project.run(&["run", "worker", "--replay", "a"]);
    assert_eq!((wrong.code, &wrong.error()["code"]), (2, &json!("other-agent")), "{wrong:?}");
    let both = project.run(&["run", "worker", "a task", "--replay", "b"]);
    assert_eq!(both.code, 2, "{both:?}");
}

/// A store in which a sentence of an agent is another one.
struct Altered {
    store: Arc<dyn Store>,
    sentence: &'static str,
}

#[async_trait]
impl Layer for Altered {
    fn behind(&self) -> &dyn Store {
        &*self.store
    }

    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<EventRecord>, StoreError> {
        let mut read = self.store.read(id, after, limit).await?;
        for record in &mut read {
            let Event::AssistantMessage { message, .. } = &mut record.event else { continue };
            for part in &mut message.parts {
                if let Part::Text(text) = part {
                    *text = text.replace(self.sentence, "It was otherwise.");
                }
            }
        }
        Ok(read)
    }
}

#[test]
fn every_run_that_a_test_leaves_is_held_to_its_record_and_one_sentence_differs_in_its_step() {
    let project = Project::new();
    let call = json!({ "call": { "id": "c", "name": "scripted/lookup", "args": { "result": 1 } } });
    let ids = ["It is one.", "It is two."].map(|sentence| {
        let script = json!({ "steps": [[call], [{ "reply": sentence }]] });
        let id = project.run(&["run", "worker", &script.to_string(), "-d"]).id();
        assert_eq!(project.ends_by_itself(&id)["result"], sentence);
        id
    });
    let faults = |sentence: &'static str| {
        let left = project.left();
        assert_eq!(left.len(), 1);
        let altered = |left: Replays| {
            let store = Arc::new(Altered { store: Arc::clone(&left.store), sentence });
            Replays { store, ..left }.faults()
        };
        left.into_iter().flat_map(altered).collect::<Vec<_>>()
    };
    assert_eq!(faults("It is three."), [] as [&str; 0]);
    let found = faults("It is two.");
    let [one] = &found[..] else { panic!("{found:?}") };
    assert!(one.starts_with(&ids[1]) && one.contains("turn: 2"), "{one}");
    assert!(one.contains("It was otherwise.") && one.contains("It is two."), "{one}");
}
