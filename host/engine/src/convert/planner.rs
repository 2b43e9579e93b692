//! The decisions of planners.

use std::collections::BTreeMap;
use std::time::Duration;

use taskrun::ports::planner as host;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::question::{ANSWER_BYTES_MAX, Answer};
use taskrun_journal::{plan, question, tool};

use super::message::annotation;
use crate::bindings::agent::exports::taskrun::plugin::planner as guest;

impl From<guest::PlanResult> for host::PlanResult {
    fn from(result: guest::PlanResult) -> Self {
        Self {
            decision: result.decision.into(),
            streamed: result.streamed,
            expected_children: result.expected_children,
            notes: result
                .notes
                .into_iter()
                .map(|note| annotation(note.text, note.labels))
                .collect(),
        }
    }
}

impl From<guest::PlannerError> for plan::PlannerError {
    fn from(error: guest::PlannerError) -> Self {
        Self {
            code: error.code,
            message: error.message,
            causes: error.causes,
            retry_after_ms: error.retry_after,
        }
    }
}

impl From<guest::Decision> for host::Decision {
    fn from(decision: guest::Decision) -> Self {
        match decision {
            guest::Decision::ToolCalls(calls) => {
                Self::ToolCalls(calls.into_iter().map(Into::into).collect())
            }
            guest::Decision::FinalResponse(response) => {
                Self::FinalResponse(response.message.into())
            }
            guest::Decision::FinalToolResult(result) => {
                Self::FinalToolResult(Box::new(result.into()))
            }
            guest::Decision::AwaitRuns(wait) => Self::AwaitRuns(host::RunsWait {
                runs: wait.runs,
                mode: match wait.mode {
                    guest::AwaitMode::All => WaitMode::All,
                    guest::AwaitMode::Any => WaitMode::Any,
                },
                timeout: wait.timeout.map(Duration::from_millis),
                call: wait.call.map(Into::into),
            }),
            guest::Decision::Await(request) => {
                Self::Await(request.items.into_iter().map(Into::into).collect())
            }
        }
    }
}

impl From<guest::ToolRequest> for plan::ToolRequest {
    fn from(request: guest::ToolRequest) -> Self {
        let guest::ToolRequest { name, payload, tool_call_id, parent_tool_call_id } = request;
        Self { name, payload, tool_call_id, parent_tool_call_id }
    }
}

impl From<guest::FinalToolResult> for plan::FinalToolResult {
    fn from(result: guest::FinalToolResult) -> Self {
        let outcome = match result.outcome {
            guest::ToolOutcome::Value(value) => tool::ToolOutcome::Value(value),
            guest::ToolOutcome::Failure(failure) => tool::ToolOutcome::Failure(failure.into()),
        };
        Self {
            outcome,
            server_data: result.server_data,
            bounds: result.bounds.map(Into::into),
            telemetry: result.telemetry.map(Into::into),
        }
    }
}

impl From<guest::AwaitAsk> for question::Ask {
    fn from(ask: guest::AwaitAsk) -> Self {
        let what = question::AwaitItem::from(ask.what);
        let default = ask.default_answer.map(|answer| match answer {
            guest::DefaultAnswer::Text(text) => Answer::Text(text),
            guest::DefaultAnswer::Choices(choices) => {
                Answer::Choices(choices.into_iter().collect())
            }
            guest::DefaultAnswer::EachResult(value) => Answer::Results(each(&what, &value)),
        });
        Self { what, timeout: ask.timeout.map(Duration::from_millis), default }
    }
}

/// The same result for each call outside. Where that would be more than an answer may be, and for
/// what is no such item, there is none, which does not fit.
fn each(what: &question::AwaitItem, value: &str) -> BTreeMap<String, question::ExternalResult> {
    match what {
        question::AwaitItem::ExternalTools { items, .. } => {
            let fits = items.len().saturating_mul(value.len()) <= ANSWER_BYTES_MAX;
            let calls = items.iter().filter(|_| fits).map(|item| &item.tool_call_id);
            let result = || tool::ToolOutcome::Value(value.to_owned()).into();
            calls.map(|id| (id.clone(), result())).collect()
        }
        question::AwaitItem::Clarification { .. }
        | question::AwaitItem::Questions { .. }
        | question::AwaitItem::Confirmation { .. } => BTreeMap::new(),
    }
}

impl From<guest::AwaitItem> for question::AwaitItem {
    fn from(item: guest::AwaitItem) -> Self {
        match item {
            guest::AwaitItem::Clarification(ask) => Self::Clarification {
                id: ask.id,
                question: ask.question,
                missing_fields: ask.missing_fields,
                restrict_to_tool: ask.restrict_to_tool,
                example_input: ask.example_input,
                clarifying_prompt: ask.clarifying_prompt,
            },
            guest::AwaitItem::Questions(form) => Self::Questions {
                id: form.id,
                tool_name: form.tool_name,
                tool_call_id: form.tool_call_id,
                payload: form.payload,
                title: form.title,
                questions: form.questions.into_iter().map(question).collect(),
            },
            guest::AwaitItem::ExternalTools(tools) => Self::ExternalTools {
                id: tools.id,
                items: tools
                    .items
                    .into_iter()
                    .map(|item| question::ExternalTool {
                        name: item.name,
                        tool_call_id: item.tool_call_id,
                        payload: item.payload,
                    })
                    .collect(),
            },
        }
    }
}

fn question(question: guest::Question) -> question::Question {
    question::Question {
        id: question.id,
        prompt: question.prompt,
        options: question.options.into_iter().map(|option| (option.id, option.label)).collect(),
        allow_multiple: question.allow_multiple,
    }
}
