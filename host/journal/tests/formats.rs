//! Events as journals have them on disk, in each form that they ever had: a folder of `formats` for
//! each. Programs read all of them, and write the last.

use std::collections::BTreeSet;

use taskrun_journal::event::Event;

/// Each line is an event of the first form.
const FIRST: &str = include_str!("formats/1/events.jsonl");

fn read(line: &str) -> Event {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn events_of_the_form_that_is_written_are_read_to_the_same_bytes() {
    for line in FIRST.lines() {
        let written = serde_json::to_string(&read(line)).expect("JSON");
        assert_eq!(written, line, "another form needs a folder of its own, and this one stays");
    }
}

#[test]
fn every_kind_of_event_is_among_them() {
    let kinds: BTreeSet<&str> = FIRST.lines().map(|line| read(line).kind()).collect();
    let missing: Vec<_> = Event::KINDS.iter().filter(|kind| !kinds.contains(*kind)).collect();
    assert_eq!(missing, [] as [&&str; 0]);
}
