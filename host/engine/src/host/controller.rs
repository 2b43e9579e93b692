//! `controller`: runs beneath the guest's own, through the call's scope.

use taskrun::scope::{Question, RunsQuestion};
use taskrun_journal::runs::{RunsError, RunsFilter};
use taskrun_policy::Use;

use crate::bindings::interfaces::controller::{
    Answer, CancelOutcome, ChangeOutcome, ControllerError, EventPage, Host, ListFilter, RunPage,
    RunRecord, SpawnRequest, WaitOutcome,
};
use crate::convert::controller as convert;
use crate::measure;
use crate::state::CallState;

type Answered<T> = wasmtime::Result<Result<T, ControllerError>>;

impl CallState {
    /// Decides about a request, and asks.
    async fn ask_controller<A, G>(&mut self, question: RunsQuestion<A>) -> Answered<G>
    where
        RunsQuestion<A>: Question<Answer = A, Error = RunsError>,
        G: From<A>,
    {
        self.enter_capability("controller")?;
        let operation = question.request().operation();
        if let Err(denied) = self.allow(&Use::Operation(operation)) {
            return Ok(Err(ControllerError::Denied(denied)));
        }
        self.before_work(measure::runs_request(question.request())).await;
        let answer = self.scope.ask(question).await;
        Ok(answer.map(G::from).map_err(convert::error_to_guest))
    }
}

impl Host for CallState {
    async fn spawn(&mut self, request: SpawnRequest) -> Answered<RunRecord> {
        self.ask_controller(RunsQuestion::spawn(convert::child_from_guest(request))).await
    }

    async fn list(
        &mut self,
        filter: ListFilter,
        cursor: Option<String>,
        limit: Option<u32>,
    ) -> Answered<RunPage> {
        let filter = RunsFilter { cursor, limit, ..convert::filter_from_guest(filter) };
        self.ask_controller(RunsQuestion::list(filter)).await
    }

    async fn get(&mut self, id: String) -> Answered<RunRecord> {
        self.ask_controller(RunsQuestion::get(id)).await
    }

    async fn cancel(&mut self, id: String, reason: Option<String>) -> Answered<CancelOutcome> {
        self.ask_controller(RunsQuestion::cancel(id, reason)).await
    }

    async fn cancel_tree(&mut self, id: String, reason: Option<String>) -> Answered<CancelOutcome> {
        self.ask_controller(RunsQuestion::cancel_tree(id, reason)).await
    }

    async fn pause(
        &mut self,
        id: String,
        reason: Option<String>,
        timeout_ms: Option<u64>,
    ) -> Answered<ChangeOutcome> {
        self.ask_controller(RunsQuestion::pause(id, reason, timeout_ms)).await
    }

    async fn resume(&mut self, id: String, note: Option<String>) -> Answered<ChangeOutcome> {
        self.ask_controller(RunsQuestion::resume(id, note)).await
    }

    async fn wait(&mut self, id: String, timeout_ms: Option<u64>) -> Answered<WaitOutcome> {
        self.ask_controller(RunsQuestion::wait(id, timeout_ms)).await
    }

    async fn provide(
        &mut self,
        id: String,
        item: Option<String>,
        answer: Answer,
    ) -> Answered<RunRecord> {
        let answer = convert::answer_from_guest(answer);
        self.ask_controller(RunsQuestion::provide(id, item, answer)).await
    }

    async fn subscribe(
        &mut self,
        id: String,
        after: u64,
        limit: u32,
        timeout_ms: Option<u64>,
    ) -> Answered<EventPage> {
        self.ask_controller(RunsQuestion::subscribe(id, after, limit, timeout_ms)).await
    }
}
