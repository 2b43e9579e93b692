//! Waiting for runs: the words and codes for how it ended; and for many at once, by many processes,
//! of which none hangs, whatever else the machine does.

use std::process::Child;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::copies::copies;
use crate::project::{Project, Ran};

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
    let copies = copies(project, &first, RUNS - 1);
    [vec![first], copies].concat()
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

/// Starts a run of an agent that does as the script says.
fn begin(project: &Project, script: &Value) -> String {
    project.run(&["run", "worker", &script.to_string(), "-d"]).id()
}

/// A run that has completed.
fn completed(project: &Project) -> String {
    let id = begin(project, &json!({ "steps": [[{ "reply": "done" }]] }));
    assert_eq!(project.ends_by_itself(&id)["status"], "completed");
    id
}

/// The script of a run that asks.
fn asks() -> Value {
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    json!({ "steps": [[{ "plan": { "await": [question] } }]] })
}

/// A policy with an agent that may call another one.
const LEADING: &str = "[tool.scripted]\ncomponent = \"components/scripted-tool.wasm\"\n\n\
                       [agent.worker]\ncomponent = \"components/scripted.wasm\"\n\
                       members = [\"worker\"]\n\n\
                       [agent.lead]\ncomponent = \"components/scripted.wasm\"\n\
                       tools = [\"scripted/*\", \"agent/worker\"]\n";

/// The script of a run that has the other agent do as a script says.
fn leads(script: &Value) -> String {
    let calls = call("agent/worker", &json!({ "request": script.to_string() }));
    json!({ "steps": [[calls], [{ "reply": "done" }]] }).to_string()
}

/// A run that asks, and waits for the answer.
fn asking(project: &Project) -> String {
    let id = begin(project, &asks());
    project.reach(&id, "blocked");
    id
}

fn call(name: &str, args: &Value) -> Value {
    json!({ "call": { "id": "c", "name": name, "args": args } })
}

/// The `timed_out` of each run of a wait.
fn timed_out(waited: &Ran) -> Vec<Value> {
    let told = waited.json();
    let runs = told["runs"].as_array().expect("runs");
    runs.iter().map(|run| run["timed_out"].clone()).collect()
}

#[test]
fn a_run_that_ended_in_another_status_than_the_one_waited_for_is_told() {
    let project = Project::new();
    let (done, canceled) = (completed(&project), asking(&project));
    assert_eq!(project.run(&["cancel", &canceled]).code, 0);
    project.ends_by_itself(&canceled);
    for wanted in ["failed", "queued", "running", "blocked"] {
        let waited = project.run(&["wait", &done, "--for", wanted]);
        assert_eq!(waited.code, 2, "{waited:?}");
        assert_eq!(waited.stdout, project.run(&["wait", &done]).stdout, "{wanted}");
        let error = waited.error();
        assert_eq!((&error["code"], &error["run_id"]), (&json!("run-ended"), &json!(done)));
        let says = format!("error: run {done} ended as completed and can no more become {wanted}");
        assert!(waited.stderr.contains(&says), "{waited:?}");
        let waited = project.run(&["wait", &done, "--for", wanted, "-o", "json"]);
        assert_eq!((waited.code, timed_out(&waited)), (2, vec![json!(false)]), "{waited:?}");
        let waited = project.run(&["wait", &done, "--for", wanted, "-o", "ndjson"]);
        assert_eq!(waited.stdout, project.run(&["wait", &done, "-o", "ndjson"]).stdout);
    }
    assert_eq!(project.run(&["wait", &canceled, "--for", "canceled"]).code, 0);
    let waited = project.run(&["wait", &canceled, "--for", "completed"]);
    assert_eq!((waited.code, &waited.error()["code"]), (6, &json!("run-canceled")), "{waited:?}");
    let says = format!("run {canceled} ended as canceled and can no more become completed");
    assert!(waited.stderr.contains(&says), "{waited:?}");
    // Of several one is enough, and else the first that ended says how.
    let any = |wanted| project.run(&["wait", "--any", &canceled, &done, "--for", wanted]);
    assert_eq!(any("completed").code, 0);
    let neither = any("failed");
    assert_eq!((neither.code, &neither.error()["run_id"]), (2, &json!(done)), "{neither:?}");
    assert_eq!(neither.stdout.lines().count(), 2, "{neither:?}");
}

#[test]
fn a_run_timed_out_only_where_a_time_was_over() {
    let project = Project::new();
    let (done, asks) = (completed(&project), asking(&project));
    let ways: [&[&str]; 3] = [&[], &["--timeout", "60s"], &["--for", "failed"]];
    for words in ways {
        let waited = project.run(&[&["wait", &asks, "-o", "json"][..], words].concat());
        assert_eq!((waited.code, timed_out(&waited)), (8, vec![json!(false)]), "{waited:?}");
        assert_eq!(waited.error()["code"], "run-blocked");
    }
    let any = ["wait", "--any", &done, &asks, "--for", "failed", "-o", "json"];
    for timeout in [ways[0], ways[1]] {
        let waited = project.run(&[&any[..], timeout].concat());
        assert_eq!((waited.code, timed_out(&waited)), (2, vec![json!(false); 2]), "{waited:?}");
    }
    let works = begin(&project, &json!({ "steps": [["block"]] }));
    let waited = project.run(&["wait", &done, &works, "--timeout", "100ms", "-o", "json"]);
    let told = vec![json!(false), json!(true)];
    assert_eq!((waited.code, timed_out(&waited)), (124, told), "{waited:?}");
    assert_eq!(project.run(&["cancel", &works]).code, 0);
}

#[test]
fn a_wait_for_blocked_fails_only_where_somebody_outside_has_to_answer() {
    let project = Project::new();
    project.write("taskrun.toml", LEADING.as_bytes());
    let for_blocked = |id: &str| {
        let waited = project.run(&["wait", id, "--for", "blocked"]);
        (waited.code, waited.stdout, waited.stderr)
    };
    let later = call("host/schedule_next_turn", &json!({ "wake_in_sec": 86_400 }));
    let script = json!({ "steps": [[later], [{ "reply": "waiting" }], [{ "reply": "end" }]] });
    let words = ["run", "worker", &script.to_string(), "--autonomous", "-d"];
    let deferred = project.run(&words).id();
    let (code, shown, told) = for_blocked(&deferred);
    assert!(code == 0 && shown.contains("blocked (schedule"), "{code}: {shown}{told}");
    // One that waits for an agent which works, and for one which asks.
    let begin_lead = |request: &Value| project.run(&["run", "lead", &leads(request), "-d"]).id();
    let works = begin_lead(&json!({ "steps": [["block"]] }));
    let (code, shown, told) = for_blocked(&works);
    assert!(code == 0 && shown.contains("blocked (children"), "{code}: {shown}{told}");
    let refused = project.run(&["answer", &works, "yes"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains(&format!("error: run {works} asks nothing\n")), "{refused:?}");
    let asks = begin_lead(&asks());
    project.until("it asks", || project.run(&["inbox"]).stdout.contains("Which?"));
    let (code, shown, told) = for_blocked(&asks);
    assert!(code == 8 && shown.contains("blocked (children"), "{code}: {shown}{told}");
    for id in [deferred, works, asks] {
        assert_eq!(project.run(&["cancel", &id]).code, 0);
    }
}

#[test]
fn a_run_that_is_waited_for_is_printed_where_it_asks_or_waits_for_one_that_does() {
    let project = Project::new();
    project.write("taskrun.toml", LEADING.as_bytes());
    let asks = asks();
    for (agent, script, on) in
        [("worker", asks.to_string(), "input"), ("lead", leads(&asks), "children")]
    {
        let ran = |words: &[&str]| {
            let ran = project.run(&[&["run", agent, &script, "--wait"][..], words].concat());
            assert_eq!((ran.code, &ran.error()["code"]), (8, &json!("run-blocked")), "{ran:?}");
            ran
        };
        for format in ["json", "ndjson"] {
            let shown = ran(&["-o", format]).json();
            let is = (&shown["agent_name"], &shown["status"], &shown["blocked_on"]);
            assert_eq!(is, (&json!(agent), &json!("blocked"), &json!(on)), "{shown}");
            assert_eq!(shown.get("timed_out"), None, "{shown}");
        }
        let id = ran(&["-o", "name"]).stdout;
        assert_eq!(project.get(id.trim())["agent_name"], agent);
        assert_eq!(ran(&[]).stdout, "", "people see it in the failure");
    }
}

#[test]
fn the_last_run_is_the_one_that_was_asked_for_and_not_the_one_that_its_agent_started() {
    let project = Project::new();
    project.write("taskrun.toml", LEADING.as_bytes());
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let script = json!({
        "steps": [[{ "plan": { "await": [question] } }], [{ "reply": "thanks" }]],
    });
    let leading = || {
        let id = project.run(&["run", "lead", &leads(&script), "-d"]).id();
        project.until("it asks", || project.run(&["inbox"]).stdout.contains("Which?"));
        assert_eq!(project.run(&["wait", &id, "--for", "blocked"]).code, 8);
        assert_eq!(project.get("@last")["id"], json!(id));
        id
    };
    let answered = leading();
    let ran = project.run(&["answer", "@last", "the second"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("@last waits for worker "), "{ran:?}");
    assert_eq!(project.run(&["wait", &answered]).code, 0);
    // An id is taken at its word.
    let canceled = leading();
    let refused = project.run(&["answer", &canceled, "the second"]);
    let told = (refused.code, &refused.error()["code"]);
    assert_eq!(told, (2, &json!("unknown-item")), "{refused:?}");
    let inbox = project.run(&["inbox", "-o", "json"]).json();
    let child = inbox["items"][0]["run_id"].as_str().expect("a run asks");
    let says =
        format!("run {canceled} asks nothing itself: it waits for worker {child}, which asks");
    assert!(refused.stderr.contains(&says), "{refused:?}");
    assert!(refused.stderr.contains(&format!("`taskrun answer {child}`")), "{refused:?}");
    // That command, which gives no answer, shows the question.
    let shown = project.run(&["answer", child]);
    assert!(shown.code == 2 && shown.stderr.contains("Which?"), "{shown:?}");
    assert_eq!(project.run(&["cancel", "@last"]).code, 0);
    assert_eq!(project.run(&["wait", &canceled]).code, 6);
    let none_is_open = || {
        let open = "queued,running,blocked,canceling,finalizing";
        project.until("none is open", || {
            project.run(&["ps", "--status", open, "-o", "name"]).stdout.is_empty()
        });
    };
    none_is_open();
    // A person may put one beneath a run that an agent started.
    let left = leading();
    let inbox = project.run(&["inbox", "-o", "json"]).json();
    let asking = inbox["items"][0]["run_id"].as_str().expect("a run");
    let put = project.run(&["run", "worker", &asks().to_string(), "--parent", asking, "-d"]).id();
    assert_eq!(project.get(&put)["parent_run_id"], asking);
    assert_eq!(project.get("@last")["id"], json!(put));
    assert_eq!(project.run(&["cancel", &left]).code, 0);
    none_is_open();
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
