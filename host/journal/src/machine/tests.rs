//! Every place of a run's life against every event, and the decisions.

mod counts;
mod decisions;
mod endings;
mod entries;
mod events;
mod folds;
mod fuzz;
mod pauses;
mod places;

use std::collections::BTreeMap;

use super::{apply, begin, fold};
use crate::ending::Ending;
use crate::event::{Event, EventRecord};
use crate::hold::{Wait, WaitMode};
use crate::ids::{HostId, RunId};
use crate::message::Labels;
use crate::pause::PauseEnd;
use crate::question::{Answer, AwaitItem, Item};
use crate::run::Run;
use crate::spec::{RunClass, RunSpec};
use crate::status::{BlockedOn, StopReason};
use crate::time::Timestamp;

pub(crate) fn spec() -> RunSpec {
    let id = RunId::new("run-1").expect("a valid id");
    RunSpec {
        root_run_id: id.clone(),
        root_session_id: None,
        id,
        tenant: "t".into(),
        owner_user_id: "o".into(),
        parent_session_id: "s".into(),
        parent_app_name: None,
        app_name: None,
        child_session_id: None,
        request_id: None,
        agent_name: "a".into(),
        agent_digest: "d".into(),
        policy_digest: "p".into(),
        task: "do".into(),
        timeout_ms: Some(7),
        envelope: BTreeMap::new(),
        context_messages: Vec::new(),
        name: None,
        labels: Labels::new(),
        metadata: Labels::new(),
        parent_run_id: None,
        parent_tool_call_id: None,
        attached: false,
        depth: 0,
        narrow: crate::narrowing::Narrowing::default(),
        ancestors: Vec::new(),
        priority: 0,
        durable: true,
        finalizer: false,
        serial: false,
        seed: String::new(),
        history: crate::history::History::None,
        class: RunClass::Task,
        entries: Vec::new(),
        created_at: Timestamp(1),
    }
}

pub(crate) fn started() -> Event {
    Event::Started {
        host: HostId::new("h"),
        epoch: 1,
        child_session_id: "cs".into(),
        request_id: "r".into(),
        batch: None,
    }
}

pub(crate) fn resumed(epoch: u64) -> Event {
    Event::Resumed { host: HostId::new("g"), epoch }
}

pub(crate) fn lost(epoch: u64) -> Event {
    Event::Lost {
        host: HostId::new("h"),
        epoch,
        not_before: Timestamp(7),
        crashed: true,
        ran_ms: 0,
    }
}

pub(crate) fn cancel_requested() -> Event {
    Event::CancelRequested { by: StopReason::CanceledByOwner, reason: None }
}

pub(crate) fn pause_requested() -> Event {
    Event::PauseRequested { by: "b".into(), reason: Some("lunch".into()), until: None }
}

pub(crate) fn pause_ended() -> Event {
    Event::PauseEnded { why: PauseEnd::Resumed, by: None, note: None, messages: Vec::new() }
}

pub(crate) fn finalizing(ending: Ending) -> Event {
    Event::Finalizing { ending }
}

pub(crate) fn completed() -> Event {
    finalizing(Ending::completed(StopReason::FinalResponse))
}

pub(crate) fn finished() -> Event {
    Event::Finished { metadata: Labels::new(), finalizer_error: None }
}

pub(crate) fn asked(id: &str) -> Event {
    let what = AwaitItem::Clarification {
        id: id.to_owned(),
        question: "which?".into(),
        missing_fields: Vec::new(),
        restrict_to_tool: None,
        example_input: None,
        clarifying_prompt: None,
    };
    Event::Asked { item: Box::new(Item { what, tool_call_id: None, until: None, default: None }) }
}

pub(crate) fn answered(id: &str) -> Event {
    Event::Answered {
        item: id.to_owned(),
        answer: Answer::Text("this".into()),
        by: "b".into(),
        by_default: false,
    }
}

pub(crate) fn blocked(wait: Wait) -> Event {
    Event::Blocked { on: BlockedOn::Input, wait, ran_ms: 5 }
}

pub(crate) fn blocked_on_pause() -> Event {
    Event::Blocked { on: BlockedOn::Pause, wait: Wait::Word, ran_ms: 5 }
}

pub(crate) fn for_runs() -> Wait {
    let runs = vec![RunId::new("run-2").expect("a valid id")];
    Wait::Runs { runs, mode: WaitMode::All, at: None }
}

fn journal(spec: RunSpec, events: impl IntoIterator<Item = Event>) -> Vec<EventRecord> {
    let all = std::iter::once(Event::Queued { spec: Box::new(spec) }).chain(events);
    all.zip(1..)
        .map(|(event, seq)| EventRecord { seq, id: seq, at: Timestamp(seq * 10), event })
        .collect()
}

fn run_of(spec: RunSpec, events: impl IntoIterator<Item = Event>) -> Run {
    fold(&journal(spec, events)).expect("a legal journal")
}

pub(crate) fn run(events: impl IntoIterator<Item = Event>) -> Run {
    run_of(spec(), events)
}

/// The run after these events, at time 999.
fn after(run: &Run, events: impl IntoIterator<Item = Event>) -> Result<Run, String> {
    let mut run = run.clone();
    for event in events {
        let recorded = EventRecord { seq: run.state.head + 1, id: 9, at: Timestamp(999), event };
        run.state = apply(run.state, &recorded).map_err(|error| error.to_string())?;
    }
    Ok(run)
}
