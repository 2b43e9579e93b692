//! The scope that a guest acts in during one call, and the ports through which it reaches models,
//! runs and memory.
//!
//! The engine knows nothing of runs. It is handed a [`CallScope`], and every host function that
//! is more than arithmetic goes through it: so policy, budget, journal and cancellation sit on
//! one path. All questions, to models, the controller and memory, take the way of
//! [`CallScope::ask`] and are on one [`Tape`]; a question is a type of its own and has its type of
//! answer.
//!
//! This room knows neither the controller nor the driver, which make scopes and take what is in
//! them, and no component, which is called in one: those stand behind [`crate::ports`].

mod ask;
mod budget;
mod conversation;
mod denial;
mod digest;
mod fact_questions;
mod formed;
mod log_line;
mod long_calls;
mod media;
pub mod memory;
mod memory_changes;
pub mod model;
mod model_questions;
mod model_time;
mod open_question;
mod outside;
mod parts;
mod push_back;
mod question_digests;
mod record;
mod replayed;
mod result_digests;
mod results;
mod rules;
mod run_questions;
pub mod runs;
mod sent;
mod services;
mod shortage;
mod state;
mod stated_room;
mod stop;
mod stream;
mod tape;
#[cfg(test)]
mod tests;
mod times;
mod unfinished;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskrun_journal::event::Event;
use taskrun_journal::message::{Labels, Message, Usage};
use taskrun_journal::metrics::{Measure, Metrics};
use taskrun_journal::reminders::ReminderChange;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{Capability, TOKENS_MAX};
use tokio::sync::oneshot;

pub use self::ask::{Misfit, Origin, Question, StopNotice};
pub use self::budget::BudgetReading;
pub(crate) use self::budget::BudgetSource;
pub use self::conversation::StepConversation;
pub use self::digest::DigestsSince;
pub use self::fact_questions::{FactByKey, FactSearch};
pub use self::log_line::{LOG_LINE_BYTES_MAX, log_line};
pub use self::long_calls::LongCalls;
pub use self::model::{ModelSettings, Models};
pub use self::outside::{OutsideReply, OutsideRequest};
pub use self::parts::{CallScopeParts, JournalRoom, Remaining, RunContext, ScopeLimits};
pub use self::push_back::PushBackRoom;
pub(crate) use self::push_back::{HeldModels, PushBack};
pub use self::question_digests::QuestionDigests;
pub(crate) use self::record::{DurabilityWaiters, json_of};
pub use self::replayed::NotedQuestion;
pub(crate) use self::replayed::{QuestionNumber, ReplayEnd};
pub(crate) use self::result_digests::ResultDigests;
pub use self::result_digests::StepResults;
pub use self::results::{RESULT_PART_BYTES_MAX, RESULTS_READ_MAX};
pub use self::rules::CurrentRules;
pub use self::run_questions::RunsQuestion;
pub use self::sent::SentText;
pub use self::services::Services;
pub use self::shortage::{Shortage, Shortages};
pub use self::stop::{Interrupt, StopSignal};
pub use self::stream::AnswerStream;
pub use self::tape::Tape;
pub(crate) use self::tape::{END, HOST};
pub use self::times::RANDOM_BYTES_MAX;

use self::denial::Refusals;
use self::model_time::ModelTime;
use self::outside::Outside;
use self::parts::AnswerBound;
use self::replayed::Replayed;
use self::rules::KnownRules;
use self::state::{Notes, RunState};
use self::times::Times;
use self::unfinished::UnfinishedUsage;

/// The things that one call may reach. One for each call.
pub struct CallScope {
    parts: CallScopeParts,
    started: Duration,
    open: Mutex<Open>,
    dropped: AtomicU32,
    unfinished: UnfinishedUsage,
    model_time: ModelTime,
}

/// The part of a scope that changes while the call is under way.
#[derive(Default)]
struct Open {
    events: Vec<Event>,
    recorded: u32,
    bytes: u64,
    refusals: Refusals,
    usage: Option<Usage>,
    model: Option<String>,
    answer: Option<Message>,
    sent: SentText,
    state: RunState,
    notes: Notes,
    rules: KnownRules,
    tape: Option<Tape>,
    outside: Outside,
    divergence: Option<(String, String)>,
    replayed: Replayed,
    pushed_back: Option<PushBack>,
    /// A model is not to be asked for longer than the run may wait for one.
    out_of_patience: bool,
    /// A question to a model was refused, as nothing of the budget is left for it.
    out_of_budget: bool,
    /// The bound of the answer to the last question to a model, and the tokens that were written
    /// before it.
    bound: Option<(AnswerBound, u64)>,
    shortages: Shortages,
    /// The first capability that was asked for and that only calls of runs have.
    absent: Option<Capability>,
    /// Questions asked so far.
    questions: u32,
    /// The number of equal requests for a run, by their digest.
    spawns: BTreeMap<String, u32>,
    /// The runs that were started, each once.
    started: BTreeSet<String>,
    /// Bytes of the controller's answers, and requests that write to other runs.
    controller_bytes: usize,
    run_changes: u32,
    /// Bytes of facts that were given, changes of facts, and how often each was made.
    memory_bytes: usize,
    memory_changes: u32,
    equal_changes: BTreeMap<String, u32>,
    /// The result that was read last, by its name, and how many were looked for.
    result: Option<(String, Arc<[u8]>)>,
    results: u32,
    metrics: Metrics,
    /// Bytes of answers that were recorded.
    journal_bytes: u64,
    times: Times,
    /// Events that were emitted in all.
    emitted: u32,
    waiting: Vec<oneshot::Sender<()>>,
}

impl fmt::Debug for CallScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallScope").field("run", &self.parts.context.run_id).finish_non_exhaustive()
    }
}

impl CallScope {
    /// Opens a scope; its deadline counts from now.
    #[must_use]
    pub fn new(mut parts: CallScopeParts) -> Self {
        let started = parts.clock.monotonic();
        let open = Open {
            state: RunState::new(std::mem::take(&mut parts.state)),
            notes: Notes::new(std::mem::take(&mut parts.services.reminders)),
            tape: parts.tape.take(),
            rules: KnownRules { pins: std::mem::take(&mut parts.pins), ..KnownRules::default() },
            ..Open::default()
        };
        let open = Mutex::new(open);
        let unfinished = UnfinishedUsage::default();
        let (dropped, model_time) = (AtomicU32::new(0), ModelTime::default());
        Self { parts, started, open, dropped, unfinished, model_time }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run.
    #[must_use]
    pub fn context(&self) -> &RunContext {
        &self.parts.context
    }

    /// Stops the call.
    #[must_use]
    pub fn stop(&self) -> &StopSignal {
        &self.parts.stop
    }

    /// The time that the call may take in all, beside its waits for models.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.parts.deadline
    }

    /// The time that the call may still take.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        let spent = self.parts.clock.monotonic().saturating_sub(self.started);
        self.parts.deadline.saturating_sub(spent.saturating_sub(self.model_time()))
    }

    /// The model that is asked where the guest names none.
    #[must_use]
    pub fn default_model(&self) -> Option<&str> {
        self.parts.models.as_ref()?.default.as_deref()
    }

    /// Tools the planner may call.
    #[must_use]
    pub fn tools(&self) -> &[ToolSpec] {
        &self.parts.tools
    }

    /// Takes what the guest counts or measures into account, up to the bounds of [`Metrics`].
    pub fn record_metric(
        &self,
        source: &str,
        name: &str,
        labels: Labels,
        measure: Option<Measure>,
    ) {
        self.open().metrics.record(source, name, labels, measure);
    }

    /// Adds tokens that the guest says it consumed elsewhere; all that one call says of itself
    /// counts for at most [`TOKENS_MAX`], so that sums stay exact.
    pub fn add_usage(&self, usage: Usage) {
        let mut open = self.open();
        let said = open.usage.unwrap_or_default();
        let room = |said: u64| TOKENS_MAX.saturating_sub(said);
        let total_tokens = usage.total_tokens.min(room(said.reported_tokens));
        let prompt_tokens = usage.prompt_tokens.min(room(said.reported_prompt_tokens));
        let completion_tokens = usage.completion_tokens.min(room(said.reported_completion_tokens));
        let usage = Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens,
            cached_tokens: usage.cached_tokens.min(room(said.reported_tokens)),
            cache_write_tokens: usage.cache_write_tokens.min(room(said.reported_tokens)),
            reasoning_tokens: usage.reasoning_tokens.min(room(said.reported_tokens)),
            reported_tokens: total_tokens,
            reported_prompt_tokens: prompt_tokens,
            reported_completion_tokens: completion_tokens,
            ..usage
        };
        open.usage = Some(said.plus(usage));
    }

    /// Notes that the call asked for something that only calls of runs have.
    fn note_absent(&self, capability: Capability) {
        self.open().absent.get_or_insert(capability);
    }

    /// Adds tokens that the host knows of.
    fn spend(&self, usage: Usage) {
        let mut open = self.open();
        open.usage = Some(open.usage.unwrap_or_default().plus(usage));
    }

    /// Ends the scope and gives what is left in it for the journal.
    #[must_use]
    pub fn finish(&self) -> ScopeEnd {
        let unfinished = self.unfinished.take();
        if unfinished != Usage::default() {
            self.spend(unfinished);
        }
        let mut open = self.open();
        let mut left = open.tape.as_ref().and_then(Tape::left);
        if open.has_other_rules() {
            left = None;
            let has_said = open.tape.as_ref().is_some_and(|tape| tape.emitted().next().is_some());
            // A step that is asked to stop does less than before, whatever its rules.
            if has_said && !self.parts.stop.is_asked() {
                open.give_up_tape(self.parts.context.turn);
            }
        }
        ScopeEnd {
            // A step that is executed again over its record is told the times after its last word,
            // too.
            events: open.take_events(),
            dropped: self.dropped.swap(0, Ordering::Relaxed),
            dropped_refusals: open.refusals.take_dropped(),
            usage: open.usage.take(),
            metrics: std::mem::take(&mut open.metrics),
            model: open.model.take(),
            answer: open.answer.take(),
            sent: std::mem::take(&mut open.sent),
            children: u32::try_from(open.started.len()).unwrap_or(u32::MAX),
            state_changes: open.state.take_changes(),
            reminder_changes: open.notes.take_changes(),
            out_of_patience: open.out_of_patience,
            out_of_budget: open.out_of_budget,
            shortages: open.shortages,
            absent: open.absent,
            divergence: open
                .divergence
                .take()
                .or_else(|| left.map(|left| (left, "the end of the step".to_owned()))),
        }
    }
}

/// The things that a call left behind.
#[derive(Debug, Default)]
pub struct ScopeEnd {
    /// Events not taken yet.
    pub events: Vec<Event>,
    /// Events that met the bound and were dropped.
    pub dropped: u32,
    /// Refusals that met theirs, by their capability.
    pub dropped_refusals: BTreeMap<String, u32>,
    /// Tokens consumed, if any were reported.
    pub usage: Option<Usage>,
    /// The values that were counted and measured.
    pub metrics: Metrics,
    /// Model that answered last, as its provider calls it.
    pub model: Option<String>,
    /// The last whole answer of a model, as the host saw it.
    pub answer: Option<Message>,
    /// The text that the call sent in parts after its last whole message.
    pub sent: SentText,
    /// The number of runs that the call started, each once; also those that it found started when
    /// it was made again.
    pub children: u32,
    /// Keys that were set, or removed, with their last value, sorted.
    pub state_changes: Vec<(String, Option<String>)>,
    /// Notes that were added or removed, each with its last change, sorted by id.
    pub reminder_changes: Vec<ReminderChange>,
    /// A model is not to be asked for longer than the run may wait for one.
    pub out_of_patience: bool,
    /// A question to a model was refused, as nothing of the budget is left for it.
    pub out_of_budget: bool,
    /// The limits of which too little was left for questions to models.
    pub shortages: Shortages,
    /// The first capability that was asked for and that only calls of runs have, of a call of none.
    pub absent: Option<Capability>,
    /// The thing that is on the tape, and the one that the call did instead.
    pub divergence: Option<(String, String)>,
}
