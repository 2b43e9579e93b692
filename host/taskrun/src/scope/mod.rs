//! The scope that a guest acts in during one call, and the ports through which it reaches models,
//! runs and memory.
//!
//! The engine knows nothing of runs. It is handed a [`CallScope`], and every host function that
//! is more than arithmetic goes through it: so policy, budget, journal and cancellation sit on
//! one path.
//!
//! This room knows neither the controller nor the driver, which make scopes and take what is in
//! them, and no component, which is called in one: those stand behind [`crate::ports`].

mod digest;
pub mod memory;
mod memory_calls;
pub mod model;
mod model_calls;
mod results;
pub mod runs;
mod runs_calls;
mod services;
mod stop;
mod tape;
#[cfg(test)]
mod tests;
mod unfinished;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use taskrun_journal::completion::ModelError;
use taskrun_journal::event::{ClockReading, Event, StepPrefix};
use taskrun_journal::message::{Labels, LogLevel, Message, Usage};
use taskrun_journal::metrics::{Measure, Metrics};
use taskrun_journal::money::Price;
use taskrun_journal::reminders::{ReminderChange, Reminders};
use taskrun_journal::stop::StopCause;
use taskrun_journal::text::cut;
use taskrun_journal::time::{Clock, Random, Timestamp};
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{CallRules, Grants, TOKENS_MAX, Use};
use tokio::sync::{Notify, oneshot};

pub use model_calls::Answering;
pub use results::{RESULT_PART_BYTES_MAX, RESULTS_READ_MAX};
pub use services::Services;
pub use stop::{Interrupt, StopSignal};
pub use tape::Tape;

use self::model::Model;
use self::runs::RunsAccess;
use self::tape::Played;
use self::unfinished::Unfinished;

/// Most bytes of one log line; longer ones are cut. A line is for reading.
pub const LOG_LINE_BYTES_MAX: usize = 8 << 10;
/// Most keys of a run's state. State is for a handful of small values; large ones are artifacts.
pub(crate) const STATE_KEYS_MAX: usize = 1_000;
/// Most bytes of a state key.
pub(crate) const STATE_KEY_BYTES_MAX: usize = 256;
/// Most bytes of all state values of a run together.
pub(crate) const STATE_BYTES_MAX: usize = 1 << 20;
/// Most random bytes a guest is given at once.
pub const RANDOM_BYTES_MAX: u32 = 65_536;

/// The run, as the component called in it may know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunContext {
    /// Id of the run.
    pub run_id: String,
    /// Run that started this one.
    pub parent_run_id: Option<String>,
    /// First run of the tree.
    pub root_run_id: String,
    /// Tenant of the run; guests are not told.
    pub tenant: String,
    /// Session of this run.
    pub session_id: String,
    /// Session that asked for the run.
    pub parent_session_id: String,
    /// Who asked for the run.
    pub owner_user_id: String,
    /// Application of the run.
    pub app_name: Option<String>,
    /// Agent of the run.
    pub agent_name: String,
    /// Number of the turn, from 1.
    pub turn: u32,
    /// Number of the attempt at this turn, from 1.
    pub attempt: u32,
    /// Runs above this one.
    pub depth: u32,
    /// Tool call this run or call belongs to.
    pub parent_tool_call_id: Option<String>,
    /// Labels of the run.
    pub labels: Labels,
    /// State that the caller gave, and the host's own keys.
    pub envelope: BTreeMap<String, String>,
}

/// Models that an agent may use.
pub struct Models {
    /// Providers by their name in the policy.
    pub by_name: BTreeMap<String, Arc<dyn Model>>,
    /// What their tokens cost, of those of which it is known.
    pub prices: BTreeMap<String, Price>,
    /// The agent's own.
    pub default: Option<String>,
}

impl Models {
    fn choose(
        &self,
        wanted: Option<&str>,
        rules: &CallRules,
    ) -> Result<(&Arc<dyn Model>, Option<Price>), ModelError> {
        let name = wanted.or(self.default.as_deref()).ok_or_else(|| {
            ModelError::UnknownModel("(this agent has no model of its own)".into())
        })?;
        rules.decide(&Use::Model(name)).map_err(|denied| ModelError::Denied(denied.for_guest))?;
        let model = self.by_name.get(name);
        let model = model.ok_or_else(|| ModelError::UnknownModel(name.to_owned()))?;
        Ok((model, self.prices.get(name).copied()))
    }

    /// The first model that an agent of these rules may ask and of which no price is known.
    #[must_use]
    pub(crate) fn unpriced(&self, rules: &Grants) -> Option<&str> {
        let mut names = self.by_name.keys().map(String::as_str);
        names.find(|name| {
            rules.decide(&Use::Model(name)).allowed && !self.prices.contains_key(*name)
        })
    }
}

/// Bounds on what a call may write into the journal.
#[derive(Clone, Copy, Debug)]
pub struct ScopeLimits {
    /// Events, log lines included.
    pub events: u32,
    /// Bytes of log lines and event texts together.
    pub bytes: u64,
}

/// What is left of a run's budget when a call begins; `None` is not limited.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remaining {
    /// Turns after this one.
    pub turns: Option<u32>,
    /// Tool calls.
    pub tool_calls: Option<u32>,
    /// Tokens.
    pub tokens: Option<u64>,
    /// Money, in millionths of a US dollar.
    pub cost_microusd: Option<u64>,
}

impl Remaining {
    /// What is missing for one more question to a model, after so much was used.
    fn missing(&self, used: Usage) -> Option<&'static str> {
        if self.tokens.is_some_and(|tokens| used.total_tokens >= tokens) {
            return Some("no tokens are left");
        }
        let no_money = self.cost_microusd.is_some_and(|cost| used.cost_microusd >= cost);
        no_money.then_some("no money is left")
    }
}

/// The journal of a run, for a call whose answers are kept there.
#[derive(Clone, Debug)]
pub struct JournalRoom {
    /// Woken when there are events that a guest waits for to be durable.
    pub urgent: Arc<Notify>,
    /// Bytes of recorded answers after which the call is stopped.
    pub bytes: u64,
}

/// Without a bound.
impl Default for JournalRoom {
    fn default() -> Self {
        Self { urgent: Arc::default(), bytes: u64::MAX }
    }
}

/// Everything a [`CallScope`] is made of.
pub struct CallScopeParts {
    /// The run.
    pub context: RunContext,
    /// Stops the call.
    pub stop: StopSignal,
    /// How long the call may take.
    pub deadline: Duration,
    /// Time as the guest sees it.
    pub clock: Arc<dyn Clock>,
    /// Random numbers as the guest sees them.
    pub random: Arc<dyn Random>,
    /// Models the guest may ask; a tool has none.
    pub models: Option<Arc<Models>>,
    /// The rules for all that is done in the call.
    pub rules: CallRules,
    /// Runs the guest may start and watch; `None` for a call that belongs to no run, or to one
    /// that is at its end.
    pub runs: Option<RunsAccess>,
    /// Tools the planner may call.
    pub tools: Arc<Vec<ToolSpec>>,
    /// State of the run.
    pub state: BTreeMap<String, String>,
    /// What else the host has for the call.
    pub services: Services,
    /// What is left.
    pub remaining: Remaining,
    /// Bounds on what goes into the journal.
    pub limits: ScopeLimits,
    /// Woken when there are events to be journalled.
    pub wake: Arc<Notify>,
    /// `None` for calls that are not done again: then nothing that they are given is recorded.
    pub journal: Option<JournalRoom>,
    /// What was recorded of the call when it was made before.
    pub tape: Option<Tape>,
}

/// What one call may reach. One for each call.
pub struct CallScope {
    parts: CallScopeParts,
    started: Duration,
    open: Mutex<Open>,
    dropped: AtomicU32,
    unfinished: Unfinished,
}

#[derive(Default)]
struct Open {
    events: Vec<Event>,
    recorded: u32,
    bytes: u64,
    usage: Option<Usage>,
    model: Option<String>,
    answer: Option<Message>,
    state: BTreeMap<String, String>,
    /// The last value of each key that was set or removed.
    changes: BTreeMap<String, Option<String>>,
    reminders: Reminders,
    /// The last change of each note.
    reminder_changes: BTreeMap<String, ReminderChange>,
    tape: Option<Tape>,
    divergence: Option<(String, String)>,
    /// Questions asked so far, of models, of the controller and of memory.
    questions: u32,
    /// How often each request for a run was made, by its digest.
    spawns: BTreeMap<String, u32>,
    /// Bytes of the controller's answers.
    controller_bytes: usize,
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
    /// Times that were told and are not recorded, each with how often in a row.
    readings: Vec<ClockReading>,
    /// Different times among all of those that were recorded.
    times_recorded: u32,
    /// Times that were told, and events that were emitted, in all.
    told: u32,
    emitted: u32,
    began: Option<Timestamp>,
    elapsed: Duration,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Open {
    /// The times that were told and are not recorded, as an event.
    fn take_readings(&mut self) -> Option<Event> {
        let readings = std::mem::take(&mut self.readings);
        (!readings.is_empty()).then_some(Event::ClockRead { readings })
    }

    /// Says that what the tape had left is void. What is told from now on stands behind that.
    fn restart(&mut self, turn: u32) {
        let before = self.take_readings();
        self.events.extend(before);
        let kept = StepPrefix { events: self.emitted, readings: self.told };
        self.events.push(Event::StepRestarted { turn, kept });
    }
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
            state: std::mem::take(&mut parts.state),
            reminders: std::mem::take(&mut parts.services.reminders),
            tape: parts.tape.take(),
            ..Open::default()
        };
        let open = Mutex::new(open);
        let unfinished = Unfinished::default();
        Self { parts, started, open, dropped: AtomicU32::new(0), unfinished }
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

    /// How long the call may take in all.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.parts.deadline
    }

    /// How long the call may still take.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        let spent = self.parts.clock.monotonic().saturating_sub(self.started);
        self.parts.deadline.saturating_sub(spent)
    }

    /// The rules for all that is done in the call.
    #[must_use]
    pub fn rules(&self) -> &CallRules {
        &self.parts.rules
    }

    /// The model that is asked where the guest names none.
    #[must_use]
    pub fn default_model(&self) -> Option<&str> {
        self.parts.models.as_ref()?.default.as_deref()
    }

    /// What was left when the call began.
    #[must_use]
    pub fn remaining(&self) -> Remaining {
        self.parts.remaining
    }

    /// Tools the planner may call.
    #[must_use]
    pub fn tools(&self) -> &[ToolSpec] {
        &self.parts.tools
    }

    /// The time of day.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        if !self.is_journalled() {
            return self.parts.clock.now();
        }
        let mut open = self.open();
        open.told = open.told.saturating_add(1);
        if let Some(time) = open.tape.as_mut().and_then(Tape::time) {
            return time;
        }
        let now = self.parts.clock.now();
        let resolution = resolution_ms(open.times_recorded);
        match open.readings.last_mut() {
            Some(last) if last.at.0.abs_diff(now.0) < resolution => {
                last.times = last.times.saturating_add(1);
                return last.at;
            }
            Some(_) | None => open.readings.push(ClockReading { at: now, times: 1 }),
        }
        open.times_recorded = open.times_recorded.saturating_add(1);
        now
    }

    /// How long the call has been under way, for the guest: made from what [`Self::now`] tells, so
    /// that a step that runs again measures the same.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        if !self.is_journalled() {
            return self.parts.clock.monotonic().saturating_sub(self.started);
        }
        let now = self.now();
        let mut open = self.open();
        let began = *open.began.get_or_insert(now);
        open.elapsed = open.elapsed.max(now.since(began));
        open.elapsed
    }

    /// Random bytes, at most [`RANDOM_BYTES_MAX`] of them.
    #[must_use]
    pub fn random(&self, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len.min(RANDOM_BYTES_MAX) as usize];
        self.parts.random.fill(&mut bytes);
        bytes
    }

    /// Waits; gives `false` if somebody asks to stop meanwhile. A wait that begins after that is
    /// one like any other: it belongs to the guest's own orderly end, and the grace bounds it.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    pub async fn sleep(&self, duration: Duration) -> bool {
        if self.parts.stop.is_asked() {
            self.parts.clock.sleep(duration).await;
            return true;
        }
        // A step that did more after its sleep has slept.
        if self.open().tape.as_ref().is_some_and(|tape| !tape.is_over()) {
            return true;
        }
        tokio::select! {
            biased;
            () = self.parts.stop.asked() => false,
            () = self.parts.clock.sleep(duration) => true,
        }
    }

    /// Puts an event into the journal, unless the call has met its bound; such events are
    /// counted and dropped.
    pub fn record(&self, event: Event) {
        let size = event.text_bytes() as u64;
        let mut open = self.open();
        let fits = open.recorded < self.parts.limits.events
            && open.bytes.saturating_add(size) <= self.parts.limits.bytes;
        if !fits {
            drop(open);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        open.recorded += 1;
        open.bytes += size;
        open.emitted += 1;
        let played = open.tape.as_mut().map_or(Played::New, |tape| tape.play(&event));
        match played {
            Played::Same => {}
            Played::New => {
                open.events.push(event);
                drop(open);
                self.parts.wake.notify_one();
            }
            Played::Other(recorded) => {
                drop(open);
                self.diverged(&format!("{recorded:?}"), &format!("{event:?}"));
            }
        }
    }

    /// Writes a line of the guest into the log, cut at [`LOG_LINE_BYTES_MAX`].
    pub fn log(&self, level: LogLevel, source: &str, message: &str, fields: Labels) {
        let message = cut(message, LOG_LINE_BYTES_MAX).to_owned();
        self.record(Event::Log { level, source: source.to_owned(), message, fields });
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
        let said = open.usage.unwrap_or_default().reported_tokens;
        let room = TOKENS_MAX.saturating_sub(said);
        let total_tokens = usage.total_tokens.min(room);
        let usage = Usage {
            prompt_tokens: usage.prompt_tokens.min(room),
            completion_tokens: usage.completion_tokens.min(room),
            total_tokens,
            reported_tokens: total_tokens,
            ..usage
        };
        open.usage = Some(open.usage.unwrap_or_default().plus(usage));
    }

    /// Adds tokens that the host knows of.
    fn spend(&self, usage: Usage) {
        let mut open = self.open();
        open.usage = Some(open.usage.unwrap_or_default().plus(usage));
    }

    /// The value last set for a key.
    #[must_use]
    pub fn state(&self, key: &str) -> Option<String> {
        self.open().state.get(key).cloned()
    }

    /// All keys, sorted.
    #[must_use]
    pub fn state_keys(&self) -> Vec<String> {
        self.open().state.keys().cloned().collect()
    }

    /// Keeps a value, or removes it.
    ///
    /// # Errors
    /// Which bound was met, in words.
    pub fn set_state(&self, key: String, value: Option<String>) -> Result<(), String> {
        if key.len() > STATE_KEY_BYTES_MAX {
            return Err(format!("a state key has at most {STATE_KEY_BYTES_MAX} bytes"));
        }
        let mut open = self.open();
        if let Some(value) = &value {
            let others: usize =
                open.state.iter().filter(|(k, _)| **k != key).map(|(_, v)| v.len()).sum();
            if others + value.len() > STATE_BYTES_MAX {
                return Err(format!("a run's state has at most {STATE_BYTES_MAX} bytes"));
            }
            if !open.state.contains_key(&key) && open.state.len() >= STATE_KEYS_MAX {
                return Err(format!("a run's state has at most {STATE_KEYS_MAX} keys"));
            }
            open.state.insert(key.clone(), value.clone());
        } else {
            // Removing what is not there must not fill the journal either.
            if open.state.remove(&key).is_none() && !open.changes.contains_key(&key) {
                return Ok(());
            }
        }
        open.changes.insert(key, value);
        Ok(())
    }

    /// Whether what the call was given is recorded, so that it can be given the same again.
    fn is_journalled(&self) -> bool {
        self.parts.journal.is_some()
    }

    /// Whether the call is one that is done again after a crash, and was asked to stop as the time
    /// of its run is up. What it does on hearing that it would not do again.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.is_journalled() && self.parts.stop.cause() == Some(StopCause::RunTimeout)
    }

    /// Puts an event of the host into the journal and returns when it is durable, or when nobody
    /// is there to make it so.
    async fn record_durably(&self, event: Event) {
        let Some(journal) = &self.parts.journal else { return };
        let (sender, durable) = oneshot::channel();
        self.keep(event).waiting.push(sender);
        journal.urgent.notify_one();
        // An error means that the driver is gone or lost the run: then nothing waits for anything.
        durable.await.ok();
    }

    /// Puts an answer that was given to the call among what is to be recorded. One that fills the
    /// journal is kept, as it was paid for, and the call is stopped.
    fn keep(&self, event: Event) -> MutexGuard<'_, Open> {
        let bytes = event.journal_bytes();
        let mut open = self.open();
        open.journal_bytes = open.journal_bytes.saturating_add(bytes);
        open.events.push(event);
        let room = self.parts.journal.as_ref().map_or(u64::MAX, |journal| journal.bytes);
        if open.journal_bytes >= room {
            self.parts.stop.force(StopCause::JournalFull);
        }
        open
    }

    /// Takes the events recorded since the last time, in order, after the times that the call was
    /// told before them.
    #[must_use]
    pub(crate) fn take_events(&self) -> Taken {
        let mut open = self.open();
        let mut events = std::mem::take(&mut open.events);
        if !events.is_empty() {
            let restart = events.iter().rposition(|e| matches!(e, Event::StepRestarted { .. }));
            let place = restart.map_or(0, |at| at + 1);
            events.splice(place..place, open.take_readings());
        }
        Taken { events, waiting: Durable(std::mem::take(&mut open.waiting)) }
    }

    /// Ends the scope: what is left in it for the journal.
    #[must_use]
    pub fn finish(&self) -> ScopeEnd {
        let unfinished = self.unfinished.take();
        if unfinished != Usage::default() {
            self.spend(unfinished);
        }
        let mut open = self.open();
        ScopeEnd {
            events: std::mem::take(&mut open.events),
            dropped: self.dropped.swap(0, Ordering::Relaxed),
            usage: open.usage.take(),
            metrics: std::mem::take(&mut open.metrics),
            model: open.model.take(),
            answer: open.answer.take(),
            state_changes: std::mem::take(&mut open.changes).into_iter().collect(),
            reminder_changes: std::mem::take(&mut open.reminder_changes).into_values().collect(),
            divergence: open.divergence.take().or_else(|| {
                let left = open.tape.as_ref().and_then(Tape::left);
                left.map(|left| (left, "the end of the step".to_owned()))
            }),
        }
    }
}

/// Events of a call that is under way.
#[derive(Debug)]
pub struct Taken {
    /// The events, in order.
    pub events: Vec<Event>,
    /// Whoever waits for them to be durable.
    pub waiting: Durable,
}

/// Guests that wait until what was taken is durable. Dropping it lets them go on as well.
#[derive(Debug, Default)]
pub struct Durable(Vec<oneshot::Sender<()>>);

impl Durable {
    /// Adds others.
    pub fn join(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }

    /// Says that it is.
    pub fn settle(self) {
        for sender in self.0 {
            // Whoever was stopped meanwhile does not listen.
            sender.send(()).ok();
        }
    }
}

/// What a call left behind.
#[derive(Debug, Default)]
pub struct ScopeEnd {
    /// Events not taken yet.
    pub events: Vec<Event>,
    /// Events that met the bound and were dropped.
    pub dropped: u32,
    /// Tokens consumed, if any were reported.
    pub usage: Option<Usage>,
    /// What was counted and measured.
    pub metrics: Metrics,
    /// Model that answered last, as its provider calls it.
    pub model: Option<String>,
    /// The last whole answer of a model, as the host saw it.
    pub answer: Option<Message>,
    /// Keys that were set, or removed, with their last value, sorted.
    pub state_changes: Vec<(String, Option<String>)>,
    /// Notes that were added or removed, each with its last change, sorted by id.
    pub reminder_changes: Vec<ReminderChange>,
    /// What the tape says and what the call did instead.
    pub divergence: Option<(String, String)>,
}

/// Milliseconds that lie between two times that a step is told, after so many different ones: one
/// at first, and twice as many after each thousand. So whoever waits by looking at the clock all
/// the time writes a few thousand times into the journal and not one for each millisecond.
fn resolution_ms(recorded: u32) -> u64 {
    1 << (recorded / 1_000).min(16)
}
