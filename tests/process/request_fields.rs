//! Fields of a request beside its task: they are in the record, reach the agent, and runs are listed
//! by them.

use std::collections::BTreeSet;
use std::fs::File;

use serde_json::{Value, json};
use taskrun_journal::spec::{KEY_BYTES_MAX, KEYS_MAX, TASK_BYTES_MAX};

use crate::input::refuses;
use crate::project::{Project, Ran};

/// The task of a run that answers with what its step was given.
fn shows_input() -> String {
    json!({ "ops": ["reply_input"] }).to_string()
}

/// The step's input, as such a run that was waited for answered with it.
fn input(ran: &Ran) -> Value {
    assert_eq!(ran.code, 0, "{ran:?}");
    let view = ran.json();
    let answer = view["result"].as_str().expect("an answer");
    serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

fn said(text: &str) -> Value {
    json!({ "role": "user", "parts": [{ "text": text }] })
}

/// The runs that `ps` prints with these arguments.
fn listed(project: &Project, args: &[&str]) -> BTreeSet<String> {
    let ran = project.run(&[&["ps", "-o", "name"][..], args].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.stdout.lines().map(str::to_owned).collect()
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|&id| id.to_owned()).collect()
}

#[test]
fn what_a_request_carries_is_in_the_record_and_reaches_the_agent() {
    let project = Project::new();
    project.write("notes.md", b"second note");
    let task = shows_input();
    let ran = project.run(&[
        "run",
        "worker",
        &task,
        "--wait",
        "-o",
        "json",
        "--app",
        "mail",
        "--metadata",
        "ticket=77",
        "--metadata",
        "by=cron",
        "--state",
        "region=north",
        "--state",
        "query=a=b",
        "--state",
        "taskrun.run=no",
        "--context",
        "first note",
        "--context",
        "@notes.md",
    ]);
    let given = input(&ran);
    let told = [said("first note"), said("second note")];
    assert_eq!(given["messages"], json!([told[0], told[1], said(&task)]));
    let (run, envelope) = (&given["run"], &given["run"]["envelope"]);
    assert_eq!((&run["app-name"], &envelope["region"]), (&json!("mail"), &json!("north")));
    assert_eq!((&envelope["query"], &envelope["taskrun.run"]), (&json!("a=b"), &json!("true")));

    let view = ran.json();
    let id = view["id"].as_str().expect("an id");
    let run = project.get(id);
    assert_eq!((&run["app_name"], &run["parent_app_name"]), (&json!("mail"), &json!("mail")));
    assert_eq!(run["metadata"], json!({ "ticket": "77", "by": "cron" }));
    assert_eq!(run["runtime_state"], json!({ "region": "north", "query": "a=b" }));
    assert_eq!(run["context_messages"], json!(told));
    let shown = project.run(&["get", id]).stdout;
    for text in [
        "application  mail",
        "by=cron ticket=77",
        "query=a=b region=north",
        format!("2 messages, 21 B: `taskrun transcript {id}`").as_str(),
    ] {
        assert!(shown.contains(text), "{text:?} is missing: {shown}");
    }
    let transcript = project.run(&["transcript", id]).stdout;
    assert!(transcript.contains("first note") && transcript.contains("second note"));
}

#[test]
fn context_is_read_from_stdin_for_one_text() {
    let project = Project::new();
    project.write("note", b"from a pipe");
    let task = shows_input();
    let run = |task: &str| {
        let args = ["run", "worker", task, "--context", "-", "--wait", "-o", "json"];
        let mut command = project.command(&args);
        command.stdin(File::open(project.path().join("note")).expect("it is there"));
        Ran::from(command.output().expect("starts"))
    };
    assert_eq!(input(&run(&task))["messages"], json!([said("from a pipe"), said(&task)]));
    refuses(&run("-"), 2, &["more than one text is to be read from stdin"]);
}

#[test]
fn a_request_that_carries_too_much_or_wrongly_is_refused_and_starts_nothing() {
    let project = Project::new();
    project.write("long", &vec![b'x'; TASK_BYTES_MAX]);
    let run = |more: &[&str]| project.run(&[&["run", "worker", "x", "-d"][..], more].concat());
    let long = format!("k={}", "v".repeat(KEY_BYTES_MAX + 1));
    for (more, says) in [
        (&["--metadata", "k"][..], "write it as key=value"),
        (&["--state", " =v"], "write it as key=value"),
        (&["--metadata", "k=a", "--metadata", "k=b"], "--metadata once for each key"),
        (&["--state", "k=a", "--state", "k=b"], "state k has two values"),
        (&["--state", &long], "value of runtime_state has more than 4096 bytes"),
        (&["--metadata", &long], "value of metadata has more than 4096 bytes"),
        (&["--app", " "], "it is empty"),
        (&["--context", " "], "empty context"),
        (&["--context", "@nosuch"], "cannot read the context from nosuch"),
        (&["--context", "@long"], "the task and the messages before it have more than"),
        (&["--heartbeat", "--state", "k=v"], "cannot be used with"),
        (&["--heartbeat", "--context", "c"], "cannot be used with"),
    ] {
        refuses(&run(more), 2, &[says]);
    }
    let many: Vec<String> = (0..=KEYS_MAX).map(|n| format!("k{n}=v")).collect();
    for (option, field) in [("--state", "runtime_state"), ("--metadata", "metadata")] {
        let all: Vec<&str> = many.iter().flat_map(|pair| [option, pair.as_str()]).collect();
        let says = format!("{field} have more than {KEYS_MAX} keys");
        refuses(&run(&all), 2, &[says.as_str()]);
    }
    refuses(&project.run(&["ps", "--app", ""]), 2, &["it is empty"]);
    refuses(&project.run(&["ps", "--parent", "nobody"]), 2, &["not found"]);
    assert_eq!(listed(&project, &["-a"]), set(&[]));
}

#[test]
fn m_23_runs_are_listed_by_the_run_above_them_and_by_their_application() {
    let project = Project::new();
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let asks = json!({ "steps": [[{ "plan": { "await": [question] } }]] }).to_string();
    let above = project.run(&["run", "worker", &asks, "-d", "--app", "mail"]).id();
    project.reach(&above, "blocked");
    let done = |more: &[&str]| {
        project.run(&[&["run", "worker", "done", "--wait", "-o", "name"][..], more].concat()).id()
    };
    let below = done(&["--parent", &above]);
    let moved = done(&["--parent", &above, "--app", "desk"]);
    let other = done(&["--app", "desk"]);
    let plain = done(&[]);

    assert_eq!(project.get(&below)["app_name"], "mail", "it belongs to that of the run above");
    let all = [&above, &below, &moved, &other, &plain].map(String::as_str);
    assert_eq!(listed(&project, &["-a"]), set(&all));
    assert_eq!(listed(&project, &["--app", "mail"]), set(&[&above, &below]));
    assert_eq!(listed(&project, &["-a", "--tree", "--app", "desk"]), set(&[&moved, &other]));
    assert_eq!(listed(&project, &["--parent", &above]), set(&[&below, &moved]));
    assert_eq!(listed(&project, &["--parent", &above, "--app", "desk"]), set(&[&moved]));
    assert_eq!(listed(&project, &["--app", "mail", "--status", "blocked"]), set(&[&above]));
    assert_eq!(listed(&project, &["--parent", &other]), set(&[]));
    assert_eq!(listed(&project, &["--app", "calendar"]), set(&[]));

    for filter in [["--app", "desk"], ["--parent", above.as_str()]] {
        let page = |more: &[&str]| {
            let args = [&["ps", "-o", "json", "--limit", "1"][..], &filter[..], more].concat();
            project.run(&args).json()
        };
        let first = page(&[]);
        let next = first["next_cursor"].as_str().expect("there is one more");
        let second = page(&["--cursor", next]);
        assert_eq!(second["next_cursor"], json!(null), "{second}");
        let ids = [first, second].map(|page| page["runs"][0]["id"].as_str().map(str::to_owned));
        let found: BTreeSet<String> = ids.into_iter().flatten().collect();
        assert_eq!(found, listed(&project, &filter));
    }
}

#[test]
fn each_application_has_a_conversation_of_its_own_in_a_session() {
    let project = Project::new();
    let run = |task: &str, app: &[&str]| {
        let args = ["run", "worker", task, "--wait", "-o", "json", "--session", "s"];
        project.run(&[&args[..], app].concat())
    };
    assert_eq!(run("earlier", &["--app", "mail"]).code, 0);
    let task = shows_input();
    for (app, told) in [(&[][..], 0), (&["--app", "desk"], 0), (&["--app", "mail"], 2)] {
        let given = input(&run(&task, app));
        let messages = given["messages"].as_array().expect("messages");
        assert_eq!(messages.len(), told + 1, "{app:?}: {given}");
    }
}
