//! `controller`: runs beneath the guest's own, through the call's scope.

use taskrun_journal::runs::{RunsAnswer, RunsFilter, RunsRequest};
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
    async fn ask_controller(
        &mut self,
        request: RunsRequest,
    ) -> wasmtime::Result<Result<RunsAnswer, ControllerError>> {
        self.enter_capability("controller")?;
        let operation = request.operation();
        if let Err(denied) = self.allow(&Use::Operation(operation)) {
            return Ok(Err(ControllerError::Denied(denied)));
        }
        self.before_work(measure::runs_request(&request)).await;
        Ok(self.scope.ask_controller(request).await.map_err(convert::error_to_guest))
    }

    async fn ask_for_run(&mut self, request: RunsRequest) -> Answered<RunRecord> {
        let answer = self.ask_controller(request).await?;
        Ok(answer.and_then(convert::run_to_guest))
    }
}

impl Host for CallState {
    async fn spawn(&mut self, request: SpawnRequest) -> Answered<RunRecord> {
        let child = Box::new(convert::child_from_guest(request));
        self.ask_for_run(RunsRequest::Spawn(child)).await
    }

    async fn list(
        &mut self,
        filter: ListFilter,
        cursor: Option<String>,
        limit: Option<u32>,
    ) -> Answered<RunPage> {
        let filter = RunsFilter { cursor, limit, ..convert::filter_from_guest(filter) };
        let answer = self.ask_controller(RunsRequest::List(filter)).await?;
        Ok(answer.and_then(convert::page_to_guest))
    }

    async fn get(&mut self, id: String) -> Answered<RunRecord> {
        self.ask_for_run(RunsRequest::Get { id }).await
    }

    async fn cancel(&mut self, id: String, reason: Option<String>) -> Answered<CancelOutcome> {
        let answer = self.ask_controller(RunsRequest::Cancel { id, reason }).await?;
        Ok(answer.and_then(convert::canceled_to_guest))
    }

    async fn cancel_tree(&mut self, id: String, reason: Option<String>) -> Answered<CancelOutcome> {
        let answer = self.ask_controller(RunsRequest::CancelTree { id, reason }).await?;
        Ok(answer.and_then(convert::canceled_to_guest))
    }

    async fn pause(
        &mut self,
        id: String,
        reason: Option<String>,
        timeout_ms: Option<u64>,
    ) -> Answered<ChangeOutcome> {
        let answer = self.ask_controller(RunsRequest::Pause { id, reason, timeout_ms }).await?;
        Ok(answer.and_then(convert::changed_to_guest))
    }

    async fn resume(&mut self, id: String, note: Option<String>) -> Answered<ChangeOutcome> {
        let answer = self.ask_controller(RunsRequest::Resume { id, note }).await?;
        Ok(answer.and_then(convert::changed_to_guest))
    }

    async fn wait(&mut self, id: String, timeout_ms: Option<u64>) -> Answered<WaitOutcome> {
        let answer = self.ask_controller(RunsRequest::Wait { id, timeout_ms }).await?;
        Ok(answer.and_then(convert::waited_to_guest))
    }

    async fn provide(
        &mut self,
        id: String,
        item: Option<String>,
        answer: Answer,
    ) -> Answered<RunRecord> {
        let answer = convert::answer_from_guest(answer);
        self.ask_for_run(RunsRequest::Provide { id, item, answer }).await
    }

    async fn subscribe(
        &mut self,
        id: String,
        after: u64,
        limit: u32,
        timeout_ms: Option<u64>,
    ) -> Answered<EventPage> {
        let request = RunsRequest::Subscribe { id, after, limit, timeout_ms };
        let answer = self.ask_controller(request).await?;
        Ok(answer.and_then(convert::events_to_guest))
    }
}
