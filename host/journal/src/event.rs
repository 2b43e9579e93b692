//! The journal of a run: what happened, append-only.
//!
//! Everything that is shown of a run (record, progress, transcript, log) is a fold of these.

mod journal_part;
mod names;
mod parts;
mod record;
mod size;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::autonomy::Mark;
use crate::checkpoint::Checkpoint;
use crate::ending::Ending;
use crate::fact::MemoryScope;
use crate::hold::Wait;
use crate::ids::{HostId, RunId};
use crate::message::{Labels, LogLevel, Message, Thinking, Usage};
use crate::metrics::Metrics;
use crate::outside::OutsideAnswer;
use crate::pause::PauseEnd;
use crate::plan::{FinalToolResult, TerminationReason};
use crate::question::{Answer, Item};
use crate::reminders::ReminderChange;
use crate::ruling::ToolRuling;
use crate::spec::RunSpec;
use crate::status::{BlockedOn, StopReason};
use crate::time::Timestamp;
use crate::tool::ToolOutput;

pub use self::journal_part::JournalPart;
pub use self::parts::{
    CallWait, ClockReading, DecisionKind, HostAnswer, MemoryAnswer, ModelAnswer, OverrideReason,
    Refusal, Reply, RunsReport, StepPrefix,
};
pub use self::record::EventRecord;
pub use self::view::{
    AccountEvent, CallEvent, DialogEvent, EventView, LifecycleEvent, StepEvent, TapedEvent,
};

/// One thing that happened to a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Event {
    /// The run was accepted. Always the first.
    Queued {
        /// The request, which the record of the run shares.
        spec: Arc<RunSpec>,
    },
    /// A host claimed the run and begins to execute it.
    Started {
        /// The host.
        host: HostId,
        /// Number of the claim, from 1.
        epoch: u64,
        /// Session of the run.
        child_session_id: String,
        /// Names this execution in logs of others.
        request_id: String,
        /// The batch run that works on it, if it is an entry of a heartbeat: it alone executes it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch: Option<RunId>,
    },
    /// A host took up a run that waited, or whose host died.
    Resumed {
        /// The host.
        host: HostId,
        /// Number of the change of hands, from 1.
        epoch: u64,
    },
    /// The host that held the run is gone, or gives it back. Whatever it still writes is refused.
    Lost {
        /// The host that held it.
        host: HostId,
        /// Number of the change of hands, from 1.
        epoch: u64,
        /// No host takes it up before.
        not_before: Timestamp,
        /// True if the host died; otherwise it gave the run back.
        crashed: bool,
        /// The time that the run has been running, as far as that is known: what a host that
        /// died did after its last record is not.
        ran_ms: u64,
    },
    /// Earlier runs of the session, as the run is told of them from the first plan step on.
    HistoryCarried {
        /// The runs, the earliest first.
        runs: Vec<RunId>,
        /// The task and the answer of each.
        messages: Vec<Message>,
    },
    /// The outcomes of other runs, of which the run is told before its next plan step.
    Reported {
        /// The runs, in the order in which they ended.
        runs: Vec<RunId>,
        /// The words in which it is told.
        text: String,
    },
    /// Part of the answer under construction.
    AssistantChunk {
        /// The part.
        text: String,
    },
    /// A whole message of the agent.
    AssistantMessage {
        /// The message; requests for tools are parts of it.
        message: Message,
        /// Tokens consumed for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        /// The provider's name of the model that wrote it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        /// True if its text is that of the parts since the last message, and shown with them.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        streamed: bool,
    },
    /// A fragment of a tool call's arguments under construction.
    ToolCallArgsDelta {
        /// The call.
        tool_call_id: String,
        /// Its tool.
        name: String,
        /// The fragment.
        delta: String,
    },
    /// A block of a model's reasoning.
    ThinkingBlock {
        /// The block.
        block: Thinking,
    },
    /// A remark of the planner.
    PlannerNote {
        /// The remark.
        text: String,
        /// Keys and values to find it by.
        #[serde(default, skip_serializing_if = "Labels::is_empty")]
        labels: Labels,
    },
    /// A prompt of the policy became a text, which follows from the policy and the data.
    PromptRendered {
        /// The prompt.
        id: String,
        /// BLAKE3 hash of the text, 64 hexadecimal digits.
        digest: String,
        /// Why the template was not the prompt's own.
        #[serde(default, rename = "override", skip_serializing_if = "Option::is_none")]
        chosen_by: Option<OverrideReason>,
    },
    /// Tokens consumed by a step that ended without a message.
    Usage {
        /// The tokens.
        usage: Usage,
    },
    /// A tool call passed every check and begins.
    ToolCallScheduled {
        /// Qualified name of the tool.
        name: String,
        /// Id of the call.
        tool_call_id: String,
        /// The arguments, as JSON.
        payload: String,
        /// True if the call may be repeated after a crash.
        idempotent: bool,
        /// True if the tool is one of the run's own, by which it only speaks of itself.
        #[serde(default, rename = "own", skip_serializing_if = "std::ops::Not::not")]
        is_own: bool,
    },
    /// The run said something of itself by a tool call, whose result is recorded with this.
    Marked {
        /// Id of the call.
        tool_call_id: String,
        /// The word.
        mark: Mark,
    },
    /// A tool call ended, was refused, or was answered from outside.
    ToolResult {
        /// The call and its outcome.
        output: Box<ToolOutput>,
        /// The time that it took.
        duration_ms: u64,
        /// Why the host did not have it executed, or not to its end, where that is so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<Refusal>,
    },
    /// A tool call that a dead host left without a result begins again, under the same id.
    ToolCallRepeated {
        /// Id of the call.
        tool_call_id: String,
        /// Number of this attempt; the first repetition is 2.
        attempt: u32,
    },
    /// A tool call waits for something; its result follows when that is there.
    ToolCallParked {
        /// Id of the call.
        tool_call_id: String,
        /// Its tool.
        name: String,
        /// Its arguments.
        payload: String,
        /// The end of the wait.
        waits: CallWait,
    },
    /// A tool call is another run's work: it was started, and its end is the call's result.
    ChildRunLinked {
        /// Id of the call.
        tool_call_id: String,
        /// The run.
        run_id: RunId,
        /// Its agent.
        agent_name: String,
    },
    /// More calls were found to belong under a tool call than were known of; for displays.
    ToolCallUpdated {
        /// Id of the call: one of this run's, or the one that this run is.
        tool_call_id: String,
        /// All that are known of.
        expected_children_total: u32,
    },
    /// A model, the controller or memory answered a plan step, which is told so if it runs again.
    HostAnswered {
        /// Number of the question in its step, from 0.
        call: u32,
        /// Digest of the question.
        request: String,
        /// The model that gave no whole answer, by its name in the policy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        /// The answer.
        answer: Box<HostAnswer>,
    },
    /// A plan step waits for a model, and has done so for a while; or it has, as the first part of
    /// the answer is there. A run that waits is not the cause of its host's death.
    ModelWait {
        /// Number of the question in its step, from 0; those to others count too.
        call: u32,
        /// True once the wait is over. The end of a wait for a whole answer is that answer.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        over: bool,
    },
    /// The context window of a model had no room for a question of a plan step. From the next step on
    /// its agent is shown less.
    ContextWindowMet {
        /// Number of the question in its step, from 0.
        call: u32,
        /// The model's name in the policy.
        model: String,
        /// Bytes of the messages of the question, or of what its provider says it has room for.
        bytes: u64,
    },
    /// A tool changed a fact. After a crash a change may be told twice; it was made once.
    MemoryAppended {
        /// Which memory.
        scope: MemoryScope,
        /// Key of the fact.
        key: String,
        /// Bytes of what is kept; `None` if the fact was forgotten.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    },
    /// A plan step or a tool call that ended counted and measured something.
    MetricsRecorded {
        /// All that it measured.
        metrics: Metrics,
    },
    /// Files, a server or the host's account answered a plan step that asked itself, and not through
    /// a tool. Should the step run again, it is given the same.
    OutsideAnswered {
        /// The number of the request among those of the step, from 0.
        number: u32,
        /// The request's name, made as that of a question.
        request: String,
        /// The answer. `None` if it is not kept, nor any that the step was given later, as they
        /// have more than [`OUTSIDE_BYTES_MAX`](crate::outside::OUTSIDE_BYTES_MAX) bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answer: Option<Box<OutsideAnswer>>,
    },
    /// Times that a plan step was told. Should the step run again, it is told the same.
    ClockRead {
        /// The times, in order.
        readings: Vec<ClockReading>,
    },
    /// The run goes on under other rules than it was accepted with, or than it had before.
    RulesChanged {
        /// The pins that its agent and those of the runs above it, the root's first, have in the
        /// policy as it is now; the name alone of one that is not known there. Where another
        /// policy bounds an agent, too, its pin there follows after a space.
        pins: Vec<String>,
    },
    /// The run goes on as another form of its agent: with the components, settings and rules that
    /// this has, and not with those that it was accepted with.
    Adopted {
        /// Its pin before.
        from: String,
        /// Its pin from here on.
        to: String,
        /// The person or program that asked, or `host` where the policy says so.
        by: String,
    },
    /// A plan step goes on beyond what is on record of it, after its host died or gave it up in the
    /// middle of an answer, or under other rules. The rest of the record is void. After a death the
    /// question that follows may have been put before.
    StepRestarted {
        /// Number of the turn, from 1.
        turn: u32,
        /// The part of the step before the question that was not answered.
        kept: StepPrefix,
    },
    /// A plan step did something else than when it ran before on the same input.
    ReplayDiverged {
        /// Number of the turn, from 1.
        turn: u32,
        /// The step as the journal has it.
        recorded: String,
        /// The step as it ran again.
        found: String,
    },
    /// A plan step failed in a way that may pass, and is tried again.
    StepFailed {
        /// Number of the turn, from 1.
        turn: u32,
        /// Number of the attempt at it, from 1.
        attempt: u32,
        /// The error.
        error: String,
        /// Pause before the next attempt.
        retry_after_ms: u64,
    },
    /// A model is not to be asked before a time, and a plan step cannot go on without its answer.
    /// The step is kept as far as it came, and runs again from then on.
    PushedBack {
        /// Number of the turn, from 1.
        turn: u32,
        /// The model, by its name in the policy.
        model: String,
        /// When it may be asked.
        until: Timestamp,
        /// Why it may not before, in words.
        reason: String,
        /// The provider's words about it, which no other run is told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<String>,
        /// Tokens of other answers that were given up with the step.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
    },
    /// A plan step failed in a way that may pass, too often; its turn counts as one that decided
    /// nothing, and the planner is asked to go on.
    TurnSkipped {
        /// Number of the turn, from 1.
        turn: u32,
        /// Attempts at the step.
        attempts: u32,
        /// The error of the last attempt.
        error: String,
        /// The time that the run has been running so far.
        ran_ms: u64,
    },
    /// A run that goes on by itself answered, and is given its next prompt.
    RoundEnded {
        /// Number of the round, from 1.
        round: u32,
        /// The prompt of the next round.
        prompt: String,
        /// True if a tool was called in the round that is none of the run's own.
        worked: bool,
        /// True if the prompt asks again for the result that it has to give.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        wants_result: bool,
        /// The things that the run leaves behind with it.
        #[serde(default, skip_serializing_if = "Checkpoint::is_none")]
        checkpoint: Box<Checkpoint>,
    },
    /// Something was asked that only somebody outside can give.
    Asked {
        /// The question.
        item: Box<Item>,
    },
    /// Somebody gave it.
    Answered {
        /// Id of the item.
        item: String,
        /// The answer.
        answer: Answer,
        /// The person or program that gave it.
        by: String,
        /// True if nobody gave one in time, and it is the one that was to be taken then.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_default: bool,
    },
    /// A rule of the policy decided something against the guest, or its engines decided which tools
    /// a turn may use.
    PolicyDecision {
        /// Capability or tool; `tools` for what engines decide.
        capability: String,
        /// The subject of the decision: a path, a URL, a model's name, a turn.
        subject: String,
        /// The rule that decided, with its place in the policy; for engines, those that took some.
        rule: String,
        /// The refusal that a guest was told: a step that runs again is told the same.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        told: Option<String>,
        /// The decision of the engines.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decided: Option<Box<ToolRuling>>,
    },
    /// It was decided whether a tool call may begin that needs the consent of a person.
    ToolAuthorization {
        /// Id of the call.
        tool_call_id: String,
        /// Its tool.
        name: String,
        /// True if it may begin; otherwise its result says so, and the run goes on.
        approved: bool,
        /// The person that answered, or `host` where nobody did in time.
        decided_by: String,
        /// True if that holds for further calls of the same function in the run too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        for_run: bool,
        /// The number of the lasting consent by which nobody was asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        consent: Option<u64>,
    },
    /// A line of the log.
    Log {
        /// Its importance.
        level: LogLevel,
        /// Component that wrote it, or `host`.
        source: String,
        /// The line.
        message: String,
        /// Keys and values to find it by.
        #[serde(default, skip_serializing_if = "Labels::is_empty")]
        fields: Labels,
    },
    /// A plan step ended with a decision.
    PlanDecided {
        /// Number of the turn, from 1.
        turn: u32,
        /// The decision, in a word.
        decision: DecisionKind,
        /// Changes of the run's state, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        state: Vec<(String, Option<String>)>,
        /// Notes for later turns that were added and removed.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reminders: Vec<ReminderChange>,
        /// Child results to expect, where the planner said so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expected_children: Option<u32>,
        /// In displays, the call above one that was decided on, by the id of the latter.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        parents: BTreeMap<String, String>,
        /// The time that the run has been running so far.
        #[serde(default)]
        ran_ms: u64,
    },
    /// The run gives its result as the tool call that it is.
    FinalToolResult {
        /// The result or the failure.
        result: Box<FinalToolResult>,
    },
    /// A limit was met; the planner is asked for its last answer.
    FinalizeRequested {
        /// Which limit.
        reason: TerminationReason,
        /// The limit in words.
        message: String,
    },
    /// The run gives up its slot and waits.
    Blocked {
        /// The thing that it waits for, in a word.
        on: BlockedOn,
        /// The end of the wait.
        wait: Wait,
        /// The time that the run has been running so far.
        ran_ms: u64,
    },
    /// Somebody asked to pause the run: nothing more begins. Each is followed by one
    /// [`Event::PauseEnded`], at the latest just before the end of the run.
    PauseRequested {
        /// The person or program that asked.
        by: String,
        /// In words, from whoever asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// When the pause is over in any case.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// The pause is over.
    PauseEnded {
        /// Why.
        why: PauseEnd,
        /// The person or program that resumed the run, where one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// In words, from whoever resumed it; no part of the conversation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        /// Messages of the user that the next turn is shown.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        messages: Vec<String>,
    },
    /// Somebody told the run something. It waits in the run's inbox for the next turn.
    Injected {
        /// The message.
        text: String,
        /// The person or program that wrote it.
        by: String,
    },
    /// The messages in the inbox became part of the conversation, just before a plan step.
    InboxShown {
        /// The number of messages: all that waited.
        messages: u32,
    },
    /// Somebody asked to cancel.
    CancelRequested {
        /// The origin: `canceled_by_owner`, `canceled_by_parent` or `host_shutdown`.
        by: StopReason,
        /// The run that asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<RunId>,
        /// In words, from whoever asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The guest is gone and the outcome is fixed.
    Finalizing {
        /// The outcome.
        ending: Ending,
    },
    /// The agent's finalizer begins; it does so once.
    FinalizerStarted,
    /// The run ended. Always the last.
    Finished {
        /// Metadata that a finalizer added.
        #[serde(default, skip_serializing_if = "Labels::is_empty")]
        metadata: Labels,
        /// Why the finalizer added none, where it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finalizer_error: Option<String>,
    },
}
