//! Channels of the policy in a program that opens a host: its runs have them under whichever policy
//! is in force.

use std::path::Path;
use std::time::Duration;

use taskrun::controller::succeeded;
use taskrun::spawn::SpawnRequest;
use taskrun_examples::SCRIPTED;
use taskrun_journal::list::Scope;
use taskrun_runtime::{Options, Runtime};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes a policy with an agent that has a channel of this name.
fn write(project: &Path, channel: &str) {
    let policy = format!(
        "[agent.worker]\ncomponent = \"scripted.wasm\"\nchannels = [\"{channel}\"]\n\
         [channel.{channel}]\nto = \"file/told\"\n[file.told]\npath = \"told.jsonl\"\n"
    );
    std::fs::write(project.join("taskrun.toml"), policy).expect("written");
}

/// Has a run come to its end, which has this channel and no other one.
async fn runs_with(runtime: &Runtime, channel: &str) {
    let client = runtime.controller().at(&Scope::tenant("default"));
    let request = SpawnRequest {
        agent_name: "worker".to_owned(),
        task: r#"{"steps":[[{"reply":"done"}]]}"#.to_owned(),
        owner_user_id: "local".to_owned(),
        parent_session_id: "embed".to_owned(),
        ..SpawnRequest::default()
    };
    let run = client.spawn(&request).await.expect("it is accepted");
    let names: Vec<&str> = run.spec.channels.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, [channel]);
    let waited = client.wait(run.id().as_str(), Some(PATIENCE)).await.expect("it is there");
    assert!(succeeded(&waited.run), "{:?}", waited.run.status());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_has_the_channels_of_its_agent_before_and_after_an_edit() {
    for preload in [false, true] {
        let project = tempfile::tempdir().expect("a folder");
        std::fs::write(project.path().join("scripted.wasm"), SCRIPTED.bytes).expect("written");
        write(project.path(), "post");
        let paths = ["taskrun.toml", "data"].map(|name| project.path().join(name));
        let [policy, data] = &paths;
        let options = Options { preload, ..Options::new(policy, data) };
        let runtime = Runtime::open(options).await.expect("it opens");
        runs_with(&runtime, "post").await;
        write(project.path(), "mail");
        runtime.controller().reload().await;
        runs_with(&runtime, "mail").await;
        runtime.shutdown().await;
    }
}
