//! The tool calls of one turn: checked in order, executed in parallel, answered in order.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use taskrun_journal::event::{Event, Parked, Refusal};
use taskrun_journal::ids::RunId;
use taskrun_journal::message::{Bounds, Labels, LogLevel, RetryHint, RetryReason, ToolError};
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::time::millis;
use taskrun_journal::tool::{ToolFailure, ToolOutcome, ToolOutput};

use super::children::{Family, OUT_OF_TIME, TIME_BUDGET};
use super::gate::Gate;
use super::line::Line;
use super::time_up::TimeUp;
use super::{Driver, Halt, is_given_back};
use crate::agents::AgentTool;
use crate::ports::call::{CallScope, CallScopeParts, Remaining, ScopeLimits, Services};
use crate::ports::tool::{ToolCall, ToolReply, ToolValue, ToolWait};

/// What a call is told that the end of the run overtook.
const FINALIZED: &str = "Finalized before a tool result was provided for this request.";

/// A call that came to its end.
struct Ended<'a> {
    tool: &'a AgentTool,
    request: ToolRequest,
    answer: Result<Result<ToolReply, ToolFailure>, CallAbort>,
    took: Duration,
    scope: Arc<CallScope>,
}

/// What happens next to a batch.
enum Next<'a> {
    /// A call came to its end.
    Call(Box<Ended<'a>>),
    /// So did the run that a call is.
    Child(ToolRequest, RunId),
    /// No call is under way.
    Nothing,
}

async fn next_of<'a>(
    running: &mut (impl Stream<Item = Ended<'a>> + Unpin),
    family: &mut Family,
) -> Next<'a> {
    tokio::select! {
        biased;
        ended = running.next() => match ended {
            Some(ended) => Next::Call(Box::new(ended)),
            None => Next::Nothing,
        },
        (request, run) = family.next() => Next::Child(request, run),
    }
}

impl Driver {
    /// Checks and executes the calls of a turn. Those that wait for something stay open.
    pub(super) async fn execute(
        &mut self,
        mut pending: Vec<Event>,
        requests: Vec<ToolRequest>,
    ) -> Result<(), Halt> {
        let (agent, code) = (Arc::clone(&self.agent), Arc::clone(&self.code));
        // The decision for these calls is not written yet.
        let turn = self.journal.run().state.turns + 1;
        let decided = self.decide_calls(turn, &requests, &mut pending).await?;
        let decided = vec![self.work.decided.clone(), decided];
        let misfits = self.misfits(&requests).await?;
        let left = (self.tool_calls_left(), agent.limits.turn_calls);
        let mut gate = Gate::new(&code.tools, left, decided, misfits);
        if self.is_paused() {
            // Those that pass are open calls that have not begun, for whoever goes on with the run.
            // What was decided about this turn is decided now, as nobody asks again.
            for request in requests {
                if let Err((refusal, failure)) = gate.admit(&request) {
                    pending.push(refused(&request, refusal, failure));
                }
            }
            return self.write(pending).await;
        }
        let mut vetoes = self.ask_hooks(turn, &requests, &gate).await?.into_iter();
        let mut line = Line::default();
        let consents = self.consents(&agent.ask, turn);
        for request in requests {
            let veto = vetoes.next().flatten();
            line.admit(&mut pending, (&mut gate, &consents), (request, veto));
        }
        self.write(pending).await?;
        // Of a pause it is known here only if it came before these events: then those with which
        // calls begin were left out, and the calls are still to begin.
        if self.stopped().is_none() && !self.is_paused() {
            self.run_all(line).await?;
        }
        Ok(())
    }

    /// Executes calls and writes each result as it arrives. It is on record already that those
    /// with a place begin; it is recorded of the others when they have one.
    pub(super) async fn run_all(&mut self, mut line: Line<'_>) -> Result<(), Halt> {
        let live = Arc::clone(&self.live);
        let mut running = FuturesUnordered::new();
        let mut family = Family::new(Arc::clone(&self.env.store));
        let (clock, grace) = (Arc::clone(&self.env.clock), self.agent.limits.grace);
        let mut time_up = TimeUp::new(clock, self.time_for_work(), grace);
        loop {
            for (request, tool) in line.take() {
                let hears = tool.tool.hears_cancellation();
                let (stop, entered) = live.enter(hears);
                time_up.enter(&stop, hears);
                let scope = Arc::new(self.call_scope(&request, tool, stop));
                self.scopes.push(Arc::clone(&scope));
                let call = self.call(&request, tool);
                let clock = Arc::clone(&self.env.clock);
                let stopped = self.stopped();
                running.push(async move {
                    let began = clock.monotonic();
                    // Nothing begins once somebody has asked to stop.
                    let answer = match stopped {
                        Some(failure) => Err(failure),
                        None => tool.tool.call(call, Arc::clone(&scope)).await,
                    };
                    drop(entered);
                    let took = clock.monotonic().saturating_sub(began);
                    Ended { tool, request, answer, took, scope }
                });
            }
            let next = next_of(&mut running, &mut family);
            let events = match self.attend(&mut time_up, next).await? {
                Next::Call(first) => self.gather(*first, &mut running).await,
                Next::Child(request, run) => {
                    let ended = self.result_of_child(&request, &run).await?;
                    ended.into_iter().map(|(_, event)| event).collect()
                }
                Next::Nothing => {
                    return match self.stopped().is_some_and(|failure| is_given_back(&failure)) {
                        true => Err(Halt::Lease),
                        false => Ok(()),
                    };
                }
            };
            family.note(&events);
            self.write(events).await?;
            self.begin_more(&mut line, running.len()).await?;
        }
    }

    /// What is recorded of calls that came to their ends: of one, and of those that are there with
    /// it, which go into the same write.
    async fn gather<'a>(
        &mut self,
        first: Ended<'a>,
        running: &mut (impl Stream<Item = Ended<'a>> + Unpin),
    ) -> Vec<Event> {
        let mut events = Vec::new();
        let mut next = Some(first);
        while let Some(ended) = next {
            self.scopes.retain(|scope| !Arc::ptr_eq(scope, &ended.scope));
            let end = ended.scope.finish();
            events.extend(end.events);
            events.extend(super::step::dropped_note(end.dropped));
            let outcome = self.ended(ended).await;
            // A call that is given back counts where it is made again.
            if !outcome.is_empty() {
                events.extend(super::step::metrics_event(end.metrics));
            }
            events.extend(outcome);
            next = futures::FutureExt::now_or_never(running.next()).flatten();
        }
        events
    }

    /// Lets calls begin that waited for a place, beside so many that are under way.
    ///
    /// They begin apart from the results, which are kept also where nothing may begin any more.
    /// None does while the host gives its runs back, as whoever takes the run up sees to it; and
    /// once somebody has asked to stop each ends without having begun. When the run's time is up
    /// none begins either, and they are told so.
    async fn begin_more(&mut self, line: &mut Line<'_>, running: usize) -> Result<(), Halt> {
        if self.env.draining.is_cancelled() {
            return match running == 0 && !line.is_empty() {
                true => Err(Halt::Lease),
                false => Ok(()),
            };
        }
        let stopped = self.stopped().is_some();
        if !stopped && self.is_paused() {
            // They stay open, for whoever goes on with the run.
            *line = Line::default();
            return Ok(());
        }
        if !stopped && self.is_out_of_time() {
            let late = line.give_up();
            return self.write(late.iter().map(out_of_time).collect()).await;
        }
        if self.is_journal_full() {
            // The results of those under way are the last of the run.
            let mut refused = Vec::new();
            refuse_all(&mut refused, &line.give_up());
            return self.write(refused).await;
        }
        let begins = line.place(running);
        self.write(if stopped { Vec::new() } else { begins }).await?;
        if !stopped && self.is_paused() {
            // The pause came first: what was to begin is not on record.
            *line = Line::default();
        }
        Ok(())
    }

    /// What is recorded of a call that came to its end.
    async fn ended(&self, ended: Ended<'_>) -> Vec<Event> {
        let Ended { tool, request, answer, took, scope: _ } = ended;
        let out_of_time_failure = CallAbort::Stopped { cause: StopCause::RunTimeout };
        let answer = match answer {
            // Whoever takes the run up decides what becomes of the call.
            Err(failure) if is_given_back(&failure) => return Vec::new(),
            // The run itself is not stopped: its time for work is up, and it has its last word.
            Err(failure) if failure == out_of_time_failure && self.stopped().is_none() => {
                return vec![out_of_time(&request)];
            }
            Err(failure) => Err(failure),
            Ok(Err(failure)) => Ok(Err(failure)),
            Ok(Ok(ToolReply::Value(value))) => Ok(Ok(*value)),
            Ok(Ok(ToolReply::Park(wait))) => match self.park(&request, wait).await {
                Ok(events) => return events,
                Err(failure) => Ok(Err(failure)),
            },
        };
        let output = Box::new(output(tool, request, answer));
        vec![Event::ToolResult { output, duration_ms: millis(took), refused: None }]
    }

    /// What is recorded of a call that waits.
    async fn park(&self, request: &ToolRequest, wait: ToolWait) -> Result<Vec<Event>, ToolFailure> {
        let now = self.env.clock.now();
        let until = |timeout: Option<Duration>| timeout.map(|timeout| now.plus(timeout));
        let (waits, asked) = match wait {
            ToolWait::Runs { runs, mode, timeout } => {
                self.check_runs(&runs).await?;
                (Parked::Runs { runs, mode, until: until(timeout) }, None)
            }
            ToolWait::Child { run, agent_name } => {
                return Ok(super::children::linked(request, run, agent_name));
            }
            ToolWait::Person { question, timeout } => {
                let item = super::settle::question(request, question, until(timeout));
                (Parked::Answer { item: item.id().to_owned() }, Some(item))
            }
        };
        let call = super::step::tool_use(request);
        let parked = Event::ToolCallParked {
            tool_call_id: call.tool_call_id,
            name: call.name,
            payload: call.payload,
            waits,
        };
        let asked = asked.map(|item| Event::Asked { item: Box::new(item) });
        Ok(std::iter::once(parked).chain(asked).collect())
    }

    fn call(&self, request: &ToolRequest, tool: &AgentTool) -> ToolCall {
        let run = self.journal.run();
        ToolCall {
            name: tool.function.clone(),
            payload: request.payload.clone(),
            tool_call_id: self.call_key(request),
            parent_tool_call_id: request.parent_tool_call_id.clone(),
            agent_name: run.spec.agent_name.clone(),
            run_id: run.spec.id.to_string(),
            session_id: run.execution().map_or_else(String::new, |e| e.child_session_id.clone()),
            turn: run.state.turns,
            labels: run.spec.labels.clone(),
        }
    }

    /// The id under which a tool knows a call. It is made from run, turn and the call's own id, as
    /// models number their calls anew in each turn, and a tool takes a known id for a repetition.
    fn call_key(&self, request: &ToolRequest) -> String {
        let run = self.journal.run();
        let id = request.tool_call_id.as_deref().unwrap_or_default();
        super::plan::digest(&[run.spec.id.as_str(), &run.state.turns.to_string(), id])
    }

    fn call_scope(
        &self,
        request: &ToolRequest,
        tool: &AgentTool,
        stop: crate::ports::call::StopSignal,
    ) -> CallScope {
        let mut context = self.context(self.journal.run().state.turns);
        context.parent_tool_call_id.clone_from(&request.tool_call_id);
        CallScope::new(CallScopeParts {
            context,
            stop,
            deadline: self.code.tools.deadline(tool),
            clock: Arc::clone(&self.env.clock),
            random: Arc::clone(&self.env.random),
            models: None,
            rules: self.rules.clone(),
            runs: Some(self.runs_access(self.call_key(request))),
            tools: Arc::default(),
            state: std::collections::BTreeMap::new(),
            services: Services {
                memory: Some(self.memory_access(Some(self.call_key(request)))),
                ..Services::default()
            },
            remaining: Remaining::default(),
            limits: ScopeLimits { events: tool.limits.events, bytes: tool.limits.log_bytes },
            wake: Arc::clone(&self.wake),
            journal: None,
            tape: None,
        })
    }
}

pub(super) fn refused(request: &ToolRequest, refusal: Refusal, failure: ToolFailure) -> Event {
    let call = super::step::tool_use(request);
    let outcome = ToolOutcome::Failure(failure);
    let output = ToolOutput::plain(&call.name, &call.tool_call_id, &call.payload, outcome);
    Event::ToolResult { output: Box::new(output), duration_ms: 0, refused: Some(refusal) }
}

/// What is recorded of a call that the end of the run's time overtook.
fn out_of_time(request: &ToolRequest) -> Event {
    let error = ToolError::coded(TIME_BUDGET, OUT_OF_TIME);
    refused(request, Refusal::Finalized, ToolFailure { error, retry_hint: None })
}

/// Answers calls that the end of the run overtakes, so that the conversation stays whole.
pub(super) fn refuse_all(pending: &mut Vec<Event>, requests: &[ToolRequest]) {
    pending.extend(requests.iter().map(|request| {
        let error = ToolError::coded("finalized", FINALIZED);
        refused(request, Refusal::Finalized, ToolFailure { error, retry_hint: None })
    }));
}

fn output(
    tool: &AgentTool,
    request: ToolRequest,
    answer: Result<Result<ToolValue, ToolFailure>, CallAbort>,
) -> ToolOutput {
    let name = &request.name;
    let (outcome, value) = match answer {
        Ok(Ok(value)) => match check_value(tool, &value) {
            Ok(()) => (ToolOutcome::Value(value.value.clone()), Some(value)),
            Err(detail) => (broken(name, &detail), None),
        },
        Ok(Err(mut failure)) => {
            // A tool knows its functions by their own names only.
            if let Some(hint) = &mut failure.retry_hint
                && hint.tool == tool.function
            {
                hint.tool.clone_from(name);
            }
            (ToolOutcome::Failure(failure), None)
        }
        Err(failure) => (stopped(name, &failure), None),
    };
    let value = value.unwrap_or(ToolValue {
        value: String::new(),
        server_data: None,
        bounds: None,
        telemetry: None,
    });
    ToolOutput {
        result_bytes: value.value.len() as u64,
        server_data: value.server_data,
        bounds: value.bounds,
        telemetry: value.telemetry,
        name: request.name,
        tool_call_id: request.tool_call_id.unwrap_or_default(),
        payload: request.payload,
        outcome,
        result_omitted: None,
        children_count: 0,
        run_link: None,
        artifact: None,
    }
}

/// Whether a part of a result says how the rest is had.
pub(super) fn check_bounds(bounds: &Bounds) -> Result<(), String> {
    if bounds.truncated && bounds.continuation.is_none() && bounds.refinement.is_none() {
        return Err("its result is truncated and does not say how to go on".to_owned());
    }
    Ok(())
}

/// Holds a result to what its tool promised.
fn check_value(tool: &AgentTool, value: &ToolValue) -> Result<(), String> {
    if let Err(problem) = taskrun_journal::json::check(&value.value) {
        return Err(format!("its result is not JSON: {problem}"));
    }
    let Some(bounds) = &value.bounds else {
        return match tool.spec.hints.bounded {
            true => Err("its results carry bounds, and this one has none".to_owned()),
            false => Ok(()),
        };
    };
    check_bounds(bounds)
}

pub(super) fn broken(name: &str, detail: &str) -> ToolOutcome {
    let error = ToolError::coded("contract", format!("{name} broke its contract: {detail}"));
    let retry_hint = Some(Box::new(RetryHint::new(RetryReason::MalformedResponse, name)));
    ToolOutcome::Failure(ToolFailure { error, retry_hint })
}

fn stopped(name: &str, failure: &CallAbort) -> ToolOutcome {
    let retry_hint = match failure {
        CallAbort::Deadline { .. } => Some(Box::new(RetryHint::new(RetryReason::Timeout, name))),
        CallAbort::Memory { .. }
        | CallAbort::Stack
        | CallAbort::Limit { .. }
        | CallAbort::Trap { .. }
        | CallAbort::Contract { .. }
        | CallAbort::Stopped { .. }
        | CallAbort::Internal => None,
    };
    let canceled = *failure == CallAbort::Stopped { cause: StopCause::Canceled };
    let code = if canceled { "canceled" } else { failure.kind() };
    let error = ToolError::coded(code, format!("{name}: {failure}"));
    ToolOutcome::Failure(ToolFailure { error, retry_hint })
}

/// Text as JSON.
pub(super) fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A line of the host itself in a run's log.
pub(super) fn host_line(level: LogLevel, message: String) -> Event {
    Event::Log { level, source: "host".to_owned(), message, fields: Labels::new() }
}
