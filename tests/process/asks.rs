//! Runs that ask, and people who answer from another terminal or from the one that follows the run.

use serde_json::json;

use crate::project::Project;
use crate::terminal::Terminal;

fn asking() -> String {
    let clarification = json!({ "clarification": { "id": "which", "question": "Which quarter?" } });
    json!({ "steps": [[{ "plan": { "await": [clarification] } }], [{ "reply": "thanks" }]] })
        .to_string()
}

fn form() -> String {
    let question = json!({
        "id": "colour", "prompt": "Which colour?",
        "options": [["r", "red"], ["g", "green"]], "allow-multiple": false,
    });
    let form = json!({ "questions": {
        "id": "form", "tool-name": "t", "tool-call-id": "c", "args": {}, "questions": [question],
    }});
    json!({ "steps": [[{ "plan": { "await": [form] } }], [{ "reply": "painted" }]] }).to_string()
}

#[test]
fn a_question_is_found_in_the_inbox_and_its_answer_starts_a_host_again() {
    let project = Project::new();
    let id = project.run(&["run", "worker", &asking(), "-d"]).id();
    let waited = project.run(&["wait", &id]);
    assert_eq!(waited.code, 8, "{waited:?}");
    assert_eq!(waited.error()["code"], "run-blocked");
    let inbox = project.run(&["inbox", "-o", "json"]).json();
    let item = &inbox["items"][0];
    assert_eq!((&item["run_id"], &item["item"]), (&json!(id), &json!("which")), "{inbox}");
    assert_eq!(
        (&item["kind"], &item["prompt"]),
        (&json!("clarification"), &json!("Which quarter?"))
    );
    assert_eq!(project.get(&id)["awaits"][0]["id"], "which");
    // Nobody has to stay for a run that waits.
    project.end_hosts();
    let refusals: &[(&[&str], &str, &str)] = &[
        (&["which", "--accept"], "invalid", "another kind of answer"),
        (&["which", " "], "invalid", "empty"),
        (&["nosuch", "Q3"], "unknown-item", "inbox"),
        (&["the", "third", "one"], "unknown-item", "in quotes"),
        (&[], "invalid", "Which quarter?"),
    ];
    for (words, code, says) in refusals {
        let words: Vec<&str> = ["answer", &id].iter().chain(*words).copied().collect();
        let refused = project.run(&words);
        assert_eq!((refused.code, &refused.error()["code"]), (2, &json!(code)), "{refused:?}");
        assert!(refused.stderr.contains(says), "{refused:?}");
    }
    let none = project.run(&["answer", &id]);
    let hint = format!("`taskrun answer {id} TEXT`");
    assert_eq!(none.error()["hint"], json!(hint), "{none:?}");
    assert_eq!(project.get(&id)["status"], "blocked", "a refused answer changes nothing");
    let answered = project.run(&["answer", &id, "the third one", "--owner", "local"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    // Nothing but the answer sees to it that somebody executes the run.
    let done = project.ends_by_itself(&id);
    assert_eq!((&done["status"], &done["result"]), (&json!("completed"), &json!("thanks")));
    assert_eq!(project.events(&id).iter().filter(|event| event["kind"] == "answered").count(), 1);
    let transcript = project.run(&["transcript", &id]).stdout;
    for said in ["Which quarter?", "the third one", "thanks"] {
        assert!(transcript.contains(said), "{transcript}");
    }
    let late = project.run(&["answer", &id, "which", "again"]);
    assert_eq!((late.code, &late.error()["code"]), (2, &json!("already-answered")), "{late:?}");
    let inbox = project.run(&["inbox", "-o", "json"]).json();
    assert_eq!(inbox["items"], json!([]));
}

#[test]
fn a_form_takes_its_own_options_only() {
    let project = Project::new();
    let id = project.run(&["run", "worker", &form(), "-d"]).id();
    let blocked = project.run(&["wait", &id, "--for", "blocked"]);
    assert_eq!(blocked.code, 8, "{blocked:?}");
    let refused = project.run(&["answer", &id, "colour=blue"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("no option \"blue\"; it has: r, g"), "{refused:?}");
    let answered = project.run(&["answer", &id, "form", "colour=g"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    assert_eq!(project.run(&["wait", &id]).code, 0);
    assert_eq!(project.get(&id)["result"], "painted");
}

#[test]
fn l_064_a_call_that_needs_consent_is_answered_from_another_terminal() {
    let project = Project::new();
    let call = |id: &str| json!({ "call": { "id": id, "name": "scripted/change", "args": {} } });
    let script = json!({ "steps": [[call("a")], [call("b")], [{ "reply": "done" }]] }).to_string();
    let id = project.run(&["run", "asking", &script, "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 8);
    let item = project.run(&["inbox", "-o", "json"]).json()["items"][0].clone();
    assert_eq!((&item["item"], &item["kind"]), (&json!("confirm:1:a"), &json!("confirmation")));
    assert!(item["until"].is_string(), "{item}");
    let refusals: &[(&[&str], &str)] = &[
        (&["yes"], "a confirmation takes --accept or --decline"),
        (&["yes", "--for-run"], "--for-run is for --accept and --decline"),
    ];
    for (words, says) in refusals {
        let words: Vec<&str> = ["answer", &id].iter().chain(*words).copied().collect();
        let refused = project.run(&words);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains(says), "{refused:?}");
    }
    let answered = project.run(&["answer", &id, "--accept", "--for-run", "--owner", "local"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    let done = project.ends_by_itself(&id);
    assert_eq!((&done["status"], &done["result"]), (&json!("completed"), &json!("done")));
    let events = project.events(&id);
    let consents: Vec<_> =
        events.iter().filter(|event| event["kind"] == "tool_authorization").collect();
    assert_eq!(consents.len(), 2, "the second call is covered by the first word");
    assert_eq!(
        (&consents[1]["decided_by"], &consents[1]["for_run"]),
        (&json!("local"), &json!(true))
    );
    let about = ["policy", "explain", "--cap", "tool", "--arg", "name=scripted/change", "--run"];
    let explained = project.run(&[&about[..], &[id.as_str()]].concat());
    let says = "what local said for the run lets it begin";
    assert!(explained.stdout.contains(says), "{explained:?}");
}

#[test]
fn c_033_a_run_with_its_earlier_agent_is_explained_where_that_of_now_does_not_load() {
    let project = Project::new();
    let call = json!({ "call": { "id": "a", "name": "scripted/change", "args": {} } });
    let script = json!({ "steps": [[call], [{ "reply": "done" }]] }).to_string();
    let id = project.run(&["run", "asking", &script, "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 8);
    let tool = project.path().join("components/scripted-tool.wasm");
    std::fs::write(tool, "no component").expect("written");
    let about = ["policy", "explain", "--cap", "tool", "--arg", "name=scripted/change", "--run"];
    let explained = project.run(&[&about[..], &[id.as_str(), "-o", "name"]].concat());
    assert_eq!((explained.code, explained.stdout.trim()), (0, "ask"), "{explained:?}");
}

#[test]
fn c_033_a_consent_for_always_holds_in_the_next_run_until_it_is_revoked() {
    let project = Project::new();
    let call = json!({ "call": { "id": "a", "name": "scripted/change", "args": {} } });
    let script = json!({ "steps": [[call], [{ "reply": "done" }]] }).to_string();
    let start = || project.run(&["run", "asking", &script, "-d"]).id();
    let answer = |id: &str, words: &[&str]| project.run(&[&["answer", id], words].concat());
    let authorized = |id: &str| {
        let events = project.events(id);
        assert!(!events.iter().any(|event| event["kind"] == "asked"), "{events:?}");
        let decided = events.iter().find(|event| event["kind"] == "tool_authorization");
        decided.cloned().expect("it was decided")
    };
    let first = start();
    assert_eq!(project.run(&["wait", &first]).code, 8);
    let refusals: &[(&[&str], &str)] = &[
        (&["--always"], "--always is for --accept and --decline"),
        (&["--accept", "--always", "--for-run"], "cannot be used with"),
        (&["--accept", "--always", "--for-session"], "cannot be used with"),
        (&["--accept", "--expires", "1d"], "--expires is for --for-session and --always"),
        (&["--accept", "--always", "--expires", "9999d"], "for at most 3650 days"),
        (&["--accept", "--for-session"], "belongs to no session that somebody named"),
    ];
    for (words, says) in refusals {
        let refused = answer(&first, words);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains(says), "{refused:?}");
    }
    let answered = answer(&first, &["--accept", "--always"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    let says =
        "consent 1: scripted/change may be called by agent asking in all runs of local, until";
    assert!(answered.stderr.contains(says), "{answered:?}");
    assert_eq!(project.ends_by_itself(&first)["result"], "done");

    let second = start();
    assert_eq!(project.run(&["wait", &second]).code, 0);
    let decided = authorized(&second);
    let told = (&decided["approved"], &decided["decided_by"], &decided["consent"]);
    assert_eq!(told, (&json!(true), &json!("local"), &json!(1)));
    let shown = project.run(&["get", &second, "--calls", "-o", "json"]).json();
    assert_eq!(shown["calls"][0]["consent"], 1, "{shown}");
    let listed = project.run(&["consents", "-o", "json"]).json();
    assert_eq!(listed["v"], 1);
    let consent = &listed["consents"][0];
    let told = (&consent["number"], &consent["tool_name"], &consent["holds"]);
    assert_eq!(told, (&json!(1), &json!("scripted/change"), &json!(true)), "{listed}");
    assert!(consent["until"].is_string() && consent["session"].is_null(), "{listed}");
    let policy = consent["policy"].as_str().unwrap_or_default();
    assert!(policy.ends_with("/taskrun.toml"), "{listed}");
    let about = ["--agent", "asking", "--cap", "tool", "--arg", "name=scripted/change"];
    let explained = project.run(&[&["policy", "explain", "-o", "json"], &about[..]].concat());
    assert_eq!(explained.code, 0, "{explained:?}");
    assert!(explained.stdout.contains("consent 1 of local lets it begin until"), "{explained:?}");

    let revoked = project.run(&["consents", "revoke", "1"]);
    assert_eq!((revoked.code, revoked.stdout.contains("revoked by local")), (0, true));
    assert_eq!(project.run(&["consents", "revoke", "7"]).error()["code"], "not-found");
    assert_eq!(project.run(&["consents", "-o", "name"]).stdout, "");
    assert_eq!(project.run(&["consents", "--all", "-o", "name"]).stdout, "1\n");
    let third = start();
    assert_eq!(project.run(&["wait", &third]).code, 8);
    assert_eq!(answer(&third, &["--decline", "--always"]).code, 0);
    assert_eq!(project.ends_by_itself(&third)["result"], "done");
    let fourth = start();
    assert_eq!(project.run(&["wait", &fourth]).code, 0);
    let decided = authorized(&fourth);
    assert_eq!((&decided["approved"], &decided["consent"]), (&json!(false), &json!(2)));
}

/// A run that asks for consent once, at a terminal that follows it.
fn followed(project: &Project, options: &[&str]) -> Terminal {
    let call = json!({ "call": { "id": "a", "name": "scripted/change", "args": {} } });
    let script = json!({ "steps": [[call], [{ "reply": "thanks" }]] }).to_string();
    Terminal::new(project.command(&[&["run", "asking", &script], options].concat()))
}

/// The id of the only run of the project.
fn only_run(project: &Project) -> String {
    project.run(&["ps", "-a", "-o", "name"]).id()
}

#[test]
fn c_031_the_terminal_that_follows_a_run_is_asked_until_the_run_has_ended() {
    let project = Project::new();
    let question = json!({ "clarification": { "id": "which", "question": "Which quarter?" } });
    let call = |id: &str| json!({ "call": { "id": id, "name": "scripted/change", "args": {} } });
    let steps = json!([
        [{ "plan": { "await": [question] } }], [call("a")], [call("b")], [{ "reply": "thanks" }],
    ]);
    let script = json!({ "steps": steps }).to_string();
    let mut terminal = Terminal::new(project.command(&["run", "asking", &script]));
    terminal.shows("\nWhich quarter?\n>", 1);
    terminal.types("Q3\n");
    terminal.shows("y/n>", 1);
    terminal.types("y\n");
    terminal.shows("y/n>", 2);
    terminal.types("n\n");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    terminal.shows("\nthanks\n", 1);
    let id = only_run(&project);
    let events = project.events(&id);
    let consents = events.iter().filter(|event| event["kind"] == "tool_authorization");
    let approved: Vec<_> = consents.map(|event| event["approved"].clone()).collect();
    assert_eq!(approved, [json!(true), json!(false)]);
    let told =
        events.iter().filter(|event| event["kind"] == "tool_result").map(ToString::to_string);
    let declined = told.filter(|result| result.contains("was declined by")).count();
    assert_eq!(declined, 1, "the agent is told: {events:?}");
}

#[test]
fn c_031_the_end_of_the_input_leaves_a_run_blocked_and_a_quiet_terminal_is_not_asked() {
    let cases: [(&[&str], Option<&str>); 2] = [(&[], Some("\x04")), (&["-q"], None)];
    for (options, typed) in cases {
        let project = Project::new();
        let mut terminal = followed(&project, options);
        if let Some(typed) = typed {
            terminal.shows("y/n>", 1);
            terminal.types(typed);
        }
        assert_eq!(terminal.ends(), 8, "{}", terminal.seen());
        terminal.shows("nobody here can answer", 1);
        assert_eq!(terminal.seen().matches("y/n>").count(), usize::from(typed.is_some()));
        let id = only_run(&project);
        assert_eq!(project.get(&id)["status"], "blocked");
        assert_eq!(project.run(&["answer", &id, "--accept"]).code, 0);
        assert_eq!(project.ends_by_itself(&id)["result"], "thanks");
    }
}

#[test]
fn c_031_ctrl_c_detaches_from_a_run_that_asks_and_an_end_elsewhere_ends_the_asking() {
    let project = Project::new();
    let mut terminal = followed(&project, &[]);
    terminal.shows("y/n>", 1);
    terminal.types("\x03");
    assert_eq!(terminal.ends(), 130, "{}", terminal.seen());
    terminal.shows("the run goes on", 1);
    let id = only_run(&project);
    terminal.shows(&format!("`taskrun answer {id}`"), 1);
    assert_eq!(project.get(&id)["status"], "blocked");

    let project = Project::new();
    let mut terminal = followed(&project, &[]);
    terminal.shows("y/n>", 1);
    assert_eq!(project.run(&["cancel", &only_run(&project)]).code, 0);
    assert_eq!(terminal.ends(), 6, "{}", terminal.seen());
}

/// The one that is asked by then may be of another kind of danger.
#[test]
fn what_is_typed_for_one_question_answers_no_later_one_of_the_same_name() {
    let project = Project::new();
    let asks = |question: &str| {
        let asked = json!({ "clarification": { "id": "which", "question": question } });
        json!([{ "plan": { "await": [asked] } }])
    };
    let steps = [asks("Which quarter?"), asks("Which year?"), json!([{ "reply": "thanks" }])];
    let script = json!({ "steps": steps }).to_string();
    let id = project.run(&["run", "worker", &script, "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 8);
    let mut terminal = Terminal::new(project.command(&["answer", &id]));
    terminal.shows("Which quarter?\n>", 1);
    assert_eq!(project.run(&["answer", &id, "which", "Q3"]).code, 0);
    assert_eq!(project.run(&["wait", &id]).code, 8);
    terminal.types("Q4\n");
    assert_eq!(terminal.ends(), 2, "{}", terminal.seen());
    terminal.shows("answered already", 1);
    let answered = project.events(&id).iter().filter(|event| event["kind"] == "answered").count();
    assert_eq!(answered, 1);
}
