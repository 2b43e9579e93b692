//! Runs that are paused, resumed and told something from another terminal, and questions that are
//! answered at one.

use serde_json::{Value, json};

use crate::project::Project;
use crate::terminal::Terminal;

/// Asks a question, and then answers.
fn asking() -> String {
    let clarification = json!({ "clarification": { "id": "which", "question": "Which quarter?" } });
    json!({ "steps": [[{ "plan": { "await": [clarification] } }], [{ "reply": "thanks" }]] })
        .to_string()
}

#[test]
fn a_paused_run_stays_paused_over_the_death_of_its_host_until_it_is_resumed() {
    let project = Project::new();
    let id = project.run(&["run", "worker", &asking(), "-d"]).id();
    project.reach(&id, "blocked");
    let paused = project.run(&["pause", &id, "--reason", "lunch", "-o", "json"]);
    assert_eq!(paused.code, 0, "{paused:?}");
    let run = &paused.json()["runs"][0];
    assert_eq!((&run["changed"], &run["blocked_on"]), (&json!(true), &json!("input")));
    assert_eq!(run["paused"]["reason"], "lunch");
    let again = project.run(&["pause", &id]);
    assert!(again.stdout.contains("nothing changed"), "{again:?}");
    project.kill_hosts_and_wait();
    let answered = project.run(&["answer", &id, "the third one"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    let waited = project.run(&["wait", &id]);
    assert_eq!(waited.code, 8, "{waited:?}");
    assert!(waited.stderr.contains("taskrun resume"), "{waited:?}");
    assert_eq!(project.get(&id)["blocked_on"], "pause");
    // Nothing but the word to go on sees to it that somebody executes the run.
    let resumed = project.run(&["resume", &id, "--message", "hurry"]);
    assert_eq!(resumed.code, 0, "{resumed:?}");
    let done = project.ends_by_itself(&id);
    assert_eq!((&done["status"], &done["result"]), (&json!("completed"), &json!("thanks")));
    assert!(done["paused"].is_null(), "{done}");
    let kinds: Vec<_> = project.events(&id).iter().map(|event| event["kind"].clone()).collect();
    for kind in ["pause_requested", "pause_ended", "inbox_shown"] {
        assert_eq!(kinds.iter().filter(|one| *one == kind).count(), 1, "{kinds:?}");
    }
    let late = project.run(&["pause", &id]);
    assert_eq!((late.code, &late.error()["code"]), (2, &json!("run-ended")), "{late:?}");
    let told = project.run(&["inject", &id, "too", "late"]);
    assert_eq!((told.code, &told.error()["code"]), (2, &json!("run-ended")), "{told:?}");
}

#[test]
fn every_run_that_is_named_is_tried_though_one_before_it_is_refused() {
    let project = Project::new();
    let begin = |script: &str| project.run(&["run", "worker", script, "-d"]).id();
    let [one, two] = [(); 2].map(|()| begin(&asking()));
    let [first, second] = [(); 2].map(|()| begin(r#"{"steps":[[{"reply":"done"}]]}"#));
    for (asks, ends) in [(&one, &first), (&two, &second)] {
        project.reach(asks, "blocked");
        project.ends_by_itself(ends);
    }
    let all = [one.as_str(), &first, &two, &second];
    for (word, is_paused) in [("pause", true), ("resume", false)] {
        let ran = project.run(&[&[word][..], &all, &["-o", "json"]].concat());
        let error = ran.error();
        assert_eq!((ran.code, &error["code"]), (2, &json!("run-ended")), "{ran:?}");
        assert_eq!(error["run_id"], first, "{ran:?}");
        for refused in [&first, &second] {
            let says = format!("error: run {refused} has ended");
            assert_eq!(ran.stderr.matches(&says).count(), 1, "{ran:?}");
        }
        let told = ran.json();
        let runs = told["runs"].as_array().expect("runs").iter();
        let changed: Vec<_> = runs.map(|run| (run["id"].clone(), run["changed"].clone())).collect();
        let both = [(json!(one), json!(true)), (json!(two), json!(true))];
        assert_eq!(changed, both, "{ran:?}");
        for id in [&one, &two] {
            assert_eq!(!project.get(id)["paused"].is_null(), is_paused, "{word} {id}");
        }
    }
    let again = project.run(&[&["resume"][..], &all].concat());
    assert_eq!(again.stdout.matches("nothing changed").count(), 2, "{again:?}");
    let none = project.run(&["wake", &second, &one, "-o", "json"]);
    assert_eq!((none.code, &none.error()["code"]), (2, &json!("run-ended")), "{none:?}");
    assert!(none.stderr.contains(&format!("run {one} is not deferred")), "{none:?}");
    assert!(none.stderr.contains(&format!("hint: see it with `taskrun get {one}`")), "{none:?}");
    assert_eq!(none.stdout, "", "nothing changed, and nothing is told of");
}

#[test]
fn runs_that_are_resumed_together_are_one_list_with_those_that_continue_others() {
    let project = Project::new();
    let done = json!({ "call": { "id": "d", "name": "report_done", "args": { "detail": "it" } } });
    let steps =
        json!({ "steps": [[{ "reply": "one" }], [done], [{ "reply": "end" }]] }).to_string();
    let words = ["run", "worker", &steps, "--autonomous", "--rounds", "1", "-d"];
    let [first, second] = [(); 2].map(|()| project.run(&words).id());
    for id in [&first, &second] {
        project.ends_by_itself(id);
    }
    let paused = project.run(&["run", "worker", &asking(), "-d"]).id();
    project.reach(&paused, "blocked");
    assert_eq!(project.run(&["pause", &paused]).code, 0);
    let resumed = project.run(&["resume", &first, &paused, &second, "-o", "json"]);
    assert_eq!(resumed.code, 0, "{resumed:?}");
    let told = resumed.json();
    let runs = told["runs"].as_array().expect("runs");
    let about: Vec<_> = runs.iter().map(|run| (&run["changed"], &run["continues"])).collect();
    let (yes, none) = (json!(true), Value::Null);
    let (after_first, after_second) = (json!(first), json!(second));
    assert_eq!(about, [(&yes, &none), (&yes, &after_first), (&yes, &after_second)], "{told}");
    assert_eq!(runs[0]["id"], json!(paused), "{told}");
    let id = |run: &Value| run["id"].as_str().expect("an id").to_owned();
    for run in &runs[1..] {
        assert_eq!(project.ends_by_itself(&id(run))["stop_reason"], "done");
    }
    // They are there already: in lines, and the one that continues a run as it is printed alone.
    let again = project.run(&["resume", &first, &second, "-o", "ndjson"]).stdout;
    let lines = again.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let lines: Vec<Value> = lines.collect();
    let about: Vec<_> = lines.iter().map(|run| (id(run), run["changed"].clone())).collect();
    assert_eq!(about, [(id(&runs[1]), json!(false)), (id(&runs[2]), json!(false))], "{again}");
    let alone = project.run(&["resume", &first, "-o", "json"]).json();
    assert_eq!((id(&alone), &alone["reused"]), (id(&runs[1]), &yes), "{alone}");
    assert!(alone.get("runs").is_none() && alone.get("changed").is_none(), "{alone}");
}

#[test]
fn runs_are_found_by_the_words_of_other_task_lists_and_shown_with_them() {
    let project = Project::new();
    let done = project.run(&["run", "worker", r#"{"steps":[[{"reply":"done"}]]}"#, "-d"]).id();
    assert_eq!(project.ends_by_itself(&done)["status"], "completed");
    let blocked = project.run(&["run", "worker", &asking(), "-d"]).id();
    project.reach(&blocked, "blocked");
    let canceled = project.run(&["run", "worker", &asking(), "-d"]).id();
    project.reach(&canceled, "blocked");
    assert_eq!(project.run(&["cancel", &canceled]).code, 0);
    project.ends_by_itself(&canceled);
    let listed = |words: &str| {
        let all = project.run(&["ps", "--status", words, "-o", "json"]).json();
        let runs = all["runs"].as_array().expect("runs").clone();
        let shown = runs.iter().map(|run| (run["id"].clone(), run["status_alias"].clone()));
        shown.collect::<Vec<_>>()
    };
    assert_eq!(listed("finished"), [(json!(done), json!("finished"))]);
    assert_eq!(listed("cancelled"), [(json!(canceled), json!("cancelled"))]);
    assert_eq!(listed("blocked"), [(json!(blocked), json!(null))]);
    assert_eq!(listed("pending,in_progress"), []);
    assert_eq!(listed("finished,cancelled").len(), 2);
}

#[test]
fn what_a_run_is_told_stands_in_its_transcript_and_a_pause_ends_with_its_time() {
    let project = Project::new();
    let id = project.run(&["run", "worker", &asking(), "-d"]).id();
    project.reach(&id, "blocked");
    let told = project.run(&["inject", &id, "it", "is", "urgent"]);
    assert_eq!(told.code, 0, "{told:?}");
    assert!(told.stdout.contains("1 message for its next turn"), "{told:?}");
    let paused = project.run(&["pause", &id, "--timeout", "1ms"]);
    assert_eq!(paused.code, 0, "{paused:?}");
    let answered = project.run(&["answer", &id, "the third one"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    let done = project.ends_by_itself(&id);
    assert_eq!(done["status"], "completed");
    let transcript = project.run(&["transcript", &id, "--format", "json"]).stdout;
    assert!(transcript.contains("it is urgent"), "{transcript}");
    let ended = project.events(&id).into_iter().find(|event| event["kind"] == "pause_ended");
    let ended = ended.expect("it ended").to_string();
    assert!(ended.contains("deadline_exceeded"), "{ended}");
}

#[test]
fn at_a_terminal_what_is_asked_is_asked_there() {
    let project = Project::new();
    let option = |id: &str, label: &str| json!([id, label]);
    let question = |id: &str, options: Value, many: bool| json!({ "id": id, "prompt": format!("{id}?"), "options": options, "allow-multiple": many });
    let colours = json!([option("r", "red"), option("g", "green")]);
    let form = json!({ "questions": {
        "id": "form", "tool-name": "t", "tool-call-id": "c", "args": {},
        "questions": [
            question("one", colours.clone(), false),
            question("many", colours, true),
            question("free", json!([]), false),
        ],
    }});
    let clarification = json!({ "clarification": { "id": "which", "question": "Which quarter?" } });
    let outside = json!({ "external-tools": {
        "id": "out", "items": [{ "name": "out/side", "tool-call-id": "x", "args": {} }],
    }});
    let asks = json!([clarification, form, outside]);
    let script = json!({ "steps": [[{ "plan": { "await": asks } }], [{ "reply": "thanks" }]] });
    let id = project.run(&["run", "worker", &script.to_string(), "-d"]).id();
    project.reach(&id, "blocked");
    let mut terminal = Terminal::new(project.command(&["answer", &id]));
    terminal.shows("Which quarter?\n>", 1);
    terminal.types("the third one\n");
    terminal.shows("1-2>", 1);
    // The lines of one form may be typed ahead.
    terminal.types("9\n2\n1 2\nwhatever\n");
    terminal.shows("what failed>", 1);
    terminal.types("{\"a\": 1}\n");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    for shown in ["2  green (g)", "there is no option 9", "result as JSON"] {
        assert!(terminal.seen().contains(shown), "{shown:?} is missing: {}", terminal.seen());
    }
    let done = project.ends_by_itself(&id);
    assert_eq!((&done["status"], &done["result"]), (&json!("completed"), &json!("thanks")));
    let answers: Vec<_> =
        project.events(&id).into_iter().filter(|event| event["kind"] == "answered").collect();
    assert_eq!(answers.len(), 3, "{answers:?}");
    let said = serde_json::to_string(&answers).expect("JSON");
    for part in ["the third one", r#""one":["g"]"#, r#""many":["r","g"]"#, "whatever"] {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
}
