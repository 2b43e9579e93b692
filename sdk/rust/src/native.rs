//! Stand-ins for the host, for `cargo test` on the author's machine. Each thread, and so each
//! test, has a host of its own.
//!
//! ```
//! use taskrun_guest::{cancellation, clock, native, workspace};
//!
//! native::host(|host| {
//!     host.now_ms = 1_000;
//!     host.files.insert("notes/today.md".into(), b"buy milk".to_vec());
//! });
//!
//! clock::sleep(500).expect("nobody cancels");
//! assert_eq!(clock::now(), 1_500);
//! assert_eq!(workspace::read("notes/today.md", 4, 100).expect("it is there"), b"milk");
//!
//! // A cancel ends the sleep that is under way, and none that begins later.
//! native::host(|host| host.cancel_at_ms = Some(2_000));
//! assert!(clock::sleep(1_000).is_err());
//! assert!(cancellation::requested());
//! clock::sleep(1_000).expect("it waits as usual");
//! assert_eq!(clock::now(), 3_000);
//! ```

mod ask;
pub(crate) mod controller;
pub(crate) mod imports;
mod workspace;

use crate::{
    agent::{EndStatus, FinalizeInput},
    bindings::agent::taskrun::plugin::{
        controller::{Answer, ControllerError, RunEvent, RunRecord, SpawnRequest},
        http::{HttpError, Request, Response},
        log::Level,
        memory::Fact,
        model::{Chunk, CompletionRequest, ModelError},
        reminders::ReminderSpec,
        run::Remaining,
    },
    tool::ToolCall,
    types::{Label, Message, RunContext, Thinking, ToolSpec, Usage},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
};

/// Everything the stand-ins know, and everything that was asked of them. Tests set it up before
/// and look at it after, with [`host`].
#[derive(Debug)]
pub struct Host {
    /// The time, in milliseconds since 1970. Starts at 0; only [`clock::sleep`](crate::clock)
    /// moves it on.
    pub now_ms: u64,
    /// True once the run is being canceled. A sleep that begins then waits as usual.
    pub cancel_requested: bool,
    /// The time at which the run is asked to be canceled, in milliseconds since 1970: a sleep that
    /// is under way then ends early. `None`, which is the default, if it is not asked by itself.
    pub cancel_at_ms: Option<u64>,
    /// Where the random numbers come from: the same seed, the same numbers.
    pub random_seed: u64,
    /// The workspace: contents by path. The directories above a file are there with it.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Directories that were made empty.
    pub directories: BTreeSet<String>,
    /// The run's state.
    pub state: BTreeMap<String, String>,
    /// The facts in memory.
    pub facts: Vec<Fact>,
    /// Texts of prompts by id, given as they are.
    pub prompts: BTreeMap<String, String>,
    /// Notes that were left.
    pub reminders: BTreeMap<String, ReminderSpec>,
    /// The run, as the guest may know it.
    pub context: RunContext,
    /// The rest of the budget.
    pub remaining: Remaining,
    /// Tools that the agent may use.
    pub tools: Vec<ToolSpec>,
    /// Results that are left out of the conversation, by their hash.
    pub results: BTreeMap<String, Vec<u8>>,
    /// The conversation of the run, as the host has it.
    pub conversation: Vec<Message>,
    /// Answers of the model, the next one first. Without one it is `unavailable`.
    pub completions: VecDeque<Result<Vec<Chunk>, ModelError>>,
    /// The questions that the model was asked, those about the conversation with it.
    pub completion_requests: Vec<CompletionRequest>,
    /// Answers of the network, the next one first. Without one it is `unreachable`.
    pub http_answers: VecDeque<Result<Response, HttpError>>,
    /// The requests that were sent to the network.
    pub http_requests: Vec<Request>,
    /// The runs beneath this one, as they stand. Those that are started come last and stay queued.
    pub runs: Vec<RunRecord>,
    /// The runs that were asked for.
    pub spawns: Vec<SpawnRequest>,
    /// Errors for spawns, by the agent's name.
    pub spawn_errors: BTreeMap<String, ControllerError>,
    /// Events of runs by id.
    pub run_events: BTreeMap<String, Vec<RunEvent>>,
    /// The answers that runs were given: run, item, answer.
    pub provided: Vec<(String, String, Answer)>,
    /// Lines of the log, which also go to standard error.
    pub log: Vec<(Level, String, Vec<Label>)>,
    /// The events that observers were sent.
    pub events: Vec<Event>,
    /// Sums of counters by name.
    pub counters: BTreeMap<String, u64>,
    /// Measurements by name.
    pub values: BTreeMap<String, Vec<f64>>,
}

/// Something observers were told.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// By `assistant-chunk`.
    Chunk(String),
    /// By `assistant-message`.
    Message(String),
    /// By `tool-call-args-delta`: id, name, fragment.
    ArgsDelta(String, String, String),
    /// By `planner-thinking-block`.
    Thinking(Thinking),
    /// By `planner-thought`.
    Thought(String, Vec<Label>),
    /// By `usage-delta`.
    Usage(Usage),
}

thread_local! {
    static HOST: RefCell<Host> = RefCell::new(Host::new());
}

/// Gives access to this thread's host.
///
/// # Panics
///
/// When called, or a capability is used, inside `act`.
pub fn host<T>(act: impl FnOnce(&mut Host) -> T) -> T {
    HOST.with(|host| act(&mut host.borrow_mut()))
}

/// Makes this thread's host as it was at the start.
pub fn reset() {
    host(|host| *host = Host::new());
}

/// A call of a function with these arguments, given as JSON, by the run of this thread. Tests
/// change the fields for other calls.
///
/// ```
/// use taskrun_guest::{native, tool::ToolCall};
///
/// let call = native::tool_call("count", r#"{"text": "one two three"}"#);
/// assert_eq!((call.name.as_str(), call.run_id.as_str(), call.turn), ("count", "run-1", 1));
///
/// let other = ToolCall { tool_call_id: "call-2".into(), ..call.clone() };
/// assert_ne!(call, other);
/// ```
#[must_use]
pub fn tool_call(name: impl Into<String>, payload: impl Into<String>) -> ToolCall {
    let run = host(|host| host.context.clone());
    ToolCall {
        name: name.into(),
        payload: payload.into(),
        tool_call_id: "call-1".into(),
        parent_tool_call_id: None,
        agent_name: run.agent_name,
        run_id: run.run_id,
        session_id: run.session_id,
        turn: run.turn,
        labels: run.labels,
    }
}

/// Input of the finalizer of a run that completed with this text, without metadata; the run is
/// this thread's. Tests change the fields for other ends.
#[must_use]
pub fn finalize_input(result: impl Into<String>) -> FinalizeInput {
    FinalizeInput {
        run: host(|host| host.context.clone()),
        status: EndStatus::Completed,
        stop_reason: "final_response".into(),
        error: None,
        result: Some(result.into()),
        metadata: Vec::new(),
    }
}

impl Host {
    /// True if the run is being canceled by now.
    fn is_cancel_requested(&self) -> bool {
        self.cancel_requested || self.cancel_at_ms.is_some_and(|at| at <= self.now_ms)
    }

    fn new() -> Self {
        Self {
            now_ms: 0,
            cancel_requested: false,
            cancel_at_ms: None,
            random_seed: 0,
            files: BTreeMap::new(),
            directories: BTreeSet::new(),
            state: BTreeMap::new(),
            facts: Vec::new(),
            prompts: BTreeMap::new(),
            reminders: BTreeMap::new(),
            context: RunContext {
                run_id: "run-1".into(),
                parent_run_id: None,
                root_run_id: "run-1".into(),
                session_id: "session-1".into(),
                parent_session_id: "session-0".into(),
                owner_user_id: "user-1".into(),
                app_name: None,
                agent_name: "agent".into(),
                turn: 1,
                attempt: 1,
                depth: 0,
                parent_tool_call_id: None,
                labels: Vec::new(),
                envelope: Vec::new(),
            },
            remaining: Remaining {
                call_time: 10_000,
                turns: None,
                tool_calls: None,
                tokens: None,
                tool_failures: None,
                cost_microusd: None,
            },
            tools: Vec::new(),
            results: BTreeMap::new(),
            conversation: Vec::new(),
            completions: VecDeque::new(),
            completion_requests: Vec::new(),
            http_answers: VecDeque::new(),
            http_requests: Vec::new(),
            runs: Vec::new(),
            spawns: Vec::new(),
            spawn_errors: BTreeMap::new(),
            run_events: BTreeMap::new(),
            provided: Vec::new(),
            log: Vec::new(),
            events: Vec::new(),
            counters: BTreeMap::new(),
            values: BTreeMap::new(),
        }
    }
}
