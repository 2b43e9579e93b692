//! Limits of a call, a plan step and a run, with the default and the maximum of each.

use std::time::Duration;

use crate::defaults::{Defaults, LimitsOf};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Memory of an instance unless the policy says otherwise: all that a slot of the pool has.
pub const MEMORY_BYTES_DEFAULT: u64 = 64 * MIB;
/// Most memory of an instance: the size of a slot in the engine's pool, which is reserved once.
pub const MEMORY_BYTES_MAX: u64 = 64 * MIB;
/// Least memory of an instance: one WebAssembly page. With less no component can start.
pub(crate) const MEMORY_BYTES_MIN: u64 = 64 * KIB;

/// Time for a tool call unless the policy says otherwise.
pub const CALL_DEFAULT: Duration = Duration::from_secs(10);
/// Longest tool call: one that takes an hour should be a run of its own, which survives a crash.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(3_600);

/// Time for a plan step unless the policy says otherwise. Waits for models do not count, so this is
/// what a guest may do by itself: more than any that only talks with models needs.
pub const STEP_DEFAULT: Duration = Duration::from_secs(120);
/// Longest plan step; after a crash all of it is repeated.
pub(crate) const STEP_MAX: Duration = Duration::from_secs(3_600);

/// Time between asking a component to stop and interrupting it, unless the policy says otherwise.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(5);
/// Longest grace: whoever cancels waits that long, and so does a host that shuts down.
pub(crate) const GRACE_MAX: Duration = Duration::from_secs(60);

/// Tool calls of a run unless the policy says otherwise: twice the default of turns.
pub const TOOL_CALLS_DEFAULT: u32 = 40;
/// Most tool calls of a run: each leaves events in a journal that is read back as a whole.
pub(crate) const TOOL_CALLS_MAX: u32 = 10_000;

/// Bytes of a result unless the policy says otherwise.
pub const RESULT_BYTES_DEFAULT: u64 = MIB;
/// Most bytes of a result: it is held in memory, written to the journal and shown to a model.
pub(crate) const RESULT_BYTES_MAX: u64 = 16 * MIB;

/// Bytes of log of a call unless the policy says otherwise.
pub const LOG_BYTES_DEFAULT: u64 = MIB;
/// Most bytes of log of a call: about what a person can still search.
pub(crate) const LOG_BYTES_MAX: u64 = 16 * MIB;

/// Elements of all tables of an instance unless the policy says otherwise.
pub const TABLE_ELEMENTS_DEFAULT: u32 = 10_000;
/// Most elements of all tables of an instance: the size of a table in wasmtime's pool.
pub const TABLE_ELEMENTS_MAX: u32 = 20_000;

/// Calls from a component to the host in one call, unless the policy says otherwise.
pub const HOST_CALLS_DEFAULT: u32 = 100_000;
/// Most calls to the host in one call: some seconds of nothing else.
pub(crate) const HOST_CALLS_MAX: u32 = 10_000_000;

/// Bytes that one call to the host may carry, unless the policy says otherwise.
pub const HOST_CALL_BYTES_DEFAULT: u64 = 8 * MIB;
/// Most bytes that one call to the host may carry: they are copied out of a memory that has no
/// more.
pub(crate) const HOST_CALL_BYTES_MAX: u64 = MEMORY_BYTES_MAX;

/// Tool calls that may fail in a row unless the policy says otherwise.
pub const TOOL_FAILURES_DEFAULT: u32 = 8;
/// Most of them that a policy can allow: as many calls as a run can make.
pub(crate) const TOOL_FAILURES_MAX: u32 = TOOL_CALLS_MAX;

/// Events that a component may emit in one call, unless the policy says otherwise.
pub const EVENTS_DEFAULT: u32 = 10_000;
/// Most events of one call: each is a row that every watcher of the run gets.
pub(crate) const EVENTS_MAX: u32 = 100_000;

/// Bytes of a run's journal unless the policy says otherwise: a thousand turns of long answers.
pub const JOURNAL_BYTES_DEFAULT: u64 = 256 * MIB;
/// Most bytes of a journal: whoever takes the run up after its host died reads all of it.
pub(crate) const JOURNAL_BYTES_MAX: u64 = 4_096 * MIB;
/// Least bytes of a journal: a task with what stands before it, and some turns.
pub(crate) const JOURNAL_BYTES_MIN: u64 = MIB;
/// Bytes that one call may write to files unless the policy says otherwise.
pub const WRITE_BYTES_DEFAULT: u64 = 64 * MIB;
/// Most bytes that a policy can let one call write: the disk of a small machine.
pub(crate) const WRITE_BYTES_MAX: u64 = 16 << 30;

/// Files and folders that one call may make unless the policy says otherwise.
pub const NEW_FILES_DEFAULT: u32 = 1_000;
/// Most files and folders that a policy can let one call make.
pub(crate) const NEW_FILES_MAX: u32 = 100_000;

/// Shortest time from one tick of a heartbeat to the next: each looks into the store.
pub const HEARTBEAT_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Longest one, a week: whoever waits longer for an entry has forgotten it.
pub const HEARTBEAT_INTERVAL_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Most bytes of a heartbeat's prompt: beside it there is room for entries in a task.
pub const HEARTBEAT_PROMPT_BYTES_MAX: usize = 16 << 10;
/// The runs that hosts start in an hour of a conversation so that it is told of outcomes, where an
/// agent names no number: one every three minutes.
pub const NUDGES_DEFAULT: u32 = 20;
/// The largest number that an agent may name: one a second.
pub const NUDGES_MAX: u32 = 3_600;

/// Turns of a run unless the policy says otherwise.
pub const TURNS_DEFAULT: u32 = 20;
/// Most turns of a run: its conversation, which grows with each, is sent to the model each time.
pub(crate) const TURNS_MAX: u32 = 1_000;

/// Most tokens that a budget can name: a million million, beyond any use of one run.
pub const TOKENS_MAX: u64 = 1_000_000_000_000;

/// Money, in millionths of a US dollar, of a run beneath one that goes on by itself, where its policy
/// names none and the price of all that it asks is known: one dollar, as what nobody attends must not
/// spend what somebody did not think of.
pub const SUBAGENT_COST_DEFAULT: u64 = 1_000_000;

/// Time of a run unless the policy says otherwise.
pub const WALL_DEFAULT: Duration = Duration::from_secs(20 * 60);
/// Longest run: thirty days, for those that wait for people.
pub(crate) const WALL_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Most attempts at a plan step: each may ask a model for as much as the first did.
pub const RETRY_ATTEMPTS_MAX: u32 = 10;
/// Most turns that are skipped in a row: each may ask a model as often as there are attempts.
pub(crate) const RETRY_SKIPS_MAX: u32 = 10;
/// Most words of failures after which a plan step is tried again.
pub(crate) const RETRY_ON_MAX: usize = 64;
/// Most bytes of one of them.
pub(crate) const RETRY_WORD_BYTES_MAX: usize = 64;
/// Longest first pause between attempts; the pauses after it double, and `wall` bounds them all.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5 * 60);
/// Fewest tokens of a context window: with less, no result of a tool has room in it.
pub(crate) const CONTEXT_TOKENS_MIN: u32 = 2_000;
/// Most tokens of a context window: more than what a plan step is given can have.
pub(crate) const CONTEXT_TOKENS_MAX: u32 = 10_000_000;

/// Time for which a run is put off in all as models are not to be asked, unless the policy says
/// otherwise: the limits of providers by the minute are over by then, those by the day are not.
pub const RETRY_PATIENCE_DEFAULT: Duration = Duration::from_secs(3_600);
/// Longest such time: a week, in which any limit is over, or nobody waits any more.
pub(crate) const RETRY_PATIENCE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Limits of one call, and some bounds of the run. All are enforced; none can be switched off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// All memories of the instance together. `memory`; see [`MEMORY_BYTES_DEFAULT`].
    pub memory_bytes: u64,
    /// A tool call from start to answer. `call`; see [`CALL_DEFAULT`].
    pub call: Duration,
    /// A plan step from start to decision, its model completions included. `step`; see
    /// [`STEP_DEFAULT`]. Of no meaning for a tool.
    pub step: Duration,
    /// A run's last step, asked for when its budget is used up, from start to answer, waits for
    /// models included; `None` is no bound but `step` and the time-outs of models. `last_step`. Of no
    /// meaning for a tool.
    pub last_step: Option<Duration>,
    /// From asking a component to stop to interrupting it. `grace`; see [`GRACE_DEFAULT`].
    pub grace: Duration,
    /// Tool calls of a run. `tool_calls`; see [`TOOL_CALLS_DEFAULT`]. Always `Some` for an
    /// agent, always `None` for a tool, which makes none.
    pub tool_calls: Option<u32>,
    /// Tool calls of one turn; `None` is no bound but that of the run. `turn_calls`. Of no meaning
    /// for a tool.
    pub turn_calls: Option<u32>,
    /// Tool calls that may fail in a row before the run is ended. `tool_failures`; see
    /// [`TOOL_FAILURES_DEFAULT`]. Of no meaning for a tool.
    pub tool_failures: u32,
    /// A tool's result or a planner's decision, as JSON. `result`; see [`RESULT_BYTES_DEFAULT`].
    pub result_bytes: u64,
    /// Log of a call. `log`; see [`LOG_BYTES_DEFAULT`].
    pub log_bytes: u64,
    /// All tables of the instance together. `table_elements`; see [`TABLE_ELEMENTS_DEFAULT`].
    pub table_elements: u32,
    /// Calls to the host in one call. `host_calls`; see [`HOST_CALLS_DEFAULT`].
    pub host_calls: u32,
    /// Bytes that one call to the host may carry, each way. `host_call_bytes`; see
    /// [`HOST_CALL_BYTES_DEFAULT`].
    pub host_call_bytes: u64,
    /// Events that one call may emit. `events`; see [`EVENTS_DEFAULT`].
    pub events: u32,
    /// The journal of a run, with what the host records of answers and results; beyond it the run
    /// ends. `journal`; see [`JOURNAL_BYTES_DEFAULT`]. Of no meaning for a tool.
    pub journal_bytes: u64,
    /// Bytes that one call may write to files, or lengthen them by, in whatever way. `write`; see
    /// [`WRITE_BYTES_DEFAULT`].
    pub write_bytes: u64,
    /// Files, folders and links that one call may make. `new_files`; see [`NEW_FILES_DEFAULT`].
    pub new_files: u32,
}

/// The limits of an agent whose policy names none.
impl Default for Limits {
    fn default() -> Self {
        Defaults::default().limits(&LimitSettings::default(), LimitsOf::Agent)
    }
}

/// The limits that a policy states, field by field as in [`Limits`]; `None` is not stated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LimitSettings {
    pub memory_bytes: Option<u64>,
    pub call: Option<Duration>,
    pub step: Option<Duration>,
    pub last_step: Option<Duration>,
    pub grace: Option<Duration>,
    pub tool_calls: Option<u32>,
    pub turn_calls: Option<u32>,
    pub tool_failures: Option<u32>,
    pub result_bytes: Option<u64>,
    pub log_bytes: Option<u64>,
    pub table_elements: Option<u32>,
    pub host_calls: Option<u32>,
    pub host_call_bytes: Option<u64>,
    pub events: Option<u32>,
    pub journal_bytes: Option<u64>,
    pub write_bytes: Option<u64>,
    pub new_files: Option<u32>,
}

impl LimitSettings {
    /// The limits of both: of two values the smaller, of one that one, of none the default. So the
    /// limits of a tool call are those of the agent narrowed by the tool's, and a default
    /// narrows nothing that someone has written down.
    pub(crate) fn narrowed_by(&self, other: &Self) -> Self {
        Self {
            memory_bytes: least(self.memory_bytes, other.memory_bytes),
            call: least(self.call, other.call),
            step: least(self.step, other.step),
            last_step: least(self.last_step, other.last_step),
            grace: least(self.grace, other.grace),
            tool_calls: least(self.tool_calls, other.tool_calls),
            turn_calls: least(self.turn_calls, other.turn_calls),
            tool_failures: least(self.tool_failures, other.tool_failures),
            result_bytes: least(self.result_bytes, other.result_bytes),
            log_bytes: least(self.log_bytes, other.log_bytes),
            table_elements: least(self.table_elements, other.table_elements),
            host_calls: least(self.host_calls, other.host_calls),
            host_call_bytes: least(self.host_call_bytes, other.host_call_bytes),
            events: least(self.events, other.events),
            journal_bytes: least(self.journal_bytes, other.journal_bytes),
            write_bytes: least(self.write_bytes, other.write_bytes),
            new_files: least(self.new_files, other.new_files),
        }
    }
}

/// The budget of a whole run, and of what is beneath it with it. `None` is no bound; a policy file
/// leaves only `tokens` and money unbounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Turns of the run; see [`TURNS_DEFAULT`].
    pub turns: Option<u32>,
    /// Tokens of all its model completions, both ways, and of the runs beneath it. No default:
    /// models differ too much.
    pub tokens: Option<u64>,
    /// Of these, tokens that models read. No default.
    pub prompt_tokens: Option<u64>,
    /// Of these, tokens that models wrote. No default.
    pub completion_tokens: Option<u64>,
    /// Cost of its model completions, in millionths of a US dollar. No default but the next.
    pub cost_microusd: Option<u64>,
    /// The same for a run beneath one that goes on by itself, where the price of all models that it
    /// may ask is known; `None` where the policy states a cost. See [`SUBAGENT_COST_DEFAULT`].
    pub subagent_cost_microusd: Option<u64>,
    /// From its start to its end; see [`WALL_DEFAULT`].
    pub wall: Option<Duration>,
    /// The running time of one round, or of one attempt at it: from a prompt to the answer. Of a run
    /// that does not go on by itself, the whole is one round. No default: `wall` and the limit of a
    /// step bound it.
    pub round: Option<Duration>,
    /// The part of `turns`, `tokens` and `cost_microusd` that is kept for its last word.
    pub reserve: Reserve,
}

/// The part of a budget that is kept for a run's last word. Each is less than what it is a part of.
/// A run whose agent keeps nothing has no last word when its turns, tokens or money are used up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reserve {
    /// Turns: one, or none, which makes the last word a turn more than the budget has.
    pub turns: u32,
    /// Tokens.
    pub tokens: u64,
    /// Money, in millionths of a US dollar.
    pub cost_microusd: u64,
}

/// The budget of an agent whose policy names none.
impl Default for Budget {
    fn default() -> Self {
        Defaults::default().budget()
    }
}

/// The smaller of two bounds, where `None` is no bound.
pub fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
