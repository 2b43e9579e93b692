//! Events in groups, so that a fold names the events of the groups that it reads and passes over
//! the others as a group.
//!
//! [`Event::view`] puts each event into one group. A new event does not build before it is in one,
//! and then not before each fold that reads that group has decided about it.

use super::{CallWait, ClockReading, DecisionKind, Event, HostAnswer, Refusal, StepPrefix};
use std::collections::BTreeMap;

use crate::autonomy::Mark;
use crate::checkpoint::Checkpoint;
use crate::ending::Ending;
use crate::hold::Wait;
use crate::ids::{HostId, RunId};
use crate::message::{Labels, LogLevel, Message, Thinking, Usage};
use crate::metrics::Metrics;
use crate::outside::OutsideAnswer;
use crate::pause::PauseEnd;
use crate::plan::TerminationReason;
use crate::question::{Answer, Item};
use crate::reminders::ReminderChange;
use crate::ruling::ToolRuling;
use crate::spec::RunSpec;
use crate::status::{BlockedOn, StopReason};
use crate::time::Timestamp;
use crate::tool::ToolOutput;

/// An event in its group. The fields are those of [`Event`], as far as a fold reads them.
#[derive(Clone, Copy, Debug)]
pub enum EventView<'a> {
    /// The run changes its status, its host or its pin, or is asked to.
    Lifecycle(LifecycleEvent<'a>),
    /// A message, a question or an answer.
    Dialog(DialogEvent<'a>),
    /// A plan step ends.
    Step(StepEvent<'a>),
    /// A tool call.
    Call(CallEvent<'a>),
    /// Part of a plan step under way, which it finds again should it run again; or the like, sent
    /// by a tool call.
    Taped(TapedEvent<'a>),
    /// The host's account of something that no status, message or call depends on.
    Account(AccountEvent<'a>),
}

/// The run changes its status, its host or its pin, or is asked to.
#[expect(missing_docs, reason = "each is the event of the same name, with its fields")]
#[derive(Clone, Copy, Debug)]
pub enum LifecycleEvent<'a> {
    Queued {
        spec: &'a RunSpec,
    },
    Started {
        host: &'a HostId,
        epoch: u64,
        child_session_id: &'a str,
        request_id: &'a str,
        batch: Option<&'a RunId>,
    },
    Resumed {
        host: &'a HostId,
        epoch: u64,
    },
    Lost {
        epoch: u64,
        not_before: Timestamp,
        crashed: bool,
        ran_ms: u64,
    },
    Blocked {
        on: BlockedOn,
        wait: &'a Wait,
        ran_ms: u64,
    },
    PauseRequested {
        by: &'a str,
        reason: Option<&'a str>,
        until: Option<Timestamp>,
    },
    PauseEnded {
        why: PauseEnd,
        by: Option<&'a str>,
        messages: &'a [String],
    },
    Adopted {
        from: &'a str,
        to: &'a str,
    },
    CancelRequested {
        by: StopReason,
        from: Option<&'a RunId>,
        reason: Option<&'a str>,
    },
    Finalizing {
        ending: &'a Ending,
    },
    FinalizerStarted,
    Finished {
        metadata: &'a Labels,
    },
}

/// The agent and the people around it say something.
#[expect(missing_docs, reason = "each is the event of the same name, with its fields")]
#[derive(Clone, Copy, Debug)]
pub enum DialogEvent<'a> {
    HistoryCarried { messages: &'a [Message] },
    Reported { runs: &'a [RunId], text: &'a str },
    AssistantMessage { message: &'a Message, usage: Option<Usage> },
    Asked { item: &'a Item },
    Answered { item: &'a str, answer: &'a Answer, by: &'a str, by_default: bool },
    Injected { text: &'a str, by: &'a str },
    InboxShown { messages: u32 },
}

/// A plan step ended, or was given up.
#[expect(missing_docs, reason = "each is the event of the same name, with its fields")]
#[derive(Clone, Copy, Debug)]
pub enum StepEvent<'a> {
    Usage {
        usage: Usage,
    },
    PlanDecided {
        turn: u32,
        decision: DecisionKind,
        state: &'a [(String, Option<String>)],
        reminders: &'a [ReminderChange],
        expected_children: Option<u32>,
        parents: &'a BTreeMap<String, String>,
        ran_ms: u64,
    },
    StepFailed {
        attempt: u32,
        error: &'a str,
        retry_after_ms: u64,
    },
    PushedBack {
        model: &'a str,
        until: Timestamp,
        reason: &'a str,
        said: Option<&'a str>,
        usage: Option<Usage>,
    },
    TurnSkipped {
        turn: u32,
        error: &'a str,
        ran_ms: u64,
    },
    RoundEnded {
        round: u32,
        prompt: &'a str,
        worked: bool,
        wants_result: bool,
        checkpoint: &'a Checkpoint,
    },
    ReplayDiverged {
        turn: u32,
    },
    FinalizeRequested {
        reason: TerminationReason,
        message: &'a str,
    },
}

/// A tool call begins, waits or ends.
#[expect(missing_docs, reason = "each is the event of the same name, with its fields")]
#[derive(Clone, Copy, Debug)]
pub enum CallEvent<'a> {
    ToolCallScheduled {
        tool_call_id: &'a str,
        name: &'a str,
        idempotent: bool,
        is_own: bool,
    },
    Marked {
        mark: &'a Mark,
    },
    ToolResult {
        output: &'a ToolOutput,
        duration_ms: u64,
        refused: Option<Refusal>,
    },
    ToolCallRepeated {
        tool_call_id: &'a str,
        attempt: u32,
    },
    ToolCallParked {
        tool_call_id: &'a str,
        name: &'a str,
        payload: &'a str,
        waits: &'a CallWait,
    },
    ChildRunLinked {
        run_id: &'a RunId,
        agent_name: &'a str,
    },
    ToolCallUpdated {
        expected_children_total: u32,
    },
    ToolAuthorization {
        tool_call_id: &'a str,
        name: &'a str,
        approved: bool,
        decided_by: &'a str,
        for_run: bool,
        consent: Option<u64>,
    },
}

/// A component sent something, or a plan step was answered.
#[expect(missing_docs, reason = "each is the event of the same name, with its fields")]
#[derive(Clone, Copy, Debug)]
pub enum TapedEvent<'a> {
    AssistantChunk {
        text: &'a str,
    },
    ToolCallArgsDelta {
        tool_call_id: &'a str,
        name: &'a str,
        delta: &'a str,
    },
    ThinkingBlock {
        block: &'a Thinking,
    },
    PlannerNote {
        text: &'a str,
        labels: &'a Labels,
    },
    PromptRendered {
        id: &'a str,
        digest: &'a str,
    },
    PolicyDecision {
        capability: &'a str,
        subject: &'a str,
        rule: &'a str,
        told: Option<&'a str>,
        decided: Option<&'a ToolRuling>,
    },
    Log {
        level: LogLevel,
        source: &'a str,
        message: &'a str,
        fields: &'a Labels,
    },
    HostAnswered {
        call: u32,
        request: &'a str,
        answer: &'a HostAnswer,
    },
    OutsideAnswered {
        number: u32,
        request: &'a str,
        answer: Option<&'a OutsideAnswer>,
    },
    ClockRead {
        readings: &'a [ClockReading],
    },
    StepRestarted {
        kept: StepPrefix,
    },
}

/// The host keeps account.
#[expect(missing_docs, reason = "each is the event of the same name, with its fields")]
#[derive(Clone, Copy, Debug)]
pub enum AccountEvent<'a> {
    FinalToolResult,
    MemoryAppended,
    MetricsRecorded { metrics: &'a Metrics },
    ModelWait { over: bool },
    ContextWindowMet { model: &'a str, bytes: u64 },
    RulesChanged { pins: &'a [String] },
}

impl Event {
    /// The event in its group.
    #[must_use]
    pub fn view(&self) -> EventView<'_> {
        use {AccountEvent as A, CallEvent as C, DialogEvent as D, EventView as V};
        use {LifecycleEvent as L, StepEvent as S, TapedEvent as T};
        match self {
            Self::Queued { spec } => V::Lifecycle(L::Queued { spec }),
            Self::Started { host, epoch, child_session_id, request_id, batch } => {
                let (epoch, batch) = (*epoch, batch.as_ref());
                V::Lifecycle(L::Started { host, epoch, child_session_id, request_id, batch })
            }
            Self::Resumed { host, epoch } => V::Lifecycle(L::Resumed { host, epoch: *epoch }),
            Self::Lost { host: _, epoch, not_before, crashed, ran_ms } => V::Lifecycle(L::Lost {
                epoch: *epoch,
                not_before: *not_before,
                crashed: *crashed,
                ran_ms: *ran_ms,
            }),
            Self::Blocked { on, wait, ran_ms } => {
                V::Lifecycle(L::Blocked { on: *on, wait, ran_ms: *ran_ms })
            }
            Self::PauseRequested { by, reason, until } => {
                V::Lifecycle(L::PauseRequested { by, reason: reason.as_deref(), until: *until })
            }
            Self::PauseEnded { why, by, note: _, messages } => {
                V::Lifecycle(L::PauseEnded { why: *why, by: by.as_deref(), messages })
            }
            Self::Adopted { from, to, by: _ } => V::Lifecycle(L::Adopted { from, to }),
            Self::CancelRequested { by, from, reason } => {
                let (from, reason) = (from.as_ref(), reason.as_deref());
                V::Lifecycle(L::CancelRequested { by: *by, from, reason })
            }
            Self::Finalizing { ending } => V::Lifecycle(L::Finalizing { ending }),
            Self::FinalizerStarted => V::Lifecycle(L::FinalizerStarted),
            Self::Finished { metadata, finalizer_error: _ } => {
                V::Lifecycle(L::Finished { metadata })
            }
            Self::Reported { runs, text } => V::Dialog(D::Reported { runs, text }),
            Self::HistoryCarried { runs: _, messages } => V::Dialog(D::HistoryCarried { messages }),
            Self::AssistantMessage { message, usage, model: _, streamed: _ } => {
                V::Dialog(D::AssistantMessage { message, usage: *usage })
            }
            Self::Asked { item } => V::Dialog(D::Asked { item }),
            Self::Answered { item, answer, by, by_default } => {
                V::Dialog(D::Answered { item, answer, by, by_default: *by_default })
            }
            Self::Injected { text, by } => V::Dialog(D::Injected { text, by }),
            Self::InboxShown { messages } => V::Dialog(D::InboxShown { messages: *messages }),
            Self::Usage { usage } => V::Step(S::Usage { usage: *usage }),
            Self::PlanDecided {
                turn,
                decision,
                state,
                reminders,
                expected_children,
                parents,
                ran_ms,
            } => V::Step(S::PlanDecided {
                turn: *turn,
                decision: *decision,
                state,
                reminders,
                expected_children: *expected_children,
                parents,
                ran_ms: *ran_ms,
            }),
            Self::StepFailed { turn: _, attempt, error, retry_after_ms } => {
                let retry_after_ms = *retry_after_ms;
                V::Step(S::StepFailed { attempt: *attempt, error, retry_after_ms })
            }
            Self::PushedBack { turn: _, model, until, reason, said, usage } => {
                let (until, said, usage) = (*until, said.as_deref(), *usage);
                V::Step(S::PushedBack { model, until, reason, said, usage })
            }
            Self::TurnSkipped { turn, attempts: _, error, ran_ms } => {
                V::Step(S::TurnSkipped { turn: *turn, error, ran_ms: *ran_ms })
            }
            Self::RoundEnded { round, prompt, worked, wants_result, checkpoint } => {
                let (round, worked, wants_result) = (*round, *worked, *wants_result);
                V::Step(S::RoundEnded { round, prompt, worked, wants_result, checkpoint })
            }
            Self::ReplayDiverged { turn, .. } => V::Step(S::ReplayDiverged { turn: *turn }),
            Self::FinalizeRequested { reason, message } => {
                V::Step(S::FinalizeRequested { reason: *reason, message })
            }
            Self::ToolCallScheduled { name, tool_call_id, payload: _, idempotent, is_own } => {
                let (idempotent, is_own) = (*idempotent, *is_own);
                V::Call(C::ToolCallScheduled { tool_call_id, name, idempotent, is_own })
            }
            Self::Marked { tool_call_id: _, mark } => V::Call(C::Marked { mark }),
            Self::ToolResult { output, duration_ms, refused } => {
                let (duration_ms, refused) = (*duration_ms, *refused);
                V::Call(C::ToolResult { output, duration_ms, refused })
            }
            Self::ToolCallRepeated { tool_call_id, attempt } => {
                V::Call(C::ToolCallRepeated { tool_call_id, attempt: *attempt })
            }
            Self::ToolCallParked { tool_call_id, name, payload, waits } => {
                V::Call(C::ToolCallParked { tool_call_id, name, payload, waits })
            }
            Self::ChildRunLinked { tool_call_id: _, run_id, agent_name } => {
                V::Call(C::ChildRunLinked { run_id, agent_name })
            }
            Self::ToolCallUpdated { tool_call_id: _, expected_children_total: total } => {
                V::Call(C::ToolCallUpdated { expected_children_total: *total })
            }
            Self::ToolAuthorization {
                tool_call_id,
                name,
                approved,
                decided_by,
                for_run,
                consent,
            } => V::Call(C::ToolAuthorization {
                tool_call_id,
                name,
                approved: *approved,
                decided_by,
                for_run: *for_run,
                consent: *consent,
            }),
            Self::AssistantChunk { text } => V::Taped(T::AssistantChunk { text }),
            Self::ToolCallArgsDelta { tool_call_id, name, delta } => {
                V::Taped(T::ToolCallArgsDelta { tool_call_id, name, delta })
            }
            Self::ThinkingBlock { block } => V::Taped(T::ThinkingBlock { block }),
            Self::PlannerNote { text, labels } => V::Taped(T::PlannerNote { text, labels }),
            Self::PromptRendered { id, digest, chosen_by: _ } => {
                V::Taped(T::PromptRendered { id, digest })
            }
            Self::PolicyDecision { capability, subject, rule, told, decided } => {
                let (told, decided) = (told.as_deref(), decided.as_deref());
                V::Taped(T::PolicyDecision { capability, subject, rule, told, decided })
            }
            Self::Log { level, source, message, fields } => {
                V::Taped(T::Log { level: *level, source, message, fields })
            }
            Self::HostAnswered { call, request, model: _, answer } => {
                V::Taped(T::HostAnswered { call: *call, request, answer })
            }
            Self::OutsideAnswered { number, request, answer } => {
                let (number, answer) = (*number, answer.as_deref());
                V::Taped(T::OutsideAnswered { number, request, answer })
            }
            Self::ClockRead { readings } => V::Taped(T::ClockRead { readings }),
            Self::StepRestarted { turn: _, kept } => V::Taped(T::StepRestarted { kept: *kept }),
            Self::FinalToolResult { result: _ } => V::Account(A::FinalToolResult),
            Self::MemoryAppended { scope: _, key: _, bytes: _ } => V::Account(A::MemoryAppended),
            Self::MetricsRecorded { metrics } => V::Account(A::MetricsRecorded { metrics }),
            Self::ModelWait { call: _, over } => V::Account(A::ModelWait { over: *over }),
            Self::ContextWindowMet { call: _, model, bytes } => {
                V::Account(A::ContextWindowMet { model, bytes: *bytes })
            }
            Self::RulesChanged { pins } => V::Account(A::RulesChanged { pins }),
        }
    }
}
