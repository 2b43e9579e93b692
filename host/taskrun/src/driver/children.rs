//! Tool calls that are runs of other agents: what they give, and how they are stopped.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use taskrun_journal::artifact::Artifact;
use taskrun_journal::ending::{EndStatus, Ending};
use taskrun_journal::event::{CallWait, Event, EventRecord, Refusal};
use taskrun_journal::ids::RunId;
use taskrun_journal::media::{MEDIA_MAX, Media};
use taskrun_journal::message::{RetryHint, RetryReason, Telemetry};
use taskrun_journal::plan::{FinalToolResult, ToolRequest};
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::runs::RunsRequest;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::Store;
use taskrun_journal::time::{Timestamp, millis};
use taskrun_journal::tool::{ToolFailure, ToolOutcome, ToolOutput};

use super::parts::Parts;
use super::recorder::Recorder;
use super::results::{OUT_OF_TIME, TIME_BUDGET, broken, failure, json_text, tool_use};
use super::stop::Halt;
use super::subtree::Subtree;
use crate::agents::check_bounds;
use crate::scan::scan;

/// Events read at once where a run's own result is looked for, from its end backwards.
const TAIL: usize = 256;

/// Images of an answer, each with what is kept of it.
pub(super) type Shown = Vec<(Media, Artifact)>;

/// The runs that are calls of a run.
pub(super) struct Children<'a> {
    parts: &'a Parts,
    recorder: &'a Recorder,
}

impl<'a> Children<'a> {
    pub(super) fn new(parts: &'a Parts, recorder: &'a Recorder) -> Self {
        Self { parts, recorder }
    }

    /// Records that more calls belong under the tool call that this run is, where they do.
    pub(super) fn note(
        &self,
        pending: &mut Vec<Event>,
        requests: &[ToolRequest],
        hint: Option<u32>,
    ) {
        let Some(call) = &self.recorder.run().spec.parent_tool_call_id else { return };
        let mut tracker = self.recorder.work().children.clone();
        tracker.found(requests.iter().filter_map(|request| request.tool_call_id.as_deref()));
        pending.extend(tracker.update(hint).map(|total| Event::ToolCallUpdated {
            tool_call_id: call.clone(),
            expected_children_total: total,
        }));
    }

    /// The result of a call whose run has ended; `None` while it goes on.
    pub(super) async fn result(
        &self,
        request: &ToolRequest,
        id: &RunId,
    ) -> Result<Option<ChildEnd>, Halt> {
        let child = self.parts.env.store.get(id).await.map_err(Halt::Read)?;
        let Some(child) = child else {
            let gone = failure("not-found", &format!("{}: run {id} is not there", request.name));
            let event = recorded(request, id, ChildResult::only(gone), None, self.took(request));
            return Ok(Some(ChildEnd { at: Timestamp(0), event, images: Vec::new() }));
        };
        let Lifecycle::Ended { ending, finished_at, .. } = &child.state.lifecycle else {
            return Ok(None);
        };
        let mut given = match self.own_result(&child, ending).await? {
            Some(result) => ChildResult::of(&request.name, result),
            None => ChildResult::only(self.outcome_of_child(request, &child, ending).await?),
        };
        let images = match &given.outcome {
            ToolOutcome::Value(_) => self.images_of(&child, MEDIA_MAX).await?,
            ToolOutcome::Failure(_) => Shown::new(),
        };
        given.media = images.iter().map(|(media, _)| media.clone()).collect();
        let used = Subtree::read(&*self.parts.env.store, &child.spec).await.map_err(Halt::Read)?;
        let telemetry = given.telemetry.get_or_insert_default();
        telemetry.duration_ms.get_or_insert(child.state.ran_ms);
        telemetry.usage.get_or_insert(used.usage(id));
        // One that was stopped as the time was up is nobody's failure.
        let overtaken = ending.status == EndStatus::Canceled && self.recorder.is_out_of_time();
        let refused = overtaken.then_some(Refusal::Finalized);
        let images = images.into_iter().map(|(_, artifact)| artifact).collect();
        let event = recorded(request, id, given, refused, self.took(request));
        Ok(Some(ChildEnd { at: *finished_at, event, images }))
    }

    /// The time since a call began.
    fn took(&self, request: &ToolRequest) -> Duration {
        let id = request.tool_call_id.as_deref().unwrap_or_default();
        self.recorder.work().took(id, self.parts.env.clock.now())
    }

    /// The images of the answers of runs that have completed, which become the caller's: of the
    /// first ones, so many in all as a result may have.
    pub(super) async fn images_of_all(&self, runs: &[Option<Run>]) -> Result<Vec<Shown>, Halt> {
        let (mut all, mut left) = (Vec::with_capacity(runs.len()), MEDIA_MAX);
        for run in runs {
            let completed = run.as_ref().filter(|run| run.status() == Status::Completed);
            let images = match completed {
                Some(run) => self.images_of(run, left).await?,
                None => Shown::new(),
            };
            left -= images.len();
            all.push(images);
        }
        Ok(all)
    }

    /// The images of a run's answer, at most so many: the last one that says something.
    async fn images_of(&self, child: &Run, most: usize) -> Result<Shown, Halt> {
        let mut images = Shown::new();
        for image in child.state.reply.images().iter().take(most) {
            let store = &self.parts.env.store;
            let bytes = store.artifact(child.id(), &image.hash).await.map_err(Halt::Read)?;
            images.extend(bytes.map(|bytes| (image.clone(), Artifact::new(bytes))));
        }
        Ok(images)
    }

    /// The call's result in the run's own words. One that came too late to be the run's end does
    /// not count.
    async fn own_result(
        &self,
        child: &Run,
        ending: &Ending,
    ) -> Result<Option<FinalToolResult>, Halt> {
        if ending.status == EndStatus::Canceled {
            return Ok(None);
        }
        let mut before = child.state.head;
        while before > 0 {
            let after = before.saturating_sub(TAIL as u64);
            let (mut decided, mut own) = (false, None);
            let see = |recorded: EventRecord| {
                if let Event::FinalToolResult { result } = recorded.event {
                    (decided, own) = (true, Some(*result));
                } else if let Event::PlanDecided { .. } = recorded.event {
                    (decided, own) = (true, None);
                }
                ControlFlow::Continue(())
            };
            let read = scan(&*self.parts.env.store, child.id(), (after, before), see).await;
            read.map_err(Halt::Read)?;
            if decided {
                let fits = |result: &FinalToolResult| {
                    let failed = matches!(result.outcome, ToolOutcome::Failure(_));
                    failed == (ending.status == EndStatus::Failed)
                };
                return Ok(own.filter(fits));
            }
            before = after;
        }
        Ok(None)
    }

    /// The outcome of a run that did not speak of its call: the result that it returned, as it is,
    /// or else its answer as a text.
    async fn outcome_of_child(
        &self,
        request: &ToolRequest,
        child: &Run,
        ending: &Ending,
    ) -> Result<ToolOutcome, Halt> {
        let (name, reason) = (&request.name, ending.stop_reason);
        Ok(match ending.status {
            EndStatus::Completed => {
                if let Some(returned) = child.returned() {
                    return Ok(ToolOutcome::Value(returned.to_string()));
                }
                let text = self.whole_answer_of(child).await?;
                // Whoever reads it is to know that it is not all.
                let text = match ending.partial {
                    true => format!("[partial result: {reason}]\n{text}"),
                    false => text,
                };
                ToolOutcome::Value(json_text(&text))
            }
            EndStatus::Failed => {
                let error = ending.told().unwrap_or("no reason was given");
                let outcome = failure("agent-failed", &format!("{name}: {reason}: {error}"));
                with_hint(outcome, name, reason)
            }
            EndStatus::Canceled if self.recorder.is_out_of_time() => {
                failure(TIME_BUDGET, OUT_OF_TIME)
            }
            EndStatus::Canceled => failure("canceled", &format!("{name}: {reason}")),
        })
    }

    async fn whole_answer_of(&self, child: &Run) -> Result<String, Halt> {
        if let Some(artifact) = child.artifact() {
            let store = &self.parts.env.store;
            let bytes = store.artifact(child.id(), &artifact.hash).await.map_err(Halt::Read)?;
            if let Some(text) = bytes.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok()) {
                return Ok(text);
            }
        }
        Ok(child.state.reply.result().unwrap_or_default())
    }

    /// Asks a run to stop that is a call of this one, and everything beneath it. One that cannot be
    /// asked now ends with this run: it is attached.
    pub(super) async fn stop(&self, id: &RunId) {
        let caller = self.parts.runs_access(self.recorder.run(), String::new()).caller;
        let reason = Some(OUT_OF_TIME.to_owned());
        let request = RunsRequest::CancelTree { id: id.to_string(), reason };
        if let Err(error) = self.parts.env.runs.ask(&caller, request, Duration::ZERO).await {
            tracing::warn!(run = %id, %error, "cannot be asked to stop; it ends with its parent");
        }
    }
}

/// The events of a call whose run was started.
pub(super) fn linked(request: &ToolRequest, run: RunId, agent_name: String) -> Vec<Event> {
    let call = tool_use(request);
    let tool_call_id = call.tool_call_id.clone();
    vec![
        Event::ChildRunLinked { tool_call_id, run_id: run.clone(), agent_name },
        Event::ToolCallParked {
            tool_call_id: call.tool_call_id,
            name: call.name,
            payload: call.payload,
            waits: CallWait::Child { run },
        },
    ]
}

/// The end of a run that is a call.
pub(super) struct ChildEnd {
    /// The time of it.
    pub(super) at: Timestamp,
    /// The result of the call.
    pub(super) event: Event,
    /// The images in that, to be kept with the run that called.
    pub(super) images: Vec<Artifact>,
}

/// The result of a run for the call that it was.
struct ChildResult {
    outcome: ToolOutcome,
    server_data: Option<String>,
    bounds: Option<taskrun_journal::message::Bounds>,
    telemetry: Option<Telemetry>,
    media: Vec<Media>,
}

impl ChildResult {
    fn only(outcome: ToolOutcome) -> Self {
        Self { outcome, server_data: None, bounds: None, telemetry: None, media: Vec::new() }
    }

    /// The run's own result, held to what every result is held to.
    fn of(name: &str, result: FinalToolResult) -> Self {
        let FinalToolResult { outcome, server_data, bounds, telemetry } = result;
        match bounds.as_ref().map_or(Ok(()), check_bounds) {
            Ok(()) => Self { server_data, bounds, telemetry, ..Self::only(outcome) },
            Err(detail) => Self { telemetry, ..Self::only(broken(name, &detail)) },
        }
    }
}

/// The result of a call whose run has ended, so long after the call began.
fn recorded(
    request: &ToolRequest,
    id: &RunId,
    given: ChildResult,
    refused: Option<Refusal>,
    took: Duration,
) -> Event {
    let call = request.tool_call_id.as_deref().unwrap_or_default();
    let ChildResult { outcome, server_data, bounds, telemetry, media } = given;
    let output = ToolOutput {
        server_data,
        bounds,
        telemetry,
        media,
        children_count: 1,
        run_link: Some(id.to_string()),
        ..ToolOutput::plain(&request.name, call, &request.payload, outcome)
    };
    Event::ToolResult { output: Box::new(output), duration_ms: millis(took), refused }
}

/// Runs that calls of the batch under way are, while other calls of it hold the slot.
pub(super) struct Family {
    store: Arc<dyn Store>,
    watches: FuturesUnordered<BoxFuture<'static, (ToolRequest, RunId)>>,
}

impl Family {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, watches: FuturesUnordered::new() }
    }

    /// Watches the runs that were started according to these events.
    pub(super) fn note(&mut self, events: &[Event]) {
        for event in events {
            let Event::ToolCallParked { tool_call_id, name, payload, waits } = event else {
                continue;
            };
            let CallWait::Child { run } = waits else { continue };
            let request = ToolRequest {
                name: name.clone(),
                payload: payload.clone(),
                tool_call_id: Some(tool_call_id.clone()),
                parent_tool_call_id: None,
            };
            let (store, run) = (Arc::clone(&self.store), run.clone());
            self.watches.push(Box::pin(async move {
                loop {
                    let mut watch = store.watch(&run);
                    // Whoever is told looks for itself, so one that cannot be read ends the watch too.
                    let Ok(Some(found)) = store.get(&run).await else { break };
                    let has_ended = found.status().is_terminal();
                    if has_ended || watch.ended().await.is_some_and(|run| run.spec == found.spec) {
                        break;
                    }
                }
                (request, run)
            }));
        }
    }

    /// The next call whose run has ended; never, if there is none.
    pub(super) async fn next(&mut self) -> (ToolRequest, RunId) {
        match self.watches.next().await {
            Some(ended) => ended,
            None => std::future::pending().await,
        }
    }
}

/// The same with the hint that the call may be made again, where time was what was missing.
fn with_hint(outcome: ToolOutcome, name: &str, reason: StopReason) -> ToolOutcome {
    let late = [StopReason::RunTimeout, StopReason::TurnTimeout, StopReason::Wallclock];
    match outcome {
        ToolOutcome::Failure(failure) if late.contains(&reason) => {
            let hint = Box::new(RetryHint::new(RetryReason::Timeout, name));
            ToolOutcome::Failure(ToolFailure { retry_hint: Some(hint), ..failure })
        }
        outcome @ (ToolOutcome::Failure(_) | ToolOutcome::Value(_)) => outcome,
    }
}
