//! One plan step: what goes in, what comes out, and what of it is recorded.

use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::event::{DecisionKind, Event};
use taskrun_journal::machine::decide::Outcome;
use taskrun_journal::message::{Labels, LogLevel, Message, Part, Role, ToolUse};
use taskrun_journal::metrics::Metrics;
use taskrun_journal::plan::{
    FinalToolResult, PlannerError, Termination, TerminationReason, ToolRequest,
};
use taskrun_journal::status::StopReason;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::text::cut;
use taskrun_journal::time::{Random, millis, random_u64};
use taskrun_journal::tool::ToolOutcome;
use taskrun_policy::Then;

use super::plan::check;
use super::random::StepRandom;
use super::time_up::TimeUp;
use super::{Driver, Halt, PLAN_INPUT_BYTES_MAX};
use crate::ports::call::{
    CallScope, CallScopeParts, JournalRoom, Remaining, ScopeEnd, ScopeLimits, Services, StopSignal,
    Tape,
};
use crate::ports::planner::{Decision, PlanInput, PlanResult, Resume};

/// Code of a planner's error that says it only passes a cancellation on.
const CANCELED: &str = "canceled";
/// Codes of a planner's errors that may pass.
const TRANSIENT: [&str; 4] = ["transient", "rate-limited", "unavailable", "timeout"];
/// Most bytes that are told of each side of a divergence.
const DIVERGENCE_BYTES_MAX: usize = 1 << 10;

/// What a step came to.
pub(super) struct Step {
    /// Events that are still to be written.
    pub(super) pending: Vec<Event>,
    /// The plan, or how the run ends without one.
    pub(super) outcome: Result<PlanResult, Outcome>,
}

/// Text and reasoning that a step has sent in parts and no whole message has replaced. `tape` is all
/// that it did, under whatever host.
fn sent_in_parts(tape: &Tape) -> Vec<Part> {
    let (mut text, mut parts) = (String::new(), Vec::new());
    for event in tape.emitted() {
        if let Event::AssistantChunk { text: more } = event {
            text.push_str(more);
        } else if let Event::ThinkingBlock { block } = event {
            parts.push(Part::Thinking(block.clone()));
        } else if let Event::AssistantMessage { .. } = event {
            text.clear();
            parts.clear();
        }
    }
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    parts
}

impl Driver {
    /// Asks the planner, and again after a pause where it failed in a way that may pass. Nothing
    /// of the answer is written yet.
    pub(super) async fn step_with_retries(
        &mut self,
        finalize: Option<Termination>,
        mut tape: Option<Tape>,
    ) -> Result<Step, Halt> {
        if let Some(failure) = self.rest_of_pause().await? {
            return Ok(Step { pending: Vec::new(), outcome: Err(Outcome::Failed(failure)) });
        }
        loop {
            if self.env.draining.is_cancelled() || self.is_paused() {
                return Err(Halt::Lease);
            }
            if finalize.is_none() && self.is_out_of_time() {
                let outcome = Err(Outcome::Exhausted(TerminationReason::TimeBudget));
                return Ok(Step { pending: Vec::new(), outcome });
            }
            if tape.as_ref().is_none_or(Tape::is_empty) {
                self.show_inbox().await?;
            }
            // The last word calls no tools.
            if finalize.is_none() {
                self.decide_tools(tape.as_ref()).await?;
            }
            let mut step = self.step(finalize.clone(), tape.take()).await?;
            let Some(error) = passing(&step.outcome) else { return Ok(step) };
            let attempt = self.journal.run().state.failed_attempts + 1;
            let retry = self.agent.retry;
            // A last word that comes when no time is left is not waited for.
            let is_last = finalize.is_some() && self.is_out_of_time();
            if attempt >= retry.attempts || is_last {
                let tells = attempt > 1 || retry.then != Then::Abort;
                if let (true, Err(outcome)) = (tells, &mut step.outcome) {
                    let skipped = self.journal.run().state.skipped;
                    *outcome = Outcome::RetryAborted { attempts: attempt, skipped, error };
                }
                return Ok(step);
            }
            let pause =
                jittered(retry.pause.saturating_mul(1 << (attempt - 1).min(16)), &*self.env.random);
            let pause = self.time_for_work().map_or(pause, |time| pause.min(time));
            let turn = self.journal.run().state.turns + 1;
            let retry_after_ms = millis(pause);
            step.pending.push(Event::StepFailed { turn, attempt, error, retry_after_ms });
            self.write(step.pending).await?;
            if self.is_paused() {
                return Err(Halt::Lease);
            }
            if let Some(failure) = self.pause(pause).await? {
                return Ok(Step { pending: Vec::new(), outcome: Err(Outcome::Failed(failure)) });
            }
        }
    }

    /// Asks the planner once.
    async fn step(
        &mut self,
        finalize: Option<Termination>,
        tape: Option<Tape>,
    ) -> Result<Step, Halt> {
        let turn = self.journal.run().state.turns + 1;
        self.check_time();
        if let Some(failure) = self.stopped() {
            return Ok(Step { pending: Vec::new(), outcome: Err(Outcome::Failed(failure)) });
        }
        let reminders = self.work.conversation.reminders().due(turn);
        let noted: usize = reminders.iter().map(|note| note.id.len() + note.text.len()).sum();
        let room = PLAN_INPUT_BYTES_MAX.saturating_sub(noted);
        let Some((messages, tool_outputs)) = self.work.conversation.within(room) else {
            let detail = format!(
                "the conversation has more than {PLAN_INPUT_BYTES_MAX} bytes, even without the \
                 results of tools"
            );
            return Ok(Step { pending: Vec::new(), outcome: Err(Outcome::Refused(detail)) });
        };
        let live = Arc::clone(&self.live);
        let planner = Arc::clone(&self.code.planner);
        let (stop, entered) = live.enter(planner.hears_cancellation());
        let remaining = self.remaining_of_step(turn, finalize.is_some()).await?;
        // The last word has the time of a step.
        let time = if finalize.is_some() { None } else { self.time_for_work() };
        let mut time_up = TimeUp::new(Arc::clone(&self.env.clock), time, self.agent.limits.grace);
        time_up.enter(&stop, planner.hears_cancellation());
        let scope = Arc::new(self.step_scope(remaining, stop, tape));
        let resume = (turn > 1 || finalize.is_some()).then_some(Resume { tool_outputs, finalize });
        let input = PlanInput { messages, run: scope.context().clone(), reminders, resume };
        self.scopes = vec![Arc::clone(&scope)];
        let answer = self.attend(&mut time_up, planner.plan(input, Arc::clone(&scope))).await;
        self.scopes.clear();
        drop(entered);
        let overtaken = self.overtaken(&scope);
        Ok(self.conclude(turn, scope.finish(), answer?, overtaken))
    }

    /// The limit of the run for which a step was asked to stop.
    fn overtaken(&self, scope: &CallScope) -> Option<Outcome> {
        if self.stopped().is_some() {
            return None;
        }
        match scope.stop().cause()? {
            StopCause::RunTimeout => Some(Outcome::Exhausted(TerminationReason::TimeBudget)),
            StopCause::JournalFull => Some(Outcome::Failed(self.journal_limit())),
            StopCause::Canceled
            | StopCause::Shutdown
            | StopCause::Diverged
            | StopCause::HandOver
            | StopCause::LeaseLost => None,
        }
    }

    fn step_scope(&self, remaining: Remaining, stop: StopSignal, tape: Option<Tape>) -> CallScope {
        let (agent, run) = (&self.agent, self.journal.run());
        let turn = run.state.turns + 1;
        CallScope::new(CallScopeParts {
            context: self.context(turn),
            stop,
            deadline: agent.limits.step,
            clock: Arc::clone(&self.env.clock),
            random: Arc::new(StepRandom::new(&run.spec.seed, turn, run.state.failed_attempts + 1)),
            models: Some(Arc::clone(&agent.models)),
            rules: self.rules.clone(),
            runs: Some(self.runs_access(format!("turn {turn}"))),
            tools: self.tools_left(),
            state: self.work.conversation.state().clone(),
            services: Services {
                reminders: self.work.conversation.reminders().clone(),
                prompts: Arc::clone(&agent.prompts),
                memory: Some(self.memory_access(None)),
                results: Arc::clone(&self.work.results),
            },
            remaining,
            limits: ScopeLimits { events: agent.limits.events, bytes: agent.limits.log_bytes },
            wake: Arc::clone(&self.wake),
            journal: Some(JournalRoom {
                urgent: Arc::clone(&self.urgent),
                bytes: agent.limits.journal_bytes.saturating_sub(self.work.journal_bytes),
            }),
            tape,
        })
    }

    /// A plan to which a step came all the same that was `overtaken` is followed, as far as what is
    /// left of the run allows.
    fn conclude(
        &mut self,
        turn: u32,
        end: ScopeEnd,
        answer: Result<Result<PlanResult, PlannerError>, CallAbort>,
        overtaken: Option<Outcome>,
    ) -> Step {
        let mut pending = end.events;
        pending.extend(dropped_note(end.dropped));
        let usage = end.usage;
        pending.extend(metrics_event(end.metrics));
        // Who is asked to stop may well do something else than before.
        let asked_to_stop = overtaken.is_some() || self.stopped().is_some();
        if let Some((recorded, found)) = end.divergence.filter(|_| !asked_to_stop) {
            let cut = |text: String| cut(&text, DIVERGENCE_BYTES_MAX).to_owned();
            let (recorded, found) = (cut(recorded), cut(found));
            pending = vec![Event::ReplayDiverged { turn, recorded, found }];
            let failure = CallAbort::Stopped { cause: StopCause::Diverged };
            return Step { pending, outcome: Err(Outcome::Failed(failure)) };
        }
        let outcome = match (answer, overtaken) {
            (Ok(Ok(mut plan)), _) => {
                let attempt = self.journal.run().state.failed_attempts + 1;
                match check(&mut plan, self.journal.run().id().as_str(), (turn, attempt)) {
                    Ok(()) => {
                        let sent = || self.sent(&pending);
                        let parts = end.answer.map_or_else(sent, said_beside_calls);
                        let message = message(&plan.decision, parts);
                        pending.extend(plan.notes.drain(..).map(|note| Event::PlannerNote {
                            text: note.text,
                            labels: note.labels,
                        }));
                        pending.push(Event::PlanDecided {
                            turn,
                            decision: kind(&plan.decision),
                            state: end.state_changes,
                            reminders: end.reminder_changes,
                            expected_children: plan.expected_children,
                            ran_ms: self.ran_ms(),
                        });
                        pending.extend(self.final_tool_result(&plan.decision));
                        match message {
                            Some(message) => pending.push(Event::AssistantMessage {
                                message,
                                usage,
                                model: end.model,
                            }),
                            None => pending.extend(usage.map(|usage| Event::Usage { usage })),
                        }
                        return Step { pending, outcome: self.unless_stopped(plan) };
                    }
                    Err(detail) => Outcome::Refused(detail),
                }
            }
            (Ok(Err(_)) | Err(CallAbort::Stopped { .. }), Some(overtaken)) => overtaken,
            (Ok(Err(error)), None) => match self.stopped() {
                // Whoever cancels may be told that something else went wrong; whoever set a limit
                // is told that it was met.
                Some(CallAbort::Stopped { cause: StopCause::Canceled })
                    if error.code.as_deref() != Some(CANCELED) =>
                {
                    Outcome::Error(error)
                }
                Some(failure) => Outcome::Failed(failure),
                None => Outcome::Error(error),
            },
            (Err(CallAbort::Stopped { cause }), None) => {
                Outcome::Failed(self.stopped().unwrap_or(CallAbort::Stopped { cause }))
            }
            (Err(failure), _) => Outcome::Failed(failure),
        };
        pending.extend(usage.map(|usage| Event::Usage { usage }));
        Step { pending, outcome: Err(outcome) }
    }

    /// What is kept of a result for the call that this run is; nobody asks for it where it is none.
    fn final_tool_result(&self, decision: &Decision) -> Option<Event> {
        self.journal.run().spec.parent_tool_call_id.as_ref()?;
        match decision {
            Decision::FinalToolResult(result) => {
                Some(Event::FinalToolResult { result: result.clone() })
            }
            Decision::ToolCalls(_)
            | Decision::FinalResponse(_)
            | Decision::Await(_)
            | Decision::AwaitRuns(_) => None,
        }
    }

    /// What the step under way has sent in parts; `pending` of it is not written yet.
    fn sent(&self, pending: &[Event]) -> Vec<Part> {
        let mut tape = self.work.tape.clone();
        pending.iter().for_each(|event| tape.push(event));
        sent_in_parts(&tape)
    }

    /// A plan that came after somebody had asked to stop is kept in the journal and not followed.
    fn unless_stopped(&self, plan: PlanResult) -> Result<PlanResult, Outcome> {
        match self.stopped() {
            Some(failure) => Err(Outcome::Failed(failure)),
            None => Ok(plan),
        }
    }
}

/// What went wrong, if it may pass: the host failed, or the agent says that what it needs was not
/// to be had just now.
fn passing(outcome: &Result<PlanResult, Outcome>) -> Option<String> {
    match outcome {
        Err(Outcome::Failed(failure @ CallAbort::Internal)) => Some(failure.to_string()),
        Err(Outcome::Error(error)) => {
            let code = error.code.as_deref()?;
            TRANSIENT.contains(&code).then(|| error.to_string())
        }
        Err(
            Outcome::Failed(
                CallAbort::Memory { .. }
                | CallAbort::Deadline { .. }
                | CallAbort::Stack
                | CallAbort::Limit { .. }
                | CallAbort::Trap { .. }
                | CallAbort::Contract { .. }
                | CallAbort::Stopped { .. },
            )
            | Outcome::Answered(_)
            | Outcome::Partial(_)
            | Outcome::Exhausted(_)
            | Outcome::RetryAborted { .. }
            | Outcome::Refused(_)
            | Outcome::PersistFailed(_)
            | Outcome::HostFailed(_),
        )
        | Ok(_) => None,
    }
}

/// A pause with up to a quarter taken off by chance.
fn jittered(pause: Duration, random: &dyn Random) -> Duration {
    let quarter = millis(pause) / 4;
    if quarter == 0 {
        return pause;
    }
    pause - Duration::from_millis(random_u64(random) % (quarter + 1))
}

/// What a model said beside its requests for tools. Some providers want their own reasoning back
/// with the results, to the letter, so it is taken from the model's answer and not from what the
/// planner made of it.
fn said_beside_calls(answer: Message) -> Vec<Part> {
    let mut parts = answer.parts;
    parts.retain(|part| !matches!(part, Part::ToolUse(_)));
    parts
}

pub(super) fn dropped_note(dropped: u32) -> Option<Event> {
    (dropped > 0).then(|| Event::Log {
        level: LogLevel::Warn,
        source: "host".to_owned(),
        message: format!("{dropped} events over the limit of the call were dropped"),
        fields: Labels::new(),
    })
}

/// What a step or a call that ended counted and measured, if it did.
pub(super) fn metrics_event(metrics: Metrics) -> Option<Event> {
    (!metrics.is_empty()).then_some(Event::MetricsRecorded { metrics })
}

fn kind(decision: &Decision) -> DecisionKind {
    match decision {
        Decision::ToolCalls(_) => DecisionKind::ToolCalls,
        Decision::FinalResponse(_) => DecisionKind::FinalResponse,
        Decision::FinalToolResult(_) => DecisionKind::FinalToolResult,
        Decision::Await(_) | Decision::AwaitRuns(_) => DecisionKind::Await,
    }
}

/// What the conversation keeps of a decision. `before` is what the step sent in parts.
fn message(decision: &Decision, before: Vec<Part>) -> Option<Message> {
    let calling = |requests: &[ToolRequest]| {
        let mut parts = before;
        parts.extend(requests.iter().map(|request| Part::ToolUse(tool_use(request))));
        Some(Message { role: Role::Assistant, parts })
    };
    match decision {
        Decision::ToolCalls(requests) => calling(requests),
        Decision::AwaitRuns(wait) => calling(wait.call.as_slice()),
        Decision::FinalResponse(message) => {
            Some(Message { role: Role::Assistant, parts: message.parts.clone() })
        }
        Decision::FinalToolResult(result) => match &result.outcome {
            ToolOutcome::Value(value) => Some(Message::text(Role::Assistant, value.clone())),
            ToolOutcome::Failure(_) => None,
        },
        Decision::Await(_) => None,
    }
}

pub(super) fn tool_use(request: &ToolRequest) -> ToolUse {
    ToolUse {
        tool_call_id: request.tool_call_id.clone().unwrap_or_default(),
        name: request.name.clone(),
        payload: request.payload.clone(),
    }
}

/// How a run ends that is the result of a tool call.
pub(super) fn tool_result_outcome(result: &FinalToolResult) -> Outcome {
    match &result.outcome {
        ToolOutcome::Value(_) => Outcome::Answered(StopReason::FinalResponse),
        ToolOutcome::Failure(failure) => Outcome::Error(PlannerError {
            code: failure.error.code.clone(),
            message: failure.error.message.clone(),
            causes: failure.error.causes.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_journal::event::KeptPart;
    use taskrun_journal::message::Thinking;

    #[test]
    fn what_a_step_sent_under_another_host_is_part_of_what_it_sent() {
        let chunk = |text: &str| Event::AssistantChunk { text: text.to_owned() };
        let block = Thinking { text: "hm".to_owned(), signature: None };
        let message = Message::text(Role::Assistant, "whole");
        let whole = Event::AssistantMessage { message, usage: None, model: None };
        let mut tape = Tape::default();
        let before = [chunk("gone"), whole, chunk("a"), chunk("void")];
        let restarted = Event::StepRestarted { turn: 1, kept: KeptPart { events: 3, readings: 0 } };
        let after = [restarted, Event::ThinkingBlock { block: block.clone() }, chunk("b")];
        before.iter().chain(&after).for_each(|event| tape.push(event));
        let expected = vec![Part::Thinking(block), Part::Text("ab".to_owned())];
        assert_eq!(sent_in_parts(&tape), expected);
    }
}
