//! The view that a run has of the runs beneath it, without the things of hosts and operators: names
//! of hosts, rules with their places, seeds, the tape of plan steps, lines of the log.

use serde_json::{Value, json};
use taskrun_journal::event::{
    CallEvent, DialogEvent, Event, EventRecord, EventView, LifecycleEvent, StepEvent, TapedEvent,
};
use taskrun_journal::reply::RESULT_CHARS_MAX;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::runs::{EVENT_PAYLOAD_BYTES_MAX, EventInfo, RunInfo};
use taskrun_journal::text::first_chars;

/// Keys of a run as it is shown that its record has by itself, or that are too large for one.
const NOT_IN_DETAILS: [&str; 16] = [
    "id",
    "parent_run_id",
    "agent_name",
    "status",
    "blocked_on",
    "stop_reason",
    "partial",
    "summary",
    "result",
    "result_images",
    "truncated",
    "error",
    "awaits",
    "turns",
    "labels",
    "revision",
];

/// A run as one above it sees it.
pub(crate) fn info(run: &Run) -> RunInfo {
    let view = RunView::for_callers(run);
    let mut details = serde_json::to_value(&view).expect("a view has text keys only");
    if let Value::Object(keys) = &mut details {
        keys.retain(|key, _| !NOT_IN_DETAILS.contains(&key.as_str()));
    }
    let creator = run.spec.ancestors.last().map_or("user", |above| above.agent_name.as_str());
    details["created_by"] = json!(creator);
    details["task"] = json!(first_chars(&run.spec.task, RESULT_CHARS_MAX));
    // A result that it returned stands in the place of its answer, which is told beside it.
    let answer = run.state.reply.result().filter(|answer| view.result.as_ref() != Some(answer));
    if let Some(answer) = answer {
        details["final_text"] = json!(answer);
    }
    RunInfo {
        id: view.id.to_string(),
        parent_run_id: view.parent_run_id.map(|id| id.to_string()).unwrap_or_default(),
        agent_name: view.agent_name,
        status: view.status,
        blocked_on: view.blocked_on,
        stop_reason: view.stop_reason,
        partial: view.partial,
        result: view.result,
        truncated: view.truncated,
        images: view.result_images,
        error: view.error,
        awaits: view.awaits,
        turns: view.turns,
        usage: run.state.progress.usage(),
        labels: view.labels,
        revision: view.revision,
        created_at: view.created_at,
        updated_at: view.updated_at,
        started_at: view.started_at,
        finished_at: view.finished_at,
        details: details.to_string(),
    }
}

/// An event as a run above sees it; `None` for one that only the host needs.
pub(super) fn shown(recorded: &EventRecord) -> Option<EventInfo> {
    let event = &recorded.event;
    let payload = match event.view() {
        EventView::Lifecycle(view) => match view {
            LifecycleEvent::Queued { spec } => json!({ "agent_name": spec.agent_name }),
            LifecycleEvent::Started { .. }
            | LifecycleEvent::Resumed { .. }
            | LifecycleEvent::FinalizerStarted => json!({}),
            LifecycleEvent::Blocked { on, .. } => json!({ "on": on }),
            LifecycleEvent::PauseRequested { .. }
            | LifecycleEvent::PauseEnded { .. }
            | LifecycleEvent::CancelRequested { .. }
            | LifecycleEvent::Finished { .. } => whole(event),
            LifecycleEvent::Finalizing { ending } => json!({ "ending": ending.for_guests() }),
            // What it is executed with is between the host and the policy.
            LifecycleEvent::Lost { .. } | LifecycleEvent::Adopted { .. } => return None,
        },
        EventView::Dialog(view) => match view {
            DialogEvent::AssistantMessage { .. }
            | DialogEvent::Asked { .. }
            | DialogEvent::Answered { .. }
            | DialogEvent::Injected { .. }
            | DialogEvent::InboxShown { .. } => whole(event),
            // Reports are of runs that whoever looks may not see.
            DialogEvent::HistoryCarried { .. } | DialogEvent::Reported { .. } => return None,
        },
        EventView::Step(view) => match view {
            StepEvent::PlanDecided { turn, decision, .. } => {
                json!({ "turn": turn, "decision": decision })
            }
            StepEvent::Usage { .. }
            | StepEvent::StepFailed { .. }
            | StepEvent::TurnSkipped { .. }
            | StepEvent::RoundEnded { .. }
            | StepEvent::FinalizeRequested { .. } => whole(event),
            // The words of a provider are for operators.
            StepEvent::PushedBack { .. } => without(whole(event), "said"),
            StepEvent::ReplayDiverged { .. } => return None,
        },
        EventView::Call(view) => match view {
            CallEvent::ToolCallParked { tool_call_id, name, payload, .. } => {
                json!({ "tool_call_id": tool_call_id, "name": name, "payload": payload })
            }
            CallEvent::ToolResult { .. } => {
                let mut whole = whole(event);
                if let Some(Value::Object(output)) = whole.get_mut("output") {
                    output.remove("server_data");
                }
                whole
            }
            CallEvent::ToolCallScheduled { .. }
            | CallEvent::Marked { .. }
            | CallEvent::ToolCallRepeated { .. }
            | CallEvent::ChildRunLinked { .. }
            | CallEvent::ToolCallUpdated { .. }
            | CallEvent::ToolAuthorization { .. } => whole(event),
        },
        EventView::Taped(view) => match view {
            TapedEvent::AssistantChunk { .. }
            | TapedEvent::ToolCallArgsDelta { .. }
            | TapedEvent::ThinkingBlock { .. }
            | TapedEvent::PlannerNote { .. } => whole(event),
            TapedEvent::PromptRendered { .. }
            | TapedEvent::PolicyDecision { .. }
            | TapedEvent::Log { .. }
            | TapedEvent::HostAnswered { .. }
            | TapedEvent::OutsideAnswered { .. }
            | TapedEvent::ClockRead { .. }
            | TapedEvent::StepRestarted { .. } => return None,
        },
        EventView::Account(_) => return None,
    };
    let mut payload = payload.to_string();
    if payload.len() > EVENT_PAYLOAD_BYTES_MAX {
        payload = json!({ "omitted": true, "bytes": payload.len() }).to_string();
    }
    let kind = recorded.event.kind().to_owned();
    Some(EventInfo { seq: recorded.seq, at: recorded.at, kind, payload })
}

/// All of an event but its kind.
fn whole(event: &Event) -> Value {
    without(serde_json::to_value(event).expect("an event has text keys only"), "kind")
}

/// An object without one of its keys.
fn without(mut object: Value, key: &str) -> Value {
    if let Value::Object(keys) = &mut object {
        keys.remove(key);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{run, started};
    use taskrun_journal::completion::ModelError;
    use taskrun_journal::event::{HostAnswer, ModelAnswer};
    use taskrun_journal::ids::HostId;
    use taskrun_journal::time::Timestamp;

    fn recorded(event: Event) -> EventRecord {
        EventRecord { seq: 3, id: 1, at: Timestamp(5), event }
    }

    fn payload(event: Event) -> Option<Value> {
        let shown = shown(&recorded(event))?;
        Some(serde_json::from_str(&shown.payload).expect("JSON"))
    }

    #[test]
    fn hosts_seeds_and_rules_are_not_shown() {
        let host = HostId::new("host-1");
        let resumed = Event::Resumed { host, epoch: 2 };
        assert_eq!(payload(resumed), Some(json!({})));
        let spec = std::sync::Arc::new(taskrun_journal::spec::RunSpec {
            seed: "secret".to_owned(),
            ..run(vec![started()]).spec.as_ref().clone()
        });
        let queued = payload(Event::Queued { spec }).expect("shown");
        assert!(!queued.to_string().contains("secret"), "{queued}");
        let rule = Event::PolicyDecision {
            capability: "http".to_owned(),
            subject: "https://a.example".to_owned(),
            rule: "deny (taskrun.toml:1:1)".to_owned(),
            told: None,
            decided: None,
        };
        assert_eq!(payload(rule), None);
    }

    #[test]
    fn a_provider_s_words_are_not_shown() {
        let (reason, said) = ("limited".to_owned(), Some("status 429: org-7".to_owned()));
        let (model, until) = ("careful".to_owned(), Timestamp(9));
        let event = Event::PushedBack { turn: 1, model, until, reason, said, usage: None };
        let shown = payload(event).expect("shown");
        assert_eq!((&shown["model"], &shown["reason"]), (&json!("careful"), &json!("limited")));
        assert_eq!(shown.get("said"), None);
        let error = ModelError::Unreachable("10.0.0.7".to_owned());
        let answer = Box::new(HostAnswer::Model(ModelAnswer::Error(error)));
        let (request, model) = ("q".to_owned(), Some("careful".to_owned()));
        assert_eq!(payload(Event::HostAnswered { call: 0, request, model, answer }), None);
    }

    #[test]
    fn l_008_a_message_that_went_out_in_parts_says_so() {
        let message = taskrun_journal::message::Message::text(
            taskrun_journal::message::Role::Assistant,
            "said",
        );
        let event = |streamed| Event::AssistantMessage {
            message: message.clone(),
            usage: None,
            model: None,
            streamed,
        };
        assert_eq!(payload(event(true)).expect("shown")["streamed"], true);
        assert_eq!(payload(event(false)).expect("shown").get("streamed"), None);
    }

    #[test]
    fn a_payload_that_is_too_large_says_so() {
        let text = "x".repeat(EVENT_PAYLOAD_BYTES_MAX);
        let shown = payload(Event::AssistantChunk { text }).expect("shown");
        assert_eq!(shown["omitted"], true);
        assert!(shown["bytes"].as_u64().expect("a number") > EVENT_PAYLOAD_BYTES_MAX as u64);
    }

    #[test]
    fn details_say_what_the_record_does_not() {
        let info = info(&run(vec![started()]));
        let details: Value = serde_json::from_str(&info.details).expect("JSON");
        assert!(details.get("root_run_id").is_some() && details.get("created_at").is_some());
        for key in NOT_IN_DETAILS {
            assert!(details.get(key).is_none(), "{key}");
        }
    }
}
