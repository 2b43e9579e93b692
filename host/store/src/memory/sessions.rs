//! Sessions and what happens in them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use taskrun::event::Recorded;
use taskrun::ids::RunId;
use taskrun::ports::store::{PAGE_BYTES_MAX, Session, SessionEvent, SessionKey};
use taskrun::time::Timestamp;

/// What a run brought in one append.
#[derive(Clone)]
pub(super) struct Chunk {
    /// Place of the first event among all of the store; the others follow it.
    pub(super) place: u64,
    /// Shared with the writer, so that no event is copied.
    pub(super) events: Arc<[Recorded]>,
}

/// All sessions that are known or have events.
#[derive(Default)]
pub(super) struct Timelines {
    sessions: HashMap<Arc<SessionKey>, Timeline>,
    /// Place of the last event of the store.
    place: u64,
}

#[derive(Default)]
struct Timeline {
    known: Option<Session>,
    chunks: BTreeMap<u64, (RunId, Arc<[Recorded]>)>,
}

impl Timelines {
    /// Place of the last event of the store.
    pub(super) fn place(&self) -> u64 {
        self.place
    }

    /// The one copy of a key, for the runs of the session.
    pub(super) fn key(&mut self, key: SessionKey) -> Arc<SessionKey> {
        if let Some((key, _)) = self.sessions.get_key_value(&key) {
            return Arc::clone(key);
        }
        let key = Arc::new(key);
        self.sessions.insert(Arc::clone(&key), Timeline::default());
        key
    }

    /// Gives events their places, after all others.
    pub(super) fn push(
        &mut self,
        key: &Arc<SessionKey>,
        id: &RunId,
        events: Arc<[Recorded]>,
    ) -> Chunk {
        let place = self.place + 1;
        self.place += events.len() as u64;
        let timeline = self.sessions.entry(Arc::clone(key)).or_default();
        timeline.chunks.insert(place, (id.clone(), Arc::clone(&events)));
        Chunk { place, events }
    }

    /// Forgets the events of a run.
    pub(super) fn remove(&mut self, key: &SessionKey, chunks: &[Chunk]) {
        let Some(timeline) = self.sessions.get_mut(key) else { return };
        for chunk in chunks {
            timeline.chunks.remove(&chunk.place);
        }
        if timeline.known.is_none() && timeline.chunks.is_empty() {
            self.sessions.remove(key);
        }
    }

    pub(super) fn open(&mut self, session: Session) -> Session {
        let key = self.key(session.key.clone());
        let timeline = self.sessions.entry(key).or_default();
        timeline.known.get_or_insert(session).clone()
    }

    pub(super) fn end(&mut self, key: &SessionKey, at: Timestamp) -> Session {
        let key = self.key(key.clone());
        let unknown =
            Session { key: (*key).clone(), owner_user_id: None, created_at: at, ended_at: None };
        let timeline = self.sessions.entry(key).or_default();
        let session = timeline.known.get_or_insert(unknown);
        session.ended_at.get_or_insert(at);
        session.clone()
    }

    pub(super) fn get(&self, key: &SessionKey) -> Option<&Session> {
        self.sessions.get(key).and_then(|timeline| timeline.known.as_ref())
    }

    /// Place of the last event of a session; 0 if there is none.
    pub(super) fn last(&self, key: &SessionKey) -> u64 {
        let timeline = self.sessions.get(key);
        let last = timeline.and_then(|timeline| timeline.chunks.last_key_value());
        last.map_or(0, |(place, (_, events))| place + events.len() as u64 - 1)
    }

    /// The parts of a session that may hold `limit` events after a place.
    pub(super) fn after(&self, key: &SessionKey, after: u64, limit: usize) -> Vec<(RunId, Chunk)> {
        let Some(timeline) = self.sessions.get(key) else { return Vec::new() };
        let earlier = timeline.chunks.range(..=after).next_back();
        let later = timeline.chunks.range(after.saturating_add(1)..);
        let chunk = |(place, (id, events)): (&u64, &(RunId, Arc<[Recorded]>))| {
            (id.clone(), Chunk { place: *place, events: Arc::clone(events) })
        };
        // The earlier one may end before the place.
        earlier.into_iter().chain(later).take(limit.saturating_add(1)).map(chunk).collect()
    }
}

/// The bytes of a page of events, which is full when it has [`PAGE_BYTES_MAX`] of them.
#[derive(Default)]
pub(super) struct PageBytes(u64);

impl PageBytes {
    /// Whether the page takes one more event. It takes a first one.
    pub(super) fn takes(&mut self, recorded: &Recorded) -> bool {
        let is_first = self.0 == 0;
        self.0 = self.0.saturating_add(recorded.event.journal_bytes());
        is_first || self.0 <= PAGE_BYTES_MAX as u64
    }
}

/// The events of some chunks after a place.
pub(super) fn events_after(
    chunks: &[(RunId, Chunk)],
    after: u64,
    limit: usize,
) -> Vec<SessionEvent> {
    let events = chunks.iter().flat_map(|(run, chunk)| {
        let places = chunk.place..;
        places.zip(chunk.events.iter()).map(move |(place, recorded)| (run, place, recorded))
    });
    let mut page = PageBytes::default();
    let wanted = events.filter(|(_, place, _)| *place > after).take(limit);
    let wanted = wanted.take_while(|(_, _, recorded)| page.takes(recorded));
    let event = |(run, place, recorded): (&RunId, u64, &Recorded)| SessionEvent {
        place,
        run: run.clone(),
        recorded: recorded.clone(),
    };
    wanted.map(event).collect()
}
