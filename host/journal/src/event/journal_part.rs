//! Events on their way into a journal.

use std::ops::Deref;
use std::sync::Arc;

use super::{Event, EventRecord};

/// Events that are written to a journal together, in their order, with the JSON of each. That is made
/// once: a store keeps the text, and its length is what the event takes of the journal.
#[derive(Clone, Debug, Default)]
pub struct JournalPart {
    records: Arc<[EventRecord]>,
    /// The JSON of the event of each record.
    texts: Arc<[Arc<str>]>,
}

impl JournalPart {
    /// The records, each with the JSON of its event.
    pub fn with_json(&self) -> impl Iterator<Item = (&EventRecord, &Arc<str>)> {
        self.records.iter().zip(self.texts.iter())
    }

    /// The records alone, for those who keep them and need no text.
    #[must_use]
    pub fn into_records(self) -> Arc<[EventRecord]> {
        self.records
    }
}

impl From<Vec<EventRecord>> for JournalPart {
    fn from(records: Vec<EventRecord>) -> Self {
        let texts = records.iter().map(|record| json(&record.event)).collect();
        Self { records: records.into(), texts }
    }
}

impl Deref for JournalPart {
    type Target = [EventRecord];

    fn deref(&self) -> &Self::Target {
        &self.records
    }
}

fn json(event: &Event) -> Arc<str> {
    serde_json::to_string(event).expect("events are plain data").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{journal, spec, started};

    #[test]
    fn the_text_of_an_event_is_its_json_and_as_long_as_what_it_takes_of_the_journal() {
        let chunk = Event::AssistantChunk { text: "\"ä\"\n\u{0}".to_owned() };
        let records = journal(spec("r"), [started(), chunk]);
        let part = JournalPart::from(records.clone());
        assert_eq!(*part, *records);
        assert_eq!(part.with_json().count(), records.len());
        for (record, json) in part.with_json() {
            let event: Event = serde_json::from_str(json).expect("it is JSON");
            assert_eq!(event, record.event);
            assert_eq!(json.len() as u64, record.event.journal_bytes());
        }
        assert_eq!(*part.into_records(), *records);
    }
}
