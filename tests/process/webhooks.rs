//! Subscribers by the real program: webhooks that others verify, commands and files, over kill -9.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use taskrun::clock::SystemClock;
use taskrun_journal::time::Clock;
use taskrun_tests::receiver::{Received, Receiver, verify};

use crate::project::Project;

const SECRET: &str = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0LCAzMiBieXRlcyE=";
const OLD_SECRET: &str = "whsec_YW5vdGhlciBzZWNyZXQgb2YgdGhlIHRlc3QsIDMyIQ==";

pub(crate) fn says(text: &str) -> String {
    json!({ "steps": [[{ "reply": text }]] }).to_string()
}

/// Adds tables to the policy of a project.
fn add(project: &Project, tables: &str) {
    let file = project.path().join("taskrun.toml");
    let policy = std::fs::read_to_string(&file).expect("there is one");
    project.write("taskrun.toml", format!("{policy}\n{tables}").as_bytes());
}

fn secret(project: &Project, path: &str, text: &str) {
    project.write(path, text.as_bytes());
    let own = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(project.path().join(path), own).expect("its mode");
}

/// A webhook `ci`, of which the agent `told` has its runs told.
pub(crate) fn told_by(project: &Project, receiver: &Receiver, beside: &str) {
    secret(project, "webhook.key", SECRET);
    add(
        project,
        &format!(
            "[webhook.ci]\nurl = \"http://127.0.0.1:{}/hook?x=1\"\nsecret_file = \"webhook.key\"\n\
             {beside}\n[agent.told]\ncomponent = \"components/scripted.wasm\"\n\
             subscribers = [\"webhook/ci\"]\n",
            receiver.port
        ),
    );
}

fn now() -> u64 {
    SystemClock::new().now().0 / 1_000
}

/// The keys of what arrived, each once.
fn keys(receiver: &Receiver) -> BTreeSet<String> {
    receiver.all().iter().map(|one| one.header("webhook-id").to_owned()).collect()
}

fn both_of(run: &str) -> [String; 2] {
    ["on_task_delegated", "on_task_completed"].map(|event| format!("{run}/{event}/webhook/ci"))
}

/// Everything that the data directory has, as bytes in a text.
fn kept(folder: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).expect("it is there") {
        let path = entry.expect("it is read").path();
        match path.is_dir() {
            true => all.push_str(&kept(&path)),
            false => {
                let bytes = std::fs::read(&path).unwrap_or_default();
                all.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }
    all
}

/// One request in the ways in which it may come, and the beginning of what the receiver is to say.
fn ways(one: &Received) -> Vec<(&'static str, Received, u64, &'static str)> {
    let changed = Received { body: one.body.replace("completed", "canceled"), ..one.clone() };
    let mut renamed = one.clone();
    renamed.headers.insert("webhook-id".to_owned(), "another".to_owned());
    vec![
        (SECRET, one.clone(), 0, "ok"),
        (OLD_SECRET, one.clone(), 0, "ok"),
        ("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", one.clone(), 0, "No matching signature"),
        (SECRET, changed, 0, "No matching signature"),
        (SECRET, renamed, 0, "No matching signature"),
        (SECRET, one.clone(), 301, "Message timestamp too old"),
    ]
}

/// The verdict of standardwebhooks of PyPI on each.
fn judged(ways: &[(&'static str, Received, u64, &'static str)]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/webhooks/verify.sh");
    let child = Command::new(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    for (secret, one, later, _) in ways {
        let line = json!({ "secret": secret, "headers": one.headers, "body": one.body,
                           "later": later });
        writeln!(stdin, "{line}").expect("written");
    }
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn a_webhook_is_told_of_acceptance_and_end_and_both_secrets_verify_it() {
    let (project, receiver) = (Project::new(), Receiver::start(|_| 204));
    secret(&project, "old.key", OLD_SECRET);
    told_by(&project, &receiver, "old_secret_file = \"old.key\"");
    let id = project.run(&["run", "told", &says("the budget is 12 pages"), "-d"]).id();
    project.ends_by_itself(&id);
    project.until("both arrive", || receiver.all().len() >= 2);
    assert_eq!(keys(&receiver), both_of(&id).into());
    let all = receiver.all();
    let end = all.iter().find(|one| one.body.contains("on_task_completed")).expect("it ended");
    let told: Value = serde_json::from_str(&end.body).expect("JSON");
    assert_eq!((&told["v"], &told["id"]), (&json!(1), &json!(end.header("webhook-id"))));
    let data = &told["data"];
    assert_eq!((&data["id"], &data["status"]), (&json!(id), &json!("completed")));
    assert!(!end.body.contains("12 pages"), "{}", end.body);
    assert_eq!(end.header("content-type"), "application/json");

    let ways = ways(end);
    for (secret, one, later, expected) in &ways {
        let verified = verify(secret, one, now() + later);
        assert_eq!(verified.is_ok(), *expected == "ok", "{verified:?}, {expected}");
    }
    #[expect(clippy::disallowed_methods, reason = "whoever starts the tests asks for it so")]
    if std::env::var_os("TASKRUN_E2E_WEBHOOKS").is_some_and(|value| value == "1") {
        let judged = judged(&ways);
        assert_eq!(judged.len(), ways.len(), "{judged:?}");
        for (judged, (.., expected)) in judged.iter().zip(&ways) {
            assert!(judged.starts_with(expected), "{judged}, not {expected}");
        }
    }
    project.end_hosts();
    for secret in [SECRET, OLD_SECRET] {
        let secret = secret.trim_start_matches("whsec_");
        assert!(!kept(&project.path().join(".taskrun")).contains(secret), "it is kept somewhere");
    }
}

#[test]
fn both_events_of_each_run_arrive_over_twenty_kills() {
    let project = Project::new();
    // The first request of each round is held until the host is dead.
    let is_armed = Arc::new(AtomicBool::new(false));
    let (came, coming) = mpsc::channel::<()>();
    let (free, freed) = mpsc::channel::<()>();
    let (armed, freed) = (Arc::clone(&is_armed), Mutex::new(freed));
    let receiver = Receiver::start(move |_| {
        if armed.swap(false, Ordering::SeqCst) {
            came.send(()).ok();
            freed.lock().unwrap_or_else(PoisonError::into_inner).recv().ok();
        }
        204
    });
    told_by(&project, &receiver, "");
    let mut runs = Vec::new();
    for round in 0..20 {
        is_armed.store(true, Ordering::SeqCst);
        runs.push(project.run(&["run", "told", &says("done"), "-d"]).id());
        coming.recv_timeout(std::time::Duration::from_secs(60)).expect("something is told");
        assert!(project.kill_hosts_and_wait() >= 1, "round {round}");
        free.send(()).expect("it is held");
    }
    // It stays as long as there is something to tell.
    let host = project.start(&["host", "--idle-exit", "1s"]);
    let ended = project.ends(host);
    assert_eq!(ended.code, 0, "{ended:?}");
    let all: BTreeSet<String> = runs.iter().flat_map(|run| both_of(run)).collect();
    assert_eq!(keys(&receiver), all);
    for one in receiver.all() {
        assert_eq!(verify(SECRET, &one, now()), Ok(()));
    }
    let shown = project.run(&["outbox", "ls"]);
    assert!(shown.stderr.contains("nothing is to be told"), "{shown:?}");
    let shown = project.run(&["outbox", "show", &runs[0], "-o", "json"]).json();
    let states: Vec<&Value> =
        shown["dispatches"].as_array().expect("two").iter().map(|one| &one["state"]).collect();
    assert_eq!(states, ["delivered", "delivered"]);
}

#[test]
fn a_webhook_that_fails_is_seen_and_dropped_or_tried_again() {
    let project = Project::new();
    let status = Arc::new(AtomicU16::new(500));
    let answered = Arc::clone(&status);
    let receiver = Receiver::start(move |_| answered.load(Ordering::SeqCst));
    told_by(&project, &receiver, "events = [\"on_task_completed\"]");
    let id = project.run(&["run", "told", &says("done"), "-d"]).id();
    let row = || {
        let shown = project.run(&["outbox", "show", &id, "-o", "json"]);
        if shown.code == 0 { shown.json()["dispatches"][0].clone() } else { Value::Null }
    };
    project.until("an attempt fails", || row()["attempts"] == 1);
    assert_eq!((&row()["error"], &row()["state"]), (&json!("it answered 500"), &json!("pending")));
    let listed = project.run(&["outbox", "ls"]);
    assert!(listed.stdout.contains("webhook/ci") && listed.stdout.contains(&id), "{listed:?}");
    let early = project.run(&["outbox", "retry", &id]);
    assert_eq!((early.code, &early.error()["code"]), (2, &json!("conflict")), "{early:?}");
    let wrong = project.run(&["outbox", "drop", &id, "--subscriber", "webhook/other"]);
    assert_eq!((wrong.code, &wrong.error()["code"]), (2, &json!("not-found")), "{wrong:?}");
    for says in ["\"webhook/other\" is not among the subscribers", "hint: told are webhook/ci"] {
        assert!(wrong.stderr.contains(says), "{wrong:?}");
    }
    // The pause of five seconds is over by itself.
    status.store(200, Ordering::SeqCst);
    project.until("it arrives", || row()["state"] == "delivered");
    status.store(500, Ordering::SeqCst);
    let id = project.run(&["run", "told", &says("done"), "-d"]).id();
    let dropped = || project.run(&["outbox", "drop", &id, "--subscriber", "webhook/ci"]).code == 0;
    project.until("it is dropped", dropped);
    assert_eq!(project.run(&["outbox", "show", &id]).code, 2);
}

/// The lines of a file of events.
fn lines(project: &Project, path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(project.path().join(path)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn commands_and_files_are_told_also_of_a_run_that_a_terminal_ends() {
    let project = Project::new();
    let script = "#!/bin/sh\nread line\nprintf '%s\\n' \"$line\" >> told.jsonl\n";
    project.write("notify", script.as_bytes());
    let own = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(project.path().join("notify"), own).expect("its mode");
    let unknown = project.run(&["run", "worker", &says("x"), "-d", "--subscriber", "file/audit"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    let first = project.run(&["run", "worker", &says("x"), "-d"]).id();
    project.ends_by_itself(&first);
    // A host takes the policy up as it is now.
    add(
        &project,
        "[file.audit]\npath = \"audit.jsonl\"\ninclude_result = true\n\
         [command.note]\nrun = [\"./notify\"]\nevents = [\"on_task_completed\"]\n",
    );
    let told = ["--subscriber", "file/audit", "--subscriber", "command/note"];
    let run = |task: &str| project.run(&[&["run", "worker", task, "-d"][..], &told].concat()).id();
    let id = run(&says("the budget"));
    project.ends_by_itself(&id);
    project.until("all is told", || {
        lines(&project, "audit.jsonl").len() == 2 && lines(&project, "told.jsonl").len() == 1
    });
    let mut audit = lines(&project, "audit.jsonl");
    audit.sort_by_key(|line| line["type"].as_str().map(str::to_owned));
    assert_eq!(audit[0]["data"]["result"], "the budget");
    assert_eq!(audit[1]["type"], "on_task_delegated");
    let noted = &lines(&project, "told.jsonl")[0]["data"];
    assert_eq!((&noted["id"], &noted["result"]), (&json!(id), &Value::Null));

    // A run that waits, and no host: the terminal that cancels it sees to it that this is told.
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let waits = json!({ "steps": [[{ "plan": { "await": [question] } }]] }).to_string();
    let id = run(&waits);
    project.reach(&id, "blocked");
    project.until("it is told", || lines(&project, "audit.jsonl").len() == 3);
    project.kill_hosts_and_wait();
    assert_eq!(project.run(&["cancel", &id]).code, 0);
    project.until("the end is told", || lines(&project, "told.jsonl").len() == 2);
    assert_eq!(lines(&project, "told.jsonl")[1]["data"]["status"], "canceled");
}

#[test]
fn a_host_of_another_policy_tells_no_text_that_the_policy_of_the_run_withholds() {
    let project = Project::new();
    let tables = |beside: &str| {
        format!(
            "[file.audit]\npath = \"audit.jsonl\"\n{beside}\n[agent.told]\n\
             component = \"components/scripted.wasm\"\nsubscribers = [\"file/audit\"]\n"
        )
    };
    let policy = std::fs::read_to_string(project.path().join("taskrun.toml")).expect("a policy");
    let other = format!("{policy}\n{}", tables("include_result = true"));
    project.write("other.toml", other.as_bytes());
    add(&project, &tables(""));
    let elsewhere = ["--config", "other.toml", "--data-dir", ".taskrun"];
    let host = project.start(&[&elsewhere[..], &["host", "--idle-exit", "0"]].concat());
    project.meets_host();
    let task = says("the budget");
    // As long as its host is the only one: any other that lives may tell of it, too.
    let given = project.run(&[&elsewhere[..], &["run", "told", &task, "-d"]].concat()).id();
    project.ends_by_itself(&given);
    project.until("it is told", || lines(&project, "audit.jsonl").len() == 2);
    let withheld = project.run(&["run", "told", &task, "-d"]).id();
    project.ends_by_itself(&withheld);
    project.until("all is told", || lines(&project, "audit.jsonl").len() == 4);
    for line in lines(&project, "audit.jsonl") {
        let (data, is_given) = (&line["data"], line["data"]["id"] == json!(given));
        assert_eq!(data["task"].is_string(), is_given, "{line}");
        let has_result = is_given && line["type"] == "on_task_completed";
        assert_eq!(data["result"].is_string(), has_result, "{line}");
    }
    project.end_hosts();
    project.ends(host);
}
