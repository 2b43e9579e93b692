//! Autonomous runs by the words with which they are started, held and let go, as people type them.

use serde_json::{Value, json};

use crate::project::{Project, Ran};

fn call(name: &str, args: Value) -> Value {
    json!([{ "call": { "id": "c", "name": name, "args": args } }])
}

fn goal(steps: &[Value]) -> String {
    json!({ "steps": steps }).to_string()
}

fn done() -> Value {
    call("report_done", json!({ "detail": "it" }))
}

fn says(text: &str) -> Value {
    json!([{ "reply": text }])
}

/// The goal of a run that asks in its first round and is done in its second.
fn asks() -> String {
    let question = call("host/ask_user", json!({ "question": "Which?" }));
    goal(&[question, says("one"), done(), says("end")])
}

/// The goal of a run that makes a call for which consent is asked, and is done.
fn changes() -> String {
    goal(&[call("scripted/change", json!({})), done(), says("end")])
}

/// The goal of a run that defers itself for a day at the end of its first round.
fn waits_a_day() -> String {
    let later = call("host/schedule_next_turn", json!({ "wake_in_sec": 86_400 }));
    goal(&[later, says("waiting"), done(), says("end")])
}

fn autonomous(project: &Project, agent: &str, goal: &str, words: &[&str]) -> Ran {
    project.run(&[&["run", agent, goal, "--autonomous", "-d"], words].concat())
}

/// The answer of a command about the run.
fn line(project: &Project, id: &str, words: &[&str]) -> String {
    let ran = project.run(words);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.stdout.trim_end().strip_prefix(&format!("{id}  ")).expect("about the run").to_owned()
}

/// The outcomes of the calls of this function.
fn results(project: &Project, id: &str, function: &str) -> Vec<Value> {
    let events = project.events(id).into_iter();
    let of = |event: &Value| event["kind"] == "tool_result" && event["output"]["name"] == function;
    events.filter(of).map(|event| event["output"]["outcome"].clone()).collect()
}

#[test]
fn c_031_what_a_run_asks_is_answered_as_its_command_says() {
    let project = Project::new();
    let nobody = "(no user available: no interactive user is there)";
    let table: [(&[&str], &str); 5] = [
        (&[], nobody),
        (&["--unattended"], nobody),
        (&["--answers", "refuse"], nobody),
        (&["--answers", "refuse:it is night"], "(no user available: it is night)"),
        (&["--answers", "fixed:the blue one"], "the blue one"),
    ];
    for (words, said) in table {
        let id = autonomous(&project, "worker", &asks(), words).id();
        let run = project.ends_by_itself(&id);
        assert_eq!((&run["stop_reason"], &run["rounds"]), (&json!("done"), &json!(2)), "{run}");
        let answer = json!({ "value": json!(said).to_string() });
        assert_eq!(results(&project, &id, "host/ask_user"), [answer], "{words:?}");
        let shown = project.run(&["transcript", &id]).stdout;
        assert!(shown.contains(said), "{words:?}: {shown}");
        assert_eq!(project.run(&["inbox"]).stdout.matches(&id).count(), 0, "nobody was asked");
    }
    let both = autonomous(&project, "worker", "x", &["--unattended", "--answers", "inbox"]);
    assert_eq!(both.code, 2, "{both:?}");
    let unknown = autonomous(&project, "worker", "x", &["--answers", "somebody"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    for word in ["inbox", "refuse", "fixed:TEXT"] {
        assert!(unknown.stderr.contains(word), "it says what is known: {unknown:?}");
    }
}

#[test]
fn c_030_a_run_whose_rules_ask_is_refused_unless_somebody_is_named_who_answers() {
    let project = Project::new();
    for words in [&["--unattended"][..], &[]] {
        let refused = autonomous(&project, "asking", &changes(), words);
        assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("invalid")), "{refused:?}");
        assert!(refused.stderr.contains("asks for consent (\"tool: scripted/change\")"));
        assert!(refused.stderr.contains("--answers where the run is started"), "{refused:?}");
    }
    let plain = project.run(&["run", "asking", &changes(), "--unattended", "-d"]);
    assert_eq!(plain.code, 2, "one that ends with its answer as well: {plain:?}");
    assert_eq!(project.run(&["ps", "-a", "-o", "name"]).stdout, "", "nothing is kept");
    // The host declines, whichever word it has: a fixed text is no consent.
    for words in [["--answers", "refuse:it is night"], ["--answers", "fixed:yes"]] {
        let id = autonomous(&project, "asking", &changes(), &words).id();
        assert_eq!(project.ends_by_itself(&id)["stop_reason"], "done");
        let came = json!(results(&project, &id, "scripted/change")).to_string();
        assert!(came.contains("scripted/change was declined by host"), "{words:?}: {came}");
    }
}

#[test]
fn c_006_the_prompt_to_go_on_is_that_of_the_command() {
    let project = Project::new();
    let steps = goal(&[says("one"), says("two"), done(), says("end")]);
    let words = ["--continuation", "And what else is there?"];
    let id = autonomous(&project, "worker", &steps, &words).id();
    assert_eq!(project.ends_by_itself(&id)["rounds"], 3);
    let shown = project.run(&["transcript", &id]).stdout;
    assert_eq!(shown.matches("And what else is there?").count(), 2, "{shown}");
    // The run that continues it has it, too.
    let capped = goal(&[says("one"), says("two"), done(), says("end")]);
    let words = ["--continuation", "Go on, please.", "--rounds", "1"];
    let first = autonomous(&project, "worker", &capped, &words).id();
    assert_eq!(project.ends_by_itself(&first)["stop_reason"], "max_turns");
    let second = project.run(&["resume", &first]).id();
    assert_eq!(project.ends_by_itself(&second)["stop_reason"], "done");
    let shown = project.run(&["transcript", &second]).stdout;
    assert!(shown.contains("Go on, please."), "{shown}");
    let refused = autonomous(&project, "worker", "x", &["--continuation", " "]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("the prompt to go on has 1 to"), "{refused:?}");
}

#[test]
fn m_55_a_host_stays_while_a_run_is_due_within_its_idle_release() {
    let project = Project::new();
    let id = autonomous(&project, "worker", &waits_a_day(), &[]).id();
    project.reach(&id, "blocked");
    project.kill_hosts_and_wait();
    let mut stays = project.start(&["host", "--idle-exit", "100ms", "--idle-release", "48h"]);
    project.meets_host();
    // One that began later, and is due to leave as soon, leaves first.
    let leaves = project.start(&["host", "--idle-exit", "100ms", "--idle-release", "23h"]);
    let left = project.ends(leaves);
    assert_eq!(left.code, 0, "{left:?}");
    assert_eq!(project.hosts(), [i32::try_from(stays.id()).expect("a process")]);
    assert!(stays.try_wait().expect("looked at").is_none(), "it waits for the run");
    let ps = project.run(&["ps"]);
    assert!(!ps.stderr.contains("no host"), "{ps:?}");
    // When nothing is due any more it leaves, too.
    assert_eq!(project.run(&["wake", &id]).code, 0);
    assert_eq!(project.ends_by_itself(&id)["stop_reason"], "done");
    let left = project.ends(stays);
    assert_eq!(left.code, 0, "{left:?}");
}

#[test]
fn c_046_a_session_whose_run_is_executed_is_locked_with_its_host() {
    let project = Project::new();
    let blocks = goal(&[json!(["block"])]);
    let id = autonomous(&project, "worker", &blocks, &["--session", "s"]).id();
    project.reach(&id, "running");
    let host = project.sees(&id, "started")["host"].as_str().expect("it has one").to_owned();
    let again = ["run", "worker", &blocks, "--autonomous", "-d", "--session", "s"];
    for words in [&["resume", "--session", "s"][..], &again] {
        let refused = project.run(words);
        assert_eq!((refused.code, &refused.error()["code"]), (4, &json!("locked")), "{refused:?}");
        assert_eq!(refused.error()["run_id"], id.as_str());
        let said = format!("run {id} is open; {host} has it");
        assert!(refused.stderr.contains(&said), "{refused:?}");
        assert!(refused.stderr.contains(&format!("taskrun cancel {id}")), "{refused:?}");
    }
    // By its name it is no other run that would continue it: it is not paused, so nothing changes.
    let named = project.run(&["resume", &id]);
    assert_eq!((named.code, named.stdout), (0, format!("{id}  running, nothing changed\n")));
    assert_eq!(project.run(&["cancel", &id]).code, 0);
    project.ends_by_itself(&id);
    let next = project.run(&["resume", "--session", "s"]).id();
    assert_eq!(project.get(&next)["continues"], json!(id), "then it is gone on with");
    assert_eq!(project.run(&["cancel", &next]).code, 0);
}

#[test]
fn c_056_a_run_is_paused_told_something_and_resumed_in_the_middle_of_a_round() {
    let project = Project::new();
    let id = autonomous(&project, "worker", &asks(), &["--answers", "inbox"]).id();
    project.reach(&id, "blocked");
    let line = |words: &[&str]| line(&project, &id, words);
    assert_eq!(line(&["pause", &id, "--reason", "lunch"]), "blocked (input, paused)");
    assert_eq!(line(&["pause", &id]), "blocked (input, paused), nothing changed");
    assert!(project.run(&["get", &id]).stdout.contains("by local: lunch"));
    // An answer does not let a paused run go on.
    assert_eq!(line(&["answer", &id, "this"]), "blocked (pause), goes on once it is resumed");
    assert_eq!(
        line(&["inject", &id, "The mirror is back."]),
        "blocked (pause), 1 message for its next turn"
    );
    assert_eq!(results(&project, &id, "host/ask_user"), Vec::<Value>::new());
    assert_eq!(line(&["resume", &id]), "goes on");
    let run = project.ends_by_itself(&id);
    assert_eq!((&run["stop_reason"], &run["rounds"]), (&json!("done"), &json!(2)), "{run}");
    let shown = project.run(&["transcript", &id]).stdout;
    assert_eq!(shown.matches("The mirror is back.").count(), 1, "{shown}");
    let late = project.run(&["pause", &id]);
    assert_eq!((late.code, &late.error()["code"]), (2, &json!("run-ended")), "{late:?}");
}

#[test]
fn c_056_a_deferred_run_that_is_paused_is_not_woken_before_it_is_resumed() {
    let project = Project::new();
    let id = autonomous(&project, "worker", &waits_a_day(), &[]).id();
    project.reach(&id, "blocked");
    let line = |words: &[&str]| line(&project, &id, words);
    assert_eq!(line(&["pause", &id]), "blocked (schedule, paused)");
    assert_eq!(line(&["wake", &id]), "blocked (schedule, paused)");
    assert_eq!(project.get(&id)["turns"], 2);
    assert_eq!(line(&["resume", &id]), "goes on");
    assert_eq!(project.ends_by_itself(&id)["stop_reason"], "done");
}
