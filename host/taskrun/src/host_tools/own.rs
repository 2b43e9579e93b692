//! The tools by which a run speaks of itself: that it is done, and in which state it is. A run that
//! goes on by itself has them unnamed.
//!
//! They refuse in words, as results of calls that did not fail: the model is to read what is missing,
//! and nothing has gone wrong.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use taskrun_journal::autonomy::{Autonomy, Done, MARK_BYTES_MAX, Mark, StateReport};
use taskrun_journal::stop::CallAbort;
use taskrun_journal::text::cut;
use taskrun_journal::tool::{ToolFailure, ToolHints, ToolSpec};
use taskrun_policy::{HOST, HostFunction};

use super::schedule::{self, DeferralBounds};
use super::value;
use crate::arguments::TurnSteps;
use crate::form::Form;
use crate::ports::tool::{Tool, ToolCall, ToolReply};
use crate::schema::Allowance;
use crate::scope::CallScope;

/// Most bytes of a result that a run is done with: it is kept in the run's record.
const RESULT_BYTES_MAX: usize = 64 << 10;
/// The status of a result in the form of others whose task failed.
const FAILED: &str = "failed";
/// The answer to a word that is taken.
const TAKEN: &str = "ok";

/// The tools by which one run speaks of itself.
pub(crate) struct OwnTools {
    specs: Vec<ToolSpec>,
    done: DoneRules,
    states: Vec<String>,
    deferral: Option<DeferralBounds>,
}

/// The rules for a run's word that it is done.
#[derive(Default)]
struct DoneRules {
    /// The form of the result that it has to give; `None` if any word will do.
    result: Option<Arc<Form>>,
}

impl OwnTools {
    /// Those of a run that goes on so.
    ///
    /// # Errors
    /// The mistake in the schema of its result.
    pub(crate) fn new(autonomy: &Autonomy) -> Result<Self, String> {
        let schema = autonomy.result_schema.as_deref().map(read_schema).transpose()?;
        let (form, schema) = schema.unzip();
        let mut specs = vec![done_spec(autonomy, schema.as_ref()), status_spec(&autonomy.states)];
        let deferral = DeferralBounds::of(autonomy);
        if deferral.is_some() {
            let name = HostFunction::ScheduleNextTurn.as_str();
            specs.push(spec(name, schedule::SCHEDULE, &schedule::schema()));
        }
        let done = DoneRules { result: form.map(Arc::new) };
        Ok(Self { specs, done, states: autonomy.states.clone(), deferral })
    }
}

/// Reads the schema of a result, and gives it as JSON besides.
///
/// # Errors
/// The mistake in it.
pub(crate) fn read_schema(schema: &str) -> Result<(Form, Value), String> {
    Form::new(schema, &mut Allowance::default())
}

#[async_trait]
impl Tool for OwnTools {
    fn digest(&self) -> &str {
        "host"
    }

    fn hears_cancellation(&self) -> bool {
        true
    }

    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn call(
        &self,
        call: ToolCall,
        scope: Arc<CallScope>,
    ) -> Result<Result<ToolReply, ToolFailure>, CallAbort> {
        if call.name == HostFunction::SetStatus.as_str() {
            return Ok(Ok(set_status(&call.payload, &self.states)));
        }
        if let Some(deferral) = &self.deferral
            && call.name == HostFunction::ScheduleNextTurn.as_str()
        {
            return Ok(Ok(deferral.answer(&call.payload, scope.now())));
        }
        Ok(Ok(self.done.report(&call.payload).await))
    }
}

/// The answer to a call of `report_done` by a run that has no settings of its own.
pub(super) async fn report_done(payload: &str) -> ToolReply {
    DoneRules::default().report(payload).await
}

/// True if a run that goes on so is done by a call of `report_done` with these arguments, and false
/// if the word is rejected.
pub(crate) async fn is_taken(autonomy: &Autonomy, payload: &str) -> bool {
    let form = autonomy.result_schema.as_deref().map(read_schema).transpose();
    match form {
        Ok(form) => {
            let result = form.map(|(form, _)| Arc::new(form));
            DoneRules { result }.read(payload).await.is_ok()
        }
        Err(_) => false,
    }
}

impl DoneRules {
    /// The word that a call says, or why it is none.
    async fn read(&self, payload: &str) -> Result<Done, String> {
        let given = arguments(payload, "detail");
        match &self.result {
            Some(form) => wanted(form, &given).await,
            None => any(&given),
        }
    }

    async fn report(&self, payload: &str) -> ToolReply {
        match self.read(payload).await {
            Ok(done) => marked(TAKEN, Mark::Done(done)),
            Err(why) if self.result.is_some() => {
                marked(&format!("rejected: {why}"), Mark::Rejected)
            }
            Err(why) => value(&json!(format!("rejected: {why}"))),
        }
    }
}

/// The arguments of a call; those that are a text and no object are the one of this name.
pub(super) fn arguments(payload: &str, single: &str) -> Map<String, Value> {
    match serde_json::from_str(payload) {
        Ok(Value::Object(given)) => given,
        Ok(Value::String(text)) => Map::from_iter([(single.to_owned(), Value::String(text))]),
        Ok(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_)) | Err(_) => {
            Map::new()
        }
    }
}

/// The text under a name, trimmed, if there is any.
pub(super) fn text<'v>(given: &'v Map<String, Value>, name: &str) -> Option<&'v str> {
    given.get(name)?.as_str().map(str::trim).filter(|text| !text.is_empty())
}

/// The word of a run that may say what it likes, but has to say something.
fn any(given: &Map<String, Value>) -> Result<Done, String> {
    let words = || ["detail", "summary"].into_iter().find_map(|name| text(given, name));
    let result = match given.get("result") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) if text.trim().is_empty() => None,
        Some(result) => Some(result.clone()),
    };
    let result = result.or_else(|| submitted(given));
    let words = match (words(), &result) {
        (Some(words), _) => words.to_owned(),
        (None, Some(Value::String(text))) => text.trim().to_owned(),
        (None, Some(result)) => result.to_string(),
        (None, None) => {
            return Err("result is required: say what came of the task, whole".to_owned());
        }
    };
    done(given, &words, result.as_ref())
}

/// Why the task failed of which this is the result, if it has the form that others know, and says
/// so in that.
fn failure(submitted: &Map<String, Value>) -> Option<String> {
    let summary = text(submitted, "summary")?;
    let reason = text(submitted, "reason").unwrap_or(summary);
    let has_failed = text(submitted, "status") == Some(FAILED);
    has_failed.then(|| cut(reason, MARK_BYTES_MAX).to_owned())
}

/// The result in the form that others know, `status`, `summary` and what belongs to them: what is
/// not given, or is of another kind, has its default.
fn submitted(given: &Map<String, Value>) -> Option<Value> {
    let summary = text(given, "summary")?;
    let status = text(given, "status").filter(|status| *status == FAILED);
    let data = given.get("data").filter(|data| data.is_object()).cloned();
    let deliverables = given.get("deliverables").filter(|all| all.is_array()).cloned();
    let mut result = json!({
        "status": status.unwrap_or("completed"),
        "summary": summary,
        "data": data.unwrap_or_else(|| json!({})),
        "deliverables": deliverables.unwrap_or_else(|| json!([])),
    });
    if let (Some(reason), Value::Object(result)) = (text(given, "reason"), &mut result) {
        result.insert("reason".to_owned(), json!(reason));
    }
    Some(result)
}

/// The word of a run that has to give a result of this form: under `result`, or as the arguments
/// themselves; one that was written as a text is read.
async fn wanted(form: &Arc<Form>, given: &Map<String, Value>) -> Result<Done, String> {
    let read = |value: &Value| serde_json::from_str::<Value>(value.as_str()?).ok();
    let all = || Value::Object(given.clone());
    let (mut tried, mut fault) = (Vec::new(), None);
    match given.get("result") {
        None | Some(Value::Null) if given.is_empty() => {}
        None | Some(Value::Null) => tried.push(all()),
        Some(result) => {
            tried.push(result.clone());
            tried.extend(read(result));
        }
    }
    let steps = TurnSteps::default();
    for result in &tried {
        match form.check(&result.to_string(), &steps).await {
            Ok(()) => {
                let words = text(given, "detail").map(str::to_owned);
                let words = words.unwrap_or_else(|| result.to_string());
                return done(given, &words, Some(result));
            }
            Err(found) => fault = fault.or(Some(found.words())),
        }
    }
    Err(match fault {
        Some(fault) => format!("the result {fault}"),
        None => "result is required: give what came of the task in the form that is asked for"
            .to_owned(),
    })
}

/// The word of a call with these arguments. That the task failed is said by its result, or by the
/// arguments that stand beside that.
fn done(given: &Map<String, Value>, words: &str, result: Option<&Value>) -> Result<Done, String> {
    let failed = result.and_then(Value::as_object).and_then(failure).or_else(|| failure(given));
    let result = result.map(Value::to_string);
    if result.as_ref().is_some_and(|result| result.len() > RESULT_BYTES_MAX) {
        return Err(format!("the result has more than {RESULT_BYTES_MAX} bytes"));
    }
    // What a model says beside its result may be cut.
    Ok(Done { detail: cut(words, MARK_BYTES_MAX).to_owned(), result, failed })
}

/// The answer to a call of `set_status` by a run that may be in these states, or in any.
pub(super) fn set_status(payload: &str, states: &[String]) -> ToolReply {
    let given = arguments(payload, "state");
    let Some(state) = text(&given, "state") else {
        return value(&json!("rejected: state is required"));
    };
    if !states.is_empty() && !states.iter().any(|allowed| allowed == state) {
        let known = states.join(", ");
        let why = format!("rejected: state {state:?} is not in the allowed set: {known}");
        return value(&json!(why));
    }
    let detail = text(&given, "detail").map(|text| cut(text, MARK_BYTES_MAX).to_owned());
    let state = cut(state, MARK_BYTES_MAX).to_owned();
    marked(TAKEN, Mark::Status(StateReport { state, detail }))
}

pub(super) fn marked(words: &str, mark: Mark) -> ToolReply {
    match value(&json!(words)) {
        ToolReply::Value(value) => ToolReply::Marked(value, mark),
        other @ (ToolReply::Park(_) | ToolReply::Marked(..)) => other,
    }
}

/// The description of the tool by which a run says that it is done.
fn done_spec(autonomy: &Autonomy, schema: Option<&Value>) -> ToolSpec {
    let mut properties = json!({
        "detail": { "type": "string", "description": "What came of it, in a few words." },
    });
    let mut described = json!({ "type": "object", "required": ["detail"] });
    match schema {
        Some(schema) => {
            let mut schema = schema.clone();
            // References within it are from the root on.
            if let Value::Object(keys) = &mut schema {
                for name in ["$defs", "definitions"] {
                    if let Some(definitions) = keys.remove(name) {
                        described[name] = definitions;
                    }
                }
            }
            properties["result"] = schema;
            described["required"] = json!(["result"]);
        }
        None => {
            properties["result"] =
                json!({ "description": "The whole result, where there is more to it." });
        }
    }
    described["properties"] = properties;
    let own = autonomy.done.as_ref().and_then(|done| done.description.clone());
    spec(autonomy.done_name(), own.as_deref().unwrap_or(DONE), &described)
}

const DONE: &str = "Says that the task is done, and with what result; nothing more is done after \
                    it. Do not say so before all of it is.";
const STATUS: &str = "Says in which state your work is, for whoever looks at it.";

/// The description of `report_done` for a run without settings of its own.
pub(super) fn plain(function: HostFunction) -> (&'static str, Value) {
    let words = json!({ "type": "string", "description": "In a few words." });
    if function == HostFunction::SetStatus {
        let properties = json!({ "state": { "type": "string" }, "detail": words });
        return (
            STATUS,
            json!({ "type": "object", "properties": properties, "required": ["state"] }),
        );
    }
    if function == HostFunction::ScheduleNextTurn {
        return (schedule::SCHEDULE, schedule::schema());
    }
    let result = json!({ "description": "The whole result, where there is more to it." });
    let properties = json!({ "detail": words, "result": result });
    (DONE, json!({ "type": "object", "properties": properties, "required": ["detail"] }))
}

fn status_spec(states: &[String]) -> ToolSpec {
    let (description, mut described) = plain(HostFunction::SetStatus);
    if !states.is_empty() {
        let known = format!("One of: {}.", states.join(", "));
        described["properties"]["state"]["description"] = json!(known);
    }
    spec(HostFunction::SetStatus.as_str(), description, &described)
}

fn spec(name: &str, description: &str, schema: &Value) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        title: None,
        description: description.to_owned(),
        input_schema: schema.to_string(),
        output_schema: None,
        hints: ToolHints { idempotent: true, ..ToolHints::default() },
        timeout: None,
        tags: vec![HOST.to_owned()],
        stated_tags: vec![HOST.to_owned()],
    }
}

/// The schema that calls are held to: what does not fit is refused by the tools, in their own words.
pub(crate) const ANY_ARGUMENTS: &str = "{}";
