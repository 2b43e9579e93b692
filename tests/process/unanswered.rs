//! Models that do not answer: what an operator is told of the reason, which agents are not.

use serde_json::json;
use taskrun_examples::CHAT;
use taskrun_tests::provider::{Provider, Reply};
use tokio::runtime::Runtime;

use crate::project::Project;

/// An address at which nobody listens.
const NOBODY: &str = "http://127.0.0.1:1/v1";

/// The command that the words about such a run lead to.
const TEST: &str = "`taskrun model test default`";

/// A project with an agent whose model is at an address and asked once; its steps have `retry`,
/// behind which further settings of the agent may stand.
fn project(base_url: &str, retry: &str) -> Project {
    let project = Project::new();
    project.write("components/chat.wasm", CHAT.bytes);
    let policy = format!(
        r#"[model.default]
provider = "openai-chat"
model = "m-1"
base_url = "{base_url}"
retry = {{ attempts = 1 }}

[agent.talker]
component = "components/chat.wasm"
model = "default"
retry = {retry}
"#
    );
    project.write("taskrun.toml", policy.as_bytes());
    project
}

#[test]
fn words_about_a_pause_and_the_model_are_told_while_the_run_waits() {
    let runtime = Runtime::new().expect("a runtime");
    let words = json!({ "error": { "message": "Come back later." } });
    let refusal = Reply::new(429, words.to_string()).header("retry-after", "600");
    let provider = runtime.block_on(Provider::start([refusal]));
    let project = project(&provider.base_url(), "{ attempts = 1 }");
    let id = project.run(&["run", "talker", "Hello.", "-d"]).id();
    project.reach(&id, "blocked");
    let reason = "the provider limits the rate of requests: status 429: Come back later.";
    let pushed_back = project.sees(&id, "pushed_back");
    assert_eq!(pushed_back["said"], "status 429: Come back later.", "{pushed_back}");
    let events = project.run(&["events", &id]).said();
    assert!(events.contains(reason), "{events}");
    let got = project.run(&["get", &id]).said();
    for part in ["waits for", "model default until ", reason, TEST] {
        assert!(got.contains(part), "{part}: {got}");
    }
    let setback = &project.get(&id)["setback"]["waits"];
    assert_eq!((&setback["for"], &setback["model"]), (&json!("model"), &json!("default")));
    assert_eq!(setback["error"], reason);
    let waited = project.run(&["wait", &id, "--timeout", "0s"]);
    assert_eq!(waited.code, 124, "{waited:?}");
    assert!(waited.stderr.contains("it waits for model default until "), "{waited:?}");
    assert!(waited.stderr.contains(reason), "{waited:?}");
    assert_eq!(project.run(&["cancel", &id]).code, 0);
    tells_at_the_end(&project, &id, 6, &format!("default: {reason}"));
}

#[test]
fn an_account_without_quota_ends_the_run_at_once_in_words_that_its_agent_is_not_told() {
    let runtime = Runtime::new().expect("a runtime");
    let words = json!({ "error": { "code": "insufficient_quota", "message": "See your plan." } });
    let refusal = Reply::new(429, words.to_string());
    let provider = runtime.block_on(Provider::start([refusal]));
    let project = project(&provider.base_url(), "{ attempts = 3 }");
    let ran = project.run(&["run", "talker", "Hello.", "--wait"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    let error = "the provider's account has no quota left";
    assert!(ran.stderr.contains(&format!("model default: {error}: status 429: See your plan.")));
    assert!(ran.error()["hint"].as_str().is_some_and(|hint| hint.contains(TEST)), "{ran:?}");
    assert_eq!(provider.asked().len(), 1, "no attempt is made again");
    let id = ran.error()["run_id"].as_str().expect("a run").to_owned();
    let run = project.get(&id);
    assert_eq!((&run["stop_reason"], &run["error"]), (&json!("agent_error"), &json!(error)));
    let transcript = project.run(&["transcript", &id]);
    assert!(!transcript.stdout.contains("See your plan."), "its agent was told: {transcript:?}");
    assert!(transcript.stderr.contains("See your plan."), "{transcript:?}");
}

#[test]
fn a_window_without_room_is_told_with_the_key_that_states_it() {
    let runtime = Runtime::new().expect("a runtime");
    let words = json!({ "error": { "code": "context_length_exceeded", "message": "Too long." } });
    let refusals = (0..9).map(|_| Reply::new(400, words.to_string()));
    let provider = runtime.block_on(Provider::start(refusals));
    let project = project(&provider.base_url(), "{ attempts = 1 }");
    let ran = project.run(&["run", "talker", "Hello.", "--wait"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert_eq!(provider.asked().len(), 1, "nothing can be left out of it");
    let key = "`context_tokens` of [model.default]";
    assert!(ran.error()["hint"].as_str().is_some_and(|hint| hint.contains(key)), "{ran:?}");
    let id = ran.error()["run_id"].as_str().expect("a run").to_owned();
    let got = project.run(&["get", &id]).said();
    for part in ["model error", "status 400: Too long.", key] {
        assert!(got.contains(part), "{part}: {got}");
    }
}

#[test]
fn a_provider_that_is_not_there_is_told_with_its_model_and_the_systems_error() {
    let project = project(NOBODY, "{ attempts = 1 }");
    let ran = project.run(&["run", "talker", "Hello.", "--wait"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    let error = "model default: the provider cannot be reached: Connection refused";
    assert!(ran.stderr.contains(error), "{ran:?}");
    assert!(ran.error()["hint"].as_str().is_some_and(|hint| hint.contains(TEST)), "{ran:?}");
    let id = ran.error()["run_id"].as_str().expect("a run").to_owned();
    let waited = project.run(&["wait", &id]);
    assert!(waited.stderr.contains(error) && waited.stderr.contains(TEST), "{waited:?}");
    let events = project.run(&["events", &id]).said();
    assert!(events.contains(&format!("question 0 of the step: {error}")), "{events}");
    let got = project.run(&["get", &id]).said();
    for part in ["model error", "default: the provider cannot be reached: Connection", TEST] {
        assert!(got.contains(part), "{part}: {got}");
    }
    let run = project.get(&id);
    assert_eq!(run["setback"]["model_error"]["model"], "default", "{run}");
    let of_agent = run["error"].as_str().unwrap_or_default();
    assert!(!of_agent.contains("refused"), "the agent was told more: {of_agent}");
}

#[test]
fn an_attempt_that_failed_is_told_while_the_next_one_is_waited_for() {
    let project = project(NOBODY, "{ attempts = 9, pause = \"5m\" }");
    let again = ["run", "talker", "Hello.", "--idempotency-key", "k"];
    let id = project.run(&[&again[..], &["-d"]].concat()).id();
    project.sees(&id, "step_failed");
    let got = project.run(&["get", &id]).said();
    for part in ["last attempt", "failed, again in ", "model error", "Connection refused", TEST] {
        assert!(got.contains(part), "{part}: {got}");
    }
    let ps = project.run(&["ps"]).said();
    assert!(ps.contains("running (attempt 1 failed)"), "{ps}");
    let commands =
        [vec!["wait", id.as_str(), "--timeout", "0s"], [&again[..], &["--wait=1s"]].concat()];
    for command in commands {
        let waited = project.run(&command);
        assert_eq!(waited.code, 124, "{waited:?}");
        let text = &waited.stderr;
        assert!(text.contains("attempt 1 failed, again in "), "{waited:?}");
        assert!(text.contains("model default: the provider cannot be reached"), "{waited:?}");
    }
    assert_eq!(project.run(&["cancel", &id]).code, 0);
}

/// A run that ended so, while its model did not answer, tells of that error.
fn tells_at_the_end(project: &Project, id: &str, code: i32, error: &str) {
    let waited = project.run(&["wait", id]);
    assert_eq!(waited.code, code, "{waited:?}");
    assert!(waited.stderr.contains(&format!("model {error}")), "{waited:?}");
    assert!(waited.error()["hint"].as_str().is_some_and(|hint| hint.contains(TEST)), "{waited:?}");
    let got = project.run(&["get", id]).said();
    for part in ["model error", error, TEST] {
        assert!(got.contains(part), "{part}: {got}");
    }
    let setback = &project.get(id)["setback"];
    assert_eq!(setback["model_error"]["model"], "default", "{setback}");
    assert!(setback.get("waits").is_none(), "it waits for nothing any more: {setback}");
}

/// The error of a model at an address where nobody listens.
const REFUSED: &str = "default: the provider cannot be reached: Connection refused";

#[test]
fn a_run_whose_time_is_up_tells_of_the_model_that_did_not_answer() {
    let retry = "{ attempts = 9, pause = \"5m\" }";
    let walled = format!("{retry}\nbudget = {{ wall = \"3s\" }}");
    let cases: [(&str, &[&str], i32); 2] = [(&walled, &[], 9), (retry, &["--timeout", "5s"], 7)];
    for (settings, options, code) in cases {
        let project = project(NOBODY, settings);
        let id = project.run(&[&["run", "talker", "Hello.", "-d"][..], options].concat()).id();
        tells_at_the_end(&project, &id, code, REFUSED);
        let logs = project.run(&["logs", &id]).stdout;
        // Of the time of its budget it is asked for its last word.
        let told = logs.contains("the last step failed: ");
        assert_eq!(told, code == 9, "{logs}");
        assert!(!logs.contains(" {"), "it is told in words: {logs}");
    }
}

#[test]
fn a_run_that_is_canceled_between_two_attempts_tells_of_the_last_one() {
    let project = project(NOBODY, "{ attempts = 9, pause = \"5m\" }");
    let id = project.run(&["run", "talker", "Hello.", "-d"]).id();
    project.sees(&id, "step_failed");
    assert_eq!(project.run(&["cancel", &id]).code, 0);
    tells_at_the_end(&project, &id, 6, REFUSED);
    let got = project.run(&["get", &id]).said();
    let last = got.lines().find(|line| line.starts_with("last attempt")).expect("the last attempt");
    assert!(last.contains("failed: the model cannot be reached"), "{last}");
    assert_eq!(project.get(&id)["setback"]["last_attempt"]["failed"], 1);
}
