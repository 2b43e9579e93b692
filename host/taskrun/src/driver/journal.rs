//! The journal of a run as its driver writes it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::artifact::{ARTIFACT_BYTES_MAX, Artifact};
use taskrun_journal::delivery::ReportsTaken;
use taskrun_journal::event::{Event, EventRecord, JournalPart};
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::machine;
use taskrun_journal::machine::decide::{self, Outcome};
use taskrun_journal::reply::WholeReply;
use taskrun_journal::run::Run;
use taskrun_journal::store::{Append, AppendOutcome, Store, StoreError};
use taskrun_journal::time::{Clock, Random, random_u64};
use tokio_util::sync::CancellationToken;

use super::stop::Halt;
use crate::scan::scan;

/// Events read at once when somebody else wrote to the journal.
const CATCH_UP_PAGE: usize = 256;
/// First and longest pause between attempts to record an end that the store refuses.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// A journal with its record, open for writing by one owner under one epoch. Others may write to
/// it too (a request to cancel); whoever comes second reads on and decides again.
pub struct Journal {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    run: Arc<Run>,
    /// Events that others wrote and nobody here has looked at.
    meanwhile: Vec<EventRecord>,
    /// Artifacts to which the next events refer.
    kept: Vec<Artifact>,
}

impl Journal {
    /// Opens the journal of `run`, as it was last read.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        run: Run,
    ) -> Self {
        let run = Arc::new(run);
        Self { store, clock, random, run, meanwhile: Vec::new(), kept: Vec::new() }
    }

    /// Has artifacts kept with the run by the next write, whose events refer to them.
    pub(super) fn keep(&mut self, artifacts: impl IntoIterator<Item = Artifact>) {
        self.kept.extend(artifacts);
    }

    /// An artifact that was kept with the run.
    pub(super) async fn artifact(&self, hash: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        self.store.artifact(self.run.id(), hash).await
    }

    /// The run after everything that was written or read here.
    #[must_use]
    pub(crate) fn run(&self) -> &Run {
        &self.run
    }

    /// The same, to look at beside what is written meanwhile.
    pub(super) fn shared_run(&self) -> Arc<Run> {
        Arc::clone(&self.run)
    }

    /// Adds what `decide` says, and returns when it is durable. If somebody else wrote in
    /// between, their events are read and `decide` is asked again; an empty answer writes
    /// nothing.
    ///
    /// # Errors
    /// [`Halt`]. Nothing was added, except perhaps after [`StoreError::Unknown`].
    pub async fn commit(
        &mut self,
        mut decide: impl FnMut(&Run) -> Vec<Event> + Send,
    ) -> Result<JournalPart, Halt> {
        let decided = |run: &Run| {
            let events = decide(run);
            let reports = reports_of(&events, &[]);
            (events, reports)
        };
        self.commit_reports(decided).await?.ok_or_else(gone)
    }

    /// Adds these events, as far as they fit the run when they are written, where some are results of
    /// waits for these runs, which have ended.
    ///
    /// # Errors
    /// Those of [`Self::commit`].
    pub(super) async fn add(
        &mut self,
        mut events: Vec<Event>,
        fits: impl Fn(&Run, &Event) -> bool + Send,
        awaited: &[RunId],
    ) -> Result<JournalPart, Halt> {
        debug_assert!(!events.iter().any(is_end), "an end is decided anew where others wrote");
        loop {
            // They are copied only where somebody else wrote, which is seldom.
            let fitting = match events.iter().all(|event| fits(&self.run, event)) {
                true => std::mem::take(&mut events),
                false => events.iter().filter(|event| fits(&self.run, event)).cloned().collect(),
            };
            let reports = reports_of(&fitting, awaited);
            match self.write(fitting, reports).await? {
                WriteFate::Done(written) => return Ok(written),
                WriteFate::Gone => return Err(gone()),
                WriteFate::Moved(refused) => {
                    if events.is_empty() {
                        events = refused.iter().map(|one| one.event.clone()).collect();
                    }
                }
            }
        }
    }

    /// Adds what `decide` says with the reports that it tells of. `None` if one of which the run would
    /// be told is gone; nothing was added then.
    ///
    /// # Errors
    /// Those of [`Self::commit`].
    pub(super) async fn commit_reports(
        &mut self,
        mut decide: impl FnMut(&Run) -> (Vec<Event>, Option<ReportsTaken>) + Send,
    ) -> Result<Option<JournalPart>, Halt> {
        loop {
            let (events, reports) = decide(&self.run);
            match self.write(events, reports).await? {
                WriteFate::Done(written) => return Ok(Some(written)),
                WriteFate::Gone => return Ok(None),
                WriteFate::Moved(_) => {}
            }
        }
    }

    /// Adds events to the journal as it is known here; none writes nothing. What others wrote is read if
    /// they did.
    async fn write(
        &mut self,
        mut events: Vec<Event>,
        reports: Option<ReportsTaken>,
    ) -> Result<WriteFate, Halt> {
        if events.is_empty() {
            return Ok(WriteFate::Done(JournalPart::default()));
        }
        let mut artifacts = self.with_whole_answer(&mut events).await?;
        artifacts.extend(self.kept.iter().cloned());
        let (run, events) = self.fold(events)?;
        let append = Append {
            run: Arc::clone(&run),
            epoch: self.run.state.epoch,
            expected_head: self.run.state.head,
            events: events.clone(),
            artifacts,
            reports,
        };
        match self.store.append(append).await? {
            AppendOutcome::Done => {
                self.run = run;
                self.kept.clear();
                Ok(WriteFate::Done(events))
            }
            AppendOutcome::Moved(_) => {
                self.catch_up().await?;
                Ok(WriteFate::Moved(events))
            }
            AppendOutcome::Gone => Ok(WriteFate::Gone),
            AppendOutcome::Fenced(_) | AppendOutcome::Missing => Err(Halt::Fenced),
            AppendOutcome::Cycle => Err(Halt::Cycle),
            AppendOutcome::Conflict => {
                let detail = "its journal has other events under the ids of these";
                Err(Halt::Inconsistent(detail.to_owned()))
            }
        }
    }

    fn fold(&self, events: Vec<Event>) -> Result<(Arc<Run>, JournalPart), Halt> {
        let at = self.clock.now();
        let mut run = Run::clone(&self.run);
        let mut recorded = Vec::with_capacity(events.len());
        for event in events {
            let seq = run.state.head + 1;
            let one = EventRecord { seq, id: random_u64(&*self.random), at, event };
            run.state = machine::apply(run.state, &one)
                .map_err(|error| Halt::Inconsistent(error.to_string()))?;
            recorded.push(one);
        }
        Ok((Arc::new(run), recorded.into()))
    }

    /// Gives the end among these events, if it is there, the name of the whole answer, if that is
    /// longer than what the record holds of it; what is returned has to be kept with the events.
    ///
    /// # Errors
    /// [`Halt::Store`] if what was said before cannot be read now. A damaged journal is no error:
    /// the run ends without the artifact.
    async fn with_whole_answer(&self, events: &mut [Event]) -> Result<Vec<Artifact>, Halt> {
        if !events.iter().any(is_end) {
            return Ok(Vec::new());
        }
        let mut reply = self.run().state.reply.clone();
        events.iter().for_each(|event| reply.count(event));
        let carried = self.run().spec.continues.as_ref();
        // That of a run which this one continues is kept there.
        let is_carried = carried.is_some_and(|carried| carried.reply.result() == reply.result());
        if !reply.is_cut() || is_carried {
            return Ok(Vec::new());
        }
        let id = self.run().id();
        let whole = match self.whole_answer(events).await {
            Ok(whole) => whole,
            Err(error @ StoreError::Corrupt { .. }) => {
                tracing::error!(run = %id, %error, "the whole answer cannot be kept");
                return Ok(Vec::new());
            }
            Err(error) => return Err(error.into()),
        };
        let Some(text) = whole else {
            tracing::warn!(run = %id, "the answer is longer than {ARTIFACT_BYTES_MAX} bytes");
            return Ok(Vec::new());
        };
        let artifact = Artifact::new(text.into_bytes());
        for event in events {
            if let Event::Finalizing { ending } = event {
                ending.artifact = Some(artifact.reference().clone());
            }
        }
        Ok(vec![artifact])
    }

    async fn whole_answer(&self, events: &[Event]) -> Result<Option<String>, StoreError> {
        let mut whole = WholeReply::default();
        events.iter().for_each(|event| whole.count(event));
        if whole.is_whole() && self.run().spec.autonomy.is_none() {
            // Nothing that was said before counts.
            return Ok(whole.into_text());
        }
        let mut whole = WholeReply::default();
        self.replay(0, |recorded| whole.count(&recorded.event)).await?;
        events.iter().for_each(|event| whole.count(event));
        Ok(whole.into_text())
    }

    /// Records the end of the run with the events of the work that are still to be written, and
    /// goes on trying while the store refuses: whatever was worked out is not lost for a moment
    /// in which the disk was full. Gives up when the run is not this host's any more, or when
    /// the host is closing; then another process finds the run.
    pub(crate) async fn end(
        &mut self,
        pending: &[Event],
        outcome: &Outcome,
        closing: &CancellationToken,
    ) {
        self.persist(|run| decide::end(run, pending, outcome.clone()), closing).await;
    }

    /// Records what has to be recorded, like [`Self::end`].
    pub(crate) async fn persist(
        &mut self,
        mut decide: impl FnMut(&Run) -> Vec<Event> + Send,
        closing: &CancellationToken,
    ) {
        let id = self.run.id().clone();
        let (mut pause, longest) = RETRY_PAUSE;
        loop {
            match self.commit(&mut decide).await {
                Ok(_) => return,
                Err(Halt::Fenced) => {
                    tracing::warn!(run = %id, "ended or taken over by another process");
                    return;
                }
                Err(
                    halt @ (Halt::Stopped(_)
                    | Halt::Blocked
                    | Halt::Cycle
                    | Halt::Read(_)
                    | Halt::Inconsistent(_)),
                ) => {
                    tracing::error!(run = %id, %halt, "the run cannot be ended");
                    return;
                }
                Err(Halt::Store(error)) => {
                    tracing::warn!(run = %id, %error, "the end of the run cannot be recorded yet");
                    let is_closed = matches!(error, StoreError::Closed);
                    if closing.is_cancelled() || is_closed || error.is_for_ever() {
                        return;
                    }
                }
            }
            tokio::select! {
                biased;
                () = closing.cancelled() => {}
                () = self.clock.sleep(pause) => {}
            }
            pause = (pause * 2).min(longest);
        }
    }

    /// Events that others wrote since the last time this was asked, in order.
    pub(super) fn read_meanwhile(&mut self) -> Vec<EventRecord> {
        std::mem::take(&mut self.meanwhile)
    }

    /// Shows every event of the journal after a position, up to the last that is known here. Gives the
    /// position of the last one that was found.
    pub(super) async fn replay(
        &self,
        after: Seq,
        mut see: impl FnMut(&EventRecord) + Send,
    ) -> Result<Seq, StoreError> {
        let known = (after, self.run.state.head);
        scan(&*self.store, self.run.id(), known, |recorded| {
            see(&recorded);
            ControlFlow::Continue(())
        })
        .await
    }

    /// Reads what others wrote.
    ///
    /// # Errors
    /// [`Halt::Fenced`] if the run has another owner now or was ended by somebody else.
    pub(crate) async fn catch_up(&mut self) -> Result<(), Halt> {
        let epoch = self.run.state.epoch;
        loop {
            let head = self.run.state.head;
            let page = self.store.read(self.run.id(), head, CATCH_UP_PAGE).await?;
            let last = page.is_empty();
            for recorded in &page {
                let state = machine::apply(self.run.state.clone(), recorded)
                    .map_err(|error| Halt::Inconsistent(error.to_string()))?;
                Arc::make_mut(&mut self.run).state = state;
            }
            self.meanwhile.extend(page);
            if self.run.state.epoch != epoch {
                return Err(Halt::Fenced);
            }
            if self.run.status().is_terminal() {
                return Err(Halt::Fenced);
            }
            if last {
                return Ok(());
            }
        }
    }
}

/// The fate of events that were to be added.
enum WriteFate {
    /// They are on record.
    Done(JournalPart),
    /// These are not, as somebody else wrote, which has been read.
    Moved(JournalPart),
    /// A report is gone of which they tell.
    Gone,
}

/// True for the event that fixes the outcome.
fn is_end(event: &Event) -> bool {
    matches!(event, Event::Finalizing { .. })
}

fn gone() -> Halt {
    Halt::Inconsistent("reports are gone of which it is not told".to_owned())
}

/// The reports of the runs whose ends these events have waited for, beside those of others.
fn reports_of(events: &[Event], awaited: &[RunId]) -> Option<ReportsTaken> {
    let in_events = events.iter().filter_map(|event| {
        let Event::HostAnswered { answer, .. } = event else { return None };
        RunId::new(answer.has_waited_for()?).ok()
    });
    let ended: Vec<RunId> = in_events.chain(awaited.iter().cloned()).collect();
    (!ended.is_empty()).then_some(ReportsTaken::Awaited(ended))
}
