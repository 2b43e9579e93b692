//! The tool calls of one turn: checked in order, executed in parallel, answered in order.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use taskrun_journal::event::{CallWait, Event};
use taskrun_journal::ids::RunId;
use taskrun_journal::message::ToolError;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::question::{AwaitItem, Item};
use taskrun_journal::ruling::ToolRuling;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::time::{Timestamp, millis};
use taskrun_journal::tool::ToolFailure;
use tracing::Instrument;

use super::allowance::{Allowance, TreeSnapshot};
use super::arguments::misfits;
use super::call::{call_scope, tool_call};
use super::children::{Children, Family, linked};
use super::parts::Parts;
use super::queue::{Queue, scheduled};
use super::recorder::Recorder;
use super::results::{
    NO_RUNS, dropped_notes, metrics_event, out_of_time, output, refuse_all, refused, tool_use,
};
use super::start_order::StartOrder;
use super::stop::{Halt, Next, Stop, goes_elsewhere};
use super::time_up::TimeUp;
use super::{consents, engines, hooks};
use crate::agents::AgentTool;
use crate::arguments::TurnSteps;
use crate::gate::consent::{ConsentRules, PriorConsent};
use crate::gate::{Admission, Gate};
use crate::ports::tool::{ToolReply, ToolWait};
use crate::scope::{BudgetReading, CallScope};

/// A call that came to its end.
struct CallOutcome<'a> {
    tool: &'a AgentTool,
    request: ToolRequest,
    answer: Result<Result<ToolReply, ToolFailure>, CallAbort>,
    took: Duration,
    scope: Arc<CallScope>,
}

/// The end of something of a batch.
enum BatchStep<'a> {
    /// A call came to its end.
    Call(Box<CallOutcome<'a>>),
    /// So did the run that a call is.
    Child(ToolRequest, RunId),
    /// No call is under way.
    All,
}

async fn next_of<'a>(
    running: &mut (impl Stream<Item = CallOutcome<'a>> + Unpin),
    family: &mut Family,
) -> BatchStep<'a> {
    tokio::select! {
        biased;
        ended = running.next() => match ended {
            Some(ended) => BatchStep::Call(Box::new(ended)),
            None => BatchStep::All,
        },
        (request, run) = family.next() => BatchStep::Child(request, run),
    }
}

/// The tool calls of a turn, whether they were just decided on or their host died.
pub(super) struct Batch<'a> {
    pub(super) parts: &'a Parts,
    pub(super) recorder: &'a mut Recorder,
}

/// Calls that have not begun.
pub(super) enum NewCalls {
    /// They were just decided on, and the policy engines decided this about them. The decision for
    /// them is not on record.
    Decided(ToolRuling),
    /// They were admitted before their host died, and counted in their turn.
    Admitted,
}

impl<'a> Batch<'a> {
    pub(super) fn new(parts: &'a Parts, recorder: &'a mut Recorder) -> Self {
        Self { parts, recorder }
    }

    /// Checks and executes the calls of a turn. Those that wait for something stay open.
    pub(super) async fn execute(
        &mut self,
        mut pending: Vec<Event>,
        requests: Vec<ToolRequest>,
    ) -> Result<(), Halt> {
        // The decision for these calls is not written yet.
        let turn = self.recorder.run().state.turns + 1;
        let asked = (self.parts, &mut *self.recorder);
        let decided = engines::decide_calls(asked, turn, &requests, &mut pending).await?;
        let mut queue = Queue::default();
        self.admit((&mut pending, &mut queue), NewCalls::Decided(decided), requests).await?;
        self.recorder.record(pending).await?;
        // Of a pause it is known here only if it came before these events: then those with which
        // calls begin were left out, and the calls are still to begin.
        match self.recorder.stop(Next::Anything) {
            Some(_) => Ok(()),
            None if queue.is_empty() => Ok(()),
            None => self.run_all(queue).await,
        }
    }

    /// Lets calls that have not begun pass the gate, one after the other, whether they were just
    /// decided on or their host died: adds those that begin to the queue, and the records of all of
    /// them to `events`. In a run that is paused, or handed over before they were decided on, those
    /// are refused that the gate refuses, and the others stay open. Where the run was handed over
    /// while their arguments were being looked at, that is as if those of all of them fitted.
    pub(super) async fn admit(
        &mut self,
        (events, queue): (&mut Vec<Event>, &mut Queue<'a>),
        fresh: NewCalls,
        requests: Vec<ToolRequest>,
    ) -> Result<(), Halt> {
        let parts = self.parts;
        let (state, work) = (&self.recorder.run().state, self.recorder.work());
        let (turn, is_open) = match fresh {
            NewCalls::Decided(_) => (state.turns + 1, false),
            NewCalls::Admitted => (state.turns, true),
        };
        // They pass under the rules of now what they passed under those of then.
        let again = is_open && work.is_decided_by_others();
        let consents = requests.iter().map(|request| work.consent(request, is_open));
        let mut consents: Vec<PriorConsent> = consents.collect();
        // The others have passed all layers but consent.
        let looked_at = requests.iter().zip(&consents);
        let looked_at = looked_at.filter(|(_, prior)| prior.passes_layers(again));
        let looked_at: Vec<ToolRequest> = looked_at.map(|(request, _)| request.clone()).collect();
        let (counted, decided) = match fresh {
            NewCalls::Decided(decided) => {
                (parts.agent.limits.turn_calls, vec![work.decided.clone(), decided])
            }
            NewCalls::Admitted if again && !looked_at.is_empty() => {
                let asked = (parts, &mut *self.recorder);
                (None, vec![engines::decide_again(asked, &looked_at, events).await?])
            }
            NewCalls::Admitted => (None, Vec::new()),
        };
        let misfits = misfits(parts, self.recorder, &looked_at).await?;
        let is_unseen = misfits.is_none();
        if is_unseen && is_open {
            // The next host finds them as they are.
            return Err(Stop::HandOver.into());
        }
        let left = (parts.tool_calls_left(self.recorder.run()), counted);
        let misfits = misfits.unwrap_or_default();
        let mut gate = Gate::new(&parts.code.tools, left, decided, misfits).again(again);
        // What a run that is handed over has just decided on begins under the policy of now, and
        // where nobody looked at its arguments, they are looked at before.
        let is_handed_over =
            !is_open && self.recorder.stop(Next::FurtherCalls) == Some(Stop::HandOver);
        let is_paused = self.recorder.stop(Next::Anything) == Some(Stop::Paused);
        let waits = is_unseen || is_handed_over || is_paused;
        // Of a run that waits, hooks are asked when it goes on.
        if !waits {
            let asked = (parts, &mut *self.recorder);
            let vetoes = hooks::vetoes(asked, turn, &looked_at, &gate).await?;
            gate.veto(vetoes);
            consents::look_up(parts, self.recorder.run(), &requests, &mut consents).await?;
        }
        let (ask, policy, now) = (&parts.agent.ask, parts.policy(), parts.env.clock.now());
        let rules = ConsentRules { rules: ask, policy, turn, now };
        for (request, prior) in requests.into_iter().zip(&consents) {
            match gate.admit(&request, (&rules, prior)) {
                Admission::Begin { .. } | Admission::Ask(_) if waits => {}
                Admission::Begin { tool, consent } => {
                    events.extend(consent);
                    let begins = scheduled(&request, tool);
                    queue.add(events, (request, tool), begins, prior.lasting());
                }
                Admission::Ask(item) => events.push(Event::Asked { item }),
                Admission::Wait => {}
                Admission::Refuse(refusal) => {
                    events.extend(refusal.decision);
                    events.push(refused(&request, refusal.refusal, refusal.failure));
                }
            }
        }
        Ok(())
    }

    /// Executes calls and writes each result as it arrives. It is on record already that those
    /// with a place begin; it is recorded of the others when they have one.
    pub(super) async fn run_all(&mut self, mut queue: Queue<'a>) -> Result<(), Halt> {
        let (parts, live) = (self.parts, Arc::clone(self.recorder.live()));
        let (mut running, steps) = (FuturesUnordered::new(), Arc::new(TurnSteps::default()));
        let (mut family, mut starts) =
            (Family::new(Arc::clone(&parts.env.store)), StartOrder::default());
        let (clock, grace) = (Arc::clone(&parts.env.clock), parts.agent.limits.grace);
        let mut time_up = TimeUp::new(clock, self.recorder.work_ends_at(), grace);
        loop {
            let mut budget = None;
            for (request, tool) in queue.take() {
                let budget = budget.get_or_insert_with(|| self.budget()).clone();
                let hears = tool.tool.hears_cancellation();
                let (stop, entered) = live.enter(hears);
                time_up.enter(&stop, hears);
                let call = tool_call(parts, self.recorder.run(), &request, tool);
                let host = (parts, &*self.recorder);
                let key = &call.tool_call_id;
                let scope = call_scope(host, &request, tool, key, (stop, budget));
                let scope = Arc::new(scope);
                self.recorder.enter(&scope);
                let id = request.tool_call_id.as_deref().unwrap_or_default();
                let span = tracing::debug_span!("tool_call", tool = %request.name, id);
                let clock = Arc::clone(&parts.env.clock);
                let (asked, steps) = (self.recorder.asked(), Arc::clone(&steps));
                let mut place = tool.starts_runs.then(|| starts.add());
                running.push(async move {
                    if let Some(place) = &mut place {
                        place.come().await;
                    }
                    let began = clock.monotonic();
                    // Nothing begins once somebody has asked to stop.
                    let answer = match asked {
                        Some(failure) => Err(failure),
                        None => tool.tool.call(call, Arc::clone(&scope)).instrument(span).await,
                    };
                    if let Some(place) = place {
                        place.leave();
                    }
                    drop(entered);
                    let took = clock.monotonic().saturating_sub(began);
                    let answer = tool.keep_promise(answer, &steps).await;
                    CallOutcome { tool, request, answer, took, scope }
                });
            }
            let next = next_of(&mut running, &mut family);
            let events = match self.recorder.attend(&mut time_up, next).await? {
                BatchStep::Call(first) => self.gather(*first, &mut running).await,
                BatchStep::Child(request, run) => {
                    let ended = Children::new(parts, self.recorder).result(&request, &run).await?;
                    ended.map_or_else(Vec::new, |ended| {
                        self.recorder.keep(ended.images);
                        vec![ended.event]
                    })
                }
                BatchStep::All => return Ok(()),
            };
            family.note(&events);
            self.recorder.record(events).await?;
            self.begin_more(&mut queue, running.len()).await?;
        }
    }

    /// The rest of the budget for calls that begin. That is on record already, so nothing is asked of
    /// the store here: what failed would cut off calls that have not begun, and those under way.
    fn budget(&self) -> BudgetReading {
        let (turn, tree) = (self.recorder.run().state.turns, TreeSnapshot::default());
        Allowance::new(self.parts, self.recorder, &tree).for_calls(turn)
    }

    /// The events of calls that came to their ends: of one, and of those that are there with it,
    /// which go into the same write.
    async fn gather(
        &mut self,
        first: CallOutcome<'a>,
        running: &mut (impl Stream<Item = CallOutcome<'a>> + Unpin),
    ) -> Vec<Event> {
        let mut events = Vec::new();
        let mut next = Some(first);
        while let Some(ended) = next {
            self.recorder.leave(&ended.scope);
            let end = ended.scope.finish();
            let notes = dropped_notes(&end);
            events.extend(end.events.into_iter().chain(notes));
            let outcome = self.ended(ended, end.children).await;
            // A call that is given back counts where it is made again.
            if !outcome.is_empty() {
                events.extend(metrics_event(end.metrics));
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
    async fn begin_more(&mut self, queue: &mut Queue<'a>, running: usize) -> Result<(), Halt> {
        let stop = self.recorder.stop(Next::FurtherCalls);
        if self.recorder.asked().is_some() && stop != Some(Stop::HandOver) {
            queue.place(running);
            return Ok(());
        }
        match stop {
            Some(stop @ Stop::HandOver) if running == 0 && !queue.is_empty() => Err(stop.into()),
            Some(Stop::HandOver) => Ok(()),
            // They stay open, for whoever goes on with the run.
            Some(Stop::Paused) => {
                *queue = Queue::default();
                Ok(())
            }
            Some(Stop::Limit(_)) => {
                let late = queue.give_up();
                let overtaken = |request| out_of_time(request, Duration::ZERO);
                self.recorder.record(late.iter().map(overtaken).collect()).await
            }
            // The results of those under way are the last of the run.
            Some(Stop::JournalFull) => {
                let mut refused = Vec::new();
                refuse_all(&mut refused, &queue.give_up());
                self.recorder.record(refused).await
            }
            Some(Stop::Lease | Stop::Asked(_) | Stop::TimedOut) | None => {
                consents::hold_back((self.parts, self.recorder.run()), queue, running).await;
                self.recorder.record(queue.place(running)).await?;
                if self.recorder.stop(Next::FurtherCalls) == Some(Stop::Paused) {
                    // The pause came first: what was to begin is not on record.
                    *queue = Queue::default();
                }
                Ok(())
            }
        }
    }

    /// The events of a call that came to its end and started so many runs.
    async fn ended(&mut self, ended: CallOutcome<'_>, children: u32) -> Vec<Event> {
        let CallOutcome { tool, request, answer, took, scope: _ } = ended;
        let mut mark = None;
        let answer = match answer {
            // Whoever takes the run up decides what becomes of the call.
            Err(CallAbort::Stopped { cause }) if goes_elsewhere(cause) => return Vec::new(),
            // The run itself is not stopped: its time for work is up, and it has its last word.
            Err(CallAbort::Stopped { cause: StopCause::RunTimeout })
                if self.recorder.asked().is_none() =>
            {
                return vec![out_of_time(&request, took)];
            }
            Err(failure) => Err(failure),
            Ok(Err(failure)) => Ok(Err(failure)),
            Ok(Ok(ToolReply::Value(value))) => Ok(Ok(*value)),
            Ok(Ok(ToolReply::Marked(value, said))) => {
                mark = Some(said);
                Ok(Ok(*value))
            }
            Ok(Ok(ToolReply::Park(wait))) => match self.park(&request, wait).await {
                Ok(events) => return events,
                Err(failure) => Ok(Err(failure)),
            },
        };
        let (output, images) = output(tool, request, answer, children);
        self.recorder.keep(images);
        let tool_call_id = output.tool_call_id.clone();
        let marked = mark.map(|mark| Event::Marked { tool_call_id, mark });
        let output = Box::new(output);
        let result = Event::ToolResult { output, duration_ms: millis(took), refused: None };
        marked.into_iter().chain([result]).collect()
    }

    /// The events of a call that waits.
    async fn park(&self, request: &ToolRequest, wait: ToolWait) -> Result<Vec<Event>, ToolFailure> {
        let now = self.parts.env.clock.now();
        let until = |timeout: Option<Duration>| timeout.map(|timeout| now.plus(timeout));
        let (waits, asked) = match wait {
            ToolWait::Runs { runs, mode, timeout, report } => {
                self.check_runs(&runs).await?;
                (CallWait::Runs { runs, mode, until: until(timeout), report }, None)
            }
            ToolWait::Child { run, agent_name } => {
                return Ok(linked(request, run, agent_name));
            }
            ToolWait::Person { question, timeout } => {
                let item = clarification(request, question, until(timeout));
                (CallWait::Answer { item: item.id().to_owned() }, Some(item))
            }
        };
        let call = tool_use(request);
        let parked = Event::ToolCallParked {
            tool_call_id: call.tool_call_id,
            name: call.name,
            payload: call.payload,
            waits,
        };
        let asked = asked.map(|item| Event::Asked { item: Box::new(item) });
        Ok(std::iter::once(parked).chain(asked).collect())
    }

    /// Checks that every run is there that a call wants to wait for. A tool is the host's own: which of
    /// its owner's runs its caller may see is for the tool to ask.
    async fn check_runs(&self, runs: &[RunId]) -> Result<(), ToolFailure> {
        let refuse = |text: String| {
            let error = ToolError::coded("invalid", text);
            Err(ToolFailure { error, retry_hint: None })
        };
        if runs.is_empty() {
            return refuse(NO_RUNS.to_owned());
        }
        let spec = &self.recorder.run().spec;
        for id in runs {
            match self.parts.env.store.get(id).await {
                Ok(Some(run)) if is_visible(&run, spec) => {}
                Ok(_) => return refuse(format!("task {id} not found")),
                Err(error) => return refuse(format!("the store cannot be read: {}", error.code())),
            }
        }
        Ok(())
    }
}

/// The item that a tool's question to a person is.
fn clarification(request: &ToolRequest, text: String, until: Option<Timestamp>) -> Item {
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

/// True if a run may be seen from another one: it belongs to the same owner.
pub(super) fn is_visible(run: &Run, spec: &RunSpec) -> bool {
    run.spec.tenant == spec.tenant && run.spec.owner_user_id == spec.owner_user_id
}
