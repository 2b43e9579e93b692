//! Outcomes of background runs by the real program: told in the conversation, over kill -9.

use serde_json::{Value, json};

use crate::project::Project;

const LEAD: &str = "[agent.lead]\ncomponent = \"components/scripted.wasm\"\n\
                    members = [\"worker\"]\ntools = [\"host/task_runs\"]\n\
                    allow = [\"controller: *\"]\n";

fn project() -> Project {
    project_where("")
}

/// The same, where the policy says this of the agent that leads.
fn project_where(keys: &str) -> Project {
    let project = Project::new();
    let file = project.path().join("taskrun.toml");
    let policy = std::fs::read_to_string(&file).expect("there is one");
    project.write("taskrun.toml", format!("{policy}\n{LEAD}{keys}\n").as_bytes());
    project
}

/// A script that starts a run which first asks a person, and ends.
fn starts(task: &str) -> String {
    let question = json!({ "clarification": { "id": "which", "question": "Which quarter?" } });
    let task = json!({ "steps": [[{ "plan": { "await": [question] } }], [{ "reply": task }]] });
    let call = json!({ "id": "c1", "name": "host/start_task_run",
                       "args": { "task": task.to_string() } });
    json!({ "steps": [[{ "call": call }], [{ "reply": "it is on its way" }]] }).to_string()
}

fn says(text: &str) -> String {
    json!({ "steps": [[{ "reply": text }]] }).to_string()
}

fn fails() -> String {
    json!({ "steps": [[{ "fail": { "code": "broken", "message": "it broke" } }]] }).to_string()
}

/// A line of the conversation, ended.
fn line(project: &Project, task: &str) -> Value {
    let id = project.run(&["run", "lead", task, "-d", "--session", "s"]).id();
    project.ends_by_itself(&id)
}

/// The texts in which a run was told of others.
fn told(project: &Project, id: &str) -> Vec<String> {
    let events = project.events(id);
    let told = events.iter().filter(|event| event["kind"] == "reported");
    told.map(|event| event["text"].as_str().expect("words").to_owned()).collect()
}

fn row(project: &Project, run: &str) -> Value {
    project.run(&["outbox", "show", run, "-o", "json"]).json()
}

#[test]
fn an_outcome_is_told_in_the_next_line_and_after_three_failures_it_is_a_dead_letter() {
    let project = project();
    assert_eq!(line(&project, &starts("the budget is 12 pages"))["status"], "completed");
    let shown = project.run(&["ps", "--agent", "worker", "-o", "json"]).json();
    let worker = shown["runs"][0]["id"].as_str().unwrap_or_else(|| panic!("{shown}")).to_owned();
    project.reach(&worker, "blocked");
    let none = project.run(&["outbox", "show", &worker]);
    assert_eq!((none.code, &none.error()["code"]), (2, &json!("not-found")), "{none:?}");
    project.kill_hosts_and_wait();
    assert_eq!(project.run(&["answer", &worker, "which", "Q3"]).code, 0);
    project.ends_by_itself(&worker);
    assert_eq!(row(&project, &worker)["state"], "pending");
    let listed = project.run(&["outbox", "ls"]);
    assert!(listed.stdout.contains(&worker) && listed.stdout.contains("pending"), "{listed:?}");

    for attempt in 1..=3 {
        let failed = line(&project, &fails());
        assert_eq!(failed["status"], "failed", "{failed}");
        assert_eq!(row(&project, &worker)["attempts"], attempt);
        project.kill_hosts_and_wait();
    }
    let dead = row(&project, &worker);
    assert_eq!((&dead["state"], &dead["reason"]), (&json!("dead"), &json!("attempts")), "{dead}");
    let listed = project.run(&["outbox", "ls", "--state", "dead", "-o", "name"]);
    assert_eq!(listed.stdout.trim(), worker);
    let doctor = project.run(&["doctor"]);
    let letters = "1 dead letter, of which nobody is told any more";
    assert!(doctor.code == 0 && doctor.stdout.contains(letters), "{doctor:?}");
    let quiet = line(&project, &says("nothing"));
    assert!(told(&project, quiet["id"].as_str().expect("an id")).is_empty(), "{quiet}");

    assert_eq!(project.run(&["outbox", "retry", &worker]).code, 0);
    let again = project.run(&["outbox", "retry", &worker]);
    assert_eq!((again.code, &again.error()["code"]), (2, &json!("conflict")), "{again:?}");
    let heard = line(&project, &says("thanks"));
    let id = heard["id"].as_str().expect("an id");
    let texts = told(&project, id);
    assert_eq!(texts.len(), 1, "{texts:?}");
    let report = format!("worker {worker}: completed\nresult:\n```\nthe budget is 12 pages\n```");
    assert_eq!(texts[0].matches(&report).count(), 1, "{texts:?}");
    assert_eq!(row(&project, &worker)["state"], "delivered");
    assert_eq!(row(&project, &worker)["taken_by"], id);
    let transcript = project.run(&["transcript", id]).stdout;
    assert!(transcript.contains("the budget is 12 pages"), "{transcript}");
    let last = line(&project, &says("bye"));
    assert!(told(&project, last["id"].as_str().expect("an id")).is_empty());
}

#[test]
fn an_outcome_that_is_dropped_is_told_to_nobody() {
    let project = project();
    line(&project, &starts("x"));
    let shown = project.run(&["ps", "--agent", "worker", "-o", "json"]).json();
    let worker = shown["runs"][0]["id"].as_str().unwrap_or_else(|| panic!("{shown}")).to_owned();
    project.reach(&worker, "blocked");
    assert_eq!(project.run(&["cancel", &worker]).code, 0);
    project.ends_by_itself(&worker);
    assert_eq!(row(&project, &worker)["status"], "canceled");
    let dropped = project.run(&["outbox", "drop", &worker]);
    assert_eq!(dropped.code, 0, "{dropped:?}");
    let next = line(&project, &says("hello"));
    assert!(told(&project, next["id"].as_str().expect("an id")).is_empty());
    let empty = project.run(&["outbox", "ls"]);
    assert!(empty.stdout.is_empty() && empty.stderr.contains("nothing is to be told"), "{empty:?}");
}

#[test]
fn an_outcome_is_told_by_itself_where_the_policy_or_the_request_says_so() {
    let delivery = format!(
        "delivery = {{ strategy = \"immediate\", prompt = {:?} }}",
        says("the budget is known")
    );
    let project = project_where(&delivery);
    line(&project, &starts("the budget is 12 pages"));
    let shown = project.run(&["ps", "--agent", "worker", "-o", "json"]).json();
    let worker = shown["runs"][0]["id"].as_str().unwrap_or_else(|| panic!("{shown}")).to_owned();
    project.reach(&worker, "blocked");
    project.kill_hosts_and_wait();
    assert_eq!(project.run(&["answer", &worker, "which", "Q3"]).code, 0);
    project.ends_by_itself(&worker);
    let is_told = |run: &str| row(&project, run)["state"] == "delivered";
    project.until("the conversation is told", || is_told(&worker));
    let nudge = row(&project, &worker)["taken_by"].as_str().expect("a run").to_owned();
    let texts = told(&project, &nudge);
    assert!(texts.len() == 1 && texts[0].contains("the budget is 12 pages"), "{texts:?}");
    assert_eq!(project.run(&["get", &nudge, "--result"]).stdout.trim(), "the budget is known");
    let listed = project.run(&["ps", "-a", "--label", "taskrun.nudge=lead", "-o", "name"]);
    assert_eq!(listed.stdout.trim(), nudge);

    let (task, prompt) = (says("by hand"), says("noted"));
    let request = ["run", "worker", &task, "-d", "--session", "s", "--no-history"];
    let deliver = ["--deliver", "immediate,notify=lead", "--deliver-prompt", &prompt];
    let alone = project.run(&[&request[..], &deliver[..]].concat()).id();
    project.ends_by_itself(&alone);
    project.until("the conversation is told", || is_told(&alone));
    let nudge = row(&project, &alone)["taken_by"].as_str().expect("a run").to_owned();
    assert_eq!(project.run(&["get", &nudge, "--result"]).stdout.trim(), "noted");
    let wrong = project.run(&["run", "worker", "x", "--deliver", "sometimes"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    let own = project.run(&["run", "lead", "x", "--session", "s", "--deliver", "immediate"]);
    assert_eq!(own.code, 2, "{own:?}");
}

#[test]
fn of_a_run_that_is_continued_the_conversation_is_told_the_last_end_alone() {
    let project = project();
    let done = json!({ "call": { "id": "d", "name": "report_done", "args": { "detail": "it" } } });
    let steps = json!({ "steps": [
        [{ "reply": "half of it" }], [done], [{ "reply": "all of it" }],
    ] });
    let words = ["run", "worker", &steps.to_string(), "--autonomous", "--rounds", "1", "-d"];
    let deliver = ["--session", "s", "--no-history", "--deliver", "context-only,notify=lead"];
    let first = project.run(&[&words[..], &deliver[..]].concat()).id();
    assert_eq!(project.ends_by_itself(&first)["stop_reason"], "max_turns");
    assert_eq!(row(&project, &first)["state"], "pending");
    let second = project.run(&["resume", &first]).id();
    let none = project.run(&["outbox", "show", &first]);
    assert_eq!((none.code, &none.error()["code"]), (2, &json!("not-found")), "{none:?}");
    assert_eq!(project.ends_by_itself(&second)["stop_reason"], "done");
    let heard = line(&project, &says("thanks"));
    let texts = told(&project, heard["id"].as_str().expect("an id"));
    let [text] = &texts[..] else { panic!("{texts:?}") };
    assert!(text.contains(&second) && text.contains("all of it"), "{text}");
    assert!(!text.contains(&first), "{text}");
    assert_eq!(row(&project, &second)["state"], "delivered");
}
