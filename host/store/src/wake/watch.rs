//! Runs and sessions that are waited for, and the waits.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use taskrun_journal::event::EventRecord;
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{RunWatch, SessionKey};
use tokio::sync::Notify;

use super::Wakes;

/// Most bytes of events that are kept for the followers of a run. A follower that falls behind them
/// reads the journal.
const TAIL_BYTES_MAX: usize = 128 << 10;

/// A journal or a session, which grows.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    Run(RunId),
    Session(SessionKey),
}

/// Events that were written together, with their bytes.
#[derive(Clone)]
pub(crate) struct Written {
    pub(crate) events: Arc<[EventRecord]>,
    pub(crate) bytes: usize,
}

/// The last events of a journal, without a gap.
#[derive(Default)]
struct Tail {
    groups: VecDeque<Written>,
    bytes: usize,
}

impl Tail {
    fn push(&mut self, group: Written) {
        let last = self.groups.back().and_then(|last| last.events.last()).map(|last| last.seq);
        let first = group.events.first().map(|first| first.seq);
        // Others wrote between.
        if last.is_some_and(|last| first != Some(last + 1)) {
            *self = Self::default();
        }
        self.bytes += group.bytes;
        self.groups.push_back(group);
        while self.bytes > TAIL_BYTES_MAX
            && let Some(oldest) = self.groups.pop_front()
        {
            self.bytes -= oldest.bytes;
        }
    }

    /// The groups with the events that follow a position, in their order; none where the first of these
    /// events is not here.
    fn after(&self, after: Seq) -> Vec<Arc<[EventRecord]>> {
        let groups = self.groups.iter().map(|group| &group.events);
        let reaches = groups.clone().flat_map(|events| events.first()).next();
        if reaches.is_none_or(|first| first.seq.saturating_sub(1) > after) {
            return Vec::new();
        }
        let follow =
            |events: &&Arc<[EventRecord]>| events.last().is_some_and(|last| last.seq > after);
        groups.filter(follow).cloned().collect()
    }
}

/// The events of some groups that follow a position, at most `limit`.
fn events_after(groups: &[Arc<[EventRecord]>], after: Seq, limit: usize) -> Vec<EventRecord> {
    let events = groups.iter().flat_map(|events| events.iter());
    events.filter(|event| event.seq > after).take(limit).cloned().collect()
}

/// A subject with waiters; gone when the last one stops waiting.
#[derive(Default)]
pub(super) struct WatchedSubject {
    state: Mutex<SubjectState>,
    moved: Notify,
    /// For waits for the end of a run only, so that no other change wakes them.
    end: Notify,
}

#[derive(Default)]
struct SubjectState {
    waiters: usize,
    /// The end of a run's journal, or the last place of a session.
    head: u64,
    /// True if a run has ended, or may have. Nothing changes any more: a later run may have its id.
    ended: bool,
    /// The run as it has ended, if this process wrote that.
    run: Option<Run>,
    /// The watches that follow the run, and the last events that this process wrote if there is one.
    followers: usize,
    tail: Tail,
    /// The times that all waiters were told to look for themselves.
    roused: u64,
}

impl WatchedSubject {
    fn state(&self) -> MutexGuard<'_, SubjectState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True for a run that has ended, or may have.
    pub(super) fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// Says that the subject reaches up to `head`, by events that this process wrote if they are given,
    /// and that a run has ended unless it is open.
    pub(super) fn grown(
        &self,
        head: u64,
        open: bool,
        run: Option<&Run>,
        written: Option<&Written>,
    ) {
        let mut state = self.state();
        let has_moved = state.head < head;
        let ends = !open && !state.ended;
        state.head = state.head.max(head);
        if let Some(written) = written
            && state.followers > 0
        {
            state.tail.push(written.clone());
        }
        // The thread that looks after what other processes write may have seen the end first.
        if !open && state.run.is_none() {
            state.run = run.cloned();
        }
        state.ended |= ends;
        drop(state);
        if has_moved || ends {
            self.moved.notify_waiters();
        }
        if ends {
            self.end.notify_waiters();
        }
    }

    /// Ends all waits, so that the waiters look for themselves.
    pub(super) fn rouse(&self) {
        self.state().roused += 1;
        self.moved.notify_waiters();
        self.end.notify_waiters();
    }
}

/// A wait for a run or a session.
pub(crate) struct Watch {
    wakes: Arc<Wakes>,
    subject: Subject,
    watched: Arc<WatchedSubject>,
    roused: u64,
    follows: bool,
}

impl Watch {
    /// Begins to wait. The subjects are locked meanwhile, so that this one is not given up.
    pub(super) fn new(wakes: &Arc<Wakes>, subject: Subject, watched: &Arc<WatchedSubject>) -> Self {
        let mut state = watched.state();
        state.waiters += 1;
        let roused = state.roused;
        drop(state);
        let (wakes, watched) = (Arc::clone(wakes), Arc::clone(watched));
        Self { wakes, subject, watched, roused, follows: false }
    }

    /// Returns when the subject reaches beyond `after`, when a run has ended or may have, or when the
    /// waiter is to look.
    pub(crate) async fn beyond(&mut self, after: u64) {
        let watched = Arc::clone(&self.watched);
        self.until(&watched.moved, |state| state.head > after || state.ended).await;
    }

    async fn until(&mut self, notify: &Notify, reached: impl Fn(&SubjectState) -> bool) {
        loop {
            let notified = notify.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.wakes.is_closed() || self.look(&reached) {
                return;
            }
            notified.await;
        }
    }

    fn look(&mut self, reached: impl Fn(&SubjectState) -> bool) -> bool {
        let state = self.watched.state();
        let is_roused = state.roused > self.roused;
        self.roused = state.roused;
        is_roused || reached(&state)
    }
}

/// The registration of a store that only this process has.
#[async_trait]
impl RunWatch for Watch {
    fn known_open(&self) -> Option<Arc<RunSpec>> {
        match &self.subject {
            Subject::Run(id) => self.wakes.held_run(id),
            Subject::Session(_) => None,
        }
    }

    async fn moved(&mut self, after: Seq) {
        self.beyond(after).await;
    }

    fn follow(&mut self) {
        if !std::mem::replace(&mut self.follows, true) {
            self.watched.state().followers += 1;
        }
    }

    async fn events(&mut self, after: Seq, limit: usize) -> Vec<EventRecord> {
        self.beyond(after).await;
        // Copied without the lock.
        let groups = self.watched.state().tail.after(after);
        events_after(&groups, after, limit)
    }

    async fn ended(&mut self) -> Option<Run> {
        let watched = Arc::clone(&self.watched);
        self.until(&watched.end, |state| state.ended).await;
        watched.state().run.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.wakes.stopped(&self.subject, &self.watched, |watched| {
            let mut state = watched.state();
            state.waiters -= 1;
            state.followers -= usize::from(self.follows);
            if state.followers == 0 {
                state.tail = Tail::default();
            }
            state.waiters == 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(seqs: std::ops::Range<Seq>, bytes: usize) -> Written {
        use taskrun_journal::event::Event;
        use taskrun_journal::time::Timestamp;
        let event = |seq| EventRecord {
            seq,
            id: seq,
            at: Timestamp(1),
            event: Event::AssistantChunk { text: seq.to_string() },
        };
        Written { events: seqs.map(event).collect(), bytes }
    }

    fn seqs(tail: &Tail, after: Seq, limit: usize) -> Vec<Seq> {
        events_after(&tail.after(after), after, limit).iter().map(|event| event.seq).collect()
    }

    #[test]
    fn a_tail_gives_what_follows_a_position_that_it_reaches() {
        let mut tail = Tail::default();
        assert!(seqs(&tail, 0, 9).is_empty());
        tail.push(group(4..6, 10));
        tail.push(group(6..9, 10));
        assert_eq!(seqs(&tail, 3, 9), [4, 5, 6, 7, 8]);
        assert_eq!(seqs(&tail, 4, 2), [5, 6]);
        assert!(seqs(&tail, 8, 9).is_empty());
        // Before it there is a gap.
        assert!(seqs(&tail, 2, 9).is_empty());
    }

    #[test]
    fn a_tail_has_no_gap_and_a_bound() {
        let mut tail = Tail::default();
        tail.push(group(1..3, 10));
        tail.push(group(4..5, 10));
        assert!(seqs(&tail, 0, 9).is_empty());
        assert_eq!(seqs(&tail, 3, 9), [4]);
        tail.push(group(5..6, TAIL_BYTES_MAX - 5));
        assert!(seqs(&tail, 3, 9).is_empty(), "the oldest are gone");
        assert_eq!(seqs(&tail, 4, 9), [5]);
        tail.push(group(6..7, TAIL_BYTES_MAX + 1));
        assert!(seqs(&tail, 5, 9).is_empty());
        assert_eq!(tail.bytes, 0);
    }
}
