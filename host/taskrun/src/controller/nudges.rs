//! Nudges: the runs that a host starts so that a conversation is told of outcomes.
//!
//! The nudges that are due stand in the store. A nudge is kept together with the change that its reports are due
//! no more, so any number of hosts may look, and may die on any line here.

mod conversation;
mod request;
mod spending;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use taskrun_journal::delivery::{Conversation, IdleWait, Report};
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{CreateOutcome, ReportChange, ReportQuery, StoreError};
use taskrun_journal::time::Timestamp;

use self::conversation::{Activity, holder};
use super::Controller;
use crate::error::ControllerError;

/// Label by which nudges are found; its value is the agent.
const LABEL: &str = "taskrun.nudge";
/// The pause between two looks for reports that are due, where nothing says that there may be one.
/// Real time: it only trades latency against reads.
const LOOK: Duration = Duration::from_secs(1);
/// Reports that are looked at in one page, and pages after which those that were found are told.
const PAGE: usize = 64;
const PAGES_MAX: usize = 16;
/// The time in which nudges of a conversation are counted.
const HOUR: Duration = Duration::from_secs(60 * 60);

/// A report that is due.
struct DueReport {
    run: Arc<RunSpec>,
    due: Timestamp,
}

impl DueReport {
    fn idle(&self) -> Option<IdleWait> {
        self.run.delivery.as_ref().and_then(|delivery| delivery.strategy.idle())
    }
}

/// Reports that are due to conversations of an agent.
#[derive(Default)]
struct DueReports {
    /// Those that are due now by conversations, in the order of the ends.
    places: BTreeMap<Place, Vec<DueReport>>,
    /// The next time at which one is.
    next: Option<Timestamp>,
    /// The place after which there may be more.
    after: Option<u64>,
}

/// A conversation with those who have it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    tenant: String,
    owner_user_id: String,
    conversation: Conversation,
}

impl Place {
    fn scope(&self) -> Scope {
        Scope {
            tenant: self.tenant.clone(),
            owner_user_id: Some(self.owner_user_id.clone()),
            parent_session_id: Some(self.conversation.session.clone()),
            parent_app_name: self.conversation.app.clone(),
        }
    }
}

/// The moment at which a conversation is told.
enum Moment {
    /// Now, beside what is under way or after it.
    Now { serial: bool },
    /// Not before this time, unless somebody begins or ends; `None` if a nudge waits already.
    Later(Option<Timestamp>),
}

/// The earlier of two times, where there is one.
fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

impl Controller {
    /// Looks again and again whether somebody is to be told.
    pub(super) async fn nudge_loop(self) {
        let inner = Arc::clone(&self.0);
        let clock = &inner.parts.clock;
        loop {
            let mut next = None;
            if inner.lease.is_fresh() {
                match self.nudge_all().await {
                    Ok(time) => next = time,
                    Err(error) => {
                        self.note(&error);
                        tracing::warn!(%error, "cannot look for outcomes to be told");
                    }
                }
            }
            let now = clock.now();
            let pause = next.filter(|next| *next > now).map(|next| next.since(now));
            tokio::select! {
                biased;
                () = inner.closing.cancelled() => return,
                () = inner.nudging.notified() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = clock.sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            }
        }
    }

    /// Starts the nudges that are due; gives the time at which the next one may be.
    async fn nudge_all(&self) -> Result<Option<Timestamp>, ControllerError> {
        let now = self.0.parts.clock.now();
        let (mut next, mut any) = (None, false);
        for agent in self.agents().by_name.keys() {
            let mut after = Some(0);
            while let Some(place) = after {
                let found = self.due(agent, place, now).await?;
                (after, next) = (found.after, earlier(next, found.next));
                if next.is_some() || !found.places.is_empty() {
                    any = true;
                    // Before it is looked who works there, so that no end in between is missed.
                    self.0.outcomes_due.store(true, Ordering::Release);
                }
                for (place, reports) in found.places {
                    next = earlier(next, self.serve(&place, reports, now).await?);
                }
            }
        }
        if !any {
            self.0.outcomes_due.store(false, Ordering::Release);
        }
        Ok(next)
    }

    /// Looks at a conversation, unless what it says is damaged.
    async fn serve(
        &self,
        place: &Place,
        reports: Vec<DueReport>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, ControllerError> {
        let runs: Vec<RunId> = reports.iter().map(|one| one.run.id.clone()).collect();
        match self.look_at(place, reports, now).await {
            // It would be as damaged the next time, and others are to be told.
            Err(ControllerError::Storage(error @ StoreError::Corrupt { .. })) => {
                let session = &place.conversation.session;
                tracing::error!(session, %error, "not nudged; its next run is told");
                self.quiet(&runs).await?;
                Ok(None)
            }
            looked => looked,
        }
    }

    /// Starts a nudge of a conversation if that is due; gives the time at which it may be.
    async fn look_at(
        &self,
        place: &Place,
        reports: Vec<DueReport>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, ControllerError> {
        match self.moment(place, &reports, now).await? {
            Moment::Now { serial } => self.nudge(place, reports, serial).await.map(|()| None),
            Moment::Later(time) => Ok(time),
        }
    }

    /// No host looks for the reports of these runs any more.
    async fn quiet(&self, runs: &[RunId]) -> Result<(), ControllerError> {
        for run in runs {
            self.0.parts.store.change_report(run, ReportChange::Quiet).await?;
        }
        Ok(())
    }

    /// Some of the reports that are due to conversations of an agent, after a place.
    async fn due(
        &self,
        agent: &str,
        mut after: u64,
        now: Timestamp,
    ) -> Result<DueReports, ControllerError> {
        let store = &self.0.parts.store;
        let query = ReportQuery::DueTo(agent.to_owned());
        let mut found = DueReports::default();
        for _ in 0..PAGES_MAX {
            let page = store.reports(&query, after, PAGE).await?;
            let is_last = page.len() < PAGE;
            after = page.last().map_or(after, |last| last.place);
            for Report { run, due, .. } in page {
                let Some(due) = due else { continue };
                if due > now {
                    found.next = earlier(found.next, Some(due));
                    continue;
                }
                let Some(spec) = self.spec_of(&run).await? else { continue };
                let delivery = spec.delivery.as_ref();
                let conversation = delivery.and_then(|delivery| delivery.conversation.clone());
                let Some(conversation) = conversation else { continue };
                let (tenant, owner_user_id) = (spec.tenant.clone(), spec.owner_user_id.clone());
                let place = Place { tenant, owner_user_id, conversation };
                found.places.entry(place).or_default().push(DueReport { run: spec, due });
            }
            if is_last {
                return Ok(found);
            }
        }
        Ok(DueReports { after: Some(after), ..found })
    }

    /// The request of a run; `None` if it is not there, or so damaged that nothing can be said of it.
    async fn spec_of(&self, id: &RunId) -> Result<Option<Arc<RunSpec>>, ControllerError> {
        match self.0.parts.store.get(id).await {
            Ok(run) => Ok(run.map(|run| run.spec)),
            Err(error @ StoreError::Corrupt { .. }) => {
                tracing::error!(run = %id, %error, "nobody is told of its outcome");
                self.0.parts.store.change_report(id, ReportChange::Quiet).await?;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The moment for reports of a conversation that are due.
    async fn moment(
        &self,
        place: &Place,
        reports: &[DueReport],
        now: Timestamp,
    ) -> Result<Moment, ControllerError> {
        let activity = Activity::of(&*self.0.parts.store, place).await?;
        let waits: Option<Vec<(Timestamp, IdleWait)>> =
            reports.iter().map(|one| Some((one.due, one.idle()?))).collect();
        // One of them is in haste, and the others come with it.
        let Some(waits) = waits else {
            return Ok(match activity.nudge_is_to_begin(false) {
                true => Moment::Later(None),
                false => Moment::Now { serial: false },
            });
        };
        if activity.nudge_is_to_begin(true) {
            return Ok(Moment::Later(None));
        }
        let latest = waits.iter().map(|(due, wait)| due.plus(wait.longest)).min();
        let buffer = waits.iter().map(|(_, wait)| wait.buffer).max().unwrap_or_default();
        let idle_from = match activity.is_open {
            true => None,
            false => Some(activity.last_began.map_or(Timestamp(0), |began| began.plus(buffer))),
        };
        let time = earlier(idle_from, latest);
        Ok(match time.is_none_or(|time| time <= now) {
            true => Moment::Now { serial: true },
            false => Moment::Later(time),
        })
    }

    /// Starts a nudge, if it may be; otherwise no host looks for its reports any more.
    async fn nudge(
        &self,
        place: &Place,
        reports: Vec<DueReport>,
        serial: bool,
    ) -> Result<(), ControllerError> {
        let notify = holder(&*self.0.parts.store, place).await?;
        let all: Vec<RunId> = reports.iter().map(|one| one.run.id.clone()).collect();
        if !self.has_nudges_left(place, &notify).await? {
            return self.not_nudged(place, "it was nudged too often in this hour", &all).await;
        }
        let group = self.group_of((place, &notify), reports).await?;
        let runs: Vec<RunId> = group.told.iter().map(|run| run.id.clone()).collect();
        if !group.spent.is_empty() {
            let reason = "the runs that started them have spent their budget";
            self.not_nudged(place, reason, &group.spent).await?;
        }
        if runs.is_empty() {
            return Ok(());
        }
        let refusal = match self.new_nudge((place, &notify), group, serial).await? {
            Err(reason) => reason,
            Ok(new) => {
                let id = new.run.id().clone();
                match self.0.parts.store.create(new).await? {
                    CreateOutcome::New => {
                        tracing::info!(run = %id, agent = notify, "nudge");
                        return Ok(());
                    }
                    // Others were quicker, or it waits with all that is to begin.
                    CreateOutcome::ReportsGone | CreateOutcome::Full(_) => return Ok(()),
                    refused @ (CreateOutcome::Repeated(_)
                    | CreateOutcome::Taken(_)
                    | CreateOutcome::SessionEnded
                    | CreateOutcome::ParentEnded
                    | CreateOutcome::NameTaken(_)
                    | CreateOutcome::Locked(_)) => format!("the store refuses: {refused:?}"),
                }
            }
        };
        self.not_nudged(place, &refusal, &runs).await
    }

    /// No host looks for these reports any more: the next run of their conversation is told of them.
    async fn not_nudged(
        &self,
        place: &Place,
        reason: &str,
        runs: &[RunId],
    ) -> Result<(), ControllerError> {
        let session = &place.conversation.session;
        tracing::warn!(session, reason, "not nudged; its next run is told");
        self.quiet(runs).await
    }

    /// True if a conversation may be nudged once more in this hour.
    async fn has_nudges_left(&self, place: &Place, agent: &str) -> Result<bool, ControllerError> {
        let most = self.agents().by_name.get(agent).map_or(0, |agent| agent.max_nudges);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let now = self.0.parts.clock.now();
        let since = Timestamp(now.0.saturating_sub(taskrun_journal::time::millis(HOUR)));
        let labels = [(LABEL.to_owned(), agent.to_owned())].into();
        let filter = ListFilter { labels, since: Some(since), ..ListFilter::default() };
        let (mut found, mut cursor) = (0, None);
        loop {
            let page =
                self.0.parts.store.list(&place.scope(), &filter, cursor.as_ref(), PAGE).await?;
            let app = &place.conversation.app;
            found += page.runs.iter().filter(|run| run.spec.parent_app_name == *app).count();
            cursor = page.next;
            if found >= most || cursor.is_none() {
                return Ok(found < most);
            }
        }
    }
}
