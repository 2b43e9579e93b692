//! One plan step: what goes in, what comes out, and what of it is recorded.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Driver, Halt, PLAN_INPUT_BYTES_MAX};
use crate::event::{DecisionKind, Event};
use crate::machine::decide::Outcome;
use crate::message::{Labels, LogLevel, Message, Part, Role, Thinking, ToolUse};
use crate::ports::call::{
    CallFailure, CallScope, CallScopeParts, Remaining, ScopeEnd, ScopeLimits, StopCause, StopSignal,
};
use crate::ports::planner::{
    Decision, FinalToolResult, PlanInput, PlanResult, PlannerError, Resume, Termination,
    ToolRequest,
};
use crate::ports::tool::ToolOutcome;
use crate::status::StopReason;

/// Most tool calls that a planner may decide on at once. A model asks for a handful; each one
/// gets a result of its own in the conversation, also where it is refused.
const CALLS_PER_TURN_MAX: usize = 256;
/// Most bytes of a tool's name or a call's id as a planner gives it.
const NAME_BYTES_MAX: usize = 256;
/// Code of a planner's error that says it only passes a cancellation on.
const CANCELED: &str = "canceled";

/// What a step came to.
pub(super) struct Step {
    /// Events that are still to be written.
    pub(super) pending: Vec<Event>,
    /// The plan, or how the run ends without one.
    pub(super) outcome: Result<PlanResult, Outcome>,
}

/// Text and reasoning that a step has sent in parts and no whole message has replaced.
#[derive(Default)]
pub(super) struct StepText {
    text: String,
    thinking: Vec<Thinking>,
}

impl StepText {
    pub(super) fn take(&mut self, events: &[Event]) {
        for event in events {
            if let Event::AssistantChunk { text } = event {
                self.text.push_str(text);
            } else if let Event::ThinkingBlock { block } = event {
                self.thinking.push(block.clone());
            } else if let Event::AssistantMessage { .. } = event {
                *self = Self::default();
            }
        }
    }

    fn into_parts(self) -> Vec<Part> {
        let mut parts: Vec<Part> = self.thinking.into_iter().map(Part::Thinking).collect();
        if !self.text.is_empty() {
            parts.push(Part::Text(self.text));
        }
        parts
    }
}

impl Driver {
    /// Asks the planner once. Nothing of the answer is written yet.
    pub(super) async fn step(&mut self, finalize: Option<Termination>) -> Result<Step, Halt> {
        let turn = self.journal.run().state.turns + 1;
        self.check_time();
        if let Some(failure) = self.stopped() {
            return Ok(Step { pending: Vec::new(), outcome: Err(Outcome::Failed(failure)) });
        }
        let Some((messages, tool_outputs)) = self.conversation.within(PLAN_INPUT_BYTES_MAX) else {
            let detail = format!(
                "the conversation has more than {PLAN_INPUT_BYTES_MAX} bytes, even without the \
                 results of tools"
            );
            return Ok(Step { pending: Vec::new(), outcome: Err(Outcome::Refused(detail)) });
        };
        let live = Arc::clone(&self.live);
        let planner = Arc::clone(&self.agent.planner);
        let (stop, entered) = live.enter(planner.hears_cancellation());
        let scope = Arc::new(self.step_scope(turn, stop));
        let resume = (turn > 1 || finalize.is_some()).then_some(Resume { tool_outputs, finalize });
        let input = PlanInput { messages, run: scope.context().clone(), resume };
        self.text = StepText::default();
        self.scopes = vec![Arc::clone(&scope)];
        let answer = self.attend(planner.plan(input, Arc::clone(&scope))).await;
        self.scopes.clear();
        drop(entered);
        Ok(self.conclude(turn, scope.finish(), answer?))
    }

    fn step_scope(&self, turn: u32, stop: StopSignal) -> CallScope {
        let (agent, run) = (&self.agent, self.journal.run());
        let used = run.state.progress.total_tokens;
        CallScope::new(CallScopeParts {
            context: self.context(turn),
            stop,
            deadline: agent.limits.step,
            clock: Arc::clone(&self.env.clock),
            random: Arc::clone(&self.env.random),
            models: Some(Arc::clone(&agent.models)),
            tools: Arc::clone(agent.tools.specs()),
            state: self.conversation.state().clone(),
            remaining: Remaining {
                turns: agent.budget.turns.map(|cap| cap.saturating_sub(turn)),
                tool_calls: self.tool_calls_left(),
                tokens: agent.budget.tokens.map(|cap| cap.saturating_sub(used)),
            },
            limits: ScopeLimits { events: agent.limits.events, bytes: agent.limits.log_bytes },
            wake: Arc::clone(&self.wake),
        })
    }

    fn conclude(
        &mut self,
        turn: u32,
        end: ScopeEnd,
        answer: Result<Result<PlanResult, PlannerError>, CallFailure>,
    ) -> Step {
        self.text.take(&end.events);
        let mut pending = end.events;
        pending.extend(dropped_note(end.dropped));
        let usage = end.usage;
        let outcome = match answer {
            Ok(Ok(mut plan)) => {
                match check(&mut plan, self.journal.run().id().as_str(), turn) {
                    Ok(()) => {
                        let sent = std::mem::take(&mut self.text).into_parts();
                        let parts = end.answer.map_or(sent, said_beside_calls);
                        let message = message(&plan.decision, parts);
                        pending.extend(plan.notes.drain(..).map(|note| Event::PlannerNote {
                            text: note.text,
                            labels: note.labels,
                        }));
                        pending.push(Event::PlanDecided {
                            turn,
                            decision: kind(&plan.decision),
                            state: end.state_changes,
                            expected_children: plan.expected_children,
                        });
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
            Ok(Err(error)) => match self.stopped() {
                // Whoever cancels may be told that something else went wrong; whoever set a limit
                // is told that it was met.
                Some(CallFailure::Stopped { cause: StopCause::Canceled })
                    if error.code.as_deref() != Some(CANCELED) =>
                {
                    Outcome::Error(error)
                }
                Some(failure) => Outcome::Failed(failure),
                None => Outcome::Error(error),
            },
            Err(failure) => Outcome::Failed(failure),
        };
        pending.extend(usage.map(|usage| Event::Usage { usage }));
        Step { pending, outcome: Err(outcome) }
    }

    /// A plan that came after somebody had asked to stop is kept in the journal and not followed.
    fn unless_stopped(&self, plan: PlanResult) -> Result<PlanResult, Outcome> {
        match self.stopped() {
            Some(failure) => Err(Outcome::Failed(failure)),
            None => Ok(plan),
        }
    }
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

/// Checks a plan against the contract and gives every call its id.
fn check(plan: &mut PlanResult, run: &str, turn: u32) -> Result<(), String> {
    match &mut plan.decision {
        Decision::ToolCalls(requests) => {
            if requests.is_empty() {
                return Err("the planner decided to call tools and named none".to_owned());
            }
            if requests.len() > CALLS_PER_TURN_MAX {
                let wanted = requests.len();
                return Err(format!(
                    "the planner decided on {wanted} tool calls at once; {CALLS_PER_TURN_MAX} is \
                     the most"
                ));
            }
            let mut seen = BTreeMap::new();
            for (index, request) in requests.iter_mut().enumerate() {
                let given = request.tool_call_id.as_ref().map_or(0, String::len);
                if request.name.len().max(given) > NAME_BYTES_MAX {
                    return Err(format!(
                        "the planner used a tool's name or call id of more than {NAME_BYTES_MAX} \
                         bytes"
                    ));
                }
                let id = request
                    .tool_call_id
                    .take()
                    .filter(|id| !id.is_empty())
                    .unwrap_or_else(|| call_id(run, turn, &request.name, index));
                if seen.insert(id.clone(), index).is_some() {
                    return Err(format!("the planner used the tool call id {id:?} twice"));
                }
                request.tool_call_id = Some(id);
            }
            Ok(())
        }
        Decision::Await(items) if items.is_empty() => {
            Err("the planner decided to wait and named nothing to wait for".to_owned())
        }
        Decision::FinalToolResult(result) => match &result.outcome {
            ToolOutcome::Value(value) => serde_json::from_str::<serde::de::IgnoredAny>(value)
                .map(|_| ())
                .map_err(|error| format!("the planner's final tool result is not JSON: {error}")),
            ToolOutcome::Failure(_) => Ok(()),
        },
        Decision::FinalResponse(_) | Decision::Await(_) => Ok(()),
    }
}

/// The id of a call whose planner gave none: the same for the same run, turn, attempt, tool and
/// position, so that a repeated step asks for the same calls.
fn call_id(run: &str, turn: u32, name: &str, index: usize) -> String {
    let attempt = 1;
    digest(&[run, &turn.to_string(), &attempt.to_string(), name, &index.to_string()])
}

/// A short name for these texts together.
pub(super) fn digest(texts: &[&str]) -> String {
    let mut hash = blake3::Hasher::new();
    for text in texts {
        hash.update(text.as_bytes());
        hash.update(&[0]);
    }
    format!("call-{}", &hash.finalize().to_hex()[..24])
}

fn kind(decision: &Decision) -> DecisionKind {
    match decision {
        Decision::ToolCalls(_) => DecisionKind::ToolCalls,
        Decision::FinalResponse(_) => DecisionKind::FinalResponse,
        Decision::FinalToolResult(_) => DecisionKind::FinalToolResult,
        Decision::Await(_) => DecisionKind::Await,
    }
}

/// What the conversation keeps of a decision. `before` is what the step sent in parts.
fn message(decision: &Decision, before: Vec<Part>) -> Option<Message> {
    match decision {
        Decision::ToolCalls(requests) => {
            let mut parts = before;
            parts.extend(requests.iter().map(|request| Part::ToolUse(tool_use(request))));
            Some(Message { role: Role::Assistant, parts })
        }
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
