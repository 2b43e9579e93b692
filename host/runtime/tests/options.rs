//! Options with which nothing would ever be executed.

use std::process::Command;
use std::time::Duration;

use taskrun_examples::SCRIPTED;
use taskrun_runtime::{CompileWorker, OpenError, Options, Runtime};

/// Set in the environment of compile workers.
const OF_WORKERS: &str = "TASKRUN_COMPILE_WORKER";

/// Opens a runtime with changed options, and ends it.
async fn open(change: impl FnOnce(&mut Options)) -> Result<(), OpenError> {
    let project = tempfile::tempdir().expect("a folder");
    std::fs::write(project.path().join("scripted.wasm"), SCRIPTED.bytes).expect("written");
    let policy = "[agent.worker]\ncomponent = \"scripted.wasm\"\n";
    std::fs::write(project.path().join("taskrun.toml"), policy).expect("written");
    let data = project.path().join("data");
    let mut options = Options::new(project.path().join("taskrun.toml"), &data);
    change(&mut options);
    let opened = Runtime::open(options).await;
    assert_eq!(data.exists(), refused(&opened).is_none(), "nothing is made that is not opened");
    opened?.shutdown().await;
    Ok(())
}

/// The option for which a runtime does not open.
fn refused<T>(opened: &Result<T, OpenError>) -> Option<&'static str> {
    match opened {
        Err(OpenError::Option { name, .. }) => Some(*name),
        Ok(_) | Err(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn options_out_of_bounds_are_refused_by_their_names() {
    let day = Duration::from_secs(86_400);
    assert_eq!(refused(&open(|options| options.slots = 0).await), Some("slots"));
    assert_eq!(refused(&open(|options| options.agents_loaded = 0).await), Some("agents_loaded"));
    for lease in [Duration::ZERO, Duration::from_millis(99), 2 * day, Duration::MAX] {
        let opened = open(|options| options.lease = lease).await;
        assert_eq!(refused(&opened), Some("lease"), "{lease:?}");
    }
    for lease in [Duration::from_millis(100), day] {
        open(|options| options.lease = lease).await.expect("it opens");
    }
    let most = |options: &mut Options| {
        (options.slots, options.agents_loaded) = (usize::MAX, usize::MAX);
    };
    open(most).await.expect("it opens with more than there will ever be");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_started_as_a_compile_worker_starts_none() {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
    let is_worker = std::env::var_os(OF_WORKERS).is_some();
    let with_worker = |options: &mut Options| {
        let program = "true".into();
        options.compile_worker = Some(CompileWorker { program, args: Vec::new() });
    };
    if is_worker {
        assert_eq!(refused(&open(with_worker).await), Some("compile_worker"));
        open(|_| {}).await.expect("it may compile by itself");
        return;
    }
    assert_eq!(refused(&open(with_worker).await), None);
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "a_process_that_was_started_as_a_compile_worker_starts_none"])
        .env(OF_WORKERS, "1")
        .output()
        .expect("the child runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
