//! Reports of ended runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use taskrun_journal::delivery::{
    Conversation, DeadReason, Delivery, Report, ReportState, ReportsTaken,
};
use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::schedule::{self, ReportRequest, Settlement};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{ReportChange, ReportQuery, SessionKey};

use super::state::State;

/// Pending reports by place.
type Pending = BTreeMap<u64, RunId>;
/// Tenant, owner and conversation.
type ConversationKey = (String, String, Conversation);

#[derive(Clone, Default)]
pub(super) struct Outbox {
    reports: HashMap<RunId, Row>,
    places: BTreeMap<u64, RunId>,
    trees: HashMap<RunId, Pending>,
    conversations: BTreeMap<ConversationKey, Pending>,
    /// By the runs that were told and have not ended.
    taken: HashMap<RunId, BTreeSet<RunId>>,
}

#[derive(Clone)]
struct Row {
    report: Report,
    root: RunId,
    conversation: Option<ConversationKey>,
}

impl Outbox {
    fn add(&mut self, spec: &RunSpec, place: u64, conversation: Option<&Conversation>) {
        let report = Report {
            run: spec.id.clone(),
            place,
            state: ReportState::Pending,
            attempts: 0,
            taken_by: None,
            reason: None,
        };
        let key =
            |one: &Conversation| (spec.tenant.clone(), spec.owner_user_id.clone(), one.clone());
        let conversation = conversation.map(key);
        self.places.insert(place, spec.id.clone());
        let row = Row { report, root: spec.root_run_id.clone(), conversation };
        self.index(&row);
        self.reports.insert(spec.id.clone(), row);
    }

    fn index(&mut self, row: &Row) {
        let Report { run, place, state, taken_by, .. } = &row.report;
        match (state, taken_by) {
            (ReportState::Pending, _) => {
                self.trees.entry(row.root.clone()).or_default().insert(*place, run.clone());
                if let Some(key) = &row.conversation {
                    self.conversations.entry(key.clone()).or_default().insert(*place, run.clone());
                }
            }
            (ReportState::Taken, Some(taker)) => {
                self.taken.entry(taker.clone()).or_default().insert(run.clone());
            }
            (ReportState::Taken | ReportState::Delivered | ReportState::Dead, _) => {}
        }
    }

    fn unindex(&mut self, row: &Row) {
        let Report { run, place, state, taken_by, .. } = &row.report;
        match (state, taken_by) {
            (ReportState::Pending, _) => {
                if let Some(pending) = self.trees.get_mut(&row.root) {
                    pending.remove(place);
                    if pending.is_empty() {
                        self.trees.remove(&row.root);
                    }
                }
                if let Some(key) = &row.conversation
                    && let Some(pending) = self.conversations.get_mut(key)
                {
                    pending.remove(place);
                    if pending.is_empty() {
                        self.conversations.remove(key);
                    }
                }
            }
            (ReportState::Taken, Some(taker)) => {
                if let Some(taken) = self.taken.get_mut(taker) {
                    taken.remove(run);
                    if taken.is_empty() {
                        self.taken.remove(taker);
                    }
                }
            }
            (ReportState::Taken | ReportState::Delivered | ReportState::Dead, _) => {}
        }
    }

    fn change(&mut self, run: &RunId, change: impl FnOnce(&mut Report)) {
        let Some(mut row) = self.reports.remove(run) else { return };
        self.unindex(&row);
        change(&mut row.report);
        self.index(&row);
        self.reports.insert(run.clone(), row);
    }

    fn state_of(&self, run: &RunId) -> Option<ReportState> {
        self.reports.get(run).map(|row| row.report.state)
    }

    /// True if an open run was told of the outcome of this one.
    pub(super) fn is_taken(&self, run: &RunId) -> bool {
        self.state_of(run) == Some(ReportState::Taken)
    }

    pub(super) fn remove(&mut self, run: &RunId) {
        if let Some(row) = self.reports.remove(run) {
            self.unindex(&row);
            self.places.remove(&row.report.place);
        }
    }

    /// False if a run would be told of a report that is not pending.
    pub(super) fn may_take(&self, taken: Option<&ReportsTaken>) -> bool {
        match taken {
            Some(ReportsTaken::Told(runs)) => {
                runs.iter().all(|run| self.state_of(run) == Some(ReportState::Pending))
            }
            Some(ReportsTaken::Awaited(_)) | None => true,
        }
    }

    pub(super) fn take(&mut self, taker: &RunId, taken: &ReportsTaken) {
        let (ReportsTaken::Told(runs) | ReportsTaken::Awaited(runs)) = taken;
        for run in runs {
            if self.state_of(run) == Some(ReportState::Pending) {
                self.change(run, |report| {
                    report.state = ReportState::Taken;
                    report.taken_by = Some(taker.clone());
                });
            }
        }
    }

    pub(super) fn settle(&mut self, taker: &RunId, settlement: Settlement) {
        for run in self.taken.get(taker).cloned().unwrap_or_default() {
            self.change(&run, |report| {
                let (state, attempts, reason) = settlement.settle(report.attempts);
                (report.state, report.attempts, report.reason) = (state, attempts, reason);
                if state == ReportState::Pending {
                    report.taken_by = None;
                }
            });
        }
    }

    /// The session of some conversations ended.
    pub(super) fn end_session(&mut self, ended: &SessionKey) {
        let is_of = |(tenant, owner, conversation): &ConversationKey| {
            let key = SessionKey {
                tenant: tenant.clone(),
                owner_user_id: Some(owner.clone()),
                parent_app_name: conversation.app.clone(),
                id: conversation.session.clone(),
            };
            schedule::covers(ended, &key)
        };
        let of = self.conversations.iter().filter(|(key, _)| is_of(key));
        let runs: Vec<RunId> = of.flat_map(|(_, pending)| pending.values().cloned()).collect();
        for run in runs {
            self.change(&run, |report| {
                report.state = ReportState::Dead;
                report.reason = Some(DeadReason::SessionEnded);
            });
        }
    }

    pub(super) fn change_report(&mut self, run: &RunId, change: ReportChange) -> bool {
        if !self.state_of(run).is_some_and(|state| change.applies_to(state)) {
            return false;
        }
        match change {
            ReportChange::Retry => self.change(run, |report| {
                (report.state, report.attempts, report.reason) = (ReportState::Pending, 0, None);
                report.taken_by = None;
            }),
            ReportChange::Drop => self.remove(run),
        }
        true
    }
}

impl State {
    /// Keeps the report of a run that has ended, if there is somebody to be told.
    pub(super) fn report(&mut self, run: &Run, request: &ReportRequest) {
        let ended = |key| self.timelines.get(&key).is_some_and(|known| known.ended_at.is_some());
        let has_ended = schedule::conversation_key(&run.spec).is_some_and(ended);
        let Delivery { above, conversation } = &request.delivery;
        let conversation = conversation.as_ref().filter(|_| !has_ended);
        let nearest = above.iter().find(|id| self.is_open(id));
        if request.is_wanted(nearest, conversation.is_some()) {
            self.outbox.add(&run.spec, self.timelines.place(), conversation);
        }
    }

    pub(super) fn reports(&self, query: &ReportQuery, after: u64, limit: usize) -> Vec<Report> {
        let beyond = (Bound::Excluded(after), Bound::Unbounded);
        let found = |run: &RunId| self.outbox.reports.get(run).map(|row| row.report.clone());
        let pending = |pending: Option<&Pending>| -> Vec<Report> {
            let places = pending.into_iter().flat_map(|pending| pending.range(beyond));
            places.filter_map(|(_, run)| found(run)).take(limit).collect()
        };
        match query {
            ReportQuery::Tree(root) => pending(self.outbox.trees.get(root)),
            ReportQuery::Conversation { tenant, owner_user_id, conversation } => {
                let key = (tenant.clone(), owner_user_id.clone(), conversation.clone());
                pending(self.outbox.conversations.get(&key))
            }
            ReportQuery::Run(run) => {
                found(run).filter(|report| report.place > after).into_iter().take(limit).collect()
            }
            ReportQuery::Scope { scope, states } => {
                let admitted = |run: &&RunId| {
                    self.runs.get(*run).is_some_and(|entry| scope.admits(&entry.run))
                };
                let runs = self.outbox.places.range(beyond).map(|(_, run)| run).filter(admitted);
                let reports = runs.filter_map(found);
                reports.filter(|report| states.contains(&report.state)).take(limit).collect()
            }
        }
    }
}
