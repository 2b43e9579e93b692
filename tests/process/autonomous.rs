//! Runs that go on by themselves, by the real program.

use serde_json::{Value, json};

use crate::project::Project;
use crate::terminal::Terminal;

/// A script that works in one round, is idle in the next, and is done in the third.
fn script() -> String {
    let call =
        |name: &str, args: Value| json!({ "call": { "id": "c", "name": name, "args": args } });
    json!({ "steps": [
        [call("workspace/read", json!({ "path": "docs/a.md" }))],
        [{ "reply": "They are in the cellar." }],
        [{ "reply": "Nothing to do." }],
        [call("report_done", json!({ "detail": "found" }))],
        [{ "reply": "Bye." }],
    ] })
    .to_string()
}

#[test]
fn c_081_a_goal_is_kept_at_until_it_is_reached_and_each_round_is_told() {
    let project = Project::new();
    let ran = project.run(&["run", "reader", &script(), "--autonomous", "-o", "ndjson"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let rounds: Vec<_> = lines[..3].iter().map(|line| (&line["round"], &line["worked"])).collect();
    let of = |round: u64, worked: bool| (json!(round), json!(worked));
    let expected = [of(1, true), of(2, false), of(3, false)];
    let expected: Vec<_> = expected.iter().map(|(round, worked)| (round, worked)).collect();
    assert_eq!(rounds, expected, "{ran:?}");
    assert_eq!(lines[0]["text"], "They are in the cellar.");
    let end = &lines[3];
    assert_eq!((&end["stop_reason"], &end["rounds"]), (&json!("done"), &json!(3)), "{end}");
    assert_eq!((&end["detail"], &end["status"]), (&json!("found"), &json!("completed")), "{end}");
    assert_eq!(end["result"], "They are in the cellar.", "an idle round takes no finding's place");
    let id = end["id"].as_str().expect("an id");
    let is_of_run = |line: &Value| line["run_id"] == id;
    assert!(lines[..3].iter().all(is_of_run), "{ran:?}");
    assert_eq!(project.get(id)["rounds"], 3);
    let shown = project.run(&["transcript", id]).stdout;
    assert!(shown.contains("continue"), "{shown}");
}

#[test]
fn c_007_in_a_pipe_a_round_is_one_line_of_text_or_of_json() {
    let project = Project::new();
    let words = ["run", "reader", &script(), "--autonomous", "--wait"];
    let ran = project.run(&words);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "They are in the cellar.\n"), "{ran:?}");
    let is_round = |line: &&str| line.starts_with("· round ");
    let rounds: Vec<_> = ran.stderr.lines().filter(is_round).collect();
    let expected = [
        "· round 1 ended: 2 turns, 1 tool call, 0 tokens; They are in the cellar.",
        "· round 2 ended: 3 turns, 1 tool call, 0 tokens; Nothing to do.",
        "· round 3 ended: 5 turns, 1 tool call, 0 tokens; Bye.",
    ];
    assert_eq!(rounds, expected);
    let quiet = project.run(&[&words[..], &["--quiet"]].concat());
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""), "{quiet:?}");
    // For programs the stream is the same whether its end is waited for or not.
    let ran = project.run(&[&words[..], &["-o", "ndjson"]].concat());
    let lines: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let rounds: Vec<_> = lines.iter().map(|line| &line["round"]).collect();
    assert_eq!(rounds, [&json!(1), &json!(2), &json!(3), &Value::Null], "{ran:?}");
    assert_eq!(lines[3]["status"], "completed");
    // A wait that is too short ends with the run as it stands.
    let steps = json!({ "steps": [["block"]] }).to_string();
    let words = ["run", "worker", &steps, "--autonomous", "--wait=100ms", "-o", "ndjson"];
    let ran = project.run(&words);
    assert_eq!((ran.code, &ran.json()["timed_out"]), (124, &json!(true)), "{ran:?}");
    assert_eq!(project.run(&["cancel", "@last"]).code, 0);
    // A run that nobody waits for says only which one it is.
    let words = ["run", "reader", &script(), "--autonomous"];
    let ran = project.run(&words);
    assert_eq!(project.ends_by_itself(&ran.id())["stop_reason"], "done");
}

#[test]
fn rounds_are_over_with_their_number_and_a_result_is_held_to_its_schema() {
    let project = Project::new();
    let steps = json!({ "steps": [[{ "reply": "one" }], [{ "reply": "two" }]] }).to_string();
    let ran = project.run(&["run", "worker", &steps, "--autonomous", "--rounds", "2", "--wait"]);
    assert_eq!((ran.code, ran.stdout.trim()), (9, "two"), "stopped by its budget: {ran:?}");
    let args = json!({ "result": { "n": 3 } });
    let call = json!({ "call": { "id": "c", "name": "return_result", "args": args } });
    let steps = json!({ "steps": [[call], [{ "reply": "end" }]] }).to_string();
    let schema = r#"{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}"#;
    project.write("schema.json", schema.as_bytes());
    let words = ["run", "worker", &steps, "--autonomous", "--result-schema", "@schema.json", "-d"];
    let id = project.run(&words).id();
    assert_eq!(project.ends_by_itself(&id)["returned"], json!({ "n": 3 }));
    let printed = project.run(&["get", &id, "--result"]);
    assert_eq!((printed.code, printed.stdout.trim()), (0, r#"{"n":3}"#), "{printed:?}");
    let ran = project.run(&[&words[..words.len() - 1], &["--wait"]].concat());
    assert_eq!(
        (ran.code, ran.stdout.trim()),
        (0, r#"{"n":3}"#),
        "its last words are none: {ran:?}"
    );
    let args = json!({ "result": { "summary": "s", "status": "failed", "reason": "no luck" } });
    let call = json!({ "call": { "id": "c", "name": "report_done", "args": args } });
    let steps = json!({ "steps": [[call], [{ "reply": "end" }]] }).to_string();
    let ran = project.run(&["run", "worker", &steps, "--autonomous", "--wait"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.stderr.contains("no luck"), "{ran:?}");
    let refused = project.run(&["run", "worker", "x", "--autonomous", "--rounds", "51"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("51 rounds are more than the 50"), "{refused:?}");
    let refused = project.run(&["run", "worker", "x", "--rounds", "2"]);
    assert!(refused.stderr.contains("--autonomous"), "{refused:?}");
}

#[test]
fn a_round_that_ended_has_ended_whatever_host_goes_on() {
    let project = Project::new();
    let question = json!({ "question": "Which?" });
    let call = json!({ "call": { "id": "c", "name": "host/ask_user", "args": question } });
    let done = json!({ "call": { "id": "d", "name": "report_done", "args": { "detail": "it" } } });
    let steps = json!({ "steps": [
        [{ "reply": "one" }], [call], [{ "reply": "two" }], [done], [{ "reply": "end" }],
    ] });
    let asks = ["--autonomous", "--answers", "inbox", "-d"];
    let id = project.run(&[&["run", "worker", &steps.to_string()], &asks[..]].concat()).id();
    project.reach(&id, "blocked");
    project.kill_hosts_and_wait();
    assert_eq!(project.run(&["answer", &id, "this"]).code, 0);
    let run = project.ends_by_itself(&id);
    assert_eq!((&run["stop_reason"], &run["rounds"]), (&json!("done"), &json!(3)), "{run}");
    let ended = project.events(&id).iter().filter(|event| event["kind"] == "round_ended").count();
    assert_eq!(ended, 2);
}

#[test]
fn rounds_that_are_lowered_bind_a_run_that_was_accepted_before() {
    let project = Project::new();
    let policy = "[agent.scout]\ncomponent = \"components/scripted.wasm\"\n\
                  autonomous = { rounds = 9 }\n";
    project.write("taskrun.toml", policy.as_bytes());
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let steps = json!({ "steps": [
        [{ "reply": "one" }], [{ "plan": { "await": [question] } }],
        [{ "reply": "two" }], [{ "reply": "three" }], [{ "reply": "four" }],
    ] });
    let steps = steps.to_string();
    let words = ["run", "scout", &steps, "--autonomous", "--answers", "inbox", "-d"];
    let id = project.run(&words).id();
    project.reach(&id, "blocked");
    project.end_hosts();
    let lowered = policy.replace("rounds = 9", "rounds = 2, max_defer = \"0s\"");
    project.write("taskrun.toml", lowered.as_bytes());
    assert_eq!(project.run(&["answer", &id, "which", "that one"]).code, 0);
    let run = project.ends_by_itself(&id);
    assert_eq!((&run["stop_reason"], &run["rounds"]), (&json!("max_turns"), &json!(2)), "{run}");
}

#[test]
fn cs_17_a_run_that_its_rounds_ended_is_resumed_by_its_name_or_by_its_session() {
    let project = Project::new();
    let done = json!({ "call": { "id": "d", "name": "report_done", "args": { "detail": "it" } } });
    let steps = json!({ "steps": [
        [{ "reply": "one" }], [{ "reply": "two" }], [{ "reply": "three" }], [done], [{ "reply": "end" }],
    ] });
    let words = ["run", "worker", &steps.to_string(), "--autonomous", "--rounds", "2", "-d"];
    let first = project.run(&[&words[..], &["--session", "s"]].concat()).id();
    assert_eq!(project.ends_by_itself(&first)["stop_reason"], "max_turns");
    let second = project.run(&["resume", &first]).id();
    assert_ne!(first, second);
    let run = project.ends_by_itself(&second);
    assert_eq!((&run["stop_reason"], &run["rounds"]), (&json!("done"), &json!(4)), "{run}");
    assert_eq!((&run["continues"], &run["result"]), (&json!(first), &json!("end")), "{run}");
    // What is done is given as it is.
    assert_eq!(project.run(&["resume", "--session", "s"]).id(), second);
    let nothing = project.run(&["resume", "--session", "other"]);
    assert_eq!((nothing.code, &nothing.error()["code"]), (2, &json!("not-found")), "{nothing:?}");
    let unnamed = project.run(&["resume"]);
    assert!(unnamed.stderr.contains("no run is named"), "{unnamed:?}");
    // Where there was none, one begins on the conversation.
    let anew =
        project.run(&["resume", "--session", "other", "--agent", "readonly_researcher"]).id();
    assert_eq!(project.get(&anew)["task"], "continue");
}

#[test]
fn c_038_a_session_without_an_autonomous_run_is_gone_on_with_on_what_was_said_in_it() {
    let project = Project::new();
    let said = project.run(&["run", "worker", "hello", "--session", "s", "--wait"]);
    assert_eq!(said.code, 0, "{said:?}");
    let words = ["resume", "--session", "s", "--agent", "worker", "--rounds", "1"];
    let begun = project.run(&words).id();
    let run = project.ends_by_itself(&begun);
    assert_eq!((&run["rounds"], &run["continues"]), (&json!(1), &Value::Null), "{run}");
    let events = project.events(&begun);
    let carried = events.iter().find(|event| event["kind"] == "history_carried");
    let carried = carried.expect("it is told what was said")["messages"].clone();
    let said: Vec<_> = carried.as_array().expect("messages").iter().collect();
    let said: Vec<_> = said.iter().map(|message| &message["parts"][0]["text"]).collect();
    assert_eq!(said, [&json!("hello"), &json!("hello")], "the task, and the answer to it");
}

#[test]
fn c_040_a_run_is_continued_within_totals_that_are_given_with_the_word_to_go_on() {
    let project = Project::new();
    let steps = json!({ "steps": [
        [{ "reply": "one" }], [{ "reply": "two" }], [{ "reply": "three" }], [{ "reply": "four" }],
    ] });
    let words = ["run", "worker", &steps.to_string(), "--autonomous", "--rounds", "1", "-d"];
    let first = project.run(&words).id();
    let run = project.ends_by_itself(&first);
    assert_eq!(run["stop_reason_alias"], "max_turns_exceeded", "{run}");
    let second = project.run(&["resume", &first, "--rounds", "2"]).id();
    let run = project.ends_by_itself(&second);
    assert_eq!((&run["rounds"], &run["result"]), (&json!(2), &json!("two")), "{run}");
    // What is used up already ends it before it begins.
    let third = project.run(&["resume", &second, "--rounds", "2"]).id();
    let run = project.ends_by_itself(&third);
    assert_eq!((&run["stop_reason"], &run["turns"]), (&json!("max_turns"), &json!(2)), "{run}");
    let fourth = project.run(&["resume", &third, "--budget", "wall=1ms"]).id();
    let run = project.ends_by_itself(&fourth);
    assert_eq!((&run["stop_reason"], &run["turns"]), (&json!("wallclock"), &json!(2)), "{run}");
    let said =
        [(&third, "`rounds`: the request gives 2 "), (&fourth, "`wall`: the request gives 1ms ")];
    for (id, said) in said {
        let logs = project.run(&["logs", id]).stdout;
        assert!(logs.contains(said), "it names the number that ends it: {logs}");
    }
    // Runs are chosen by our words and by those of others.
    for word in ["max_turns", "max_turns_exceeded"] {
        let listed = project.run(&["ps", "--stop-reason", word, "--limit", "2", "-o", "json"]);
        let listed = listed.json();
        let ids: Vec<_> =
            listed["runs"].as_array().expect("runs").iter().map(|run| &run["id"]).collect();
        assert_eq!(ids, [&json!(third), &json!(second)], "{listed}");
        let cursor = listed["next_cursor"].as_str().expect("there is more");
        let rest = project.run(&["ps", "--stop-reason", word, "--cursor", cursor, "-o", "json"]);
        assert_eq!(rest.json()["runs"][0]["id"], first.as_str());
    }
    let unknown = project.run(&["ps", "--stop-reason", "tired"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(project.run(&["get", &first]).stdout.contains("max_turns (max_turns_exceeded)"));
}

/// The number of messages that a run was told before it was shown them.
fn told(project: &Project, id: &str) -> Vec<Value> {
    let events = project.events(id);
    let told = events.iter().filter(|event| event["kind"] == "injected");
    told.map(|event| event["text"].clone()).collect()
}

#[test]
fn a_run_that_is_continued_with_a_message_is_told_it_once() {
    let project = Project::new();
    let done = json!({ "call": { "id": "d", "name": "report_done", "args": { "detail": "it" } } });
    let steps = json!({ "steps": [[{ "reply": "one" }], [done], [{ "reply": "end" }]] });
    let words = ["run", "worker", &steps.to_string(), "--autonomous", "--rounds", "1"];
    let first = project.run(&[&words[..], &["-d", "--session", "s"]].concat()).id();
    project.ends_by_itself(&first);
    // What would be dropped is refused before anything is begun.
    for option in [&["--note", "it was off"][..], &["--tree"]] {
        for of in [&[first.as_str()][..], &["--session", "s"]] {
            let refused = project.run(&[&["resume"], of, option].concat());
            assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("invalid")));
            assert!(refused.stderr.contains(option[0]), "{refused:?}");
        }
    }
    let second = project.run(&["resume", &first, "--message", "The mirror is back."]).id();
    assert_eq!(project.ends_by_itself(&second)["stop_reason"], "done");
    assert_eq!(told(&project, &second), ["The mirror is back."]);
    // Whoever did not hear that it was begun asks again.
    for of in [&[first.as_str()][..], &["--session", "s"]] {
        let again = project.run(&[&["resume"], of, &["--message", "The mirror is back."]].concat());
        assert_eq!(again.stderr, format!("{second} was there before, and was told the message\n"));
        assert_eq!(again.id(), second);
    }
    assert_eq!(told(&project, &second).len(), 1);
    let shown = project.run(&["transcript", &second]).stdout;
    assert_eq!(shown.matches("The mirror is back.").count(), 1, "{shown}");
    // Neither is one dropped that comes too late for a continuation, or for any.
    let late = project.run(&["resume", &first, "--message", "And gone."]);
    assert_eq!((late.code, &late.error()["code"]), (2, &json!("already-exists")), "{late:?}");
    assert!(late.stderr.contains(&format!("taskrun inject {second}")), "{late:?}");
    let late = project.run(&["resume", "--session", "s", "--message", "And gone."]);
    assert_eq!((late.code, &late.error()["code"]), (2, &json!("run-ended")), "{late:?}");
    assert_eq!(told(&project, &second).len(), 1);
    // One that begins on what was said in a session hears it as well.
    let words = ["resume", "--session", "o", "--agent", "worker", "--rounds", "1"];
    let anew = project.run(&[&words[..], &["--message", "Begin."]].concat()).id();
    project.ends_by_itself(&anew);
    assert_eq!(told(&project, &anew), ["Begin."]);
}

#[test]
fn cs_19_a_session_has_one_open_autonomous_run_of_an_agent() {
    let project = Project::new();
    let call =
        json!({ "call": { "id": "c", "name": "host/ask_user", "args": { "question": "?" } } });
    let steps = json!({ "steps": [[call], [{ "reply": "one" }]] }).to_string();
    let words = ["run", "worker", &steps, "--autonomous", "--answers", "inbox", "-d"];
    let in_session = [&words[..], &["--session", "s"]].concat();
    let id = project.run(&in_session).id();
    project.reach(&id, "blocked");
    let refused = project.run(&in_session);
    assert_eq!((refused.code, &refused.error()["code"]), (4, &json!("locked")), "{refused:?}");
    assert_eq!(refused.error()["run_id"], id.as_str());
    let refused = project.run(&["resume", &id, "--rounds", "3"]);
    assert!(refused.stderr.contains("within its own bounds"), "{refused:?}");
    // Without a session there is no conversation to have alone.
    assert_eq!(project.run(&words).code, 0);
}

#[test]
fn c_056_a_run_that_deferred_itself_is_woken_by_a_command() {
    let project = Project::new();
    let id = project.run(&["run", "worker", &waits_a_day(), "--autonomous", "-d"]).id();
    project.reach(&id, "blocked");
    let run = project.get(&id);
    assert_eq!((&run["blocked_on"], &run["rounds"]), (&json!("schedule"), &json!(1)), "{run}");
    assert!(run["next_wake_at"].is_string(), "{run}");
    project.kill_hosts_and_wait();
    let woken = project.run(&["wake", &id, "--message", "The mirror is back."]);
    assert_eq!(woken.code, 0, "{woken:?}");
    let run = project.ends_by_itself(&id);
    assert_eq!((&run["stop_reason"], &run["rounds"]), (&json!("done"), &json!(2)), "{run}");
    assert!(project.run(&["transcript", &id]).stdout.contains("The mirror is back."));
    let late = project.run(&["wake", &id]);
    assert_eq!(late.error()["code"], "run-ended", "{late:?}");
}

/// The goal of a run that defers itself for a day at the end of its first round, and is done in its
/// second.
fn waits_a_day() -> String {
    let later = json!({ "wake_in_sec": 86_400, "next_prompt": "Look again." });
    let later = json!({ "call": { "id": "s", "name": "host/schedule_next_turn", "args": later } });
    let done = json!({ "call": { "id": "d", "name": "report_done", "args": { "detail": "it" } } });
    json!({ "steps": [[later], [{ "reply": "waiting" }], [done], [{ "reply": "end" }]] })
        .to_string()
}

#[test]
fn c_055_a_run_that_exits_on_defer_is_gone_on_with_when_somebody_resumes_it() {
    let project = Project::new();
    let args = ["run", "worker", &waits_a_day(), "--autonomous", "--exit-on-defer", "--wait"];
    let ran = project.run(&args);
    assert_eq!((ran.code, &ran.error()["code"]), (8, &json!("run-deferred")), "{ran:?}");
    let listed = project.run(&["ps", "--stop-reason", "deferred", "-o", "name"]);
    let id = listed.stdout.trim().to_owned();
    let goes_on = format!("only as another run, which `taskrun resume {id}` starts");
    assert!(ran.stderr.contains(&goes_on), "{ran:?}");
    let run = project.get(&id);
    let ended = (&run["status"], &run["partial"], &run["result"]);
    assert_eq!(ended, (&json!("completed"), &json!(true), &json!("waiting")), "{run}");
    assert!(project.run(&["ps", "-a"]).stdout.contains("completed (deferred)"));
    project.end_hosts();
    let next = project.run(&["resume", &id, "-o", "name"]).stdout.trim().to_owned();
    let waits = project.reach(&next, "blocked");
    assert_eq!(waits["next_wake_at"], run["next_wake_at"], "{waits}");
    assert_eq!(project.run(&["wake", &next]).code, 0);
    let end = project.ends_by_itself(&next);
    assert_eq!((&end["stop_reason"], &end["rounds"]), (&json!("done"), &json!(2)), "{end}");
    assert!(project.run(&["transcript", &next]).stdout.contains("Look again."));
}

#[test]
fn a_deferred_run_that_is_continued_with_a_message_does_not_wait_for_its_time() {
    let project = Project::new();
    let args = ["run", "worker", &waits_a_day(), "--autonomous", "--exit-on-defer", "-d"];
    let id = project.run(&args).id();
    assert_eq!(project.ends_by_itself(&id)["stop_reason"], "deferred");
    let next = project.run(&["resume", &id, "--message", "The mirror is back."]).id();
    let end = project.ends_by_itself(&next);
    assert_eq!((&end["stop_reason"], &end["rounds"]), (&json!("done"), &json!(2)), "{end}");
    let shown = project.run(&["transcript", &next]).stdout;
    for said in ["The mirror is back.", "Look again."] {
        assert_eq!(shown.matches(said).count(), 1, "{shown}");
    }
}

#[test]
fn the_line_below_the_text_says_what_is_left_of_the_scarcest_budget_with_the_runs_beneath() {
    let project = Project::new();
    let policy = "[model.parrot]\nprovider = \"scripted\"\nscript = \"parrot.jsonl\"\n\n\
        [agent.talker]\ncomponent = \"components/chat.wasm\"\nmodel = \"parrot\"\n\n\
        [tool.scripted]\ncomponent = \"components/scripted-tool.wasm\"\n\n\
        [agent.lead]\ncomponent = \"components/scripted.wasm\"\nmodel = \"parrot\"\n\
        tools = [\"scripted/*\", \"agent/talker\"]\nlimits = { call = \"60s\" }\n\
        budget = { prompt_tokens = 100 }\n";
    project.write("taskrun.toml", policy.as_bytes());
    project.write("components/chat.wasm", taskrun_examples::CHAT.bytes);
    let usage = json!({ "prompt_tokens": 90, "completion_tokens": 1, "total_tokens": 91 });
    let answer = json!({ "responses": [{ "text": "hello" }, { "usage": usage }] });
    project.write("parrot.jsonl", answer.to_string().as_bytes());
    let call =
        |name: &str, args: Value| json!([{ "call": { "id": "c", "name": name, "args": args } }]);
    let steps = json!({ "steps": [
        call("agent/talker", json!({ "request": "Say hello." })),
        call("scripted/lookup", json!({ "sleep_ms": 50_000, "result": "late" })),
        [{ "reply": "done" }],
    ] });
    let words = ["run", "lead", &steps.to_string(), "--autonomous", "--rounds", "7"];
    let terminal = Terminal::rewriting(project.command(&words), 140, 24);
    terminal.has("round 1 of 7, 10% prompt tokens left");
    terminal.has("scripted/lookup");
    let open = project.run(&["ps", "--agent", "lead", "-o", "name"]).stdout;
    assert_eq!(project.run(&["cancel", open.trim()]).code, 0);
}
