//! Events as the JSON output shows them.

use serde::Serialize;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::RunId;
use taskrun_journal::time::Timestamp;

/// An event with its run and its place in the journal of that run.
#[derive(Serialize)]
pub(super) struct EventObject<'a> {
    run_id: &'a RunId,
    seq: u64,
    #[serde(serialize_with = "taskrun_journal::time::rfc3339::serialize")]
    at: Timestamp,
    #[serde(flatten)]
    fields: Fields<'a>,
}

impl<'a> EventObject<'a> {
    pub(super) fn of(run_id: &'a RunId, recorded: &'a EventRecord) -> Self {
        let event = &recorded.event;
        let fields = if let Event::ChildRunLinked { tool_call_id, run_id, agent_name } = event {
            Fields::Link { kind: event.kind(), tool_call_id, child_run_id: run_id, agent_name }
        } else {
            Fields::OfEvent(event)
        };
        Self { run_id, seq: recorded.seq, at: recorded.at, fields }
    }
}

/// The fields of an event, none of which has the name of one that all events have.
#[derive(Serialize)]
#[serde(untagged)]
enum Fields<'a> {
    /// In the journal the run that is linked is `run_id`.
    Link {
        kind: &'a str,
        tool_call_id: &'a str,
        child_run_id: &'a RunId,
        agent_name: &'a str,
    },
    OfEvent(&'a Event),
}

#[cfg(test)]
mod tests {
    use taskrun_journal::json;

    use super::*;
    use crate::output::versioned;

    /// An event of every kind.
    const EVENTS: &str = include_str!("../../../journal/tests/formats/3/events.jsonl");

    #[test]
    fn no_key_of_an_event_stands_twice() {
        let run_id = RunId::new("r").expect("an id");
        for line in EVENTS.lines() {
            let event: Event = serde_json::from_str(line).expect("an event");
            let recorded = EventRecord { seq: 1, id: 1, at: Timestamp(0), event };
            let shown = versioned(EventObject::of(&run_id, &recorded));
            let text = serde_json::to_string(&shown).expect("JSON");
            assert_eq!(json::check(&text), Ok(()), "{text}");
            let start = format!(
                r#"{{"v":1,"run_id":"r","seq":1,"at":"1970-01-01T00:00:00.000Z","kind":"{}""#,
                recorded.event.kind()
            );
            assert!(text.starts_with(&start), "{text}");
            // Events of a session have one more.
            let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(shown.get("place"), None, "{text}");
        }
    }

    #[test]
    fn a_run_that_is_linked_has_another_name_than_the_run_that_links_it() {
        let run = |id: &str| RunId::new(id).expect("an id");
        let (tool_call_id, agent_name) = ("c".to_owned(), "writer".to_owned());
        let event = Event::ChildRunLinked { tool_call_id, run_id: run("below"), agent_name };
        let recorded = EventRecord { seq: 7, id: 1, at: Timestamp(0), event };
        let shown =
            serde_json::to_string(&EventObject::of(&run("above"), &recorded)).expect("JSON");
        assert_eq!(
            shown,
            r#"{"run_id":"above","seq":7,"at":"1970-01-01T00:00:00.000Z","kind":"child_run_linked","tool_call_id":"c","child_run_id":"below","agent_name":"writer"}"#
        );
    }
}
