//! A controller of a test.

use std::time::Duration;

use taskrun::controller::Controller;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::EventRecord;
use taskrun_journal::list::Scope;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::Status;
use tokio::runtime::Runtime;

/// The time that a test waits for something that must happen. Only a test that fails waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A controller on a runtime of its own, so that it can be killed like a process.
pub struct Native {
    /// The controller under test.
    pub controller: Controller,
    /// Sees everything of the tenant.
    pub scope: Scope,
    pub(super) runtime: Option<Runtime>,
}

impl Native {
    /// The controller as an operator of the tenant has it.
    pub fn client(&self) -> taskrun::controller::Client {
        self.controller.at(&self.scope)
    }

    /// Ends its tasks where they wait, and returns when none of them does anything any more.
    pub(super) async fn gone(mut self) {
        let runtime = self.runtime.take().expect("there until it is dropped");
        let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(PATIENCE)).await;
        ended.expect("no panic");
    }

    /// Starts the controller.
    pub async fn begin(&self) {
        let controller = self.controller.clone();
        let runtime = self.runtime.as_ref().expect("there until it is dropped");
        let started = runtime.spawn(async move { controller.start().await }).await;
        started.expect("no panic").expect("the controller starts");
    }

    /// Returns when what the controller can do at once is done: its runtime has one thread, which
    /// comes round to every task that is ready.
    pub async fn settle(&self) {
        let runtime = self.runtime.as_ref().expect("there until it is dropped");
        let rounds = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        runtime.spawn(rounds).await.expect("no panic");
    }

    /// Spawns a run that must be accepted, and gives its id.
    pub async fn spawn(&self, request: &SpawnRequest) -> String {
        let run = self.client().spawn(request).await.expect("accepted");
        run.id().to_string()
    }

    /// The run as it stands.
    pub async fn get(&self, id: &str) -> Run {
        self.client().get(id).await.expect("there")
    }

    /// Waits for the end of a run.
    pub async fn end(&self, id: &str) -> Run {
        self.until(id, "ends", |run| run.status().is_terminal()).await
    }

    /// Waits until a run has a status.
    pub async fn reach(&self, id: &str, status: Status) -> Run {
        self.until(id, status.as_str(), |run| run.status() == status).await
    }

    /// Waits, in real time, until a run is as wanted.
    pub async fn until(&self, id: &str, what: &str, fits: impl Fn(&Run) -> bool + Send) -> Run {
        let longest = Some(Duration::MAX);
        let client = self.client();
        let wait = client.wait_for(id, longest, fits);
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        let waited = match waited {
            Ok(waited) => waited.expect("can be waited for"),
            Err(_) => panic!("run {id} never {what}: {:#?}", self.get(id).await),
        };
        assert!(!waited.timed_out, "run {id} never {what}, it is {}", waited.run.status());
        waited.run
    }

    /// The whole journal of a run.
    pub async fn journal(&self, id: &str) -> Vec<EventRecord> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map_or(0, |recorded: &EventRecord| recorded.seq);
            let page = self.client().events(id, after, 1_000).await;
            let page = page.expect("can be read");
            if page.is_empty() {
                return all;
            }
            all.extend(page);
        }
    }

    /// The view of the run from outside.
    pub async fn view(&self, id: &str) -> RunView {
        RunView::from(&self.get(id).await)
    }

    /// The kinds of a run's events, in order.
    pub async fn kinds(&self, id: &str) -> Vec<&'static str> {
        self.journal(id).await.iter().map(|recorded| recorded.event.kind()).collect()
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Its tasks end where they wait, like those of a process that is killed.
            runtime.shutdown_background();
        }
    }
}

/// Waits for what must happen in a test that does not fail.
pub async fn in_time<T>(happens: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, happens).await.expect("it happens in time")
}
