//! A tool by which a model delegates: it starts runs of other agents beneath the run that calls
//! it, watches them, answers them and cancels them.
//!
//! `spawn` promises that a repeated call has no further effect, as the host knows a child by the
//! call that started it.

use serde::{Deserialize, Serialize};
use taskrun_guest::{
    controller::{
        self, Answer, CallTimeout, CancelOutcome, ControllerError, Delivery, DeliveryStrategy,
        IdleWait, ListFilter, Narrowing, RunRecord, SpawnRequest,
    },
    tool::{Failure, ToolCall, ToolResult},
};

const SPAWN: &str = r#"{
  "type": "object",
  "properties": {
    "agent": {"type": "string", "description": "Who is to do it."},
    "task": {"type": "string", "description": "What to do, in full: the other knows nothing of this conversation."},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "key": {"type": "string", "description": "The same key gives the same run, whatever call asks."},
    "name": {"type": "string", "description": "What people call the run."},
    "attached": {"type": "boolean", "description": "True if it ends when you do."},
    "tools": {"type": "array", "items": {"type": "string"}, "description": "The only functions that it may call."},
    "deny": {"type": "array", "items": {"type": "string"}, "description": "Rules that take rights away."},
    "turns": {"type": "integer", "minimum": 1},
    "tokens": {"type": "integer", "minimum": 1},
    "turn_calls": {"type": "integer", "minimum": 1},
    "tool_failures": {"type": "integer", "minimum": 1},
    "wall_ms": {"type": "integer", "minimum": 1, "description": "The time for which it works."},
    "step_ms": {"type": "integer", "minimum": 1, "description": "The longest plan step."},
    "last_step_ms": {"type": "integer", "minimum": 1, "description": "The longest last step."},
    "no_pause": {"type": "boolean", "description": "True if nobody pauses it."},
    "timeouts": {"type": "object", "additionalProperties": {"type": "integer"}, "description": "Milliseconds by functions: the longest calls."},
    "deliver": {"enum": ["none", "context-only", "immediate", "wait-for-idle", "queued"], "description": "When the conversation is told of the outcome."},
    "notify": {"type": "string", "description": "The agent that is told."},
    "timeout_ms": {"type": "integer", "minimum": 1, "description": "The time for which it may run."}
  },
  "required": ["agent", "task"],
  "additionalProperties": false
}"#;
const RUN: &str = r#"{
  "type": "object",
  "properties": {"run": {"type": "string"}},
  "required": ["run"],
  "additionalProperties": false
}"#;
const LIST: &str = r#"{
  "type": "object",
  "properties": {
    "agent": {"type": "string"},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "cursor": {"type": "string", "description": "That of the page before."},
    "limit": {"type": "integer", "minimum": 1, "maximum": 200}
  },
  "additionalProperties": false
}"#;
const WAIT: &str = r#"{
  "type": "object",
  "properties": {
    "run": {"type": "string"},
    "timeout_ms": {"type": "integer", "minimum": 0, "description": "0 looks once."}
  },
  "required": ["run"],
  "additionalProperties": false
}"#;
const PROVIDE: &str = r#"{
  "type": "object",
  "properties": {
    "run": {"type": "string"},
    "item": {"type": "string", "description": "What is answered, where several things are asked."},
    "text": {"type": "string"}
  },
  "required": ["run", "text"],
  "additionalProperties": false
}"#;
const EVENTS: &str = r#"{
  "type": "object",
  "properties": {
    "run": {"type": "string"},
    "after": {"type": "integer", "minimum": 0, "description": "`next_after` of the page before."},
    "limit": {"type": "integer", "minimum": 1, "maximum": 256},
    "timeout_ms": {"type": "integer", "minimum": 0}
  },
  "required": ["run"],
  "additionalProperties": false
}"#;

taskrun_guest::tool! {
    /// Starts a run of another agent and gives its id at once.
    fn spawn(SPAWN, idempotent, tag("delegate")) => spawn;

    /// Shows how a run stands.
    fn get(RUN, read_only, tag("delegate")) => get;

    /// Lists runs, the one changed last first.
    fn list(LIST, read_only, tag("delegate")) => list;

    /// Waits for the end of a run; it never cancels it.
    fn wait(WAIT, read_only, tag("delegate")) => wait;

    /// Answers what a run asks, with a text.
    fn provide(PROVIDE, idempotent, tag("delegate")) => provide;

    /// Reads what happened in a run.
    fn events(EVENTS, read_only, tag("delegate")) => events;

    /// Cancels a run and leaves what it started alone.
    fn cancel(RUN, idempotent, destructive, tag("delegate")) => cancel;

    /// Cancels a run and everything beneath it.
    fn cancel_tree(RUN, idempotent, destructive, tag("delegate")) => cancel_tree;
}

#[derive(Deserialize)]
struct Spawn {
    agent: String,
    task: String,
    #[serde(default)]
    labels: std::collections::BTreeMap<String, String>,
    key: Option<String>,
    name: Option<String>,
    #[serde(default)]
    attached: bool,
    tools: Option<Vec<String>>,
    #[serde(default)]
    deny: Vec<String>,
    turns: Option<u32>,
    tokens: Option<u64>,
    turn_calls: Option<u32>,
    tool_failures: Option<u32>,
    wall_ms: Option<u64>,
    step_ms: Option<u64>,
    last_step_ms: Option<u64>,
    #[serde(default)]
    no_pause: bool,
    #[serde(default)]
    timeouts: std::collections::BTreeMap<String, u64>,
    deliver: Option<Deliver>,
    notify: Option<String>,
    timeout_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Deliver {
    None,
    ContextOnly,
    Immediate,
    WaitForIdle,
    Queued,
}

impl From<Deliver> for DeliveryStrategy {
    fn from(deliver: Deliver) -> Self {
        let wait = IdleWait { buffer: 1_000, timeout: 15_000 };
        match deliver {
            Deliver::None => Self::None,
            Deliver::ContextOnly => Self::ContextOnly,
            Deliver::Immediate => Self::Immediate,
            Deliver::WaitForIdle => Self::WaitForIdle(wait),
            Deliver::Queued => Self::Queued((wait, "\n\n".to_owned())),
        }
    }
}

#[derive(Deserialize)]
struct One {
    run: String,
}

#[derive(Deserialize)]
struct List {
    agent: Option<String>,
    #[serde(default)]
    labels: std::collections::BTreeMap<String, String>,
    cursor: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
struct Wait {
    run: String,
    timeout_ms: Option<u64>,
}

#[derive(Deserialize)]
struct Provide {
    run: String,
    item: Option<String>,
    text: String,
}

#[derive(Deserialize)]
struct Events {
    run: String,
    #[serde(default)]
    after: u64,
    limit: Option<u32>,
    timeout_ms: Option<u64>,
}

/// A run as a model is shown it.
#[derive(Serialize)]
struct Shown {
    run: String,
    parent: String,
    agent: String,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    asks: Vec<Asked>,
}

#[derive(Serialize)]
struct Asked {
    item: String,
    question: String,
}

impl From<RunRecord> for Shown {
    fn from(run: RunRecord) -> Self {
        let asked = |item: controller::OpenItem| Asked { item: item.id, question: item.prompt };
        Self {
            run: run.id,
            parent: run.parent_run_id,
            agent: run.agent_name,
            status: run.status.name(),
            result: run.result,
            error: run.error,
            asks: run.awaits.into_iter().map(asked).collect(),
        }
    }
}

fn refused(error: ControllerError) -> Failure {
    Failure::new(error.text()).code(error.code())
}

fn spawn(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: Spawn = call.args()?;
    let mut request = SpawnRequest::new(args.agent, args.task);
    request.labels = args.labels.into_iter().collect();
    request.key = args.key;
    request.name = args.name;
    request.attached = args.attached;
    request.timeout = args.timeout_ms;
    request.narrow = Narrowing {
        tools: args.tools,
        deny: args.deny,
        turns: args.turns,
        tokens: args.tokens,
        turn_calls: args.turn_calls,
        tool_failures: args.tool_failures,
        wall: args.wall_ms,
        step: args.step_ms,
        last_step: args.last_step_ms,
        no_pause: args.no_pause,
        timeouts: args
            .timeouts
            .into_iter()
            .map(|(function, timeout)| CallTimeout { function, timeout })
            .collect(),
        ..Narrowing::none()
    };
    request.delivery = args
        .deliver
        .map(|deliver| Delivery { notify: args.notify, ..Delivery::new(deliver.into()) });
    let run = controller::spawn(&request).map_err(refused)?;
    ToolResult::json(&Shown::from(run))
}

fn get(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: One = call.args()?;
    let run = controller::get(&args.run).map_err(refused)?;
    ToolResult::json(&Shown::from(run))
}

fn list(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: List = call.args()?;
    let mut filter = ListFilter::all();
    filter.agent_name = args.agent;
    filter.labels = args.labels.into_iter().collect();
    let page = controller::list(&filter, args.cursor.as_deref(), args.limit).map_err(refused)?;
    let runs: Vec<Shown> = page.runs.into_iter().map(Shown::from).collect();
    ToolResult::json(&serde_json::json!({ "runs": runs, "cursor": page.next }))
}

fn wait(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: Wait = call.args()?;
    let waited = controller::wait(&args.run, args.timeout_ms).map_err(refused)?;
    let (run, timed_out) = (Shown::from(waited.run), waited.timed_out);
    ToolResult::json(&serde_json::json!({ "run": run, "timed_out": timed_out }))
}

fn provide(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: Provide = call.args()?;
    let answer = Answer::Text(args.text);
    let run = controller::provide(&args.run, args.item.as_deref(), &answer).map_err(refused)?;
    ToolResult::json(&Shown::from(run))
}

fn events(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: Events = call.args()?;
    let limit = args.limit.unwrap_or(u32::MAX);
    let page = controller::subscribe(&args.run, args.after, limit, args.timeout_ms);
    let page = page.map_err(refused)?;
    let events = page.events.iter().map(|event| {
        let payload = serde_json::from_str(&event.payload).unwrap_or(serde_json::Value::Null);
        serde_json::json!({ "seq": event.seq, "kind": event.kind, "payload": payload })
    });
    let events: Vec<_> = events.collect();
    let (next_after, ended) = (page.next_after, page.ended);
    let page = serde_json::json!({ "events": events, "next_after": next_after, "ended": ended });
    ToolResult::json(&page)
}

fn cancel(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: One = call.args()?;
    canceled(controller::cancel(&args.run, None).map_err(refused)?)
}

fn cancel_tree(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: One = call.args()?;
    canceled(controller::cancel_tree(&args.run, None).map_err(refused)?)
}

fn canceled(done: CancelOutcome) -> Result<ToolResult, Failure> {
    let (run, changed) = (Shown::from(done.run), done.changed);
    ToolResult::json(
        &serde_json::json!({ "run": run, "changed": changed, "descendants": done.descendants }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use taskrun_guest::{native, tool::Tool as _};

    fn call(name: &str, payload: &str) -> Result<Value, String> {
        match Functions::call(native::tool_call(name, payload)) {
            Ok(result) => Ok(serde_json::from_str(&result.value).expect("JSON")),
            Err(failure) => Err(failure.error.code.clone().unwrap_or_default()),
        }
    }

    #[test]
    fn runs_are_started_listed_and_canceled() {
        native::reset();
        let run = call("spawn", r#"{"agent":"a","task":"t","labels":{"k":"v"}}"#).expect("a run");
        assert_eq!((&run["run"], &run["status"]), (&"child-1".into(), &"queued".into()));
        let page = call("list", r#"{"labels":{"k":"v"}}"#).expect("a page");
        assert_eq!(page["runs"].as_array().map(Vec::len), Some(1));
        let waited = call("wait", r#"{"run":"child-1"}"#).expect("it is there");
        assert_eq!(waited["timed_out"], true);
        let done = call("cancel_tree", r#"{"run":"child-1"}"#).expect("it is there");
        assert_eq!((&done["changed"], &done["run"]["status"]), (&true.into(), &"canceled".into()));
        let page = call("events", r#"{"run":"child-1"}"#).expect("it is there");
        assert_eq!(page["ended"], true);
    }

    #[test]
    fn refusals_carry_their_code() {
        native::reset();
        assert_eq!(call("get", r#"{"run":"x"}"#), Err("not-found".into()));
        assert_eq!(call("spawn", r#"{"agent":"a","task":" "}"#), Err("invalid".into()));
        call("spawn", r#"{"agent":"a","task":"t"}"#).expect("a run");
        let nothing = call("provide", r#"{"run":"child-1","text":"yes"}"#);
        assert_eq!(nothing, Err("not-awaitable".into()));
    }
}
