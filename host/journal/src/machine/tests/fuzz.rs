//! Journals damaged and put together at random.

use super::events::every_event;
use crate::event::{Event, EventRecord};
use crate::machine::fold;
use crate::time::Timestamp;

/// An event as it is stored, with a piece of it replaced.
fn damaged(kind: usize, at: usize, len: usize, with: &str) -> String {
    let events = every_event(1);
    let event = &events[kind % events.len()];
    let mut text = serde_json::to_string(event).expect("events have names for keys");
    let begin = text.floor_char_boundary(at % (text.len() + 1));
    let end = text.floor_char_boundary((begin + len % 16).min(text.len())).max(begin);
    text.replace_range(begin..end, with);
    text
}

#[test]
fn fuzz_a_damaged_event_is_refused_or_says_what_it_says() {
    bolero::check!().with_type::<(usize, usize, usize, String)>().for_each(
        |(kind, at, len, with)| {
            let text = damaged(*kind, *at, *len, with);
            let Ok(event) = serde_json::from_str::<Event>(&text) else { return };
            let again = serde_json::to_string(&event).expect("events have names for keys");
            let reread: Event = serde_json::from_str(&again).expect("it was written just now");
            // Not the events: a number that is none is not equal to itself.
            assert_eq!(serde_json::to_string(&reread).ok().as_deref(), Some(&*again), "{text}");
        },
    );
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
        let whole = fold(&journal);
        assert_eq!(whole, fold(&journal));
        // A journal that is refused has a first event that is; what is before that is not.
        if whole.is_ok() {
            for end in 1..journal.len() {
                assert!(fold(&journal[..end]).is_ok(), "{end} of {}", journal.len());
            }
        }
    });
}
