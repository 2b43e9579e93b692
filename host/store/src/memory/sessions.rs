//! Sessions and what happens in them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use taskrun_journal::event::EventRecord;
use taskrun_journal::schedule;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{PAGE_BYTES_MAX, Session, SessionEvent, SessionKey, SessionPage};
use taskrun_journal::time::Timestamp;

/// The events of one append.
#[derive(Clone)]
pub(super) struct Chunk {
    /// Place of the first event among all of the store; the others follow it.
    pub(super) place: u64,
    /// The run.
    spec: Arc<RunSpec>,
    /// Shared with the writer, so that no event is copied.
    pub(super) events: Arc<[EventRecord]>,
}

impl Chunk {
    /// Place of the last event.
    pub(super) fn last_place(&self) -> u64 {
        self.place + self.events.len() as u64 - 1
    }

    /// True if it is of a run that is seen under this key.
    fn is_of(&self, key: &SessionKey) -> bool {
        key.scope().admits_spec(&self.spec)
    }
}

/// All sessions that are known or have events.
#[derive(Clone, Default)]
pub(super) struct Timelines {
    /// The records of sessions, by the keys that cover all of a name.
    known: HashMap<SessionKey, Vec<Session>>,
    /// The events of all sessions of a name, by the same keys.
    named: HashMap<Arc<SessionKey>, BTreeMap<u64, Chunk>>,
    /// Place of the last event of the store.
    place: u64,
}

impl Timelines {
    /// Place of the last event of the store.
    pub(super) fn place(&self) -> u64 {
        self.place
    }

    /// The one copy of each of the keys under which a run's events stand.
    pub(super) fn keys(&mut self, spec: &RunSpec) -> Vec<Arc<SessionKey>> {
        let shared = |key: SessionKey| match self.named.get_key_value(&key) {
            Some((key, _)) => Arc::clone(key),
            None => {
                let key = Arc::new(key);
                self.named.insert(Arc::clone(&key), BTreeMap::new());
                key
            }
        };
        schedule::widest_of(spec).map(shared).collect()
    }

    /// Gives events their places, after all others.
    pub(super) fn push(
        &mut self,
        keys: &[Arc<SessionKey>],
        spec: &Arc<RunSpec>,
        events: Arc<[EventRecord]>,
    ) -> Chunk {
        let chunk = Chunk { place: self.place + 1, spec: Arc::clone(spec), events };
        self.place += chunk.events.len() as u64;
        for key in keys {
            let named = self.named.entry(Arc::clone(key)).or_default();
            named.insert(chunk.place, chunk.clone());
        }
        chunk
    }

    /// Forgets the events of a run.
    pub(super) fn remove(&mut self, keys: &[Arc<SessionKey>], chunks: &[Chunk]) {
        for key in keys {
            let Some(named) = self.named.get_mut(key) else { continue };
            for chunk in chunks {
                named.remove(&chunk.place);
            }
            if named.is_empty() {
                self.named.remove(key);
            }
        }
    }

    pub(super) fn open(&mut self, session: Session) -> Session {
        let key = session.key.clone();
        self.say(&key, session, |_| {})
    }

    pub(super) fn end(&mut self, key: &SessionKey, at: Timestamp) -> Session {
        let unknown = Session { key: key.clone(), created_at: at, ended_at: None };
        self.say(key, unknown, |session| {
            session.ended_at.get_or_insert(at);
        })
    }

    /// Changes what was said of a session, and gives what is known of it then.
    fn say(
        &mut self,
        key: &SessionKey,
        unknown: Session,
        change: impl FnOnce(&mut Session),
    ) -> Session {
        let said = self.known.entry(schedule::widest(key)).or_default();
        let index = said.iter().position(|session| session.key == *key).unwrap_or_else(|| {
            said.push(unknown);
            said.len() - 1
        });
        change(&mut said[index]);
        self.get(key).expect("it was just said")
    }

    /// The record of a session.
    pub(super) fn get(&self, key: &SessionKey) -> Option<Session> {
        let said = self.known.get(&schedule::widest(key)).into_iter().flatten();
        let said = said.filter(|session| schedule::covers(&session.key, key)).cloned().collect();
        schedule::known_session(key, said)
    }

    /// Place of the last event of a session; 0 if there is none.
    pub(super) fn last(&self, key: &SessionKey) -> u64 {
        let chunks = self.named.get(&schedule::widest(key)).into_iter().flat_map(BTreeMap::values);
        let last = chunks.rev().find(|chunk| chunk.is_of(key));
        last.map_or(0, Chunk::last_place)
    }

    /// The parts of a session that may hold `limit` events after a place.
    pub(super) fn after(&self, key: &SessionKey, after: u64, limit: usize) -> Vec<Chunk> {
        let Some(named) = self.named.get(&schedule::widest(key)) else { return Vec::new() };
        let earlier = named.range(..=after).next_back();
        let later = named.range(after.saturating_add(1)..);
        // The earlier one may end before the place.
        let chunks = earlier.into_iter().chain(later).map(|(_, chunk)| chunk);
        let own = chunks.filter(|chunk| chunk.is_of(key));
        own.take(limit.saturating_add(1)).cloned().collect()
    }
}

/// The bytes of a page of events, which is full when it has [`PAGE_BYTES_MAX`] of them.
#[derive(Default)]
pub(super) struct PageBytes(u64);

impl PageBytes {
    /// True if the page takes one more event. It takes a first one.
    pub(super) fn takes(&mut self, recorded: &EventRecord) -> bool {
        let is_first = self.0 == 0;
        self.0 = self.0.saturating_add(recorded.event.journal_bytes());
        is_first || self.0 <= PAGE_BYTES_MAX as u64
    }
}

/// The events of some chunks after a place. The last event of the store has the place `last`.
pub(super) fn page_after(chunks: &[Chunk], after: u64, limit: usize, last: u64) -> SessionPage {
    let events = chunks.iter().flat_map(|chunk| {
        let places = chunk.place..;
        places.zip(chunk.events.iter()).map(|(place, recorded)| (&chunk.spec.id, place, recorded))
    });
    let (mut bytes, mut page) = (PageBytes::default(), SessionPage::default());
    page.next = after;
    for (run, place, recorded) in events.filter(|(_, place, _)| *place > after) {
        if page.events.len() >= limit || !bytes.takes(recorded) {
            return page;
        }
        let (run, recorded) = (run.clone(), recorded.clone());
        page.events.push(SessionEvent { place, run, recorded });
        page.next = place;
    }
    if page.events.len() < limit {
        page.next = page.next.max(last);
    }
    page
}
