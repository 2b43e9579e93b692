//! Calls and questions that are still open: after a crash, or because they wait for something.

use std::sync::Arc;

use taskrun_journal::answers::no_user;
use taskrun_journal::artifact::Artifact;
use taskrun_journal::event::{CallWait, Event, Refusal};
use taskrun_journal::hold::{Wait, WaitMode};
use taskrun_journal::ids::RunId;
use taskrun_journal::machine::decide::Outcome;
use taskrun_journal::message::{Message, Part, Role};
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::question::{Answer, AwaitItem, Item};
use taskrun_journal::run::Run;
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::ToolOutcome;
use taskrun_policy::InterruptionPolicy;

use super::batch::{Batch, NewCalls, is_visible};
use super::children::{ChildEnd, Children};
use super::end::End;
use super::hand_over;
use super::missing;
use super::queue::Queue;
use super::results::{CYCLE, INTERRUPTED, failure, json_text, result, result_with};
use super::stop::{Halt, Next, Stop};
use super::work::Call;
use crate::agents::AgentTool;
use crate::gate::consent::answered_by;
use crate::host_tools::report;

/// Begins the id of the question whether a call may be repeated.
const REPEAT: &str = "repeat:";
/// The text for a call that was cut off.
const CUT_OFF: &str = "the host died while this call was under way; whether it took effect is not \
                       known";

/// The end of a wait for runs.
struct WaitEnd {
    /// The result of the call.
    event: Event,
    /// The images in that, to be kept with the run that waited.
    images: Vec<Artifact>,
    /// Those of the runs that have ended.
    ended: Vec<RunId>,
}

/// The state of a call that is open, and with it what is to be done.
enum OpenCall<'a> {
    /// It has its result.
    Result(ToolOutcome),
    /// Its wait for runs is over.
    Awaited(Box<WaitEnd>),
    /// The run that it is has ended, at this time; this is its result.
    Ended(Box<ChildEnd>),
    /// It was cut off and is not to be repeated.
    CutOff(ToolOutcome),
    /// It has not begun: the gate rules on it.
    Begin,
    /// It begins again.
    Repeat(&'a AgentTool),
    /// A person is to be asked if it may begin again.
    Ask(Box<Item>),
    /// It waits, for these runs if it waits for any.
    Wait(Vec<RunId>),
}

impl<'a> Batch<'a> {
    /// Brings everything that is open to its end, as far as that can be done; gives the end of
    /// this execution if the run has to wait.
    ///
    /// # Errors
    /// [`Halt::Stopped`] if the run does not go on here.
    pub(super) async fn resume(&mut self) -> Result<Option<End>, Halt> {
        let parts = self.parts;
        loop {
            self.recorder.go_on(Next::Anything).await?;
            self.answer_questions().await?;
            let (mut events, mut queue, mut fresh) = (Vec::new(), Queue::default(), Vec::new());
            let (mut ended, mut awaited, mut over) = (Vec::new(), Vec::new(), Vec::new());
            let (mut images, now) = (Vec::new(), parts.env.clock.now());
            for call in self.recorder.work().open_calls() {
                let (request, took) = (&call.request, call.took(now));
                match self.state_of(call, parts.code.tools.get(&request.name)).await? {
                    OpenCall::Result(outcome) => events.push(result(request, outcome, None, took)),
                    OpenCall::Awaited(end) => {
                        events.push(end.event);
                        over.extend(end.ended);
                        images.extend(end.images);
                    }
                    OpenCall::Ended(end) => ended.push(*end),
                    OpenCall::CutOff(outcome) => {
                        let refusal = Some(Refusal::Interrupted);
                        events.push(result(request, outcome, refusal, took));
                    }
                    OpenCall::Begin => fresh.push(request.clone()),
                    OpenCall::Repeat(tool) => {
                        let begins = Event::ToolCallRepeated {
                            tool_call_id: call.id().to_owned(),
                            attempt: call.attempts + 1,
                        };
                        queue.add(&mut events, (request.clone(), tool), begins, None);
                    }
                    OpenCall::Ask(item) => events.push(Event::Asked { item }),
                    OpenCall::Wait(runs) => awaited.extend(runs),
                }
            }
            // Results stand in the journal as they came to be, not as they were asked for.
            ended.sort_by_key(|end| end.at);
            for end in ended {
                events.push(end.event);
                images.extend(end.images);
            }
            self.recorder.keep(images);
            // What has not begun begins where the run is taken up, under the policy of then.
            let hands_over =
                !fresh.is_empty() && self.recorder.stop(Next::FurtherCalls) == Some(Stop::HandOver);
            if !hands_over {
                self.admit((&mut events, &mut queue), NewCalls::Admitted, fresh).await?;
            }
            // An end that is a result here is not told again.
            self.recorder.record_awaited(events, &over).await?;
            if hands_over && queue.is_empty() {
                return Err(Stop::HandOver.into());
            }
            // In a run that was paused what was to begin is not on record, and stays open.
            if self.recorder.stop(Next::Anything).is_some() {
                continue;
            }
            if !queue.is_empty() {
                self.run_all(queue).await?;
                continue;
            }
            if self.host_answers() {
                continue;
            }
            let Some((on, wait)) = self.waits_for(awaited) else {
                let asks = missing::questions(parts, self.recorder.work());
                if asks.is_empty() {
                    return self.terminal().await;
                }
                self.recorder.record(asks).await?;
                continue;
            };
            match self.block(on, wait).await {
                Ok(end) => return Ok(Some(end)),
                Err(Halt::Cycle) => self.refuse_cycles().await?,
                Err(halt) => return Err(halt),
            }
        }
    }

    async fn state_of_child(
        &self,
        request: &ToolRequest,
        id: &RunId,
    ) -> Result<OpenCall<'static>, Halt> {
        let children = Children::new(self.parts, self.recorder);
        if let Some(end) = children.result(request, id).await? {
            return Ok(OpenCall::Ended(Box::new(end)));
        }
        if self.recorder.is_out_of_time() {
            children.stop(id).await;
        }
        Ok(OpenCall::Wait(vec![id.clone()]))
    }

    async fn state_of(
        &self,
        call: &Call,
        tool: Option<&'a AgentTool>,
    ) -> Result<OpenCall<'a>, Halt> {
        match &call.parked {
            Some(CallWait::Runs { runs, mode, until, report: form }) => {
                let found = self.runs_of(runs).await?;
                let ended =
                    |run: &Option<Run>| run.as_ref().is_none_or(|r| r.status().is_terminal());
                let settled = match mode {
                    WaitMode::All => found.iter().all(ended),
                    WaitMode::Any => found.iter().any(ended),
                };
                let now = self.parts.env.clock.now();
                let over = until.is_some_and(|until| now >= until);
                Ok(if settled || over {
                    let children = Children::new(self.parts, self.recorder);
                    let shown = children.images_of_all(&found).await?;
                    let counts: Vec<_> = shown.iter().map(Vec::len).collect();
                    let value = report(*form, (runs, &counts), &found).to_string();
                    let (media, images) = shown.into_iter().flatten().unzip();
                    let event = result_with(&call.request, value, media, call.took(now));
                    let over = runs.iter().zip(&found).filter(|(_, run)| ended(run));
                    let ended = over.map(|(id, _)| id.clone()).collect();
                    OpenCall::Awaited(Box::new(WaitEnd { event, images, ended }))
                } else {
                    let open = runs.iter().zip(&found).filter(|(_, run)| !ended(run));
                    OpenCall::Wait(open.map(|(id, _)| id.clone()).collect())
                })
            }
            Some(CallWait::Child { run }) => self.state_of_child(&call.request, run).await,
            Some(CallWait::Answer { item }) => Ok(match self.recorder.work().answer_to(item) {
                Some(answer) => OpenCall::Result(answer_as_result(answer)),
                None => OpenCall::Wait(Vec::new()),
            }),
            None => Ok(self.after_cut(call, tool)),
        }
    }

    /// The state of a call whose host died. One that waited for a place had not begun: it is as
    /// good as one that was just decided on, whatever its tool promises.
    fn after_cut(&self, call: &Call, tool: Option<&'a AgentTool>) -> OpenCall<'a> {
        if call.attempts == 0 {
            return OpenCall::Begin;
        }
        let Some(tool) = tool else { return OpenCall::CutOff(failure(INTERRUPTED, CUT_OFF)) };
        if call.idempotent {
            return OpenCall::Repeat(tool);
        }
        let id = repeat_id(call);
        let work = self.recorder.work();
        match (tool.interrupted, work.answer_to(&id)) {
            (InterruptionPolicy::Ask, Some(Answer::Confirmed(true))) => OpenCall::Repeat(tool),
            (InterruptionPolicy::Ask, None) if work.was_asked(&id) => OpenCall::Wait(Vec::new()),
            (InterruptionPolicy::Ask, None) => {
                let now = self.parts.env.clock.now();
                let until = answered_by(&self.parts.agent.ask, now);
                OpenCall::Ask(Box::new(confirmation(id, &call.request, until)))
            }
            (InterruptionPolicy::Fail, _) | (InterruptionPolicy::Ask, Some(_)) => {
                OpenCall::CutOff(failure(INTERRUPTED, CUT_OFF))
            }
        }
    }

    /// The runs, as far as the owner of this one may see them.
    async fn runs_of(&self, ids: &[RunId]) -> Result<Vec<Option<Run>>, Halt> {
        let spec = Arc::clone(&self.recorder.run().spec);
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            let run = self.parts.env.store.get(id).await.map_err(Halt::Read)?;
            found.push(run.filter(|run| is_visible(run, &spec)));
        }
        Ok(found)
    }

    /// Answers for those who did not in time, and where nobody but the host does.
    async fn answer_questions(&mut self) -> Result<(), Halt> {
        let now = self.parts.env.clock.now();
        let late = |item: &Item| item.until.is_some_and(|until| now >= until);
        let spec = Arc::clone(&self.recorder.run().spec);
        let asked = self.recorder.work().asked.iter();
        let open = asked.filter(|one| one.answer.is_none());
        let events = open.filter_map(|one| {
            let (answer, by_default) = match spec.answers.to(&one.item) {
                Some(answer) => (answer, true),
                None if late(&one.item) => {
                    (one.item.answer_by_default(), one.item.default.is_some())
                }
                None => return None,
            };
            let (item, by) = (one.item.id().to_owned(), "host".to_owned());
            Some(Event::Answered { item, answer, by, by_default })
        });
        let events: Vec<_> = events.collect();
        self.recorder.record(events).await
    }

    /// True if something is asked that the host answers.
    fn host_answers(&self) -> bool {
        let answers = &self.recorder.run().spec.answers;
        let mut asked = self.recorder.work().asked.iter();
        asked.any(|one| one.answer.is_none() && answers.to(&one.item).is_some())
    }

    /// The wait of the run: for people first, then other runs, of which `awaited` are open.
    fn waits_for(&self, mut awaited: Vec<RunId>) -> Option<(BlockedOn, Wait)> {
        let work = self.recorder.work();
        let mut open = work.asked.iter().filter(|one| one.answer.is_none()).peekable();
        if let Some(first) = open.peek() {
            let on = first.item.what.blocks();
            let waits = work.open_calls().filter_map(|call| match &call.parked {
                Some(CallWait::Runs { until, .. }) => *until,
                Some(CallWait::Child { .. } | CallWait::Answer { .. }) | None => None,
            });
            // Whoever waits for runs as well is told when that time is up, too.
            let at = open.filter_map(|one| one.item.until).chain(waits).min();
            return Some((on, Wait::Answers { at }));
        }
        let is_child = |call: &Call| matches!(call.parked, Some(CallWait::Child { .. }));
        if work.open_calls().any(is_child) {
            // Each result is recorded as it comes to be, so the first end of a run is enough.
            awaited.sort();
            awaited.dedup();
            let at = work.open_calls().filter_map(|call| match &call.parked {
                Some(CallWait::Runs { until, .. }) => *until,
                Some(CallWait::Child { .. } | CallWait::Answer { .. }) | None => None,
            });
            let wait = Wait::Runs { runs: awaited, mode: WaitMode::Any, at: at.min() };
            return Some((BlockedOn::Children, wait));
        }
        work.open_calls().find_map(|call| match &call.parked {
            Some(CallWait::Runs { runs, mode, until, report: _ }) => {
                let wait = Wait::Runs { runs: runs.clone(), mode: *mode, at: *until };
                Some((BlockedOn::Children, wait))
            }
            Some(CallWait::Child { .. } | CallWait::Answer { .. }) | None => None,
        })
    }

    /// Gives up the slot until something happens.
    async fn block(&mut self, on: BlockedOn, wait: Wait) -> Result<End, Halt> {
        let ran_ms = self.recorder.ran_ms();
        let event = Event::Blocked { on, wait, ran_ms };
        let blocked = self
            .recorder
            .commit(|run| {
                let running = run.status() == Status::Running;
                // An answer that came in this moment is found by whoever looks again.
                let settled = matches!(event, Event::Blocked { wait: Wait::Answers { .. }, .. })
                    && run.state.awaits.iter().all(|one| one.answered);
                if running && !settled { vec![event.clone()] } else { Vec::new() }
            })
            .await?;
        if blocked {
            return Ok(End::Blocked);
        }
        self.recorder.catch_up().await?;
        match self.recorder.stop(Next::Anything) {
            Some(stop) => Err(stop.into()),
            None => Ok(End::Released),
        }
    }

    /// Refuses the waits that would never end.
    async fn refuse_cycles(&mut self) -> Result<(), Halt> {
        let waits = |call: &&Call| match call.parked {
            Some(CallWait::Runs { .. } | CallWait::Child { .. }) => true,
            Some(CallWait::Answer { .. }) | None => false,
        };
        let Some(call) = self.recorder.work().open_calls().find(waits) else { return Ok(()) };
        if let Some(CallWait::Child { run }) = &call.parked {
            Children::new(self.parts, self.recorder).stop(run).await;
        }
        let took = call.took(self.parts.env.clock.now());
        let event = result(&call.request, failure("cycle", CYCLE), None, took);
        self.recorder.record(vec![event]).await
    }

    /// The end of the run, where a tool whose answer ends it has answered.
    async fn terminal(&self) -> Result<Option<End>, Halt> {
        let calls = &self.recorder.work().calls;
        let ending = calls.iter().find_map(|call| match &call.outcome {
            Some(ToolOutcome::Value(value)) => {
                let tool = self.parts.code.tools.get(&call.request.name)?;
                tool.spec.hints.terminal.then_some((call, value))
            }
            Some(ToolOutcome::Failure(_)) | None => None,
        });
        let Some((call, value)) = ending else { return Ok(None) };
        let callee = match hand_over::callee(call) {
            Some(id) => self.parts.env.store.get(id).await.map_err(Halt::Read)?,
            None => None,
        };
        let (value, outcome) = match callee {
            Some(callee) => {
                // Words of the callee, as the result of a call they are JSON.
                let said = serde_json::from_str(value).unwrap_or_else(|_| value.clone());
                (said, Outcome::HandedOver { agent_name: hand_over::holder(&callee) })
            }
            None => (value.clone(), Outcome::Answered(StopReason::TerminalTool)),
        };
        let images = self.recorder.work().conversation.images_of(call.id());
        let images = images.iter().cloned().map(Part::Media);
        let parts = [Part::Text(value)].into_iter().chain(images).collect();
        let message = Message { role: Role::Assistant, parts };
        let pending =
            vec![Event::AssistantMessage { message, usage: None, model: None, streamed: false }];
        Ok(Some(End::done(pending, outcome)))
    }
}

/// The id of the question whether a call may be repeated. Each repetition is a question of its own:
/// who agreed to one has not agreed to the next.
pub(super) fn repeat_id(call: &Call) -> String {
    format!("{REPEAT}{}:{}", call.attempts, call.id())
}

fn confirmation(id: String, request: &ToolRequest, until: Timestamp) -> Item {
    let name = &request.name;
    let what = AwaitItem::Confirmation {
        id,
        question: format!("{name}: {CUT_OFF}. Call it again?"),
        tool_name: name.clone(),
        tool_call_id: request.tool_call_id.clone().unwrap_or_default(),
        payload: request.payload.clone(),
        digest: None,
        policy: None,
    };
    // Without an answer by then the call has failed, as it would without being asked about.
    Item { what, tool_call_id: request.tool_call_id.clone(), until: Some(until), default: None }
}

fn answer_as_result(answer: &Answer) -> ToolOutcome {
    match answer {
        Answer::Text(text) => ToolOutcome::Value(json_text(text)),
        Answer::TimedOut => failure("timeout", "nobody answered in time"),
        Answer::Refused(reason) => ToolOutcome::Value(json_text(&no_user(reason))),
        Answer::Choices(_)
        | Answer::Results(_)
        | Answer::Confirmed(_)
        | Answer::ConfirmedForRun(_) => {
            failure("contract", "the answer is of another kind than the question")
        }
    }
}
