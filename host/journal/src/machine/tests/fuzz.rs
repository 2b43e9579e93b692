//! Journals damaged and put together at random.

use super::events::every_event;
use crate::event::{Event, EventRecord};
use crate::fixtures::corpus::{Edit, edited, percent_that_fit};
use crate::machine::fold;
use crate::time::Timestamp;

/// Events of all kinds as journals have them, in each form that they ever had, one in each line.
const LINES: [&str; 3] = [
    include_str!("../../../tests/formats/1/events.jsonl"),
    include_str!("../../../tests/formats/2/events.jsonl"),
    include_str!("../../../tests/formats/3/events.jsonl"),
];

/// Journals of runs of the program, from their beginning to their end, an event in each line.
const JOURNALS: [&str; 7] = [
    include_str!("journals/canceled.jsonl"),
    include_str!("journals/consent.jsonl"),
    include_str!("journals/crash.jsonl"),
    include_str!("journals/denied.jsonl"),
    include_str!("journals/hand_over.jsonl"),
    include_str!("journals/rounds.jsonl"),
    include_str!("journals/task_run.jsonl"),
];

/// Values and pieces of JSON, which stand for others of an event.
const PIECES: [&str; 20] = [
    "null",
    "true",
    "0",
    "-1",
    "1.5",
    "1e400",
    "18446744073709551616",
    "\"\"",
    "\"a\"",
    "[]",
    "{}",
    "{\"a\":{}}",
    "\"kind\":\"finished\"",
    "\\u0000",
    "\\ud800",
    "\"",
    ",",
    ":",
    "}",
    "\u{202e}",
];

fn recorded(events: Vec<Event>) -> Vec<EventRecord> {
    let record = |(place, event): (usize, Event)| {
        let seq = place as u64 + 1;
        EventRecord { seq, id: seq, at: Timestamp(seq), event }
    };
    events.into_iter().enumerate().map(record).collect()
}

fn journal(text: &str) -> Vec<Event> {
    let event = |line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
    text.lines().map(event).collect()
}

#[test]
fn each_journal_of_the_corpus_is_that_of_a_run_which_has_ended() {
    for text in JOURNALS {
        let run = fold(&recorded(journal(text))).unwrap_or_else(|why| panic!("{why}: {text}"));
        assert!(run.status().is_terminal(), "{text}");
    }
}

fn all_lines() -> Vec<&'static str> {
    LINES.iter().chain(&JOURNALS).flat_map(|text| text.lines()).collect()
}

#[test]
fn of_changed_lines_a_part_are_events() {
    let is_event = |text: &str| serde_json::from_str::<Event>(text).is_ok();
    let percent = percent_that_fit(&all_lines(), &PIECES, is_event);
    assert!(percent >= 10, "{percent} %");
}

#[test]
fn fuzz_a_damaged_event_is_refused_or_says_what_it_says() {
    let lines = all_lines();
    bolero::check!().with_type::<(u16, Vec<Edit>)>().for_each(|(line, edits)| {
        let text = edited(lines[usize::from(*line) % lines.len()], edits, &PIECES);
        let Ok(event) = serde_json::from_str::<Event>(&text) else { return };
        let again = serde_json::to_string(&event).expect("events have names for keys");
        let reread: Event = serde_json::from_str(&again).expect("it was written just now");
        // Not the events: a number that is none is not equal to itself.
        assert_eq!(serde_json::to_string(&reread).ok().as_deref(), Some(&*again), "{text}");
    });
}

/// A journal of which one to three events are taken out, or stand twice, elsewhere or for others.
fn disturbed(mut events: Vec<Event>, changes: &[(u8, u8, u8)]) -> Vec<Event> {
    for (change, at, with) in changes.iter().take(1 + changes.len() % 3) {
        let len = events.len().max(1);
        let (at, with) = (usize::from(*at) % len, usize::from(*with));
        let strange = every_event(u64::from(change / 5) % 6);
        match change % 5 {
            _ if events.is_empty() => {}
            0 => drop(events.remove(at)),
            1 => events.insert(at, events[with % len].clone()),
            2 => events.swap(at, with % len),
            3 => events[at] = strange[with % strange.len()].clone(),
            _ => events.insert(at, strange[with % strange.len()].clone()),
        }
    }
    events
}

/// A journal is folded or refused, and so again; one that is refused has a first event that is, and
/// what is before that is not.
fn is_folded_alike(journal: &[EventRecord]) {
    let whole = fold(journal);
    assert_eq!(whole, fold(journal));
    if whole.is_ok() {
        for end in 1..journal.len() {
            assert!(fold(&journal[..end]).is_ok(), "{end} of {}", journal.len());
        }
    }
}

#[test]
fn fuzz_the_journal_of_a_run_with_events_out_of_place_is_folded_or_refused() {
    let journals = JOURNALS.map(journal);
    bolero::check!().with_type::<(u8, Vec<(u8, u8, u8)>)>().for_each(|(pick, changes)| {
        let events = journals[usize::from(*pick) % journals.len()].clone();
        is_folded_alike(&recorded(disturbed(events, changes)));
    });
}

#[test]
fn fuzz_a_journal_in_any_order_is_folded_or_refused_and_always_the_same() {
    bolero::check!().with_type::<Vec<(u8, u8, u32)>>().for_each(|picks| {
        let mut journal = Vec::new();
        for (place, (kind, epoch, at)) in picks.iter().enumerate() {
            let events = every_event(u64::from(epoch % 4));
            // Most begin as they must.
            let kind = if place == 0 && kind % 8 != 0 { 0 } else { usize::from(*kind) };
            journal.push(EventRecord {
                seq: place as u64 + 1,
                id: place as u64,
                at: Timestamp(u64::from(*at)),
                event: events[kind % events.len()].clone(),
            });
        }
        is_folded_alike(&journal);
    });
}
