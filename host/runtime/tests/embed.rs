//! The example of the crate's documentation, over a component.

use taskrun_examples::SCRIPTED;
use taskrun_journal::reply::RESULT_CHARS_MAX;
use taskrun_runtime::Options;

#[path = "../examples/embed.rs"]
#[expect(dead_code, unreachable_pub, reason = "a program, of which its `main` is not called here")]
mod embed;

/// A project with the agent `worker`, which plays the script that its task is.
fn project() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("scripted.wasm"), SCRIPTED.bytes).expect("written");
    let policy = "[agent.worker]\ncomponent = \"scripted.wasm\"\nretry = { attempts = 1 }\n";
    std::fs::write(dir.path().join("taskrun.toml"), policy).expect("written");
    dir
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_prints_the_result_of_its_run() {
    let project = project();
    let (policy, data) = (project.path().join("taskrun.toml"), project.path().join("data"));
    let task = r#"{"steps":[[{"reply":"embedded"}]]}"#;
    let answer = embed::answer(Options::new(&policy, &data), "worker", task).await;
    assert_eq!(answer.expect("it is answered"), "embedded");
    // What it kept is there for the next one.
    let answer = embed::answer(Options::new(&policy, &data), "worker", task).await;
    assert_eq!(answer.expect("it is answered again"), "embedded");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_says_why_a_policy_is_refused() {
    let project = project();
    let policy = project.path().join("taskrun.toml");
    std::fs::write(&policy, "[agent.worker]\n").expect("written");
    let answer = embed::answer(Options::new(&policy, project.path()), "worker", "t").await;
    assert_eq!(answer.expect_err("it is refused").to_string(), "the policy cannot be used");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_takes_nothing_for_an_answer_that_a_failed_run_said() {
    let project = project();
    let (policy, data) = (project.path().join("taskrun.toml"), project.path().join("data"));
    let task = r#"{"steps":[[{"reply":"The answer is"},{"err":"it broke"}]]}"#;
    let answer = embed::answer(Options::new(&policy, &data), "worker", task).await;
    let error = answer.expect_err("it failed").to_string();
    assert!(error.starts_with("the run is failed: ") && error.contains("it broke"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_prints_the_whole_of_a_long_result() {
    let project = project();
    let (policy, data) = (project.path().join("taskrun.toml"), project.path().join("data"));
    let long = "a word ".repeat(RESULT_CHARS_MAX).trim_end().to_owned();
    let task = format!(r#"{{"steps":[[{{"reply":"{long}"}}]]}}"#);
    let answer = embed::answer(Options::new(&policy, &data), "worker", &task).await;
    assert!(answer.expect("it is answered") == long, "the answer is not the one that was given");
}
