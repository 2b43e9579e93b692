//! A later version of the program: this one, with a later version and a later format of journals, and
//! one whose defaults are others besides. Runs go on under it, and the program of before touches nothing
//! that it has written. Another later version cannot bind the components: under it the runs wait.
//!
//! The later programs are copies of this test, which know by their name what they are. They are no part
//! of the product, so nobody starts one by mistake, and cost one more program to link.
//!
//! ```sh
//! cargo test -p taskrun-cli --test later
//! ```

#[path = "../process/background.rs"]
mod background;
#[expect(dead_code, reason = "these tests need a part of it")]
#[path = "../process/project.rs"]
mod project;
#[expect(dead_code, reason = "runs are given another form there")]
#[path = "../process/changes/stage.rs"]
mod stage;

use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use taskrun_cli::Program;
use taskrun_store::{SCHEMA_VERSION, SqliteOptions, SqliteStore};
use taskrun_tests::changes::{Change, ProgramForm, STATES};

use self::project::Project;
use self::stage::Stage;

/// Names of the files of the later programs.
const NEWER: &str = "taskrun-newer";
const OTHERWISE: &str = "taskrun-otherwise";
const NARROW: &str = "taskrun-narrow";
const VERSION: &str = "99.0.0";

/// The name of a test, the later program that it is about, and what it does with it.
type Test = (&'static str, &'static str, fn(&Path));
const TESTS: [Test; 6] = [
    ("runs_go_on_under_a_later_program_whatever_state_it_finds_them_in", NEWER, runs_go_on),
    ("the_program_of_before_refuses_what_a_later_one_wrote", NEWER, is_refused),
    ("a_host_of_before_ends_when_a_later_program_writes_and_its_runs_go_on", NEWER, host_ends),
    ("runs_go_on_by_the_defaults_of_the_program_that_accepted_them", OTHERWISE, runs_keep_defaults),
    ("runs_of_a_closure_that_a_later_program_cannot_bind_wait_for_the_one_before", NARROW, is_held),
    (
        "runs_go_on_in_a_store_with_tables_of_another_version_once_it_is_made_anew",
        NEWER,
        tables_change,
    ),
];

/// The later program of this name.
fn program(name: &str) -> Option<Program> {
    let of = |form: ProgramForm| Program {
        version: VERSION,
        format: form.format(),
        defaults: form.defaults(),
        ..Program::default()
    };
    match name {
        NEWER => Some(of(ProgramForm::Later)),
        OTHERWISE => Some(of(ProgramForm::LaterWithOtherDefaults)),
        // It writes journals that the program of before reads.
        NARROW => Some(Program { component_bytes_max: 1, ..of(ProgramForm::Same) }),
        _ => None,
    }
}

fn main() -> ExitCode {
    let this = std::env::current_exe().expect("this program");
    let name = this.file_name().and_then(|name| name.to_str());
    if let Some(later) = name.and_then(program) {
        return taskrun_cli::main_with(later);
    }
    let (chosen, is_listed) = asked(std::env::args().skip(1));
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|one| name.contains(one));
    let folder = tempfile::tempdir().expect("a folder");
    let mut failed = 0;
    for (name, later, test) in TESTS.into_iter().filter(|(name, ..)| is_chosen(name)) {
        if is_listed {
            println!("{name}: test");
            continue;
        }
        let later = folder.path().join(later);
        if !later.exists() {
            std::fs::copy(&this, &later).expect("copied");
        }
        let ended = catch_unwind(|| test(&later));
        println!("test {name} ... {}", if ended.is_ok() { "ok" } else { "FAILED" });
        failed += u8::from(ended.is_err());
    }
    ExitCode::from(failed)
}

/// The parts of names by which tests are chosen, and whether they are only to be listed. What else
/// the usual harness understands is passed over.
fn asked(mut args: impl Iterator<Item = String>) -> (Vec<String>, bool) {
    let (mut chosen, mut is_listed) = (Vec::new(), false);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => is_listed = true,
            "--test-threads" | "--color" | "--format" | "--skip" => drop(args.next()),
            option if option.starts_with('-') => {}
            _ => chosen.push(arg),
        }
    }
    (chosen, is_listed)
}

/// Lets the later program do what is done in a project from here on.
fn use_later(project: &mut Project, later: &Path) -> PathBuf {
    std::mem::replace(&mut project.program, later.to_owned())
}

fn runs_go_on(later: &Path) {
    let mut stage = Stage::new();
    use_later(&mut stage.project, later);
    let doctor = stage.project.run(&["doctor", "-o", "json"]).json();
    let wanted = (json!(VERSION), json!(ProgramForm::Later.format().0));
    assert_eq!((doctor["version"].clone(), doctor["journal_format"].clone()), wanted);
    stage.check(Change::named("a_later_program"));
}

/// The stage's agents state a call's time and a pause: all else is left to the program.
fn runs_keep_defaults(later: &Path) {
    let mut stage = Stage::new();
    use_later(&mut stage.project, later);
    stage.check(Change::named("a_program_with_other_defaults"));
}

/// All that have an agent are held: those that are wanted, as the one whose answer is there, say so.
fn is_held(later: &Path) {
    let mut stage = Stage::new();
    let before = use_later(&mut stage.project, later);
    let answered = stage.project.run(&["answer", run_that(&stage, STATES[0]), "the third one"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    let wanted =
        ["waits for an answer", "is in the middle of a step", "is in the middle of a call"];
    let held = found(&stage);
    for state in wanted {
        let id = run_that(&stage, state);
        let get = || stage.project.run(&["get", id]).stderr;
        stage.project.until("a host tries it", || get().contains("closure_unusable"));
        is_said(&get(), state);
        let waited = stage.project.run(&["wait", id, "--timeout", "3s"]);
        assert_eq!(waited.code, 124, "{state}: {waited:?}");
        is_said(&waited.stderr, state);
    }
    // It is told of by a host while that lives, and when it has ended as it could do nothing.
    for ended in [false, true] {
        if ended {
            stage.project.until("the host ends", || stage.project.hosts().is_empty());
        }
        is_said(&stage.project.run(&["ps"]).stderr, "ps");
        let doctor = stage.project.run(&["doctor"]);
        assert!(doctor.stdout.contains("closure_unusable: "), "{doctor:?}");
    }
    assert_eq!(found(&stage), held, "nothing begins, and nothing ends");
    let queued = run_that(&stage, "is queued");
    let waits = stage.project.run(&["wait", queued, "--timeout", "1s"]);
    assert_eq!(waits.code, 124, "{waits:?}");
    stage.project.kill_hosts_and_wait();
    stage.project.program = before;
    stage.check(Change::named("a_later_program"));
}

/// The tables are those of a program with another version of them, as the later one finds them: one has
/// a column less, one a column more, and one is not known.
fn tables_change(later: &Path) {
    const OTHER: &str = "DROP INDEX runs_by_task; ALTER TABLE runs DROP COLUMN task; ALTER TABLE hosts ADD COLUMN mood TEXT;
        ALTER TABLE facts RENAME COLUMN text TO words; CREATE TABLE moods (no INTEGER);
        INSERT INTO moods VALUES (1)";
    let mut stage = Stage::new();
    let store = stage.project.path().join(".taskrun/taskrun.db");
    {
        let db = foreign(&store);
        let number: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0)).expect("reads");
        db.pragma_update(None, "user_version", number - 1).expect("writes");
        db.execute_batch(OTHER).expect("writes");
    }
    use_later(&mut stage.project, later);
    let refused = stage.project.run(&["ps"]).error();
    assert_eq!(refused["code"], "store-version", "{refused}");
    assert!(
        refused["hint"].as_str().is_some_and(|hint| hint.contains("doctor --repair")),
        "{refused}"
    );
    let repaired = stage.project.run(&["doctor", "--repair"]);
    let version = format!("of version {}", SCHEMA_VERSION - 1);
    for part in ["made anew with 8 runs", &version, "facts", "moods"] {
        assert!(repaired.stdout.contains(part), "{part}: {repaired:?}");
    }
    stage.check(Change::named("a_later_program"));
}

/// A store as a stranger has it, who keeps its checksums.
fn foreign(store: &Path) -> rusqlite::Connection {
    let dir = store.parent().expect("a folder");
    // The layer with the checksums is there once a store was open.
    drop(SqliteStore::open(dir, SqliteOptions::default()).expect("opens"));
    let flags = rusqlite::OpenFlags::default();
    rusqlite::Connection::open_with_flags_and_vfs(store, flags, "taskrun").expect("opens")
}

/// The run in one of the states.
fn run_that<'s>(stage: &'s Stage, state: &str) -> &'s str {
    let found = STATES.iter().position(|known| *known == state);
    &stage.runs[found.unwrap_or_else(|| panic!("no {state}"))].0
}

/// The statuses of the runs, and the kinds of the events in their journals, but for what a dead host
/// leaves to others to say.
fn found(stage: &Stage) -> Vec<(Value, Vec<Value>)> {
    let of = |id: &String| {
        let kinds = stage.project.events(id).into_iter().map(|event| event["kind"].clone());
        let kinds = kinds.filter(|kind| *kind != "lost");
        (stage.project.get(id)["status"].clone(), kinds.collect())
    };
    stage.runs.iter().map(|(id, _)| of(id)).collect()
}

/// Holds a command to what it says of runs that wait: once for each agent, with the ways out.
fn is_said(said: &str, of: &str) {
    let lines: Vec<&str> =
        said.lines().filter(|line| line.contains("closure_unusable: ")).collect();
    let agents: BTreeSet<_> =
        lines.iter().map(|line| line.split(" did not load ").next()).collect();
    assert!(!lines.is_empty() && agents.len() == lines.len(), "{of}: {said}");
    for way in
        ["at most 1 are allowed", "a host of the program before", "taskrun adopt", "taskrun cancel"]
    {
        assert!(lines.iter().all(|line| line.contains(way)), "{of}: {way}: {said}");
    }
}

fn is_refused(later: &Path) {
    let mut project = Project::new();
    let steps = json!({ "steps": [[{ "reply": "thanks" }]] }).to_string();
    let first = project.run(&["run", "worker", &steps, "-d"]).id();
    project.ends_by_itself(&first);
    project.end_hosts();
    let before = use_later(&mut project, later);
    // Looking changes nothing for the program of before.
    assert_eq!(project.get(&first)["status"], "completed");
    project.program.clone_from(&before);
    assert_eq!(project.get(&first)["status"], "completed");
    use_later(&mut project, later);
    let second = project.run(&["run", "worker", &steps, "-d"]).id();
    project.ends_by_itself(&second);
    project.close_store();
    let store = project.path().join(".taskrun/taskrun.db");
    let written = std::fs::read(&store).expect("it is there");
    project.program = before;
    for args in [
        &["get", &first][..],
        &["ps"],
        &["run", "worker", &steps, "-d"],
        &["host", "--idle-exit", "1s"],
        &["cancel", &second],
        &["doctor", "--repair"],
    ] {
        let refused = project.run(args);
        let said = &refused.stderr;
        assert_ne!(refused.code, 0, "{args:?}: {refused:?}");
        let format = ProgramForm::Later.format();
        let named = format!("format {format}, written by a later taskrun");
        let is_named = said.contains(&named) || refused.stdout.contains(&named);
        assert!(is_named, "{args:?}: {refused:?}");
    }
    let refused = project.run(&["get", &first]).error();
    assert_eq!(refused["code"], "journal-format", "{refused}");
    assert_eq!(std::fs::read(&store).expect("it is there"), written, "it is not changed");
    use_later(&mut project, later);
    assert_eq!(project.get(&second)["status"], "completed");
}

fn host_ends(later: &Path) {
    let mut project = Project::new();
    let slow = json!([{ "call": { "id": "c", "name": "scripted/lookup", "args": { "sleep_ms": 8_000 } } }]);
    let slow = json!({ "steps": [slow, [{ "reply": "thanks" }]] }).to_string();
    let begun = project.run(&["run", "worker", &slow, "-d"]).id();
    project.sees(&begun, "tool_call_scheduled");
    let hosts = project.hosts();
    assert_eq!(hosts.len(), 1);
    use_later(&mut project, later);
    let steps = json!({ "steps": [[{ "reply": "thanks" }]] }).to_string();
    let asked = project.run(&["run", "worker", &steps, "-d"]).id();
    project.until("the host of before ends", || !project.hosts().contains(&hosts[0]));
    for id in [asked, begun] {
        let waited = project.run(&["wait", &id, "--timeout", "60s"]);
        assert_eq!(waited.code, 0, "{waited:?}: {:#?}", project.events(&id));
        assert_eq!(project.get(&id)["result"], "thanks");
    }
}
