//! Bytes of what a guest returns: the sum of its texts, and [`ITEM_BYTES`] for each item of a
//! list, since also an empty one takes the host's memory.
//!
//! [`Store::set_hostcall_fuel`](wasmtime::Store::set_hostcall_fuel) bounds what is read of a
//! result in the first place; this is the exact limit of the policy.

use std::collections::BTreeMap;

use taskrun::ports::planner::{Decision, PlanResult};
use taskrun::ports::tool::ToolResult;
use taskrun_journal::delivery::{DeliverySettings, Strategy};
use taskrun_journal::media::Media;
use taskrun_journal::message::{Bounds, Message, Part, RetryHint, Telemetry, ToolError};
use taskrun_journal::plan::{PlannerError, ToolRequest};
use taskrun_journal::question::{Answer, AwaitItem, Question};
use taskrun_journal::runs::{ChildRequest, RunsRequest};
use taskrun_journal::stop::CallAbort;
use taskrun_journal::tool::{ToolFailure, ToolOutcome, ToolSpec};

/// The size of an item of a list, besides its texts.
pub(crate) const ITEM_BYTES: usize = 32;

/// Refuses a result beyond its limit.
pub(crate) fn check(bytes: usize, limit: u64) -> Result<(), CallAbort> {
    match bytes as u64 > limit {
        true => Err(CallAbort::Limit { what: "result bytes".to_owned(), limit }),
        false => Ok(()),
    }
}

pub(crate) fn tool_result(result: &ToolResult) -> usize {
    result.value.len()
        + optional(&result.server_data)
        + result.bounds.as_ref().map_or(0, bounds)
        + result.telemetry.as_ref().map_or(0, telemetry)
}

pub(crate) fn tool_failure(failure: &ToolFailure) -> usize {
    tool_error(&failure.error) + failure.retry_hint.as_deref().map_or(0, retry_hint)
}

pub(crate) fn specs(specs: &[ToolSpec]) -> usize {
    let bytes = |spec: &ToolSpec| {
        spec.name.len()
            + optional(&spec.title)
            + spec.description.len()
            + spec.input_schema.len()
            + optional(&spec.output_schema)
            + texts(&spec.tags)
    };
    items(specs, bytes)
}

/// The size of a request to the controller.
pub(crate) fn runs_request(request: &RunsRequest) -> usize {
    let pairs = |pairs: &BTreeMap<String, String>| items(pairs, |(k, v)| k.len() + v.len());
    let child = |child: &ChildRequest| {
        let added = pairs(&child.labels) + pairs(&child.metadata) + pairs(&child.envelope);
        let narrow = &child.narrow;
        let stated = narrow.tools.iter().chain(&narrow.only_tags);
        let lists = stated.chain([&narrow.deny, &narrow.deny_tags]).map(Vec::as_slice);
        let images = items(&child.images, media);
        let texts = lists.map(texts).sum::<usize>() + items(narrow.timeouts.keys(), String::len);
        let words = [&child.key, &child.name, &child.context, &child.parent_tool_call_id];
        let told = child.delivery.as_ref().map_or(0, delivery);
        let named = child.agent_name.len() + child.task.len() + items(words, optional);
        named + images + added + texts + told
    };
    match request {
        RunsRequest::Spawn(request) => child(request),
        RunsRequest::SpawnAll { children } => items(children, child),
        RunsRequest::Provide { id, item, answer } => {
            id.len() + optional(item) + self::answer(answer)
        }
        RunsRequest::List(filter) => {
            let words = [&filter.agent_name, &filter.parent_run_id, &filter.cursor];
            pairs(&filter.labels) + items(words, optional)
        }
        RunsRequest::Cancel { id, reason: told }
        | RunsRequest::CancelTree { id, reason: told }
        | RunsRequest::Pause { id, reason: told, timeout_ms: _ }
        | RunsRequest::Resume { id, note: told } => id.len() + optional(told),
        RunsRequest::Get { id }
        | RunsRequest::Wait { id, timeout_ms: _ }
        | RunsRequest::Transcript { id, limit: _ }
        | RunsRequest::Output { id, from: _ }
        | RunsRequest::Subscribe { id, .. } => id.len(),
        RunsRequest::CheckAwaited { ids } => texts(ids),
        RunsRequest::CompleteEntry { id, result, .. } => id.len() + result.len(),
    }
}

fn delivery(delivery: &DeliverySettings) -> usize {
    let separator = delivery.strategy.as_ref().and_then(Strategy::separator);
    separator.map_or(0, str::len) + optional(&delivery.notify) + optional(&delivery.prompt)
}

pub(crate) fn labels(labels: &[(String, String)]) -> usize {
    items(labels, |(key, value)| key.len() + value.len())
}

pub(crate) fn planner_error(error: &PlannerError) -> usize {
    optional(&error.code) + error.message.len() + texts(&error.causes)
}

pub(crate) fn plan_result(result: &PlanResult) -> usize {
    let notes = items(&result.notes, |note| {
        note.text.len() + items(&note.labels, |(k, v)| k.len() + v.len())
    });
    decision(&result.decision) + notes
}

fn decision(decision: &Decision) -> usize {
    match decision {
        Decision::ToolCalls(calls) => items(calls, tool_request),
        Decision::FinalResponse(message) => self::message(message),
        Decision::FinalToolResult(result) => {
            let outcome = match &result.outcome {
                ToolOutcome::Value(value) => value.len(),
                ToolOutcome::Failure(failure) => tool_failure(failure),
            };
            outcome
                + optional(&result.server_data)
                + result.bounds.as_ref().map_or(0, bounds)
                + result.telemetry.as_ref().map_or(0, telemetry)
        }
        Decision::Await(asks) => {
            items(asks, |ask| await_item(&ask.what) + ask.default.as_ref().map_or(0, answer))
        }
        Decision::AwaitRuns(wait) => {
            items(&wait.runs, String::len) + wait.call.as_ref().map_or(0, tool_request)
        }
    }
}

fn tool_request(request: &ToolRequest) -> usize {
    request.name.len()
        + request.payload.len()
        + optional(&request.tool_call_id)
        + optional(&request.parent_tool_call_id)
}

fn message(message: &Message) -> usize {
    items(&message.parts, |part| match part {
        Part::Text(text) | Part::Json(text) => text.len(),
        Part::Thinking(block) => block.text.len() + optional(&block.signature),
        Part::ToolUse(call) => call.tool_call_id.len() + call.name.len() + call.payload.len(),
        Part::ToolAnswer(answer) => {
            let media = items(&answer.media, media);
            answer.tool_call_id.len() + answer.content.len() + media
        }
        Part::Media(one) => media(one),
    })
}

fn media(media: &Media) -> usize {
    media.media_type.len() + media.hash.len()
}

fn answer(answer: &Answer) -> usize {
    match answer {
        Answer::Text(text) => text.len(),
        Answer::Choices(choices) => {
            choices.iter().map(|(id, chosen)| id.len() + texts(chosen)).sum()
        }
        Answer::Results(results) => results
            .iter()
            .map(|(id, result)| {
                let bounds = result.bounds.as_ref().map_or(0, bounds);
                let outcome = match &result.outcome {
                    ToolOutcome::Value(value) => value.len(),
                    ToolOutcome::Failure(failure) => tool_failure(failure),
                };
                id.len() + outcome + bounds
            })
            .sum(),
        Answer::Refused(reason) => reason.len(),
        Answer::Confirmed(_) | Answer::ConfirmedForRun(_) | Answer::TimedOut => 0,
    }
}

fn await_item(item: &AwaitItem) -> usize {
    match item {
        AwaitItem::Clarification {
            id,
            question,
            missing_fields,
            restrict_to_tool,
            example_input,
            clarifying_prompt,
        } => {
            id.len()
                + question.len()
                + texts(missing_fields)
                + optional(restrict_to_tool)
                + optional(example_input)
                + optional(clarifying_prompt)
        }
        AwaitItem::Questions { id, tool_name, tool_call_id, payload, title, questions } => {
            let questions = items(questions, question);
            id.len()
                + tool_name.len()
                + tool_call_id.len()
                + payload.len()
                + optional(title)
                + questions
        }
        AwaitItem::ExternalTools { id, items: tools } => {
            let tools =
                items(tools, |item| item.name.len() + item.tool_call_id.len() + item.payload.len());
            id.len() + tools
        }
        AwaitItem::Confirmation {
            id,
            question,
            tool_name,
            tool_call_id,
            payload,
            digest,
            policy,
        } => {
            let of_call = tool_name.len() + tool_call_id.len() + payload.len();
            id.len() + question.len() + of_call + optional(digest) + optional(policy)
        }
    }
}

fn question(question: &Question) -> usize {
    let options = items(&question.options, |(id, label)| id.len() + label.len());
    question.id.len() + question.prompt.len() + options
}

fn tool_error(error: &ToolError) -> usize {
    optional(&error.code) + error.message.len() + texts(&error.causes)
}

fn retry_hint(hint: &RetryHint) -> usize {
    hint.tool.len()
        + texts(&hint.missing_fields)
        + optional(&hint.example_input)
        + optional(&hint.prior_input)
        + optional(&hint.clarifying_question)
        + optional(&hint.message)
}

fn bounds(bounds: &Bounds) -> usize {
    optional(&bounds.continuation) + optional(&bounds.refinement)
}

fn telemetry(telemetry: &Telemetry) -> usize {
    optional(&telemetry.model) + optional(&telemetry.extra)
}

fn optional(text: &Option<String>) -> usize {
    text.as_ref().map_or(0, String::len)
}

pub(crate) fn texts(texts: &[String]) -> usize {
    items(texts, String::len)
}

fn items<I: IntoIterator>(list: I, bytes: impl Fn(I::Item) -> usize) -> usize {
    list.into_iter().map(|item| ITEM_BYTES + bytes(item)).sum()
}

#[cfg(test)]
mod tests {
    use taskrun_journal::message::Role;

    use super::*;

    #[test]
    fn every_text_of_a_decision_counts() {
        let result = |decision| PlanResult {
            decision,
            streamed: false,
            expected_children: None,
            notes: Vec::new(),
        };
        let response = Decision::FinalResponse(Message::text(Role::Assistant, "12345"));
        assert_eq!(plan_result(&result(response)), 5 + ITEM_BYTES);
        let calls = Decision::ToolCalls(vec![ToolRequest {
            name: "a/b".into(),
            payload: "{}".into(),
            tool_call_id: Some("1".into()),
            parent_tool_call_id: None,
        }]);
        assert_eq!(plan_result(&result(calls)), 6 + ITEM_BYTES);
        let empty =
            Message { role: Role::Assistant, parts: vec![Part::Text("".into()); 1_000].into() };
        assert_eq!(plan_result(&result(Decision::FinalResponse(empty))), 1_000 * ITEM_BYTES);
    }

    #[test]
    fn the_limit_itself_is_allowed() {
        assert!(check(10, 10).is_ok());
        assert_eq!(check(11, 10), Err(CallAbort::Limit { what: "result bytes".into(), limit: 10 }));
    }
}
