//! Calls and questions that are still open: after a crash, or because they wait for something.

use std::collections::BTreeMap;
use std::sync::Arc;

use taskrun_journal::event::{Event, Parked, Refusal};
use taskrun_journal::hold::{Wait, WaitMode};
use taskrun_journal::ids::RunId;
use taskrun_journal::machine::decide::Outcome;
use taskrun_journal::message::ToolError;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::question::{Answer, AwaitItem, Item};
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::{BlockedOn, StopReason};
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::{ToolFailure, ToolOutcome, ToolOutput};
use taskrun_policy::Interrupted;

use super::confirm::Consent;
use super::gate::Gate;
use super::line::{Line, scheduled};
use super::work::Call;
use super::{Driver, End, Halt, calls};
use crate::agents::AgentTool;

/// Begins the id of the question whether a call may be repeated.
const REPEAT: &str = "repeat:";
/// What whoever waits for no run at all is told.
pub(super) const NO_RUNS: &str = "no task IDs provided";
/// What is known of a call that was cut off.
const CUT_OFF: &str = "the host died while this call was under way; whether it took effect is not \
                       known";

/// What is to be done about an open call.
enum Next<'a> {
    /// It has its result.
    Result(ToolOutcome),
    /// The run that it is has ended, at this time; this is its result.
    Ended(Timestamp, Box<Event>),
    /// It was cut off and is not to be repeated.
    CutOff(ToolOutcome),
    /// It begins, for the first time.
    Begin,
    /// The same for one that somebody consented to; what is to be recorded of that.
    Consented(&'a AgentTool, Option<Event>),
    /// Somebody declined it; what is to be recorded.
    Declined(Vec<Event>),
    /// It begins again.
    Repeat(&'a AgentTool),
    /// Whether it may begin again is to be asked.
    Ask(Box<Item>),
    /// It waits, for these runs if it waits for any.
    Wait(Vec<RunId>),
}

impl Driver {
    /// Brings everything that is open to its end, as far as that can be done; gives the end of
    /// this execution if the run has to wait or was stopped.
    pub(super) async fn settle(&mut self) -> Result<Option<End>, Halt> {
        loop {
            if let Some(failure) = self.stopped() {
                return Ok(Some(End::failed(failure)));
            }
            if self.stays_paused().await? {
                return Ok(Some(End::Released));
            }
            self.time_out_questions().await?;
            let (mut events, mut line, mut fresh) = (Vec::new(), Line::default(), Vec::new());
            let (mut ended, mut awaited) = (Vec::new(), Vec::new());
            let (agent, code) = (Arc::clone(&self.agent), Arc::clone(&self.code));
            for call in self.work.open_calls() {
                let request = &call.request;
                match self.next(call, code.tools.get(&request.name)).await? {
                    Next::Result(outcome) => events.push(result(request, outcome, None)),
                    Next::Ended(at, event) => ended.push((at, *event)),
                    Next::CutOff(outcome) => {
                        events.push(result(request, outcome, Some(Refusal::Interrupted)));
                    }
                    Next::Begin => fresh.push(request.clone()),
                    Next::Consented(tool, authorization) => {
                        events.extend(authorization);
                        let begins = scheduled(request, tool);
                        line.add(&mut events, request.clone(), tool, begins);
                    }
                    Next::Declined(declined) => events.extend(declined),
                    Next::Repeat(tool) => {
                        let begins = Event::ToolCallRepeated {
                            tool_call_id: call.id().to_owned(),
                            attempt: call.attempts + 1,
                        };
                        line.add(&mut events, request.clone(), tool, begins);
                    }
                    Next::Ask(item) => events.push(Event::Asked { item }),
                    Next::Wait(runs) => awaited.extend(runs),
                }
            }
            // Results stand in the journal as they came to be, not as they were asked for.
            ended.sort_by_key(|(at, _)| *at);
            events.extend(ended.into_iter().map(|(_, event)| event));
            let misfits = self.misfits(&fresh).await?;
            let mut gate = Gate::passed(&code.tools, self.tool_calls_left(), misfits);
            let turn = self.journal.run().state.turns;
            let mut vetoes = self.ask_hooks(turn, &fresh, &gate).await?.into_iter();
            let consents = self.consents(&agent.ask, turn);
            for request in fresh {
                let veto = vetoes.next().flatten();
                line.admit(&mut events, (&mut gate, &consents), (request, veto));
            }
            self.write(events).await?;
            if let Some(failure) = self.stopped() {
                return Ok(Some(End::failed(failure)));
            }
            // What was to begin is not on record then, and stays open.
            if self.is_paused() {
                continue;
            }
            if !line.is_empty() {
                self.run_all(line).await?;
                continue;
            }
            let Some((on, wait)) = self.waits_for(awaited) else {
                let asks = self.ask_for_missing();
                if asks.is_empty() {
                    return Ok(self.terminal());
                }
                self.write(asks).await?;
                continue;
            };
            match self.block(on, wait).await {
                Ok(end) => return Ok(Some(end)),
                Err(Halt::Cycle) => self.refuse_cycles().await?,
                Err(halt) => return Err(halt),
            }
        }
    }

    async fn next_of_child(
        &self,
        request: &ToolRequest,
        id: &RunId,
    ) -> Result<Next<'static>, Halt> {
        if let Some((at, event)) = self.result_of_child(request, id).await? {
            return Ok(Next::Ended(at, Box::new(event)));
        }
        if self.is_out_of_time() {
            self.stop_child(id).await;
        }
        Ok(Next::Wait(vec![id.clone()]))
    }

    async fn next<'a>(&self, call: &Call, tool: Option<&'a AgentTool>) -> Result<Next<'a>, Halt> {
        match &call.parked {
            Some(Parked::Runs { runs, mode, until }) => {
                let found = self.runs_of(runs).await?;
                let ended =
                    |run: &Option<Run>| run.as_ref().is_none_or(|r| r.status().is_terminal());
                let settled = match mode {
                    WaitMode::All => found.iter().all(ended),
                    WaitMode::Any => found.iter().any(ended),
                };
                let over = until.is_some_and(|until| self.env.clock.now() >= until);
                Ok(if settled || over {
                    Next::Result(how_they_stand(runs, &found))
                } else {
                    let open = runs.iter().zip(&found).filter(|(_, run)| !ended(run));
                    Next::Wait(open.map(|(id, _)| id.clone()).collect())
                })
            }
            Some(Parked::Child { run }) => self.next_of_child(&call.request, run).await,
            Some(Parked::Answer { item }) => Ok(match self.work.answer_to(item) {
                Some(answer) => Next::Result(answer_as_result(answer)),
                None => Next::Wait(Vec::new()),
            }),
            None => Ok(self.after_cut(call, tool)),
        }
    }

    /// What becomes of a call whose host died. One that waited for a place had not begun: it is as
    /// good as one that was just decided on, whatever its tool promises.
    fn after_cut<'a>(&self, call: &Call, tool: Option<&'a AgentTool>) -> Next<'a> {
        if call.attempts == 0 {
            return self.not_begun(call, tool);
        }
        let Some(tool) = tool else { return Next::CutOff(failure("interrupted", CUT_OFF)) };
        if call.idempotent {
            return Next::Repeat(tool);
        }
        let id = repeat_id(call);
        match (tool.interrupted, self.work.answer_to(&id)) {
            (Interrupted::Ask, Some(Answer::Confirmed(true))) => Next::Repeat(tool),
            (Interrupted::Ask, None) if self.work.was_asked(&id) => Next::Wait(Vec::new()),
            (Interrupted::Ask, None) => Next::Ask(Box::new(confirmation(id, &call.request))),
            (Interrupted::Fail, _) | (Interrupted::Ask, Some(_)) => {
                Next::CutOff(failure("interrupted", CUT_OFF))
            }
        }
    }

    /// What becomes of a call that has not begun: it may be waiting for consent.
    fn not_begun<'a>(&self, call: &Call, tool: Option<&'a AgentTool>) -> Next<'a> {
        let Some(tool) = tool else { return Next::Begin };
        let turn = self.journal.run().state.turns;
        match self.consents(&self.agent.ask, turn).of_open(call) {
            Consent::NotNeeded => Next::Begin,
            Consent::Ask(item) => Next::Ask(item),
            Consent::Waits => Next::Wait(Vec::new()),
            Consent::Given(authorization) => Next::Consented(tool, authorization),
            Consent::Refused(events) => Next::Declined(events),
        }
    }

    /// The runs, as far as the owner of this one may see them.
    async fn runs_of(&self, ids: &[RunId]) -> Result<Vec<Option<Run>>, Halt> {
        let spec = Arc::clone(&self.journal.run().spec);
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            let run = self.env.store.get(id).await.map_err(Halt::Read)?;
            found.push(run.filter(|run| is_visible(run, &spec)));
        }
        Ok(found)
    }

    /// Answers for those who did not in time.
    async fn time_out_questions(&mut self) -> Result<(), Halt> {
        let now = self.env.clock.now();
        let late = |item: &Item| item.until.is_some_and(|until| now >= until);
        let open = self.work.asked.iter().filter(|one| one.answer.is_none() && late(&one.item));
        let events = open.map(|one| Event::Answered {
            item: one.item.id().to_owned(),
            answer: one.item.answer_by_default(),
            by: "host".to_owned(),
            by_default: one.item.default.is_some(),
        });
        let events: Vec<_> = events.collect();
        self.write(events).await
    }

    /// What the run has to wait for: people first, then other runs, of which `awaited` are open.
    fn waits_for(&self, mut awaited: Vec<RunId>) -> Option<(BlockedOn, Wait)> {
        let mut open = self.work.asked.iter().filter(|one| one.answer.is_none()).peekable();
        if let Some(first) = open.peek() {
            let on = first.item.what.blocks();
            let waits = self.work.open_calls().filter_map(|call| match &call.parked {
                Some(Parked::Runs { until, .. }) => *until,
                Some(Parked::Child { .. } | Parked::Answer { .. }) | None => None,
            });
            // Whoever waits for runs as well is told when that time is up, too.
            let at = open.filter_map(|one| one.item.until).chain(waits).min();
            return Some((on, Wait::Answers { at }));
        }
        let is_child = |call: &Call| matches!(call.parked, Some(Parked::Child { .. }));
        if self.work.open_calls().any(is_child) {
            // Each result is recorded as it comes to be, so the first end of a run is enough.
            awaited.sort();
            awaited.dedup();
            let at = self.work.open_calls().filter_map(|call| match &call.parked {
                Some(Parked::Runs { until, .. }) => *until,
                Some(Parked::Child { .. } | Parked::Answer { .. }) | None => None,
            });
            let wait = Wait::Runs { runs: awaited, mode: WaitMode::Any, at: at.min() };
            return Some((BlockedOn::Children, wait));
        }
        self.work.open_calls().find_map(|call| match &call.parked {
            Some(Parked::Runs { runs, mode, until }) => {
                let wait = Wait::Runs { runs: runs.clone(), mode: *mode, at: *until };
                Some((BlockedOn::Children, wait))
            }
            Some(Parked::Child { .. } | Parked::Answer { .. }) | None => None,
        })
    }

    /// Gives up the slot until something happens.
    pub(super) async fn block(&mut self, on: BlockedOn, wait: Wait) -> Result<End, Halt> {
        let ran_ms = self.ran_ms();
        let event = Event::Blocked { on, wait, ran_ms };
        let written = self
            .journal
            .commit(|run| {
                let running = run.status() == taskrun_journal::status::Status::Running;
                // An answer that came in this moment is found by whoever looks again.
                let settled = matches!(event, Event::Blocked { wait: Wait::Answers { .. }, .. })
                    && run.state.awaits.iter().all(|one| one.answered);
                if running && !settled { vec![event.clone()] } else { Vec::new() }
            })
            .await?;
        if written.is_empty() {
            self.read_others().await?;
            return Ok(match self.stopped() {
                Some(failure) => End::failed(failure),
                None => End::Released,
            });
        }
        Ok(End::Blocked)
    }

    /// Refuses the waits that would never end.
    async fn refuse_cycles(&mut self) -> Result<(), Halt> {
        let waits = |call: &&Call| match call.parked {
            Some(Parked::Runs { .. } | Parked::Child { .. }) => true,
            Some(Parked::Answer { .. }) | None => false,
        };
        let Some(call) = self.work.open_calls().find(waits) else { return Ok(()) };
        if let Some(Parked::Child { run }) = &call.parked {
            self.stop_child(run).await;
        }
        let text = "invalid: cycle: one of the runs waits for this one";
        let event = result(&call.request, failure("cycle", text), None);
        self.write(vec![event]).await
    }

    /// The end of the run, where a tool whose answer ends it has answered.
    pub(super) fn terminal(&self) -> Option<End> {
        let value = self.work.calls.iter().find_map(|call| match &call.outcome {
            Some(ToolOutcome::Value(value)) => {
                let tool = self.code.tools.get(&call.request.name)?;
                tool.spec.hints.terminal.then(|| value.clone())
            }
            Some(ToolOutcome::Failure(_)) | None => None,
        })?;
        let message = taskrun_journal::message::Message::text(
            taskrun_journal::message::Role::Assistant,
            value,
        );
        let pending = vec![Event::AssistantMessage { message, usage: None, model: None }];
        Some(End::done(pending, Outcome::Answered(StopReason::TerminalTool)))
    }

    /// Whether every run that a call wants to wait for is there; otherwise why not.
    pub(super) async fn check_runs(&self, runs: &[RunId]) -> Result<(), ToolFailure> {
        let refuse = |text: String| {
            let error = ToolError::coded("invalid", text);
            Err(ToolFailure { error, retry_hint: None })
        };
        if runs.is_empty() {
            return refuse(NO_RUNS.to_owned());
        }
        let spec = &self.journal.run().spec;
        for id in runs {
            match self.env.store.get(id).await {
                Ok(Some(run)) if is_visible(&run, spec) => {}
                Ok(_) => return refuse(format!("task {id} not found")),
                Err(error) => return refuse(format!("the store cannot be read: {}", error.code())),
            }
        }
        Ok(())
    }
}

/// The id of the question whether a call may be repeated. Each repetition is a question of its own:
/// who agreed to one has not agreed to the next.
pub(super) fn repeat_id(call: &Call) -> String {
    format!("{REPEAT}{}:{}", call.attempts, call.id())
}

fn is_visible(run: &Run, spec: &taskrun_journal::spec::RunSpec) -> bool {
    run.spec.tenant == spec.tenant && run.spec.owner_user_id == spec.owner_user_id
}

pub(super) fn result(
    request: &ToolRequest,
    outcome: ToolOutcome,
    refused: Option<Refusal>,
) -> Event {
    let id = request.tool_call_id.as_deref().unwrap_or_default();
    let output = ToolOutput::plain(&request.name, id, &request.payload, outcome);
    Event::ToolResult { output: Box::new(output), duration_ms: 0, refused }
}

pub(super) fn failure(code: &str, text: &str) -> ToolOutcome {
    let error = ToolError::coded(code, text);
    ToolOutcome::Failure(ToolFailure { error, retry_hint: None })
}

fn confirmation(id: String, request: &ToolRequest) -> Item {
    let name = &request.name;
    let what = AwaitItem::Confirmation {
        id,
        question: format!("{name}: {CUT_OFF}. Call it again?"),
        tool_name: name.clone(),
        tool_call_id: request.tool_call_id.clone().unwrap_or_default(),
        payload: request.payload.clone(),
    };
    Item { what, tool_call_id: request.tool_call_id.clone(), until: None, default: None }
}

/// The item that a tool's question to a person is.
pub(super) fn question(request: &ToolRequest, text: String, until: Option<Timestamp>) -> Item {
    let call = request.tool_call_id.clone().unwrap_or_default();
    let what = AwaitItem::Clarification {
        id: format!("ask:{call}"),
        question: text,
        missing_fields: Vec::new(),
        restrict_to_tool: None,
        example_input: None,
        clarifying_prompt: None,
    };
    Item { what, tool_call_id: Some(call), until, default: None }
}

fn answer_as_result(answer: &Answer) -> ToolOutcome {
    match answer {
        Answer::Text(text) => ToolOutcome::Value(calls::json_text(text)),
        Answer::TimedOut => failure("timeout", "nobody answered in time"),
        Answer::Choices(_)
        | Answer::Results(_)
        | Answer::Confirmed(_)
        | Answer::ConfirmedForRun(_) => {
            failure("contract", "the answer is of another kind than the question")
        }
    }
}

/// The result of a wait for runs: how each of them stands, in the order asked for.
fn how_they_stand(ids: &[RunId], found: &[Option<Run>]) -> ToolOutcome {
    let entries = ids.iter().zip(found).map(|(id, run)| match run {
        Some(run) => {
            let view = RunView::from(run);
            let mut entry = BTreeMap::from([
                ("run_id", id.to_string()),
                ("status", view.status.as_str().to_owned()),
            ]);
            entry.extend(view.result.map(|result| ("result", result)));
            entry.extend(view.error.map(|error| ("error", error)));
            entry
        }
        None => BTreeMap::from([("run_id", id.to_string()), ("status", "not_found".to_owned())]),
    });
    let entries: Vec<_> = entries.collect();
    ToolOutcome::Value(serde_json::to_string(&entries).expect("maps of texts"))
}
