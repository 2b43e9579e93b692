//! The record of the controller's answers, and the bytes of them that a call is given.

use async_trait::async_trait;
use taskrun_journal::event::{HostAnswer, Reply};
use taskrun_journal::ids::Seq;
use taskrun_journal::runs::{
    ANSWERS_BYTES_MAX, EventInfo, EventPage, RunsAnswer, RunsError, RunsRequest,
};
use taskrun_journal::time::Timestamp;

use super::super::runs::{Caller, Runs, RunsAccess};
use super::super::*;
use super::parts;

/// Answers with so many bytes of events, and counts.
struct Talking {
    bytes: usize,
    asked: AtomicU32,
}

#[async_trait]
impl Runs for Talking {
    async fn ask(
        &self,
        _caller: &Caller,
        _request: RunsRequest,
        _longest: Duration,
    ) -> Result<RunsAnswer, RunsError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let event = EventInfo {
            seq: 1,
            at: Timestamp(1),
            kind: "log".to_owned(),
            payload: "x".repeat(self.bytes),
        };
        Ok(RunsAnswer::Events(EventPage { events: vec![event], next_after: 1, ended: false }))
    }

    async fn result(&self, _: &Caller, _: &str, _: Seq) -> Result<Option<Arc<[u8]>>, RunsError> {
        Ok(None)
    }

    async fn artifact(&self, _: &Caller, _: &str) -> Result<Option<Arc<[u8]>>, RunsError> {
        Ok(None)
    }
}

fn reading(id: &str) -> RunsQuestion<EventPage> {
    RunsQuestion::subscribe(id.to_owned(), 0, 1, Some(0))
}

fn scope(runs: &Arc<Talking>, tape: Option<Tape>) -> CallScope {
    let spec = crate::fixtures::run(Vec::new()).spec;
    let caller = Caller { spec, session_id: "s".to_owned(), call: "turn 1".to_owned() };
    let runs: Arc<dyn Runs> = Arc::clone(runs) as _;
    let journal = tape.is_some().then(JournalRoom::default);
    CallScope::new(CallScopeParts {
        runs: Some(RunsAccess { runs, caller }),
        journal,
        tape,
        ..parts(10, 100)
    })
}

fn talking(bytes: usize) -> Arc<Talking> {
    Arc::new(Talking { bytes, asked: AtomicU32::new(0) })
}

#[tokio::test]
async fn a_call_is_given_so_much_and_no_more() {
    let runs = talking(ANSWERS_BYTES_MAX / 4);
    let scope = scope(&runs, None);
    for _ in 0..4 {
        scope.ask(reading("a")).await.expect("given");
    }
    let cap = ANSWERS_BYTES_MAX as u64;
    let limit = RunsError::Limit { kind: "controller-bytes".to_owned(), cap };
    assert_eq!(scope.ask(reading("a")).await, Err(limit));
    assert_eq!(runs.asked.load(Ordering::SeqCst), 4);
}

/// The journal of a step that was answered once.
fn answered(question: &RunsQuestion<EventPage>) -> Event {
    let request = question.request();
    let text = serde_json::to_vec(request).expect("serialisable");
    let reply = Reply::Error(RunsError::NotFound { id: "recorded".to_owned() });
    let operation = request.operation();
    Event::HostAnswered {
        call: 0,
        request: blake3::hash(&text).to_hex()[..32].to_owned(),
        model: None,
        answer: Box::new(HostAnswer::Controller { operation, reply }),
    }
}

#[tokio::test]
async fn a_step_that_runs_again_is_given_the_recorded_answer_and_nobody_is_asked() {
    let runs = talking(1);
    let mut tape = Tape::default();
    tape.push(&answered(&reading("a")));
    let same = scope(&runs, Some(tape.clone()));
    let recorded = RunsError::NotFound { id: "recorded".to_owned() };
    assert_eq!(same.ask(reading("a")).await, Err(recorded));
    assert_eq!(same.finish().divergence, None);
    let other = scope(&runs, Some(tape.clone()));
    assert_eq!(other.ask(reading("b")).await, Err(RunsError::Canceled));
    assert!(other.stop().is_forced());
    let (was, _) = other.finish().divergence.expect("it diverged");
    assert!(was.contains("(controller subscribe)"), "{was}");
    let silent = scope(&runs, Some(tape));
    assert!(silent.finish().divergence.is_some(), "a question is missing");
    assert_eq!(runs.asked.load(Ordering::SeqCst), 0);
}
