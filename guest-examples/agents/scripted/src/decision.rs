//! A decision written out in a script, with the contract's names:
//!
//! ```json
//! {"tool-calls": [{"name": "tool/fn", "args": {}, "id": "c", "parent": "p"}]}
//! {"final-response": "text"}
//! {"final-tool-result": {"value": {}}}
//! {"final-tool-result": {"failure": {"code": "c", "message": "m"}}}
//! {"await": [
//!   {"clarification": {"id": "i", "question": "q", "missing-fields": [], "restrict-to-tool": "t"}},
//!   {"questions": {"id": "i", "tool-name": "t", "tool-call-id": "c", "args": {}, "title": "t",
//!     "questions": [{"id": "i", "prompt": "p", "options": [["id", "label"]], "allow-multiple": false}]}},
//!   {"external-tools": {"id": "i", "items": [{"name": "n", "tool-call-id": "c", "args": {}}]}}
//! ]}
//! ```
//!
//! Beside any of what is asked: `"timeout-ms": 1000`, `"default": "text"`, or `{"question": ["id"]}`
//! for a form, `{"each-result": VALUE}` for tools outside.
//!
//! Beside any of these: `"streamed": true`, `"expected-children": 2`, `"notes": ["text"]`
//! with `"labels": {"key": "text"}` for all of these.

use crate::script::Malformed;
use serde_json::Value;
use taskrun_guest::{
    agent::{
        AwaitAsk, AwaitClarification, AwaitExternalTools, AwaitItem, AwaitQuestions, AwaitRequest,
        Decision, DefaultAnswer, ExternalTool, FinalResponse, FinalToolResult, Message, PlanResult,
        Question, QuestionOption, Role, ToolFailure, ToolOutcome, ToolRequest,
    },
    types::{Label, ToolError},
};

/// Reads a decision. Absent fields are empty, except names and ids.
pub(crate) fn plan(value: &Value, place: &str) -> Result<PlanResult, Malformed> {
    let here = Place { value, place: place.to_owned() };
    let mut result = PlanResult::new(decision(&here)?);
    result.streamed = here.flag("streamed");
    result.expected_children = value
        .get("expected-children")
        .and_then(Value::as_u64)
        .and_then(|count| u32::try_from(count).ok());
    let labels: Vec<Label> = value
        .get("labels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, text)| Some((key.clone(), text.as_str()?.to_owned())))
        .collect();
    for note in here.texts("notes") {
        result = result.labelled_note(note, labels.clone());
    }
    Ok(result)
}

fn decision(here: &Place) -> Result<Decision, Malformed> {
    if here.value.get("tool-calls").is_some() {
        return here.each("tool-calls", tool_request).map(Decision::ToolCalls);
    }
    if here.value.get("final-response").is_some() {
        let message = Message::text(Role::Assistant, here.text("final-response")?);
        return Ok(Decision::FinalResponse(FinalResponse { message }));
    }
    if let Some(value) = here.value.get("final-tool-result") {
        let there = Place { value, place: format!("{}.final-tool-result", here.place) };
        return Ok(Decision::FinalToolResult(FinalToolResult {
            outcome: outcome(&there)?,
            server_data: there.optional("server-data"),
            bounds: None,
            telemetry: None,
        }));
    }
    if here.value.get("await").is_some() {
        let items = here.each("await", await_ask)?;
        return Ok(Decision::Await(AwaitRequest { items }));
    }
    let known = "needs tool-calls, final-response, final-tool-result or await";
    Err(Malformed::at(&here.place, known))
}

fn outcome(here: &Place) -> Result<ToolOutcome, Malformed> {
    if let Some(value) = here.value.get("value") {
        return Ok(ToolOutcome::Value(value.to_string()));
    }
    let Some(value) = here.value.get("failure") else {
        return Err(Malformed::at(&here.place, "needs value or failure"));
    };
    let there = Place { value, place: format!("{}.failure", here.place) };
    let mut error = ToolError::new(there.text("message")?);
    error.code = there.optional("code");
    Ok(ToolOutcome::Failure(ToolFailure { error, retry_hint: None }))
}

fn tool_request(here: &Place) -> Result<ToolRequest, Malformed> {
    let mut request = ToolRequest::new(here.text("name")?, here.args());
    request.tool_call_id = here.optional("id");
    request.parent_tool_call_id = here.optional("parent");
    Ok(request)
}

/// An item with `timeout-ms` and `default` beside it: a text, an object of lists, or
/// `{"each-result": VALUE}`.
fn await_ask(here: &Place) -> Result<AwaitAsk, Malformed> {
    let timeout = here.value.get("timeout-ms").and_then(Value::as_u64);
    let default_answer = here.value.get("default").map(default_answer);
    Ok(AwaitAsk { what: await_item(here)?, timeout, default_answer })
}

fn default_answer(value: &Value) -> DefaultAnswer {
    if let Some(text) = value.as_str() {
        return DefaultAnswer::Text(text.to_owned());
    }
    if let Some(result) = value.get("each-result") {
        return DefaultAnswer::EachResult(result.to_string());
    }
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let chosen = |value: &Value| value.as_array().into_iter().flatten().map(text).collect();
    let choices = value.as_object().into_iter().flatten();
    DefaultAnswer::Choices(choices.map(|(id, value)| (id.clone(), chosen(value))).collect())
}

fn await_item(here: &Place) -> Result<AwaitItem, Malformed> {
    let part = |name: &str| {
        here.value.get(name).map(|value| Place { value, place: format!("{}.{name}", here.place) })
    };
    if let Some(there) = part("clarification") {
        return Ok(AwaitItem::Clarification(AwaitClarification {
            id: there.text("id")?,
            question: there.text("question")?,
            missing_fields: there.texts("missing-fields"),
            restrict_to_tool: there.optional("restrict-to-tool"),
            example_input: there.optional("example-input"),
            clarifying_prompt: there.optional("clarifying-prompt"),
        }));
    }
    if let Some(there) = part("questions") {
        return Ok(AwaitItem::Questions(AwaitQuestions {
            id: there.text("id")?,
            tool_name: there.text("tool-name")?,
            tool_call_id: there.text("tool-call-id")?,
            payload: there.args(),
            title: there.optional("title"),
            questions: there.each("questions", question)?,
        }));
    }
    if let Some(there) = part("external-tools") {
        return Ok(AwaitItem::ExternalTools(AwaitExternalTools {
            id: there.text("id")?,
            items: there.each("items", external_tool)?,
        }));
    }
    Err(Malformed::at(&here.place, "needs clarification, questions or external-tools"))
}

fn question(here: &Place) -> Result<Question, Malformed> {
    let options = here
        .list("options")
        .iter()
        .map(|option| match option.as_array().map(Vec::as_slice) {
            Some([Value::String(id), Value::String(label)]) => {
                Ok(QuestionOption { id: id.clone(), label: label.clone() })
            }
            Some(_) | None => Err(Malformed::at(&here.place, "an option is an id and a label")),
        })
        .collect::<Result<_, _>>()?;
    Ok(Question {
        id: here.text("id")?,
        prompt: here.text("prompt")?,
        options,
        allow_multiple: here.flag("allow-multiple"),
    })
}

fn external_tool(here: &Place) -> Result<ExternalTool, Malformed> {
    Ok(ExternalTool {
        name: here.text("name")?,
        tool_call_id: here.text("tool-call-id")?,
        payload: here.args(),
    })
}

/// A value and where it stands.
struct Place<'a> {
    value: &'a Value,
    place: String,
}

impl Place<'_> {
    fn text(&self, key: &str) -> Result<String, Malformed> {
        self.optional(key)
            .ok_or_else(|| Malformed::at(format!("{}.{key}", self.place), "must be a text"))
    }

    fn optional(&self, key: &str) -> Option<String> {
        self.value.get(key).and_then(Value::as_str).map(str::to_owned)
    }

    fn flag(&self, key: &str) -> bool {
        self.value.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    fn args(&self) -> String {
        self.value.get("args").map_or_else(|| "{}".to_owned(), Value::to_string)
    }

    fn list(&self, key: &str) -> &[Value] {
        self.value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    fn texts(&self, key: &str) -> Vec<String> {
        self.list(key).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// Reads every value of a list. An empty one is left to the host to refuse.
    fn each<T>(
        &self,
        key: &str,
        read: impl Fn(&Place) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        self.list(key)
            .iter()
            .enumerate()
            .map(|(index, value)| {
                read(&Place { value, place: format!("{}.{key}[{index}]", self.place) })
            })
            .collect()
    }
}
