//! A tool that answers what its arguments say: for tests of everything around a tool call.

use serde::Deserialize;
use serde_json::Value;
use taskrun_guest::{
    clock,
    tool::{Failure, RetryHint, RetryReason, ToolCall, ToolResult},
};

const LOOKUP: &str = r#"{
  "type": "object",
  "properties": {
    "sleep_ms": {"type": "integer", "minimum": 0, "description": "How long to wait first."},
    "result": {"description": "What to answer; without it, the call's id."},
    "fail": {
      "type": "object",
      "description": "The failure to answer instead.",
      "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "causes": {"type": "array", "items": {"type": "string"}},
        "hint": {
          "type": "object",
          "properties": {
            "reason": {"enum": ["invalid-arguments", "missing-fields", "malformed-response", "timeout", "rate-limited", "tool-unavailable"]},
            "restrict_to_tool": {"type": "boolean"},
            "missing_fields": {"type": "array", "items": {"type": "string"}},
            "question": {"type": "string"},
            "message": {"type": "string"}
          },
          "required": ["reason"],
          "additionalProperties": false
        }
      },
      "required": ["message"],
      "additionalProperties": false
    }
  },
  "additionalProperties": false
}"#;

const IDS: &str = r#"{
  "type": "object",
  "properties": {
    "sleep_ms": {"type": "integer", "minimum": 0, "description": "How long to wait first."}
  },
  "additionalProperties": false
}"#;

const MEASURED: &str = r#"{
  "type": "object",
  "properties": {"n": {"type": "integer"}},
  "required": ["n"],
  "additionalProperties": false
}"#;

taskrun_guest::tool! {
    /// Answers what it is told to answer, or fails as it is told to fail, after a wait if it is
    /// told to wait.
    fn lookup(LOOKUP, read_only, tag("test")) => lookup;

    /// Does the same as `lookup`, and promises nothing: a call cut off by a crash must not be
    /// repeated.
    fn change(LOOKUP, destructive, tag("test")) => lookup;

    /// Does the same as `lookup`, and its answer ends the run.
    fn finish(LOOKUP, read_only, terminal, tag("test")) => lookup;

    /// Does the same as `lookup`, and promises to answer with a whole number `n`.
    fn measure(LOOKUP, read_only, output(MEASURED), tag("test")) => lookup;

    /// Answers with the id of the call, and of the call that it belongs under.
    fn ids(IDS, read_only, tag("test")) => ids;
}

#[derive(Deserialize)]
struct Args {
    #[serde(default)]
    sleep_ms: u64,
    result: Option<Value>,
    fail: Option<Fail>,
}

#[derive(Deserialize)]
struct Fail {
    code: Option<String>,
    message: String,
    #[serde(default)]
    causes: Vec<String>,
    hint: Option<Hint>,
}

#[derive(Deserialize)]
struct Hint {
    reason: Reason,
    #[serde(default)]
    restrict_to_tool: bool,
    #[serde(default)]
    missing_fields: Vec<String>,
    question: Option<String>,
    message: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reason {
    InvalidArguments,
    MissingFields,
    MalformedResponse,
    Timeout,
    RateLimited,
    ToolUnavailable,
}

impl From<Reason> for RetryReason {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::InvalidArguments => Self::InvalidArguments,
            Reason::MissingFields => Self::MissingFields,
            Reason::MalformedResponse => Self::MalformedResponse,
            Reason::Timeout => Self::Timeout,
            Reason::RateLimited => Self::RateLimited,
            Reason::ToolUnavailable => Self::ToolUnavailable,
        }
    }
}

fn lookup(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: Args = call.args()?;
    if args.sleep_ms > 0 && clock::sleep(args.sleep_ms).is_err() {
        return Err(Failure::new("the run is being canceled").code("canceled"));
    }
    match args.fail {
        Some(fail) => Err(failure(fail, call)),
        None => match args.result {
            Some(result) => ToolResult::json(&result),
            None => ToolResult::json(&call.tool_call_id),
        },
    }
}

fn ids(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: Args = call.args()?;
    if clock::sleep(args.sleep_ms).is_err() {
        return Err(Failure::new("the run is being canceled").code("canceled"));
    }
    let parent = &call.parent_tool_call_id;
    ToolResult::json(&serde_json::json!({ "id": call.tool_call_id, "parent": parent }))
}

fn failure(fail: Fail, call: &ToolCall) -> Failure {
    let mut failure = Failure::new(fail.message);
    if let Some(code) = fail.code {
        failure = failure.code(code);
    }
    for cause in fail.causes {
        failure = failure.cause(cause);
    }
    if let Some(hint) = fail.hint {
        let mut made = RetryHint::new(hint.reason.into(), &call.name);
        made.restrict_to_tool = hint.restrict_to_tool;
        made.missing_fields = hint.missing_fields;
        made.clarifying_question = hint.question;
        made.message = hint.message;
        made.prior_input = Some(call.payload.clone());
        failure = failure.hint(made);
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{native, tool::Tool as _};

    fn call(payload: &str) -> Result<ToolResult, Failure> {
        Functions::call(native::tool_call("lookup", payload))
    }

    #[test]
    fn it_answers_what_it_is_told() {
        assert_eq!(call(r#"{"result":{"a":1}}"#).expect("a result").value, r#"{"a":1}"#);
        assert_eq!(call("{}").expect("a result").value, r#""call-1""#);
        serde_json::from_str::<Value>(LOOKUP).expect("the schema is JSON");
    }

    #[test]
    fn it_fails_as_it_is_told() {
        let failure = call(r#"{"fail":{"code":"c","message":"m","hint":{"reason":"timeout"}}}"#)
            .expect_err("a failure");
        assert_eq!(failure.error.message, "m");
        let hint = failure.retry_hint.as_ref().expect("a hint");
        assert_eq!((hint.reason, hint.tool.as_str()), (RetryReason::Timeout, "lookup"));
    }

    #[test]
    fn it_waits_and_stops_waiting_when_canceled() {
        call(r#"{"sleep_ms":70}"#).expect("a result");
        native::host(|host| {
            assert_eq!(host.now_ms, 70);
            host.cancel_at_ms = Some(100);
        });
        let failure = call(r#"{"sleep_ms":70}"#).expect_err("canceled");
        assert_eq!(failure.error.code.as_deref(), Some("canceled"));
        native::host(|host| assert_eq!(host.now_ms, 100));
        call(r#"{"sleep_ms":70}"#).expect("a wait that begins later ends as usual");
    }
}
