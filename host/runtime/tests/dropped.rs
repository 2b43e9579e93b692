//! A program that drops its runtime, or its tokio runtime, while a run is under way.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use taskrun::clock::{SimulatedClock, SystemClock};
use taskrun::controller::{Client, succeeded};
use taskrun::error::ControllerError;
use taskrun::spawn::SpawnRequest;
use taskrun_examples::SCRIPTED;
use taskrun_journal::list::Scope;
use taskrun_journal::time::Clock;
use taskrun_runtime::{OpenError, Options, Runtime};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The only background host of a project.
fn options(project: &Path) -> Options {
    let options = Options::new(project.join("taskrun.toml"), project.join("data"));
    Options { background: true, ..options }
}

fn client(runtime: &Runtime) -> Client {
    runtime.controller().at(&Scope::tenant("default"))
}

/// A run of one step, which waits for a moment.
fn request() -> SpawnRequest {
    SpawnRequest {
        agent_name: "worker".to_owned(),
        task: r#"{"steps":[[{"sleep":1},{"reply":"done"}]]}"#.to_owned(),
        owner_user_id: "local".to_owned(),
        parent_session_id: "embed".to_owned(),
        ..SpawnRequest::default()
    }
}

/// Begins a run, and gives its id once a host has it.
async fn begin(client: &Client) -> String {
    let id = client.spawn(&request()).await.expect("accepted").id().to_string();
    let mut stream = client.follow(&id, 0).await.expect("it is there");
    loop {
        let events = stream.next(100).await.expect("can be read");
        assert!(!events.is_empty(), "it has ended");
        if events.iter().any(|recorded| recorded.event.kind() == "started") {
            return id;
        }
    }
}

fn project() -> tempfile::TempDir {
    let project = tempfile::tempdir().expect("a folder");
    std::fs::write(project.path().join("scripted.wasm"), SCRIPTED.bytes).expect("written");
    let policy = "[agent.worker]\ncomponent = \"scripted.wasm\"\n";
    std::fs::write(project.path().join("taskrun.toml"), policy).expect("written");
    project
}

/// A host with a run under way, and that run's id.
async fn with_run(project: &Path) -> (Runtime, String) {
    // It stands still, so that the moment does not pass.
    let clock = Arc::new(SimulatedClock::new(SystemClock::new().now()));
    let options = Options { clock, ..options(project) };
    let opened = Runtime::open(options).await.expect("it opens");
    let begun = tokio::time::timeout(PATIENCE, begin(&client(&opened))).await;
    (opened, begun.expect("a host has it"))
}

#[test]
fn a_background_host_whose_runtime_was_dropped_is_the_only_one_as_long_as_it_executes() {
    let project = project();
    let first = tokio::runtime::Runtime::new().expect("a runtime");
    first.block_on(async {
        drop(with_run(project.path()).await);
        let other = tokio::time::timeout(PATIENCE, Runtime::open(options(project.path()))).await;
        let refused = other.expect("it is decided").err();
        assert!(matches!(refused, Some(OpenError::Executed)), "{refused:?}");
    });
    drop(first);

    let second = tokio::runtime::Runtime::new().expect("a runtime");
    second.block_on(async {
        let opened = tokio::time::timeout(PATIENCE, Runtime::open(options(project.path()))).await;
        opened.expect("nobody has the lock").expect("it opens").shutdown().await;
    });
}

#[test]
fn a_tokio_runtime_that_is_dropped_takes_its_host_along_and_loses_no_run() {
    let project = project();
    let first = tokio::runtime::Runtime::new().expect("a runtime");
    let (left, id) = first.block_on(with_run(project.path()));
    drop(first);

    let second = tokio::runtime::Runtime::new().expect("a runtime");
    second.block_on(async {
        assert_eq!(left.storage().hosts.hosts().await.expect("listed"), []);
        let refused = client(&left).spawn(&request()).await;
        assert!(matches!(refused, Err(ControllerError::Closed)), "{refused:?}");
        let opened = tokio::time::timeout(PATIENCE, Runtime::open(options(project.path()))).await;
        let other = opened.expect("nobody has the lock").expect("it opens");
        let waited = client(&other).wait(&id, Some(PATIENCE)).await.expect("it is there");
        assert!(succeeded(&waited.run), "{:?}", waited.run.status());
        other.shutdown().await;
    });
}
