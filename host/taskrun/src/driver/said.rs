//! The message that a plan step leaves in the conversation: its words and its calls.

use std::collections::BTreeMap;

use taskrun_journal::event::Event;
use taskrun_journal::message::{Message, Part, Role};
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::tool::ToolOutcome;

use super::results::tool_use;
use crate::ports::planner::Decision;
use crate::scope::Tape;

/// Text and reasoning that a step has sent in parts and no whole message has replaced. `tape` is
/// all that it did, under whatever host.
pub(super) fn sent_in_parts(tape: &Tape) -> Vec<Part> {
    let (mut text, mut parts) = (String::new(), Vec::new());
    for event in tape.emitted() {
        if let Event::AssistantChunk { text: more } = event {
            text.push_str(more);
        } else if let Event::ThinkingBlock { block } = event {
            parts.push(Part::Thinking(block.clone()));
        } else if let Event::AssistantMessage { .. } = event {
            text.clear();
            parts.clear();
        }
    }
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    parts
}

/// The message of a decision in the conversation. `before` are the parts of the model's answer, or
/// those that the step sent.
pub(super) fn message(decision: &Decision, before: Vec<Part>) -> Option<Message> {
    let calling = |before: Vec<Part>, requests: &[ToolRequest]| {
        let parts = with_calls(before, requests);
        Some(Message { role: Role::Assistant, parts: parts.into() })
    };
    match decision {
        Decision::ToolCalls(requests) => calling(before, requests),
        Decision::AwaitRuns(wait) => calling(before, wait.call.as_slice()),
        Decision::FinalResponse(message) => {
            Some(Message { role: Role::Assistant, parts: message.parts.clone() })
        }
        Decision::FinalToolResult(result) => match &result.outcome {
            ToolOutcome::Value(value) => Some(Message::text(Role::Assistant, value.clone())),
            ToolOutcome::Failure(_) => None,
        },
        Decision::Await(_) => words_of(before),
    }
}

/// The words of a step that asks, without the model's requests: those stand where the answers do.
/// `None` if it said nothing.
fn words_of(mut parts: Vec<Part>) -> Option<Message> {
    parts.retain(|part| !matches!(part, Part::ToolUse(_)));
    (!parts.is_empty()).then(|| Message { role: Role::Assistant, parts: parts.into() })
}

/// The calls under which those belong that were decided on, by the ids of these.
pub(super) fn parents(decision: &Decision) -> BTreeMap<String, String> {
    let requests = match decision {
        Decision::ToolCalls(requests) => requests.as_slice(),
        Decision::AwaitRuns(wait) => wait.call.as_slice(),
        Decision::FinalResponse(_) | Decision::FinalToolResult(_) | Decision::Await(_) => &[],
    };
    let parents = requests.iter().filter_map(|request| {
        Some((request.tool_call_id.clone()?, request.parent_tool_call_id.clone()?))
    });
    parents.collect()
}

/// The parts of a model's answer with the calls that were decided on. Some providers want their own
/// reasoning back with the results, to the letter and in its place, so it is taken from the answer
/// and not from the planner's decision. A call takes the place of the model's request
/// of its id; one that the model did not ask for stands behind, and a request that was not followed
/// is left out, as it has no result.
fn with_calls(said: Vec<Part>, requests: &[ToolRequest]) -> Vec<Part> {
    let mut calls: Vec<_> = requests.iter().map(tool_use).collect();
    let mut parts = Vec::with_capacity(said.len() + calls.len());
    for part in said {
        let Part::ToolUse(asked) = part else {
            parts.push(part);
            continue;
        };
        let place = calls.iter().position(|call| call.tool_call_id == asked.tool_call_id);
        parts.extend(place.map(|place| Part::ToolUse(calls.remove(place))));
    }
    parts.extend(calls.into_iter().map(Part::ToolUse));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_journal::event::StepPrefix;
    use taskrun_journal::message::Thinking;

    #[test]
    fn what_a_step_sent_under_another_host_is_part_of_what_it_sent() {
        let chunk = |text: &str| Event::AssistantChunk { text: text.to_owned() };
        let block = Thinking { text: "hm".to_owned(), signature: None };
        let message = Message::text(Role::Assistant, "whole");
        let whole = Event::AssistantMessage { message, usage: None, model: None, streamed: false };
        let mut tape = Tape::default();
        let before = [chunk("gone"), whole, chunk("a"), chunk("void")];
        let restarted = Event::StepRestarted {
            turn: 1,
            kept: StepPrefix { events: 3, ..StepPrefix::default() },
        };
        let after = [restarted, Event::ThinkingBlock { block: block.clone() }, chunk("b")];
        before.iter().chain(&after).for_each(|event| tape.push(event));
        let expected = vec![Part::Thinking(block), Part::Text("ab".to_owned())];
        assert_eq!(sent_in_parts(&tape), expected);
    }

    #[test]
    fn calls_stand_where_the_model_asked_for_them() {
        let thinking = |text: &str| {
            Part::Thinking(Thinking { text: text.to_owned(), signature: Some("s".to_owned()) })
        };
        let request = |id: &str| ToolRequest {
            name: "t/f".to_owned(),
            payload: "{}".to_owned(),
            tool_call_id: Some(id.to_owned()),
            parent_tool_call_id: None,
        };
        let call = |id: &str| Part::ToolUse(tool_use(&request(id)));
        let said = vec![thinking("1"), call("a"), thinking("2"), call("left out"), call("b")];
        let parts = with_calls(said, &[request("a"), request("b"), request("own")]);
        assert_eq!(parts, [thinking("1"), call("a"), thinking("2"), call("b"), call("own")]);
    }
}
