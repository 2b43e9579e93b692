//! Events as journals have them on disk, in each format that they ever had: a folder of `formats` for
//! each, by its number. Programs read all of them, and write the last.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use taskrun_journal::event::Event;
use taskrun_journal::format::JournalFormat;

/// The lines of each format, an event in each.
fn formats() -> BTreeMap<u16, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
    let entries = std::fs::read_dir(folder).expect("it is there");
    let format = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("it is read").path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let lines = std::fs::read_to_string(path.join("events.jsonl")).expect("it has events");
        (number.expect("the folder of a format"), lines)
    };
    entries.map(format).collect()
}

fn current() -> String {
    formats().remove(&JournalFormat::CURRENT.0).expect("a folder of the current format")
}

fn read(line: &str) -> Event {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn every_format_up_to_the_current_one_has_a_folder_and_is_read() {
    let formats = formats();
    let numbers: Vec<u16> = formats.keys().copied().collect();
    let wanted: Vec<u16> = (JournalFormat::FIRST.0..=JournalFormat::CURRENT.0).collect();
    assert_eq!(numbers, wanted);
    for lines in formats.values() {
        assert_ne!(lines.lines().map(read).count(), 0);
    }
}

#[test]
fn events_of_the_current_format_are_written_to_the_same_bytes() {
    for line in current().lines() {
        let written = serde_json::to_string(&read(line)).expect("JSON");
        assert_eq!(written, line, "another form is another format, with a folder of its own");
    }
}

#[test]
fn every_kind_of_event_is_among_them() {
    let current = current();
    let kinds: BTreeSet<&str> = current.lines().map(|line| read(line).kind()).collect();
    let missing: Vec<_> = Event::KINDS.iter().filter(|kind| !kinds.contains(*kind)).collect();
    assert_eq!(missing, [] as [&&str; 0]);
}
