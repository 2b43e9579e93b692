//! Values of the contract as JSON, with the contract's names.

use crate::play::Input;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use taskrun_guest::{
    agent::{Reminder, ToolOutcome, ToolOutput},
    types::{Attachment, Label, Media, Message, Part, Role, RunContext},
};

fn labels(labels: &[Label]) -> Value {
    let map: BTreeMap<&str, &str> =
        labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    json!(map)
}

pub(crate) fn context(run: &RunContext) -> Value {
    json!({
        "run-id": run.run_id,
        "parent-run-id": run.parent_run_id,
        "root-run-id": run.root_run_id,
        "session-id": run.session_id,
        "parent-session-id": run.parent_session_id,
        "owner-user-id": run.owner_user_id,
        "app-name": run.app_name,
        "agent-name": run.agent_name,
        "turn": run.turn,
        "attempt": run.attempt,
        "depth": run.depth,
        "parent-tool-call-id": run.parent_tool_call_id,
        "labels": labels(&run.labels),
        "envelope": labels(&run.envelope),
    })
}

pub(crate) fn input(input: &Input) -> Value {
    match input {
        Input::Start(input) => json!({
            "messages": messages(&input.messages),
            "run": context(&input.run),
            "reminders": reminders(&input.reminders),
        }),
        Input::Resume(input) => json!({
            "messages": messages(&input.messages),
            "run": context(&input.run),
            "reminders": reminders(&input.reminders),
            "tool-outputs": input.tool_outputs.iter().map(output).collect::<Vec<_>>(),
            "finalize": input.finalize.as_ref().map(|termination| json!({
                "reason": termination.reason.name(),
                "message": termination.message,
            })),
        }),
    }
}

fn reminders(reminders: &[Reminder]) -> Value {
    let one = |note: &Reminder| {
        let place = match note.attachment {
            Attachment::RunStart => "run-start",
            Attachment::UserTurn => "user-turn",
        };
        json!({"id": note.id, "text": note.text, "attachment": place})
    };
    reminders.iter().map(one).collect()
}

fn messages(messages: &[Message]) -> Value {
    messages
        .iter()
        .map(|message| {
            let role = match message.role {
                Role::System => "system",
                Role::User => "user",
                Role::Assistant => "assistant",
                Role::Tool => "tool",
            };
            json!({"role": role, "parts": message.parts.iter().map(part).collect::<Vec<_>>()})
        })
        .collect()
}

fn part(part: &Part) -> Value {
    match part {
        Part::Text(text) => json!({"text": text}),
        Part::Thinking(block) => {
            json!({"thinking": {"text": block.text, "signature": block.signature}})
        }
        Part::ToolUse(call) => json!({"tool-use": {
            "tool-call-id": call.tool_call_id, "name": call.name, "payload": call.payload,
        }}),
        Part::ToolAnswer(answer) => json!({"tool-answer": {
            "tool-call-id": answer.tool_call_id,
            "content": answer.content,
            "is-error": answer.is_error,
            "media": answer.media.iter().map(media).collect::<Vec<_>>(),
        }}),
        Part::Json(text) => json!({"json": text}),
        Part::Media(one) => json!({"media": media(one)}),
    }
}

fn media(media: &Media) -> Value {
    json!({"media-type": media.media_type, "hash": media.hash, "size": media.size})
}

fn output(output: &ToolOutput) -> Value {
    let outcome = match &output.outcome {
        ToolOutcome::Value(json) => json!({"value": json}),
        ToolOutcome::Failure(failure) => json!({"failure": {
            "code": failure.error.code,
            "message": failure.error.message,
            "causes": failure.error.causes,
            "advice": failure.retry_hint.as_ref().map(|hint| &hint.message),
        }}),
    };
    json!({
        "name": output.name,
        "tool-call-id": output.tool_call_id,
        "payload": output.payload,
        "outcome": outcome,
        "result-bytes": output.result_bytes,
        "result-omitted": output.result_omitted,
        "children-count": output.children_count,
        "run-link": output.run_link,
    })
}
